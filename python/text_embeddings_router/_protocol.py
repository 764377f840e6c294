"""The server's requests and answers without any transport; both clients use it.

Input: the arguments of a client's method, or an answer's status, headers and body. Output: a `Call` to send,
its result, the pause before the next attempt, or the error to raise. Invariants: nothing here waits or
connects.
"""

from __future__ import annotations

import email.utils
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from ._errors import BY_KIND, RequestError

T = TypeVar("T")

# With these statuses, the server has computed nothing, so the request may be sent again.
BUSY = (429, 503)
# Attempts to connect: a server without a listening port is not busy, so `attempts` does not count.
CONNECT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Rank:
    """A re-ranked text: its index in the request, its score, and the text if the client requested it."""

    index: int
    score: float
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A label of a classifier and its score."""

    label: str
    score: float


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the function that reads its result from the answer. Without a body, it is a GET."""

    path: str
    body: Mapping[str, object] | None
    read: Callable[[Any], T]

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


class ClientSettings(TypedDict, total=False):
    """Settings of a client: seconds per attempt, number of attempts, longest pause in seconds."""

    timeout: float
    attempts: int
    longest_pause: float


@dataclass(frozen=True)
class Patience:
    """How often a busy server is asked, and the longest pause between two attempts, in seconds."""

    attempts: int
    longest_pause: float

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {self.attempts}")

    def pause(self, attempt: int, status: int | None, headers: Mapping[str, str]) -> float | None:
        """Seconds until the next attempt after `attempt`, counted from 1; None if there is none.

        `status` is None if there was no connection. If the server names a pause longer than `longest_pause`,
        there is no further attempt.
        """
        attempts = self.attempts if status is not None else min(self.attempts, CONNECT_ATTEMPTS)
        if attempt >= attempts or (status is not None and status not in BUSY):
            return None
        seconds = retry_after(headers.get("retry-after", ""))
        if seconds is None:
            # Random, so that the clients of a busy server do not all return at the same moment.
            return float(min(0.25 * 2**attempt, self.longest_pause) * random.uniform(0.5, 1))
        return seconds if seconds <= self.longest_pause else None


def retry_after(value: str) -> float | None:
    """The seconds that the server asks for, as a number or as a date; None if it does not say."""
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def request_error(status: int, content: bytes, attempts: int) -> RequestError:
    """The error for an answer that is not a success."""
    try:
        body = json.loads(content)
        error = body["error"]
        # On `/score` the error is nested, as in vLLM, where this route comes from.
        kind, message = (error["type"], error["message"]) if isinstance(error, dict) else (body["error_type"], error)
        kind, message = str(kind), str(message)
    except (ValueError, KeyError, TypeError):
        # Something else answered, such as a load balancer.
        kind = {429: "Overloaded", 503: "Unhealthy", 401: "Unauthorized"}.get(status, "Unknown")
        message = content[:200].decode(errors="replace").strip() or "the answer has no body"
    return BY_KIND.get(kind, RequestError)(status, kind, message, attempts)


def texts_of(name: str, texts: Sequence[str]) -> list[str]:
    """`texts` as a list. A single string is refused, because it would be read as a list of its characters."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a list of texts, not a text")
    return list(texts)


def present(**fields: object) -> dict[str, object]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def rerank(
    query: str,
    texts: Sequence[str],
    *,
    top_n: int | None,
    instruction: str | None,
    raw_scores: bool,
    return_text: bool,
    truncate: bool | None,
) -> Call[list[Rank]]:
    options = present(top_n=top_n, instruction=instruction, truncate=truncate)
    flags = {"raw_scores": raw_scores, "return_text": return_text}
    body = {"query": query, "texts": texts_of("texts", texts), **flags, **options}
    return Call("/rerank", body, lambda ranks: [Rank(r["index"], r["score"], r.get("text")) for r in ranks])


def score(queries: Sequence[str], texts: Sequence[str], *, raw_scores: bool) -> Call[list[float]]:
    queries, texts = texts_of("queries", queries), texts_of("texts", texts)
    if len(queries) != len(texts):
        raise ValueError(f"{len(queries)} queries and {len(texts)} texts do not make pairs: give as many queries as texts")

    def read(answer: Any) -> list[float]:
        rows = sorted(answer["data"], key=lambda row: row["index"])
        return [row["score"] for row in rows]

    body = {"queries": queries, "documents": texts, "use_activation": not raw_scores}
    return Call("/score", body, read)


def embed(
    texts: Sequence[str], *, normalize: bool, prompt_name: str | None, dimensions: int | None, truncate: bool | None
) -> Call[list[list[float]]]:
    options = present(prompt_name=prompt_name, dimensions=dimensions, truncate=truncate)
    return Call("/embed", {"inputs": texts_of("texts", texts), "normalize": normalize, **options}, lambda vectors: vectors)


def predict(
    inputs: Sequence[str | tuple[str, str]], *, raw_scores: bool, truncate: bool | None
) -> Call[list[list[Prediction]]]:
    if isinstance(inputs, str):
        raise TypeError("inputs must be a list of texts or of pairs of texts, not a text")
    # A list of lists means several inputs, each a single text or a pair.
    lists = [[text] if isinstance(text, str) else list(text) for text in inputs]
    body = {"inputs": lists, "raw_scores": raw_scores, **present(truncate=truncate)}
    return Call("/predict", body, lambda rows: [[Prediction(p["label"], p["score"]) for p in row] for row in rows])


def info() -> Call[dict[str, Any]]:
    return Call("/info", None, lambda answer: answer)
