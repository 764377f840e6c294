#!/usr/bin/env python3
"""Speed and latency of the server over HTTP, from texts to scores.

Starts the binary with the given model and sends three workloads, one request at a time. For each workload it
prints the pairs and prompt tokens per second, and the median and 95th percentile of the latency:
  W1  one query x 32 texts of about 128 tokens
  W2  one short pair
  W3  one query x 8 texts of about 1,000 tokens
These are tokens of Qwen3's tokenizer; another tokenizer makes more tokens of the same texts. Standard library
only."""

import argparse
import json
import statistics
from pathlib import Path

from systems import RERANKER, Server, machine

HERE = Path(__file__).parent
WORKLOADS = {"W1": ("w1.json", 3), "W2": ("w2.json", 20), "W3": ("w3.json", 2)}


def percentile(times: list[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def measure(server: Server, name: str, rounds: int) -> dict:
    workload = json.loads((HERE / "workloads" / name).read_text())
    server.ask(workload)
    answers = [server.ask(workload) for _ in range(rounds)]
    times = [seconds for seconds, _, _ in answers]
    median = statistics.median(times)
    pairs, tokens = len(workload["documents"]), answers[0][2]
    return {
        "pairs": pairs,
        "prompt_tokens": tokens,
        "requests": rounds,
        "pairs_per_second": pairs / median,
        "tokens_per_second": tokens / median,
        "p50_ms": median * 1e3,
        "p95_ms": percentile(times, 0.95) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workloads", default="W1,W2,W3", help="names of workloads, separated by commas")
    parser.add_argument("--output", type=Path, help="also write the results to this file, as JSON")
    arguments, flags = parser.parse_known_args()
    print(f"machine: {machine()}\nmodel:   {arguments.model} {' '.join(flags)}\n")
    server = Server(arguments.binary, arguments.model, [*RERANKER, *flags])
    results = {}
    try:
        print(f"{'':4}{'pairs':>6}{'tokens':>8}{'pairs/s':>10}{'tokens/s':>10}{'p50 ms':>10}{'p95 ms':>10}")
        for workload in arguments.workloads.split(","):
            row = results[workload] = measure(server, *WORKLOADS[workload])
            print(
                f"{workload:4}{row['pairs']:6}{row['prompt_tokens']:8}{row['pairs_per_second']:10.2f}"
                f"{row['tokens_per_second']:10.0f}{row['p50_ms']:10.0f}{row['p95_ms']:10.0f}",
                flush=True,
            )
        if memory := server.memory():
            print(f"\nresident memory: {memory['VmHWM']} MB at most. Now: {memory['RssFile']} MB of mapped files, "
                  f"{memory['RssAnon']} MB of the server's own")
            results["memory_mb"] = memory
    finally:
        server.stop()
    if arguments.output:
        arguments.output.write_text(json.dumps({"machine": machine(), "results": results}, indent=2))


if __name__ == "__main__":
    main()
