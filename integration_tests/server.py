"""Runs the real binary as a child process: starts it on a port that the system chooses, sends it requests
over HTTP, and stops it with a signal.

Input: the path of the binary in TEXT_EMBEDDINGS_ROUTER (default: the development build), a model folder and
flags. Output: `Server`, a context manager, and `refusal` for servers that must not start. Invariants: a
stopped server ends with exit code 0, none of the user's environment variables reach it, and every wait has a
limit.
"""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import requests

ROOT = Path(__file__).resolve().parent.parent
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
BINARY = Path(os.environ.get("TEXT_EMBEDDINGS_ROUTER", ROOT / "target/debug/text-embeddings-router")).resolve()
MODELS = ROOT / "integration_tests/reference/fixtures/models"
# The models of the reference, with the flags for models whose files do not tell their kind.
MODEL_FLAGS = {
    "tied-bf16": (),
    "untied-bf16-shards": ("--model-type", "listwise-reranker"),
    "tied-f32-bare": ("--model-type", "listwise-reranker"),
    "untied-f16": ("--model-type", "listwise-reranker"),
}
# The trained model inside the binary.
DEMO = "demo"
EMBEDDING_MODELS = ("embedding-last", "embedding-mean-dense")
CLASSIFIERS = ("seq-cls-1", "seq-cls-2", "seq-cls-3")
LISTEN = ("--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0")
# On a GPU, the driver compiles the kernels at the first start.
START_LIMIT = 120 if "DEVICE_IS_GPU" in os.environ else 30
ANSWER_LIMIT = 120
STOP_LIMIT = 70
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Server:
    """A running server. `model` is the name of a reference model, `DEMO` or a folder."""

    def __init__(
        self, model: str | Path, *flags: str, environment: dict[str, str] | None = None, start_limit: float = START_LIMIT
    ):
        if not BINARY.is_file():
            raise FileNotFoundError(f"{BINARY}: run `cargo build -p text-embeddings-router`, or set TEXT_EMBEDDINGS_ROUTER")
        self._log = tempfile.NamedTemporaryFile(prefix="router-", suffix=".log")
        self.process = subprocess.Popen(
            command(model, *listening(flags), *flags), stdout=self._log, stderr=self._log, env=variables(environment)
        )
        self.session = requests.Session()
        try:
            self.port = int(self.wait_for_log(r"listening on \S+:(\d+)", start_limit)[1])
            self.url = f"http://127.0.0.1:{self.port}"
            wait_until(lambda: self.get("/health").status_code == 200, start_limit, "the server is not healthy")
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        # After a failed test, the test's own error matters, not how the server ends.
        self._close() if kind else self.stop()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Asks the server to stop and checks that it ends without an error. Does nothing the second time."""
        if self._log.closed:
            return
        try:
            if self.process.poll() is None:
                self.process.send_signal(number)
            # The connection of `session` is still open: it must not delay the end.
            code = self.process.wait(STOP_LIMIT)
            log = self.log()
        finally:
            self._close()
        assert code == 0, f"exit code {code}:\n{log}"
        assert "panicked" not in log, log

    def _close(self) -> None:
        self.session.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_LIMIT)
        self._log.close()

    def raw_log(self) -> str:
        """The server's output so far."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def log_bytes(self) -> int:
        """The length of the server's output so far."""
        return Path(self._log.name).stat().st_size

    def log(self) -> str:
        """The server's output so far, without colour codes.

        A thread writes it, so an answer may come before its line: `wait_for_log` waits for a line.
        """
        return COLOURS.sub("", self.raw_log())

    def wait_for_log(self, pattern: str, limit: float) -> re.Match[str]:
        """Waits until the log has a match of `pattern`."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.log())
            assert found or self.process.poll() is None, f"the server ended:\n{self.log()}"
            return found

        return wait_until(look, limit, f"the log lacks {pattern}")

    def get(self, path: str, **options: object) -> requests.Response:
        """Sends a GET request."""
        return self.session.get(self.url + path, timeout=ANSWER_LIMIT, **options)

    def post(self, path: str, body: object = None, **options: object) -> requests.Response:
        """Sends a POST request with `body` as JSON, or with the bytes of the option `data`."""
        return self.session.post(self.url + path, json=body, timeout=ANSWER_LIMIT, **options)

    def rerank(self, query: str, texts: list[str], **fields: object) -> list[dict]:
        """The answer to a re-rank request that must succeed."""
        # A new connection, because several threads may call this at the same time.
        body = {"query": query, "texts": texts, **fields}
        answer = requests.post(f"{self.url}/rerank", json=body, timeout=ANSWER_LIMIT)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def scores(self, query: str, texts: list[str], **fields: object) -> list[float]:
        """The scores in the order of `texts`: raw scores, unless the fields say otherwise."""
        ranks = self.rerank(query, texts, **{"raw_scores": True, **fields})
        return [rank["score"] for rank in sorted(ranks, key=lambda rank: rank["index"])]

    def metrics(self, port: int | None = None) -> dict[str, float]:
        """The values of all series. A series without a value is absent."""
        text = requests.get(f"http://127.0.0.1:{port or self.port}/metrics", timeout=ANSWER_LIMIT).text
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    @property
    def grpc_address(self) -> str:
        """The address on which a server with `--grpc-port 0` listens for gRPC."""
        return self.wait_for_log(r"gRPC on (\S+:\d+)", START_LIMIT)[1]

    def peak_memory(self) -> int:
        """The server's peak resident memory so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def reset_peak(self) -> int:
        """Makes the peak the memory that is resident now, and returns it."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak_memory()


class Background:
    """Runs a call on a thread of its own. Keeps its result or exception, and the time of its end."""

    def __init__(self, call, *arguments: object, **fields: object):
        self._outcome: object = None
        self._error: BaseException | None = None
        self.ended = 0.0

        def run() -> None:
            try:
                self._outcome = call(*arguments, **fields)
            except BaseException as error:
                self._error = error
            self.ended = time.monotonic()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> object:
        """Waits for the end of the call, and returns or raises its outcome."""
        self._thread.join(ANSWER_LIMIT)
        assert not self._thread.is_alive(), "no answer in time"
        if self._error:
            raise self._error
        return self._outcome


def listening(flags: Sequence[str]) -> list[str]:
    """The flags of `LISTEN` that are not in `flags`: giving a flag twice is an error."""
    pairs = zip(LISTEN[::2], LISTEN[1::2], strict=True)
    return [part for pair in pairs if pair[0] not in flags for part in pair]


def command(model: str | Path, *flags: str) -> list[str]:
    """The command line of a server for `model`, or for the models of a file."""
    if isinstance(model, Path) and model.suffix == ".toml":
        return [str(BINARY), "--models-file", str(model), *flags]
    own = MODEL_FLAGS.get(model, ()) if isinstance(model, str) else ()
    named = model if model == DEMO else MODELS / model
    return [str(BINARY), "--model-id", str(named), *own, *flags]


def variables(extra: dict[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a server: without the user's variables, and by default in float32 with backtraces
    and without a score cache, so that a text that a test sends again is computed again. A value of None in
    `extra` removes a variable."""
    own = {"RUST_BACKTRACE": "1", "HF_HUB_OFFLINE": "1", "DTYPE": "float32", "SCORE_CACHE_BYTES": "0"}
    # A binary for GPUs needs the paths of CUDA's libraries, the choice of the card, and the driver's cache of
    # compiled kernels, which is in the home folder.
    gpu = ["LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "HOME"] if "DEVICE_IS_GPU" in os.environ else []
    kept = {name: os.environ[name] for name in ["PATH", *gpu] if name in os.environ}
    given = kept | own | (extra or {})
    return {name: value for name, value in given.items() if value is not None}


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Runs the binary and waits for its end."""
    return subprocess.run(
        [str(BINARY), *arguments], capture_output=True, text=True, timeout=START_LIMIT, env=variables(environment)
    )


def refusal(model: str | Path, *flags: str, environment: dict[str, str] | None = None) -> str:
    """The one line in which a server says why it cannot start."""
    try:
        ended = run(*command(model, *listening(flags), *flags)[1:], environment=environment)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"the server started:\n{COLOURS.sub('', (error.stdout or b'').decode())}") from None
    assert ended.returncode == 1, f"exit code {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    for output in (ended.stdout, ended.stderr):
        assert "panicked" not in output and "stack backtrace" not in output, output
    lines = ended.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), ended.stderr
    return lines[0]


def wait_until(condition, limit: float, message: str) -> object:
    """Waits until `condition` returns a true value, and returns that value."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{message} within {limit} s")
