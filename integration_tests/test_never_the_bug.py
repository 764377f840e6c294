"""The bug that this server was started for: a score that is always 0.7310586, which is sigmoid(1). Each cause
of such a score is either impossible or keeps the server from starting.

The causes are those that users have met: a causal model served as a classifier or as a normalised embedding,
a missing template, a second sigmoid, a general chat template, a truncated suffix, a checkpoint without its
head, padding on the wrong side, and a batch of equal lengths without a causal mask.
"""

import math
import random

import models
import pytest
from reference_data import CASES, EXPECTED, PROMPT
from server import MODEL_FLAGS, MODELS, Server, refusal

BUG = 1 / (1 + math.exp(-1))
QUERY = CASES["english-1"]["query"]
TEXTS = list(dict.fromkeys(case["document"] for case in CASES.values() if 0 < len(case["document"]) < 200))
GENERATIVE = ("--model-type", "listwise-reranker")
# Qwen3's own chat template, shortened: a conversation, without the roles query and document.
GENERAL_TEMPLATE = (
    "{%- for message in messages %}{%- if message.role in ['system', 'user', 'assistant'] %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.mark.parametrize("model", MODEL_FLAGS)
def test_different_texts_have_different_scores(served, model):
    server = served(model)
    scores = server.scores(QUERY, TEXTS, raw_scores=False)
    assert len(TEXTS) > 30 and len(set(scores)) == len(scores)
    assert sum(abs(score - BUG) < 1e-6 for score in scores) <= 1
    assert min(scores) < 0.5 < max(scores)


@pytest.mark.parametrize("model", MODEL_FLAGS)
def test_the_sigmoid_is_taken_once(served, model):
    server = served(model)
    raw, scores = server.scores(QUERY, TEXTS), server.scores(QUERY, TEXTS, raw_scores=False)
    # Two requests may be batched differently: 2e-5 in the raw score, times the sigmoid's steepest slope of
    # 1/4.
    assert scores == pytest.approx([1 / (1 + math.exp(-value)) for value in raw], abs=5e-6)
    # With a second sigmoid, or with the sigmoid of a cosine, all scores would be within these bounds.
    assert min(raw) < -1 and max(raw) > 1
    assert any(score < 1 - BUG or score > BUG for score in scores)


@pytest.mark.parametrize("kind", ["nothing", "general template", "general template in its own file"])
def test_without_a_template_for_pairs_the_prompt_is_the_rerankers(server: Server, tmp_path, kind):
    folder = models.copy("tied-bf16", tmp_path)
    for name in ("modules.json", "1_LogitScore/config.json", "config_sentence_transformers.json", "chat_template.jinja"):
        (folder / name).unlink()
    (folder / "1_LogitScore").rmdir()
    if kind == "general template":
        models.edit_json(folder / "tokenizer_config.json", chat_template=GENERAL_TEMPLATE)
    elif kind == "general template in its own file":
        (folder / "chat_template.jinja").write_text(GENERAL_TEMPLATE)
    with Server(folder, *GENERATIVE) as plain:
        assert plain.scores(QUERY, TEXTS) == pytest.approx(server.scores(QUERY, TEXTS), abs=2e-5)
        assert plain.get("/info").json()["default_instruction"] == PROMPT["default_instruction"]


def test_a_general_template_given_by_flag_is_refused(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(GENERAL_TEMPLATE)
    assert "--chat-template" in refusal("tied-bf16", "--chat-template", str(path))


def test_a_template_that_lost_its_last_line_break_is_named(tmp_path):
    """Jinja drops one line break at the end of a file, so a file with two of them writes one."""
    own = (MODELS / "tied-bf16/chat_template.jinja").read_text()
    path = tmp_path / "own.jinja"
    for text, is_named in ((own, False), (own.rstrip("\n") + "\n\n", True)):
        path.write_text(text)
        with Server("tied-bf16", "--chat-template", str(path)) as server:
            assert ("give `--chat-template qwen3-reranker`" in server.log()) == is_named


@pytest.mark.parametrize("name", ["document-cut-120-english-right", "document-cut-120-mixed-left", "query-cut-120-right"])
def test_a_cut_keeps_the_suffix(served, name):
    case = CASES[name]
    server = served("tied-bf16", "--max-input-length", "120")
    side = {"truncation_direction": case["truncation_direction"]}
    (score,) = server.scores(case["query"], [case["document"]], **side)
    assert score == pytest.approx(EXPECTED["tied-bf16"][name]["raw"], abs=1e-4)
    # The text after the cut does not change the score; the text before it does.
    if name == "document-cut-120-english-right":
        (longer,) = server.scores(case["query"], [case["document"] + " tail"], **side)
        (other,) = server.scores(case["query"], ["head " + case["document"]], **side)
        assert abs(longer - score) <= 2e-5 < 1e-3 < abs(other - score)


@pytest.mark.parametrize("model", MODEL_FLAGS)
def test_texts_of_equal_length_score_as_alone(served, model):
    server, generator = served(model), random.Random(5)
    # Each digit is one token.
    texts = ["".join(generator.choices("0123456789", k=40)) for _ in range(12)]
    cost = [server.post("/rerank", {"query": QUERY, "texts": [text]}).headers["x-compute-tokens"] for text in texts]
    assert len(set(cost)) == 1
    alone = [server.scores(QUERY, [text])[0] for text in texts]
    assert server.scores(QUERY, texts) == pytest.approx(alone, abs=2e-5)
    assert len({round(score, 4) for score in alone}) == len(texts)


def equal_rows(tensors: dict[str, models.Tensor]) -> None:
    head = tensors["lm_head.weight"]
    head.data[head.row(PROMPT["yes"])] = head.data[head.row(PROMPT["no"])]


def zeroed(*endings: str):
    return lambda tensors: models.zero(tensors, *endings)


def masked_prompt(tensors: dict[str, models.Tensor]) -> None:
    """Without attention, the last position knows only the last token, which belongs to the suffix."""
    models.zero(tensors, "o_proj.weight")


CONSTANT = {
    "no head": (lambda tensors: tensors.pop("lm_head.weight"), "lm_head.weight"),
    "empty head": (zeroed("lm_head.weight"), "head"),
    "equal answers": (equal_rows, "answers"),
    "all zero": (zeroed("weight"), "answers"),
    "norm zero": (zeroed("model.norm.weight"), "same raw score"),
    "attention zero": (masked_prompt, "same raw score"),
    "layers zero": (zeroed("o_proj.weight", "down_proj.weight"), "same raw score"),
}


@pytest.mark.parametrize(("change", "expected"), CONSTANT.values(), ids=CONSTANT)
def test_a_checkpoint_with_constant_scores_refuses_to_start(tmp_path, change, expected):
    folder = models.copy("untied-f16", tmp_path)
    models.edit_tensors(folder, change)
    line = refusal(folder, *GENERATIVE)
    assert expected in line and "download it again" in line, line


def test_a_tied_checkpoint_of_zeros_refuses_to_start(tmp_path):
    folder = models.copy("tied-f32-bare", tmp_path)
    models.edit_tensors(folder, zeroed("weight"))
    assert "answers" in refusal(folder, *GENERATIVE)


def test_only_the_rows_of_yes_and_no_make_the_score(served, tmp_path):
    """The head has values for the two answers only, so that any other pair of rows would give a constant."""
    folder = models.copy("untied-f16", tmp_path)

    def keep_answers(tensors: dict[str, models.Tensor]) -> None:
        head = tensors["lm_head.weight"]
        kept = {row: bytes(head.data[head.row(row)]) for row in (PROMPT["yes"], PROMPT["no"])}
        models.zero(tensors, "lm_head.weight")
        for row, data in kept.items():
            head.data[head.row(row)] = data

    models.edit_tensors(folder, keep_answers)
    with Server(folder, *GENERATIVE) as server:
        assert server.scores(QUERY, TEXTS) == pytest.approx(served("untied-f16").scores(QUERY, TEXTS), abs=2e-5)


def test_swapped_answers_change_the_sign(tmp_path):
    folder = models.copy("tied-bf16", tmp_path)
    ids = {"true_token_id": PROMPT["no"], "false_token_id": PROMPT["yes"]}
    models.edit_json(folder / "1_LogitScore/config.json", **ids)
    with Server(folder) as server:
        (score,) = server.scores(QUERY, [CASES["english-1"]["document"]])
        assert score == pytest.approx(-EXPECTED["tied-bf16"]["english-1"]["raw"], abs=1e-4)


@pytest.mark.parametrize("flag", ["embedding", "classifier", "reranker"])
def test_a_generative_reranker_is_not_served_as_something_else(flag):
    extra = ("--pooling", "last-token") if flag == "embedding" else ()
    line = refusal(MODELS / "tied-bf16", "--model-type", flag, *extra)
    assert "listwise-reranker" in line or line.endswith("leave the flag out, and it is served as generative re-ranker"), line


def test_a_causal_model_without_any_hint_is_not_guessed():
    line = refusal(MODELS / "tied-f32-bare")
    assert "--model-type listwise-reranker" in line and "--pooling" in line, line


def test_a_one_class_head_is_not_served_by_the_answers(tmp_path):
    folder = models.copy("tied-f32-bare", tmp_path)
    models.edit_json(folder / "config.json", architectures=["Qwen3ForSequenceClassification"], id2label={"0": "LABEL_0"})
    refusal(folder)
    assert "Qwen3ForSequenceClassification" in refusal(folder, *GENERATIVE)
