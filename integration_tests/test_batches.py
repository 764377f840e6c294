"""Small batches, as large models have on a CPU: texts longer than a batch, and requests that are split."""

import pytest
from reference_data import CASES
from server import Server

MODEL = "tied-bf16"
LONG = CASES["over-default-limit"]["document"]
TEXT = CASES["english-1"]["document"]


@pytest.fixture(scope="module")
def small_batches():
    """A server with the default budget of one thread for a large model."""
    with Server(MODEL, "--threads", "1", "--max-batch-tokens", "256", "--max-input-length", "8192") as server:
        yield server


def test_a_text_longer_than_a_batch_is_computed_alone(small_batches, served):
    info = small_batches.get("/info").json()
    assert (info["max_batch_tokens"], info["max_input_length"]) == (256, 8192)
    texts = [LONG, "short", LONG[: len(LONG) // 8], "another", LONG[: len(LONG) // 2]]
    answer = small_batches.post("/rerank", {"query": "q", "texts": texts, "truncate": True, "raw_scores": True})
    assert answer.status_code == 200, answer.text
    # The longest text is cut to the longest input, not to the size of a batch.
    assert answer.headers["x-truncated-texts"] == "1"
    assert int(answer.headers["x-compute-tokens"]) > 8192 + 4096
    large = served(MODEL, "--threads", "1", "--max-batch-tokens", "16384")
    assert large.get("/info").json()["max_batch_tokens"] == 16384
    scores = {rank["index"]: rank["score"] for rank in answer.json()}
    for index, score in enumerate(large.scores("q", texts)):
        assert scores[index] == pytest.approx(score, abs=2e-5)


def test_a_split_request_computes_the_shared_prefix_once(served):
    server: Server = served(MODEL, "--threads", "1", "--max-batch-tokens", "400", "--max-input-length", "400")
    query = "Which of these planets, as they are seen in the evening, is known as the Red Planet?"
    before = server.metrics()
    answer = server.post("/rerank", {"query": query, "texts": [f"{number} {TEXT}" for number in range(32)]})
    assert answer.status_code == 200, answer.text
    moved = {name: value - before.get(name, 0) for name, value in server.metrics().items()}
    assert moved["te_batch_next_size_count"] >= 4, "it was not split"
    # The shared part of each prompt: all tokens but the document's and the end of the template.
    shared = int(server.post("/rerank", {"query": query, "texts": [""]}).headers["x-compute-tokens"]) - 20
    assert shared > 60
    assert moved["te_batch_tokens_computed"] <= int(answer.headers["x-compute-tokens"]) - 31 * shared
