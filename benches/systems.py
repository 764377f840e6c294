"""The systems that are compared. Each is a process that can be started, asked, paused, continued and ended.

Input: requests, {"query", "documents"}. Output: seconds and scores. Invariants: a system that is not being
asked does not run, so that one system at a time has the CPU; all have the same number of threads."""

import http.client
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Longest time until a system is ready.
START_SECONDS = 900


@dataclass(frozen=True)
class System:
    """A system to measure. `kind` is its kind of process, `detail` the variant."""

    name: str
    label: str
    kind: str
    detail: str
    workloads: tuple[str, ...] = ("W1", "W2", "W3")
    # Whether the batch size must be tried out, because the system does not choose it itself.
    batched: bool = False


SYSTEMS = [
    System("float32", "this server, float32", "server", "--dtype float32"),
    System("bfloat16", "this server, bfloat16", "server", "--dtype bfloat16"),
    System("int8", "this server, int8", "server", "--dtype int8"),
    System("bfloat16-no-cache", "this server, bfloat16, without prefix cache", "server",
           "--dtype bfloat16 --prefix-cache-bytes 0", workloads=("W2",)),
    System("transformers-float32", "transformers, float32", "transformers", "float32", batched=True),
    System("transformers-bfloat16", "transformers, bfloat16", "transformers", "bfloat16", batched=True),
    System("onnxruntime-float32", "onnxruntime, float32", "onnx", "float32", batched=True),
    System("openvino-float32", "OpenVINO, float32", "openvino", "float32", batched=True),
    System("openvino-bfloat16", "OpenVINO, bfloat16", "openvino", "bfloat16", batched=True),
    System("llama-bf16", "llama.cpp, BF16", "llama", "BF16"),
    System("llama-q8", "llama.cpp, Q8_0", "llama", "Q8_0"),
]


def machine() -> str:
    name = platform.processor() or platform.machine()
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        name = found[1] if found else name
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def commit() -> str:
    """The checked-out commit, as `git describe` names it. A kit of `scripts/gpu_kit.py` has it in a file."""
    packed = HERE.parent / "COMMIT"
    if packed.exists():
        return packed.read_text().strip()
    command = ["git", "-C", HERE, "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class Process:
    """A process that can be paused and continued by signals."""

    def __init__(self, command: list, **options):
        self.process = subprocess.Popen([str(part) for part in command], **options)

    def hold(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def release(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def memory(self) -> dict[str, int]:
        """Resident megabytes, peak (`VmHWM`) and current; empty if the system does not tell."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return {}
        fields = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
        return {field: int(re.search(rf"{field}:\s*(\d+)", status)[1]) // 1024 for field in fields}

    def stop(self) -> None:
        self.release()
        self.process.terminate()
        self.process.wait()


class Neighbours:
    """Busy processes that share the cores, as on a machine with other work."""

    def __init__(self, count: int):
        command = [sys.executable, "-c", "while True: pass"]
        self.processes = [subprocess.Popen(command) for _ in range(count)]

    def __enter__(self) -> "Neighbours":
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def cpu_seconds(process: int) -> float:
    """The time that a process has used on all processors."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The folder of the benchmark's model does not tell that it is a re-ranker.
RERANKER = ("--model-type", "listwise-reranker")


class Server(Process):
    """The binary, asked over HTTP."""

    def __init__(self, binary: Path, model: Path, flags: list[str], threads: int | None = None):
        self.log, self.connections = tempfile.NamedTemporaryFile("w+", suffix=".log"), threading.local()
        named = "--models-file" if str(model).endswith(".toml") else "--model-id"
        command = [binary, named, model, "--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0", *flags]
        command += ["--threads", threads] if threads else []
        start = time.perf_counter()
        # A variable, because earlier versions do not have the flag. Benchmarks send the same texts again.
        own = {**os.environ, "SCORE_CACHE_BYTES": "0"}
        super().__init__(command, stdout=self.log, stderr=subprocess.STDOUT, env=own)
        self.url = f"http://127.0.0.1:{self.wait_for_port(start)}"
        self.wait_until_healthy()
        self.ready_seconds = time.perf_counter() - start

    def wait_for_port(self, start: float) -> str:
        while time.perf_counter() - start < START_SECONDS:
            text = Path(self.log.name).read_text()
            if found := re.search(r"listening on \S*:(\d+)", text):
                return found[1]
            if self.process.poll() is not None:
                sys.exit(f"the server did not start:\n{text}")
            time.sleep(0.005)
        self.stop()
        sys.exit("the server was not ready in time")

    def wait_until_healthy(self) -> None:
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health"):
                    return
            except urllib.error.URLError:
                time.sleep(0.005)

    def info(self) -> dict:
        with urllib.request.urlopen(f"{self.url}/info") as answer:
            return json.load(answer)

    def ask(self, request: dict) -> tuple[float, list[float], int]:
        """Seconds, the scores in the order of the documents, and the number of prompt tokens."""
        body = json.dumps({"query": request["query"], "texts": request["documents"]}).encode()
        seconds, answer, content = self.post("/rerank", body)
        scores = [rank["score"] for rank in sorted(content, key=lambda rank: rank["index"])]
        return seconds, scores, int(answer.headers["x-compute-tokens"])

    def post(self, path: str, body: bytes) -> tuple[float, http.client.HTTPResponse, list]:
        """Seconds, and the answer. Each thread keeps its connection, unless the server closes it."""
        for is_last in (False, True):
            connection = getattr(self.connections, "own", None)
            start = time.perf_counter()
            try:
                if connection is None:
                    connection = self.connections.own = http.client.HTTPConnection(self.url.removeprefix("http://"))
                connection.request("POST", path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                content = json.load(answer)
                seconds = time.perf_counter() - start
            except (http.client.RemoteDisconnected, ConnectionError):
                self.connections.own = None
                if is_last:
                    raise
                continue
            if answer.status != HTTPStatus.OK:
                raise RuntimeError(f"{path}: {answer.status} {content}")
            return seconds, answer, content
        raise AssertionError("the last try returns or raises")

    def rerank(self, request: dict) -> dict:
        seconds, scores, _ = self.ask(request)
        return {"seconds": seconds, "scores": scores}


class Peer(Process):
    """The process of a peer, asked over its standard input."""

    def __init__(self, python: Path, script: str, arguments: list, threads: int):
        start = time.perf_counter()
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
                                    "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        super().__init__([python, HERE / script, *arguments, threads], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=self.log, text=True, env=environment)
        self.read()
        self.ready_seconds = time.perf_counter() - start

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[1]} ended:\n{Path(self.log.name).read_text()[-2000:]}")
        return json.loads(line)

    def rerank(self, request: dict) -> dict:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()
