"""A small server on loopback that speaks the Hub's routes as the binary uses them, for one model out of a folder."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves `folder` as the model `model_id`, whose branch is `main`, to whoever has the token if there is one."""

    def __init__(self, model_id: str, folder: Path, token: str | None = None):
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                status, headers, body = self.find()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_GET = do_HEAD = answer

            def find(self) -> tuple[int, dict[str, str], bytes]:
                path = self.path.split("?")[0].replace("%2F", "/")
                if token and self.headers["authorization"] != f"Bearer {token}":
                    return 401, {"x-error-code": "RepoNotFound"}, b"who are you?"
                if path == f"/api/models/{model_id}/revision/main":
                    siblings = [{"rfilename": name} for name in sorted(files)]
                    listing = {"id": model_id, "sha": COMMIT, "siblings": siblings}
                    return 200, {"content-type": "application/json"}, json.dumps(listing).encode()
                name = path.removeprefix(f"/{model_id}/resolve/{COMMIT}/")
                if name in files:
                    etag = hashlib.sha256(files[name]).hexdigest()
                    return 200, {"etag": f'"{etag}"', "x-repo-commit": COMMIT}, files[name]
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
        self._server.shutdown()
        self._server.server_close()
