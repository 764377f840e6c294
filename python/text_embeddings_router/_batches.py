"""Lists of any length, although a server takes only some texts in one request.

Input: the number of items, and the request for a part of them. Output: the `Steps` of the exchange, which
both clients take: each `Call` that is to be sent; at the end, the result for all items in their order.
Invariants: nothing here waits or connects; no request has more items than the server's limit, and a list
within the limit is one request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ._errors import RequestError, ValidationError

T = TypeVar("T")

# `True` writes a line to stderr; a function is called with the number of items that are done, and of all.
Progress = bool | Callable[[int, int], object]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the function that reads its result from the answer. Without a body, it is a GET."""

    path: str
    body: Mapping[str, object] | None
    read: Callable[[Any], T]

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"


# An exchange: it yields each request and is sent its result; an error of a request is thrown into it.
Steps = Generator[Call[Any], Any, T]


@dataclass(frozen=True)
class Limit:
    """The number of items that a server takes in one request."""

    # The server's default. A list that is no longer is sent before the server's `/info` is known.
    default: int
    # The number by the server's `/info`; None if the items must not be separated.
    of_info: Callable[[Mapping[str, Any]], int | None]


@dataclass(frozen=True)
class Batches(Generic[T]):
    """A request for any number of items, which may be sent as several."""

    items: int
    limit: Limit
    # The request for the items from the first index to before the second, and the function that makes one
    # result of the results of all requests.
    call: Callable[[int, int], Call[list[T]]]
    join: Callable[[list[T]], list[T]] = lambda results: results

    def steps(self, progress: Progress) -> Steps[list[T]]:
        """The exchange of all requests."""
        if self.items <= self.limit.default:
            try:
                return self.join((yield self.call(0, self.items)))
            except ValidationError:
                # Perhaps the server's limit is lower than the default.
                size = yield from self._size()
                if self.items <= size:
                    raise
        else:
            size = yield from self._size()
        show = _shown if progress is True else progress or (lambda done, all_items: None)
        results: list[T] = []
        for start in range(0, self.items, size):
            end = min(start + size, self.items)
            try:
                results += yield self.call(start, end)
            except RequestError as error:
                # The server counts from the first item of the request.
                error.add_note(f"in the request for the items {start} to {end - 1} of {self.items}, counted from 0")
                raise
            show(end, self.items)
        return self.join(results)

    def _size(self) -> Steps[int]:
        """The number of items for one request."""
        try:
            description = yield from info()
        except RequestError:
            # For example a balancer that passes on no other route: the server itself says what it takes.
            return self.items
        return self.limit.of_info(description) or self.items


def info() -> Steps[dict[str, Any]]:
    """The server's description of itself: the model, its kind and the limits."""
    description: dict[str, Any] = yield Call("/info", None, lambda answer: answer)
    return description


def _shown(done: int, items: int) -> None:
    """Writes the progress to stderr, over the line before."""
    end = "\n" if done == items else ""
    print(f"\r{done} of {items} done", end=end, file=sys.stderr, flush=True)
