"""Servers and connections shared by tests: one process per model and flags, stopped at the end."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import loopback
import pytest
from browser import Playground, launch, opened
from grpc_client import Grpc
from missing_wheels import (  # noqa: F401 (hooks)
    pytest_make_collect_report,
    pytest_runtest_call,
    pytest_runtest_setup,
)
from playwright.sync_api import Browser, sync_playwright
from server import Server

# Must run before the clients are imported: some of them open connections when imported.
loopback.guard()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests in int8 and int4 on a GPU."""
    if "DEVICE_IS_GPU" in os.environ:
        for item in items:
            if getattr(item, "callspec", None) and item.callspec.params.get("dtype") in ("int8", "int4"):
                item.add_marker(pytest.mark.skip(reason="only CPUs compute in int8 and int4"))


@pytest.fixture(autouse=True)
def no_other_host_is_contacted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test whose client contacts a host that is neither this machine nor in a `reaches_for` mark."""
    loopback.ATTEMPTS.clear()
    yield
    marker = request.node.get_closest_marker("reaches_for")
    assert set(loopback.ATTEMPTS) <= set(marker.args if marker else ())


@pytest.fixture(scope="session")
def served() -> Iterator[Callable[..., Server]]:
    """Gives the server for a model's name or folder and flags; the first call starts it."""
    servers: dict[tuple, Server] = {}
    with ExitStack() as stack:

        def get(*arguments: object) -> Server:
            if arguments not in servers:
                servers[arguments] = stack.enter_context(Server(*arguments))
            return servers[arguments]

        yield get


@pytest.fixture(scope="session")
def server(served: Callable[..., Server]) -> Server:
    """The server of most tests: the reference model with the official repository's files, without flags."""
    return served("tied-bf16")


@pytest.fixture(scope="session")
def connected(served: Callable[..., Server]) -> Iterator[Callable[..., tuple[Server, Grpc]]]:
    """Like `served`, with a gRPC port and a connection to it."""
    connections: dict[Server, Grpc] = {}
    with ExitStack() as stack:

        def get(*arguments: object) -> tuple[Server, Grpc]:
            server = served(*arguments, "--grpc-port", "0")
            if server not in connections:
                connections[server] = stack.enter_context(Grpc(server))
            return server, connections[server]

        yield get


@pytest.fixture(scope="module")
def limited() -> Iterator[Callable[[str, int | None], Server]]:
    """Gives the server for a model and its longest input (None: the model's own). Only one such server runs
    at a time: asking for another one stops the last."""
    with ExitStack() as stack:
        current = {}

        def get(model: str, longest: int | None) -> Server:
            if (model, longest) not in current:
                current.clear()
                stack.close()
                flags = () if longest is None else ("--max-input-length", str(longest))
                current[model, longest] = stack.enter_context(Server(model, *flags))
            return current[model, longest]

        yield get


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    # Closed after each file: its event loop must end before other files run loops of their own.
    with sync_playwright() as playwright:
        running = launch(playwright)
        yield running
        running.close()


@pytest.fixture
def visit(chromium) -> Iterator[Callable[..., Playground]]:
    """Opens the page of a server; by default, a link without content keeps it from running its example.
    `statuses` are the error statuses that the test provokes."""
    with ExitStack() as stack:

        def visit(server: Server, path: str = "/playground#{}", statuses: tuple = (), **settings: object) -> Playground:
            return stack.enter_context(opened(chromium, server, path, set(statuses), **settings))

        yield visit


@pytest.fixture
def short(served) -> Server:
    """A server whose prompts are at most 128 tokens long."""
    return served("tied-bf16", "--max-input-length", "128")
