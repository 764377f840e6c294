#!/usr/bin/env python3
"""Measures how many short texts a second a static embedding model embeds: as JSON, as MessagePack and in gRPC
streams.

Input: the binary and the model's folder. Output: texts per second for each transport, and the CPU time of the
server and of this client for a text. Invariants: bodies are made before the clock starts, and answers are
read as bytes, so that the client takes little of the CPU that both share. Needs msgpack and grpcio, which
`integration_tests/requirements.txt` has."""

import argparse
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import grpc
import msgpack
from systems import Server, commit, machine

TEXTS = [f"The {a} {b} of the year {c} is near the river." for a in ("old", "red") for b in ("house", "boat") for c in range(128)]


class Load:
    """Clients that send the same bodies again and again for some seconds, and count the answered texts."""

    def __init__(self, seconds: float):
        self.end, self.texts, self.lock = time.monotonic() + seconds, 0, threading.Lock()

    def add(self, texts: int) -> None:
        with self.lock:
            self.texts += texts

    def post(self, url: str, body: bytes, kind: str) -> None:
        connection = http.client.HTTPConnection(urlparse(url).netloc)
        while time.monotonic() < self.end:
            connection.request("POST", "/embed", body, {"Content-Type": kind, "Accept": kind})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            self.add(len(TEXTS))
        connection.close()

    def stream(self, address: str) -> None:
        def message(text: str) -> bytes:
            # Field 1 is the text.
            coded = text.encode()
            return b"\x0a" + bytes([len(coded)]) + coded

        messages = [message(text) for text in TEXTS]

        def requests() -> Iterator[bytes]:
            while time.monotonic() < self.end:
                yield from messages

        with grpc.insecure_channel(address) as channel:
            call = channel.stream_stream("/tei.v1.Embed/EmbedStream")
            for count, _ in enumerate(call(requests()), 1):
                if count % 100 == 0:
                    self.add(100)


def server_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reading(server: Server, port: int, transport: str, clients: int, seconds: float) -> str:
    load = Load(seconds)
    body = {"inputs": TEXTS}
    work = {
        "JSON": lambda: load.post(server.url, json.dumps(body).encode(), "application/json"),
        "MessagePack": lambda: load.post(server.url, msgpack.packb(body), "application/msgpack"),
        "gRPC streams": lambda: load.stream(f"127.0.0.1:{port}"),
    }[transport]
    before, own, start = server_seconds(server), time.process_time(), time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    costs = [1e6 * cost / load.texts for cost in (server_seconds(server) - before, time.process_time() - own)]
    return f"| {transport} | {load.texts / took:,.0f} | {costs[0]:.1f} | {costs[1]:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="this server")
    parser.add_argument("--model", type=Path, required=True, help="folder of a static embedding model")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--grpc-port", type=int, default=50077)
    arguments = parser.parse_args()
    flags = ["--max-client-batch-size", str(len(TEXTS)), "--grpc-port", str(arguments.grpc_port)]
    server = Server(arguments.binary, arguments.model, flags, os.cpu_count())
    try:
        print(f"{machine()}; commit {commit()}; {arguments.clients} clients, {len(TEXTS)} texts in a body")
        print("| transport | texts/s | CPU of the server, µs a text | CPU of the client, µs a text |\n|---|--:|--:|--:|")
        for transport in ("JSON", "MessagePack", "gRPC streams"):
            reading(server, arguments.grpc_port, transport, arguments.clients, 1)
            print(reading(server, arguments.grpc_port, transport, arguments.clients, arguments.seconds), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
