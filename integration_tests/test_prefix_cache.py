"""Prefixes of earlier requests are used again: the scores stay the same, fewer tokens are computed, and the
cache keeps to its budget."""

import pytest
from reference_data import CASES
from server import Server

# float32 sums in another order may change a score by this much, as they do for batches.
TOLERANCE = 2e-5
TEXTS = list(dict.fromkeys(case["document"] for case in CASES.values() if 0 < len(case["document"]) < 200))[:12]
QUERIES = ("Which planet is known as the Red Planet?", "Which planet is the largest?", "감독은 누구였나요?")
INSTRUCTION = "Judge whether the document names a planet."
CACHE = ("hits", "tokens", "bytes")


def moved(server: Server, work) -> tuple[list[float], dict[str, float]]:
    """The result of `work`, and the changes of the cache's metrics and of the computed tokens."""
    names = [f"te_prefix_cache_{name}" for name in CACHE] + ["te_batch_tokens_computed", "te_prefix_shared_tokens"]
    before = server.metrics()
    scores = work()
    after = server.metrics()
    return scores, {name: after[name] - before.get(name, 0) for name in names}


def cost(server: Server, query: str, texts: list[str], **fields: object) -> tuple[list[float], int]:
    """Raw scores, and the number of tokens in all prompts."""
    answer = server.post("/rerank", {"query": query, "texts": texts, "raw_scores": True, **fields})
    assert answer.status_code == 200, answer.text
    scores = [rank["score"] for rank in sorted(answer.json(), key=lambda rank: rank["index"])]
    return scores, int(answer.headers["x-compute-tokens"])


@pytest.mark.parametrize("flags", [(), ("--prefix-cache-bytes", "100000"), ("--max-batch-requests", "1")])
def test_scores_over_several_requests_are_those_without_a_cache(served, flags):
    plain = served("tied-bf16", "--prefix-cache-bytes", "0")
    with Server("tied-bf16", *flags) as server:
        for _ in range(2):
            for query in QUERIES:
                for fields in ({}, {"instruction": INSTRUCTION}):
                    for size in (1, 5, len(TEXTS)):
                        expected = plain.scores(query, TEXTS[:size], **fields)
                        scores = server.scores(query, TEXTS[:size], **fields)
                        assert max(abs(a - b) for a, b in zip(scores, expected, strict=True)) <= TOLERANCE
        metrics = server.metrics()
        assert metrics["te_prefix_cache_hits"] > 0 and metrics["te_prefix_cache_tokens"] > 0
        assert 0 < metrics["te_prefix_cache_bytes"] <= server.get("/info").json()["prefix_cache_bytes"]
    nothing = plain.metrics()
    assert all(nothing[f"te_prefix_cache_{name}"] == 0 for name in CACHE)
    assert plain.get("/info").json()["prefix_cache_bytes"] == 0


def test_a_repeated_request_computes_only_its_documents():
    with Server("tied-bf16") as server:
        (first, tokens), cold = moved(server, lambda: cost(server, QUERIES[0], TEXTS))
        (again, _), warm = moved(server, lambda: cost(server, QUERIES[0], TEXTS))
        (_, more), other = moved(server, lambda: cost(server, QUERIES[1], TEXTS[:1]))
    assert again == pytest.approx(first, abs=TOLERANCE)
    assert cold["te_prefix_cache_bytes"] > 0 and warm["te_prefix_cache_bytes"] == 0
    assert warm["te_prefix_cache_hits"] == len(TEXTS)
    saved = warm["te_prefix_cache_tokens"]
    # Each token of the prompts is either computed, shared in a batch, or taken from the cache.
    for total, counts in ((tokens, cold), (tokens, warm), (more, other)):
        names = ("te_prefix_cache_tokens", "te_batch_tokens_computed", "te_prefix_shared_tokens")
        assert sum(counts[name] for name in names) == total
    assert saved > 60 and warm["te_batch_tokens_computed"] < cold["te_batch_tokens_computed"]
    # Another query shares the system line, the instruction and its first words with the first query.
    assert 50 < other["te_prefix_cache_tokens"] < saved and other["te_prefix_cache_bytes"] > 0
