"""Several models behind one port: each request gets the answer of a server with its model alone."""

import json
import os
import re
import shutil
import time
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
STRONG = "seq-cls-1"
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
    assert ended.returncode == 2 and "none.toml` cannot be read: No such file" in ended.stderr


def test_the_log_says_how_much_memory_each_model_takes(several):
    """The cached prefixes and batches of other models are not loaded, but they need room."""
    log = several.wait_for_log(r"[\s\S]*Ready: .*", 5)[0]
    ready = re.findall(r"(\S+): \S+ in \S+ on [^;]*, (\d+) MB loaded", log.splitlines()[-1])
    assert [name for name, _ in ready] == ["org/embedder", "reranker", "classifier"], log
    assert all(int(loaded) < 60 for _, loaded in ready), log
    plans = re.findall(r"Memory: (\d+) MB loaded, at most (\d+) MB for a batch and (\d+) MB of prefixes(?:, (\d+))?", log)
    room = 0
    for number, (loaded, batch, prefixes, others) in enumerate(plans):
        assert int(loaded) < 400 and abs(int(others or 0) - room) <= 2 * number, log
        room += int(batch) + int(prefixes)
    assert len(plans) == 3 and room > 250


def test_answers_and_metrics_name_the_model(several):
    def moved(model: str) -> float:
        return several.metrics().get(f'te_request_count{{model="{model}",method="batch"}}', 0)

    before = {model: moved(model) for model in ("org/embedder", "reranker")}
    answer = several.post("/rerank", {"query": QUERY, "texts": DOCUMENTS})
    assert answer.headers["x-model"] == "reranker"
    several.wait_for_log(rf'request_id="?{answer.headers["x-request-id"]}.* model="reranker"', 10)
    assert several.post("/embed", {"inputs": INPUTS, "model": "text-embedding-3-small"}).headers["x-model"] == "org/embedder"
    assert {model: moved(model) - count for model, count in before.items()} == {"org/embedder": 1, "reranker": 1}
    series = several.metrics()
    assert series['te_model_loaded{model="classifier"}'] == 1
    # A metric without a name belongs to no model.
    nameless = {name.split("{")[0] for name in series if name.startswith("te_") and "model=" not in name}
    door = {"te_connections", "te_unread_bytes", "te_unsent_bytes"}
    assert nameless == {"te_build_info", "te_log_lines_dropped", "te_score_cache_bytes"} | door


@pytest.fixture(scope="module")
def cascade(tmp_path_factory) -> Iterator[Server]:
    file = models_file(
        tmp_path_factory.mktemp("cascade"),
        table("fast", RERANKER),
        table("strong", STRONG),
        '[cascade.both]\nfirst = "fast"\nthen = "strong"\nkeep = 4\naliases = ["rerank-v4"]',
        '[cascade.hurried]\nfirst = "fast"\nthen = "strong"\nkeep = 4\nbudget-ms = 1',
        table("vectors", EMBEDDER),
        '[cascade.by-cosine]\nfirst = "fast"\nthen = "vectors"\nkeep = 4',
    )
    with Server(file, "--grpc-port", "0") as server:
        yield server


