#!/usr/bin/env python3
"""The cost of a build profile or of a flag in speed: compares commands of the server on W1 and W2, in turn in
one run.

    benches/profiles.py --model MODEL release=target/release/BINARY demo=target/demo/BINARY
    benches/profiles.py --model MODEL "int8=BINARY --dtype int8" "int4=BINARY --dtype int4"

All servers run from the start; while one is asked, the others are idle. Each round sends W1 once and W2 ten
times to each server. It prints medians of the times, and the median over the rounds of each command's time
divided by the first command's time in the same round. Standard library only."""

import argparse
import json
import shlex
import statistics
from pathlib import Path

from systems import RERANKER, Server, machine

HERE = Path(__file__).parent
WORKLOADS = {"W1": ("w1.json", 1), "W2": ("w2.json", 10)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("commands", nargs="+", metavar='"NAME=BINARY [FLAG …]"')
    arguments = parser.parse_args()
    servers = {}
    try:
        for named in arguments.commands:
            name, _, command = named.partition("=")
            binary, *flags = shlex.split(command)
            servers[name] = Server(Path(binary), arguments.model, [*RERANKER, "--prefix-cache-bytes", "0", *flags])
        times = {(name, workload): [] for name in servers for workload in WORKLOADS}
        for turn in range(arguments.rounds + 1):
            for name, server in servers.items():
                for workload, (file, requests) in WORKLOADS.items():
                    body = json.loads((HERE / "workloads" / file).read_text())
                    seconds = statistics.median(server.ask(body)[0] for _ in range(requests))
                    # The first round warms up.
                    if turn:
                        times[name, workload].append(seconds)
    finally:
        for server in servers.values():
            server.stop()
    first = next(iter(servers))
    print(f"{machine()}\n\n| command | {' | '.join(f'{workload}, s | to {first}' for workload in WORKLOADS)} |\n|---|{'--:|' * 4}")
    for name in servers:
        cells = []
        for workload in WORKLOADS:
            ratios = [own / base for own, base in zip(times[name, workload], times[first, workload], strict=True)]
            cells.append(f"{statistics.median(times[name, workload]):.3f} | {statistics.median(ratios):.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
