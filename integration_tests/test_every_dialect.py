"""The additions around the score in every dialect: the same parts, scores and counts whoever asks, over HTTP,
over gRPC and from the Python client.

Every cell is compared with `/rerank` with `texts`, which test_passages.py, test_score_cache.py and
test_cosine_rerank.py compare with its definition.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from grpc_client import messages
from server import ROOT, Server

sys.path.insert(0, str(ROOT / "python"))

import text_embeddings_router as ter  # noqa: E402

RERANKER, EMBEDDER = "tied-bf16", "embedding-last"
QUERY = "Which planet is red?"
DOCUMENTS = [
    "Bread is baked from flour and water. Mars is the red planet. Venus is hot. The end of a long text 🙂.",
    "火星是红色的。서울은 대한민국의 수도이다. " * 3,
    "Mars is red.",
]
LIMIT = {"max_tokens_per_doc": 24}
PARTS = ("best_passage", "highlights")
# The tests' servers keep no scores by default.
FLAGS = ("--score-cache-bytes", "10000000")


@dataclass(frozen=True)
class Dialect:
    """A body, and the places of the results, of the score and of a text in its answer."""

    path: str
    texts: str
    results: str | None
    score: str
    own: dict


DIALECTS = {
    "TEI": Dialect("/rerank", "texts", None, "score", {}),
    "TEI at /": Dialect("/", "texts", None, "score", {}),
    "SageMaker": Dialect("/invocations", "texts", None, "score", {}),
    "Cohere v1": Dialect("/v1/rerank", "documents", "results", "relevance_score", {"model": "rerank-v3.5", "return_documents": False}),
    "Cohere v2": Dialect("/v2/rerank", "documents", "results", "relevance_score", {"model": "rerank-v3.5"}),
    "Jina": Dialect("/v1/rerank", "documents", "results", "relevance_score", {"model": "jina", "top_n": 3}),
    "vLLM": Dialect("/rerank", "documents", "results", "relevance_score", {"model": "any", "truncate_prompt_tokens": -1}),
    "llama.cpp": Dialect("/reranking", "documents", "results", "relevance_score", {}),
    "llama.cpp v1": Dialect("/v1/reranking", "documents", "results", "relevance_score", {}),
    "Infinity": Dialect("/rerank", "documents", "results", "relevance_score", {"raw_scores": False}),
    "Voyage": Dialect("/v1/rerank", "documents", "data", "relevance_score", {"truncation": True}),
    "Mixedbread": Dialect("/v1/reranking", "input", "data", "score", {}),
    # Logits by default, and nothing is cut.
    "NIM": Dialect("/v1/ranking", "passages", "rankings", "logit", {"truncate": "END", "raw_scores": False}),
}
# The fields of each addition, and the headers that count its work.
ADDITIONS = {
    "nothing": ({}, ["x-score-cache"]),
    "chunks": ({"max_chunks_per_doc": 3, **LIMIT}, ["x-truncated-texts", "x-score-cache"]),
    "overlapping chunks": ({"long_documents": "chunks", "chunk_overlap": 6, **LIMIT}, ["x-truncated-texts"]),
    "highlights": ({"highlight": 2}, ["x-score-cache"]),
    "chunks and highlights": ({"max_chunks_per_doc": 9, "highlight": True, **LIMIT}, []),
    "a least score": ({"min_score": 0.0}, ["x-dropped-texts"]),
    "an unknown field": ({"colour": "red"}, ["x-ignored-fields"]),
}


def rows_of(results: list[dict], score: str) -> list[dict]:
    """Index, score and parts of each result."""
    return [{"index": row["index"], "score": row[score], **{part: row[part] for part in PARTS if part in row}} for row in results]


def asked(server: Server, dialect: Dialect, fields: dict) -> tuple[list[dict], dict]:
    answer = server.post(dialect.path, {"query": QUERY, dialect.texts: DOCUMENTS, **dialect.own, **fields})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return rows_of(body if dialect.results is None else body[dialect.results], dialect.score), answer.headers


@pytest.fixture(scope="module")
def expected(connected) -> Callable[[str, str], tuple[list[dict], dict]]:
    """Rows and headers of `/rerank` for a model and an addition, when the score cache has all of it."""
    found = {}

    def get(model: str, addition: str) -> tuple[list[dict], dict]:
        fields, names = ADDITIONS[addition]
        if (model, addition) not in found:
            for _ in range(2):
                rows, headers = asked(connected(model, *FLAGS)[0], DIALECTS["TEI"], fields)
            assert all(headers.get(name) for name in names), (addition, headers)
            found[model, addition] = rows, {name: headers[name] for name in names}
        return found[model, addition]

    return get


# Every dialect, with both models. The main task of an embedding model is another one.
CELLS = [
    (name, model)
    for name, dialect in DIALECTS.items()
    for model in (RERANKER, EMBEDDER)
    if model == RERANKER or dialect.path not in ("/", "/invocations")
]


@pytest.mark.parametrize("addition", ADDITIONS)
@pytest.mark.parametrize(("name", "model"), CELLS)
def test_every_dialect_has_every_addition(connected, expected, name, model, addition):
    rows, headers = expected(model, addition)
    found, sent = asked(connected(model, *FLAGS)[0], DIALECTS[name], ADDITIONS[addition][0])
    assert found == rows
    assert {header: sent.get(header) for header in headers} == headers


# Bodies that clients send if their users set everything. `test_rerank_clients.py` has those clients that run
# here.
IN_FULL = {
    "Cohere v1": {"top_n": 3, "rank_fields": ["text"], "return_documents": True, "max_chunks_per_doc": None},
    "Cohere v2": {"top_n": 3, "max_tokens_per_doc": 4096, "priority": 0},
    "Infinity": {"model": "m", "return_documents": False},
    "vLLM": {
        "top_n": 0, "user": "u", "truncation_side": "left", "max_tokens_per_query": 0, "max_tokens_per_doc": 0, "instruction": None,
        "chat_template_kwargs": {"instruction": None, "thinking": True}, "use_activation": True, "priority": 0, "cache_salt": "s",
        "mm_processor_kwargs": None, "padding": None,
    },
    # SGLang and Xinference, whose paths and answers are Jina's.
    "Jina": {"instruct": None, "return_documents": True, "max_chunks_per_doc": None, "return_len": True, "top_n": None},
}


@pytest.mark.parametrize("name", IN_FULL)
def test_every_field_of_a_client_is_understood(connected, expected, name):
    assert asked(connected(RERANKER, *FLAGS)[0], DIALECTS[name], IN_FULL[name])[0] == expected(RERANKER, "nothing")[0]


def test_the_table_shows_something(expected):
    """The rows that are compared have parts, cut texts, kept scores and named fields."""
    for model in (RERANKER, EMBEDDER):
        chunks, counts = expected(model, "chunks")
        assert any(row["best_passage"]["end"] < len(DOCUMENTS[row["index"]]) for row in chunks)
        assert int(counts["x-score-cache"]) > len(DOCUMENTS)
        marked, _ = expected(model, "highlights")
        assert [len(row.get("highlights", [])) > 1 for row in marked].count(True) >= 1
        assert expected(model, "an unknown field")[1] == {"x-ignored-fields": "colour"}


@pytest.mark.parametrize("addition", ADDITIONS)
@pytest.mark.parametrize("model", [RERANKER, EMBEDDER])
def test_vertex_has_them_too(connected, expected, model, addition):
    rows, _ = expected(model, addition)
    body = {"instances": [{"query": QUERY, "texts": DOCUMENTS, **ADDITIONS[addition][0]}]}
    assert rows_of(connected(model, *FLAGS)[0].post("/vertex", body).json()["predictions"][0], "score") == rows


@pytest.mark.parametrize("model", [RERANKER, EMBEDDER])
def test_grpc_has_them_too(connected, model):
    server, client = connected(model, *FLAGS)
    for plain, fields in [
        ({}, {}),
        ({"max_chunks_per_doc": 3}, {"chunking": messages.Chunking(max_chunks_per_doc=3)}),
        ({"chunk_overlap": 6}, {"chunking": messages.Chunking(chunk_overlap=6)}),
        ({"highlight": 2}, {"highlight": 2}),
        ({"min_score": 0.0}, {"min_score": 0.0}),
    ]:
        rows, headers = asked(server, DIALECTS["TEI"], plain)
        answer = client.call(client.rerank.Rerank, messages.RerankRequest(query=QUERY, texts=DOCUMENTS, truncate=True, **fields))
        for rank, row in zip(answer.ranks, rows, strict=True):
            assert rank.index == row["index"] and rank.score == pytest.approx(row["score"], rel=1e-6)
            place = {"start": rank.best_passage.start, "end": rank.best_passage.end}
            assert place == row.get("best_passage", {"start": 0, "end": 0})
            places = [(part.passage.start, part.passage.end) for part in rank.highlights]
            assert places == [(part["start"], part["end"]) for part in row.get("highlights", [])]
        # Over HTTP everything was computed, and now it is kept.
        assert answer.metadata.cached_texts >= int(headers["x-score-cache"]) and answer.metadata.cached_texts > 0
        assert answer.metadata.HasField("dropped_texts") == ("x-dropped-texts" in headers)


@pytest.mark.parametrize("model", [RERANKER, EMBEDDER])
def test_the_python_client_has_them_too(connected, model):
    server, _ = connected(model, *FLAGS)
    for fields in ({}, {"max_chunks_per_doc": 3}, {"chunk_overlap": 6}, {"highlight": 2}, {"min_score": 0.0}):
        plain, _ = asked(server, DIALECTS["TEI"], fields)
        with ter.Client(server.url) as client:
            ranks = client.rerank(QUERY, DOCUMENTS, **fields)
        for rank, row in zip(ranks, plain, strict=True):
            assert (rank.index, rank.score) == (row["index"], row["score"])
            assert (rank.best_passage is None) == ("best_passage" not in row)
            assert [(part.start, part.end, part.score) for part in rank.highlights or ()] == [
                (part["start"], part["end"], part["score"]) for part in row.get("highlights", [])
            ]


@pytest.mark.parametrize("name", DIALECTS)
def test_strict_fields_hold_in_every_dialect(served, name):
    dialect = DIALECTS[name]
    server = served(RERANKER, "--strict-fields")
    answer = server.post(dialect.path, {"query": QUERY, dialect.texts: DOCUMENTS, **dialect.own, "highlihgt": 2})
    assert answer.status_code == 422 and "`highlihgt`" in answer.text and "`highlight`" in answer.text, answer.text
