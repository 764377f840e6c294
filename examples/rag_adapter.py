#!/usr/bin/env python3
"""The step between a retriever and a language model: picks the best of the retrieved passages.

    pip install requests
    python examples/rag_adapter.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.

Input: a query, and passages with metadata. Output: the `top_k` best of them. A boost multiplies the score of
each passage whose metadata has a given value for a key. All passages are scored, and the list is cut after
the boosts, so that a boost can lift a passage into it. If the server is busy (429) or starting (503), it is
asked again, at most `attempts` times: after the time in `Retry-After`, otherwise after a pause that doubles.
Everything else is an error at once.
"""

import email.utils
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import requests

BUSY = (429, 503)


@dataclass(frozen=True)
class Passage:
    """A text that the retriever found, with its metadata."""

    text: str
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranked:
    """A passage with its score after the boosts, and the model's own score between 0 and 1."""

    passage: Passage
    score: float
    model_score: float


class RerankError(Exception):
    """The server's answer is not a success, or the server stayed busy."""


class Reranker:
    """Uses a server's `/rerank`. Times are in seconds."""

    def __init__(
        self,
        url: str,
        api_key: str = "-",
        *,
        timeout: float = 60,
        attempts: int = 5,
        longest_pause: float = 20,
        pause: Callable[[float], object] = time.sleep,
    ):
        self.url = url.rstrip("/")
        self.timeout, self.attempts, self.longest_pause, self.pause = timeout, attempts, longest_pause, pause
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {api_key}"

    def rank(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        top_k: int = 5,
        boosts: Mapping[tuple[str, object], float] | None = None,
        instruction: str | None = None,
    ) -> list[Ranked]:
        """The best passages, best first. `boosts` maps a metadata key and its value to a factor."""
        if not passages:
            return []
        body = {"query": query, "texts": [passage.text for passage in passages]}
        if instruction is not None:
            body["instruction"] = instruction
        rows = [(passages[rank["index"]], rank["score"]) for rank in self._ask(body)]
        ranked = [Ranked(passage, score * boost(passage, boosts or {}), score) for passage, score in rows]
        return sorted(ranked, key=lambda row: row.score, reverse=True)[:top_k]

    def _ask(self, body: dict) -> list[dict]:
        for attempt in range(1, self.attempts + 1):
            answer = self.session.post(f"{self.url}/rerank", json=body, timeout=self.timeout)
            if answer.ok:
                return answer.json()
            if answer.status_code not in BUSY or attempt == self.attempts:
                break
            seconds = retry_after(answer)
            if seconds is None:
                # Random, so that the clients of a busy server do not all return at the same moment.
                seconds = min(0.5 * 2**attempt, self.longest_pause) * random.uniform(0.5, 1)
            elif seconds > self.longest_pause:
                break
            self.pause(seconds)
        raise RerankError(f"{answer.status_code} after {attempt} attempt(s): {message(answer)}")


def boost(passage: Passage, boosts: Mapping[tuple[str, object], float]) -> float:
    """The product of the factors for which the passage's metadata qualifies; 1 if there are none."""
    product = 1.0
    for (key, value), factor in boosts.items():
        if key in passage.metadata and passage.metadata[key] == value:
            product *= factor
    return product


def retry_after(answer: requests.Response) -> float | None:
    """The seconds that the server asks for, as a number or as a date."""
    value = answer.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def message(answer: requests.Response) -> str:
    """The server's message. If something else answered, the beginning of its text."""
    try:
        return answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
    reranker = Reranker(url, os.environ.get("RERANK_API_KEY", "-"))
    passages = [
        Passage("Gravity pulls two bodies together.", {"source": "handbook", "year": 2024}),
        Passage("The capital of China is Beijing.", {"source": "forum", "year": 2019}),
        Passage("Beijing hosted the Olympic Games in 2008.", {"source": "handbook", "year": 2008}),
    ]
    boosts = {("source", "handbook"): 1.2, ("year", 2024): 1.1}
    for row in reranker.rank("What is the capital of China?", passages, top_k=2, boosts=boosts):
        print(f"{row.score:.4f}  {row.passage.text}")


if __name__ == "__main__":
    try:
        main()
    except (RerankError, requests.RequestException) as error:
        sys.exit(str(error))
