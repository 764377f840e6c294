"""TLS, the Unix socket, keys from a file, and their reload; routes that need the key; shutdown."""

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

import grpc
import pytest
import requests
from grpc_client import messages, stubs
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from server import START_LIMIT, command, refusal, run, variables, wait_until

CERTIFICATES = Path(__file__).parent / "certificates"
BODY = {"query": "red planet", "texts": ["Mars is red.", "Bread is baked."]}


@pytest.fixture
def certificate(tmp_path):
    """Copies a certificate and its key to the paths that the server reads, and returns these paths."""

    def put(name: str) -> tuple[str, str]:
        for ending in ("pem", "key"):
            shutil.copy(CERTIFICATES / f"{name}.{ending}", tmp_path / f"server.{ending}")
        return str(tmp_path / "server.pem"), str(tmp_path / "server.key")

    return put


class Tls:
    """A server with TLS. `Server` cannot be used: it checks the server's health over plain HTTP."""

    def __init__(self, *flags: str):
        self._log = tempfile.NamedTemporaryFile(prefix="tls-", suffix=".log")
        listen = ("--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0", "--grpc-port", "0")
        self.process = subprocess.Popen(
            command("tied-bf16", *listen, *flags), stdout=self._log, stderr=self._log, env=variables()
        )

    def __enter__(self) -> "Tls":
        pattern = re.compile(r"listening on 127\.0\.0\.1:(\d+), gRPC on 127\.0\.0\.1:(\d+)")
        found = wait_until(lambda: pattern.search(self.log()), START_LIMIT, "the server does not start")
        self.port, self.grpc_port = int(found[1]), int(found[2])
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(START_LIMIT) == 0, self.log()
        finally:
            self.process.kill()
            self._log.close()

    def log(self) -> str:
        return Path(self._log.name).read_text(encoding="utf-8")

    def rerank(self, certificate: str) -> list:
        answer = requests.post(f"https://localhost:{self.port}/rerank", json=BODY, verify=certificate, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def rerank_over_grpc(self, certificate: str) -> list:
        credentials = grpc.ssl_channel_credentials(Path(certificate).read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(f"localhost:{self.grpc_port}", credentials, options) as channel:
            return list(stubs.RerankStub(channel).Rerank(messages.RerankRequest(**BODY), timeout=60).ranks)


def test_http_and_grpc_over_tls_and_a_new_certificate(certificate, record):
    first, second = (str(CERTIFICATES / f"{name}.pem") for name in ("first", "second"))
    paths = certificate("first")
    with Tls("--tls-cert", paths[0], "--tls-key", paths[1], "--header-timeout", "1") as server:
        ranks = server.rerank(first)
        assert [rank["index"] for rank in ranks] == [rank.index for rank in server.rerank_over_grpc(first)]
        with pytest.raises(requests.exceptions.SSLError):
            server.rerank(second)
        with pytest.raises(requests.exceptions.ConnectionError):
            requests.get(f"http://localhost:{server.port}/health", timeout=60)
        for address in (("--port", str(server.port)), ("--url", f"https://127.0.0.1:{server.port}")):
            ended = run("health", *address, "--tls-cert", paths[0])
            assert ended.returncode == 0, ended.stderr
        # Over TLS, the server also offers HTTP/2.
        context = ssl.create_default_context(cafile=first)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with socket.create_connection(("localhost", server.port)) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as encrypted:
                assert encrypted.selected_alpn_protocol() == "h2"
        with socket.create_connection(("localhost", server.port)) as silent:
            silent.settimeout(30)
            assert silent.recv(100) == b"", "the connection is not closed although no handshake comes"
        with socket.create_connection(("localhost", server.port)) as slow:
            slow.settimeout(0.1)
            hello = iter(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
            wait_until(lambda: is_closed_after(slow, next(hello)), 30, "a handshake of a byte every 0.1 s is not ended")

        kept = requests.Session()
        # Without trust_env, a certificate bundle named in the environment would replace `verify`.
        kept.verify, kept.trust_env = first, False
        assert kept.get(f"https://localhost:{server.port}/health", timeout=60).status_code == 200
        # Unusable files change nothing.
        Path(paths[0]).write_text("no certificate")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old state stays in force" in server.log(), 10, "the log does not mention the unusable certificate")
        server.rerank(first)
        certificate("second")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the certificate changed" in server.log(), 10, "the server does not read the new certificate")
        assert server.rerank(second) == ranks
        assert len(server.rerank_over_grpc(second)) == 2
        assert kept.get(f"https://localhost:{server.port}/health", timeout=60).status_code == 200
    record("TLS certificates that are replaced by an unusable one, then by another", 2, 0, "open connections stay")
    record("TLS handshakes that never come, or a byte at a time", 2, 0, "closed when their time is up")


def is_closed_after(connection: socket.socket, byte: int) -> bool:
    """Whether the server has closed a connection, after one more byte."""
    try:
        connection.sendall(bytes([byte]))
        # Anything that comes before the end is an alert.
        return connection.recv(100) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_tls_files_that_cannot_be_used_keep_the_server_from_starting(certificate):
    cert, key = certificate("first")
    about = f"`--tls-cert {cert}` and `--tls-key {CERTIFICATES / 'second.key'}` cannot be used"
    assert about in refusal("tied-bf16", "--tls-cert", cert, "--tls-key", str(CERTIFICATES / "second.key"))
    assert "`--tls-key /nowhere` cannot be read" in refusal("tied-bf16", "--tls-cert", cert, "--tls-key", "/nowhere")
    ended = run(*command("tied-bf16", "--tls-cert", cert)[1:])
    assert ended.returncode == 2 and "--tls-key" in ended.stderr


def test_a_unix_socket_is_listened_on_too(target, tmp_path):
    path = tmp_path / "router.sock"
    aim = target("--uds-path", str(path), "--api-key", "k3y")
    expected = aim.post("/rerank", BODY).json()

    def ask(key: str) -> tuple[bytes, bytes]:
        body = json.dumps(BODY)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(path))
            lines = ["POST /rerank HTTP/1.1", "Host: a", f"Authorization: Bearer {key}", f"Content-Length: {len(body)}"]
            connection.sendall("\r\n".join([*lines, "Connection: close", "", body]).encode())
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
        head, _, rest = answer.partition(b"\r\n\r\n")
        return head.split(b"\r\n")[0], rest

    status, answer = ask("k3y")
    assert status == b"HTTP/1.1 200 OK" and json.loads(answer) == expected
    assert ask("other")[0] == b"HTTP/1.1 401 Unauthorized"
    assert "another process does" in refusal("tied-bf16", "--uds-path", str(path))
    aim.server.stop()
    assert not path.exists(), "the socket file is still there"
    text = tmp_path / "text"
    text.write_text("mine")
    assert "not a socket" in refusal("tied-bf16", "--uds-path", str(text)) and text.read_text() == "mine"


def test_keys_of_a_file_change_on_sighup(target, tmp_path, bystander, record):
    path = tmp_path / "keys"
    path.write_text("# for the search\nsearch\nold\n")
    aim = target("--api-key", "flag", "--api-key-file", str(path), "--grpc-port", "0")

    def passes(key: str) -> bool:
        over_http = requests.post(
            f"{aim.url}/rerank", json=BODY, headers={"Authorization": f"Bearer {key}"}, timeout=60
        )
        with grpc.insecure_channel(aim.grpc_address) as channel:
            metadata = [("authorization", f"Bearer {key}")]
            try:
                stubs.InfoStub(channel).Info(messages.InfoRequest(), metadata=metadata, timeout=60)
                over_grpc = True
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAUTHENTICATED
                over_grpc = False
        assert over_http.status_code in (200, 401) and (over_http.status_code == 200) == over_grpc
        return over_grpc

    def in_force() -> set[str]:
        return {key for key in ("flag", "search", "old", "new", "# for the search") if passes(key)}

    assert in_force() == {"flag", "search", "old"}
    with bystander(aim) as others:
        path.write_text("search\nnew\n")
        aim.server.process.send_signal(signal.SIGHUP)
        aim.server.wait_for_log("the keys changed", 10)
        assert in_force() == {"flag", "search", "new"}
        path.write_text("")
        aim.server.process.send_signal(signal.SIGHUP)
        aim.server.wait_for_log("holds no key", 10)
        assert in_force() == {"flag", "search", "new"}
    assert not others.lost, others.lost
    assert "new" not in aim.server.log().replace("new state", ""), "a key is in the log"
    record("files of keys that change while requests run", 2, len(others.lost), "an empty one leaves the old keys")


def test_the_key_can_be_wanted_everywhere_but_for_probes(target):
    open_paths = ["/metrics", "/docs/", "/api-doc/openapi.json", "/playground"]
    probes = ["/health", "/health/live", "/health/ready", "/ping", "/"]
    for flags, expected in [((), 200), (("--api-key-everywhere",), 401)]:
        aim = target("--api-key", "k3y", "--grpc-port", "0", *flags)
        for path in open_paths:
            assert requests.get(aim.url + path, timeout=60).status_code == expected, path
            assert requests.get(aim.url + path, headers=aim.headers, timeout=60).status_code == 200, path
        for path in probes:
            assert requests.get(aim.url + path, timeout=60).status_code == 200, path
        port = aim.server.wait_for_log(r"metrics are served on port (\d+)", 10)[1]
        metrics = f"http://127.0.0.1:{port}/metrics"
        assert requests.get(metrics, timeout=60).status_code == expected
        assert requests.get(metrics, headers=aim.headers, timeout=60).status_code == 200
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        with grpc.insecure_channel(aim.grpc_address) as channel:
            ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
            keyed = ask(iter([question]), metadata=[("authorization", "Bearer k3y")], timeout=60)
            assert len(next(keyed).list_services_response.service) > 3
            if flags:
                with pytest.raises(grpc.RpcError, match="No valid auth token"):
                    next(ask(iter([question]), timeout=60))
            else:
                next(ask(iter([question]), timeout=60))
    assert "needs a key" in refusal("tied-bf16", "--api-key-everywhere")


@pytest.mark.parametrize("flags", [(), ("--shutdown-delay", "2")])
def test_idle_connections_do_not_delay_the_end(target, record, flags):
    aim = target(*flags)
    connections = [aim.connect() for _ in range(50)]
    for index, connection in enumerate(connections):
        connection.sendall([b"", b"POST / HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"][index % 3])
    assert aim.is_alive()
    start = time.monotonic()
    aim.server.stop()
    took = time.monotonic() - start
    assert took < 15, f"the end took {took} s; a drain lasts 25 s"
    for connection in connections:
        connection.close()
    record(f"idle connections and half-sent heads at the end{' (`--shutdown-delay`)' if flags else ''}", 50, 0, "closed first")
