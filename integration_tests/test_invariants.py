"""A pair's score depends neither on other pairs nor on how the server divides its work."""

import os
import random
from functools import cache

import pytest
from reference_data import CASES
from server import Background, Server

# A CPU gives the same bits. On a GPU, float32 sums in another order may differ by this much.
TOLERANCE = 2e-5 if os.environ.get("DEVICE_IS_GPU") else 0.0
BUDGET = 400
MODELS = ("tied-bf16", "untied-bf16-shards")
QUERIES = (
    "Which planet is known as the Red Planet?",
    "2003년부터 2006년까지 털사 대학교의 미식축구 감독은 누구였나요?",
)
SERVERS = {
    "defaults": (),
    "small-budget": ("--max-batch-tokens", str(BUDGET)),
    "one-text-a-batch": ("--max-batch-requests", "1"),
    "three-texts-a-batch": ("--max-batch-requests", "3"),
    "one-thread": ("--threads", "1"),
    "two-threads": ("--threads", "2"),
    "three-tokenizers": ("--tokenization-workers", "3"),
}


@cache
def texts() -> tuple[str, ...]:
    """Texts of all kinds and lengths. Most share no prefix; some share prefixes of various lengths."""
    short = dict.fromkeys(case["document"] for case in CASES.values() if len(case["document"].encode()) < 250)
    words = " ".join(short).split(" ")
    generator = random.Random(7)
    start = "The river rises in the mountains and "
    shared = [start[: generator.randrange(len(start))] + " ".join(generator.sample(words, count)) for count in range(12)]
    return (*short, *shared, start, start)


@pytest.fixture(scope="module")
def alone(served):
    """Raw scores of each text from a request of its own, by model and query."""

    @cache
    def get(model: str, query: str) -> list[float]:
        server = served(model)
        answers = [server.post("/rerank", {"query": query, "texts": [text], "raw_scores": True}) for text in texts()]
        longest = max(int(answer.headers["x-compute-tokens"]) for answer in answers)
        assert longest <= BUDGET, "no text may be truncated on the server with the small budget"
        return [answer.json()[0]["score"] for answer in answers]

    return get


