#!/usr/bin/env python3
"""Measures the cost of a request outside of the forward pass: HTTP, tokenizer, queue and wake-ups.

A server with a small encoder gets short texts from its own `bench`, from one client and from many. Input: the
binary and a model. Output: for each reading the requests per second, the time of a text's forward pass, and
the CPU time of a request by kind of thread, as JSON, from which `render.py` makes a table. Invariants: every
CPU second of the server counts once; a reading's counters are read before and after the same requests. Linux
only."""

import argparse
import datetime
import json
import os
import resource
import subprocess
import urllib.request
from pathlib import Path

from systems import Server, commit, machine

HERE = Path(__file__).resolve().parent
# The kind of work of a thread, by how its name begins; any other thread belongs to "others".
KINDS = {"compute": "forward pass", "device": "forward pass", "tokenizer": "tokenizer", "answers": "answers",
         "tokio": "HTTP", "text-embeddings": "HTTP"}
BUSY, TEXTS = "te_device_busy_seconds_total", "te_batch_next_size_sum"


def cpu_seconds(server: Server) -> dict[str, float]:
    """The CPU time of the server's threads so far, by kind of work."""
    seconds = dict.fromkeys([*KINDS.values(), "others"], 0.0)
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        kind = next((kind for start, kind in KINDS.items() if name.startswith(start)), "others")
        seconds[kind] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def counters(server: Server) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(next(line for line in lines if line.startswith(f"{name} ")).split()[1]) for name in (BUSY, TEXTS)}


def reading(arguments: argparse.Namespace, threads: int, clients: int) -> dict:
    """One server under one load."""
    server = Server(arguments.binary, arguments.model, ["--dtype", arguments.dtype], threads)
    load = [arguments.binary, "bench", "--url", server.url, "--route", "/embed", "--texts", 1, "--words", arguments.words,
            "--concurrency", clients, "--warm-up", 2 * clients]
    load = [str(part) for part in [*load, "--output", "json"]]
    try:
        # The caches, the memory and the CPU's clock settle.
        subprocess.run([*load, "--duration", "2"], check=True, capture_output=True)
        before, cpu, used = counters(server), cpu_seconds(server), resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run([*load, "--duration", str(arguments.seconds)], check=True, capture_output=True, text=True)
        after, cpu_after, used_after = counters(server), cpu_seconds(server), resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        server.stop()
    # Requests of the warm-up are in all counters, too, but not in the rate.
    requests = after[TEXTS] - before[TEXTS]
    report = json.loads(ended.stdout)
    microseconds = {kind: round(1e6 * (cpu_after[kind] - cpu[kind]) / requests, 1) for kind in cpu}
    client = used_after.ru_utime + used_after.ru_stime - used.ru_utime - used.ru_stime
    busy = (after[BUSY] - before[BUSY]) / requests
    return {"threads": threads, "clients": clients, "requests_per_second": report["requests_per_second"],
            "p50_ms": report["latency_ms"]["p50"], "device_ms": 1000 * busy,
            "cpu_microseconds": microseconds | {"the client": round(1e6 * client / requests, 1)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="this server")
    parser.add_argument("--model", type=Path, required=True, help="folder of a small embedding model")
    parser.add_argument("--dtype", default="bfloat16", help="arithmetic (default: %(default)s)")
    parser.add_argument("--words", type=int, default=12, help="words of a text (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=8, help="seconds of a reading (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "request_costs.json")
    arguments = parser.parse_args()
    cores = os.cpu_count()
    # With a thread less than cores, HTTP, tokenizer and client do not take time from the forward pass.
    loads = [(cores, 1), (cores, 64), (max(cores - 1, 1), 1), (max(cores - 1, 1), 64)]
    results = {"date": datetime.date.today().isoformat(), "machine": machine(), "commit": commit(), "dtype": arguments.dtype,
               "model": arguments.model.parent.name, "words": arguments.words, "readings": []}
    for _ in range(arguments.rounds):
        for threads, clients in loads:
            results["readings"].append(reading(arguments, threads, clients))
            print(json.dumps(results["readings"][-1]), flush=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
