"""Clients of a running server with the same methods: one that waits for each answer, and one for asyncio.

Invariants: a request is sent again only if nothing was computed (no connection, 429, 503), at most `attempts`
times, and after the time that the server names; every other failure raises an error of `_errors` at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

import httpx

from . import _protocol as protocol
from ._errors import AnswerTimeoutError, ServerUnreachableError
from ._protocol import Call, Patience, Prediction, Rank

T = TypeVar("T")


class _Settings:
    """The settings of both clients."""

    def __init__(self, url: str, api_key: str | None, timeout: float, attempts: int, longest_pause: float):
        self.url = url.rstrip("/")
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
    pauses of at most `longest_pause` seconds.
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
        raw_scores: bool = False,
        return_text: bool = False,
        truncate: bool | None = None,
    ) -> list[Rank]:
        """Scores texts for a query, best first; with `top_n`, returns only the best ones.

        `instruction` says what makes a text relevant. `truncate` says whether a text that is too long is
        truncated; by default, the server's `--auto-truncate` decides.
        """
        return self._ask(
            protocol.rerank(
                query,
                texts,
                top_n=top_n,
                instruction=instruction,
                raw_scores=raw_scores,
                return_text=return_text,
                truncate=truncate,
            )
        )

    def score(self, queries: Sequence[str], texts: Sequence[str], *, raw_scores: bool = False) -> list[float]:
        """The scores of pairs in their order: the first query with the first text, and so on."""
        return self._ask(protocol.score(queries, texts, raw_scores=raw_scores))

    def embed(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
    ) -> list[list[float]]:
        """A vector for each text, of length 1 if `normalize`; `dimensions` keeps only its first values."""
        return self._ask(
            protocol.embed(texts, normalize=normalize, prompt_name=prompt_name, dimensions=dimensions, truncate=truncate)
        )

    def predict(
        self, inputs: Sequence[str | tuple[str, str]], *, raw_scores: bool = False, truncate: bool | None = None
    ) -> list[list[Prediction]]:
        """The labels of each text, or pair of texts, best first."""
        return self._ask(protocol.predict(inputs, raw_scores=raw_scores, truncate=truncate))

    def info(self) -> dict[str, Any]:
        """The server's description of itself: the model, its kind and the limits."""
        return self._ask(protocol.info())

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
        raw_scores: bool = False,
        return_text: bool = False,
        truncate: bool | None = None,
    ) -> list[Rank]:
        """Like `Client.rerank`."""
        return await self._ask(
            protocol.rerank(
                query,
                texts,
                top_n=top_n,
                instruction=instruction,
                raw_scores=raw_scores,
                return_text=return_text,
                truncate=truncate,
            )
        )

    async def score(self, queries: Sequence[str], texts: Sequence[str], *, raw_scores: bool = False) -> list[float]:
        """Like `Client.score`."""
        return await self._ask(protocol.score(queries, texts, raw_scores=raw_scores))

    async def embed(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = True,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool | None = None,
    ) -> list[list[float]]:
        """Like `Client.embed`."""
        return await self._ask(
            protocol.embed(texts, normalize=normalize, prompt_name=prompt_name, dimensions=dimensions, truncate=truncate)
        )

    async def predict(
        self, inputs: Sequence[str | tuple[str, str]], *, raw_scores: bool = False, truncate: bool | None = None
    ) -> list[list[Prediction]]:
        """Like `Client.predict`."""
        return await self._ask(protocol.predict(inputs, raw_scores=raw_scores, truncate=truncate))

    async def info(self) -> dict[str, Any]:
        """Like `Client.info`."""
        return await self._ask(protocol.info())

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
