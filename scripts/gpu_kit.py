#!/usr/bin/env python3
"""Checks and measures this server on a machine that has an NVIDIA GPU, and no network, Rust or PyPI.

usage: gpu_kit.py pack --binary FILE --tests FILE --cpu-binary FILE --tokenizer FOLDER ARCHIVE
       gpu_kit.py run [--only STEP] [--out FOLDER]

`pack` makes an archive of the server, the candle backend's tests and all that they need; `make gpu-kit`
builds them first. `run`, in the unpacked archive, does one step after the other, each with a limit of its own
and a log, and goes on after a failure. It exits with 1 if a step failed.

The other machine needs Python with numpy, and CUDA 13's libraries: libcublas, libcurand and libcudart, which
an installed PyTorch has. For the benchmark it needs torch and transformers, for two steps CUDA's tools
compute-sanitizer and ncu; a step without its tool is skipped, and says so.
"""

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches"))

# Tracked files that tests and measurements read.
PACKED = ("benches", "integration_tests/reference", "backends/candle/src/cuda", "docs/gpu.md", "scripts/gpu_kit.py", "LICENSE")
MAX_ARCHIVE = 40 << 20
SERVER, TESTS = ROOT / "bin" / "text-embeddings-router", ROOT / "bin" / "backend-tests"
MODEL, MINILM, GOLDENS = ROOT / "model", ROOT / "minilm", ROOT / "goldens.json"
# Queries of each workload whose float32 scores are packed.
QUERIES = {"W1": 3, "W2": 3, "W3": 1}
# The same for a small model, whose kit an emulated device runs: it takes its time.
SMALL_QUERIES, SMALL_DOCUMENTS = {"W1": 1, "W2": 2}, 2
# For each arithmetic, how far a score may be from the CPU's in float32. The tests' small models have wilder
# weights than trained ones.
TOLERANCES = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.03}
SMALL_TOLERANCES = {"float32": 1e-4, "float16": 0.03, "bfloat16": 0.15}


class Skipped(Exception):
    """This machine lacks a tool or a package that a step needs."""


# --- pack


def goldens(binary: Path, model: Path, queries: dict[str, int], documents: int | None) -> list[dict]:
    """Requests with at most this number of documents, with their scores by the CPU in float32."""
    from asked import Asked
    from systems import RERANKER, Server

    requests = [Asked(workload, documents).request(index, 1) for workload, count in queries.items() for index in range(count)]
    server = Server(binary, model, [*RERANKER, "--dtype", "float32"])
    try:
        return [request | {"scores": server.rerank(request)["scores"]} for request in requests]
    finally:
        server.stop()


def model_command(folder: Path, tokenizer: Path) -> list[str | Path]:
    """Writes random weights of the 0.6B shape, the same on every machine."""
    return [sys.executable, ROOT / "integration_tests/reference/benchmark_model.py", folder, "--tokenizer", tokenizer]


def copy_minilm(folder: Path) -> None:
    """The files of a trained model, without its weights: the archive has no room for them."""
    from encoder_models import MINILM as NAMES
    from encoder_models import trained_minilm

    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(trained_minilm() / name, folder / name)


