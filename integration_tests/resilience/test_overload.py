"""More requests than the server can compute: it refuses further requests at once, with a true reason, and
answers every request that it accepted."""

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from server import wait_until

CLIENTS, ROUNDS = 32, 10
LONG_QUERY = "which planet is red " * 95_000


def gauge(target, name: str) -> float:
    """The value of a metric without labels."""
    text = requests.get(f"{target.url}/metrics", headers=target.headers, timeout=60, verify=False).text
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def crowd(target, ask) -> Counter[int]:
    """Sends `ROUNDS` requests from each of `CLIENTS` clients, and counts the answers by status."""

    def client(number: int) -> list[int]:
        statuses = []
        for turn in range(ROUNDS):
            answer = ask(number, turn)
            if answer.status_code == 429:
                assert int(answer.headers["Retry-After"]) >= 1, answer.headers
                assert answer.json()["error_type"] == "Overloaded", answer.text
            statuses.append(answer.status_code)
        return statuses

    with ThreadPoolExecutor(CLIENTS) as clients:
        return Counter(status for statuses in clients.map(client, range(CLIENTS)) for status in statuses)


def until_idle(target) -> None:
    """Waits until the queue is empty."""
    for _ in range(600):
        if gauge(target, "te_queue_size") == 0:
            return
        time.sleep(0.1)
    pytest.fail("the queue did not become empty")


def test_a_long_query_with_many_texts_does_not_delay_others(target, bystander, record):
    """The query is encoded once, its truncated part never, and texts waiting for that are in the gauge."""
    attacked = target("--tokenization-workers", "1")
    body = {"query": LONG_QUERY, "texts": [f"{number} Mars is red." for number in range(1000)], "truncate": True}
    with bystander(attacked) as others, ThreadPoolExecutor(1) as attack:
        answer = attack.submit(attacked.post, "/rerank", body)
        queued = 0.0
        while not answer.done():
            queued = max(queued, gauge(attacked, "te_queue_size"))
            time.sleep(0.02)
        assert answer.result().status_code == 200, answer.result().text[:300]
        assert len(answer.result().json()) == 1000
    assert queued > 0, "texts that wait for the tokenizer are not in the gauge"
    assert others.lost == [] and others.asked > 0
    record("a query of 1.9 MB with 1,000 texts", 1, len(others.lost), "it is encoded once, and small requests come first")


def test_long_texts_do_not_delay_others(target, bystander, record):
    attacked = target("--tokenization-workers", "1")
    body = {"query": "red", "texts": [LONG_QUERY], "truncate": True}
    with bystander(attacked) as others, ThreadPoolExecutor(10) as attack:
        answers = [attack.submit(attacked.post, "/rerank", body) for _ in range(10)]
        assert {answer.result().status_code for answer in answers} == {200}
    assert others.lost == []
    record("texts of 1.9 MB", 10, len(others.lost), "small requests come first")


def test_long_texts_leave_a_tokenizer_thread_to_others(target, record):
    """Texts that must not be cut are encoded whole: of these letters, each is a token."""
    attacked = target("--tokenization-workers", "2")
    body = {"query": "red", "texts": ["a" * 1_500_000], "truncate": False}
    with ThreadPoolExecutor(4) as attack:
        answers = [attack.submit(attacked.post, "/rerank", body) for _ in range(4)]
        wait_until(lambda: gauge(attacked, "te_requests_in_flight") == 4, 30, "the long texts are not in flight")
        assert attacked.is_alive()
        assert not any(answer.done() for answer in answers), "a small request waited for a long one"
        assert {answer.result().status_code for answer in answers} == {422}
    record("texts of 1.5 MB that must not be cut", 4, 0, "they leave a tokenizer thread to small requests")


def test_a_crowd_is_served_or_told_when_to_come_back(target, record):
    attacked = target("--max-concurrent-requests", "4")
    texts = [f"{number} Mars is the red planet. " * 20 for number in range(16)]
    statuses = crowd(attacked, lambda *_: attacked.post("/rerank", {"query": "red", "texts": texts}))
    assert set(statuses) <= {200, 429} and statuses[200] > 0, statuses
    assert sum(statuses.values()) == CLIENTS * ROUNDS
    until_idle(attacked)
    assert attacked.is_alive()
    record("requests of 32 clients, with at most 4 in flight", CLIENTS * ROUNDS, 0, "each is answered, or refused at once with `Retry-After`")


def test_tokens_in_flight_are_bounded(target, record):
    attacked = target("--max-queue-tokens", "8000")
    texts = ["Mars is the red planet. " * 100] * 16
    statuses = crowd(attacked, lambda *_: attacked.post("/rerank", {"query": "red", "texts": texts, "truncate": True}))
    assert set(statuses) <= {200, 429} and statuses[200] > 0, statuses
    until_idle(attacked)
    assert attacked.is_alive()
    record("requests of 32 clients with more tokens than may be in flight", CLIENTS * ROUNDS, 0, "each is answered, or refused at once with `Retry-After`")


def test_requests_that_wait_too_long_are_refused_and_not_computed(target, record):
    attacked = target("--queue-timeout", "0.2")
    texts = ["Mars is the red planet. " * 20] * 16

    def ask(number: int, turn: int) -> requests.Response:
        # Each request has other texts: equal ones would be computed once for all.
        return attacked.post("/rerank", {"query": f"red {number} {turn}", "texts": texts})

    statuses = crowd(attacked, ask)
    assert set(statuses) <= {200, 429} and statuses[200] > 0, statuses
    until_idle(attacked)
    record("requests of 32 clients with `--queue-timeout 0.2`", CLIENTS * ROUNDS, 0, "begun in time, or refused and not computed")


def test_a_requests_own_deadline_is_kept(target, record):
    attacked = target()
    texts = [f"{number} Mars is the red planet. " * 200 for number in range(32)]
    asked = Counter()
    for seconds in ("0.001", "0.01", "60"):
        answer = attacked.post("/rerank", {"query": "red", "texts": texts}, headers={"x-request-timeout": seconds})
        asked[answer.status_code] += 1
        if answer.status_code == 504:
            assert f"the time limit of {float(seconds):g} s that the request set" in answer.text
    assert set(asked) <= {200, 504} and asked[200] >= 1 and asked[504] >= 1, asked
    until_idle(attacked)
    assert attacked.is_alive()
    record("requests with a deadline of their own", 3, 0, "kept, or 504 and no more is computed")
