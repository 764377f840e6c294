"""Re-ranking with an embedding model: sentence-transformers' cosines in every dialect, over HTTP and gRPC."""

import json

import cohere
import numpy as np
import pytest
from grpc_client import messages
from reference_data import TEXTS, VECTORS
from server import MODELS, ROOT, Server, refusal
from vectors import cosine

SERVED = ROOT / "integration_tests/reference/fixtures/served"
MODEL = "embedding-last"
NAMES = ["english", "korean", "chinese", "arabic", "emoji", "decomposed", "one-token", "shared-none", "shared-more"]
DOCUMENTS = [TEXTS[name]["text"] for name in NAMES]
# With the model's prompt `query`; it has none for documents.
QUERY, QUERY_VECTOR = TEXTS["query-english"]["text"], VECTORS[MODEL]["query-english"]["normalized"]
COSINES = [cosine(QUERY_VECTOR, VECTORS[MODEL][name]["normalized"]) for name in NAMES]
SCORES = [(value + 1) / 2 for value in COSINES]
PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
TOLERANCE = 2e-5
REFUSAL = "Backend error: model is not a re-ranker model; it is an embedding model: POST /embed"


def check(rows: list[tuple[int, float]], expected: list[float]) -> None:
    """Checks that these are all indices and scores, best first."""
    assert sorted(index for index, _ in rows) == list(range(len(expected)))
    assert [score for _, score in rows] == sorted((score for _, score in rows), reverse=True)
    for index, score in rows:
        assert score == pytest.approx(expected[index], abs=TOLERANCE), NAMES[index]


@pytest.fixture
def embedder(served) -> Server:
    return served(MODEL)


def test_every_dialect_has_the_cosines(embedder):
    for raw, expected in ((False, SCORES), (True, COSINES)):
        texts = embedder.post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": raw}).json()
        check([(row["index"], row["score"]) for row in texts], expected)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"):
            answer = embedder.post(path, {"query": QUERY, "documents": DOCUMENTS, "raw_scores": raw}).json()
            rows = [(row["index"], row["relevance_score"]) for row in answer["results"]]
            assert rows == [(row["index"], row["score"]) for row in texts], path
        for queries in (QUERY, [QUERY] * len(DOCUMENTS)):
            answer = embedder.post("/score", {"queries": queries, "documents": DOCUMENTS, "use_activation": not raw})
            scores = {row["index"]: row["score"] for row in answer.json()["data"]}
            assert scores == dict((row["index"], row["score"]) for row in texts)
    nim = embedder.post("/v1/ranking", {"query": {"text": QUERY}, "passages": [{"text": text} for text in DOCUMENTS]}).json()
    check([(row["index"], row["logit"]) for row in nim["rankings"]], COSINES)
    vertex = embedder.post("/vertex", {"instances": [{"query": QUERY, "texts": DOCUMENTS}]}).json()["predictions"][0]
    check([(row["index"], row["score"]) for row in vertex], SCORES)


def test_a_client_does_not_notice(embedder):
    client = cohere.ClientV2(api_key="-", base_url=embedder.url)
    answer = client.rerank(model="any", query=QUERY, documents=DOCUMENTS, top_n=3)
    best = sorted(range(len(SCORES)), key=lambda index: -SCORES[index])[:3]
    assert [row.index for row in answer.results] == best
    assert [row.relevance_score for row in answer.results] == pytest.approx([SCORES[i] for i in best], abs=TOLERANCE)


def test_info_says_how(embedder, served):
    assert embedder.get("/info").json()["cosine_reranking"] == {
        "raw_score": "cosine",
        "score": "(x+1)/2",
        "query_prompt": PROMPT,
        "document_prompt": "",
    }
    assert served("tied-bf16").get("/info").json()["cosine_reranking"] is None


def max_sims(query: list, documents: list) -> np.ndarray:
    """FlagEmbedding's `colbert_score`: the mean of the largest cosines of the query's vectors."""
    return np.array([(np.array(query) @ np.array(document).T).max(axis=1).mean() for document in documents])


