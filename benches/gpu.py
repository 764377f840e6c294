#!/usr/bin/env python3
"""This server and `transformers` on an NVIDIA GPU, on the same work: `make gpu-bench`.

Asks one system after the other, request by request (A B C A B C …); the others are held still. Input: the
binary, built with `candle-cuda`; a bfloat16 model folder of benchmark_model.py. Output: every single reading
in `results/gpu.json`, and the table of `docs/gpu.md`. What must hold: all systems get the same requests, each
with a query of its own, and all scores are compared with the scores of `transformers` in float32.

The standard library is enough to start it; it goes on inside the environment that it makes. With
`--has-peers`, it needs no other environment."""

import argparse
import concurrent.futures
import datetime
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from peer_setup import environment
from systems import RERANKER, Peer, Process, Server, commit

HERE = Path(__file__).resolve().parent
DOCUMENT, RESULTS = HERE.parent / "docs" / "gpu.md", HERE / "results" / "gpu.json"
WORKLOADS = ("W1", "W2", "W3")
# Requests of each workload; the first ones are not measured. W1 and W3 have twelve queries.
WARM, MEASURED, MEASURED_IN_BRIEF = 2, 7, 4
# Pairs in a batch of `transformers`; the fastest counts.
BATCHES = (1, 8, 32)
# A server under load: clients that never pause, texts of a request, seconds.
CLIENTS, TEXTS, LOAD_SECONDS = 64, 32, 10


@dataclass(frozen=True)
class System:
    name: str
    label: str
    is_server: bool
    dtype: str


SYSTEMS = [
    *(System(f"server-{dtype}", f"this server, {dtype}", True, dtype) for dtype in ("float32", "bfloat16", "float16")),
    *(System(f"transformers-{dtype}", f"transformers, {dtype}", False, dtype) for dtype in ("float32", "bfloat16")),
]
REFERENCE = "transformers-float32"


def started(system: System, arguments: argparse.Namespace, python: Path) -> tuple[Process, float]:
    """The system, held still, and the seconds of its start. A first start, in which the driver compiles
    kernels, does not count."""
    print(f"starting {system.label}", file=sys.stderr, flush=True)

    def start() -> Process:
        if system.is_server:
            return Server(arguments.binary, arguments.model, [*RERANKER, "--dtype", system.dtype])
        return Peer(python, "transformers_peer.py", [arguments.model, system.dtype, "cuda"], os.cpu_count())

    if system.is_server:
        first = start()
        first.stop()
        print(f"the first start took {first.ready_seconds:.1f} s", file=sys.stderr, flush=True)
    process = start()
    process.hold()
    return process, process.ready_seconds


def device_memory(process: Process) -> int | None:
    """Megabytes of the card that a process holds; absent in containers where the driver does not say."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    held = [line.split(", ") for line in listed.splitlines()]
    return next((int(memory) for pid, memory in held if int(pid) == process.process.pid and memory.isdigit()), None)


def card() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def asked_in_turn(process: Process, request: dict) -> dict:
    process.release()
    try:
        return process.rerank(request)
    finally:
        process.hold()


def measure(workload: str, processes: dict[str, Process], count: int) -> list[dict]:
    """All readings of a workload with `count` measured requests. A server gets every request twice; the
    second finds its query in the prefix cache."""
    from asked import Asked

    asked, readings = Asked(workload), []
    batches = [size for size in BATCHES if size == 1 or size <= len(asked.documents)]
    for index in range(WARM + count):
        for system in SYSTEMS:
            for batch in [1] if system.is_server else batches:
                request = asked.request(index, batch)
                for is_again in (False, True) if system.is_server else (False,):
                    answer = asked_in_turn(processes[system.name], request)
                    readings.append({
                        "system": system.name, "workload": workload, "query": index, "batch": batch, "again": is_again,
                        "measured": index >= WARM, "seconds": round(answer["seconds"], 6),
                        "scores": [round(score, 7) for score in answer["scores"]],
                    })
        print(f"{workload}: {index + 1} of {WARM + count}", file=sys.stderr, flush=True)
    return readings


def computed_tokens(server: Server) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        found = re.search(r"^te_batch_tokens_computed(?:_total)? (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def under_load(server: Server) -> dict:
    """The throughput with clients that never pause, each request with a query of its own."""
    words = "the red planet has two moons and a thin air of carbon dioxide that storms of dust cross for months at times".split()
    server.release()
    begun = time.perf_counter()
    end = begun + LOAD_SECONDS
    tokens = computed_tokens(server)

    def client(number: int) -> int:
        count = 0
        while time.perf_counter() < end:
            texts = [" ".join(words[(number + text + word) % len(words)] for word in range(60 + text)) for text in range(TEXTS)]
            server.ask({"query": f"question {number} {count} about moons", "documents": texts})
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        requests = sum(clients.map(client, range(CLIENTS)))
    seconds = time.perf_counter() - begun
    tokens = computed_tokens(server) - tokens
    server.hold()
    return {"pairs_per_second": round(requests * TEXTS / seconds, 1), "computed_tokens_per_second": round(tokens / seconds)}


def of_new_lengths(server: Server) -> float:
    """The median of the seconds for one short pair, when each has a length that did not come before."""
    server.release()
    asked = [{"query": f"question {words} of", "documents": ["moon " * words]} for words in range(20, 80)]
    random.Random(5).shuffle(asked)
    seconds = [server.ask(request)[0] for request in asked]
    server.hold()
    return statistics.median(seconds)


class Readings:
    """Readings as figures of the table."""

    def __init__(self, results: dict):
        self.results = results

    def seconds(self, system: str, workload: str, is_again: bool = False) -> list[float]:
        """The measured requests' times, with the batch size that was fastest."""
        times: dict[int, list[float]] = {}
        for reading in self.results["readings"]:
            if reading["measured"] and (reading["system"], reading["workload"], reading["again"]) == (system, workload, is_again):
                times.setdefault(reading["batch"], []).append(reading["seconds"])
        return min(times.values(), key=statistics.median, default=[])

    def figure(self, system: str, workload: str, is_again: bool = False) -> str:
        """Milliseconds of W2, pairs per second of the others: the median."""
        seconds = self.seconds(system, workload, is_again)
        if not seconds:
            return ""
        if workload == "W2":
            return f"{statistics.median(seconds) * 1e3:.1f}"
        pairs = next(len(reading["scores"]) for reading in self.results["readings"] if reading["workload"] == workload)
        return f"{pairs / statistics.median(seconds):.0f}"

    def worst_difference(self, system: str) -> float | None:
        """The largest difference of a score to `transformers` in float32 for the same request."""
        def by_request(name: str) -> dict[tuple, list[list[float]]]:
            found: dict[tuple, list[list[float]]] = {}
            for reading in self.results["readings"]:
                if reading["system"] == name:
                    found.setdefault((reading["workload"], reading["query"]), []).append(reading["scores"])
            return found

        reference = by_request(REFERENCE)
        return max((abs(score - exact)
                    for request, answers in by_request(system).items() if request in reference
                    for scores in answers
                    for score, exact in zip(scores, reference[request][0], strict=True)), default=None)


