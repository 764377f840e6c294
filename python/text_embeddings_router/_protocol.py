"""The server's requests and answers without any transport; both clients use it.

Input: the arguments of a client's method, or an answer's status, headers and body. Output: the `Steps` of the
exchange, the pause before the next attempt, or the error to raise. Invariants: nothing here waits or
connects; a function with the name of a client's method has its parameters and its documentation.
"""

from __future__ import annotations

import email.utils
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from ._batches import Batches, Call, Limit, Progress, Steps
from ._errors import BY_KIND, RequestError

if TYPE_CHECKING:
    import numpy

# With these statuses, the server has computed nothing, so the request may be sent again.
BUSY = (429, 503)
# Attempts to connect: a server without a listening port is not busy, so `attempts` does not count.
CONNECT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a text, `text[start:end]`, with its score; its text if the client requested texts."""

    start: int
    end: int
    score: float
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """A re-ranked text: its index in the request, its score, and the text if the client requested it.

    `best_passage` is the chunk that has this score, if long texts are divided; `highlights` are the
    sentences of a text that was to be highlighted.
    """

    index: int
    score: float
    text: str | None = None
    best_passage: Passage | None = None
    highlights: tuple[Passage, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A label of a classifier and its score."""

    label: str
    score: float


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
    by_status = {
        400: "Empty",
        401: "Unauthorized",
        422: "Validation",
        424: "Backend",
        429: "Overloaded",
        503: "Unhealthy",
    }
    try:
        body = json.loads(content)
        if isinstance(body.get("message"), str):
            # On `/v2/embed`, as in Cohere.
            body = {"error": body["message"], "error_type": by_status.get(status, "Unknown")}
        error = body["error"]
        # On `/score` the error is nested, as in vLLM, where this route comes from.
        kind, message = (error["type"], error["message"]) if isinstance(error, dict) else (body["error_type"], error)
        kind, message = str(kind), str(message)
    except (ValueError, KeyError, TypeError, AttributeError):
        # Something else answered, such as a load balancer.
        kind = by_status[status] if status in (401, *BUSY) else "Unknown"
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


