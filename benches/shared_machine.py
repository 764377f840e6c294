#!/usr/bin/env python3
"""The speed of a server next to busy processes, under a container's CPU quota, and next to a second server.

Starts the binary once for each situation (a quota must be there at its start), and asks in turn, round after
round: one client without a pause, with requests of several texts; then requests of one text. Input: the
binary, a model folder. Output: JSON with the medians over rounds of texts per second and of the single texts'
percentiles. Quotas need root and version 1 of the control groups; elsewhere they are left out. Standard
library only."""

import argparse
import datetime
import json
import os
import signal
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from load import bench
from systems import Neighbours, Server, commit, machine

GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD = 100_000
QUOTAS = (1.5, 0.5)
# Words of a single text.
SHORT = 10


def group_of(cpus: float) -> Path:
    return GROUPS / f"shared-machine-{cpus}"


@contextmanager
def within_quota(cpus: float | None):
    """Lets processes that start here have this many CPUs at most."""
    if cpus is None:
        yield
        return
    group = group_of(cpus)
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_period_us").write_text(str(PERIOD))
    (group / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD)))
    (group / "tasks").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (GROUPS / "tasks").write_text(str(os.getpid()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--flags", nargs="*", default=[], help="of the server, without their hyphens: dtype=int8")
    parser.add_argument("--texts", type=int, default=8, help="texts of a request")
    parser.add_argument("--words", type=int, default=80, help="words of a text")
    parser.add_argument("--seconds", type=float, default=10, help="for each reading")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    flags = [part for flag in arguments.flags for part in f"--{flag}".split("=", 1)]
    # A killed program must stop its servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    quotas = QUOTAS if os.access(GROUPS / "tasks", os.W_OK) else ()

    def start(quota: float | None = None) -> Server:
        with within_quota(quota):
            return Server(arguments.binary, arguments.model, flags)

    # A situation: the servers that are asked at once, and the number of busy processes next to them.
    first, second = start(), start()
    situations = {"alone": ([first], 0), "next to one process": ([first], 1), "next to two processes": ([first], 2),
                  "two servers": ([first, second], 0),
                  **{f"quota of {quota} CPUs": ([start(quota)], 0) for quota in quotas}}
    readings: dict[str, list[dict]] = {name: [] for name in situations}

    def ask(server: Server) -> dict:
        flags = ["--duration", arguments.seconds, "--concurrency", 1]
        many = bench(arguments.binary, server.url, arguments.texts, flags, arguments.words)
        one = bench(arguments.binary, server.url, 1, flags, SHORT)
        latency = one["latency_ms"]
        return {"texts_per_second": many["requests_per_second"] * arguments.texts, "p50": latency["p50"], "p99": latency["p99"]}

    try:
        for round_number in range(arguments.rounds):
            for name, (servers, neighbours) in situations.items():
                with Neighbours(neighbours), ThreadPoolExecutor(len(servers)) as clients:
                    found = list(clients.map(ask, servers))
                reading = {"texts_per_second": sum(one["texts_per_second"] for one in found),
                           "p50": max(one["p50"] for one in found), "p99": max(one["p99"] for one in found)}
                readings[name].append(reading)
                print(f"round {round_number + 1}, {name}: {reading}", file=sys.stderr, flush=True)
    finally:
        for server in {id(one): one for servers, _ in situations.values() for one in servers}.values():
            server.stop()
        for quota in quotas:
            group_of(quota).rmdir()
    medians = {name: {key: round(statistics.median(one[key] for one in found), 2) for key in found[0]}
               for name, found in readings.items()}
    results = {"date": datetime.date.today().isoformat(), "machine": machine(), "commit": commit(), "flags": arguments.flags,
               "texts": arguments.texts, "words": arguments.words, "rounds": arguments.rounds, "medians": medians}
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
