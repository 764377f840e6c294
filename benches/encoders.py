#!/usr/bin/env python3
"""Measures encoders of three sizes: this server over HTTP, and libraries in process: `make compare`, and on
an NVIDIA GPU `make gpu-bench`.

For each model, all systems are started and then asked in turn, in rounds; all but one are paused (SIGSTOP) at
any time. Input: the binary. Output: every reading as JSON, from which `render.py` makes a table. Invariants:
all systems get the same texts and threads, and all answers are compared with `transformers`' in float32. The
first run writes the models other than MiniLM to --work (2 GB)."""

import argparse
import datetime
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from encoder_models import ENCODERS, Encoder, folder
from peer_setup import environment
from systems import Neighbours, Peer, Process, Server, commit, machine

HERE = Path(__file__).resolve().parent
PEAKS = "cargo bench --quiet -p text-embeddings-backend-candle --features benchmarks --bench peaks --locked"
WORDS = "the quick brown fox jumps over a lazy dog near river bank".split()
SHORT = " ".join(WORDS)
QUERY = "quick fox"
TEXTS, CLIENTS = 32, 64
# Seconds for which many clients send short texts, and for which one client sends many texts.
LOAD_SECONDS, MANY_SECONDS = 4, 1


@dataclass(frozen=True)
class Choice:
    """A system to measure: the kind of process, and its arithmetic."""

    kind: str
    dtype: str

    @property
    def label(self) -> str:
        return f"{self.kind}, {self.dtype}"


OURS = "this server"
CHOICES_ON_GPU = [
    Choice(OURS, "bfloat16"),
    *(Choice("transformers", dtype) for dtype in ("float32", "bfloat16")),
]
CHOICES = [
    *(Choice(OURS, dtype) for dtype in ("float32", "bfloat16", "int8")),
    *(Choice("transformers", dtype) for dtype in ("float32", "bfloat16")),
    *(Choice("OpenVINO", dtype) for dtype in ("float32", "bfloat16")),
    *(Choice("onnxruntime", dtype) for dtype in ("float32", "int8")),
]
REFERENCE = Choice("transformers", "float32")


def texts_of(encoder: Encoder, count: int) -> dict:
    """`count` texts of 128 tokens each, or one text of 14 tokens; for pairs, including the query."""
    long = " ".join((WORDS * 11)[: 126 - (3 if encoder.pairs else 0)])
    texts = [SHORT] if count == 1 else [long] * count
    return {"query": QUERY, "texts": texts} if encoder.pairs else {"texts": texts}


class Ours(Server):
    """This server, asked over HTTP like any client."""

    def __init__(self, arguments: argparse.Namespace, model: Path, dtype: str):
        super().__init__(arguments.binary, model, ["--dtype", dtype], arguments.threads)

    def ask(self, request: dict) -> dict:
        path, content = ("/rerank", request) if "query" in request else ("/embed", {"inputs": request["texts"]})
        seconds, _, values = self.post(path, json.dumps(content).encode())
        if "query" in request:
            values = [rank["score"] for rank in sorted(values, key=lambda rank: rank["index"])]
        return {"seconds": seconds, "values": values}

    def many_clients(self, request: dict) -> float:
        """Requests per second from many clients that send without a pause."""
        until = time.perf_counter() + LOAD_SECONDS

        def client(_: int) -> int:
            count = 0
            while time.perf_counter() < until:
                self.ask(request)
                count += 1
            return count

        with ThreadPoolExecutor(CLIENTS) as pool:
            start = time.perf_counter()
            return sum(pool.map(client, range(CLIENTS))) / (time.perf_counter() - start)


class Library(Peer):
    """The process of a library."""

    def __init__(self, arguments: argparse.Namespace, model: Path, choice: Choice, python: Path, work: Path):
        of_peer = [model, choice.kind.lower(), choice.dtype, work, arguments.device]
        super().__init__(python, "encoder_peer.py", of_peer, arguments.threads)

    def ask(self, request: dict) -> dict:
        return self.rerank(request)


def started(choice: Choice, arguments: argparse.Namespace, model: Path, work: Path) -> Ours | Library:
    print(f"starting {choice.label}", file=sys.stderr, flush=True)
    if choice.kind == OURS:
        process = Ours(arguments, model, choice.dtype)
    else:
        process = Library(arguments, model, choice, Path(sys.executable), work)
    process.hold()
    return process


