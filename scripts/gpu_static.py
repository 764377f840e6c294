#!/usr/bin/env python3
"""Compiles the GPU's kernels and checks the machine code: registers, spills, branches and wide accesses.

usage: gpu_static.py [--capability 80 …]

Input: `nvcc`, by NVCC or in PATH, and `nvdisasm` in PATH; `make gpu-static` gets both from PyPI. No GPU is
needed. Output: a table of all kernels; exit 1 if one of them is beyond a limit.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "backends/candle/src/cuda/kernels.cu"
# A block has up to 1,024 threads, and a multiprocessor 65,536 registers.
MAX_REGISTERS = 64
# Kernels that read whole rows have a wide form and a narrow one, each with its loops.
MAX_BRANCHES = 130
# Those that read or write single values only.
NARROW_LOADS, NARROW_STORES = {"mean_rows"}, {"mean_rows", "not_finite"}
INSTRUCTIONS = {"branches": r"\bBRA\b", "loads": r"\bLDG?\.E[.\w]*\.128", "stores": r"\bSTG?\.E[.\w]*\.128"}
RESOURCES = re.compile(
    r"Function properties for (\w+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r".*Used (\d+) registers"
)


def defects(name: str, numbers: dict[str, int]) -> list[str]:
    """A sentence for each limit that the kernel breaks."""
    family = re.sub(r"_(bf16|f16|f32)$", "", name)
    limits = {"registers": MAX_REGISTERS, "stack": 0, "spilled": 0, "branches": MAX_BRANCHES}
    found = [f"{numbers[what]} {what}, at most {most}" for what, most in limits.items() if numbers[what] > most]
    if not numbers["loads"] and family not in NARROW_LOADS:
        found.append("no load of 128 bits")
    if not numbers["stores"] and family not in NARROW_STORES:
        found.append("no store of 128 bits")
    return found


def measured(capability: str, folder: Path) -> dict[str, dict[str, int]]:
    """The numbers of each kernel."""
    cubin = folder / f"{capability}.cubin"
    nvcc = os.environ.get("NVCC", "nvcc")
    command = [nvcc, "-cubin", f"-arch=sm_{capability}", "-std=c++17", "-O3", "-Xptxas", "-v", KERNELS, "-o", cubin]
    built = subprocess.run(command, check=True, capture_output=True, text=True)
    listing = subprocess.run(["nvdisasm", "-c", cubin], check=True, capture_output=True, text=True).stdout
    code = dict(re.findall(r"\.section\s+\.text\.(\w+),.*?\n(.*?)(?=\n\s*\.section|\Z)", listing, re.S))
    found = {}
    for name, stack, stores, loads, registers in RESOURCES.findall(built.stderr + built.stdout):
        count = {what: len(re.findall(word, code[name])) for what, word in INSTRUCTIONS.items()}
        found[name] = {"registers": int(registers), "stack": int(stack), "spilled": int(stores) + int(loads)} | count
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capability", action="append")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for capability in parser.parse_args().capability or ["80", "90"]:
            kernels = measured(capability, Path(folder))
            for name, numbers in sorted(kernels.items()):
                found = defects(name, numbers)
                failed += bool(found)
                row = ", ".join(f"{count} {what}" for what, count in numbers.items())
                print(f"sm_{capability} {name}: {row}", *(f"FAILED: {defect}" for defect in found), sep="  ")
            if not kernels:
                sys.exit("nvcc named no kernel: its output has changed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
