"""Jina's models whose files do not say everything: a re-ranker whose head appears only among the weights, and
adapters that a flag chooses.

The models are the random ones of `reference/fixtures/architectures`, with a tokenizer in which each of
`CHARACTERS` is a token.
"""

import json
import shutil
from pathlib import Path

import pytest
from models import edit_json
from server import MODELS, refusal

ARCHITECTURES = MODELS.parent / "architectures"
TOLERANCE = 1e-4
CHARACTERS = "".join(map(chr, range(ord(" "), ord("~") + 1))) + "àáâãäå"


def model(name: str, folder: Path) -> Path:
    """A copy of a model with a tokenizer."""
    root = folder / name
    shutil.copytree(ARCHITECTURES / name, root)
    size = json.loads((root / "config.json").read_text())["vocab_size"]
    assert size == len(CHARACTERS)
    vocabulary = {character: index for index, character in enumerate(CHARACTERS)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (root / "tokenizer.json").write_text(json.dumps(tokenizer))
    return root


def cases(name: str) -> list[dict]:
    return json.loads((ARCHITECTURES / name / "expected.json").read_text())["cases"]


def text(ids: list[int]) -> str:
    return "".join(CHARACTERS[index] for index in ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("jina")


def test_a_head_that_only_the_weights_name_makes_a_reranker(served, folder):
    server = served(model("jina-reranker-v1", folder), "--dtype", "float32")
    assert "reranker" in server.get("/info").json()["model_type"]
    pairs = [case for case in cases("jina-reranker-v1") if case["second"] and case["second"] < len(case["ids"])]
    assert pairs
    for case in pairs:
        ids, second = case["ids"], case["second"]
        body = {"query": text(ids[:second]), "texts": [text(ids[second:])], "raw_scores": True}
        answer = server.post("/rerank", body)
        assert answer.status_code == 200, answer.text
        assert abs(answer.json()[0]["score"] - case["logits"][0]) < TOLERANCE


def test_the_same_model_embeds_with_the_pooling_flag(served, folder):
    root = folder / "jina-reranker-v1"
    server = served(root if root.exists() else model("jina-reranker-v1", folder), "--dtype", "float32", "--pooling", "mean")
    case = next(case for case in cases("jina-reranker-v1") if case["second"] is None)
    (vector,) = server.post("/embed", {"inputs": [case["ids"]], "normalize": False}).json()
    assert vector == pytest.approx(case["mean"], abs=TOLERANCE)


@pytest.mark.parametrize("number", [0, 3])
def test_a_flag_chooses_the_adapter(served, folder, number):
    name = f"jina-v3-task-{number}"
    root = model(name, folder)
    task = json.loads((root / "config.json").read_text())["lora_adaptations"][number]
    server = served(root, "--dtype", "float32", "--pooling", "mean", "--lora-task", task)
    (first, *_) = cases(name)
    (vector,) = server.post("/embed", {"inputs": [first["ids"]], "normalize": False}).json()
    assert vector == pytest.approx(first["mean"], abs=TOLERANCE)


def test_an_unknown_task_is_refused_with_a_list_of_tasks(folder):
    root = model("jina-v3", folder)
    line = refusal(root, "--pooling", "mean", "--lora-task", "clustering")
    assert "`--lora-task clustering`" in line and "retrieval.query" in line
    edit_json(root / "config.json", load_trained_adapters=False)
    assert "no adapters" in refusal(root, "--pooling", "mean", "--lora-task", "separation")
