"""Collectors of traces that are silent, broken, or never come to an end. They cost spans, no request."""

import os
import socket
import threading
import time
from collections.abc import Callable

import pytest

MB = 1 << 20
# HTTP/2: empty SETTINGS, their acknowledgement, and the head of an answer of 4 GB on the first stream.
SETTINGS, ACKNOWLEDGED = b"\0\0\0\4\0\0\0\0\0", b"\0\0\0\4\1\0\0\0\0"
ANSWER = SETTINGS + ACKNOWLEDGED + b"\0\0\1\1\4\0\0\0\1\x88" + b"\0\0\5\0\0\0\0\0\1\0\xff\xff\xff\xff"
FULL = b"\0\x40\0\0\0\0\0\0\1" + bytes(1 << 14)


def send(first: bytes, then: Callable[[], bytes]) -> Callable[[socket.socket], None]:
    """Sends `first`, and then more until the other side closes."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(first)
        while part := then():
            connection.sendall(part)
            time.sleep(0.001)

    return behave


COLLECTORS = {
    "are silent": lambda connection: connection.recv(1) and time.sleep(60),
    "send random bytes": send(b"", lambda: os.urandom(1 << 14)),
    "send answers without end": send(ANSWER, lambda: FULL),
    "acknowledge nothing and ping": send(SETTINGS, lambda: (b"\0\0\x08\6\0\0\0\0\0" + bytes(8)) * 100),
    "close each connection": lambda connection: connection.close(),
}


def listening(behave: Callable[[socket.socket], None]) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def run(connection: socket.socket) -> None:
        with connection:
            try:
                behave(connection)
            except OSError:
                pass  # The server has closed the connection.

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=run, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


@pytest.mark.parametrize("kind", COLLECTORS)
def test_a_collector_costs_spans_and_no_request(target, bystander, record, kind):
    with listening(COLLECTORS[kind]) as listener:
        # Milliseconds, instead of five and ten seconds.
        soon = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_EXPORTER_OTLP_TIMEOUT": "500"}
        aim = target("--otlp-endpoint", f"http://127.0.0.1:{listener.getsockname()[1]}", environment=soon)
        before = aim.memory()
        with bystander(aim, pause=0) as others:
            time.sleep(2)
        assert not others.lost and others.asked > 100, others.lost
        assert aim.memory() < before + 60 * MB
        process, start = aim.process("its end"), time.monotonic()
        assert process.log().count("traces do not reach") == 1
        process.stop()
        assert time.monotonic() - start < 5, "the last spans hold the server at its end"
    record("collectors of traces that are silent, broken or without end", len(COLLECTORS), len(others.lost), "spans are lost, as one line of the log says")