def difference(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def test_the_texts_are_different_enough(alone):
    assert len(texts()) > 40
    for model in MODELS:
        scores = alone(model, QUERIES[0])
        # Otherwise, two scores that were mixed up could agree within the tolerance.
        assert max(scores) - min(scores) > 1 and len({round(score, 4) for score in scores}) > 35


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("flags", SERVERS.values(), ids=SERVERS)
def test_a_pair_alone_equals_itself_in_any_batch(served, alone, model, flags):
    server, expected = served(model, *flags), alone(model, QUERIES[0])
    assert difference(server.scores(QUERIES[0], list(texts())), expected) <= TOLERANCE
    generator = random.Random(3)
    for size in (2, 5, 17, len(texts())):
        chosen = generator.sample(range(len(texts())), size)
        scores = server.scores(QUERIES[0], [texts()[index] for index in chosen])
        assert difference(scores, [expected[index] for index in chosen]) <= TOLERANCE, chosen


@pytest.mark.skipif("DEVICE_IS_GPU" in os.environ, reason="only the CPU gives the same bits in lower precision")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_a_pair_alone_has_the_same_bits_in_any_batch_in_lower_precision(served, dtype):
    chosen = list(texts())
    alone = served(MODELS[0], "--dtype", dtype, "--max-batch-requests", "1", "--prefix-cache-bytes", "0")
    expected = alone.scores(QUERIES[0], chosen)
    for flags in (SERVERS["defaults"], SERVERS["small-budget"], SERVERS["one-thread"]):
        server = served(MODELS[0], "--dtype", dtype, *flags)
        for part in (chosen, chosen[::-1], chosen[3:17]):
            assert server.scores(QUERIES[0], part) == [expected[chosen.index(text)] for text in part], (dtype, flags)


@pytest.mark.parametrize("flags", [(), SERVERS["small-budget"], SERVERS["three-texts-a-batch"]])
def test_requests_at_the_same_time_do_not_mix(served, alone, flags):
    server = served(MODELS[0], *flags)
    for _ in range(3):
        asked = [Background(server.scores, query, list(texts())) for query in QUERIES * 2]
        for query, answer in zip(QUERIES * 2, asked, strict=True):
            assert difference(answer.result(), alone(MODELS[0], query)) <= TOLERANCE


def test_equal_texts_have_equal_scores_in_the_order_of_the_request(server: Server):
    document = CASES["english-1"]["document"]
    ranks = server.rerank(QUERIES[0], [document, "other", document, document], raw_scores=True)
    same = [rank["score"] for rank in ranks if rank["index"] != 1]
    assert max(same) - min(same) <= TOLERANCE
    # On a GPU, the scores of equal texts in different batches may differ slightly, and then decide the order.
    assert ranks == sorted(ranks, key=lambda rank: (-rank["score"], rank["index"]))


@pytest.mark.parametrize("raw", [True, False])
def test_order_is_by_score_and_each_index_names_its_text(server: Server, alone, raw):
    ranks = server.rerank(QUERIES[0], list(texts()), raw_scores=raw, return_text=True)
    assert sorted(rank["index"] for rank in ranks) == list(range(len(texts())))
    scores = [rank["score"] for rank in ranks]
    assert scores == sorted(scores, reverse=True)
    assert all(rank["text"] == texts()[rank["index"]] for rank in ranks)
    if raw:
        expected = [alone(MODELS[0], QUERIES[0])[rank["index"]] for rank in ranks]
        assert difference(scores, expected) <= TOLERANCE
    else:
        assert all(0 < score < 1 for score in scores)
    assert all(set(rank) == {"index", "score"} for rank in server.rerank(QUERIES[0], ["a", "b"]))


@pytest.mark.parametrize("name", ["top_n", "top_k"])
def test_top_n_keeps_the_best(server: Server, alone, name):
    expected = alone(MODELS[0], QUERIES[0])
    for count in (1, 3, len(texts()), len(texts()) + 5):
        few = server.rerank(QUERIES[0], list(texts()), raw_scores=True, **{name: count})
        scores = [rank["score"] for rank in few]
        assert len({rank["index"] for rank in few}) == len(few) == min(count, len(texts()))
        assert difference(scores, sorted(expected, reverse=True)[:count]) <= TOLERANCE
        assert difference(scores, [expected[rank["index"]] for rank in few]) <= TOLERANCE


def test_an_instruction_has_several_names_and_a_default(server: Server, served):
    instruction, chosen = "Find the text that names a planet.", list(texts()[:8])
    plain = server.scores(QUERIES[0], chosen)
    scores = server.scores(QUERIES[0], chosen, instruction=instruction)
    assert difference(plain, scores) > 0.01
    for fields in ({"instruct": instruction}, {"chat_template_kwargs": {"instruction": instruction}}):
        assert difference(server.scores(QUERIES[0], chosen, **fields), scores) <= TOLERANCE, fields
    own = served(MODELS[0], "--default-instruction", instruction)
    assert own.get("/info").json()["default_instruction"] == instruction
    assert difference(own.scores(QUERIES[0], chosen), scores) <= TOLERANCE
    default = server.get("/info").json()["default_instruction"]
    assert difference(own.scores(QUERIES[0], chosen, instruction=default), plain) <= TOLERANCE


@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_the_main_task_has_other_paths_too(server: Server, alone, path):
    answer = server.post(path, {"query": QUERIES[0], "texts": list(texts()), "raw_scores": True, "return_text": True})
    assert all(rank["text"] == texts()[rank["index"]] for rank in answer.json())
    scores = [rank["score"] for rank in sorted(answer.json(), key=lambda rank: rank["index"])]
    assert difference(scores, alone(MODELS[0], QUERIES[0])) <= TOLERANCE


def test_a_batch_of_pairs_equals_the_same_pairs_reranked(server: Server, alone):
    pairs = [[query, text] for query in QUERIES for text in texts()[:16]]
    answer = server.post("/predict", {"inputs": pairs, "raw_scores": True}).json()
    assert all(len(labels) == 1 and labels[0]["label"] == "yes" for labels in answer)
    expected = [score for query in QUERIES for score in alone(MODELS[0], query)[:16]]
    assert difference([labels[0]["score"] for labels in answer], expected) <= TOLERANCE
