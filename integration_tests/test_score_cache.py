"""The score cache changes no bit of an answer, and says what it saved."""

import os
import random

import pytest


CACHE = ("--score-cache-bytes", "1000000")
MODEL = "tied-bf16"
WORDS = "The river rises in the mountains and a red planet bakes bread from flour of 2003 years 서울 火星 🙂".split()

pytestmark = pytest.mark.skipif("DEVICE_IS_GPU" in os.environ, reason="only the CPU gives the same bits in any company")


def sentence(generator: random.Random, words: int) -> str:
    return " ".join(generator.choice(WORDS) for _ in range(words))


def requests_of(generator: random.Random, count: int) -> list[dict]:
    """Requests of texts that mostly come again, each time in other company."""
    queries = [sentence(generator, 5) for _ in range(2)]
    texts = [sentence(generator, generator.randrange(1, 30)) for _ in range(12)]
    return [
        {
            "query": generator.choice(queries),
            "texts": [
                generator.choice(texts) if generator.random() < 0.7 else sentence(generator, generator.randrange(1, 30))
                for _ in range(generator.randrange(1, 9))
            ],
            "raw_scores": generator.random() < 0.5,
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_bit_is_the_same_with_and_without(served, dtype):
    plain, cached = served(MODEL, "--dtype", dtype), served(MODEL, "--dtype", dtype, *CACHE)
    generator = random.Random(39)
    hits, texts = 0, 0
    for body in requests_of(generator, 30):
        expected, answer = plain.post("/rerank", body), cached.post("/rerank", body)
        # Floats are written with all their digits.
        assert answer.content == expected.content
        for header in ("x-compute-tokens", "x-compute-characters", "x-truncated-texts"):
            assert answer.headers[header] == expected.headers[header]
        assert "x-score-cache" not in expected.headers
        hits += int(answer.headers["x-score-cache"])
        texts += len(body["texts"])
    assert texts / 3 < hits < texts
    metrics = cached.metrics()
    assert metrics["te_score_cache_hits"] == hits
    assert metrics["te_predict_success"] == texts
    assert 0 < metrics["te_score_cache_bytes"] <= 1_000_000
    assert metrics["te_score_cache_tokens"] > 10 * hits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_vectors_of_queries_are_the_same_too(served, dtype):
    flags = ("--dtype", dtype)
    plain, cached = served("embedding-last", *flags), served("embedding-last", *flags, *CACHE)
    generator = random.Random(40)
    known = [sentence(generator, 3) for _ in range(4)]
    hits = 0
    for _ in range(10):
        inputs = [generator.choice([*known, sentence(generator, 40)]) for _ in range(generator.randrange(1, 5))]
        expected, answer = (server.post("/embed", {"inputs": inputs}) for server in (plain, cached))
        assert answer.content == expected.content
        hits += int(answer.headers["x-score-cache"])
    assert hits > 10


def test_no_cache_is_a_choice(served):
    server = served(MODEL, "--score-cache-bytes", "0")
    for _ in range(2):
        answer = server.post("/rerank", {"query": "q", "texts": ["a"]})
        assert answer.ok and "x-score-cache" not in answer.headers
    assert server.metrics()["te_score_cache_hits"] == 0
