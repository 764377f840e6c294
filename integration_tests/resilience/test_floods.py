"""Clients that send cheap things without end: frames, headers, extensions, requests sent ahead."""

import json
from collections.abc import Iterator

from frames import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, SETTINGS, WINDOW_UPDATE
from frames import field, frame, opening, post
from target import head

CONNECTIONS = 3
# Bytes by which the process may grow.
SLACK = 60 << 20
CHUNKED = head("/rerank", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
# A stream whose head has not ended, and one whose body has not.
HEAD = opening() + frame(HEADERS, END_STREAM, 1, post(b"/rerank"))
BODY = opening() + frame(HEADERS, END_HEADERS, 1, post(b"/rerank"))
REMEMBERED = field(b"x", b"y" * 3900, indexed=True)


def repeated(first: bytes, unit: bytes, count: int) -> Iterator[bytes]:
    """`count` times a unit, in parts of about 100 KB."""
    yield first
    together = max(1, 100_000 // len(unit))
    for _ in range(count // together):
        yield unit * together


def requests_to_be_reset() -> Iterator[bytes]:
    """Complete requests, each followed by a mistake for which the server must reset the stream."""
    body = json.dumps({"query": "q", "texts": ["Mars is red. " * 50] * 8}).encode()
    yield opening()
    for stream in range(1, 20_001, 2):
        yield frame(HEADERS, END_HEADERS, stream, post(b"/rerank")) + frame(DATA, END_STREAM, stream, body)
        yield frame(WINDOW_UPDATE, 0, stream, bytes(4))


# The parts that a client sends until the server ends the connection, up to 200 MB.
FLOODS = {
    "heads without end, in CONTINUATION frames": lambda: repeated(HEAD, frame(CONTINUATION, 0, 1, field(b"x", b"y" * 8000)), 20_000),
    "empty CONTINUATION frames": lambda: repeated(HEAD, frame(CONTINUATION, 0, 1), 10_000_000),
    "heads that say 4 KB again and again (HPACK)": lambda: repeated(
        opening() + frame(HEADERS, END_STREAM, 1, post(b"/rerank", REMEMBERED)), frame(CONTINUATION, 0, 1, b"\xbe" * 16_000), 10_000
    ),
    "empty DATA frames": lambda: repeated(BODY, frame(DATA, 0, 1), 10_000_000),
    "HTTP/2 requests that the server must reset": requests_to_be_reset,
    "SETTINGS frames whose answers are not read": lambda: repeated(opening(), frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff"), 10_000_000),
    "PING frames whose answers are not read": lambda: repeated(opening(), frame(PING, 0, 0, b"resilien"), 10_000_000),
    "an extension of a chunk without end": lambda: repeated(CHUNKED + b"1;", b"a", 200_000_000),
    "chunks with an extension each": lambda: repeated(CHUNKED, b"1;" + b"a" * 40 + b"\r\n \r\n", 4_000_000),
    "trailers without end": lambda: repeated(CHUNKED + b"0\r\n", b"x: " + b"a" * 1000 + b"\r\n", 200_000),
    "requests sent ahead whose answers are not read": lambda: repeated(b"", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", 5_000_000),
}  # fmt: skip


def is_ended(connection, parts: Iterator[bytes]) -> bool:
    """Whether the server ends the connection while the parts are sent, or afterwards."""
    try:
        for part in parts:
            connection.sendall(part)
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_a_flood_ends_with_its_connection(target, bystander, record):
    """One server for all floods: whatever one of them leaves behind, the next one finds."""
    aim = target("--write-timeout", "1")
    for what, parts in FLOODS.items():
        before = aim.memory()
        with bystander(aim) as others:
            for _ in range(CONNECTIONS):
                with aim.connect() as connection:
                    assert is_ended(connection, parts()), f"{what}: the connection is still open"
            grown = aim.memory() - before
        assert grown < SLACK, f"{what}: {grown:,} bytes"
        assert not others.lost, f"{what}: {others.lost}"
        record(what, CONNECTIONS, len(others.lost), "the connection is ended")