def pack(arguments: argparse.Namespace) -> None:
    from systems import commit

    with tempfile.TemporaryDirectory() as made:
        kit = Path(made) / "gpu-kit"
        tracked = subprocess.run(["git", "-C", ROOT, "ls-files", *PACKED], capture_output=True, text=True, check=True)
        for name in tracked.stdout.splitlines():
            (kit / name).parent.mkdir(parents=True, exist_ok=True)
            # Some fixtures are links to other folders.
            shutil.copy2(ROOT / name, kit / name, follow_symlinks=False)
        (kit / "bin").mkdir()
        for source, target in ((arguments.binary, SERVER), (arguments.tests, TESTS)):
            stripped = kit / target.relative_to(ROOT)
            subprocess.run(["strip", "-o", stripped, source], check=True)
        model = kit / "model"
        if arguments.model:
            shutil.copytree(arguments.model, model)
            scored = goldens(arguments.cpu_binary, model, SMALL_QUERIES, SMALL_DOCUMENTS)
        else:
            whole = Path(made) / "whole"
            subprocess.run(model_command(whole, arguments.tokenizer), check=True)
            scored = goldens(arguments.cpu_binary, whole, QUERIES, None)
            shutil.copytree(whole, model, ignore=shutil.ignore_patterns("*.safetensors"))
        copy_minilm(kit / MINILM.relative_to(ROOT))
        tolerances = SMALL_TOLERANCES if arguments.model else TOLERANCES
        (kit / "goldens.json").write_text(json.dumps({"tolerances": tolerances, "requests": scored}))
        (kit / "COMMIT").write_text(commit())
        # A window larger than both binaries: they have most of their code in common.
        command = ["xz", "--threads=1", "--lzma2=preset=6,dict=256MiB", "--stdout"]
        plain = Path(made) / "kit.tar"
        with tarfile.open(plain, "w") as archive:
            archive.add(kit, kit.name)
        with arguments.archive.open("wb") as out:
            subprocess.run([*command, plain], stdout=out, check=True)
    size = arguments.archive.stat().st_size
    print(f"{arguments.archive}: {size / (1 << 20):.1f} MiB. There: tar xf {arguments.archive.name} && python3 gpu-kit/scripts/gpu_kit.py run")
    if size > MAX_ARCHIVE:
        sys.exit(f"{arguments.archive} is larger than {MAX_ARCHIVE >> 20} MiB")


# --- run


@dataclass
class Run:
    """Where a step writes, and until when it may run."""

    log: Path
    out: Path
    end: float

    def command(self, *command: str | Path) -> str:
        """Runs a command within the step's time; its output, which also goes to the log."""
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n")
        ended = subprocess.run(
            ["timeout", "--kill-after=5", str(max(1, int(self.end - time.monotonic()))), *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )
        with self.log.open("a") as log:
            log.write(ended.stdout)
        if ended.returncode:
            why = "ran out of time" if ended.returncode in (124, 137) else f"ended with {ended.returncode}"
            raise RuntimeError(f"{Path(command[0]).name} {why}: {' | '.join(ended.stdout.splitlines()[-3:])}")
        return ended.stdout


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if not found:
        raise Skipped(f"there is no {name}")
    return found


def facts(run: Run) -> str:
    missing = re.findall(r"(\S+) => not found", run.command("ldd", SERVER))
    if missing:
        raise RuntimeError(f"the binaries need {', '.join(sorted(set(missing)))}")
    run.command("lscpu")
    return run.command(tool("nvidia-smi"), "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").strip()


def passed(output: str) -> str:
    return ", ".join(re.findall(r"test result: (\w+\. \d+ passed; \d+ failed)", output))


def kernels(run: Run) -> str:
    """Kernels, flash attention, real widths and fixtures on the card itself. Each group is a process of its
    own: after a fault of the device, a process computes nothing any more."""
    groups = ("kernel_tests::on_the_card", "flash_attention_equals", "real_widths", "prefix_cache", "every_architecture")
    found, failed = [], []
    for group in groups:
        try:
            found.append(passed(run.command(TESTS, group)))
        except RuntimeError as error:
            failed.append(f"{group}: {error}")
    if failed:
        raise RuntimeError("; ".join(failed))
    return ", ".join(found)


def suite(run: Run) -> str:
    return passed(run.command(TESTS, "--skip", "on_the_card", "--skip", "cpu::", "--skip", "kernels::"))


def sanitizer(run: Run) -> str:
    tests = ("biases_are_added", "gathered_rows", "means_of_rows", "scores_over_time_are_those_without_a_cache_on_the_card")
    return passed(run.command(tool("compute-sanitizer"), "--tool", "memcheck", "--error-exitcode", "9", TESTS, *tests))


def weights(run: Run) -> str:
    """Writes the model's weights, unless they were packed or written before."""
    file = MODEL / "model.safetensors"
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=MODEL.parent) as folder:
            run.command(*model_command(Path(folder), MODEL))
            (Path(folder) / file.name).rename(file)
    return f"{file.stat().st_size >> 20} MiB"