def error(values: list, reference: list) -> float:
    """The largest difference between two scores, or between 1 and the cosine of two normalised vectors."""
    if isinstance(values[0], float):
        return max(abs(a - b) for a, b in zip(values, reference, strict=True))
    return max(1 - sum(a * b for a, b in zip(*vectors, strict=True)) for vectors in zip(values, reference, strict=True))


def peaks(arguments: argparse.Namespace) -> dict:
    variables = os.environ | {"THREADS": str(arguments.threads)}
    ended = subprocess.run(arguments.peaks, env=variables, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
    return json.loads(ended.stdout)


def measured(encoder: Encoder, arguments: argparse.Namespace, choices: list[Choice]) -> dict:
    """All rounds with one model."""
    work = arguments.work / "encoders"
    model = folder(encoder, work, arguments.minilm)
    processes: dict[str, Process] = {}
    many, one = texts_of(encoder, TEXTS), texts_of(encoder, 1)
    # This number of single requests takes about as long as one large request.
    singles = 4 if encoder.pairs else 20
    results: dict = {choice.label: {"many": [], "one": [], "load": [], "many_clients": []} for choice in choices}
    found = []
    try:
        def begin(choice: Choice) -> None:
            processes[choice.label] = started(choice, arguments, model, work / f"{encoder.name}-graphs")

        with ThreadPoolExecutor() as pool:
            list(pool.map(begin, choices))
        answers = {}
        for round_ in range(-1, arguments.rounds):
            if round_ >= 0 and arguments.device == "cpu":
                found.append(peaks(arguments))
            for label, process in processes.items():
                process.release()
                readings = results[label]
                seconds = []
                while sum(seconds) < MANY_SECONDS:
                    answers[label] = process.ask(many)
                    seconds.append(answers[label]["seconds"])
                if round_ >= 0:
                    readings["many"].append(round(TEXTS / statistics.median(seconds), 2))
                    print(f"{encoder.name} round {round_} {label}: {readings['many'][-1]} texts/s", file=sys.stderr, flush=True)
                latencies = [process.ask(one)["seconds"] for _ in range(singles)]
                if round_ >= 0:
                    readings["one"].append(round(1000 * statistics.median(latencies), 3))
                    if isinstance(process, Ours):
                        readings["load"].append(round(process.many_clients(one), 1))
                        if arguments.device == "cuda":
                            # One request does not fill the device.
                            readings["many_clients"].append(round(TEXTS * process.many_clients(many), 1))
                process.hold()
        for label, answer in answers.items():
            if REFERENCE.label in answers:
                results[label]["error"] = error(answer["values"], answers[REFERENCE.label]["values"])
            results[label]["memory_mb"] = processes[label].memory().get("VmHWM")
    finally:
        for process in processes.values():
            process.stop()
    title = encoder.title.replace("trained", "random") if arguments.minilm else encoder.title
    return {"name": encoder.name, "title": title, "parameters": encoder.parameters, "pairs": encoder.pairs,
            "peaks": found, "systems": results}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="this server")
    parser.add_argument("--peaks", type=shlex.split, default=PEAKS, help="command that prints the CPU's peaks (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("target/peers"), help="folder for the environment and the model files")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "encoders.json")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--neighbours", type=int, default=0, help="busy processes that share the cores; give --output, too")
    parser.add_argument("--models", default=",".join(encoder.name for encoder in ENCODERS), help="models to measure (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the systems compute; the binary must be for it")
    parser.add_argument("--minilm", type=Path, help="a folder with the files of MiniLM but its weights, for random ones")
    parser.add_argument("--has-peers", action="store_true", help="this Python has torch and transformers: make no environment")
    parser.add_argument("--systems", default="", help="measure only systems whose name contains this, such as `this server`")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    python = Path(sys.executable) if arguments.has_peers else environment(arguments.work, {"onnx"}).absolute()
    if not arguments.has_peers and Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), *sys.argv])

    # Without this handler, a killed program would leave paused processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    from gpu import card
    from peers import versions

    choices, where = (CHOICES_ON_GPU, card()) if arguments.device == "cuda" else (CHOICES, machine())
    choices = [choice for choice in choices if arguments.systems in choice.label]
    results = {"date": datetime.date.today().isoformat(), "machine": where, "threads": arguments.threads,
               "commit": commit(), "versions": versions(), "neighbours": arguments.neighbours, "models": []}
    for encoder in ENCODERS:
        if encoder.name in arguments.models.split(","):
            with Neighbours(arguments.neighbours):
                results["models"].append(measured(encoder, arguments, choices))
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {arguments.output}; `python3 benches/render.py` makes a table of it", file=sys.stderr)


if __name__ == "__main__":
    main()
