"""The configuration of nginx in docs/scaling.md, in front of three real servers.

Input: the document's block; only addresses and nginx's own folders differ. What must hold: requests with an
equal `X-Query` reach the same server, all servers get requests, and a request for a server that has ended is
answered by another.
Without nginx the tests are skipped by name.
"""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import programs
import pytest
import requests
from balancer import free_ports
from document_blocks import blocks
from server import ANSWER_LIMIT, ROOT, Server, wait_until

QUERIES = [f"planet {number}" for number in range(24)]
FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with Server("demo") as one, Server("demo") as two, Server("demo") as three:
        yield [one, two, three]


@pytest.fixture(scope="module")
def nginx(servers, tmp_path_factory) -> Iterator[str]:
    """The URL of an nginx that names the server of each answer in `x-pod`."""
    (block,) = [block.text for block in blocks(ROOT / "docs/scaling.md") if "$http_x_query" in block.text]
    text = block
    for place, server in enumerate(servers, 1):
        assert f"server-{place}:8080" in text
        text = text.replace(f"server-{place}:8080", f"127.0.0.1:{server.port}")
    with running(text, tmp_path_factory.mktemp("nginx"), "add_header x-pod $upstream_addr;") as url:
        yield url


@contextmanager
def running(text: str, folder: Path, more: str = "") -> Iterator[str]:
    """The URL of an nginx with this configuration, on a port of its own. `more` is added to the server that
    listens on 8080."""
    program = programs.require("nginx")
    (port,) = free_ports(1)
    text, changes = re.subn(r"listen 8080;", f"listen 127.0.0.1:{port}; {more}", text)
    assert changes == 1
    own = "\n".join(f"{name}_temp_path {folder}/{name};" for name in FOLDERS)
    # Without this, root's nginx changes to a user who cannot write its folders.
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} pid {folder}/pid; error_log stderr; events {{}}\nhttp {{\naccess_log off;\n{own}\n{text}\n}}\n"
    )
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [program, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")], stdout=log, stderr=subprocess.STDOUT
        )

        def is_there() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with socket.socket() as stream:
                return stream.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_until(is_there, 30, "nginx does not listen")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def pods(url: str) -> dict[str, str]:
    """The server that answers each query."""
    met = {}
    for query in QUERIES:
        answer = requests.post(f"{url}/rerank", json={"query": query, "texts": ["Mars is red."]}, headers={"x-query": query}, timeout=ANSWER_LIMIT)
        assert answer.status_code == 200, answer.text
        # After a server that could not be reached, the one that answered.
        met[query] = answer.headers["x-pod"].rpartition(", ")[2]
    return met


def test_equal_queries_meet_the_same_server_and_one_may_end(nginx, servers):
    first = pods(nginx)
    assert pods(nginx) == first
    addresses = {f"127.0.0.1:{server.port}" for server in servers}
    assert set(first.values()) == addresses
    large = requests.post(f"{nginx}/rerank", json={"query": "q", "texts": ["Mars is red."], "padding": "x" * 1_900_000}, timeout=ANSWER_LIMIT)
    assert large.status_code == 200, large.text
    servers[0].stop()
    ended = f"127.0.0.1:{servers[0].port}"
    second = pods(nginx)
    assert set(second.values()) == addresses - {ended}
    # Only the queries of the server that has ended have moved.
    assert {query: pod for query, pod in second.items() if first[query] != ended} == {query: pod for query, pod in first.items() if pod != ended}
