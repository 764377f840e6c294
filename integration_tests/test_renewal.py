"""A running server takes a changed models file, and changed files of its models, on SIGHUP: wholly or not at
all."""

import http.client
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_client import messages, stubs
from grpc_health.v1 import health_pb2, health_pb2_grpc
from server import MODELS, Server, wait_until
from test_several_models import CLASSIFIER, DOCUMENTS, EMBEDDER, QUERY, RERANKER, STRONG, models_file, table

BODY = {"query": QUERY, "texts": DOCUMENTS}


class Renewed:
    """A server whose models file and model folders change."""

    def __init__(self, folder: Path, server: Server):
        self.folder, self.server = folder, server

    def renew(self) -> str:
        """Sends SIGHUP, and returns the part of the log that it causes."""
        before = len(self.server.log())
        self.server.process.send_signal(signal.SIGHUP)

        def ended() -> str | None:
            log = self.server.log()[before:]
            return log if "the models are now " in log or "the models stay as they were" in log else None

        return wait_until(ended, 60, "SIGHUP has no effect")

    def listed(self) -> dict:
        return self.server.get("/v1/models").json()

    def names(self) -> list[str]:
        return [model["id"] for model in self.listed()["data"]]

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.server.process.pid}/task").iterdir()))


def point_to(link: Path, model: str | Path) -> None:
    """Sets a link to another version in one step."""
    new = link.with_suffix(".new")
    new.symlink_to(MODELS / model)
    new.replace(link)


def tables(folder: Path, *further: str) -> list[str]:
    return [
        f'[models.ranks]\nmodel-id = "{folder / "ranks"}"\naliases = ["rerank-v3.5"]',
        table("embeds", EMBEDDER),
        *further,
    ]


@pytest.fixture
def renewed(tmp_path) -> Iterator[Renewed]:
    point_to(tmp_path / "ranks", RERANKER)
    file = models_file(tmp_path, *tables(tmp_path))
    with Server(file, "--grpc-port", "0") as server:
        yield Renewed(tmp_path, server)


def test_a_new_version_answers_new_requests_and_earlier_requests_end_on_theirs(renewed, served):
    server = renewed.server
    first, second = (served(model).rerank(QUERY, DOCUMENTS) for model in (RERANKER, STRONG))
    assert server.rerank(QUERY, DOCUMENTS) == first != second
    threads = renewed.threads()
    vectors = server.post("/embed", {"inputs": DOCUMENTS}).json()
    # A client that watches the health keeps no model.
    channel = grpc.insecure_channel(server.grpc_address)
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    point_to(renewed.folder / "ranks", STRONG)
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(server.rerank, QUERY, DOCUMENTS) for _ in range(60)]
        log = renewed.renew()
        answers += [pool.submit(server.rerank, QUERY, DOCUMENTS) for _ in range(6)]
        found = [answer.result() for answer in answers]
    assert "`ranks`: the new version answers" in log and "`embeds`" not in log, log
    assert all(answer in (first, second) for answer in found) and found[-6:] == [second] * 6
    assert server.post("/models/ranks/rerank", BODY).json() == second
    assert server.post("/v2/rerank", {"model": "rerank-v3.5", "query": QUERY, "documents": DOCUMENTS}).status_code == 200
    assert server.post("/embed", {"inputs": DOCUMENTS}).json() == vectors
    server.wait_for_log("`ranks`: the earlier version has left memory", 30)
    wait_until(lambda: renewed.threads() <= threads, 30, "threads of the earlier version are left")
    channel.close()
    assert "failure" not in renewed.listed()
    # Nothing has changed since.
    log = renewed.renew()
    assert "Loading the model" not in log and "the models are now ranks, embeds" in log, log


