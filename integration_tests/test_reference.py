"""Every pair of `reference/` gets transformers' score over HTTP, from every model folder."""

import pytest
from reference_data import CASES, EXPECTED, IDS, PROMPT, fields
from server import MODEL_FLAGS, Server

RAW_TOLERANCE = 1e-4
# Resident bytes that a token may add at the peak. The rows of the layers take far less; one row of a score
# matrix would take far more: 4 · 32,768 bytes.
BYTES_PER_TOKEN = 8192


def by_server() -> list[tuple[str, int, str]]:
    """Model, longest input and name of each case, sorted by server."""
    rows = [(model, CASES[name]["max_length"], name) for model, cases in EXPECTED.items() for name in cases]
    return sorted((row for row in rows if row[1] != 40960), key=lambda row: row[:2])


def test_every_case_has_its_expected_outputs():
    for model in MODEL_FLAGS:
        wanted = {name for name, case in CASES.items() if model in (case["models"] or [model])}
        assert set(EXPECTED[model]) == wanted and len(wanted) > 60, model


@pytest.mark.parametrize(("model", "longest", "name"), by_server())
def test_score_is_that_of_transformers(limited, model, longest, name):
    server = limited(model, longest)
    case, expected = CASES[name], EXPECTED[model][name]
    body = {"query": case["query"], "texts": [case["document"]], **fields(case)}
    raw = server.post("/rerank", body | {"raw_scores": True})
    assert raw.status_code == 200, raw.text
    assert raw.json() == [{"index": 0, "score": pytest.approx(expected["raw"], abs=RAW_TOLERANCE, rel=0)}]
    assert int(raw.headers["x-compute-tokens"]) == IDS[name]["length"]
    shown = server.post("/playground/prompt", {"query": case["query"], "text": case["document"], **fields(case)}).json()
    ids = [token for piece in shown["pieces"] if not piece["cut"] for token in piece["ids"]]
    assert ids == IDS[name].get("ids", ids) and len(ids) == shown["tokens"] == IDS[name]["length"]
    assert int(raw.headers["x-compute-characters"]) == len(case["query"]) + len(case["document"])
    score = server.post("/rerank", body).json()[0]["score"]
    assert score == pytest.approx(expected["score"], abs=1e-5)
    if case["instruction"] is None:
        pair = {"inputs": [case["query"], case["document"]], "truncation_direction": case["truncation_direction"]}
        assert server.post("/predict", pair).json() == [{"score": pytest.approx(score, abs=1e-6), "label": "yes"}]
        assert server.post("/predict", pair | {"raw_scores": True}).json() == [
            {"score": pytest.approx(expected["raw"], abs=RAW_TOLERANCE, rel=0), "label": "yes"}
        ]


def test_32768_tokens_have_their_score_in_linear_memory():
    case, expected = CASES["tokens-32768"], EXPECTED["tied-f32-bare"]["tokens-32768"]
    with Server("tied-f32-bare", "--max-input-length", "40960") as server:
        server.scores(case["query"], ["warm"])
        before = server.peak_memory()
        body = {"query": case["query"], "texts": [case["document"]], "raw_scores": True}
        answer = server.post("/rerank", body)
        tokens = int(answer.headers["x-compute-tokens"])
        assert answer.json()[0]["score"] == pytest.approx(expected["raw"], abs=RAW_TOLERANCE, rel=0)
        assert tokens == IDS["tokens-32768"]["length"] > 32_768
        assert answer.headers["x-truncated-texts"] == "0"
        assert server.peak_memory() - before < tokens * BYTES_PER_TOKEN


@pytest.mark.parametrize("model", MODEL_FLAGS)
def test_prompt_pieces_have_their_ids_both_ways(served, model):
    server = served(model)
    decoded = server.post("/decode", {"ids": [PROMPT["prefix"], PROMPT["suffix"]], "skip_special_tokens": False})
    prefix, suffix = decoded.json()
    assert prefix.startswith("<|im_start|>system\nJudge whether") and prefix.endswith("<|im_start|>user\n")
    assert suffix == "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    tokens = server.post("/tokenize", {"inputs": [prefix, suffix, "yes", "no"]}).json()
    ids = [[token["id"] for token in text] for text in tokens]
    assert ids == [PROMPT["prefix"], PROMPT["suffix"], [PROMPT["yes"]], [PROMPT["no"]]]
