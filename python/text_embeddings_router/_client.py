"""Clients of a running server with the same methods: one that waits for each answer, and one for asyncio.

Input: lists of texts; a list that is longer than the server's limit is sent as several requests, one after
the other. Output: scores, vectors, labels. Invariants: a request is sent again only if nothing was computed
(no connection, 429, 503), at most `attempts` times, and after the time that the server names; every other
failure raises an error of `_errors` at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from . import _protocol as protocol
from ._batches import Batches, Call, Progress
from ._batches import info as info_call
from ._errors import AnswerTimeoutError, RequestError, ServerUnreachableError
from ._protocol import Patience, Prediction, Rank

if TYPE_CHECKING:
    import numpy

T = TypeVar("T")


class _Settings:
    """The settings of both clients."""

    def __init__(self, url: str, api_key: str | None, timeout: float, attempts: int, longest_pause: float):
        self.url = protocol.checked_url(url)
        self.timeout = timeout
        self._patience = Patience(attempts, longest_pause)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def _next_pause(self, attempt: int, outcome: httpx.Response | httpx.TransportError) -> float:
        """The pause after an attempt without a result. Raises the error if there is no further attempt."""
        if isinstance(outcome, httpx.Response):
            pause = self._patience.pause(attempt, outcome.status_code, outcome.headers)
            if pause is None:
                raise protocol.request_error(outcome.status_code, outcome.content, attempt)
            return pause
        if isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout):
            pause = self._patience.pause(attempt, None, {})
            if pause is not None:
                return pause
        elif isinstance(outcome, httpx.TimeoutException):
            raise AnswerTimeoutError(f"no answer from {self.url} within {self.timeout} s") from outcome
        raise ServerUnreachableError(f"no answer from {self.url}: {outcome or type(outcome).__name__}") from outcome


class Client(_Settings):
    """A client of a server. Several threads may use it at the same time.

    `timeout` is the time for one attempt, in seconds. A busy server is asked at most `attempts` times, with
    pauses of at most `longest_pause` seconds. `progress` of the methods is for lists that are longer than the
    server's limit: with `True`, a line on stderr says how much is done; a function gets the numbers.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:3000",
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        attempts: int = 5,
        longest_pause: float = 20.0,
    ):
        super().__init__(url, api_key, timeout, attempts, longest_pause)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.Client(timeout=timeout, headers=self._headers, limits=limits)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def rerank(
        self,
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
    ) -> list[Rank]:
        """Scores texts for a query, best first; with `top_n`, returns only the best ones.

        `instruction` says what makes a text relevant. Texts with a score below `min_score` are left out, by
        default those below the server's `--min-score`. `truncate` says whether a text that is too long is
        truncated; by default, the server's `--auto-truncate` decides. A listwise re-ranker, whose scores
        depend on all texts of a request, refuses more texts than the server's limit.

        With `max_chunks_per_doc` or `chunk_overlap`, a text that does not fit is divided into chunks
        instead, and has the score of its `best_passage`. `highlight` adds scores of the sentences of the
        best texts: of this many, or of all with True.
        """
        return self._ask_batches(
            protocol.rerank(
                query,
                texts,
                top_n=top_n,
                instruction=instruction,
                min_score=min_score,
                raw_scores=raw_scores,
                return_text=return_text,
                truncate=truncate,
                max_chunks_per_doc=max_chunks_per_doc,
                chunk_overlap=chunk_overlap,
                highlight=highlight,
            ),
            progress,
        )

    def score(
        self, queries: Sequence[str], texts: Sequence[str], *, raw_scores: bool = False, progress: Progress = False
    ) -> list[float]:
        """The scores of pairs in their order: the first query with the first text, and so on."""
        return self._ask_batches(protocol.score(queries, texts, raw_scores=raw_scores), progress)

    def embed(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[list[float]]:
        """A vector for each text, of length 1 if `normalize`; `dimensions` keeps only its first values."""
        return self._ask_batches(
            protocol.embed(texts, normalize=normalize, prompt_name=prompt_name, dimensions=dimensions, truncate=truncate),
            progress,
        )

    def embed_array(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> numpy.ndarray[Any, Any]:
        """The vectors of `embed` as the rows of a float32 array. Needs NumPy."""
        vectors = self.embed(
            texts,
            normalize=normalize,
            prompt_name=prompt_name,
            dimensions=dimensions,
            truncate=truncate,
            progress=progress,
        )
        return protocol.array_of(vectors)

    def embed_encoded(
        self,
        texts: Sequence[str],
        encoding: str,
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[list[int]]:
        """A vector for each text as whole numbers: `int8`, `uint8`, or eight bits by `binary` or `ubinary`.

        `input_type`, such as `search_query`, chooses the model's prompt. `/v2/embed` is asked.
        """
        return self._ask_batches(
            protocol.embed_encoded(
                texts, encoding, input_type=input_type, dimensions=dimensions, truncate=truncate
            ),
            progress,
        )

    def embed_sparse(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[dict[int, float]]:
        """A sparse vector for each text: the weights that are not zero, by token id."""
        return self._ask_batches(protocol.embed_sparse(texts, prompt_name=prompt_name, truncate=truncate), progress)

    def similarity(
        self,
        source: str,
        sentences: Sequence[str],
        *,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[float]:
        """The cosine of each sentence with `source`, in their order."""
        return self._ask_batches(
            protocol.similarity(source, sentences, prompt_name=prompt_name, truncate=truncate), progress
        )

    def predict(
        self,
        inputs: Sequence[str | tuple[str, str]],
        *,
        raw_scores: bool = False,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[list[Prediction]]:
        """The labels of each text, or pair of texts, best first."""
        return self._ask_batches(protocol.predict(inputs, raw_scores=raw_scores, truncate=truncate), progress)

    def decide(
        self, state: object, questions: Mapping[str, Mapping[str, object]], *, options_order: str | None = None
    ) -> dict[str, dict[str, Any]]:
        """The answers to questions about a text or any JSON value, by the questions' ids.

        A question is `{"type": "noul", "instructions": …}`, `{"type": "choice", "criteria": {option:
        description}}` or `{"type": "score", "criteria": [level, …]}`. `options_order="both"` asks each choice
        in two orders.
        """
        return self._ask(protocol.decide(state, questions, options_order=options_order))

    def info(self) -> dict[str, Any]:
        """The server's description of itself: the model, its kind and the limits."""
        return self._ask(info_call())

    def _ask_batches(self, batches: Batches[T], progress: Progress) -> list[T]:
        steps = batches.steps(progress)
        try:
            call = next(steps)
            while True:
                try:
                    result = self._ask(call)
                except RequestError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as end:
            results: list[T] = end.value
            return results

    def _ask(self, call: Call[T]) -> T:
        attempt = 1
        while True:
            outcome: httpx.Response | httpx.TransportError
            try:
                outcome = self._http.request(call.method, self.url + call.path, json=call.body)
                if outcome.is_success:
                    return call.read(outcome.json())
            except httpx.TransportError as error:
                outcome = error
            time.sleep(self._next_pause(attempt, outcome))
            attempt += 1


class AsyncClient(_Settings):
    """A client for asyncio, with the methods and settings of `Client`."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:3000",
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        attempts: int = 5,
        longest_pause: float = 20.0,
    ):
        super().__init__(url, api_key, timeout, attempts, longest_pause)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(timeout=timeout, headers=self._headers, limits=limits)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def rerank(
        self,
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
    ) -> list[Rank]:
        """Like `Client.rerank`."""
        return await self._ask_batches(
            protocol.rerank(
                query,
                texts,
                top_n=top_n,
                instruction=instruction,
                min_score=min_score,
                raw_scores=raw_scores,
                return_text=return_text,
                truncate=truncate,
                max_chunks_per_doc=max_chunks_per_doc,
                chunk_overlap=chunk_overlap,
                highlight=highlight,
            ),
            progress,
        )

    async def score(
        self, queries: Sequence[str], texts: Sequence[str], *, raw_scores: bool = False, progress: Progress = False
    ) -> list[float]:
        """Like `Client.score`."""
        return await self._ask_batches(protocol.score(queries, texts, raw_scores=raw_scores), progress)

    async def embed(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[list[float]]:
        """Like `Client.embed`."""
        return await self._ask_batches(
            protocol.embed(texts, normalize=normalize, prompt_name=prompt_name, dimensions=dimensions, truncate=truncate),
            progress,
        )

    async def embed_array(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> numpy.ndarray[Any, Any]:
        """Like `Client.embed_array`."""
        vectors = await self.embed(
            texts,
            normalize=normalize,
            prompt_name=prompt_name,
            dimensions=dimensions,
            truncate=truncate,
            progress=progress,
        )
        return protocol.array_of(vectors)

    async def embed_encoded(
        self,
        texts: Sequence[str],
        encoding: str,
        *,
        input_type: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[list[int]]:
        """Like `Client.embed_encoded`."""
        return await self._ask_batches(
            protocol.embed_encoded(
                texts, encoding, input_type=input_type, dimensions=dimensions, truncate=truncate
            ),
            progress,
        )

    async def embed_sparse(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[dict[int, float]]:
        """Like `Client.embed_sparse`."""
        return await self._ask_batches(protocol.embed_sparse(texts, prompt_name=prompt_name, truncate=truncate), progress)

    async def similarity(
        self,
        source: str,
        sentences: Sequence[str],
        *,
        prompt_name: str | None = None,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[float]:
        """Like `Client.similarity`."""
        return await self._ask_batches(
            protocol.similarity(source, sentences, prompt_name=prompt_name, truncate=truncate), progress
        )

    async def predict(
        self,
        inputs: Sequence[str | tuple[str, str]],
        *,
        raw_scores: bool = False,
        truncate: bool | None = None,
        progress: Progress = False,
    ) -> list[list[Prediction]]:
        """Like `Client.predict`."""
        return await self._ask_batches(protocol.predict(inputs, raw_scores=raw_scores, truncate=truncate), progress)

    async def decide(
        self, state: object, questions: Mapping[str, Mapping[str, object]], *, options_order: str | None = None
    ) -> dict[str, dict[str, Any]]:
        """Like `Client.decide`."""
        return await self._ask(protocol.decide(state, questions, options_order=options_order))

    async def info(self) -> dict[str, Any]:
        """Like `Client.info`."""
        return await self._ask(info_call())

    async def _ask_batches(self, batches: Batches[T], progress: Progress) -> list[T]:
        steps = batches.steps(progress)
        try:
            call = next(steps)
            while True:
                try:
                    result = await self._ask(call)
                except RequestError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(result)
        except StopIteration as end:
            results: list[T] = end.value
            return results

    async def _ask(self, call: Call[T]) -> T:
        attempt = 1
        while True:
            outcome: httpx.Response | httpx.TransportError
            try:
                outcome = await self._http.request(call.method, self.url + call.path, json=call.body)
                if outcome.is_success:
                    return call.read(outcome.json())
            except httpx.TransportError as error:
                outcome = error
            await asyncio.sleep(self._next_pause(attempt, outcome))
            attempt += 1
