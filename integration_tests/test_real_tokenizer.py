"""With Qwen3's own tokenizer, the prompt has the ids that the model was trained with.

The tokenizer is not part of this repository. It is read from the folder QWEN3_TOKENIZER_DIR, by default
../shared/qwen3-tokenizer. The checkpoint is a tiny random one with the real vocabulary, made here.
"""

import hashlib
import os
from pathlib import Path

import models
import pytest
from server import ROOT, Server, refusal

FOLDER = Path(os.environ.get("QWEN3_TOKENIZER_DIR", ROOT.parent / "shared/qwen3-tokenizer"))
SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
VOCABULARY = 151669
YES, NO = 9693, 2152
PREFIX = (
    '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. '
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
PREFIX_IDS = [151644, 8948, 198, 60256, 3425, 279, 11789, 20027, 279, 8502, 3118, 389, 279, 11361, 323, 279, 758, 1235, 3897, 13]
PREFIX_IDS += [7036, 429, 279, 4226, 646, 1172, 387, 330, 9693, 1, 476, 330, 2152, 3263, 151645, 198, 151644, 872, 198]
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
SUFFIX_IDS = [151645, 198, 151644, 77091, 198, 151667, 271, 151668, 271]
GENERATIVE = ("--model-type", "listwise-reranker")

pytestmark = pytest.mark.skipif(
    not (FOLDER / "tokenizer.json").is_file(),
    reason=f"Qwen3's tokenizer is not in {FOLDER}: set QWEN3_TOKENIZER_DIR to its folder to run this",
)


def keep_rows(tensors: dict[str, models.Tensor], *rows: int) -> None:
    """Sets all rows of the head to zero except these."""
    head = tensors["lm_head.weight"]
    kept = {row: bytes(head.data[head.row(row)]) for row in rows}
    models.zero(tensors, "lm_head.weight")
    for row, data in kept.items():
        head.data[head.row(row)] = data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose head has only the rows of yes and no: with other rows the server would not start."""
    folder = models.make_tiny(tmp_path_factory.mktemp("real") / "model", FOLDER, VOCABULARY)
    models.edit_tensors(folder, lambda tensors: keep_rows(tensors, YES, NO))
    return folder


@pytest.fixture(scope="module")
def real(folder):
    with Server(folder, *GENERATIVE) as server:
        yield server


def ids(server: Server, *texts: str) -> list[list[int]]:
    answer = server.post("/tokenize", {"inputs": list(texts)})
    assert answer.status_code == 200, answer.text
    return [[token["id"] for token in text] for text in answer.json()]


def test_it_is_the_official_file():
    assert hashlib.sha256((FOLDER / "tokenizer.json").read_bytes()).hexdigest() == SHA256


def test_prompt_and_answers_have_the_official_ids(real):
    assert ids(real, PREFIX, SUFFIX, "yes", "no") == [PREFIX_IDS, SUFFIX_IDS, [YES], [NO]]
    answer = real.post("/decode", {"ids": [PREFIX_IDS, SUFFIX_IDS], "skip_special_tokens": False})
    assert answer.json() == [PREFIX, SUFFIX]


def test_a_prompt_is_prefix_body_and_suffix(real):
    instruction = real.get("/info").json()["default_instruction"]
    pairs = [("What is the capital of China?", "The capital of China is Beijing."), ("중국의 수도는?", "베이징 🇨🇳")]
    for query, document in pairs:
        body = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        (whole,) = ids(real, PREFIX + body + SUFFIX)
        assert whole[: len(PREFIX_IDS)] == PREFIX_IDS and whole[-len(SUFFIX_IDS) :] == SUFFIX_IDS
        answer = real.post("/rerank", {"query": query, "texts": [document]})
        assert int(answer.headers["x-compute-tokens"]) == len(whole)


def test_scores_differ_and_control_tokens_in_a_text_are_text(real):
    scores = real.scores("capital of China", ["Beijing", "Seoul", "bread", "Beijing<|im_end|>", "Beijing<think>"])
    assert len({round(score, 5) for score in scores}) == len(scores)
    answers = [real.post("/rerank", {"query": "q", "texts": [text]}) for text in ("", "<|im_end|>", "</think>")]
    tokens = [int(answer.headers["x-compute-tokens"]) for answer in answers]
    # Read as a control token, the text would add one token. Read as text it adds more, although its first
    # piece replaces the space before it.
    assert all(more >= tokens[0] + 2 for more in tokens[1:]), tokens


def test_other_rows_of_the_head_do_not_count(folder, tmp_path):
    # `Yes`, `No`, and two ids that a wrong table would name.
    rows = (9454, 2753, 2901, 9834)
    other = models.make_tiny(tmp_path / "model", FOLDER, VOCABULARY)
    models.edit_tensors(other, lambda tensors: keep_rows(tensors, *rows))
    assert "answers" in refusal(other, *GENERATIVE)
