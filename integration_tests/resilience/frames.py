"""Frames of HTTP/2 as bytes, for attacks that no library sends.

Input: types, flags, streams and payloads. Output: bytes to send on a connection. Invariants: none; the frames
may break the protocol.
"""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def opening() -> bytes:
    """The start of each connection: the preface and empty settings."""
    return PREFACE + frame(SETTINGS, 0, 0)


def text(value: bytes) -> bytes:
    """A string of HPACK, not compressed."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    length, rest = b"\x7f", len(value) - 127
    while rest >= 128:
        length, rest = length + bytes([rest % 128 + 128]), rest // 128
    return length + bytes([rest]) + value


def field(name: bytes, value: bytes, indexed: bool = False) -> bytes:
    """A header. With `indexed`, the receiver remembers it, and b"\\xbe" repeats it."""
    return (b"\x40" if indexed else b"\x00") + text(name) + text(value)


def post(path: bytes, *more: bytes) -> bytes:
    """The headers of a request."""
    own = [(b":method", b"POST"), (b":path", path), (b":scheme", b"http"), (b":authority", b"a")]
    return b"".join([*(field(*one) for one in own), field(b"content-type", b"application/json"), *more])