def scores(run: Run) -> str:
    """The server's scores in each arithmetic, next to the CPU's in float32."""
    from systems import RERANKER, Server

    found, wrong = [], []
    packed = json.loads(GOLDENS.read_text())
    for dtype, tolerance in packed["tolerances"].items():
        server = Server(SERVER, MODEL, [*RERANKER, "--dtype", dtype])
        try:
            worst = 0.0
            for request in packed["requests"]:
                # The second time, the query's beginning is in the prefix cache.
                for _ in range(2):
                    got = server.rerank(request)["scores"]
                    worst = max(worst, *(abs(one - exact) for one, exact in zip(got, request["scores"], strict=True)))
        finally:
            server.stop()
            with run.log.open("a") as log:
                log.write(Path(server.log.name).read_text())
        found.append(f"{dtype} {worst:.1e}")
        if worst > tolerance:
            wrong.append(f"{dtype}: a score is {worst:.2e} off, more than {tolerance}")
    if wrong:
        raise RuntimeError("; ".join(wrong))
    return "worst difference: " + ", ".join(found)


def needs_peers(run: Run) -> None:
    try:
        run.command(sys.executable, "-c", "import torch, transformers")
    except RuntimeError:
        raise Skipped("this Python has no torch and transformers") from None


def benchmark(run: Run) -> str:
    needs_peers(run)
    (ROOT / "benches" / "results").mkdir(exist_ok=True)
    run.command(sys.executable, ROOT / "benches" / "gpu.py", "--binary", SERVER, "--model", MODEL, "--has-peers", "--brief")
    shutil.copy(ROOT / "benches" / "results" / "gpu.json", run.out)
    shutil.copy(ROOT / "docs" / "gpu.md", run.out)
    return "gpu.json, gpu.md"


def encoders(run: Run) -> str:
    needs_peers(run)
    results = run.out / "encoders_gpu.json"
    run.command(sys.executable, ROOT / "benches" / "encoders.py", "--binary", SERVER, "--device", "cuda", "--has-peers", "--minilm", MINILM,
                "--work", ROOT, "--rounds", "2", "--output", results)
    return results.name


# Requests under the profiler: the last one of each kind counts.
PROFILED = {"W1": 3, "W2": 4, "W3": 2}


def passes_of(listed: list[str]) -> list[dict[str, list[float]]]:
    """The milliseconds of each kernel, by forward pass: a pass begins with the embedding."""
    head = next(number for number, line in enumerate(listed) if '"Kernel Name"' in line)
    found: list[dict[str, list[float]]] = [defaultdict(list)]
    units = {"ns": 1e-6, "us": 1e-3, "usecond": 1e-3, "nsecond": 1e-6, "ms": 1.0, "msecond": 1.0}
    for row in csv.DictReader(listed[head:]):
        if row["Metric Name"] != "gpu__time_duration.sum":
            continue
        if row["Kernel Name"].startswith("embed_"):
            found.append(defaultdict(list))
        name = f"{row['Kernel Name'][:70]} {row['Grid Size']}"
        found[-1][name].append(float(row["Metric Value"].replace(",", "")) * units[row["Metric Unit"]])
    return found


def profile(run: Run) -> str:
    """The time of each kernel in a pass of each workload."""
    from asked import Asked
    from systems import RERANKER, Server

    listed, profiled = run.out / "kernels.csv", run.out / "profiled.sh"
    # The card keeps its clocks, and each kernel finds the cache as it is.
    flags = f"--csv --metrics gpu__time_duration.sum --clock-control none --cache-control none --target-processes all --log-file {listed}"
    profiled.write_text(f'#!/bin/sh\nexec {tool("ncu")} {flags} {SERVER} "$@"\n')
    profiled.chmod(0o755)
    server = Server(profiled, MODEL, [*RERANKER, "--dtype", "bfloat16"])
    try:
        for workload, count in PROFILED.items():
            for index in range(count):
                server.rerank(Asked(workload).request(index, 1))
    finally:
        subprocess.run(["pkill", "-TERM", "-f", f"^{SERVER}"], check=False)
        server.process.wait(60)
    passes = passes_of(listed.read_text().splitlines())
    found, end = [], len(passes)
    with run.log.open("w") as log:
        for workload, count in reversed(PROFILED.items()):
            kernels = passes[end - 1]
            end -= count
            rows = sorted(((sum(times), len(times), name) for name, times in kernels.items()), reverse=True)
            total, launches = sum(row[0] for row in rows), sum(row[1] for row in rows)
            found.insert(0, f"{workload} {total:.2f} ms in {launches} kernels")
            log.write(f"{found[0]}\n" + "".join(f"{milliseconds:9.3f} ms {times:5} × {name}\n" for milliseconds, times, name in rows))
    return ", ".join(found)


