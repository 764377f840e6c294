"""A soak: mixed requests for SOAK_SECONDS, after which memory, descriptors and threads must not have grown.

`make soak` runs it for minutes or for a day. The test's own memory does not grow with the duration.
"""

import os
import random
import time
from typing import NamedTuple

import requests

MB = 1 << 20
# The start is logged, and requests are not: a line for each of them would be half a gigabyte in a day.
QUIET = "warn,text_embeddings_router=info,text_embeddings_router::http=warn,text_embeddings_router::cost=warn"
# Bytes that the log may have at the end.
LOG_LIMIT = 100_000
# Lines with the state in between.
LINES = 24


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


class Mixture:
    """Sends one request after the other: re-rankings of all sizes, tokenizations, broken JSON."""

    def __init__(self, target):
        self._target, self._random, self._session = target, random.Random(1), requests.Session()

    def send(self) -> None:
        kind = self._random.randrange(6)
        some = ["Mars", "red", "bread", "planet", "über", "서울"]
        words = " ".join(self._random.choice(some) for _ in range(self._random.randrange(1, 400)))
        if kind == 0:
            self._expect(400, "/rerank", data=b'{"query": "a", "texts": [')
        elif kind == 1:
            self._expect(200, "/tokenize", json={"inputs": words})
        elif kind == 2:
            body = {"query": words, "texts": [words] * self._random.randrange(1, 40), "truncate": True}
            # On a new connection.
            assert self._target.post("/rerank", body).status_code == 200
        else:
            texts = [f"{self._random.random()} {words}" for _ in range(self._random.randrange(1, 8))]
            self._expect(200, "/rerank", json={"query": words[:50], "texts": texts, "truncate": True})

    def _expect(self, status: int, path: str, **body: object) -> None:
        answer = self._session.post(self._target.url + path, timeout=60, **body)
        assert answer.status_code == status, answer.text[:300]


def test_nothing_grows_while_it_serves(target, record):
    """After the first third, memory, descriptors and threads no longer grow."""
    # With the default budget, the prefix cache would keep growing until the soak ends.
    flags = ("--payload-limit", "3000000", "--prefix-cache-bytes", str(4 * MB))
    attacked = target(*flags, environment={"LOG_LEVEL": QUIET})
    seconds = float(os.environ.get("SOAK_SECONDS", "60"))
    # Requests per second. Without it, each request is sent as soon as the one before is answered.
    rate = float(os.environ.get("SOAK_RATE") or 0)
    attacked.process("memory")
    # `make soak` shows these lines; docs/hardening.md has the lines of one run.
    print(f"\nbefore the first request: {Usage.of(attacked)}")
    # The largest request comes first, so that buffers which later requests reuse have their final size.
    largest = {"query": "planet " * 400, "texts": ["서울 " * 400] * 40, "truncate": True}
    assert attacked.post("/rerank", largest).status_code == 200
    start, sent, shown = time.monotonic(), 0, 0
    mixture = Mixture(attacked)
    warm = most = None
    while (passed := time.monotonic() - start) < seconds or most is None:
        mixture.send()
        sent += 1
        now = Usage.of(attacked)
        if passed >= seconds / 3:
            warm = warm or now
            most = Usage(*map(max, most or now, now))
        if passed * LINES >= seconds * shown:
            print(f"{passed:.0f} s, {sent} requests: {now}", flush=True)
            shown += 1
        if rate:
            time.sleep(max(0, start + sent / rate - time.monotonic()))
    print(f"at the end, {sent} requests: {Usage.of(attacked)}")
    print(f"largest values after the first third: {most}")
    assert most.memory < warm.memory + 64 * MB, (warm, most)
    assert most.descriptors <= warm.descriptors + 4, (warm, most)
    assert most.threads <= warm.threads, (warm, most)
    assert attacked.server.log_bytes() < LOG_LIMIT, attacked.server.log()[-1000:]
    record("mixed requests without a pause (`SOAK_SECONDS`)", 1, 0, "memory, descriptors and threads stay the same")
