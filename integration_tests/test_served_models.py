"""TEI's models and cross-encoders of every architecture: scores, vectors and sparse vectors equal
sentence-transformers'.

Each folder of `reference/fixtures/served` is a small random model in a layout of the Hub, and
`NAME.expected.json` next to it has the values of transformers and sentence-transformers. All tests share one
server for each model and longest input.
"""

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from grpc_client import messages
from models import edit_json
from server import MODELS, refusal

SERVED = MODELS.parent / "served"
TOLERANCE = 1e-4
EXPECTED = {path.name.removesuffix(".expected.json"): json.loads(path.read_text()) for path in SERVED.glob("*.expected.json")}
# Flags for models whose files do not say everything.
FLAGS = {"bert-splade": ("--pooling", "splade")}
SIDES = {"left": "Left", "right": "Right"}


def kind(*kinds: str) -> list[str]:
    """The models of some kinds."""
    return sorted(name for name, expected in EXPECTED.items() if expected["kind"] in kinds)


SCORES, SPLADE = kind("score"), kind("splade")
DENSE = kind("embedding", "named", "adapted", "cls", "bge-m3")


def runs(names: list[str]) -> list[tuple[str, int | None]]:
    """Each model with each longest input in its rows."""
    return [(name, longest) for name in names for longest in by_length(name)]


def by_length(name: str) -> dict[int | None, list[dict]]:
    rows = defaultdict(list)
    for row in EXPECTED[name]["rows"]:
        rows[row["max_length"]].append(row)
    return rows


def flags(name: str, longest: int | None = None) -> tuple[str, ...]:
    limit = () if longest is None else ("--max-input-length", str(longest))
    return (*FLAGS.get(name, ()), *limit)


@pytest.fixture(scope="session")
def serving(served):
    """Gives the server for a model and a longest input."""
    return lambda name, longest=None: served(SERVED / name, *flags(name, longest))


@pytest.fixture(scope="session")
def both(connected):
    """Gives the server and a gRPC connection to it."""
    return lambda name: connected(SERVED / name, *flags(name))


def ask(server, path: str, row: dict, **fields: object) -> object:
    """The server's answer for a row's inputs. The number of tokens must be the reference's."""
    inputs = row["inputs"]
    body = {"inputs": inputs[0] if len(inputs) == 1 else inputs, "truncation_direction": SIDES[row["direction"]], "truncate": True}
    if row.get("prompt_name"):
        body["prompt_name"] = row["prompt_name"]
    answer = server.post(path, body | fields)
    assert answer.status_code == 200, answer.text
    assert int(answer.headers["x-compute-tokens"]) == len(row["ids"])
    return answer.json()


def close(expected: object) -> object:
    return pytest.approx(expected, abs=TOLERANCE, rel=0)


def pairs(sparse: list[dict]) -> dict[int, float]:
    """The values of a sparse vector by index. The indices must ascend."""
    indices = [entry["index"] for entry in sparse]
    assert indices == sorted(set(indices))
    return {entry["index"]: entry["value"] for entry in sparse}


@pytest.mark.parametrize(("name", "longest"), runs(SCORES))
def test_scores_are_those_of_transformers(serving, name, longest):
    server, labels = serving(name, longest), EXPECTED[name]["labels"] or ["LABEL_0"]
    for row in by_length(name)[longest]:
        for raw_scores, field in [(True, "raw"), (False, "scores")]:
            predictions = ask(server, "/predict", row, raw_scores=raw_scores)
            assert {entry["label"]: entry["score"] for entry in predictions} == close(dict(zip(labels, row[field], strict=True)))
            assert [entry["score"] for entry in predictions] == sorted((entry["score"] for entry in predictions), reverse=True)
            if len(labels) > 1 or len(row["inputs"]) == 1 or not row["inputs"][0].strip():
                continue
            query, document = row["inputs"]
            side = SIDES[row["direction"]]
            (score,) = server.scores(query, [document], raw_scores=raw_scores, truncation_direction=side, truncate=True)
            assert score == close(row[field][0])


@pytest.mark.parametrize("name", [name for name in SCORES if len(EXPECTED[name]["labels"] or [""]) == 1])
def test_a_pair_scores_the_same_with_any_other_documents(serving, name):
    server, rows = serving(name), [row for row in by_length(name)[None] if len(row["inputs"]) == 2 and row["direction"] == "right"]
    query = rows[0]["inputs"][0]
    rows = [row for row in rows if row["inputs"][0] == query]
    assert len(rows) > 2
    scores = server.scores(query, [row["inputs"][1] for row in rows])
    assert scores == close([row["raw"][0] for row in rows])


