"""The target of the attacks: the real binary on loopback, or a deployment of the user's own.

Input: flags of a server, or environment variables: RESILIENCE_URL (`https://host:port`) names a deployment,
RESILIENCE_GRPC (`host:port`) its gRPC port, RESILIENCE_KEY its API key. Output: `Target`, and `Bystander`, a
well-behaved client that counts its lost requests. Invariants: against a deployment, a test that needs flags
or the server's process is skipped and says why; every wait has a limit.
"""

import os
import re
import socket
import ssl
import statistics
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from server import ANSWER_LIMIT, Server

URL = os.environ.get("RESILIENCE_URL", "").rstrip("/")
GRPC = os.environ.get("RESILIENCE_GRPC", "")
KEY = os.environ.get("RESILIENCE_KEY", "")
# Seconds after which a socket of an attack stops waiting.
SOCKET_LIMIT = 30
# A small request for each `model_type` of `/info`.
SMALL = {
    "reranker": ("/rerank", {"query": "red planet", "texts": ["Mars is red.", "Bread is baked."]}),
    "embedding": ("/embed", {"inputs": "Mars is red."}),
    "classifier": ("/predict", {"inputs": "Mars is red."}),
}


class Target:
    """A server to attack. `server` is its process, or None for a deployment."""

    def __init__(self, server: Server | None, key: str = ""):
        self.server = server
        self.key = key
        self.url = server.url if server else URL
        parts = urlsplit(self.url)
        self.host, self.is_tls = parts.hostname, parts.scheme == "https"
        self.port = parts.port or (443 if self.is_tls else 80)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a client that has the key."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def grpc_address(self) -> str:
        """`host:port` for gRPC. The test is skipped if the deployment's is not known."""
        if self.server:
            return self.server.grpc_address
        if not GRPC:
            pytest.skip("RESILIENCE_GRPC is not set: the deployment's gRPC port is not known")
        return GRPC

    def process(self, what: str) -> Server:
        """The server's process. For a deployment the test is skipped, because `what` is unknown."""
        if self.server is None:
            pytest.skip(f"RESILIENCE_URL is set: {what} can only be read from a process that the test started")
        return self.server

    def memory(self) -> int:
        """Resident memory now, in bytes."""
        return self._status("VmRSS") * 1024

    def threads(self) -> int:
        """The number of threads of the process."""
        return self._status("Threads")

    def descriptors(self) -> int:
        """The number of open descriptors of the process."""
        pid = self.process("descriptors").process.pid
        return len(os.listdir(f"/proc/{pid}/fd"))

    def _status(self, name: str) -> int:
        pid = self.process(name).process.pid
        return int(re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])

    def connect(self, port: int | None = None, receive_buffer: int | None = None) -> socket.socket:
        """A new connection. With a small `receive_buffer`, an unread answer soon fills it."""
        connection = socket.socket(socket.AF_INET)
        connection.settimeout(SOCKET_LIMIT)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect((self.host, port or self.port))
        if not self.is_tls or port:
            return connection
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(connection, server_hostname=self.host)

    def post(self, path: str, body: object, **options: object) -> requests.Response:
        """POSTs JSON on a new connection, with the key."""
        headers = self.headers | options.pop("headers", {})
        return requests.post(self.url + path, json=body, headers=headers, timeout=ANSWER_LIMIT, verify=False, **options)

    def small(self) -> tuple[str, dict]:
        """Path and body of a request that takes almost no time to compute."""
        info = requests.get(f"{self.url}/info", headers=self.headers, timeout=ANSWER_LIMIT, verify=False).json()
        return SMALL[next(kind for kind in SMALL if kind in info["model_type"])]

    def is_alive(self) -> bool:
        """Whether the server answers a small request, and its process has not ended."""
        path, body = self.small()
        ended = self.server is not None and self.server.process.poll() is not None
        return not ended and self.post(path, body).status_code == 200


class Bystander:
    """Sends small requests on new connections, one after the other, while an attack runs."""

    def __init__(self, target: Target, pause: float = 0.02):
        self._target, self._pause = target, pause
        self._path, self._body = target.small()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.seconds: list[float] = []
        self.lost: list[str] = []

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(ANSWER_LIMIT)
        assert not self._thread.is_alive(), "a small request was not answered in time"

    def _ask(self) -> None:
        while not self._over.is_set():
            start = time.monotonic()
            try:
                answer = self._target.post(self._path, self._body)
                if answer.status_code != 200:
                    self.lost.append(f"{answer.status_code} {answer.text[:200]}")
            except requests.RequestException as error:
                self.lost.append(repr(error)[:200])
            self.seconds.append(time.monotonic() - start)
            self._over.wait(self._pause)

    @property
    def asked(self) -> int:
        """The number of requests sent."""
        return len(self.seconds)

    @property
    def median(self) -> float:
        """The median time to an answer, in seconds."""
        return statistics.median(self.seconds)


def head(path: str, length: int, *lines: str, method: str = "POST") -> bytes:
    """A request's head for a body of `length` bytes."""
    own = [f"{method} {path} HTTP/1.1", "Host: resilience", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*own, *lines, "", ""]).encode()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection. Reads and discards its remaining output."""
    connection.settimeout(0.001)
    try:
        while connection.recv(1 << 16):
            pass
    except (TimeoutError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True


def read_answer(connection: socket.socket) -> bytes:
    """The server's output until it closes the connection, or until it pauses for SOCKET_LIMIT seconds."""
    received = b""
    try:
        while part := connection.recv(1 << 16):
            received += part
    except OSError:
        pass
    return received
