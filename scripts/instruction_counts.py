#!/usr/bin/env python3
"""Counts the instructions of small models' forward passes, and compares them with the checked-in counts.

Times vary on a busy machine; the number of instructions is the same in every run and under any load. So this
shows without a benchmark if a change makes the forward pass execute more instructions. valgrind's callgrind
counts them on an emulated CPU, which is the same everywhere and has AVX2 at most.

Input: the example `forward_pass`, built. Output: a table; the exit status is 1 if a count is off by more than
2 %. With UPDATE_COUNTS=1, it writes the counts instead. Standard library only."""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "benches/instruction_counts.json"
FIXTURES = ROOT / "integration_tests/reference/fixtures"
# Model, dtype and instruction set. The second model has windows of attention, the third has experts.
CASES = [
    ("models/tied-bf16", "float32", "avx2"),
    ("models/tied-bf16", "bfloat16", "avx2"),
    ("models/tied-bf16", "int8", "avx2"),
    ("models/tied-bf16", "float32", "portable"),
    ("architectures/modernbert-embedding", "float32", "avx2"),
    ("architectures/nomic-moe", "float32", "avx2"),
]
TOLERANCE = 0.02


def skip(why: str) -> None:
    print(f"Instruction counts are not checked: {why}.")
    sys.exit(0)


def find_valgrind() -> None:
    """Makes sure that valgrind is installed: installs Debian's package if this process may, else skips."""
    if not shutil.which("valgrind") and shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "valgrind"]):
            subprocess.run(["apt-get", "--quiet", *command], check=False, **quiet)
    if not shutil.which("valgrind"):
        skip("valgrind is not installed (on Debian and Ubuntu: apt-get install valgrind)")


def compiler() -> str:
    return subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]


def count(binary: Path, model: str, dtype: str, instruction_set: str) -> int:
    """The instructions of the function `counted` and of all functions that it calls."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", "--quiet", "--toggle-collect=*forward_pass*counted*"]
        command += [f"--callgrind-out-file={output}", binary, FIXTURES / model, dtype, instruction_set]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            sys.exit(f"the forward pass under valgrind failed:\n{ended.stderr}")
        return int(re.search(r"^(?:totals|summary): (\d+)", output.read_text(), re.MULTILINE)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True, help="the example `forward_pass`")
    binary = parser.parse_args().binary
    if platform.machine() != "x86_64":
        skip("the checked-in counts are for x86_64")
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        skip("this CPU has no AVX2")
    known = json.loads(COUNTS.read_text())
    update = os.environ.get("UPDATE_COUNTS") == "1"
    if not update and known["rustc"] != compiler():
        skip(f"the checked-in counts are for rustc {known['rustc']}; this one, {compiler()}, generates other instructions")
    find_valgrind()
    counts = {f"{Path(model).name} {dtype} {name}": count(binary, model, dtype, name) for model, dtype, name in CASES}
    if update:
        COUNTS.write_text(json.dumps({"rustc": compiler(), "counts": counts}, indent=2) + "\n")
        print(f"Written to {COUNTS.relative_to(ROOT)}: {counts}")
        return
    off = 0
    for name, got in counts.items():
        expected = known["counts"].get(name)
        change = got / expected - 1 if expected else float("inf")
        off += abs(change) > TOLERANCE
        print(f"{name:36}{got:14,} instructions, {change:+7.2%}{'  <-' if abs(change) > TOLERANCE else ''}")
    if off:
        sys.exit(
            f"Some counts differ from {COUNTS.relative_to(ROOT)} by more than {TOLERANCE:.0%}. If the change is intended, "
            "run `UPDATE_COUNTS=1 make counts` and say in the commit what changed."
        )


if __name__ == "__main__":
    main()