@pytest.mark.parametrize(("name", "longest"), runs(DENSE))
def test_vectors_are_those_of_sentence_transformers(serving, name, longest):
    server = serving(name, longest)
    for row in by_length(name)[longest]:
        assert ask(server, "/embed", row, normalize=False)[0] == close(row["raw"])
        assert ask(server, "/embed", row)[0] == close(row["normalized"])
    # In one request, all texts have the same prompt, so take the texts without one.
    texts = [row for row in by_length(name)[longest] if not row.get("prompt_name") and row["direction"] == "right"][:4]
    answer = server.post("/embed", {"inputs": [row["inputs"][0] for row in texts], "truncate": True})
    assert answer.status_code == 200, answer.text
    for vector, row in zip(answer.json(), texts, strict=True):
        assert vector == close(row["normalized"])


@pytest.mark.parametrize("name", sorted(name for name in EXPECTED if name.startswith(("potion", "static"))))
def test_static_embeddings_take_ids_dimensions_and_every_embedding_route(serving, name):
    server, rows = serving(name), by_length(name)[None]
    row = next(row for row in rows if not row.get("prompt_name"))
    [text], ids, vector = row["inputs"], row["ids"], row["raw"]
    assert server.post("/embed", {"inputs": [ids], "normalize": False}).json()[0] == close(vector)
    short = server.post("/embed", {"inputs": text, "normalize": False, "dimensions": 5}).json()[0]
    assert short == close(vector[:5])
    answer = server.post("/v1/embeddings", {"input": text, "model": name}).json()
    assert answer["data"][0]["embedding"] == close(row["normalized"])
    tokens = server.post("/embed_all", {"inputs": text, "normalize": False}).json()[0]
    assert len(tokens) == len(ids) and [sum(column) / len(ids) for column in zip(*tokens)] == close(vector)
    other = next(other for other in rows[1:] if any(other["raw"]))
    sentences = {"source_sentence": text, "sentences": [text, other["inputs"][0]]}
    cosine = sum(a * b for a, b in zip(row["normalized"], other["normalized"]))
    assert server.post("/similarity", {"inputs": sentences}).json() == close([1.0, cosine])
    assert server.post("/embed", {"inputs": ""}).status_code == 400
    if not EXPECTED[name]["prompts"]:
        assert server.scores(text, [other["inputs"][0]], raw_scores=True) == close([cosine])
    listed = server.post("/tokenize", {"inputs": text}).json()[0]
    assert not any(token["special"] for token in listed)


@pytest.mark.parametrize("name", ["stella-like"])
def test_another_dense_module_may_be_chosen(served, name):
    for path in EXPECTED[name]["rows"][0]["dense"]:
        server = served(SERVED / name, "--dense-path", path)
        for row in by_length(name)[None]:
            assert ask(server, "/embed", row, normalize=False)[0] == close(row["dense"][path])


@pytest.mark.parametrize(("name", "longest"), runs(SPLADE))
def test_sparse_vectors_are_those_of_sentence_transformers(serving, name, longest):
    server = serving(name, longest)
    for row in by_length(name)[longest]:
        expected = close(dict(map(tuple, row["splade"])))
        assert pairs(ask(server, "/embed_sparse", row)[0]) == expected
        dense = ask(server, "/embed", row, normalize=False)[0]
        assert {index: value for index, value in enumerate(dense) if value} == expected
    main_task = server.post("/", {"inputs": "Mars"})
    assert main_task.status_code == 200 and set(main_task.json()[0][0]) == {"index", "value"}


@pytest.mark.parametrize("longest", list(by_length("bge-m3")) if "bge-m3" in EXPECTED else [])
def test_bge_m3_gives_dense_sparse_and_token_vectors_by_one_pass(serving, longest):
    server = serving("bge-m3", longest)
    for row in by_length("bge-m3")[longest]:
        assert pairs(ask(server, "/embed_sparse", row)[0]) == close(dict(map(tuple, row["sparse"])))
        (all_at_once,) = ask(server, "/embed_all", row, outputs=["dense", "sparse", "tokens"], normalize=True)
        assert all_at_once["dense"] == close(row["normalized"])
        assert pairs(all_at_once["sparse"]) == close(dict(map(tuple, row["sparse"])))
        tokens = ask(server, "/embed_all", row, normalize=True)[0]
        assert len(tokens) == len(row["ids"])
        for vectors in (all_at_once["tokens"], tokens):
            # The reference has no vector for the first token.
            for vector, expected in zip(vectors[1:], row["colbert"] or vectors[1:], strict=True):
                assert vector == close(expected)
        assert set(ask(server, "/embed_all", row, outputs=["sparse"])[0]) == {"sparse"}


