#!/usr/bin/env python3
"""Compares this server with llama.cpp on the same GGUF files: token ids, scores and vectors.

The files are made from the tests' small models, in F32. Needs `llama-cpp-python` (requirements-llama.txt),
and the packages of integration_tests/requirements.txt. The tolerance is for llama.cpp's keys and values,
which have 16 bits.
usage: gguf_against_llama.py; TEXT_EMBEDDINGS_ROUTER names the binary (default: the development build)"""

import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration_tests"))

import gguf
import llama_cpp
import numpy as np
from gguf_files import RERANK_PROMPT, Recipe, write
from server import MODELS, ROOT, Server

SERVED = ROOT / "integration_tests/reference/fixtures/served"
Pooling = gguf.PoolingType
QUERY = "Which planet is red?"
TEXTS = ["Mars is red.", "Bread is baked from flour and water 1234.", "The capital of China is Beijing; is it?"]
# By the type of the weights: largest difference of a probability, or of a value of a unit vector.
TOLERANCES = {"F32": 2e-3}


def opened(path: Path, pooling: Pooling) -> llama_cpp.Llama:
    return llama_cpp.Llama(str(path), embedding=True, pooling_type=int(pooling), n_ctx=512, n_threads=2, verbose=False)


def ids(model: llama_cpp.Llama, text: str, special: bool) -> list[int]:
    return model.tokenize(text.encode(), add_bos=special, special=not special)


def of_ids(model: llama_cpp.Llama, tokens: list[int], width: int) -> np.ndarray:
    """llama.cpp's output for a text with these ids."""
    model._ctx.kv_cache_clear()
    model._batch.reset()
    model._batch.add_sequence(tokens, 0, False)
    model._ctx.decode(model._batch)
    found = llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)
    return np.array(found[:width])


def reranker(path: Path) -> float:
    """The largest difference between the scores of a generative re-ranker."""
    model = opened(path, Pooling.RANK)
    theirs = []
    for text in TEXTS:
        prompt = RERANK_PROMPT.replace("{query}", QUERY).replace("{document}", text)
        theirs.append(of_ids(model, ids(model, prompt, special=False), 2)[0])
    with Server(path, "--dtype", "float32") as server:
        ours = server.scores(QUERY, TEXTS, raw_scores=False)
    return float(np.abs(np.array(ours) - theirs).max())


def cross_encoder(path: Path) -> float:
    """The largest difference between a cross-encoder's scores for the ids of this server's tokenizer."""
    model = opened(path, Pooling.RANK)
    with Server(path, "--dtype", "float32") as server:
        ours = server.scores(QUERY, TEXTS, raw_scores=False)
        alone = [[token["id"] for token in row] for row in server.post("/tokenize", {"inputs": [QUERY, *TEXTS]}).json()]
    check_ids(model, [QUERY, *TEXTS], alone)
    query, *documents = alone
    # <s> query </s></s> document </s>
    logits = [of_ids(model, query + [query[-1]] + document[1:], 1)[0] for document in documents]
    theirs = [1 / (1 + math.exp(-logit)) for logit in logits]
    return float(np.abs(np.array(ours) - theirs).max())


def embedder(path: Path, pooling: Pooling) -> float:
    """The largest difference between values of the vectors."""
    model = opened(path, pooling)
    with Server(path, "--dtype", "float32") as server:
        ours = np.array(server.post("/embed", {"inputs": TEXTS}).json())
        rows = [[token["id"] for token in row] for row in server.post("/tokenize", {"inputs": TEXTS}).json()]
    check_ids(model, TEXTS, rows)
    theirs = np.array([of_ids(model, row, ours.shape[1]) for row in rows])
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    return float(np.abs(ours - theirs).max())


def check_ids(model: llama_cpp.Llama, texts: list[str], rows: list[list[int]]) -> None:
    for text, row in zip(texts, rows):
        assert ids(model, text, special=True) == row, f"{text}: {ids(model, text, special=True)}, here {row}"


def main() -> None:
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for kind, tolerance in TOLERANCES.items():
            file = lambda name: Path(folder) / f"{name}-{kind}.gguf"
            bare = ("cls.weight", "cls.bias")
            rows = {
                "Qwen3-Reranker": lambda: reranker(write(MODELS / "tied-bf16", file("rerank"), Recipe(kind, rerank=True))),
                "Qwen3-Embedding": lambda: embedder(
                    write(MODELS / "embedding-last", file("last"), Recipe(kind, pooling=Pooling.LAST, add_eos=True)), Pooling.LAST
                ),
                "BERT": lambda: embedder(
                    write(SERVED / "bert-embedding-mean", file("bert"), Recipe(kind, pooling=Pooling.MEAN, without=bare)), Pooling.MEAN
                ),
                "XLM-RoBERTa cross-encoder": lambda: cross_encoder(
                    write(SERVED / "xlm-roberta-reranker", file("xlm"), Recipe(kind, pooling=Pooling.RANK))
                ),
            }
            for name, difference in rows.items():
                found = difference()
                failed |= not found <= tolerance
                print(f"{name:28} {kind:6} {found:.6f}  (at most {tolerance})", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
