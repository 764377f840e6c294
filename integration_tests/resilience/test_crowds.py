"""More connections than the server has places or descriptors: well-behaved clients are still served."""

import resource

import pytest
from frames import END_HEADERS, HEADERS, field, frame, opening, post
from server import Server, wait_until
from target import head, is_closed

CROWD = 200


@pytest.fixture
def few_descriptors():
    """Limits a server to 100 descriptors. This process keeps its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(server: Server) -> None:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (100, 100))

    assert soft > 2 * CROWD, f"these tests need {2 * CROWD} descriptors (`ulimit -n`)"
    return limit


@pytest.mark.parametrize(
    ("what", "sent"),
    [
        ("idle connections", b""),
        ("unfinished heads", b"POST / HTTP/1.1\r\n"),
        ("unfinished bodies", head("/rerank", 1000) + b"{"),
    ],
)
def test_the_oldest_waiting_connection_makes_way(target, bystander, record, what, sent):
    aim = target("--max-connections", "20")
    connections = []
    with bystander(aim) as others:
        for _ in range(CROWD):
            connection = aim.connect()
            connection.sendall(sent)
            connections.append(connection)
        asked = others.asked
        wait_until(lambda: others.asked > asked + 5, 30, "small requests are no longer answered")
    held = sum(not is_closed(connection) for connection in connections)
    assert held <= 20, f"{held} are open"
    assert not others.lost, others.lost
    for connection in connections:
        connection.close()
    record(f"{what}, with places for 20", CROWD, len(others.lost), "the oldest makes way")


def test_the_connection_with_the_most_open_requests_makes_way(target, bystander, record):
    """Requests that were begun over HTTP/2, whose bodies never come: each takes memory for its stream and
    its head, with or without the key."""
    aim = target("--max-connections", "50")
    wide = post(b"/rerank", *[field(b"x", b"y" * 4000)] * 3)
    data = opening() + b"".join(frame(HEADERS, END_HEADERS, stream, wide) for stream in range(1, 201, 2))
    before = aim.memory()
    connections = [aim.connect() for _ in range(40)]
    with bystander(aim) as others:
        for connection in connections:
            try:
                connection.sendall(data)
            except OSError:
                pass
        wait_until(lambda: sum(map(is_closed, connections)) >= 30, 20, "the connections stay open")
        asked = others.asked
        wait_until(lambda: others.asked > asked + 5, 30, "small requests are no longer answered")
    assert aim.memory() - before < 50 << 20
    assert not others.lost, others.lost
    for connection in connections:
        connection.close()
    record("requests over HTTP/2 that are begun and left, 100 on each connection", 40, len(others.lost), "the connections with the most of them are closed")


def test_a_process_with_few_descriptors_is_not_locked_up(target, bystander, few_descriptors, record):
    # Set after the start, so that the server does not know this limit: it must keep accepting connections.
    aim = target("--idle-timeout", "2", "--header-timeout", "2")
    few_descriptors(aim.process("the limit of descriptors"))
    connections = []
    with bystander(aim) as others:
        for _ in range(CROWD):
            connections.append(aim.connect())
        wait_until(lambda: aim.descriptors() < 60, 60, "the server does not close descriptors")
    assert aim.is_alive()
    assert not others.lost, others.lost
    for connection in connections:
        connection.close()
    record("idle connections, after the process was limited to 100 descriptors", CROWD, len(others.lost), "the oldest makes way")
