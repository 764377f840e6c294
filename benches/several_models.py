#!/usr/bin/env python3
"""Measures an embedding model and a re-ranker in one process against each in a process of its own: requests
per second under full load, memory, and the latency of short requests to one while the other is flooded.

    python3 benches/several_models.py target/release/text-embeddings-router EMBEDDER RERANKER [FLAG ...]

Full load is 8 clients for each model that never pause. A round measures each model alone and then both in one
process. Sharing costs nothing where the two rates, each as a share of the rate alone, add up to 1. The flood
is 80 such clients of the re-ranker. Standard library and Linux only."""

import argparse
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from load import bench
from systems import Server, commit, machine

CLIENTS, FLOOD = 8, 80
# A route and the number of its texts.
EMBED, RERANK, SHORT = ("/embed", 32), ("/rerank", 8), ("/embed", 1)


class Measurement:
    """Both models in one process, and each in a process of its own."""

    def __init__(self, binary: Path, servers: dict[str, Server], seconds: float):
        self.binary, self.servers, self.seconds = binary, servers, seconds

    def report(self, server: str, request: tuple[str, int], clients: int = CLIENTS, extra: float = 0) -> dict:
        route, texts = request
        flags = ["--route", route, "--duration", self.seconds + extra, "--concurrency", clients]
        return bench(self.binary, self.servers[server].url, texts, flags)

    def rates(self, *asked: tuple[str, tuple[str, int]]) -> list[float]:
        """The requests per second of each pair of a server and a request, all at the same time."""
        with ThreadPoolExecutor() as threads:
            reports = list(threads.map(lambda one: self.report(*one), asked))
        return [report["requests_per_second"] for report in reports]

    def round(self) -> float:
        """The rates together, as shares of the rates alone, added up."""
        [embeds], [ranks] = self.rates(("embeds", EMBED)), self.rates(("ranks", RERANK))
        together = self.rates(("both", EMBED), ("both", RERANK))
        share = together[0] / embeds + together[1] / ranks
        rates = ", together ".join(f"{one:.2f} and {other:.2f}" for one, other in ([embeds, ranks], together))
        print(f"requests/s: alone {rates}: {share:.3f}", flush=True)
        return share

    def short_requests(self) -> None:
        alone = self.report("both", SHORT, 1)
        with ThreadPoolExecutor() as threads:
            flood = threads.submit(self.report, "both", RERANK, FLOOD, 4)
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
