#!/usr/bin/env python3
"""The cost and gain of each token budget of a batch (`--max-batch-tokens`) on this machine.

For each arithmetic and budget it prints the pairs per second of W1 (1 query x 32 texts of about 128 tokens)
and W3 (1 query x 8 texts of about 1,000 tokens), with a new query in every request; and the latency of a
short pair that arrives while one of these requests is computed: median and maximum, in ms. Standard library
only.

  python benches/budgets.py --binary target/release/text-embeddings-router --model target/bench-model"""

import argparse
import json
import random
import statistics
import threading
import time
from pathlib import Path

from systems import RERANKER, Server, machine

HERE = Path(__file__).parent
LARGE = {"W1": "w1.json", "W3": "w3.json"}


def workload(name: str) -> dict:
    return json.loads((HERE / "workloads" / name).read_text())


def new_query(large: dict, number: int) -> dict:
    """The same documents with a query that is not in the prefix cache."""
    return {**large, "query": f"{number} {large['query']}"}


def throughput(server: Server, large: dict, rounds: int) -> float:
    times = [server.ask(new_query(large, number))[0] for number in range(rounds)]
    return len(large["documents"]) / statistics.median(times)


def beside(server: Server, large: dict, rounds: int) -> list[float]:
    """Seconds of short pairs, sent one after the other while `large` is computed."""
    short, times = workload("w2.json"), []
    for number in range(rounds):
        slow = threading.Thread(target=server.ask, args=(new_query(large, 100 + number),))
        slow.start()
        time.sleep(0.2)
        while slow.is_alive():
            time.sleep(random.uniform(0, 0.5))
            seconds = server.ask(short)[0]
            # A pair that was answered after the large request may have had the device for itself.
            if slow.is_alive() or not times:
                times.append(seconds)
        slow.join()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtypes", default="bfloat16,float32", help="values of `--dtype`, separated by commas")
    parser.add_argument("--budgets", default="512,1024,2048,4096,8192,16384", help="budgets, separated by commas")
    parser.add_argument("--rounds", type=int, default=2, help="number of large requests per measurement")
    arguments, flags = parser.parse_known_args()
    print(f"machine: {machine()}\nmodel:   {arguments.model} {' '.join(flags)}\n")
    names = [f"{name} {what}" for what in ("pairs/s", "beside ms", "longest") for name in LARGE]
    print(f"{'':9}{'budget':>7}" + "".join(f"{name:>14}" for name in names))
    for dtype in arguments.dtypes.split(","):
        for budget in arguments.budgets.split(","):
            # With --max-input-length, a small budget does not truncate the texts.
            own = ["--dtype", dtype, "--max-batch-tokens", budget, "--max-input-length", "8192", *flags]
            server = Server(arguments.binary, arguments.model, [*RERANKER, *own])
            try:
                server.ask(workload("w2.json"))
                speed = [throughput(server, workload(name), arguments.rounds) for name in LARGE.values()]
                waits = [beside(server, workload(name), arguments.rounds) for name in LARGE.values()]
            finally:
                server.stop()
            figures = [f"{value:14.2f}" for value in speed]
            figures += [f"{statistics.median(times) * 1e3:14.0f}" for times in waits]
            figures += [f"{max(times) * 1e3:14.0f}" for times in waits]
            print(f"{dtype:9}{budget:>7}" + "".join(figures), flush=True)


if __name__ == "__main__":
    main()