# model2vec leaves out unknown tokens, which `/tokenize` shows.
@pytest.mark.parametrize("name", sorted(name for name in EXPECTED if not name.startswith("potion")))
def test_single_texts_have_the_ids_of_transformers(serving, name):
    server = serving(name)
    texts = [row for row in by_length(name)[None] if len(row["inputs"]) == 1 and row["direction"] == "right"]
    for row in texts[:6]:
        body = {"inputs": row["inputs"], "prompt_name": row.get("prompt_name")}
        (tokens,) = server.post("/tokenize", body).json()
        # Routes that run the model truncate long texts; this one does not.
        assert [token["id"] for token in tokens][: len(row["ids"]) - 1] == row["ids"][:-1]


# Models that documents name, and the fixture with their layout: architecture, pooling, modules and prompts.
# Their weights could not be reached.
NAMED = {
    "harrier-oss-v1-270m": "served/harrier-like",
    "harrier-oss-v1-0.6b": "models/embedding-last",
    "F2LLM-v2": "models/embedding-last",
    "Octen-Embedding-0.6B": "models/embedding-last",
    "granite-embedding-97m": "served/granite-r2-like",
    "mDenseOn": "served/mmbert-like",
    "mdbr-leaf-ir": "served/mdbr-leaf-like",
    "inf-retriever-v1": "served/qwen2-embedding-last",
    "pplx-embed-v1-0.6b, -4b": "architectures/pplx-embed-v1",
    "jina-embeddings-v5-text-small-retrieval": "models/embedding-last",
    "jina-embeddings-v5-text-nano-retrieval": "architectures/eurobert-embedding",
    "jina-embeddings-v5-text-small": "served/jina-v5-like",
    "sentence-t5": "served/sentence-t5-like",
    "paraphrase-albert-small-v2": "architectures/albert-embedding",
    "embeddinggemma-2": "served/embedding-gemma2-like",
    "LFM2.5-Embedding-350M": "architectures/lfm2-bidirectional",
    "LFM2-ColBERT-350M": "late/colbert-lfm2",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_model_has_a_fixture_and_a_row(name):
    folder = SERVED.parent / NAMED[name]
    assert (folder / "config.json").exists() and (folder / "model.safetensors").exists()
    rows = (MODELS.parents[3] / "docs/models.md").read_text().splitlines()
    assert any(name in row for row in rows if row.startswith("|")), name


def test_an_adapter_is_chosen_by_its_task_or_is_missed_by_name(serving, served, tmp_path):
    row = by_length("jina-v5-like")[None][0]
    other = served(SERVED / "jina-v5-like", "--lora-task", "clustering")
    assert ask(other, "/embed", row)[0] != close(ask(serving("jina-v5-like"), "/embed", row)[0])
    assert "no adapter for the task" in refusal(SERVED / "jina-v5-like", "--lora-task", "separation")
    folder = Path(shutil.copytree(SERVED / "jina-v5-like", tmp_path / "model"))
    edit_json(folder / "adapters/retrieval/adapter_config.json", use_dora=True)
    assert "`use_dora`" in refusal(folder)
    (folder / "adapters/retrieval/adapter_config.json").unlink()
    assert "adapters/retrieval/adapter_config.json" in refusal(folder)


POOLINGS = {"bert-cls-no-modules": "cls", "bert-splade": "splade", "qwen2-embedding-last": "last_token", "static-embedding": "mean", "stella-like": "mean"}


@pytest.mark.parametrize("name", POOLINGS)
def test_info_names_the_pooling(serving, name):
    info = serving(name).get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": POOLINGS[name]}} and info["score_activation"] is None


@pytest.mark.parametrize("name", SCORES)
def test_info_names_labels_and_the_models_own_activation(serving, name):
    info, labels = serving(name).get("/info").json(), EXPECTED[name]["labels"] or ["LABEL_0"]
    ((key, details),) = info["model_type"].items()
    assert key == ("reranker" if len(labels) == 1 else "classifier")
    assert details["id2label"] == {str(index): label for index, label in enumerate(labels)}
    assert details["label2id"] == {label: index for index, label in enumerate(labels)}
    expected = EXPECTED[name]["activation"].lower() if len(labels) == 1 else None
    assert info["score_activation"] == expected and info["default_instruction"] is None


REFUSED = {
    "instruction": ("bert-cross-encoder", "/rerank", {"query": "q", "texts": ["a"], "instruction": "x"}, 422, "`instruction` cannot be given"),
    "normalized splade": ("bert-splade", "/embed", {"inputs": "a"}, 424, "`normalize` is not available for SPLADE models"),
    "tokens of splade": ("bert-splade", "/embed_all", {"inputs": "a"}, 424, "`embed_all` is not available for SPLADE models"),
    "OpenAI of splade": ("bert-splade", "/v1/embeddings", {"input": "a"}, 424, "`normalize` is not available for SPLADE models"),
    "sparse of dense": ("bert-embedding-mean", "/embed_sparse", {"inputs": "a"}, 424, "Backend error: Model is not an embedding model with SPLADE pooling"),
    "sparse of a re-ranker": ("bert-cross-encoder", "/embed_sparse", {"inputs": "a"}, 424, "Backend error: Model is not an embedding model with SPLADE pooling"),
    "no outputs": ("bge-m3", "/embed_all", {"inputs": "a", "outputs": []}, 400, "`outputs` cannot be empty"),
    "unknown output": ("bge-m3", "/embed_all", {"inputs": "a", "outputs": ["colour"]}, 422, "outputs[0]"),
    "sparse output of dense": ("bert-embedding-mean", "/embed_all", {"inputs": "a", "outputs": ["sparse"]}, 424, "SPLADE"),
    "too many dimensions": ("bert-embedding-mean", "/embed", {"inputs": "a", "dimensions": 25}, 422, "smaller than the maximum embedding dimension. It is 24; given: 25"),
    "id beyond the vocabulary": ("bert-embedding-mean", "/embed", {"inputs": [[2, 99999]]}, 422, "token id 99999"),
    "pair to embed": ("bert-embedding-mean", "/predict", {"inputs": ["a", "b"]}, 424, "Backend error: Model is not a classifier model"),
    "rerank of several labels": ("bert-classifier-3", "/rerank", {"query": "q", "texts": ["a"]}, 424, "Backend error: model is not a re-ranker model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_has_teis_status_and_one_sentence(serving, case):
    name, path, body, status, part = REFUSED[case]
    answer = serving(name).post(path, body)
    assert answer.status_code == status, answer.text
    assert part in answer.json().get("message", answer.json().get("error"))


class TestOverGrpc:
    """Answers over gRPC equal those over HTTP."""

    @pytest.mark.parametrize("name", ["ettin-modular", "bert-cross-encoder"])
    def test_rerank(self, both, name):
        server, client = both(name)
        query, texts = "Which planet is red?", ["Mars is red.", "Bread is baked.", "Mars"]
        answer = client.call(client.rerank.Rerank, messages.RerankRequest(query=query, texts=texts, raw_scores=True))
        expected = server.rerank(query, texts, raw_scores=True)
        assert [(rank.index, rank.score) for rank in answer.ranks] == [
            (rank["index"], close(rank["score"])) for rank in expected
        ]
        info = client.call(client.info.Info, messages.InfoRequest())
        assert info.score_activation == "identity"

    def test_predict_pair(self, both):
        server, client = both("bert-classifier-3")
        answer = client.call(client.predict.PredictPair, messages.PredictPairRequest(inputs=["Mars", "a planet"]))
        expected = server.post("/predict", {"inputs": ["Mars", "a planet"]}).json()
        assert [(it.label, it.score) for it in answer.predictions] == [(it["label"], close(it["score"])) for it in expected]

    @pytest.mark.parametrize("name", ["bert-splade", "bge-m3"])
    def test_embed_sparse_and_its_stream(self, both, name):
        server, client = both(name)
        texts = ["Mars is red.", "What is Deep Learning?"]
        requests = [messages.EmbedSparseRequest(inputs=text) for text in texts]
        answers = [client.call(client.embed.EmbedSparse, request) for request in requests]
        expected = server.post("/embed_sparse", {"inputs": texts}).json()
        for got in (answers, client.stream(client.embed.EmbedSparseStream, requests)):
            vectors = [{entry.index: entry.value for entry in answer.sparse_embeddings} for answer in got]
            assert vectors == [close(pairs(vector)) for vector in expected]

    def test_several_outputs_at_once(self, both):
        server, client = both("bge-m3")
        outputs = ["EMBED_OUTPUT_TOKENS", "EMBED_OUTPUT_DENSE", "EMBED_OUTPUT_SPARSE"]
        answer = client.call(client.embed.EmbedAll, messages.EmbedAllRequest(inputs="Mars", outputs=outputs, normalize=True))
        body = {"inputs": "Mars", "outputs": ["dense", "sparse", "tokens"], "normalize": True}
        (expected,) = server.post("/embed_all", body).json()
        assert list(answer.embeddings) == close(expected["dense"])
        assert {entry.index: entry.value for entry in answer.sparse_embeddings} == close(pairs(expected["sparse"]))
        for token, vector in zip(answer.token_embeddings, expected["tokens"], strict=True):
            assert list(token.embeddings) == close(vector)
        wrong = messages.EmbedAllRequest(inputs="Mars", outputs=[7])
        assert client.failure(client.embed.EmbedAll, wrong)[0] == "INVALID_ARGUMENT"


def test_the_playground_shows_a_pair_in_pieces(serving):
    server = serving("bert-cross-encoder")
    query, document = "Which planet is red?", "Mars, also called the red planet [SEP]"
    shown = server.post("/playground/prompt", {"query": query, "text": document}).json()
    pieces = shown["pieces"]
    assert [piece["kind"] for piece in pieces] == ["template", "query", "template", "document", "template"]
    assert (pieces[1]["text"], pieces[3]["text"]) == (query, document)
    assert [piece["text"] for piece in pieces[::2]] == ["[CLS]", "[SEP]", "[SEP]"]
    answer = server.post("/predict", {"inputs": [query, document]})
    assert int(answer.headers["x-compute-tokens"]) == shown["tokens"] == sum(piece["tokens"] for piece in pieces)


@pytest.fixture
def copied(tmp_path):
    """Gives a copy of a model, which the test may change."""
    return lambda name: Path(shutil.copytree(SERVED / name, tmp_path / "model"))


class TestStart:
    """Models and flags that are refused."""

    def test_an_unsupported_architecture_is_the_first_error(self, copied):
        folder = copied("bert-embedding-mean")
        edit_json(folder / "config.json", model_type="mamba", architectures=["MambaForCausalLM"])
        for path in ("tokenizer.json", "model.safetensors"):
            (folder / path).unlink()
        message = refusal(folder, "--pooling", "splade", "--max-input-length", "99999")
        assert "mamba" in message and "bert" in message

    def test_weights_in_another_format_are_named(self, copied):
        folder = copied("bert-embedding-mean")
        (folder / "model.safetensors").rename(folder / "tf_model.h5")
        message = refusal(folder)
        assert "in the format of `tf_model.h5`" in message and "safetensors" in message

    FLAGS = [
        ("bert-embedding-mean", ("--pooling", "splade"), "masked-language-model head"),
        ("bert-cross-encoder", ("--default-instruction", "x"), "`--default-instruction` has no place"),
        ("bert-cross-encoder", ("--chat-template", "builtin"), "needs the token `<|im_start|>`, which the tokenizer"),
        ("bert-cross-encoder", ("--max-input-length", "73"), "72 tokens that the model's positions allow"),
        ("bert-cross-encoder", ("--max-input-length", "3"), "of a longest input of 3"),
        ("potion-like", ("--pooling", "cls"), "`--pooling cls` is not for static embeddings"),
        ("potion-like", ("--model-type", "reranker"), "leave the flag out"),
        ("ettin-modular", ("--pooling", "mean"), "so this is a re-ranker and not an embedding model"),
    ]

    @pytest.mark.parametrize(("name", "given", "part"), FLAGS)
    def test_a_flag_that_does_not_fit_is_named(self, name, given, part):
        assert part in refusal(SERVED / name, *given)

    def test_a_module_that_is_not_supported_is_named(self, copied):
        folder = copied("ettin-modular")
        edit_json(folder / "2_Dense/config.json", activation_function="torch.nn.modules.activation.Mish")
        message = refusal(folder)
        assert "`activation_function`" in message and "Mish" in message

    def test_answers_other_than_yes_and_no_need_their_own_prompt(self, tmp_path):
        folder = Path(shutil.copytree(MODELS / "tied-bf16", tmp_path / "model"))
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        edit_json(folder / "tokenizer_config.json", chat_template=None)
        path = folder / "1_LogitScore/config.json"
        answers = json.loads(path.read_text())
        edit_json(path, true_token_id=answers["true_token_id"] + 1)
        message = refusal(folder)
        assert "1_LogitScore/config.json names other answers" in message and "--chat-template FILE" in message
        edit_json(path, true_token_id=answers["true_token_id"], false_token_id=None)
        assert "1_LogitScore/config.json names other answers" in refusal(folder)

    def test_answers_of_a_family_other_than_the_names_are_refused(self, tmp_path):
        folder = Path(shutil.copytree(MODELS / "tied-bf16", tmp_path / "zerank-1-reranker"))
        (folder / "chat_template.jinja").unlink()
        message = refusal(folder)
        assert "other answers than the family zerank (`Yes` alone)" in message and "--chat-template NAME" in message