def corrupt(name: str):
    """A change of a copy of the re-ranker that makes it unusable."""

    def cut_off(folder: Path) -> None:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])

    def no_layers(folder: Path) -> None:
        weights = folder / "model.safetensors"
        content = bytearray(weights.read_bytes())
        begin = 8 + int.from_bytes(content[:8], "little")
        for name, tensor in json.loads(content[8:begin]).items():
            if name != "__metadata__" and "embed" not in name:
                start, end = tensor["data_offsets"]
                content[begin + start : begin + end] = bytes(end - start)
        weights.write_bytes(content)

    def no_tokenizer(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()

    return {"cut off": cut_off, "no layers": no_layers, "no tokenizer": no_tokenizer}[name]


@pytest.fixture(scope="module")
def steady(tmp_path_factory) -> Iterator[Renewed]:
    """A server whose changes are all refused."""
    folder = tmp_path_factory.mktemp("steady")
    point_to(folder / "ranks", RERANKER)
    with Server(models_file(folder, *tables(folder))) as server:
        yield Renewed(folder, server)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("cut off", "model.safetensors"), ("no layers", "two different test pairs got the same raw score"), ("no tokenizer", "tokenizer.json")],
)
def test_a_corrupt_new_version_never_takes_over_and_says_why(steady, served, tmp_path, kind, reason):
    copy = shutil.copytree(MODELS / RERANKER, tmp_path / "copy")
    corrupt(kind)(copy)
    point_to(steady.folder / "ranks", copy)
    log = steady.renew()
    assert "the models stay as they were: model `ranks`: " in log and reason in log, log
    assert reason in steady.listed()["failure"]
    assert steady.server.rerank(QUERY, DOCUMENTS) == served(RERANKER).rerank(QUERY, DOCUMENTS)
    assert steady.server.post("/embed", {"inputs": DOCUMENTS}).status_code == 200
    point_to(steady.folder / "ranks", RERANKER)


def test_a_template_that_takes_all_memory_ends_its_trial_and_not_the_server(steady, tmp_path):
    doubles = "{% set it = namespace(x='query') %}{% for _ in range(60) %}{% set it.x = it.x ~ it.x %}{% endfor %}"
    copy = shutil.copytree(MODELS / RERANKER, tmp_path / "copy")
    (copy / "chat_template.jinja").write_text(doubles + "{{ it.x }}{{ 'document' }}")
    point_to(steady.folder / "ranks", copy)
    log = steady.renew()
    assert "the models stay as they were: model `ranks`: " in log and "MiB of memory" in log, log
    # The thread of that work would go on for ever.
    names = [name.read_text().strip() for name in Path(f"/proc/{steady.server.process.pid}/task").glob("*/comm")]
    assert "device" in names and "guarded" not in names
    assert steady.server.post("/embed", {"inputs": DOCUMENTS}).status_code == 200
    point_to(steady.folder / "ranks", RERANKER)
    steady.renew()
    assert "failure" not in steady.listed()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[models.ranks]\nmodel-id = "x"\n[models.emb', "line 3"),
        ('[models.ranks]\nmodel-id = "/nowhere"', "model `ranks`: "),
        ('[models.ranks]\ndtpye = "int8"\nmodel-id = "demo"', "did you mean `dtype`?"),
        ('[models.a]\nmodel-id = "demo"\naliases = ["b"]\n[models.b]\nmodel-id = "demo"', "two models have the name `b`"),
        ('[models.a]\nmodel-id = "demo"\n[cascade.c]\nfirst = "a"\nthen = "c"\nkeep = 1', "there is no model `c`"),
        ("", "it has no model"),
    ],
)
def test_a_wrong_models_file_changes_nothing(steady, content, reason):
    file = steady.folder / "models.toml"
    before = file.read_text(encoding="utf-8")
    file.write_text(content, encoding="utf-8")
    assert reason in steady.renew()
    assert reason in steady.listed()["failure"]
    assert steady.names() == ["ranks", "embeds"] and steady.server.post("/rerank", BODY).status_code == 200
    file.write_text(before, encoding="utf-8")
    steady.renew()
    assert "failure" not in steady.listed()