def table(results: dict) -> str:
    """The part of the document."""
    from render import difference
    from render import table as lines

    readings, rows = Readings(results), []
    for system in results["systems"]:
        name, memory, load = system["name"], system["memory_mb"], system["load"]
        rows.append([
            system["label"], *(readings.figure(name, workload) for workload in WORKLOADS), readings.figure(name, "W1", True),
            f"{system['new_lengths'] * 1e3:.1f}" if system["new_lengths"] else "",
            f"{load['computed_tokens_per_second']:,}" if load else "", difference(readings.worst_difference(name)),
            f"{memory / 1024:.1f}" if memory else "", f"{system['ready_seconds']:.1f}",
        ])
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    said = (
        f"{results['date']}, {results['card']}; commit {results['commit']}; {versions}. Medians of {results['requests']} requests, each with a query of its own; "
        f"`transformers` with the fastest of batches of {', '.join(map(str, BATCHES[:-1]))} and {BATCHES[-1]}. "
        f"Under load: {CLIENTS} clients that never pause, {TEXTS} texts in a request."
    )
    head = ["", "W1, pairs/s", "W2, ms", "W3, pairs/s", "W1 again, pairs/s", "short pairs of new lengths, ms", "under load, computed tokens/s",
            "worst score difference to float32", "memory of the card, GiB", "ready after, s"]
    return textwrap.fill(said, 110) + "\n\n" + lines(head, rows)


def versions() -> dict[str, str]:
    from importlib import metadata

    return {package: metadata.version(package) for package in ("transformers", "torch")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True, help="this server, built with candle-cuda")
    parser.add_argument("--model", type=Path, required=True, help="a folder that benchmark_model.py wrote")
    parser.add_argument("--work", type=Path, default=Path("target/peers"), help="for the environment of the peers")
    parser.add_argument("--has-peers", action="store_true", help="this Python has torch and transformers: make no environment")
    parser.add_argument("--brief", action="store_true", help=f"{MEASURED_IN_BRIEF} requests of each kind instead of {MEASURED}")
    arguments = parser.parse_args()
    count = MEASURED_IN_BRIEF if arguments.brief else MEASURED
    python = Path(sys.executable) if arguments.has_peers else environment(arguments.work, {"transformers"}).absolute()
    if not arguments.has_peers and Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), *sys.argv])
    # The end of this program must end the processes that it started: they may be held still.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Before the results are written, which belong to the same working tree.
    results = {"date": datetime.date.today().isoformat(), "requests": count, "card": card(), "commit": commit(), "versions": versions()}
    processes: dict[str, Process] = {}
    seconds: dict[str, float] = {}
    try:
        for system in SYSTEMS:
            processes[system.name], seconds[system.name] = started(system, arguments, python)
        readings = [reading for workload in WORKLOADS for reading in measure(workload, processes, count)]
        described = []
        for system in SYSTEMS:
            process = processes[system.name]
            # Memory after the workloads, before the load, whose batches are larger.
            memory = device_memory(process)
            described.append({
                "name": system.name, "label": system.label, "ready_seconds": round(seconds[system.name], 2), "memory_mb": memory,
                "new_lengths": of_new_lengths(process) if system.is_server else None,
                "load": under_load(process) if system.is_server else None,
            })
    finally:
        for process in processes.values():
            process.stop()
    results |= {"systems": described, "readings": readings}
    from peers import one_line_each
    from render import put

    RESULTS.write_text(one_line_each(results))
    DOCUMENT.write_text(put(DOCUMENT.read_text(), "gpu", table(results)))
    print(f"wrote {RESULTS} and {DOCUMENT}", file=sys.stderr)


if __name__ == "__main__":
    main()
