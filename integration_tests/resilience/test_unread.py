"""Clients that do not read their answers, over HTTP/1.1, HTTP/2 and gRPC."""

import json
import time

import grpc
from grpc_client import Grpc, messages
from server import wait_until
from target import head

CLIENTS = 6
# Each digit is one token and about 65 bytes of the answer, more than the socket buffers hold in all.
DIGITS = 120_000
BODY = json.dumps({"inputs": "7" * DIGITS}).encode()
ANSWER = 7_000_000


def ask(aim):
    """A connection whose client requests a large answer and reads nothing of it."""
    connection = aim.connect(receive_buffer=4096)
    connection.sendall(head("/tokenize", len(BODY)) + BODY)
    return connection


def test_unread_answers_have_a_budget_and_the_oldest_goes(target, bystander, record):
    aim = target("--max-unsent-bytes", str(int(ANSWER * 2.5)))
    with bystander(aim) as others:
        connections = [ask(aim) for _ in range(CLIENTS)]
        wait_until(lambda: sum(map(is_over, connections)) == CLIENTS - 2, 60, "the oldest answers are still held")
        assert len(read_all(ask(aim))) > ANSWER, "a client that reads must get the whole answer"
        assert sum(map(is_over, connections)) == CLIENTS - 1, "the next oldest answer must have been dropped for it"
    for connection in connections:
        connection.close()
    assert not others.lost, others.lost
    record("unread answers of 8 MB, with room for 2", CLIENTS, len(others.lost), "the oldest are dropped")


def test_a_slow_reader_of_a_stream_keeps_its_stream(target):
    # It takes something within each write timeout.
    aim = target("--write-timeout", "10", "--body-timeout", "1", "--header-timeout", "1", "--idle-timeout", "1", "--grpc-port", "0")
    count = 200
    with Grpc(aim.process("gRPC")) as client:
        request = messages.EncodeRequest(inputs="red planet " * 500)
        answers = client.tokenize.TokenizeStream(iter([request] * count), timeout=120)
        read = 0
        for _ in answers:
            read += 1
            if read in (1, 2, 100):
                time.sleep(2.5)
        assert read == count
        assert answers.code() == grpc.StatusCode.OK


def read_all(connection) -> bytes:
    connection.settimeout(30)
    received = bytearray()
    while not received.endswith(b"]]"):
        part = connection.recv(1 << 20)
        assert part, "the answer breaks off"
        received += part
    return bytes(received)


def is_over(connection) -> bool:
    """Whether the server has closed a connection whose client reads nothing: sending then fails."""
    try:
        connection.sendall(b"x")
    except OSError:
        return True
    return False
