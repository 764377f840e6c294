"""More requests than the server can compute: it refuses further requests at once, with a true reason, and
answers every request that it accepted."""

import os
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import requests

CLIENTS, ROUNDS = 32, 10
LONG_QUERY = "which planet is red " * 95_000
MB = 1 << 20


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


class Usage(NamedTuple):
    """Resident bytes, open descriptors and threads of the server's process."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, target) -> "Usage":
        return cls(target.memory(), target.descriptors(), target.threads())

    def __str__(self) -> str:
        return f"{self.memory / MB:.1f} MiB resident, {self.descriptors} descriptors, {self.threads} threads"


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


def test_nothing_grows_while_it_serves(target, record):
    """A soak of SOAK_SECONDS: after the first third, memory, descriptors and threads no longer grow."""
    # With the default budget, the prefix cache would keep growing until the soak ends.
    attacked = target("--payload-limit", "3000000", "--prefix-cache-bytes", str(4 * MB))
    seconds = float(os.environ.get("SOAK_SECONDS", "60"))
    attacked.process("memory")
    started = Usage.of(attacked)
    # The largest request comes first, so that buffers which later requests reuse have their final size.
    largest = {"query": "planet " * 400, "texts": ["서울 " * 400] * 40, "truncate": True}
    assert attacked.post("/rerank", largest).status_code == 200
    end, rng = time.monotonic() + seconds, random.Random(1)
    seen = []
    session = requests.Session()

    def mixed() -> None:
        kind = rng.randrange(6)
        words = " ".join(rng.choice(["Mars", "red", "bread", "planet", "über", "서울"]) for _ in range(rng.randrange(1, 400)))
        if kind == 0:
            answer = session.post(f"{attacked.url}/rerank", data=b'{"query": "a", "texts": [', timeout=60)
            assert answer.status_code == 400
        elif kind == 1:
            answer = session.post(f"{attacked.url}/tokenize", json={"inputs": words}, timeout=60)
            assert answer.status_code == 200
        elif kind == 2:
            answer = attacked.post("/rerank", {"query": words, "texts": [words] * rng.randrange(1, 40), "truncate": True})
            assert answer.status_code == 200
        else:
            texts = [f"{rng.random()} {words}" for _ in range(rng.randrange(1, 8))]
            answer = session.post(f"{attacked.url}/rerank", json={"query": words[:50], "texts": texts, "truncate": True}, timeout=60)
            assert answer.status_code == 200

    warm = time.monotonic() + seconds / 3
    requests_sent = 0
    while time.monotonic() < end:
        mixed()
        requests_sent += 1
        if time.monotonic() > warm:
            seen.append(Usage.of(attacked))
    # `make soak` shows these lines; docs/reliability.md has the lines of one run.
    print(f"\n{requests_sent} requests in {seconds:.0f} s")
    for when, usage in (("before the first request", started), ("after the first third", seen[0]), ("at the end", seen[-1])):
        print(f"{when}: {usage}")
    most = Usage(*(max(values) for values in zip(*seen)))
    print(f"largest values after the first third: {most}")
    assert most.memory < seen[0].memory + 64 * MB, (seen[0], most)
    assert most.descriptors <= seen[0].descriptors + 4, (seen[0], most)
    assert most.threads <= seen[0].threads, (seen[0], most)
    record("mixed requests without a pause (`SOAK_SECONDS`)", 1, 0, "memory, descriptors and threads stay the same")