def test_a_cascade_ranks_with_two_models_and_says_which(cascade, served):
    texts = [f"{text} {number}" for number, text in enumerate(DOCUMENTS * 3)]
    by_fast, by_strong = (
        {rank["index"]: rank["score"] for rank in served(model).rerank(QUERY, texts)} for model in (RERANKER, STRONG)
    )
    kept = sorted(by_fast, key=lambda index: -by_fast[index])[:4]
    best = sorted(kept, key=lambda index: -by_strong[index])
    expected = [(index, by_strong[index], 2) for index in best]
    expected += [(index, by_fast[index], 1) for index in by_fast if index not in kept]
    for ranks in (
        cascade.rerank(QUERY, texts, model="both"),
        cascade.post("/models/both/rerank", {"query": QUERY, "texts": texts}).json(),
    ):
        assert [(rank["index"], rank["score"], rank["stage"]) for rank in ranks] == expected
    for path in ("/v1/rerank", "/v2/rerank"):
        body = {"model": "rerank-v4", "query": QUERY, "documents": texts, "top_n": 5}
        results = cascade.post(path, body).json()["results"]
        found = [(result["index"], result["relevance_score"], result["stage"]) for result in results]
        assert found == expected[:5]
    # A client of today's version takes the further field.
    client = cohere.ClientV2(api_key="any", base_url=cascade.url)
    answer = client.rerank(model="rerank-v4", query=QUERY, documents=texts)
    assert [result.index for result in answer.results] == [index for index, _, _ in expected]
    # The models themselves answer as before.
    assert "stage" not in cascade.rerank(QUERY, texts, model="strong")[0]
    # The second model may score all of them.
    few = cascade.rerank(QUERY, texts[:4], model="both")
    assert {rank["stage"] for rank in few} == {2}
    stages = [rank["stage"] for rank in cascade.rerank(QUERY, texts, model="hurried")]
    assert stages == [2] + [1] * 8
    # `vectors` has no place for an instruction, and `fast` computes nothing for such a request.
    computed = 'te_batch_tokens_computed{model="fast"}'
    before = cascade.metrics()[computed]
    answer = cascade.post("/rerank", {"model": "by-cosine", "query": "new", "texts": texts, "instruction": "Judge."})
    assert answer.status_code == 422 and "`instruction` cannot be given" in answer.text
    assert cascade.metrics()[computed] == before


def test_a_cascade_describes_itself_and_has_no_other_task(cascade):
    info = cascade.get("/info?model=both").json()
    assert info["cascade"] == {"first": "fast", "then": "strong", "keep": 4, "budget_ms": None}
    assert "cascade" not in cascade.get("/info?model=fast").json()
    names = [model["id"] for model in cascade.get("/v1/models").json()["data"]]
    assert names == ["fast", "strong", "vectors", "both", "hurried", "by-cosine"]
    body = {"model": "both", "queries": QUERY, "documents": DOCUMENTS}
    answer = cascade.post("/score", body)
    assert answer.status_code == 422 and "a cascade, which only ranks" in answer.text


def test_a_cascade_of_other_models_is_refused(tmp_path):
    two = [table("r", RERANKER), table("c", CLASSIFIER)]
    wrong = models_file(tmp_path, *two, '[cascade.x]\nfirst = "r"\nthen = "c"\nkeep = 4')
    assert "[cascade.x]: `c` is not a re-ranker" in refusal(wrong)
    wrong = models_file(tmp_path, *two[:1], table("s", STRONG), '[cascade.c]\nfirst = "r"\nthen = "s"\nkeep = 1001')
    assert "`keep = 1001` is more texts than `s` takes in a request, 1000" in refusal(wrong)


def wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_idle_model_leaves_memory_and_answers_the_same_when_it_is_back(tmp_path, served):
    folder = shutil.copytree(MODELS / RERANKER, tmp_path / "model")
    expected = served(RERANKER).rerank(QUERY, DOCUMENTS)
    with Server(folder, "--idle-unload", "0.2s") as server:

        def model() -> dict:
            return server.get("/v1/models").json()["data"][0]

        for loads in (1, 2):
            wait_for(lambda: not model()["loaded"])
            assert server.get("/health/ready").status_code == 200
            assert server.metrics()["te_model_loaded"] == 0
            assert server.rerank(QUERY, DOCUMENTS) == expected
            assert server.metrics()["te_model_loads"] == loads
        # A load that fails is told, and the next one is tried.
        wait_for(lambda: not model()["loaded"])
        weights = folder / "model.safetensors"
        weights.rename(folder / "away")
        body = {"query": QUERY, "texts": DOCUMENTS}
        answer = server.post("/rerank", body)
        assert answer.status_code == 424 and "its files have changed since it was first loaded" in answer.text
        assert "its files have changed" in model()["failure"]
        (folder / "away").rename(weights)
        assert server.rerank(QUERY, DOCUMENTS) == expected
        assert "failure" not in model()
        # Other weights of the same length are another version.
        wait_for(lambda: not model()["loaded"])
        os.utime(weights, (1, 1))
        answer = server.post("/rerank", body)
        assert answer.status_code == 424 and "its files have changed since it was first loaded" in answer.text
