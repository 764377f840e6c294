"""Hundreds of requests over HTTP and streams over gRPC at once: each gets its own answer, in order."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from grpc_client import Grpc, messages
from reference_data import TEXTS
from server import ANSWER_LIMIT, Server
from vectors import SAME, difference

AT_ONCE = 200
PER_STREAM = 5
# Texts whose vectors differ enough that a mix-up would show.
NAMES = ["english", "question", "korean", "chinese", "russian", "arabic", "emoji", "decomposed", "one-letter", "one-token"]


@pytest.fixture(scope="module")
def server():
    # A server of its own, because the test compares its counters.
    with Server("embedding-last", "--grpc-port", "0", "--max-concurrent-requests", "1000") as server:
        yield server


def unique(number: int) -> str:
    """A text that belongs to no other request."""
    return f"{TEXTS[NAMES[number % len(NAMES)]]['text']} {number}"


@pytest.fixture(scope="module")
def alone(server) -> list[list[float]]:
    """The vector of each text, from a server that computes nothing else."""
    texts = [unique(number) for number in range(AT_ONCE * PER_STREAM)]
    vectors = []
    for start in range(0, len(texts), 32):
        vectors += server.post("/embed", {"inputs": texts[start : start + 32]}).json()
    apart = sorted(range(len(vectors)), key=lambda index: vectors[index][0])
    # Sorted by their first value, neighbours are close in that value, but must differ in another.
    assert all(difference(vectors[a], vectors[b]) > 5 * SAME for a, b in zip(apart, apart[1:], strict=False))
    return vectors


def test_http_and_grpc_at_once(server, alone):
    chosen = random.Random(5)
    clients = [Grpc(server) for _ in range(4)]

    def over_http(number: int) -> None:
        picked = chosen_http[number]
        body = {"inputs": [unique(index) for index in picked]}
        answer = requests.post(f"{server.url}/embed", json=body, timeout=ANSWER_LIMIT)
        assert answer.status_code == 200, answer.text
        assert difference(answer.json(), [alone[index] for index in picked]) <= SAME

    def over_grpc(number: int) -> None:
        client = clients[number % len(clients)]
        picked = range(number * PER_STREAM, (number + 1) * PER_STREAM)
        answers = client.stream(client.embed.EmbedStream, [messages.EmbedRequest(inputs=unique(index)) for index in picked])
        assert difference([list(answer.embeddings) for answer in answers], [alone[index] for index in picked]) <= SAME

    chosen_http = [chosen.choices(range(len(alone)), k=chosen.randint(1, 6)) for _ in range(AT_ONCE)]
    before = server.metrics()
    with ThreadPoolExecutor(2 * AT_ONCE) as pool:
        work = [pool.submit(over, number) for number in range(AT_ONCE) for over in (over_http, over_grpc)]
        for one in work:
            one.result(ANSWER_LIMIT)
    after = server.metrics()
    for client in clients:
        client.channel.close()

    def moved(name: str) -> float:
        return sum(after[key] - before.get(key, 0) for key in after if key.split("{")[0] == name)

    texts = sum(len(picked) for picked in chosen_http) + AT_ONCE * PER_STREAM
    assert moved("te_request_count") == moved("te_request_success") == AT_ONCE + AT_ONCE * PER_STREAM
    assert moved("te_embed_count") == moved("te_embed_success") == texts
    assert moved("te_request_failure") == 0
    assert after["te_queue_size"] == 0


def test_beyond_the_permits_each_request_is_answered_or_refused(alone):
    with Server("embedding-last", "--max-concurrent-requests", "8") as server:

        def ask(number: int) -> int:
            answer = requests.post(f"{server.url}/embed", json={"inputs": unique(number)}, timeout=ANSWER_LIMIT)
            if answer.status_code == 200:
                assert difference(answer.json()[0], alone[number]) <= SAME
            else:
                assert answer.json() == {"error": "Model is overloaded", "error_type": "Overloaded"}
                assert int(answer.headers["retry-after"]) >= 1
            return answer.status_code

        with ThreadPoolExecutor(AT_ONCE) as pool:
            statuses = list(pool.map(ask, range(AT_ONCE)))
        assert set(statuses) <= {200, 429} and statuses.count(200) >= 8
        metrics = server.metrics()
        assert metrics.get('te_request_failure{err="overloaded"}', 0) == statuses.count(429)
        assert metrics['te_request_success{method="single"}'] == statuses.count(200)
