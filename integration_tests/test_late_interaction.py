"""Late-interaction models (ColBERT): vectors and scores equal sentence-transformers', in its own layout and
in the layouts of PyLate and of Stanford.

Each folder of `reference/fixtures/late` is a small random model, and `NAME.expected.json` next to it has the
vectors of queries and documents, and the score of each pair: `reference/architectures/late.py`.
"""

import base64
import json
import shutil
from pathlib import Path

import msgpack
import numpy as np
import pytest
from models import edit_json
from server import MODELS, Server, refusal

LATE = MODELS.parent / "late"
EXPECTED = {path.name.removesuffix(".expected.json"): json.loads(path.read_text()) for path in LATE.glob("*.expected.json")}
TOLERANCE = 1e-4
SIDES = {"query": "queries", "document": "documents"}


@pytest.fixture(scope="session")
def serving(served):
    return lambda name, *flags: served(LATE / name, *flags)


def vectors(server, text: str, side: str) -> np.ndarray:
    answer = server.post("/embed_all", {"inputs": text, "prompt_name": side})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()[0])


def ranked(server, query: str, texts: list[str], **fields: object) -> list[float]:
    answer = server.post("/rerank", {"query": query, "texts": texts} | fields)
    assert answer.status_code == 200, answer.text
    rows = answer.json()
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    return [row["score"] for row in sorted(rows, key=lambda row: row["index"])]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_vectors_of_both_sides_are_the_references(serving, name, side):
    server = serving(name)
    for row in EXPECTED[name][SIDES[side]]:
        found, expected = vectors(server, row["text"], side), np.array(row["vectors"])
        assert found.shape == expected.shape, row["text"]
        assert np.abs(found - expected).max() <= TOLERANCE, row["text"]
    # Without a name, a text is a document.
    text = EXPECTED[name]["documents"][1]["text"]
    bare = server.post("/embed_all", {"inputs": text, "normalize": False}).json()[0]
    assert np.abs(np.array(bare) - vectors(server, text, "document")).max() == 0


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_scores_are_sums_of_the_best_cosines(serving, name):
    server, expected = serving(name), EXPECTED[name]
    documents = [row["text"] for row in expected["documents"]]
    for row, scores in zip(expected["queries"], expected["scores"], strict=True):
        count = len(row["vectors"])
        raw = ranked(server, row["text"], documents, raw_scores=True)
        assert raw == pytest.approx(scores, abs=TOLERANCE * count, rel=0)
        assert ranked(server, row["text"], documents) == pytest.approx([(x / count + 1) / 2 for x in raw], abs=1e-6)
        assert ranked(server, row["text"], documents[2:3], raw_scores=True) == pytest.approx(raw[2:3], abs=2e-5 * count)
        pairs = [[row["text"], document] for document in documents]
        predicted = server.post("/predict", {"inputs": pairs, "raw_scores": True}).json()
        assert [entry[0]["score"] for entry in predicted] == pytest.approx(raw, abs=2e-5 * count)
    body = {"model": name, "query": row["text"], "documents": documents, "top_n": 2}
    results = server.post("/v2/rerank", body).json()["results"]
    best = sorted(range(len(raw)), key=lambda index: -raw[index])[:2]
    assert [result["index"] for result in results] == best


