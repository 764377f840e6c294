"""`--backend python` without PyTorch: workers that die, hang or send nonsense, and the limits of the real
worker.

The values of a faulty worker prove nothing; `test_python_backend_values.py` tests values.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import models
import pytest
from python_backend import SERVED, WORKER, embedded, faulty, killed_under_load, refused, started, wait_for_end
from server import MODELS, Server, refusal


def faulty_server(python: Path, *flags: str) -> Server:
    """A server with a faulty worker, whose vectors have two values."""
    return Server("embedding-mean-dense", "--backend", "python", "--python", str(python), *flags)


def test_a_worker_that_is_killed_costs_its_batch_and_no_other(tmp_path: Path) -> None:
    python = faulty(tmp_path, "right")
    with faulty_server(python, "--max-batch-requests", "4") as server:
        killed_under_load(server, started(python)[-1])
        assert len(started(python)) == 2


def test_a_worker_that_hangs_is_killed_before_the_device_counts_as_hung(tmp_path: Path) -> None:
    python = faulty(tmp_path, "right")
    with faulty_server(python, "--device-timeout", "5") as server:
        os.kill(started(python)[-1], signal.SIGSTOP)
        answer = server.post("/embed", {"inputs": "a"})
        assert answer.status_code == 424 and "did not finish the batch in time" in answer.json()["error"], answer.text
        assert embedded(server, ["a"])
        assert "the device has computed one batch for" not in server.log()
        assert server.get("/health").status_code == 200


def test_a_batch_that_does_not_fit_is_computed_in_halves(tmp_path: Path) -> None:
    right, small = faulty(tmp_path, "right"), faulty(tmp_path, "small")
    texts = ["a b c d"] * 3
    with faulty_server(right) as server:
        expected = embedded(server, texts)
    # This worker's device takes two texts of one length at a time. On a busy machine the texts of a request
    # may come too late for one batch. Then they are sent again.
    with faulty_server(small) as server:
        for _ in range(20):
            assert embedded(server, texts) == expected
            if "te_batch_out_of_memory" in server.get("/metrics").text:
                break
        assert "te_batch_out_of_memory 1\n" in server.get("/metrics").text
        server.wait_for_log("2 GiB are missing", 10)
        assert server.log().count("the batch is computed again in two halves") == 1
        assert server.get("/health").status_code == 200
        for _ in range(20):
            answer = server.post("/embed", {"inputs": texts * 3})
            if answer.status_code != 200:
                break
        error = "out of memory on the device: lower `--max-batch-tokens`"
        assert answer.status_code == 424 and error in answer.json()["error"], answer.text
        assert embedded(server, texts) == expected


def test_a_worker_that_cannot_start_again_makes_the_server_unhealthy(tmp_path: Path) -> None:
    python = faulty(tmp_path, "once")
    with faulty_server(python) as server:
        os.kill(started(python)[-1], signal.SIGKILL)
        wait_for_end(started(python)[-1], 60)
        answer = server.post("/embed", {"inputs": "a"})
        assert answer.status_code == 424 and "no module named x" in answer.json()["error"], answer.text
        assert server.get("/health").status_code == 503
        assert len(started(python)) <= 4, "the worker is started again and again"


def test_the_worker_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    python = faulty(tmp_path, "right")
    server = faulty_server(python)
    server.process.kill()
    wait_for_end(started(python)[-1], 60)
    server._close()


def test_settings_and_models_that_cannot_be_served_are_refused_by_name(tmp_path: Path) -> None:
    python = str(faulty(tmp_path, "right"))
    table = {
        ("--python", "no-such-python"): ["`no-such-python` was not found", "`--python`"],
        ("--python", str(faulty(tmp_path, "exits"))): ["no module named x"],
        ("--python", python, "--dtype", "int8"): ["--dtype int8", "--backend python", "bfloat16"],
        ("--python", python, "--pooling", "cls"): ["--pooling", "modules.json"],
        ("--python", python, "--dense-path", "2_Dense"): ["--dense-path", "candle"],
        ("--python", python, "--pin-threads"): ["--pin-threads", "candle"],
    }
    for flags, parts in table.items():
        message = refused(*flags)
        assert all(part in message for part in parts), (flags, message)
    for model, part in [("tied-bf16", "generative"), (SERVED / "bert-splade-saved", "SPLADE")]:
        message = refused("--python", python, model=model)
        assert part in message and "--backend python" in message, message
    for flags in [("--python", python), ("--trust-remote-code",)]:
        message = refusal("embedding-mean-dense", *flags)
        assert flags[0] in message and "`--backend python`" in message, message


class Worker:
    """The real worker, with the test in place of the router."""

    def __init__(self, python: str = sys.executable):
        ours, theirs = socket.socketpair()
        program = WORKER.read_bytes()
        bootstrap = "import sys; exec(compile(open(0, 'rb', closefd=False).read(int(sys.argv[1])), 'worker.py', 'exec'))"
        self.process = subprocess.Popen(
            [python, "-c", bootstrap, str(len(program))], stdin=theirs.fileno(), stderr=subprocess.PIPE, text=True
        )
        theirs.close()
        self.link = ours
        self.link.settimeout(60)
        self.link.sendall(program)
        assert self.receive()["kind"] == "hello"

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        # Without a router, the worker must end, whatever happened before.
        self.process.wait(60)
        self.process.stderr.close()

    def receive(self) -> dict:
        lengths = self.link.recv(8, socket.MSG_WAITALL)
        assert len(lengths) == 8, self.process.stderr.read()
        header, payload = struct.unpack("<II", lengths)
        assert payload == 0
        return json.loads(self.link.recv(header, socket.MSG_WAITALL))

    def load(self, folder: Path, trust: bool = False) -> str:
        """The reason for which the worker refuses a folder."""
        fields = {"dtype": "float32", "threads": 1, "pooling": None, "probes": []}
        header = {"kind": "load", "model": str(folder), "task": "embedding", "trust_remote_code": trust, **fields}
        text = json.dumps(header).encode()
        self.link.sendall(struct.pack("<II", len(text), 0) + text)
        answer = self.receive()
        assert answer["kind"] == "refused", answer
        return answer["reason"]


def test_it_ends_when_its_router_does() -> None:
    with Worker() as worker:
        pass
    assert worker.process.returncode == 0


@pytest.mark.parametrize(
    "data",
    [struct.pack("<II", 1 << 31, 0), struct.pack("<II", 2, 0xFFFFFFFF), struct.pack("<II", 5, 0) + b"hello",
     struct.pack("<II", 16, 0) + b'{"kind": "nine"}'],
)
def test_a_broken_frame_ends_it_before_it_takes_memory(data: bytes) -> None:
    with Worker() as worker:
        worker.link.sendall(data)
        assert worker.process.wait(60) == 1
        assert "the router" in worker.process.stderr.read()


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    with Worker() as worker:
        message = worker.load(MODELS / "embedding-mean-dense")
    assert "`sentence_transformers` is missing" in message, message
    assert f"{sys.executable} -m pip install torch sentence-transformers" in message and "`--python`" in message


def test_foreign_classes_are_refused_before_anything_is_imported(tmp_path: Path) -> None:
    root = models.copy("embedding-mean-dense", tmp_path)
    table = {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}],
        "2_Dense/config.json": {"activation_function": "os.abort"},
        "2_Dense/router_config.json": {"types": {"query_0": "here.Transformer"}},
        "config.json": {"sentence_transformers": {"activation_fn": "os.abort"}},
        "config_sentence_transformers.json": {"activation_fn": "torch.hub.load"},
    }
    for name, content in table.items():
        path = root / name
        before = path.read_bytes() if path.exists() else None
        path.write_text(json.dumps(content))
        with Worker() as worker:
            message = worker.load(root)
            assert "--trust-remote-code" in message and "is not run" in message, message
            assert "is missing" in worker.load(root, trust=True)
        path.unlink() if before is None else path.write_bytes(before)
    with Worker() as worker:
        assert "is missing" in worker.load(root)
    (root / "modules.json").write_text(json.dumps([{"path": "../other", "type": "sentence_transformers.models.Pooling"}]))
    with Worker() as worker:
        assert "not in the model's folder" in worker.load(root)
