"""Long texts in chunks and highlights: every part scores as a text of its own, and places are Python's."""

import random

import cohere
import pytest
from grpc_client import messages
from server import MODELS, Server

QUERY = "Which planet is red?"
LIMIT = {"max_tokens_per_doc": 40}
SENTENCES = [
    "Mars is the red planet.",
    "Bread is baked from flour and water! ",
    "火星是红色的。",
    "서울은 대한민국의 수도이다. ",
    "Is 3.14 a number? ",
    "👨‍👩‍👧 live here 🙂. ",
    "A line\nof many\r\n",
    "\n\n",
    "e\u0301e\u0301 " * 30,
]


def text_of(generator: random.Random, sentences: int) -> str:
    return " ".join(generator.choice(SENTENCES) for _ in range(sentences))


def texts() -> list[str]:
    generator = random.Random(39)
    return ["", "short", *(text_of(generator, generator.randrange(1, 25)) for _ in range(6)), "x" * 1000, "火" * 500]


@pytest.mark.parametrize("model", ["tied-bf16", "embedding-last"])
def test_a_chunk_scores_as_a_text_of_its_own_and_no_chunk_is_better(served, model):
    server: Server = served(model)
    body = {"query": QUERY, "texts": texts(), "raw_scores": True, "return_text": True, **LIMIT}
    plain = {rank["index"]: rank["score"] for rank in server.post("/rerank", body).json()}
    answer = server.post("/rerank", {**body, "max_chunks_per_doc": 60})
    assert answer.ok, answer.text
    assert answer.headers["x-truncated-texts"] == "0"
    divided = 0
    for rank in answer.json():
        text, passage = texts()[rank["index"]], rank["best_passage"]
        assert passage["text"] == text[passage["start"] : passage["end"]]
        if (passage["start"], passage["end"]) == (0, len(text)):
            assert rank["score"] == plain[rank["index"]]
            continue
        divided += 1
        alone = server.scores(QUERY, [passage["text"]], truncate=False, **LIMIT)
        assert alone == [rank["score"]]
        # A cut text has about the score of its first chunk.
        assert rank["score"] >= plain[rank["index"]] - 1.0
    assert divided > 4


def test_highlights_score_as_texts_of_their_own(served):
    server: Server = served("tied-bf16")
    asked = [text_of(random.Random(seed), 4) for seed in range(5)]
    ranks = server.rerank(QUERY, asked, highlight=3, raw_scores=True)
    assert [("highlights" in rank) for rank in ranks] == [True] * 3 + [False] * 2
    for rank in ranks[:3]:
        text = asked[rank["index"]]
        parts = [text[part["start"] : part["end"]] for part in rank["highlights"]]
        assert all(part == part.strip() for part in parts)
        assert "".join("".join(parts).split()) == "".join(text.split())
        assert server.scores(QUERY, parts) == [part["score"] for part in rank["highlights"]]


def test_clients_of_cohere_ask_for_chunks(served):
    server: Server = served("tied-bf16")
    client = cohere.Client(api_key="-", base_url=server.url)
    long = " ".join(SENTENCES[:6]) * 300
    body = {"query": QUERY, "documents": [long], "max_chunks_per_doc": 3}
    answer = server.post("/v1/rerank", body)
    found = client.rerank(model="any", query=QUERY, documents=[long], max_chunks_per_doc=3)
    result = answer.json()["results"][0]
    assert answer.headers["x-truncated-texts"] == "1"
    assert found.results[0].relevance_score == pytest.approx(result["relevance_score"])
    assert result["best_passage"]["end"] < len(long)


def test_grpc_says_the_same(connected):
    server, client = connected("tied-bf16")
    long = texts()[5] + "Z"
    ask = {"query": QUERY, "texts": [long, "short"], "truncate": True}
    expected = server.rerank(QUERY, [long, "short"], max_chunks_per_doc=9, highlight=2)
    asked = messages.RerankRequest(**ask, chunking=messages.Chunking(max_chunks_per_doc=9), highlight=2)
    answer = client.call(client.rerank.Rerank, asked)
    for rank, wanted in zip(answer.ranks, expected, strict=True):
        passage = {"start": rank.best_passage.start, "end": rank.best_passage.end}
        assert passage == wanted["best_passage"]
        found = [(part.passage.start, part.passage.end) for part in rank.highlights]
        assert found == [(part["start"], part["end"]) for part in wanted["highlights"]]
        scores = [part.score for part in rank.highlights]
        assert scores == pytest.approx([part["score"] for part in wanted["highlights"]])


def test_lists_refuse_by_name(served):
    server: Server = served(MODELS.parent / "rerankers" / "jina-reranker-v3")
    for fields in ({"max_chunks_per_doc": 2}, {"long_documents": "chunks"}, {"highlight": True}):
        answer = server.post("/rerank", {"query": QUERY, "texts": ["a"], **fields})
        assert answer.status_code == 422
        assert "reads the documents of a request together" in answer.json()["error"]
    assert server.post("/rerank", {"query": QUERY, "texts": ["a"], "long_documents": "cut"}).ok
