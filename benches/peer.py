"""What the peers that run in Python have in common.

A peer is a process of its own (`transformers_peer.py`, `onnx_peer.py`, `llama_peer.py`), started by `peers.py`. Input, on
standard input: a request on each line, {"query", "documents", "batch"}. Output, on standard output: one line when it is
ready, then for each request {"seconds", "scores"}: text in to scores out. What must hold: every peer computes the ids that
the server computes, by `integration_tests/reference/prompt.py`."""

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

# Longer than any text of the workloads.
MAX_LENGTH = 32768


class Prompts:
    """Pairs as ids, and the ids of the two answers."""

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
    """Indices of texts, `size` at a time, those of similar length together: so that there is little padding."""
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def batched(ids: list[list[int]], size: int, score: Callable[[list[list[int]]], list[float]]) -> list[float]:
    """The scores of all texts, in their order, by a function that scores a batch."""
    scores = [0.0] * len(ids)
    for indices in in_batches(ids, size):
        for index, value in zip(indices, score([ids[index] for index in indices]), strict=True):
            scores[index] = value
    return scores


def answers_only() -> TextIO:
    """The standard output, for answers only: from now on, whatever else is printed goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer_requests(answers: TextIO, respond: Callable[[dict], dict]) -> None:
    """Says that this peer is ready, then answers requests until there are no more: what `respond` gives, and its seconds."""

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
    """Answers requests until there are no more. `score` takes ids and how many of them a batch may hold."""

    def respond(request: dict) -> dict:
        return {"scores": score(prompts.ids(request["query"], request["documents"]), request["batch"])}

    answer_requests(answers_only(), respond)
