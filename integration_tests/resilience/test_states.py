"""A client that stops in each state between connecting and the last byte of its answer.

Input: `STATES`, with the names of the table in docs/reliability.md. What must hold: while clients stay
in a state, its bytes and permits count and other clients are answered; each state ends in time, and then
nothing counts any more.
"""

import json
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import requests
from frames import HEADERS, frame, opening, post
from grpc_client import messages
from http2 import Http2, grpc_prefix
from server import ROOT, wait_until
from target import Target, head, read_answer

CLIENTS = 4
TIMES = ("--header-timeout", "1", "--body-timeout", "1", "--idle-timeout", "1", "--write-timeout", "1")
# Each digit is one token and about 65 bytes of the answer, more than the socket buffers hold in all.
DIGITS = "7" * 120_000
LARGE = json.dumps({"inputs": DIGITS}).encode()
# More than can be computed within its time limit.
WORK = [f"{number} {'planet ' * 250}" for number in range(1000)]
SECONDS = 0.7
RERANK = "/tei.v1.Rerank/Rerank"
# States that no client brings about; tests of their own have them.
OTHERS = {"the log waits for its reader", "keys and certificates are read again", "complete, waits for a parser, a model that loads, or a permit (gRPC streams)"}

# Waits until the server ends the connection or stream of a client.
Ending = Callable[[], None]


class State(NamedTuple):
    """Where a client stops: the name in the table, the way there, what counts meanwhile for each client, and
    the end in words."""

    name: str
    way: str
    enter: Callable[[Target], Ending]
    holds: dict[str, int]
    end: str


def sent(data: bytes, expected: bytes) -> Callable[[Target], Ending]:
    """Sends bytes on a connection, which is to be closed after an answer that begins like this."""

    def enter(aim: Target) -> Ending:
        connection = aim.connect()
        connection.sendall(data)

        def end() -> None:
            answer = read_answer(connection)
            assert answer.startswith(expected), answer[:300]

        return end

    return enter


def unread(aim: Target) -> Ending:
    """Takes nothing of a large answer over HTTP/1.1."""
    connection = aim.connect(receive_buffer=4096)
    connection.sendall(head("/tokenize", len(LARGE)) + LARGE)

    def is_over() -> bool:
        # Reading would let the server go on.
        try:
            connection.sendall(b"x")
        except OSError:
            return True
        return False

    return lambda: wait_until(is_over, 60, "an unread answer is still held")


def on_stream(path: str, body: bytes | Callable[[], bytes], is_ended: bool, *headers: tuple[str, str]) -> Callable[[Target], Ending]:
    """Sends a body, or a new one each time, on a stream of HTTP/2 and gives no window for its answer. The
    stream or the connection is to end."""

    def enter(aim: Target) -> Ending:
        is_grpc = path.startswith("/tei")
        connection = Http2(aim.connect(int(aim.grpc_address.rsplit(":", 1)[1]) if is_grpc else None))
        connection.acknowledges = False
        stream = connection.post(path, "application/grpc" if is_grpc else "application/json", *headers)
        data = body() if callable(body) else body
        if is_ended:
            connection.send_whole(stream, data)
        elif data:
            connection.send(stream, data)
        return lambda: wait_until(lambda: connection.has_ended(stream) or connection.is_over(0.1), 60, "the stream goes on")

    return enter


def new_query() -> str:
    """A query whose scores are not kept. Kept ones would be answered in time."""
    return f"red {uuid.uuid4()}"


def computed(aim: Target) -> Ending:
    """Asks for more than can be computed in the time that the request sets."""
    pool = ThreadPoolExecutor(1)
    work = {"query": new_query(), "texts": WORK, "truncate": True}
    answer = pool.submit(aim.post, "/rerank", work, headers={"x-request-timeout": str(SECONDS)})

    def end() -> None:
        assert answer.result().status_code == 504, answer.result().text[:300]
        pool.shutdown()

    return end


def message(request: object) -> bytes:
    data = request.SerializeToString()
    return grpc_prefix(len(data)) + data


