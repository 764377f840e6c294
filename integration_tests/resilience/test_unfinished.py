"""Requests that begin and never end, with and without the key, over HTTP/1.1, HTTP/2 and gRPC."""

import time

import pytest
from http2 import Http2, grpc_prefix
from target import head, is_closed, read_answer

BODIES = 100
SENT = 1_900_000
STREAMS = 60
# Bytes for connections and the allocator, by which the process may grow while it keeps no body.
SLACK = 60 << 20
KEY = ("--api-key", "k3y")


def part_of_a_body(connection, path="/rerank", *lines):
    connection.sendall(head(path, SENT + 100_000, *lines))
    connection.sendall(b" " * SENT)


def test_bodies_without_the_key_are_not_kept(target, bystander, record):
    aim = target(*KEY)
    before = aim.memory()
    with bystander(aim) as others:
        connections = [aim.connect() for _ in range(BODIES)]
        for connection in connections:
            part_of_a_body(connection)
        grown = aim.memory() - before
    for connection in connections:
        connection.close()
    assert grown < SLACK, f"{grown:,} bytes"
    assert not others.lost, others.lost
    record("unfinished bodies of 1.9 MB without the key", BODIES, len(others.lost), "no byte is kept")


def test_unfinished_bodies_have_a_budget_and_the_oldest_goes(target, bystander, record):
    budget = 20_000_000
    aim = target("--max-unread-bytes", str(budget))
    before = aim.memory()
    with bystander(aim) as others:
        connections = [aim.connect() for _ in range(BODIES)]
        for connection in connections:
            part_of_a_body(connection)
        grown = aim.memory() - before
        first = read_answer(connections[0])
        assert first.startswith(b"HTTP/1.1 503") and b"--max-unread-bytes" in first, first
        assert b"retry-after: 1" in first.lower()
        assert not is_closed(connections[-1]), "the youngest body must stay open"
    for connection in connections:
        connection.close()
    assert grown < budget + SLACK, f"{grown:,} bytes"
    assert not others.lost, others.lost
    record("unfinished bodies of 1.9 MB, with room for 10", BODIES, len(others.lost), "the oldest are refused with 503")


def test_a_slow_body_has_time_by_its_size(target):
    aim = target("--body-timeout", "1")
    body = b'{"query":"q","texts":["a"]}'
    with aim.connect() as connection:
        padding = 80 << 10
        connection.sendall(head("/rerank", padding + len(body)) + b" " * padding)
        time.sleep(2.5)
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200"), "80 KiB must extend the limit by five seconds"


def test_streams_of_one_http2_connection(target, bystander, record):
    aim = target(*KEY)
    before = aim.memory()
    with bystander(aim) as others, Http2(aim.connect()) as connection:
        streams = [connection.post("/rerank") for _ in range(STREAMS)]
        connection.send_evenly(streams, SENT, limit=5)
        grown = aim.memory() - before
    assert grown < SLACK, f"{grown:,} bytes"
    assert not others.lost, others.lost
    record("unfinished bodies on one HTTP/2 connection", STREAMS, len(others.lost), "no byte is kept without the key")


@pytest.mark.parametrize("path", ["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Check"])
def test_messages_to_open_services_of_grpc_are_small(target, bystander, record, path):
    aim = target(*KEY, "--grpc-port", "0")
    port = int(aim.grpc_address.rsplit(":", 1)[1])
    before = aim.memory()
    with bystander(aim) as others, Http2(aim.connect(port)) as connection:
        streams = [connection.post(path, "application/grpc") for _ in range(STREAMS)]
        for stream in streams:
            connection.send(stream, grpc_prefix(4_000_000))
        connection.send_evenly(streams, SENT, limit=5)
        grown = aim.memory() - before
    assert grown < SLACK, f"{grown:,} bytes"
    assert not others.lost, others.lost
    record(f"unfinished messages of 4 MB to `{path.split('/')[1]}`", STREAMS, len(others.lost), "refused by their length")


def test_messages_to_grpc_have_a_budget_and_a_time(target, bystander, record):
    aim = target("--grpc-port", "0", "--max-unread-bytes", "20000000", "--body-timeout", "1")
    port = int(aim.grpc_address.rsplit(":", 1)[1])
    before = aim.memory()
    with bystander(aim) as others, Http2(aim.connect(port)) as connection:
        streams = [connection.post("/tei.v1.Rerank/Rerank", "application/grpc") for _ in range(STREAMS)]
        for stream in streams:
            connection.send(stream, grpc_prefix(4_000_000))
        connection.send_evenly(streams, SENT, limit=5)
        grown = aim.memory() - before
        idle = connection.post("/tei.v1.Predict/PredictStream", "application/grpc")
        slow = connection.post("/tei.v1.Rerank/Rerank", "application/grpc")
        connection.send(slow, grpc_prefix(100) + b"abc")
        assert connection.status(slow, 10) == ("4", "--body-timeout"), "not DEADLINE_EXCEEDED"
        assert connection.status(streams[0], 10)[0] == "8", "not RESOURCE_EXHAUSTED"
        assert not connection.has_ended(idle), "a stream must be allowed to pause between messages"
    assert grown < 20_000_000 + SLACK, f"{grown:,} bytes"
    assert not others.lost, others.lost
    record("unfinished messages of 1.9 MB over gRPC, with room for 10", STREAMS, len(others.lost), "the oldest are refused")


def test_streams_are_finite_and_resets_are_counted(target, bystander, record):
    aim = target()
    count = 2000
    with bystander(aim) as others, Http2(aim.connect()) as connection:
        assert connection.limit_of_streams() == 100
        connection.reset_at_once("/rerank", count)
        assert connection.is_over(10), "a client that only resets streams is still connected"
    assert not others.lost, others.lost
    record("streams that are opened and reset at once", count, len(others.lost), "the connection is ended")
