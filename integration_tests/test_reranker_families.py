"""Re-rankers of every family, each with its authors' prompt: their scores equal the authors' code's.

Each folder of `reference/fixtures/rerankers` is a small random model in the layout of its authors, and
`NAME.expected.json` next to it has the scores of their code (reference/architectures/rerankers.py). All tests
share one server for each folder.
"""

import json
import math
import shutil
from pathlib import Path

import pytest
from grpc_client import messages
from models import edit_json
from server import MODELS, refusal

FOLDER = MODELS.parent / "rerankers"
ROWS = {path.name.removesuffix(".expected.json"): json.loads(path.read_text())["rows"] for path in FOLDER.glob("*.expected.json") if path.stem != "jina-reranker-v3.expected"}
NAMES = sorted(ROWS)
# The default score for a raw score, and its name in /info.
FIFTH, SHIFTED, PLAIN = (lambda x: x / 5, "sigmoid(x/5)"), (lambda x: x - 2.65, "sigmoid(x-2.65)"), (lambda x: x, "sigmoid")
RULES = {"zerank-1-small": FIFTH, "zerank-2-reranker": FIFTH, "jina-reranker-m0": SHIFTED}
PRISM = ["Prism-Qwen3.5-Reranker-0.8B", "Prism-Qwen3.5-Reranker-4B"]
WITHOUT_INSTRUCTION = ["llama-nemotron-rerank-1b-v2", "jina-reranker-m0", *PRISM]
LAYER_WISE = "bge-reranker-v2-minicpm-layerwise"
# Their scores come from a head in the checkpoint, which their architecture names.
WITH_HEAD = ["llama-nemotron-rerank-1b-v2", "jina-reranker-m0", LAYER_WISE]

# jina-reranker-m0's prompt without its last token, which is half of a character.
JINA_M0_TEMPLATE = """{%- set q = messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first -%}
{%- set d = messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first -%}
**Document**:
{{ d }}
**Query**:
{{ q }}"""


def close(expected: object) -> object:
    return pytest.approx(expected, abs=1e-4, rel=0)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.fixture(scope="session")
def serving(served):
    """Gives the server for a folder."""
    return lambda name, *flags: served(FOLDER / name, *flags)


def usable(name: str) -> list[dict]:
    return [row for row in ROWS[name] if row["query"].strip() and row["max_length"] is None]


@pytest.mark.parametrize("name", NAMES)
def test_raw_and_default_scores_are_those_of_the_authors_code(serving, name):
    server, (rule, _) = serving(name), RULES.get(name, PLAIN)
    for row in usable(name):
        body = {"query": row["query"], "texts": [row["document"]], "instruction": row["instruction"]}
        body = {key: value for key, value in body.items() if value is not None}
        answer = server.post("/rerank", body | {"raw_scores": True})
        assert answer.status_code == 200, answer.text
        assert int(answer.headers["x-compute-tokens"]) == len(row["ids"])
        assert answer.json()[0]["score"] == close(row["raw"]), row
        (default,) = server.post("/rerank", body).json()
        assert default["score"] == close(sigmoid(rule(row["raw"])))


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_scores_the_same_with_any_other_documents(serving, name):
    server, rows = serving(name), [row for row in usable(name) if row["instruction"] == ROWS[name][0]["instruction"]]
    rows = [row for row in rows if row["query"] == rows[0]["query"]]
    given = {} if rows[0]["instruction"] is None else {"instruction": rows[0]["instruction"]}
    assert len(rows) > 2
    for order in (rows, rows[::-1]):
        scores = server.scores(order[0]["query"], [row["document"] for row in order], raw_scores=True, **given)
        assert scores == close([row["raw"] for row in order])


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_gives_the_same_scores(serving, name):
    server, row = serving(name), usable(name)[0]
    rule, _ = RULES.get(name, PLAIN)
    more = {} if row["instruction"] is None else {"instruction": row["instruction"]}
    expected = close(sigmoid(rule(row["raw"])))
    query, document = row["query"], row["document"]
    cohere = server.post("/v2/rerank", {"model": "m", "query": query, "documents": [document]} | more)
    vllm = server.post("/score", {"text_1": query, "text_2": [document]} | more)
    mixedbread = server.post("/rerank", {"model": "m", "query": query, "input": [document]} | more)
    nim = server.post("/v1/ranking", {"model": "m", "query": {"text": query}, "passages": [{"text": document}]} | more)
    assert cohere.json()["results"][0]["relevance_score"] == expected, cohere.text
    assert vllm.json()["data"][0]["score"] == expected, vllm.text
    assert mixedbread.json()["data"][0]["score"] == expected, mixedbread.text
    assert nim.json()["rankings"][0]["logit"] == close(row["raw"]), nim.text
    if not more:
        (prediction,) = server.post("/predict", {"inputs": [query, document], "raw_scores": True}).json()
        assert prediction["score"] == close(row["raw"])


