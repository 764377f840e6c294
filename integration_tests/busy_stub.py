"""A server that first gives a list of refusals, and then passes every request on to the real server.

Input: the real server, and status and headers of each refusal. Output: `Stub`, a context manager with a `url`
and the bodies of all `requests` that it received. Invariants: the bodies of its 429 and 503 equal the real
server's.
"""

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import requests
from server import ANSWER_LIMIT, Server

BODIES = {
    429: b'{"error":"Model is overloaded","error_type":"Overloaded"}',
    503: b'{"error":"the server is stopping: send requests elsewhere","error_type":"Unhealthy"}',
    502: b"<html>Bad Gateway</html>",
}


class Stub:
    """Answers the first requests with `refusals`, in order, and forwards all later ones to `server`."""

    def __init__(self, server: Server, refusals: Sequence[tuple[int, dict[str, str]]]):
        self.requests: list[bytes] = []
        left = list(refusals)
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stub.requests.append(body)
                if left:
                    status, headers = left.pop(0)
                    self.answer(status, headers, BODIES[status])
                else:
                    given = {name: self.headers[name] for name in ("Content-Type", "Authorization")}
                    answer = requests.post(server.url + self.path, data=body, headers=given, timeout=ANSWER_LIMIT)
                    self.answer(answer.status_code, {"Content-Type": "application/json"}, answer.content)

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Stub":
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
