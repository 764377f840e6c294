"""Runs HAProxy with the configuration of deploy/haproxy in front of real servers on this machine.

Input: the addresses of the servers, which may start later. Output: `Balancer`, with the addresses of its
frontends and the state of each server. Invariants: only the servers' addresses and the ports differ from
deploy/haproxy/haproxy.cfg.
"""

import re
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import programs
import requests
from server import ROOT, wait_until

CONFIGURATION = ROOT / "deploy/haproxy/haproxy.cfg"


def free_ports(number: int) -> list[int]:
    """Ports on which no process listens now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [open_socket.getsockname()[1] for open_socket in sockets]
    for open_socket in sockets:
        open_socket.close()
    return ports


class Balancer:
    """A running HAProxy. `servers` holds an HTTP port and a gRPC port (0 without gRPC) for each server;
    `changes` maps texts of the configuration to their replacements."""

    def __init__(self, servers: Sequence[tuple[int, int]], changes: dict[str, str] | None = None):
        program = programs.require("haproxy")
        self.http_port, self.grpc_port, self._state_port = free_ports(3)
        text = CONFIGURATION.read_text()
        for old, new in (changes or {}).items():
            assert old in text, old
            text = text.replace(old, new)
        text = re.sub(r"resolvers cluster\n(    .*\n)+", "", text)

        def lines(found: re.Match[str]) -> str:
            options = found[2].replace("resolvers cluster init-addr none", "")
            column = 0 if found[1] == "8080" else 1
            rows = (
                f"    server pod{place} 127.0.0.1:{ports[column]} {options.replace('check port 8080', f'check port {ports[0]}')}"
                for place, ports in enumerate(servers, 1)
            )
            return "\n".join(rows)

        text = re.sub(r' +server-template pod 1-32 "\$\{SERVERS\}:(\d+)" (.*)', lines, text)
        text = text.replace("bind :8080", f"bind 127.0.0.1:{self.http_port}").replace("bind :8081", f"bind 127.0.0.1:{self.grpc_port}")
        text += f"\nfrontend state\n    bind 127.0.0.1:{self._state_port}\n    stats enable\n    stats uri /state\n"
        self._folder = tempfile.TemporaryDirectory(prefix="haproxy-")
        path = Path(self._folder.name)
        (path / "haproxy.cfg").write_text(text)
        self._log = (path / "log").open("w+")
        self._process = subprocess.Popen(
            [program, "-db", "-f", str(path / "haproxy.cfg")], stdout=self._log, stderr=subprocess.STDOUT
        )
        self.url = f"http://127.0.0.1:{self.http_port}"

    def __enter__(self) -> "Balancer":
        def is_there() -> bool:
            assert self._process.poll() is None, self.log()
            with socket.socket() as stream:
                return stream.connect_ex(("127.0.0.1", self._state_port)) == 0

        wait_until(is_there, 30, "HAProxy does not listen")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
        self._folder.cleanup()

    def log(self) -> str:
        """The output of HAProxy so far."""
        self._log.seek(0)
        return self._log.read()

    def states(self, backend: str = "http_rerank") -> dict[str, str]:
        """The state of each server, such as `UP` or `DOWN`."""
        answer = requests.get(f"http://127.0.0.1:{self._state_port}/state;csv", timeout=30).text
        rows = [row.split(",") for row in answer.splitlines() if row.startswith(f"{backend},pod")]
        return {row[1]: row[17].split()[0] for row in rows}

    def wait_for(self, *up: int, backend: str = "http_rerank") -> None:
        """Waits until exactly these servers, counted from 1, are up."""
        wanted = {f"pod{place}" for place in up}

        def is_so() -> bool:
            return {name for name, state in self.states(backend).items() if state == "UP"} == wanted

        wait_until(is_so, 60, f"not {wanted} are up")
