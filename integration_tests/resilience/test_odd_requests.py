"""Small requests that ask for much, and requests that hardly any client sends: one sentence for each."""

import gzip
import json
import re
import time

import grpc
import requests
from grpc_client import Grpc, messages
from server import ANSWER_LIMIT
from target import head, read_answer

SMALL = {"query": "q", "texts": ["a"]}
MESSAGE_PACK = "application/msgpack"
# Bytes by which the process may grow.
SLACK = 60 << 20
SIZE = 1_900_000
# In MessagePack: the beginning of a map, with its `query`.
QUERY = b"\x82\xa5query\xa1q"

# Bodies of MessagePack, and a part of the error's message.
PACKED = {
    "lists in lists": (b"\x91" * SIZE, "depth"),
    "lists in lists, in `texts`": (QUERY + b"\xa5texts" + b"\x91" * SIZE, "depth"),
    "lists in lists, in an unknown field": (QUERY + b"\xa1x" + b"\x91" * SIZE, "depth"),
    "maps in maps": (b"\x81\xa1x" * (SIZE // 3), "depth"),
    "a list that says it has 4,294,967,295 texts": (QUERY + b"\xa5texts\xdd" + b"\xff" * 4, "fill whole buffer"),
    "a map that says it has 4,294,967,295 fields": (b"\xdf" + b"\xff" * 4, "fill whole buffer"),
    "a text that says it has 4,294,967,295 bytes": (b"\x82\xa5query\xdb" + b"\xff" * 4 + b"a", "end of file"),
}

BREAK = "up\n2026-01-01T00:00:00Z  INFO injected: a line that the server never wrote"
# Bodies and paths with line breaks in the parts that the server's messages repeat.
BREAKS = [
    ("/rerank", SMALL | {"truncation_direction": BREAK}),
    ("/rerank", SMALL | {"top_n": BREAK}),
    ("/rerank", {BREAK: 1}),
    ("/rerank", {"query": "q", "documents": [{"a": "b"}], "rank_fields": [BREAK, BREAK]}),
    ("/rerank", {"query": "q", "documents": [{BREAK: "b"}]}),
    ("/tokenize", {"inputs": "a", "prompt_name": BREAK}),
    ("/predict", {"inputs": {BREAK: 1}}),
    ("/v1/embeddings", {"input": "a", "encoding_format": BREAK}),
    ("/vertex", {"instances": [{BREAK: BREAK}]}),
    ("/no%0asuch%0droute", {}),
]


def ask(aim, path: str, data: bytes, **headers: str) -> requests.Response:
    """POSTs bytes on a new connection."""
    named = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(aim.url + path, data=data, headers=aim.headers | named, timeout=ANSWER_LIMIT, verify=False)


def test_message_pack_that_promises_more_than_it_has(target, bystander, record):
    aim = target()
    before = aim.memory()
    with bystander(aim) as others:
        for what, (body, part) in PACKED.items():
            answer = ask(aim, "/rerank", body, Content_Type=MESSAGE_PACK, Accept="application/json")
            assert answer.status_code == 400 and part in answer.json()["error"], f"{what}: {answer.text}"
    grown = aim.memory() - before
    assert grown < SLACK and not others.lost, (grown, others.lost)
    record("MessagePack that nests or promises without end", len(PACKED), len(others.lost), "400, and no memory is taken for a promise")


def test_compressed_bodies_are_refused_by_name(target, record):
    aim = target("--grpc-port", "0")
    # A gigabyte of spaces.
    bomb = gzip.compress(b" " * (1 << 20)) * 1000
    before = aim.memory()
    for encoding in ("gzip", "br", "identity, gzip"):
        answer = ask(aim, "/rerank", bomb, Content_Encoding=encoding)
        assert answer.status_code == 415 and f"`Content-Encoding: {encoding}`" in answer.json()["error"], answer.text
    with Grpc(aim.process("gRPC")) as client:
        try:
            client.rerank.Rerank(messages.RerankRequest(**SMALL), compression=grpc.Compression.Gzip, timeout=60)
            raise AssertionError("a compressed message was read")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED and "gzip" in error.details()
    assert aim.memory() - before < SLACK
    assert aim.is_alive()
    record("compressed bodies, some of them bombs", 4, 0, "refused by their encoding's name")


def test_a_body_in_chunks_of_one_byte_costs_its_bytes_only(target, bystander, record):
    aim = target()
    # Each chunk is six bytes of the connection and one of the body.
    chunks, connections = 200_000, 3
    start = head("/rerank", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    before = aim.memory()
    with bystander(aim) as others:
        open_ones = [aim.connect() for _ in range(connections)]
        for connection in open_ones:
            connection.sendall(start + b"1\r\n \r\n" * chunks)
        # The server has read the last chunk when it answers.
        for connection in open_ones[1:]:
            connection.sendall(b"0\r\n\r\n")
        for connection in open_ones[1:]:
            assert b" 400 " in connection.recv(1 << 16)
        grown = aim.memory() - before
    for connection in open_ones:
        connection.close()
    # 100 bytes for each chunk would be 60 MB.
    assert grown < SLACK // 2, f"{grown:,} bytes"
    assert not others.lost, others.lost
    record("bodies of 200,000 chunks of one byte", connections, len(others.lost), "no more than their bytes is kept")


def test_a_client_that_announces_a_body_and_waits(target, bystander, record):
    aim = target("--body-timeout", "1")
    count = 50
    with bystander(aim) as others:
        connections = [aim.connect() for _ in range(count)]
        for connection in connections:
            connection.sendall(head("/rerank", 100, "Expect: 100-continue"))
        for connection in connections:
            answer = read_answer(connection)
            assert answer.startswith(b"HTTP/1.1 100 ") and b"HTTP/1.1 408 " in answer, answer
    assert not others.lost, others.lost
    record("`Expect: 100-continue`, and then nothing", count, len(others.lost), "408 when their time is up")


def test_upgrades_are_not_followed(target, record):
    aim = target()
    upgrades = ("websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: cmVzaWxpZW5jZQ==", "h2c\r\nHTTP2-Settings: AAMAAABk", "TLS/1.2")
    for upgrade in upgrades:
        with aim.connect() as connection:
            lines = ["GET /health HTTP/1.1", "Host: a", "Connection: close, Upgrade", f"Upgrade: {upgrade}", "", ""]
            connection.sendall("\r\n".join(lines).encode())
            assert read_answer(connection).startswith(b"HTTP/1.1 200 "), upgrade
    record("upgrades to WebSocket, h2c and TLS", len(upgrades), 0, "answered over HTTP/1.1")


def test_line_breaks_in_a_request_make_no_lines_in_the_log(target, record):
    aim = target()
    for path, body in BREAKS:
        answer = aim.post(path, body)
        assert 400 <= answer.status_code < 500, f"{path}: {answer.text}"
    # Of the control characters, HTTP lets tabs and bytes from 0x80 pass.
    for given in (b"a\tb", b"\xe2\x80\xa8injected", b"\xc2\x9b31mred", "é".encode()):
        aim.post("/rerank", SMALL, headers={"x-request-id": given})
    log = aim.process("the log").raw_log()
    strange = [line for line in re.split("[\n\r\x0b\x0c\x85\u2028\u2029]", log) if line and not re.match(r"\d{4}-\d\d-\d\dT\S+ +[A-Z]+ ", line)]
    assert not strange and "\x9b" not in log, strange
    assert "2026-01-01T00:00:00Z" in log, "the messages must have been logged"
    record("line breaks in fields, values and paths", len(BREAKS), 0, "each message is one line of the log")


def test_many_instances_and_many_names_of_fields(target, bystander, record):
    aim = target()
    instances = [{"query": "q", "texts": [f"Mars {number} is red"] * 4} for number in range(400)]
    with bystander(aim) as others:
        answer = aim.post("/vertex", {"instances": instances})
        assert answer.status_code == 200 and len(answer.json()["predictions"]) == 400, answer.text[:300]
    assert not others.lost, others.lost
    record("400 instances in one request of Vertex AI", 1, len(others.lost), "answered, small requests in between")
    document = {str(number): "Mars" for number in range(40_000)}
    started = time.monotonic()
    with bystander(aim) as others:
        for names in (["1"] * 100_000, list(document)):
            body = json.dumps({"query": "q", "documents": [document], "rank_fields": names}).encode()
            answer = ask(aim, "/rerank", body)
            assert answer.status_code == (422 if names[0] == names[1] else 200), answer.text[:300]
    assert not others.lost, others.lost
    assert time.monotonic() - started < ANSWER_LIMIT / 2, "names are compared with each other"
    record("`rank_fields` with 100,000 equal and 40,000 different names", 2, len(others.lost), "equal ones are refused")
