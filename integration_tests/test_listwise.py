"""jina-reranker-v3, which reads all documents of a request in one prompt. Its scores equal its authors'
code's.

`reference/fixtures/rerankers/jina-reranker-v3` is a small random model in the layout of the original;
`jina-reranker-v3.expected.json` has the scores that the authors' code gives it
(reference/architectures/listwise.py).
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import rerank
from grpc_client import messages
from models import edit_json
from server import MODELS, refusal

FOLDER = MODELS.parent / "rerankers" / "jina-reranker-v3"
ROWS = json.loads(FOLDER.with_name("jina-reranker-v3.expected.json").read_text())["rows"]
WHOLE = [row for row in ROWS if not row["limits"] and row["query"].strip()]
FIRST = ROWS[0]
FEW = {"query": FIRST["query"], "documents": FIRST["documents"][:3]}


def close(expected: object) -> object:
    return pytest.approx(expected, abs=1e-4, rel=0)


def half(raw: list[float]) -> list[float]:
    """The default scores for raw scores."""
    return [(x + 1) / 2 for x in raw]


def given(row: dict) -> dict:
    return {} if row["instruction"] is None else {"instruction": row["instruction"]}


@pytest.fixture(scope="module")
def serving(served):
    return served(FOLDER)


@pytest.mark.parametrize("row", WHOLE, ids=range(len(WHOLE)))
def test_scores_are_those_of_the_authors_code(serving, row):
    body = {"query": row["query"], "texts": row["documents"]} | given(row)
    answer = serving.post("/rerank", body | {"raw_scores": True})
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["x-listwise-prompts"]) == len(row["prompts"])
    assert int(answer.headers["x-compute-tokens"]) == sum(map(len, row["prompts"]))
    ranks = sorted(answer.json(), key=lambda rank: rank["index"])
    assert [rank["score"] for rank in ranks] == close(row["raw"])
    assert answer.json() == sorted(answer.json(), key=lambda rank: -rank["score"])
    assert serving.scores(row["query"], row["documents"], raw_scores=False, **given(row)) == close(half(row["raw"]))


@pytest.mark.parametrize("row", [row for row in ROWS if row["limits"]], ids=["room", "alone"])
def test_a_smaller_limit_on_a_prompt_makes_more_prompts(served, row):
    server = served(FOLDER, "--max-input-length", str(row["limits"]["max_length"]))
    body = {"query": row["query"], "documents": row["documents"], "use_activation": False}
    body |= {"max_tokens_per_doc": row["limits"].get("max_doc_length", 2048)}
    answer = server.post("/rerank", body)
    assert int(answer.headers["x-listwise-prompts"]) == len(row["prompts"]) > 1
    results = sorted(answer.json()["results"], key=lambda result: result["index"])
    assert [result["relevance_score"] for result in results] == close(row["raw"])


def test_a_score_depends_on_the_other_documents_and_the_server_tells(serving, connected):
    alone = ROWS[2]
    assert FIRST["documents"][0] == alone["documents"][0] and abs(FIRST["raw"][0] - alone["raw"][0]) > 0.01
    assert serving.scores(alone["query"], alone["documents"], raw_scores=True) == close(alone["raw"])
    server, client = connected(FOLDER)
    info = server.get("/info").json()
    assert info["model_kind"] == "listwise-reranker" and info["max_input_length"] == 32768
    reranker = info["reranker"]
    assert (reranker["family"], reranker["score"], reranker["answers"]) == ("jina-reranker-v3", "(x+1)/2", None)
    assert reranker["scores_depend_on_request"] is True
    assert client.call(client.info.Info, messages.InfoRequest()).reranker.scores_depend_on_request
    cohere = server.post("/v2/rerank", {"model": "m"} | FEW).json()
    assert "depends on the other documents" in cohere["meta"]["warnings"][0]
    assert cohere["meta"]["warnings"] == server.post("/v1/rerank", FEW).json()["meta"]["warnings"]


def test_every_dialect_and_grpc_give_the_same_scores(connected):
    server, client = connected(FOLDER)
    query, documents = FEW.values()
    expected = close(server.scores(query, documents, raw_scores=False))
    order = lambda results, key: [result[key] for result in sorted(results, key=lambda result: result["index"])]
    assert order(server.post("/v2/rerank", {"model": "m"} | FEW).json()["results"], "relevance_score") == expected
    mixedbread = server.post("/rerank", {"model": "m", "query": query, "input": documents}).json()
    assert order(mixedbread["data"], "score") == expected
    # One query is a list; pairs are a list each.
    assert order(server.post("/score", {"text_1": query, "text_2": documents}).json()["data"], "score") == expected
    pairs = server.post("/score", {"text_1": [query] * 3, "text_2": documents})
    alone = close([server.scores(query, [document], raw_scores=False)[0] for document in documents])
    assert order(pairs.json()["data"], "score") == alone and pairs.headers["x-listwise-prompts"] == "3"
    predictions = server.post("/predict", {"inputs": [[query, document] for document in documents]}).json()
    assert [prediction[0]["score"] for prediction in predictions] == alone
    request = messages.RerankRequest(query=query, texts=documents, truncate=True)
    ranked = client.call(client.rerank.Rerank, request)
    stream = [messages.RerankStreamRequest(query=query, text=text, truncate=True) for text in documents]
    for answer in (ranked, client.call(client.rerank.RerankStream, iter(stream))):
        assert [rank.score for rank in sorted(answer.ranks, key=lambda rank: rank.index)] == expected
        assert answer.metadata.listwise_prompts == 1


def test_requests_at_once_do_not_touch_each_other(serving):
    rows = [row for row in WHOLE if len(row["documents"]) < 20] * 3
    score = lambda row: serving.scores(row["query"], row["documents"], raw_scores=True, **given(row))
    with ThreadPoolExecutor(8) as pool:
        for row, scores in zip(rows, pool.map(score, rows), strict=True):
            assert scores == close(row["raw"])


def test_texts_that_are_too_long_are_cut_or_refused(serving):
    long = "Mars is red. " * 2000
    body = {"query": "planet", "texts": ["no", long]}
    assert serving.post("/rerank", body).headers["x-truncated-texts"] == "1"
    refused = serving.post("/rerank", body | {"truncate": False})
    error = refused.json()["error"]
    assert refused.status_code == 422 and "less than 2048 tokens" in error and error.endswith("the index of this input is 1")
    refused = serving.post("/rerank", {"query": long, "texts": ["no"], "truncate": False})
    assert refused.status_code == 422 and "`query` must have at most 512 tokens" in refused.json()["error"]
    empty = serving.post("/rerank", {"query": " ", "texts": ["no"]})
    assert empty.status_code == 400


def test_only_documents_of_a_query_are_served(serving):
    for path, body in [("/embed", {"inputs": "a"}), ("/embed_all", {"inputs": "a"}), ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}})]:
        answer = serving.post(path, body)
        assert answer.status_code == 424 and "not an embedding model" in answer.text
    shown = serving.post("/playground/prompt", {"query": "a", "text": "b"})
    assert shown.status_code == 422 and "holds all documents" in shown.text


def test_the_instruction_is_the_requests_or_the_servers(serving, served):
    row = next(row for row in WHOLE if row["instruction"])
    server = served(FOLDER, "--default-instruction", row["instruction"])
    assert server.scores(row["query"], row["documents"], raw_scores=True) == close(row["raw"])
    assert server.get("/info").json()["default_instruction"] == row["instruction"]
    bare = server.scores(FIRST["query"], FIRST["documents"], raw_scores=True, instruction="")
    assert bare == close(FIRST["raw"])


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--chat-template", "qwen3-reranker"), "reads all documents of a request in one prompt"),
        (("--rerank-true-token", "yes"), "compares vectors"),
        (("--model-type", "reranker"), "needs a classification head"),
        (("--cutoff-layers", "1"), "after its last layer only"),
    ],
)
def test_flags_of_other_re_rankers_are_refused(flags, part):
    assert part in refusal(FOLDER, *flags)


def test_its_prompt_is_for_no_other_model(tmp_path):
    assert "another architecture (JinaForRanking)" in refusal(
        FOLDER.with_name("zerank-1-small"), "--chat-template", "jina-reranker-v3"
    )
    folder = Path(shutil.copytree(FOLDER, tmp_path / "model"))
    edit_json(folder / "config.json", use_sliding_window=True, sliding_window=64, layer_types=["sliding_attention"] * 2)
    assert "a sliding window of a listwise re-ranker (JinaForRanking) is not supported" in refusal(folder)


def test_the_command_ranks_as_many_documents_as_one_request_can_hold(serving):
    documents = FIRST["documents"][:6]
    ended = rerank(FOLDER, FIRST["query"], *documents, "--raw-scores", "--dtype", "float32", "--output", "jsonl")
    found = {line["index"]: line["score"] for line in ended.lines()}
    several = rerank(FOLDER, FIRST["query"], *map(str, range(300)))
    assert several.code == 1 and "reads all documents together" in several.err
    expected = serving.scores(FIRST["query"], documents, raw_scores=True)
    assert [found[index] for index in range(len(documents))] == close(expected)
