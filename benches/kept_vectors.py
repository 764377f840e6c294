#!/usr/bin/env python3
"""Measures how long a late-interaction model takes to rank documents whose vectors it has kept.

A random model of answerdotai/answerai-colbert-small-v1's shape, with the small tokenizer of the tests, ranks
the same documents for one new query after the other. Input: the binary. Output: the median and the slowest
tenth of the requests, and the time of the first one, which computes the documents. Invariants: all documents
have 180 tokens, all queries 32; the documents of every request but the first are kept. Needs numpy."""

import argparse
import http.client
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from shapes import write
from systems import HERE, Server, commit, machine

FIXTURE = HERE.parent / "integration_tests/reference/fixtures/late/colbert-stanford"
HIDDEN, INNER, LAYERS, HEADS, WIDTH, TOKENS = 384, 1536, 12, 12, 96, 180
SHAPE = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "max_position_embeddings": 512}


def shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The tensors of BERT, under Stanford's prefix, and the matrix of the vectors."""
    matrices, norms = {}, ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        part = f"encoder.layer.{layer}"
        matrices |= {f"{part}.attention.self.{name}": (HIDDEN, HIDDEN) for name in ("query", "key", "value")}
        matrices |= {f"{part}.attention.output.dense": (HIDDEN, HIDDEN), f"{part}.intermediate.dense": (INNER, HIDDEN),
                     f"{part}.output.dense": (HIDDEN, INNER)}
        norms += [f"{part}.attention.output.LayerNorm", f"{part}.output.LayerNorm"]
    found = {f"embeddings.{name}_embeddings.weight": (rows, HIDDEN)
             for name, rows in (("word", vocabulary), ("position", 512), ("token_type", 2))}
    found |= {f"{name}.weight": shape for name, shape in matrices.items()}
    found |= {f"{name}.bias": shape[:1] for name, shape in matrices.items()}
    found |= {f"{norm}.{kind}": (HIDDEN,) for norm in norms for kind in ("weight", "bias")}
    return {f"bert.{name}": shape for name, shape in found.items()} | {"linear.weight": (WIDTH, HIDDEN)}


def make(folder: Path) -> None:
    """Writes the model."""
    shutil.copytree(FIXTURE, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text()) | SHAPE
    settings = json.loads((folder / "artifact.metadata").read_text()) | {"dim": WIDTH, "doc_maxlen": TOKENS}
    (folder / "artifact.metadata").write_text(json.dumps(settings))
    write(folder, config, shapes(config["vocab_size"]))


def rank(connection: http.client.HTTPConnection, query: str, documents: list[str]) -> tuple[float, str | None]:
    """Seconds, and how many vectors were kept."""
    body = json.dumps({"query": query, "texts": documents}).encode()
    start = time.perf_counter()
    connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    return time.perf_counter() - start, answer.headers["x-score-cache"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="this server")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--requests", type=int, default=100)
    arguments = parser.parse_args()
    generator = np.random.default_rng(2)
    words = "planet river red water mountain carries snow bridge boats wait second known tide sea old three".split()
    documents = [" ".join(generator.choice(words, 200)) for _ in range(arguments.documents)]
    print(f"{machine()}; commit {commit()}; {arguments.documents} documents of {TOKENS} tokens")
    print("| arithmetic | first request, ms | later ones, median, ms | 90 % within, ms |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
        for dtype in ("float32", "bfloat16", "int8"):
            flags = ["--dtype", dtype, "--score-cache-bytes", "200000000"]
            server = Server(arguments.binary, Path(temporary), flags, os.cpu_count())
            try:
                connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
                first, _ = rank(connection, "which planet", documents)
                took = []
                for number in range(arguments.requests):
                    seconds, kept = rank(connection, f"which {words[number % len(words)]} is number {number}", documents)
                    assert int(kept) == arguments.documents, kept
                    took.append(1000 * seconds)
            finally:
                server.stop()
            tenth = statistics.quantiles(took, n=10)[-1]
            print(f"| {dtype} | {1000 * first:.0f} | {statistics.median(took):.1f} | {tenth:.1f} |", flush=True)


if __name__ == "__main__":
    main()