def test_token_vectors_have_other_types_and_notations(serving):
    """As on the other routes: numpy rounds and packs the same values."""
    server, text = serving("colbert-pylate"), EXPECTED["colbert-pylate"]["documents"][1]["text"]
    floats = vectors(server, text, "document").astype(np.float32)
    steps = 127 / min(1, 8 / floats.shape[1] ** 0.5)
    integers = np.clip(np.rint(floats * np.float32(steps)), -127, 127)
    bits = np.packbits(floats > 0, axis=1)
    expected = {
        "float": (floats, "<f4"),
        "float16": (floats.astype(np.float16), "<f2"),
        "int8": (integers, "i1"),
        "uint8": (integers + 128, "u1"),
        "binary": (bits.astype(int) - 128, "i1"),
        "ubinary": (bits, "u1"),
    }
    body = {"inputs": [text, text], "prompt_name": "document"}
    for dtype, (values, layout) in expected.items():
        for path, more in (("/embed_all", {}), ("/embed", {"outputs": ["tokens"]})):
            fields = body | more | {"output_dtype": dtype}
            plain = server.post(path, fields).json()
            coded = server.post(path, fields | {"encoding_format": "base64"}).json()
            packed = server.post(path, fields | {"encoding_format": "base64"}, headers={"Accept": "application/msgpack"})
            packed = msgpack.unpackb(packed.content)
            for index in (0, 1):
                lists, texts, raw = ((rows[index]["tokens"] if more else rows[index]) for rows in (plain, coded, packed))
                np.testing.assert_array_equal(np.array(lists, np.float32), values.astype(np.float32), dtype)
                decoded = [np.frombuffer(base64.b64decode(one, validate=True), layout) for one in texts]
                np.testing.assert_array_equal(np.array(decoded, np.float32), values.astype(np.float32), dtype)
                assert raw == [base64.b64decode(one) for one in texts]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_vectors_of_documents_are_kept_for_other_queries(serving, dtype):
    name = "colbert-pylate"
    documents = [row["text"] for row in EXPECTED[name]["documents"]] + [" ".join(["a long text about a moon"] * 20)]
    server, without = (serving(name, "--dtype", dtype, "--score-cache-bytes", size) for size in ("1000000", "0"))
    query, other, count = "Which moon is it?", "What is a moon?", len(documents)
    cut = {"max_tokens_per_doc": 3}
    # The second time, everything is kept. A document that is the query, another limit and another wish about
    # truncation are other inputs; another order is not.
    for texts, asked, fields, hits in [
        (documents, query, {}, None),
        (documents, query, {}, count + 1),
        (documents, other, {}, count),
        (documents[::-1], other, {}, count + 1),
        ([query, *documents], documents[0], {}, count),
        ([query], documents[0], {}, 2),
        (documents, other, {"truncate": False}, 0),
        (documents, other, {"truncate": False}, count + 1),
        (documents, other, {"truncation_direction": "left"}, 0),
    ]:
        body = {"query": asked, "texts": texts, "raw_scores": True, "truncate": True} | fields
        answer, expected = server.post("/rerank", body), without.post("/rerank", body)
        assert answer.json() == expected.json()
        for header in ("x-compute-tokens", "x-compute-characters", "x-truncated-texts"):
            assert answer.headers[header] == expected.headers[header], fields
        assert hits is None or int(answer.headers["x-score-cache"]) == hits, (asked, fields)
    for hits in (0, count, count):
        body = {"model": "m", "query": f"{other} {hits}", "documents": documents} | cut
        answer, expected = server.post("/v2/rerank", body), without.post("/v2/rerank", body)
        assert answer.json()["results"] == expected.json()["results"]
        assert answer.headers["x-truncated-texts"] == expected.headers["x-truncated-texts"]
        assert int(answer.headers["x-score-cache"]) in (hits, hits + 1)
    assert int(server.metrics()["te_score_cache_hits"]) > 0


def test_identity_gives_the_sum_and_info_says_the_rule(serving):
    name = "colbert-pylate"
    info = serving(name).get("/info").json()
    assert "reranker" in info["model_type"] and info["max_input_length"] == 40
    query, document = EXPECTED[name]["queries"][0]["text"], EXPECTED[name]["documents"][0]["text"]
    server = serving(name, "--rerank-activation", "identity")
    assert ranked(server, query, [document]) == ranked(server, query, [document], raw_scores=True)


MISTAKES = [
    ("/embed", {"inputs": "a"}, 424, "late-interaction re-ranker: POST /rerank, or /embed_all"),
    ("/embed_all", {"inputs": "a", "prompt_name": "x"}, 422, "this model has `query` and `document`"),
    ("/embed_all", {"inputs": [[5, 6]]}, 422, "send no token ids"),
    ("/embed_all", {"inputs": "a", "dimensions": 3}, 422, "`dimensions` is not available"),
    ("/rerank", {"query": "a", "texts": ["b"], "instruction": "x"}, 422, "`instruction` cannot be given"),
    ("/playground/prompt", {"query": "a", "text": "b"}, 422, "reads query and document apart"),
]


@pytest.mark.parametrize(("path", "body", "status", "part"), MISTAKES)
def test_a_mistake_is_named(serving, path, body, status, part):
    answer = serving("colbert-pylate").post(path, body)
    assert answer.status_code == status and part in answer.text, answer.text