def test_models_of_the_file_come_and_go(renewed):
    server, folder = renewed.server, renewed.folder
    more = [
        table("labels", CLASSIFIER, 'aliases = ["moderation"]'),
        table("strong", STRONG),
        '[cascade.both]\nfirst = "ranks"\nthen = "strong"\nkeep = 1',
    ]
    models_file(folder, *tables(folder, *more))
    log = renewed.renew()
    assert log.count("Loading the model") == 2, log
    assert renewed.names() == ["ranks", "embeds", "labels", "strong", "both"]
    assert server.post("/predict", {"inputs": "a", "model": "moderation"}).status_code == 200
    assert [rank["stage"] for rank in server.rerank(QUERY, DOCUMENTS, model="both")] == [2, 1, 1]
    series = server.metrics()
    assert series['te_model_loaded{model="labels"}'] == 1 and series['te_request_count{model="labels",method="single"}'] == 1
    # A name moves from one model to another, and a model goes, from one request to the next.
    models_file(folder, *[line.replace("rerank-v3.5", "other") for line in tables(folder)], table("labels", CLASSIFIER, 'aliases = ["rerank-v3.5"]'))
    log = renewed.renew()
    assert "Loading the model" not in log and "`strong`: removed" in log, log
    assert renewed.names() == ["ranks", "embeds", "labels"]
    assert server.post("/models/strong/rerank", BODY).status_code == 404
    assert server.post("/predict", {"inputs": "a", "model": "rerank-v3.5"}).headers["x-model"] == "labels"
    server.wait_for_log("`strong`: the earlier version has left memory", 30)
    wait_until(lambda: server.metrics()['te_model_loaded{model="strong"}'] == 0, 30, "its gauges stay")
    # Other flags are another version; one model is left.
    models_file(folder, f'[models.ranks]\nmodel-id = "{folder / "ranks"}"\nmax-rerank-texts = 2')
    renewed.renew()
    assert server.post("/rerank", BODY).status_code == 422
    assert server.post("/rerank", {**BODY, "texts": DOCUMENTS[:1], "model": "any"}).status_code == 200


def test_another_base_of_an_adapter_is_another_version(tmp_path):
    folder = shutil.copytree(MODELS.parent / "any2jev", tmp_path / "any2jev")
    with Server(models_file(tmp_path, f'[models.decides]\nmodel-id = "{folder / "small"}"')) as server:
        renewed = Renewed(tmp_path, server)
        assert "Loading the model" not in renewed.renew()
        os.utime(folder / "qwen3-instruct/model.safetensors", (0, 0))
        assert "`decides`: the new version answers" in renewed.renew()


LATE = 'load = "first request"'
MANY = 200


@pytest.fixture(scope="module")
def late(tmp_path_factory) -> Iterator[Server]:
    """A server with one model, and 200 more that load late. Two of those are broken."""
    folder = tmp_path_factory.mktemp("late")
    file = models_file(
        folder,
        table("first", EMBEDDER),
        *(table(f"late-{number}", RERANKER, LATE, 'idle-unload = "1h"') for number in range(MANY - 2)),
        table("missing", "nowhere", LATE),
        table("wrong", RERANKER, LATE, 'pooling = "cls"', 'aliases = ["rerank-v4"]'),
    )
    with Server(file, "--api-key", "k", "--grpc-port", "0") as server:
        server.session.headers["Authorization"] = "Bearer k"
        yield server


def listed(server: Server) -> dict[str, dict]:
    return {model["id"]: model for model in server.get("/v1/models").json()["data"]}


def loads(server: Server) -> int:
    return server.log().count("for the first request")


def test_models_that_load_late_take_nothing_until_a_request_names_them(late, served):
    expected = served(RERANKER).rerank(QUERY, DOCUMENTS)
    models = listed(late)
    assert len(models) == MANY + 1 and [name for name, model in models.items() if model["loaded"]] == ["first"]
    assert models["late-1"] == {
        "id": "late-1", "object": "model", "created": 0, "owned_by": "text-embeddings-router", "aliases": [],
        "model_id": str(MODELS / RERANKER), "loaded": False,
    }  # fmt: skip
    # Neither probes, nor pages, nor clients without the key load a model.
    without_key = {"headers": {"Authorization": "Bearer other"}}
    for path in ("/health?model=late-1", "/models/late-1/health", "/models/late-1/playground"):
        assert late.get(path, **without_key).status_code == 200, path
    assert late.post("/rerank", {**BODY, "model": "late-1"}, **without_key).status_code == 401
    assert late.post("/models/late-1/rerank", BODY, **without_key).status_code == 401
    # Without a name a request goes to a model that is loaded.
    assert late.post("/tokenize", {"inputs": "a"}).headers["x-model"] == "first"
    assert loads(late) == 0
    # Requests for one model wait for the same load, and others are answered meanwhile.
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(late.post, "/rerank", {**BODY, "model": "late-1"}) for _ in range(6)]
        asked += [pool.submit(late.post, "/models/late-2/rerank", BODY) for _ in range(2)]
        vectors = [pool.submit(late.post, "/embed", {"inputs": DOCUMENTS}) for _ in range(4)]
        assert all(answer.result().json() == expected for answer in asked)
        assert all(answer.result().status_code == 200 for answer in vectors)
    assert loads(late) == 2
    found = listed(late)
    assert found["late-1"]["loaded"] and found["late-1"]["kind"] == "listwise-reranker" and not found["late-3"]["loaded"]
    assert late.get("/info?model=late-3").json()["served_model_name"] == "late-3"
    assert late.metrics()['te_model_loaded{model="late-3"}'] == 1
    # A re-ranker is loaded now.
    assert late.post("/rerank", BODY).headers["x-model"] == "late-1"
    assert late.post("/rerank", {**BODY, "model": "late-1"}).json() == expected


