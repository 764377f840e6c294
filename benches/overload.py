#!/usr/bin/env python3
"""The server under too much load: requests at fixed times, at up to ten times the rate that it can answer.

    benches/overload.py --binary target/release/text-embeddings-router --model MODEL

Each request has its own query, one text and a new connection. The rate that the server can answer is measured
with 32 clients that never pause. The printed table has, for each load, the answers per second, the latencies
of successful answers from the time when the request was due, and the time to a refusal. Standard library
only."""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from pathlib import Path

from systems import RERANKER, Server, commit, machine

TIMES = (1, 2, 3, 5, 10)
CLIENTS = 32
WORDS = "the red planet has two moons and a thin air of carbon dioxide that storms of dust cross for months at times".split()
NUMBERS = itertools.count()


def body() -> bytes:
    number = next(NUMBERS)
    text = " ".join(WORDS[(number + index) % len(WORDS)] for index in range(40))
    return json.dumps({"query": f"question {number} about moons", "texts": [f"{number} {text}"]}).encode()


async def ask(port: int, due: float) -> tuple[int, float]:
    """The status of the answer, and the seconds since the request was due."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        content = body()
        head = f"POST /rerank HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        answer = await reader.read()
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]), time.perf_counter() - due


async def most(port: int, seconds: float) -> float:
    """Answers per second for clients that never pause."""
    end = time.perf_counter() + seconds

    async def client() -> int:
        count = 0
        while time.perf_counter() < end:
            status, _ = await ask(port, time.perf_counter())
            count += status == 200
        return count

    start = time.perf_counter()
    counts = await asyncio.gather(*[client() for _ in range(CLIENTS)])
    return sum(counts) / (time.perf_counter() - start)


async def at(port: int, rate: float, seconds: float) -> tuple[list[tuple[int, float]], float]:
    """The answers to requests sent at fixed times, and the seconds until the last answer."""
    start, tasks = time.perf_counter(), []
    for number in range(round(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(port, due)))
    found = await asyncio.gather(*tasks)
    return list(found), time.perf_counter() - start


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--requests", type=int, default=64, help="the server's `--max-concurrent-requests`")
    arguments = parser.parse_args()
    flags = [*RERANKER, "--dtype", arguments.dtype, "--max-concurrent-requests", str(arguments.requests)]
    server = Server(arguments.binary, arguments.model, flags)
    try:
        port = int(server.url.rsplit(":", 1)[1])
        can = asyncio.run(most(port, arguments.seconds))
        print(f"{machine()}; commit {commit()}; {arguments.dtype}, --max-concurrent-requests {arguments.requests}; "
              f"{can:.1f} requests/s from {CLIENTS} clients that never pause\n")
        print("| load | requests | answered | answers a second | p50, ms | p99, ms | refused (429) | refused after, p50 / p99, ms | others |")
        print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
        for times in TIMES:
            found, seconds = asyncio.run(at(port, can * times, arguments.seconds))
            good = [1000 * latency for status, latency in found if status == 200]
            refused = [1000 * latency for status, latency in found if status == 429]
            after = f"{statistics.median(refused):.1f} / {percentile(refused, 0.99):.1f}" if refused else "–"
            print(f"| {times} × | {len(found)} | {len(good)} | {len(good) / seconds:.1f} | {statistics.median(good):.0f} "
                  f"| {percentile(good, 0.99):.0f} | {len(refused)} | {after} | {len(found) - len(good) - len(refused)} |", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
