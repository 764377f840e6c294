"""The common part of peers that run in Python.

A peer is a process (`transformers_peer.py`, `onnx_peer.py`, `llama_peer.py`) that `peers.py` starts. Its
standard input has a request on each line, {"query", "documents", "batch"}. Its standard output gets one line
when it is ready, then {"seconds", "scores"} for each request, where the seconds are from texts to scores.
Invariants: every peer computes with the same ids as the server, made by
`integration_tests/reference/prompt.py`."""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration_tests" / "reference"))
from prompt import Prompt  # noqa: E402

# More than the tokens of any text in the workloads.
MAX_LENGTH = 32768


class Prompts:
    """Makes the ids of pairs, and knows the ids of the two answers."""

    def __init__(self, folder: str):
        self.prompt = Prompt(Path(folder) / "tokenizer.json")
        self.no, self.yes = (self.prompt.plain.token_to_id(word) for word in ("no", "yes"))

    def ids(self, query: str, documents: list[str]) -> list[list[int]]:
        cases = (
            {"name": "", "query": query, "document": document, "instruction": None, "max_length": MAX_LENGTH,
             "truncation_direction": "right"}
            for document in documents
        )
        return [self.prompt.ids(case) for case in cases]


def sigmoid(raw: float) -> float:
    return 1 / (1 + math.exp(-raw))


def in_batches(ids: list[list[int]], size: int) -> Iterator[list[int]]:
    """Indices of texts, `size` at a time. Texts of similar length go together, to save padding."""
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def batched(ids: list[list[int]], size: int, score: Callable[[list[list[int]]], list[float]]) -> list[float]:
    """The scores of all texts in their order, from a function that scores one batch."""
    scores = [0.0] * len(ids)
    for indices in in_batches(ids, size):
        for index, value in zip(indices, score([ids[index] for index in indices]), strict=True):
            scores[index] = value
    return scores


def answers_only() -> TextIO:
    """Standard output, for answers only: from now on, all other output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer_requests(answers: TextIO, respond: Callable[[dict], dict]) -> None:
    """Says that this peer is ready, then answers each request with `respond`'s output and its seconds."""

    def answer(content: dict) -> None:
        answers.write(json.dumps(content, default=lambda array: array.tolist()) + "\n")
        answers.flush()

    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        content = respond(request)
        answer({"seconds": time.perf_counter() - start} | content)


def serve(prompts: Prompts, score: Callable[[list[list[int]], int], list[float]]) -> None:
    """Answers all requests. `score` takes ids and the largest number of texts in a batch."""

    def respond(request: dict) -> dict:
        return {"scores": score(prompts.ids(request["query"], request["documents"]), request["batch"])}

    answer_requests(answers_only(), respond)