def test_bge_m3_compares_vectors_of_tokens_if_a_flag_says_so(served):
    rows = json.loads((SERVED / "bge-m3.expected.json").read_text(encoding="utf-8"))["rows"]
    rows = [row for row in rows if row["colbert"] and row["max_length"] is None]
    server = served(SERVED / "bge-m3", "--maxsim-rerank")
    texts, vectors = [row["inputs"][0] for row in rows], [row["colbert"] for row in rows]
    assert len(rows) >= 4
    for query, of_query in zip(texts, vectors, strict=True):
        expected = max_sims(of_query, vectors)
        raw = server.scores(query, texts, raw_scores=True)
        assert raw == pytest.approx(expected * len(of_query), abs=TOLERANCE * len(of_query))
        assert server.scores(query, texts, raw_scores=False) == pytest.approx((expected + 1) / 2, abs=TOLERANCE)
        alone = server.scores(query, texts[1:2], raw_scores=True)
        assert alone == pytest.approx(raw[1:2], abs=TOLERANCE)
    # A query for each document.
    answer = server.post("/score", {"queries": texts, "documents": texts[::-1], "use_activation": False}).json()
    own = [max_sims(query, [document])[0] * len(query) for query, document in zip(vectors, vectors[::-1], strict=True)]
    assert [row["score"] for row in answer["data"]] == pytest.approx(own, abs=TOLERANCE * 40)
    ranking = server.get("/info").json()["cosine_reranking"]
    assert ranking == {"raw_score": "maxsim", "score": "(x+1)/2", "query_prompt": "", "document_prompt": ""}


def test_a_model_without_token_vectors_does_not_compare_them():
    assert "`--maxsim-rerank` is for embedding models with a layer" in refusal(MODELS / MODEL, "--maxsim-rerank")


def test_a_flag_keeps_teis_refusal(served):
    server = served(MODEL, "--no-cosine-rerank")
    for path, body in {
        "/rerank": {"query": QUERY, "texts": DOCUMENTS},
        "/score": {"queries": QUERY, "documents": DOCUMENTS},
    }.items():
        answer = server.post(path, body)
        assert answer.status_code == 424 and REFUSAL.removeprefix("Backend error: ") in answer.text
    assert server.get("/info").json()["cosine_reranking"] is None


def test_a_splade_model_refuses(served):
    answer = served(str(SERVED / "bert-splade-saved")).post("/rerank", {"query": "a", "texts": ["b"]})
    assert answer.status_code == 424 and "it is a SPLADE model" in answer.json()["error"]


def test_an_instruction_has_no_place(embedder, served):
    body = {"query": QUERY, "texts": DOCUMENTS}
    answer = embedder.post("/rerank", body | {"instruction": "Judge."})
    assert answer.status_code == 422 and "`instruction` cannot be given" in answer.json()["error"]
    ignoring = served(MODEL, "--ignore-instruction").post("/rerank", body | {"instruction": "Judge."}).json()
    assert ignoring == embedder.post("/rerank", body).json()


@pytest.mark.parametrize("raw", [False, True])
def test_grpc_gives_the_same(connected, raw):
    server, client = connected(MODEL)
    expected = server.post("/rerank", {"query": QUERY, "texts": DOCUMENTS, "raw_scores": raw}).json()
    request = messages.RerankRequest(query=QUERY, texts=DOCUMENTS, raw_scores=raw)
    answer = client.call(client.rerank.Rerank, request)
    assert [rank.index for rank in answer.ranks] == [row["index"] for row in expected]
    # The same float32, once as decimals.
    assert [rank.score for rank in answer.ranks] == pytest.approx([row["score"] for row in expected], rel=1e-7)


def test_an_embedding_model_leaves_re_ranking_to_a_re_ranker(served):
    """In one process, a request goes to the re-ranker unless it names the embedding model."""
    server = served(MODEL, "--model-id", str(MODELS / "tied-bf16"))
    body = {"query": QUERY, "documents": DOCUMENTS}
    assert server.post("/v1/rerank", body).json()["model"] == "tied-bf16"
    named = server.post("/v1/rerank", body | {"model": MODEL}).json()
    check([(row["index"], row["relevance_score"]) for row in named["results"]], SCORES)