@dataclass(frozen=True)
class Step:
    run: Callable[[Run], str]
    seconds: int


STEPS = (Step(facts, 20), Step(kernels, 120), Step(weights, 60), Step(scores, 120), Step(suite, 90), Step(sanitizer, 70), Step(benchmark, 300), Step(encoders, 200), Step(profile, 90))


def library_folders() -> list[str]:
    """Where CUDA's libraries are: with this Python's packages, and where a toolkit has them."""
    of_packages = [folder for path in sys.path for folder in sorted(Path(path).glob("nvidia/*/lib")) if folder.is_dir()]
    return [*map(str, of_packages), "/usr/local/cuda/lib64"]


def do_step(step: Step, out: Path) -> tuple[str, str]:
    """How a step ended, and its findings. The limit holds for this process, too."""

    def overdue(*_: object) -> None:
        raise RuntimeError(f"ran out of its {step.seconds} s")

    signal.signal(signal.SIGALRM, overdue)
    signal.alarm(step.seconds + 10)
    try:
        return "ok", step.run(Run(out / f"{step.run.__name__}.log", out, time.monotonic() + step.seconds))
    except Skipped as skipped:
        return "skipped", str(skipped)
    except (Exception, SystemExit) as error:  # noqa: BLE001, because the next steps shall run
        return "FAILED", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def run_steps(arguments: argparse.Namespace) -> None:
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    known = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([*known, *library_folders()])
    os.environ["CARGO_MANIFEST_DIR"] = str(ROOT / "backends" / "candle")
    # The driver compiles kernels at the first start, and keeps them for the next ones.
    os.environ.setdefault("CUDA_CACHE_PATH", str(out / "compiled"))
    failures = 0
    for step in STEPS:
        name = step.run.__name__
        if name not in (arguments.only or [name]):
            continue
        begun = time.monotonic()
        state, found = do_step(step, out)
        failures += state == "FAILED"
        line = f"{name:10} {state:8} {time.monotonic() - begun:6.1f} s  {found}"
        print(line, flush=True)
        with (out / "summary.txt").open("a") as summary:
            summary.write(line + "\n")
    sys.exit(failures > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    packing = parts.add_parser("pack", help="make the archive")
    packing.set_defaults(part=pack)
    packing.add_argument("--binary", type=Path, required=True, help="the server, built with candle-cuda")
    packing.add_argument("--tests", type=Path, required=True, help="the candle backend's tests, built with cuda,flash-attn")
    packing.add_argument("--cpu-binary", type=Path, required=True, help="the server for CPUs: its float32 scores are the goldens")
    source = packing.add_mutually_exclusive_group(required=True)
    source.add_argument("--tokenizer", type=Path, help="Qwen3's tokenizer, for a random model of the 0.6B shape")
    source.add_argument("--model", type=Path, help="a small model folder instead, to try the kit out")
    packing.add_argument("archive", type=Path)
    running = parts.add_parser("run", help="do the steps on the machine with the GPU")
    running.set_defaults(part=run_steps)
    running.add_argument("--only", action="append", choices=[step.run.__name__ for step in STEPS], help="do only this step")
    running.add_argument("--out", type=Path, default=Path("gpu-kit-results"))
    arguments = parser.parse_args()
    arguments.part(arguments)


if __name__ == "__main__":
    main()
