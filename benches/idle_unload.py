#!/usr/bin/env python3
"""Measures a model that leaves memory and comes back: the first answer after a pause, and the memory that the
process holds, over many cycles.

Input: the binary, a model and a number of cycles. Output: lines with memory, threads and descriptors while
the model is out and in, and the times of the first answers. Invariants: each of these answers equals the
first one of all, to the byte. Linux only.

    python3 benches/idle_unload.py target/release/text-embeddings-router MODEL --cycles 1000"""

import argparse
import json
import os
import statistics
import time
import urllib.request
from pathlib import Path

from systems import Server

BODIES = {"embedding": ("/embed", {"inputs": "a short text of some words"}), "classifier": ("/predict", {"inputs": "a text"})}
RERANK = ("/rerank", {"query": "what is a panda", "texts": ["a bear", "a car"]})


def asked(url: str, body: dict | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as answer:
        return answer.read()


def held(process: int) -> str:
    """Resident memory, threads and descriptors of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    descriptors = len(os.listdir(f"/proc/{process}/fd"))
    return f"{int(status['VmRSS'].split()[0]) / 1000:.0f} MB, {status['Threads'].strip()} threads, {descriptors} descriptors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--pause", default="0.3s", help="the time after which the model leaves")
    arguments, flags = parser.parse_known_args()
    server = Server(arguments.binary, arguments.model, ["--idle-unload", arguments.pause, *flags], os.cpu_count())
    try:
        route, body = BODIES.get(json.loads(asked(f"{server.url}/info"))["model_kind"], RERANK)
        first, times = asked(server.url + route, body), []
        for cycle in range(arguments.cycles):
            while json.loads(asked(f"{server.url}/v1/models"))["data"][0]["loaded"]:
                time.sleep(0.01)
            out, start = held(server.process.pid), time.perf_counter()
            assert asked(server.url + route, body) == first
            times.append(1000 * (time.perf_counter() - start))
            if cycle % max(1, arguments.cycles // 10) == 0:
                print(f"{cycle}: out {out}; in {held(server.process.pid)}", flush=True)
        print(f"first answer: median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