def checked_url(url: str) -> str:
    """`url` without a slash at its end. Without a scheme, it is refused: `localhost:8080` is a URL, too."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the URL `{url}` must begin with http:// or https://, such as `http://{url.rpartition('//')[2]}`")
    return url.rstrip("/")


def client_batch(info: Mapping[str, Any]) -> int | None:
    return int(info["max_client_batch_size"])


def rerank_batch(info: Mapping[str, Any]) -> int | None:
    if (info.get("reranker") or {}).get("scores_depend_on_request"):
        return None
    # text-embeddings-inference has one limit for all lists.
    return int(info.get("max_rerank_texts", info["max_client_batch_size"]))


TEXTS = Limit(32, client_batch)
# The sentence that the others are compared with counts.
SENTENCES = Limit(31, lambda info: max(1, int(info["max_client_batch_size"]) - 1))
RERANKED = Limit(1000, rerank_batch)


def rerank(
    query: str,
    texts: Sequence[str],
    *,
    top_n: int | None = None,
    instruction: str | None = None,
    min_score: float | None = None,
    raw_scores: bool = False,
    return_text: bool = False,
    truncate: bool | None = None,
    max_chunks_per_doc: int | None = None,
    chunk_overlap: int | None = None,
    highlight: bool | int | None = None,
    progress: Progress = False,
) -> Steps[list[Rank]]:
    """Scores texts for a query, best first; with `top_n`, returns only the best ones.

    `instruction` says what makes a text relevant. Texts with a score below `min_score` are left out, by
    default those below the server's `--min-score`. `truncate` says whether a text that is too long is
    truncated; by default, the server's `--auto-truncate` decides. A listwise re-ranker, whose scores
    depend on all texts of a request, refuses more texts than the server's limit.

    With `max_chunks_per_doc` or `chunk_overlap`, a text that does not fit is divided into chunks
    instead, and has the score of its `best_passage`. `highlight` adds scores of the sentences of the
    best texts: of this many, or of all with True.
    """
    texts = texts_of("texts", texts)
    options = present(
        top_n=top_n,
        instruction=instruction,
        min_score=min_score,
        truncate=truncate,
        max_chunks_per_doc=max_chunks_per_doc,
        chunk_overlap=chunk_overlap,
        highlight=highlight,
    )
    fixed = {"query": query, "raw_scores": raw_scores, "return_text": return_text, **options}

    def call(start: int, end: int) -> Call[list[Rank]]:
        def read(ranks: Any) -> list[Rank]:
            return [rank_of(start, rank) for rank in ranks]

        return Call("/rerank", {**fixed, "texts": texts[start:end]}, read)

    def join(ranks: list[Rank]) -> list[Rank]:
        # 0 means all, as for the server.
        ordered = sorted(ranks, key=lambda rank: -rank.score)[: top_n or None]
        if highlight is None or isinstance(highlight, bool):
            return ordered
        # The server highlighted the best texts of each request.
        return ordered[:highlight] + [replace(rank, highlights=None) for rank in ordered[highlight:]]

    return Batches(len(texts), RERANKED, call, join).steps(progress)


def rank_of(start: int, rank: Mapping[str, Any]) -> Rank:
    """A rank of an answer, whose texts begin with the item `start`."""
    best, highlights = rank.get("best_passage"), rank.get("highlights")
    return Rank(
        start + rank["index"],
        rank["score"],
        rank.get("text"),
        Passage(**best, score=rank["score"]) if best else None,
        None if highlights is None else tuple(Passage(**part) for part in highlights),
    )


def score(
    queries: Sequence[str], texts: Sequence[str], *, raw_scores: bool = False, progress: Progress = False
) -> Steps[list[float]]:
    """The scores of pairs in their order: the first query with the first text, and so on."""
    queries, texts = texts_of("queries", queries), texts_of("texts", texts)
    if len(queries) != len(texts):
        raise ValueError(f"{len(queries)} queries and {len(texts)} texts do not make pairs: give as many queries as texts")

    def read(answer: Any) -> list[float]:
        rows = sorted(answer["data"], key=lambda row: row["index"])
        return [row["score"] for row in rows]

    def call(start: int, end: int) -> Call[list[float]]:
        pairs = {"queries": queries[start:end], "documents": texts[start:end]}
        return Call("/score", {**pairs, "use_activation": not raw_scores}, read)

    return Batches(len(texts), RERANKED, call).steps(progress)


def embed(
    texts: Sequence[str],
    *,
    normalize: bool = True,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    truncate: bool | None = None,
    progress: Progress = False,
) -> Steps[list[list[float]]]:
    """A vector for each text, of length 1 if `normalize`; `dimensions` keeps only its first values."""
    texts = texts_of("texts", texts)
    options = {"normalize": normalize, **present(prompt_name=prompt_name, dimensions=dimensions, truncate=truncate)}

    def call(start: int, end: int) -> Call[list[list[float]]]:
        return Call("/embed", {"inputs": texts[start:end], **options}, lambda vectors: vectors)

    return Batches(len(texts), TEXTS, call).steps(progress)


def embed_array(
    texts: Sequence[str],
    *,
    normalize: bool = True,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    truncate: bool | None = None,
    progress: Progress = False,
) -> Steps[numpy.ndarray[Any, Any]]:
    """The vectors of `embed` as the rows of a float32 array. Needs NumPy."""
    vectors = yield from embed(
        texts,
        normalize=normalize,
        prompt_name=prompt_name,
        dimensions=dimensions,
        truncate=truncate,
        progress=progress,
    )
    # Imported here, because the package works without NumPy.
    import numpy

    return numpy.array(vectors, dtype=numpy.float32)


def embed_encoded(
    texts: Sequence[str],
    encoding: str,
    *,
    input_type: str | None = None,
    dimensions: int | None = None,
    truncate: bool | None = None,
    progress: Progress = False,
) -> Steps[list[list[int]]]:
    """A vector for each text as whole numbers: `int8`, `uint8`, or eight bits by `binary` or `ubinary`.

    `input_type`, such as `search_query`, chooses the model's prompt. `/v2/embed` is asked.
    """
    texts = texts_of("texts", texts)
    # Without `truncate`, Cohere's default applies: a text that is too long loses its end.
    cut = None if truncate is None else ("END" if truncate else "NONE")
    options = present(input_type=input_type, output_dimension=dimensions, truncate=cut)

    def call(start: int, end: int) -> Call[list[list[int]]]:
        body = {"texts": texts[start:end], "embedding_types": [encoding], **options}
        return Call("/v2/embed", body, lambda answer: answer["embeddings"][encoding])

    return Batches(len(texts), TEXTS, call).steps(progress)


def embed_sparse(
    texts: Sequence[str],
    *,
    prompt_name: str | None = None,
    truncate: bool | None = None,
    progress: Progress = False,
) -> Steps[list[dict[int, float]]]:
    """A sparse vector for each text: the weights that are not zero, by token id."""
    texts = texts_of("texts", texts)
    options = present(prompt_name=prompt_name, truncate=truncate)

    def call(start: int, end: int) -> Call[list[dict[int, float]]]:
        def read(vectors: Any) -> list[dict[int, float]]:
            return [{entry["index"]: entry["value"] for entry in vector} for vector in vectors]

        return Call("/embed_sparse", {"inputs": texts[start:end], **options}, read)

    return Batches(len(texts), TEXTS, call).steps(progress)


def similarity(
    source: str,
    sentences: Sequence[str],
    *,
    prompt_name: str | None = None,
    truncate: bool | None = None,
    progress: Progress = False,
) -> Steps[list[float]]:
    """The cosine of each sentence with `source`, in their order."""
    sentences = texts_of("sentences", sentences)
    parameters = present(prompt_name=prompt_name, truncate=truncate)

    def call(start: int, end: int) -> Call[list[float]]:
        inputs = {"source_sentence": source, "sentences": sentences[start:end]}
        return Call("/similarity", {"inputs": inputs, "parameters": parameters}, lambda cosines: cosines)

    return Batches(len(sentences), SENTENCES, call).steps(progress)


def predict(
    inputs: Sequence[str | tuple[str, str]],
    *,
    raw_scores: bool = False,
    truncate: bool | None = None,
    progress: Progress = False,
) -> Steps[list[list[Prediction]]]:
    """The labels of each text, or pair of texts, best first."""
    if isinstance(inputs, str):
        raise TypeError("inputs must be a list of texts or of pairs of texts, not a text")
    # A list of lists means several inputs, each a single text or a pair.
    lists = [[text] if isinstance(text, str) else list(text) for text in inputs]
    options = {"raw_scores": raw_scores, **present(truncate=truncate)}

    def call(start: int, end: int) -> Call[list[list[Prediction]]]:
        def read(rows: Any) -> list[list[Prediction]]:
            return [[Prediction(p["label"], p["score"]) for p in row] for row in rows]

        return Call("/predict", {"inputs": lists[start:end], **options}, read)

    return Batches(len(lists), TEXTS, call).steps(progress)


def decide(
    state: object, questions: Mapping[str, Mapping[str, object]], *, options_order: str | None = None
) -> Steps[dict[str, dict[str, Any]]]:
    """The answers to questions about a text or any JSON value, by the questions' ids.

    A question is `{"type": "noul", "instructions": …}`, `{"type": "choice", "criteria": {option:
    description}}` or `{"type": "score", "criteria": [level, …]}`. `options_order="both"` asks each choice
    in two orders.
    """
    body = {"state": state, "questions": questions, **present(options_order=options_order)}
    answers: dict[str, dict[str, Any]] = yield Call("/v1/systemone", body, lambda answer: answer["answers"])
    return answers