@pytest.mark.parametrize("name", NAMES)
def test_info_says_which_family_and_why(connected, name):
    server, client = connected(FOLDER / name)
    info = server.get("/info").json()
    reranker, (_, rule) = info["reranker"], RULES.get(name, PLAIN)
    assert reranker["score"] == rule and reranker["family"] in reranker["score_reason"]
    has_files = name in ("zerank-2-reranker", "Qwen3-VL-Reranker-8B", "Prism-Qwen3.5-Reranker-4B")
    assert ("repository's chat template" in reranker["prompt"]) == has_files
    reason = "architecture" if name in WITH_HEAD else name.lower()
    assert reason in reranker["family_reason"]
    answers = reranker["answers"]
    assert (answers is None) == (name in WITH_HEAD)
    assert reranker["cutoff_layers"] == (6 if name == LAYER_WISE else None)
    assert answers is None or ("1_LogitScore" in answers) == has_files
    over_grpc = client.call(client.info.Info, messages.InfoRequest()).reranker
    assert (over_grpc.family, over_grpc.prompt, over_grpc.score) == (reranker["family"], reranker["prompt"], rule)
    assert over_grpc.HasField("cutoff_layers") == (name == LAYER_WISE)
    assert (info["default_instruction"] is None) == (name in WITHOUT_INSTRUCTION)


@pytest.mark.parametrize("name", WITHOUT_INSTRUCTION)
def test_an_instruction_without_a_place_is_refused_unless_it_may_be_ignored(serving, name):
    row = usable(name)[0]
    body = {"query": row["query"], "texts": [row["document"]], "instruction": "x", "raw_scores": True}
    answer = serving(name).post("/rerank", body)
    assert answer.status_code == 422 and "--ignore-instruction" in answer.json()["error"]
    ignored = serving(name, "--ignore-instruction").post("/rerank", body)
    assert ignored.status_code == 200 and ignored.json()[0]["score"] == close(row["raw"])
    assert "--default-instruction" in refusal(FOLDER / name, "--default-instruction", "x")


@pytest.mark.parametrize("name", ["mxbai-rerank-base-v2", "bge-reranker-v2-gemma", LAYER_WISE])
def test_only_the_document_is_cut(served, name):
    for row in [row for row in ROWS[name] if row["max_length"]]:
        server = served(FOLDER / name, "--max-input-length", str(row["max_length"]))
        body = {"query": row["query"], "texts": [row["document"]], "raw_scores": True}
        answer = server.post("/rerank", body)
        assert int(answer.headers["x-compute-tokens"]) == len(row["ids"]) == row["max_length"]
        assert answer.json()[0]["score"] == close(row["raw"])
        assert server.post("/rerank", body | {"truncate": False}).status_code == 422


@pytest.mark.parametrize("layers", [2, 3, 6])
def test_a_layer_wise_re_ranker_scores_after_the_chosen_number_of_layers(served, connected, layers):
    server, client = connected(FOLDER / LAYER_WISE, "--cutoff-layers", str(layers))
    for row in usable(LAYER_WISE)[:4]:
        body = {"query": row["query"], "texts": [row["document"]], "raw_scores": True}
        assert server.post("/rerank", body).json()[0]["score"] == close(row["cutoffs"][str(layers)])
    assert server.get("/info").json()["reranker"]["cutoff_layers"] == layers
    assert client.call(client.info.Info, messages.InfoRequest()).reranker.cutoff_layers == layers