HALF = b'{"query":' + b" " * 491
HALF_MESSAGE = grpc_prefix(1000) + b"m" * 500
WHOLE_MESSAGE = message(messages.RerankRequest(query="a", texts=["b"]))
CHUNKED = head("/rerank", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"1f4\r\n" + HALF + b"\r\n"
HALF_HEAD = opening() + frame(HEADERS, 0, 1, post(b"/rerank")[:20])
TOKENIZE = message(messages.EncodeRequest(inputs=DIGITS))


def work_message() -> bytes:
    """A smaller request: over gRPC, the time until it has arrived counts."""
    return message(messages.RerankRequest(query=new_query(), texts=WORK[:250], truncate=True))


CONNECTED, HEAD = "connected, without a request", "head arrives, TLS included"
BODY, PAUSE = "body or gRPC message arrives", "pause of a gRPC stream, nothing unanswered"
ADMITTED, ANSWER = "admitted: tokenized, queued, computed", "answer waits for the client"
CLOSED, IN_TIME = "closed when their time is up", "given up when its time is over"

STATES = [
    State(CONNECTED, "HTTP/1.1, nothing sent", sent(b"", b""), {}, CLOSED),
    State(CONNECTED, "HTTP/1.1, after an answer", sent(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 200"), {}, CLOSED),
    State(CONNECTED, "HTTP/2, nothing sent", sent(opening(), b""), {}, CLOSED),
    State(HEAD, "HTTP/1.1", sent(b"POST /rerank HTTP/1.1\r\nHost: a\r\n", b""), {}, CLOSED),
    State(HEAD, "HTTP/2", sent(HALF_HEAD, b""), {}, CLOSED),
    State(BODY, "HTTP/1.1", sent(head("/rerank", 1000) + HALF, b"HTTP/1.1 408"), {"te_unread_bytes": 500}, CLOSED),
    State(BODY, "HTTP/1.1 in chunks", sent(CHUNKED, b"HTTP/1.1 408"), {"te_unread_bytes": 500}, CLOSED),
    State(BODY, "HTTP/2", on_stream("/rerank", HALF, False), {"te_unread_bytes": 500}, "408"),
    State(BODY, "gRPC", on_stream(RERANK, HALF_MESSAGE, False), {"te_unread_bytes": 505}, "DEADLINE_EXCEEDED"),
    State(BODY, "gRPC, whole but for the end", on_stream(RERANK, WHOLE_MESSAGE, False), {"te_unread_bytes": len(WHOLE_MESSAGE) + 1024}, "DEADLINE_EXCEEDED"),
    State(BODY, "gRPC, before a message", on_stream(RERANK, b"", False), {}, "DEADLINE_EXCEEDED"),
    State(ADMITTED, "HTTP/1.1, `x-request-timeout`", computed, {"te_requests_in_flight": 1}, IN_TIME),
    State(ADMITTED, "gRPC, `grpc-timeout`", on_stream(RERANK, work_message, True, ("grpc-timeout", "2S")), {"te_requests_in_flight": 1}, IN_TIME),
    State(ANSWER, "HTTP/1.1", unread, {"te_unsent_bytes": 7_000_000}, CLOSED),
    State(ANSWER, "HTTP/2 without a window", on_stream("/tokenize", LARGE, True), {"te_unsent_bytes": 7_000_000}, CLOSED),
    State(ANSWER, "gRPC without a window", on_stream("/tei.v1.Tokenize/Tokenize", TOKENIZE, True), {"te_unsent_bytes": 1_000_000}, CLOSED),
]  # fmt: skip


def test_every_state_has_an_end_and_then_nothing_counts(target, bystander, record):
    """All ways into a state, one after the other, on one server."""
    aim = target(*TIMES, "--grpc-port", "0")
    for state in STATES:
        place = f"{state.name}, {state.way}"
        with bystander(aim) as others, ThreadPoolExecutor(CLIENTS) as pool:
            start = time.monotonic()
            endings = list(pool.map(state.enter, [aim] * CLIENTS))
            # Of clients that take no answer, one may be over before the next one has its answer.
            for name, each in state.holds.items():
                least = each if state.name == ANSWER else CLIENTS * each
                wait_until(lambda name=name, least=least: held(aim)[name] >= least, 20, f"{place}: {name} does not count")
            list(pool.map(lambda end: end(), endings))
            took = time.monotonic() - start
        assert took > 0.5, f"{place}: ended after {took} s"
        wait_until(lambda: not any(held(aim).values()), 10, f"{place}: {held(aim)}")
        assert not others.lost, f"{place}: {others.lost}"
        assert others.asked > 1
        record(f"clients that stop: {place}", CLIENTS, len(others.lost), state.end)


def test_a_stream_may_pause_and_keeps_nothing_meanwhile(target):
    aim = target(*TIMES, "--grpc-port", "0")
    with Http2(aim.connect(int(aim.grpc_address.rsplit(":", 1)[1]))) as connection:
        stream = connection.post("/tei.v1.Tokenize/TokenizeStream", "application/grpc")
        for _ in range(2):
            connection.send(stream, message(messages.EncodeRequest(inputs="Mars")))
            time.sleep(1.5)
            assert not connection.has_ended(stream)
            assert not any(held(aim).values()), held(aim)


def test_the_states_are_those_of_the_document():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    table = page.split("| state | bytes and number |")[1].split("\n\n")[0]
    names = {row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:]}
    assert names == {state.name for state in STATES} | {PAUSE} | OTHERS


def held(aim: Target) -> dict[str, float]:
    """The bytes and permits that count now."""
    text = requests.get(f"{aim.url}/metrics", timeout=60).text
    names = ("te_unread_bytes", "te_unsent_bytes", "te_requests_in_flight")
    return {name: float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1]) for name in names}
