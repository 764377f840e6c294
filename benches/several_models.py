#!/usr/bin/env python3
"""Measures two models in one process against each alone: work, waiting times under a flood, memory.

Input: the binary, an embedding model and a re-ranker. Output: Markdown tables. Work is measured in answers
for a second of the processors, which other programs change less than answers per second. Each round measures
both models alone, each in a process of its own, and then together; the tables have medians. Linux only.

    python3 benches/several_models.py BINARY EMBEDDER RERANKER --threads 1 --rounds 5"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from systems import Server, commit, cpu_seconds, machine

# Route, and flags of `bench`, for each model.
LOADS = {"embedder": ("/embed", ["--texts", 1, "--words", 60]), "reranker": ("/rerank", ["--texts", 4, "--words", 60])}
# Requests in flight: enough to keep a model busy, and enough for rates that no server can answer.
CLIENTS, MANY = 8, 256
# Short requests a second to one model.
SHORT_RATE = 5


class Loaded:
    """A server, and the load for its models."""

    def __init__(self, arguments: argparse.Namespace, names: tuple[str, ...], work: Path):
        self.binary, self.names, file = arguments.binary, names, work / "models.toml"
        tables = [f"[models.{name}]\nmodel-id = {json.dumps(getattr(arguments, name))}\n" for name in names]
        file.write_text("".join(tables))
        self.server = Server(self.binary, file, ["--dtype", arguments.dtype], arguments.threads)
        for name in names:
            self.bench(name, ["--requests", 4 * CLIENTS, "--concurrency", CLIENTS])

    def bench(self, name: str, flags: list) -> dict:
        route, sizes = LOADS[name]
        # A server with one model has no path of its name.
        url = f"{self.server.url}/models/{name}" if len(self.names) > 1 else self.server.url
        command = [self.binary, "bench", "--url", url, "--route", route, "--output", "json", *sizes, *flags]
        ended = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"bench failed:\n{ended.stderr}")
        return json.loads(ended.stdout)

    def flood(self, names: tuple[str, ...], seconds: float) -> tuple[dict[str, int], float]:
        """Answers of each model to clients that never pause, and the processors' seconds that they took."""
        before = cpu_seconds(self.server.process.pid)
        flags = ["--duration", seconds, "--concurrency", CLIENTS, "--warm-up", 0]
        reports = at_once(*[lambda name=name: self.bench(name, flags) for name in names])
        used = cpu_seconds(self.server.process.pid) - before
        return {name: report["succeeded"] for name, report in zip(names, reports, strict=True)}, used

    def megabytes(self) -> float:
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000


def at_once(*calls: Callable[[], object]) -> list:
    """The results of calls that run at the same time."""
    found: list = [None] * len(calls)

    def run(place: int) -> None:
        found[place] = calls[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def flooded(loaded: Loaded, rate: float, seconds: float) -> tuple[dict, dict]:
    """Latencies of short requests to the embedder: alone, and while the re-ranker gets ten times its rate."""
    short = ["--rate", SHORT_RATE, "--requests", round(SHORT_RATE * seconds), "--concurrency", MANY, "--warm-up", 4]
    alone = loaded.bench("embedder", short)["latency_ms"]
    flood = ["--rate", f"{10 * rate:.3f}", "--duration", seconds + 4, "--concurrency", MANY]

    def later() -> dict:
        time.sleep(2)
        return loaded.bench("embedder", short)["latency_ms"]

    _, busy = at_once(lambda: loaded.bench("reranker", flood), later)
    return alone, busy


def one_round(arguments: argparse.Namespace, work: Path) -> dict:
    seconds, found, alone = arguments.seconds, {}, {}
    for name in LOADS:
        loaded = Loaded(arguments, (name,), work)
        try:
            answers, used = loaded.flood((name,), seconds)
            alone[name] = answers[name] / used
            found[f"{name} MB"] = loaded.megabytes()
        finally:
            loaded.server.stop()
    both = Loaded(arguments, tuple(LOADS), work)
    try:
        answers, used = both.flood(tuple(LOADS), seconds)
        # The time that these answers take alone, for each second that they took together.
        found["work"] = sum(answers[name] / alone[name] for name in LOADS) / used
        found["both MB"] = both.megabytes()
        rate = both.bench("reranker", ["--duration", seconds / 2, "--concurrency", CLIENTS])["requests_per_second"]
        found["alone"], found["flooded"] = flooded(both, rate, seconds)
    finally:
        both.server.stop()
    found |= {f"{name} rate": rate for name, rate in alone.items()}
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("embedder")
    parser.add_argument("reranker")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rounds = [one_round(arguments, Path(work)) for _ in range(arguments.rounds)]

    def median(read: Callable[[dict], float]) -> float:
        return statistics.median(map(read, rounds))

    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{machine()}; commit {commit()}; {arguments.dtype}, threads: {arguments.threads}; load average {load} at the end\n")
    print("| | embedder alone | re-ranker alone | together |\n|---|--:|--:|--:|")
    rates = [median(lambda it, name=name: it[f"{name} rate"]) for name in LOADS]
    print(f"| answers for a second of the processors | {rates[0]:.1f} | {rates[1]:.1f} | {median(lambda it: it['work']):.3f} of both |")
    sizes = [median(lambda it, name=name: it[f"{name} MB"]) for name in (*LOADS, "both")]
    print("| MB resident | " + " | ".join(f"{size:.0f}" for size in sizes) + " |\n")
    print(f"Short requests to the embedder, {SHORT_RATE} a second, in ms:\n\n| | p50 | p99 |\n|---|--:|--:|")
    for words, kind in (("the re-ranker is idle", "alone"), ("the re-ranker gets ten times its load", "flooded")):
        print(f"| {words} | {median(lambda it: it[kind]['p50']):.0f} | {median(lambda it: it[kind]['p99']):.0f} |")


if __name__ == "__main__":
    main()
