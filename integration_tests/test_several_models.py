"""Several models behind one port: each request gets the answer of a server with its model alone."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cohere
import litellm
import openai
import pytest
from reference_data import TEXTS
from server import MODELS, Server, refusal, run

EMBEDDER, RERANKER, CLASSIFIER = "embedding-last", "tied-bf16", "seq-cls-3"
QUERY = "How tall is the Eiffel Tower?"
DOCUMENTS = ["It is 330 metres tall.", "Cheese is made of milk.", "A tower in Paris."]
INPUTS = [TEXTS[name]["text"] for name in ("english", "korean", "emoji")]
# Every route that computes, with a body and the model that answers it.
REQUESTS = [
    ("/rerank", {"query": QUERY, "texts": DOCUMENTS}, RERANKER),
    ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "request_id": "r"}, RERANKER),
    ("/score", {"queries": QUERY, "documents": DOCUMENTS, "request_id": "r"}, RERANKER),
    ("/embed", {"inputs": INPUTS}, EMBEDDER),
    ("/embed_all", {"inputs": INPUTS[:1]}, EMBEDDER),
    ("/similarity", {"inputs": {"source_sentence": QUERY, "sentences": DOCUMENTS}}, EMBEDDER),
    ("/v1/embeddings", {"input": INPUTS}, EMBEDDER),
    ("/predict", {"inputs": INPUTS[0]}, CLASSIFIER),
    ("/tokenize", {"inputs": INPUTS}, EMBEDDER),
]


def models_file(folder: Path, *tables: str) -> Path:
    path = folder / "models.toml"
    path.write_text("\n".join(tables), encoding="utf-8")
    return path


def table(name: str, model: str, *lines: str) -> str:
    return "\n".join([f"[models.{json.dumps(name)}]", f"model-id = {json.dumps(str(MODELS / model))}", *lines])


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Iterator[Server]:
    """A server for three models. The classifier stands last, so that only a name leads to it."""
    file = models_file(
        tmp_path_factory.mktemp("models"),
        table("org/embedder", EMBEDDER, 'aliases = ["text-embedding-3-small"]'),
        table("reranker", RERANKER, 'aliases = ["rerank-v3.5", "jina/rerank"]'),
        table("classifier", CLASSIFIER),
    )
    with Server(file, "--api-key", "k3y") as server:
        server.session.headers["Authorization"] = "Bearer k3y"
        yield server


def alone(served, path: str, body: dict, model: str) -> object:
    answer = served(model).post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def without_names(answer: object) -> object:
    """An answer without the fields that name the model or the time."""
    if isinstance(answer, dict):
        return {key: value for key, value in answer.items() if key not in ("model", "created", "id")}
    return answer


@pytest.mark.parametrize(("path", "body", "model"), REQUESTS, ids=[path for path, _, _ in REQUESTS])
def test_each_answer_is_that_of_a_server_with_this_model_alone(several, served, path, body, model):
    names = {EMBEDDER: "org/embedder", RERANKER: "reranker", CLASSIFIER: "classifier"}
    expected = without_names(alone(served, path, body, model))
    ways = [(path, {**body, "model": names[model]}), (f"/models/{names[model]}{path}", body)]
    # A re-ranker predicts, too, so that the classifier is not the first that can.
    if model != CLASSIFIER:
        ways.append((path, body))
    for way, sent in ways:
        answer = several.post(way, sent)
        assert answer.status_code == 200, answer.text
        assert without_names(answer.json()) == expected, way


def test_clients_choose_by_the_names_that_they_send(several, served):
    url = several.url
    expected = alone(served, "/rerank", {"query": QUERY, "texts": DOCUMENTS}, RERANKER)
    order = [rank["index"] for rank in expected]
    client = cohere.ClientV2(api_key="k3y", base_url=url)
    answer = client.rerank(model="rerank-v3.5", query=QUERY, documents=DOCUMENTS)
    assert [result.index for result in answer.results] == order
    answer = litellm.rerank(
        model="jina_ai/jina/rerank", query=QUERY, documents=DOCUMENTS, api_base=f"{url}/v1/rerank", api_key="k3y"
    )
    assert [result["index"] for result in answer.results] == order
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k3y", max_retries=0)
    vectors = client.embeddings.create(model="text-embedding-3-small", input=INPUTS, encoding_format="float")
    expected = alone(served, "/v1/embeddings", {"input": INPUTS}, EMBEDDER)
    assert [item.embedding for item in vectors.data] == [item["embedding"] for item in expected["data"]]
    assert vectors.model == "org/embedder"
    assert [model.id for model in client.models.list()] == ["org/embedder", "reranker", "classifier"]
    with pytest.raises(openai.NotFoundError, match="there is no model `gpt-4`: choose one of org/embedder"):
        client.embeddings.create(model="gpt-4", input="a")


def test_a_flood_on_one_model_changes_no_answer_of_another(several, served):
    flood = {"model": "reranker", "query": QUERY, "texts": DOCUMENTS * 20}
    expected = alone(served, "/embed", {"inputs": INPUTS}, EMBEDDER)
    ranks = several.post("/rerank", flood).json()
    with ThreadPoolExecutor(8) as pool:
        floods = [pool.submit(several.post, "/rerank", flood) for _ in range(24)]
        for _ in range(8):
            answer = several.post("/embed", {"inputs": INPUTS})
            assert answer.json() == expected
        assert all(answer.result().json() == ranks for answer in floods)


def test_wrong_models_are_refused_by_name_before_the_port_opens(tmp_path):
    same = models_file(tmp_path, table("a", EMBEDDER), table("b", RERANKER, 'aliases = ["a"]'))
    ended = run("--models-file", str(same))
    assert ended.returncode == 2 and "two models have the name `a`" in ended.stderr
    missing = models_file(tmp_path, table("good", EMBEDDER), table("bad", "nowhere"))
    assert "model `bad`: " in refusal(missing)
    kind = models_file(tmp_path, table("r", RERANKER), table("e", EMBEDDER, 'chat-template = "builtin"'))
    assert "model `e`: `--chat-template` is for re-rankers" in refusal(kind)
    ended = run("--models-file", str(tmp_path / "none.toml"))
    assert ended.returncode == 2 and "none.toml: No such file" in ended.stderr
