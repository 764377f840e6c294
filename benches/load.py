#!/usr/bin/env python3
"""Latency over load: waiting times at rising rates, up to more than the server can answer. `make load`.

Starts the binary, measures by `bench` without a rate how many requests it answers per second, and then sends
fractions of that at fixed times (`bench --rate`). Each request has its own query and one text, later eight
texts, of 40 words each. Input: the binary, a model folder. Output: percentiles by rate as JSON, from which
`render.py` makes a table and a chart. Standard library only."""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from systems import RERANKER, Neighbours, Server, commit, machine

HERE = Path(__file__).resolve().parent
SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
TEXTS = (1, 8)
WORDS, QUERY_WORDS = 40, 8
# Largest numbers of requests in flight: for the measurement without a rate, and with a rate. The latter is
# enough to send each request when it is due, and below the server's own limit.
CLOSED, OPEN = 32, 256
WARM_UP = 4
# The least number of requests at each rate: percentiles of fewer requests say little.
LEAST = 20


def bench(binary: Path, url: str, texts: int, flags: list, words: int = WORDS) -> dict:
    command = [binary, "bench", "--url", url, "--texts", texts, "--words", words, "--query-words", QUERY_WORDS,
               "--output", "json", *flags]
    ended = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"bench failed:\n{ended.stderr}")
    return json.loads(ended.stdout)


def points(binary: Path, url: str, texts: int, seconds: float) -> list[dict]:
    """Percentiles at each fraction of the rate that the server can answer."""
    most = bench(binary, url, texts, ["--duration", seconds, "--concurrency", CLOSED])["requests_per_second"]
    found = []
    for share in SHARES:
        requests = max(LEAST, round(most * share * seconds))
        report = bench(binary, url, texts, ["--rate", f"{most * share:.4f}", "--requests", requests, "--concurrency", OPEN,
                                            "--warm-up", WARM_UP])
        latency = report["latency_ms"]
        point = {"texts": texts, "share": share, "rate": round(most * share, 4), "requests": report["requests"],
                 "errors": sum(report["errors"].values()), "late": report["late"],
                 "p50": round(latency["p50"], 1), "p90": round(latency["p90"], 1), "p99": round(latency["p99"], 1)}
        print(f"{texts} texts, {point['rate']:.2f} requests/s: p50 {point['p50']:.0f} ms, p99 {point['p99']:.0f} ms",
              file=sys.stderr, flush=True)
        found.append(point)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=40, help="the least time for each rate, in seconds")
    parser.add_argument("--neighbours", type=int, default=0, help="busy processes that share the cores")
    parser.add_argument("--output", type=Path, help="default: load.json in benches/results, with neighbours load-neighbours.json")
    arguments = parser.parse_args()
    name = "load-neighbours.json" if arguments.neighbours else "load.json"
    output = arguments.output or HERE / "results" / name
    # A killed program must stop the server, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server = Server(arguments.binary, arguments.model, [*RERANKER, "--dtype", arguments.dtype], arguments.threads)
    try:
        with Neighbours(arguments.neighbours):
            found = [point for texts in TEXTS for point in points(arguments.binary, server.url, texts, arguments.seconds)]
    finally:
        server.stop()
    results = {"date": datetime.date.today().isoformat(), "machine": machine(), "threads": arguments.threads,
               "dtype": arguments.dtype, "commit": commit(), "seconds": arguments.seconds,
               "neighbours": arguments.neighbours, "points": found}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
