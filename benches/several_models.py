#!/usr/bin/env python3
"""Measures an embedding model and a re-ranker in one process against each in a process of its own: computed
tokens per second under full load, memory, and the latency of short requests to one while the other is
flooded.

    python3 benches/several_models.py target/release/text-embeddings-router EMBEDDER RERANKER [FLAG ...]

Full load is 8 clients for each model that never pause. A round measures each model alone and then both in one
process. Sharing costs nothing where the two rates, each as a share of the rate alone, add up to 1. The flood
is 80 such clients of the re-ranker. Standard library and Linux only."""

import argparse
import re
import statistics
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from load import bench
from systems import Server, commit, machine

CLIENTS, FLOOD = 8, 80
# A model, its route and the number of texts.
EMBED, RERANK, SHORT = ("embeds", "/embed", 4), ("ranks", "/rerank", 8), ("embeds", "/embed", 1)
Request = tuple[str, str, int]
# Seconds until a load is full, and that it lasts longer than it is measured.
MARGIN = 2


class Measurement:
    """Both models in one process, and each in a process of its own."""

    def __init__(self, binary: Path, servers: dict[str, Server], seconds: float):
        self.binary, self.servers, self.seconds = binary, servers, seconds

    def report(self, server: str, request: Request, clients: int = CLIENTS, longer: float = 0) -> dict:
        model, route, texts = request
        # `/rerank` without a name would go to the embedding model if the re-ranker ranks by cosines, too.
        url = self.servers[server].url + (f"/models/{model}" if server == "both" else "")
        flags = ["--route", route, "--duration", self.seconds + longer, "--concurrency", clients]
        return bench(self.binary, url, texts, flags)

    def computed(self, server: str) -> dict[str, float]:
        """The tokens that each model of a server has computed."""
        with urllib.request.urlopen(f"{self.servers[server].url}/metrics") as answer:
            lines = answer.read().decode()
        found = re.findall(r'^te_batch_next_tokens_sum(?:\{model="(\w+)"\})? (\S+)', lines, re.M)
        return {model or server: float(tokens) for model, tokens in found}

    def rates(self, server: str, *requests: Request) -> dict[str, float]:
        """Tokens per second of each model of a server under all the requests at the same time."""
        with ThreadPoolExecutor() as threads:
            loads = [threads.submit(self.report, server, request, CLIENTS, 2 * MARGIN) for request in requests]
            time.sleep(MARGIN)
            before, start = self.computed(server), time.perf_counter()
            time.sleep(self.seconds)
            after, passed = self.computed(server), time.perf_counter() - start
            for load in loads:
                load.result()
        return {model: (after[model] - before[model]) / passed for model in after}

    def round(self) -> float:
        """The rates together, as shares of the rates alone, added up."""
        alone = self.rates("embeds", EMBED) | self.rates("ranks", RERANK)
        together = self.rates("both", EMBED, RERANK)
        shares = {model: together[model] / alone[model] for model in alone}
        print("; ".join(f"{model}: {alone[model]:.0f} tokens/s alone, {together[model]:.0f} together" for model in alone), flush=True)
        return sum(shares.values())

    def short_requests(self) -> None:
        alone = self.report("both", SHORT, 1)
        with ThreadPoolExecutor() as threads:
            flood = threads.submit(self.report, "both", RERANK, FLOOD, 2 * MARGIN)
            beside = self.report("both", SHORT, 1)
            flooded = flood.result()
        for name, report in (("alone", alone), ("beside the flood", beside), ("the flood itself", flooded)):
            latency = report["latency_ms"]
            print(f"{name}: p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms, errors {report['errors']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("embedder", type=Path)
    parser.add_argument("reranker", type=Path)
    parser.add_argument("--seconds", type=float, default=10, help="the time of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    arguments, flags = parser.parse_known_args()
    places = {"embeds": arguments.embedder.resolve(), "ranks": arguments.reranker.resolve()}
    with tempfile.TemporaryDirectory() as folder:
        places["both"] = Path(folder) / "models.toml"
        places["both"].write_text("".join(f'[models.{name}]\nmodel-id = "{places[name]}"\n' for name in ("embeds", "ranks")))
        servers = {}
        try:
            for name, place in places.items():
                servers[name] = Server(arguments.binary, place, flags)
            measurement = Measurement(arguments.binary, servers, arguments.seconds)
            print(f"{machine()}, {commit()}, {' '.join(flags)}")
            shares = [measurement.round() for _ in range(arguments.rounds)]
            print(f"median of {len(shares)}: together {statistics.median(shares):.3f} of alone")
            print("; ".join(f"{name} {server.memory()['VmRSS']} MB" for name, server in servers.items()))
            measurement.short_requests()
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