@pytest.mark.parametrize(
    ("name", "layers", "part"),
    [(LAYER_WISE, "1", "after 2 to 6 layers"), (LAYER_WISE, "7", "after 2 to 6 layers"), ("zerank-1-small", "2", "last layer only")],
)
def test_a_number_of_layers_without_a_score_is_refused(name, layers, part):
    message = refusal(FOLDER / name, "--cutoff-layers", layers)
    assert f"`--cutoff-layers {layers}`" in message and part in message


@pytest.fixture
def copied(tmp_path):
    """Gives a copy of a folder under another name, which the test may change."""
    return lambda name, to="model": Path(shutil.copytree(FOLDER / name, tmp_path / to))


class TestStart:
    """The family that files and flags give, if any."""

    def first(self, name: str) -> dict:
        return usable(name)[0]

    def score(self, server, row: dict, **fields: object) -> float:
        more = {} if row["instruction"] is None else {"instruction": row["instruction"]}
        (score,) = server.scores(row["query"], [row["document"]], raw_scores=True, **more, **fields)
        return score

    def test_flags_replace_a_name(self, copied, served):
        name = "zerank-1-small"
        folder = copied(name)
        assert "--model-type listwise-reranker" in refusal(folder)
        # Without the name, the folder looks like Qwen3-Reranker; the flag must decide the answers.
        flags = ("--model-type", "listwise-reranker", "--chat-template", "zerank")
        server = served(folder, *flags)
        assert self.score(server, self.first(name)) == close(self.first(name)["raw"])
        assert server.get("/info").json()["reranker"]["score"] == "sigmoid(x/5)"
        other = served(folder, *flags, "--rerank-true-token", "no", "--rerank-false-token", "Yes", "--rerank-activation", "identity")
        info = other.get("/info").json()["reranker"]
        assert info["answers"].startswith("`no`") and info["answers"].endswith("--rerank-true-token`")
        assert info["score"] == "identity" and info["score_reason"] == "`--rerank-activation`"
        row = self.first(name)
        assert self.score(other, row) == close(other.scores(row["query"], [row["document"]], raw_scores=False)[0])

    def test_the_name_in_the_configuration_counts(self, copied, served):
        name = "mxbai-rerank-base-v2"
        folder = copied(name)
        edit_json(folder / "config.json", _name_or_path=f"mixedbread-ai/{name}")
        assert self.score(served(folder), self.first(name)) == close(self.first(name)["raw"])

    def test_a_renamed_folder_is_known_by_its_files(self, copied, served):
        name = "zerank-2-reranker"
        server = served(copied(name))
        reranker = server.get("/info").json()["reranker"]
        assert (reranker["family"], reranker["score"]) == ("zerank", "sigmoid(x/5)")
        assert "chat template" in reranker["family_reason"]
        assert self.score(server, self.first(name)) == close(self.first(name)["raw"])

    def test_a_template_that_sentence_transformers_does_not_render_is_not_used(self, copied, served):
        folder = copied("zerank-2-reranker")
        edit_json(folder / "sentence_bert_config.json", lambda content: content["modality_config"].pop("message"))
        server = served(folder)
        assert "no `message` in `modality_config`" in server.get("/info").json()["reranker"]["prompt"]
        # The scores of sentence-transformers 6.2.
        found = server.scores("What is red?", ["Mars is red.", "Bread."])
        assert found == pytest.approx([-2.8897192, 5.980669], abs=1e-4)

    @pytest.mark.parametrize("place", ["repository", "flag"])
    def test_a_template_keeps_the_token_that_the_familys_head_reads(self, copied, served, tmp_path, place):
        name, template = "jina-reranker-m0", JINA_M0_TEMPLATE
        folder = copied(name, "renamed")
        path = (folder if place == "repository" else tmp_path) / "chat_template.jinja"
        path.write_text(template)
        server = served(folder, *(["--chat-template", str(path)] if place == "flag" else []))
        assert path.name in server.get("/info").json()["reranker"]["prompt"]
        for row in usable(name):
            body = {"query": row["query"], "texts": [row["document"]], "raw_scores": True}
            answer = server.post("/rerank", body)
            assert int(answer.headers["x-compute-tokens"]) == len(row["ids"])
            assert answer.json()[0]["score"] == close(row["raw"])

    def test_without_its_template_a_renamed_folder_never_gets_another_familys_prompt(self, copied):
        folder = copied("zerank-2-reranker")
        (folder / "chat_template.jinja").unlink()
        message = refusal(folder)
        assert "other answers than the family qwen3-reranker (`yes` and `no`)" in message and "--chat-template NAME" in message

    @pytest.mark.parametrize("name", ["bge-reranker-v2-gemma", "mxbai-rerank-base-v2", "ctxl-rerank-v2-instruct-multilingual-6b"])
    def test_an_unknown_model_needs_its_prompt(self, copied, name):
        message = refusal(copied(name), "--model-type", "listwise-reranker")
        assert "no family whose prompt is built in" in message and "--chat-template" in message

    def test_a_family_on_another_tokenizer_is_refused(self, copied):
        folder = copied("bge-reranker-v2-gemma", "zerank-x")
        message = refusal(folder, "--model-type", "listwise-reranker", "--chat-template", "zerank")
        assert "`<|im_start|>`, which the tokenizer (tokenizer.json) does not have" in message

    @pytest.mark.parametrize(
        ("flags", "part"),
        [
            (("--rerank-false-token", "no"), "--rerank-true-token"),
            (("--rerank-true-token", "two tokens"), "`two tokens` is not one single token"),
            (("--rerank-true-token", "id:99999"), "`--rerank-true-token` is 99999"),
            (("--rerank-true-token", "no", "--rerank-false-token", "no"), "the same token"),
        ],
    )
    def test_impossible_answers_are_refused(self, flags, part):
        try:
            assert part in refusal(FOLDER / "zerank-1-small", *flags)
        except AssertionError as error:
            # A refusal by clap has several lines and another exit code, which `refusal` does not accept.
            assert part in str(error)

    def test_models_that_generate_are_refused(self, copied):
        message = refusal(copied("zerank-1-small", "ERank-4B"))
        assert "chain of reasoning" in message

    def test_architectures_of_their_own_are_refused_with_a_reason(self, copied):
        folder = copied("bge-reranker-v2-gemma")
        edit_json(folder / "config.json", model_type="cost_wise_gemma")
        message = refusal(folder)
        assert '"cost_wise_gemma" is not supported' in message and "merges neighbouring tokens" in message

    def test_minicpm_without_heads_is_refused(self, copied):
        folder = copied(LAYER_WISE)
        edit_json(folder / "config.json", architectures=["MiniCPMForCausalLM"])
        assert "an architecture other than LayerWiseMiniCPMForCausalLM is not supported for minicpm" in refusal(folder)

    def test_e2rank_is_an_embedding_model_that_ends_each_text(self, copied, served):
        server = served(copied("zerank-1-small", "E2Rank-0.6B"))
        assert server.get("/info").json()["model_type"] == {"embedding": {"pooling": "last_token"}}
        answers = [server.post("/embed", {"inputs": text} | more) for text, more in [
            ("Mars", {}), ("Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:Mars", {}),
            ("Mars", {"prompt_name": "query"}),
        ]]
        tokens = [int(answer.headers["x-compute-tokens"]) for answer in answers]
        plain = [len(server.post("/tokenize", {"inputs": text}).json()[0]) for text in ("Mars",)]
        assert tokens[0] == plain[0] + 1 and tokens[1] == tokens[2]
        assert answers[1].json()[0] == close(answers[2].json()[0])
