"""A small server on loopback with the routes of the Hub that the binary uses. It serves one model from a
folder, and lies on request."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves `folder` as the branch `main` of the model `model_id`. With `token`, only to requests that carry
    it.

    Its lies: a `commit` other than `COMMIT`; further or other `headers` in each answer about a file; `more`
    files, by name; an endless body for the file named `endless`.
    """

    def __init__(
        self,
        model_id: str,
        folder: Path,
        token: str | None = None,
        commit: str = COMMIT,
        headers: dict[str, str] | None = None,
        more: dict[str, bytes] | None = None,
        endless: str = "",
    ):
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        files |= more or {}
        over = threading.Event()
        self._over = over

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                status, own, body = self.find()
                name = self.path.removeprefix(f"/{model_id}/resolve/{COMMIT}/")
                self.send_response(status)
                if name == endless:
                    self.close_connection = True
                else:
                    own["content-length"] = str(len(body))
                for field, value in own.items():
                    self.send_header(field, value)
                self.end_headers()
                if self.command != "GET":
                    return
                self.wfile.write(body)
                while name == endless and not over.is_set():
                    self.wfile.write(b" " * (1 << 16))

            do_GET = do_HEAD = answer

            def find(self) -> tuple[int, dict[str, str], bytes]:
                path = self.path.split("?")[0].replace("%2F", "/")
                if token and self.headers["authorization"] != f"Bearer {token}":
                    return 401, {"x-error-code": "RepoNotFound"}, b"who are you?"
                if path == f"/api/models/{model_id}/revision/main":
                    siblings = [{"rfilename": name} for name in sorted(files)]
                    listing = {"id": model_id, "sha": commit, "siblings": siblings}
                    return 200, {"content-type": "application/json"}, json.dumps(listing).encode()
                name = path.removeprefix(f"/{model_id}/resolve/{COMMIT}/")
                if name in files:
                    etag = hashlib.sha256(files[name]).hexdigest()
                    return 200, {"etag": f'"{etag}"', "x-repo-commit": COMMIT} | (headers or {}), files[name]
                return 404, {"x-error-code": "RepoNotFound"}, b"nothing here"

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "FakeHub":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