def test_a_model_that_cannot_be_loaded_late_says_why_to_its_own_clients(late):
    before = listed(late)
    for body, path, reason in [
        ({**BODY, "model": "missing"}, "/rerank", "nowhere"),
        ({"query": QUERY, "documents": DOCUMENTS, "model": "rerank-v4"}, "/v2/rerank", "leave `--pooling` and `--model-type` out"),
    ]:
        answer = late.post(path, body)
        message = answer.json().get("error") or answer.json()["message"]
        assert answer.status_code == 424 and "cannot be loaded: " in message and reason in message, answer.text
    after = listed(late)
    assert "nowhere" in after["missing"]["failure"] and "`--pooling`" in after["wrong"]["failure"]
    assert {name: model for name, model in after.items() if name not in ("missing", "wrong")} == {
        name: model for name, model in before.items() if name not in ("missing", "wrong")
    }
    assert late.post("/embed", {"inputs": "a"}).status_code == 200
    probes = ("/health?model=missing", "/health/ready?model=rerank-v4", "/models/missing/health", "/health?model=late-5", "/health")
    assert [late.get(path).status_code for path in probes] == [503, 503, 503, 200, 200]


def test_a_connection_outlives_the_refusal_of_a_late_model(late):
    body = json.dumps(BODY).encode()
    connection = http.client.HTTPConnection("127.0.0.1", late.port, timeout=30)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.putrequest("POST", "/models/missing/rerank")
        connection.putheader("authorization", "Bearer k")
        connection.putheader("content-length", str(len(body)))
        connection.endheaders()
        # The server knows its answer before the body comes.
        time.sleep(0.1)
        connection.send(body)
        answer = connection.getresponse()
        assert answer.status == 424 and b"nowhere" in answer.read()
        assert connection.sock is first
    connection.close()


def test_a_request_waits_for_a_load_within_its_deadline_only(late):
    count = loads(late)
    answer = late.post("/rerank", {**BODY, "model": "late-10"}, headers={"x-request-timeout": "0.001"})
    assert answer.status_code == 504 and "the time limit of 0.001 s" in answer.text
    # The load goes on for the next client.
    assert late.post("/rerank", {**BODY, "model": "late-10"}).status_code == 200
    assert loads(late) == count + 1
    with grpc.insecure_channel(late.grpc_address) as channel:
        stub = stubs.RerankStub(channel)
        key = ("authorization", "Bearer k")
        request = messages.RerankRequest(query=QUERY, texts=DOCUMENTS)
        assert len(stub.Rerank(request, metadata=[key, ("model", "late-11")]).ranks) == len(DOCUMENTS)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Rerank(request, metadata=[key, ("model", "missing")])
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION and "nowhere" in refused.value.details()


def test_a_reload_keeps_what_is_late_and_what_is_loaded(late, tmp_path):
    renewed = Renewed(tmp_path, late)
    loaded = [name for name, model in listed(late).items() if model["loaded"]]
    log = renewed.renew()
    assert "Loading the model" not in log and "the models are now" in log, log
    assert [name for name, model in listed(late).items() if model["loaded"]] == loaded