def changed(tmp_path: Path, name: str, file: str, **fields: object) -> Path:
    folder = Path(shutil.copytree(LATE / name, tmp_path / "model"))
    edit_json(folder / file, **fields)
    return folder


SETTINGS = "config_sentence_transformers.json"
REFUSED = [
    ("colbert-pylate", SETTINGS, {"query_prefix": "[X] "}, (), "marker is `[X] `, which is not a token"),
    ("colbert-pylate", SETTINGS, {"prompts": {"query": "say "}}, (), "`prompts` of config_sentence_transformers.json"),
    ("colbert-pylate", SETTINGS, {"query_length": "x"}, (), "invalid type"),
    ("colbert-pylate", SETTINGS, {"model_type": "MultiVectorEncoder"}, (), "whose layout is not supported"),
    ("colbert-pylate", SETTINGS, {}, ("--pooling", "mean"), "so it is a re-ranker"),
    ("colbert-pylate", SETTINGS, {}, ("--model-type", "embedding"), "leave `--model-type` and `--pooling` out"),
    ("colbert-pylate", SETTINGS, {}, ("--chat-template", "builtin"), "`--chat-template` has no effect on"),
    ("colbert-pylate", SETTINGS, {}, ("--default-instruction", "x"), "without a prompt: leave it out"),
    ("colbert-stanford", "artifact.metadata", {"similarity": "l2"}, (), "`similarity` of artifact.metadata is `l2`"),
    ("colbert-stanford", "artifact.metadata", {"doc_token_id": "[no]"}, (), "marker is `[no]`"),
    ("colbert-own", SETTINGS, {"similarity_fn_name": "dot"}, (), "`similarity_fn_name` of config_sentence_transformers.json"),
    ("colbert-own", SETTINGS, {"prompts": {"query": "[PAD] say "}}, (), "becomes other tokens here"),
    ("colbert-own", "2_MultiVectorMask/config.json", {"skiplist_tasks": ["query"]}, (), "`skiplist_tasks`"),
    ("colbert-own", "2_MultiVectorMask/config.json", {"keep_only_token_ids": [5]}, (), "`keep_only_token_ids`"),
    ("colbert-own", "sentence_bert_config.json", {"query_expansion": {"strategy": "most", "length": 9}}, (), "unknown variant"),
    ("colbert-own", "1_Dense/config.json", {"module_input_name": "sentence_embedding"}, (), "`module_input_name`"),
    ("colbert-modern", SETTINGS, {"do_query_expansion": True, "query_length": 40}, (), "beyond half a window of ModernBERT"),
]


def test_a_longest_input_need_only_leave_room_for_a_text(tmp_path):
    """The self-check's own sentence may be longer."""
    folder = LATE / "colbert-prompts"
    with Server(folder, "--max-input-length", "12") as server:
        assert len(vectors(server, "a red planet " * 5, "document")) == 12
    assert "take 6 tokens of a longest input of 6" in refusal(folder, "--max-input-length", "6")


def test_a_side_without_a_length_is_not_cut_at_the_other_side_s(tmp_path):
    settings = {"document_length": 9, "query_length": None, "query_expansion": None}
    text = "a red planet " * 5
    folder = changed(tmp_path, "colbert-own", "sentence_bert_config.json", **settings)
    with Server(folder) as server:
        assert len(vectors(server, text, "document")) == 9
        assert len(vectors(server, text, "query")) >= 18
    # Nor at the tokenizer's length, which counts only for the side without one.
    edit_json(folder / "tokenizer_config.json", model_max_length=8)
    with Server(folder) as server:
        assert [len(vectors(server, text, side)) for side in SIDES] == [8, 9]


def test_texts_without_markers_are_not_said_to_have_them(tmp_path):
    with Server(changed(tmp_path, "colbert-own", SETTINGS, prompts={})) as server:
        assert "the prompt is none: queries and documents are read as they are" in server.log()


@pytest.mark.parametrize(("name", "file", "fields", "flags", "part"), REFUSED)
def test_what_is_near_but_not_it_is_refused(tmp_path, name, file, fields, flags, part):
    assert part in refusal(changed(tmp_path, name, file, **fields), *flags)
