"""Clients of a running server with the same methods: one that waits for each answer, and one for asyncio.

Input: lists of texts; a list that is longer than the server's limit is sent as several requests, one after
the other. Output: scores, vectors, labels. Invariants: a request is sent again only if nothing was computed
(no connection, 429, 503), at most `attempts` times, and after the time that the server names; every other
failure raises an error of `_errors` at once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx

from . import _protocol as protocol
from ._batches import Call, Steps, info
from ._errors import AnswerTimeoutError, RequestError, ServerUnreachableError
from ._protocol import Patience

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


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


def _blocking(exchange: Callable[P, Steps[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method of `Client` that takes the steps of an exchange."""

    def method(self: Client, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._take_steps(exchange(*arguments, **options))

    return _describe(method, exchange)


def _awaited(exchange: Callable[P, Steps[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The method of `AsyncClient` that takes the steps of an exchange."""

    async def method(self: AsyncClient, /, *arguments: P.args, **options: P.kwargs) -> T:
        return await self._take_steps(exchange(*arguments, **options))

    return _describe(method, exchange)


def _describe(method: M, exchange: Callable[..., Any]) -> M:
    """`method` with the name, the documentation and the parameters of `exchange`, as `help` shows them."""
    functools.update_wrapper(method, exchange)
    signature = inspect.signature(exchange)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *signature.parameters.values()]
    result = signature.return_annotation.removeprefix("Steps[").removesuffix("]")
    setattr(method, "__signature__", signature.replace(parameters=parameters, return_annotation=result))
    return method


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

    rerank = _blocking(protocol.rerank)
    score = _blocking(protocol.score)
    embed = _blocking(protocol.embed)
    embed_array = _blocking(protocol.embed_array)
    embed_encoded = _blocking(protocol.embed_encoded)
    embed_sparse = _blocking(protocol.embed_sparse)
    similarity = _blocking(protocol.similarity)
    predict = _blocking(protocol.predict)
    decide = _blocking(protocol.decide)
    info = _blocking(info)

    def _take_steps(self, steps: Steps[T]) -> T:
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
            found: T = end.value
            return found

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

    rerank = _awaited(protocol.rerank)
    score = _awaited(protocol.score)
    embed = _awaited(protocol.embed)
    embed_array = _awaited(protocol.embed_array)
    embed_encoded = _awaited(protocol.embed_encoded)
    embed_sparse = _awaited(protocol.embed_sparse)
    similarity = _awaited(protocol.similarity)
    predict = _awaited(protocol.predict)
    decide = _awaited(protocol.decide)
    info = _awaited(info)

    async def _take_steps(self, steps: Steps[T]) -> T:
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
            found: T = end.value
            return found

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
