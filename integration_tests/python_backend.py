"""Helpers for the tests of the Python backend: the interpreter, references by sentence-transformers, faulty
workers.

Input: PYTHON_BACKEND_PYTHON names an interpreter with torch and sentence-transformers. Output: `INTERPRETER`,
empty without it; `ask` runs a program in it.
"""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import requests
from server import COLOURS, ROOT, Server, command, listening, variables, wait_until

INTERPRETER = os.environ.get("PYTHON_BACKEND_PYTHON", "")
WORKER = ROOT / "backends/python/src/worker.py"
FAULTY = ROOT / "backends/python/tests/faulty_worker.py"
SERVED = ROOT / "integration_tests/reference/fixtures/served"
# The worker imports packages of several hundred megabytes, perhaps while other programs compile.
TORCH_LIMIT = 300
TOLERANCE = 1e-5
TEXTS = [
    "Bread is baked from flour, water, yeast and salt.",
    "a",
    "What is the capital of China? " * 12,
    "Der Mars ist rot. 정원에 꽃이 핀다.",
    "Is the red planet Mars?",
]


def torch_server(model: str | Path, *flags: str, environment: dict[str, str | None] | None = None) -> Server:
    """A server whose Python worker has PyTorch."""
    flags = ("--backend", "python", "--python", INTERPRETER, *flags)
    return Server(model, *flags, environment=environment, start_limit=TORCH_LIMIT)


def ask(program: str, **values: object) -> object:
    """Runs `program` with the variables `values` in the interpreter with PyTorch; returns its `answer`."""
    lines = ["import json, sys", "globals().update(json.load(sys.stdin))", program, "print(json.dumps(answer))"]
    environment = {"PATH": os.environ.get("PATH", ""), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run(
        [INTERPRETER, "-c", "\n".join(lines)],
        input=json.dumps(values), capture_output=True, text=True, timeout=TORCH_LIMIT, env=environment,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def faulty(folder: Path, mode: str) -> Path:
    """Writes the faulty worker as an interpreter whose file name, `mode`, tells it what to do wrong."""
    python = folder / mode
    python.write_text("#!/usr/bin/env python3\n" + FAULTY.read_text())
    python.chmod(0o700)
    return python


def started(python: Path) -> list[int]:
    """The process ids that a faulty worker has had, in order."""
    path = python.with_name(python.name + ".pids")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def children(pid: int) -> list[int]:
    """The running child processes of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if is_running(child)]


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pid: int, limit: float) -> None:
    """Waits until a process has ended."""
    wait_until(lambda: not is_running(pid), limit, f"process {pid} has not ended")


def refused(*flags: str, model: str | Path = "embedding-mean-dense", limit: float = 60) -> str:
    """The last line that a server with `--backend python` prints when it cannot start."""
    flags = ("--backend", "python", *flags)
    arguments = command(model, *listening(flags), *flags)
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=limit, env=variables())
    assert ended.returncode == 1 and "panicked" not in ended.stderr, ended.stderr
    return COLOURS.sub("", ended.stderr.splitlines()[-1])


def close(found: object, expected: object) -> None:
    """Checks that values differ by at most `TOLERANCE`, relative to the largest value if that is above 1."""
    found, expected = numpy.array(found, dtype=float), numpy.array(expected, dtype=float)
    assert found.shape == expected.shape
    assert numpy.abs(found - expected).max() <= TOLERANCE * max(1, numpy.abs(expected).max())


def embedded(server: Server, texts: list[str]) -> list[list[float]]:
    """The vectors of texts, not normalised."""
    answer = server.post("/embed", {"inputs": texts, "normalize": False})
    assert answer.status_code == 200, answer.text
    return answer.json()


def killed_under_load(server: Server, worker: int) -> None:
    """Kills a worker while it computes. The requests of its batch must fail, and all others must be answered.
    The server must have `--max-batch-requests 4`."""
    count, expected = 12, embedded(server, TEXTS[:1])
    before = arrived(server)

    def post(_: int) -> requests.Response:
        body = {"inputs": TEXTS[0], "normalize": False}
        return requests.post(f"{server.url}/embed", json=body, timeout=TORCH_LIMIT)

    def waiting() -> int:
        """The number of queued texts, or 0 until all requests have arrived and a batch is computed."""
        seen = int(server.metrics().get("te_queue_size", 0))
        time.sleep(0.3)
        is_steady = int(server.metrics().get("te_queue_size", 0)) == seen and arrived(server) == before + count
        return seen if is_steady and seen < count else 0

    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(post, number) for number in range(count)]
        left = wait_until(waiting, TORCH_LIMIT, "the requests do not wait")
        os.kill(worker, signal.SIGKILL)
        answers = [answer.result() for answer in answers]
    failed = [answer for answer in answers if answer.status_code != 200]
    assert len(failed) == count - left and 1 <= len(failed) <= 4, (left, [answer.text for answer in failed])
    for answer in answers:
        if answer in failed:
            assert answer.status_code == 424, answer.text
            assert "ended while it computed the batch: signal: 9" in answer.json()["error"], answer.text
        else:
            close(answer.json(), expected)
    assert server.get("/health").status_code == 200


def arrived(server: Server) -> int:
    """The number of requests that have arrived so far."""
    return int(sum(value for name, value in server.metrics().items() if name.startswith("te_request_count{")))
