"""Ray Data and Ray Serve on a local cluster of two nodes, with real servers.

Input: TEXT_EMBEDDINGS_ROUTER, the binary; RAY_PAIRS, the number of pairs (default 50,000). Invariants: every
row comes out once and with the values of a single server, even if a node is killed halfway; each mistake
raises one clear error.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed: `make ray-test` installs it in an environment of its own")

import httpx  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402
from ray import serve  # noqa: E402
from ray._private.state import actors  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import text_embeddings_router as ter  # noqa: E402
from text_embeddings_router.ray import deployment, embed_dataset, rerank_dataset  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EMBEDDING_MODEL = str(ROOT / "integration_tests/reference/fixtures/models/embedding-last")
PAIRS = int(os.environ.get("RAY_PAIRS", "50000"))
FILES = 50
FLAGS = {"dtype": "float32"}
WORDS = "red planet bread water light moon river stone glass paper winter summer 화성 хлеб".split()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # The worker node will be killed; the head can do its work as well.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "object_store_memory": 500_000_000})
    ray.init(address=cluster.address, log_to_driver=False)
    # No progress bars, which are made for a terminal.
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def pair(number: int) -> tuple[str, str]:
    """A query and a text. Ten texts in a row have the same query."""
    query = number // 10
    words = [WORDS[(number * 7 + at * at) % len(WORDS)] for at in range(8)]
    return f"{WORDS[query % len(WORDS)]} {query}", f"{number} {' '.join(words)}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for file in range(FILES):
        numbers = range(file * PAIRS // FILES, (file + 1) * PAIRS // FILES)
        queries, texts = zip(*map(pair, numbers), strict=True)
        parquet.write_table(pa.table({"id": list(numbers), "query": queries, "text": texts}), folder / f"{file:03}.parquet")
    return folder


@pytest.fixture(scope="module")
def expected() -> dict[int, float]:
    """The scores from a single server."""
    server = ter.Server("demo", max_client_batch_size=1000, **FLAGS).start()
    client = server.client()
    started = time.monotonic()

    def ask(first: int) -> list[float]:
        queries, texts = zip(*map(pair, range(first, min(first + 500, PAIRS))), strict=True)
        return client.score(queries, texts)

    with ThreadPoolExecutor(4) as pool:
        scores = [score for answer in pool.map(ask, range(0, PAIRS, 500)) for score in answer]
    print(f"\none server: {PAIRS / (time.monotonic() - started):.0f} pairs/s")
    server.stop()
    return dict(enumerate(scores))


def test_every_row_once_and_equal_while_a_node_is_killed(cluster, folder, expected):
    node = cluster.add_node(num_cpus=2, object_store_memory=500_000_000, resources={"worker": 1})
    cluster.wait_for_nodes()
    dataset = rerank_dataset(ray.data.read_parquet(str(folder)), "demo", replicas=2, cpus=2, **FLAGS)
    seen: Counter[int] = Counter()
    scores: dict[int, float] = {}
    used: set[str] = set()
    is_killed = False
    started = time.monotonic()
    for batch in dataset.iter_batches(batch_size=500, batch_format="pyarrow"):
        seen.update(batch.column("id").to_pylist())
        scores.update(zip(batch.column("id").to_pylist(), batch.column("score").to_pylist(), strict=True))
        if not is_killed and len(scores) >= PAIRS // 2:
            found = [actor for actor in actors().values() if actor["State"] == "ALIVE" and "MapWorker" in actor["ActorClassName"]]
            used = {actor["Address"]["NodeID"] for actor in found}
            cluster.remove_node(node, allow_graceful=False)
            is_killed = True
    print(f"two actors, one node killed halfway: {PAIRS / (time.monotonic() - started):.0f} pairs/s")
    assert is_killed and len(used) == 2, f"the actors were on {used}: nothing was lost with the node"
    assert set(seen.values()) == {1} and set(seen) == set(range(PAIRS))
    worst = max(abs(scores[number] - score) for number, score in expected.items())
    assert worst < 1e-4, worst


def test_two_actors_on_a_whole_cluster(cluster, folder, expected, tmp_path):
    started = time.monotonic()
    dataset = rerank_dataset(ray.data.read_parquet(str(folder)), "demo", replicas=2, cpus=1, score_column="s", **FLAGS)
    dataset.write_parquet(str(tmp_path))
    print(f"\ntwo actors, to Parquet: {PAIRS / (time.monotonic() - started):.0f} pairs/s")
    table = parquet.read_table(tmp_path)
    assert sorted(table.column("id").to_pylist()) == list(range(PAIRS)) and table.schema.field("s").type == pa.float32()
    rows = zip(table.column("id").to_pylist(), table.column("s").to_pylist(), strict=True)
    assert max(abs(expected[number] - score) for number, score in rows) < 1e-4


def test_vectors(cluster):
    texts = [f"{number} {' '.join(WORDS[: number % 9])}" for number in range(200)]
    dataset = ray.data.from_items([{"id": number, "body": text} for number, text in enumerate(texts)])
    rows = embed_dataset(dataset, EMBEDDING_MODEL, text_column="body", tokens_per_request=100, **FLAGS).take_all()
    with ter.serve(EMBEDDING_MODEL, max_client_batch_size=200, **FLAGS) as client:
        expected = client.embed(texts)
    assert len(rows) == 200
    for row in rows:
        assert row["body"] == texts[row["id"]] and list(row["vector"]) == pytest.approx(expected[row["id"]], abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"query": "q", "text": "a"}, {"query": "q", "text": None}], {}, "a row has no text in the column `text`, but NoneType: {'query': 'q'"),
        ([{"query": "q", "body": "a"}], {}, "there is no column `text`, but `query`, `body`"),
        ([{"query": "q", "text": "a", "score": 1}], {}, "there is a column `score` already"),
        ([{"query": "q", "text": "a"}], {"prot": 1}, "the server has no flag `prot`: did you mean `port`?"),
        ([{"query": "", "text": "a"}], {}, "`queries`"),
    ],
)
def test_a_mistake_is_one_clear_error(cluster, rows, options, words):
    with pytest.raises(Exception) as found:
        rerank_dataset(ray.data.from_items(rows), "demo", cpus=1, **options, **FLAGS).take_all()
    assert words in str(found.value), str(found.value)


def test_a_server_that_dies_is_started_again(cluster, monkeypatch):
    from text_embeddings_router import ray as module

    actor = module._Reranker(module._Settings("demo", 1, 8192, dict(FLAGS)), "query", "text", "score", False)
    table = pa.table({"query": ["red planet"] * 2, "text": ["Mars is red.", "Bread is baked."]})
    before = actor(table).column("score").to_pylist()
    os.kill(actor._server.pid, 9)
    assert actor(table).column("score").to_pylist() == pytest.approx(before, abs=1e-6)
    # If a batch ends every server, that is an error, not an endless loop.
    monkeypatch.setattr(type(actor._client), "score", lambda client, *_, **__: os.kill(actor._server.pid, 9) or client.info())
    with pytest.raises(ter.ServerUnreachableError):
        actor(table)
    actor._server.stop()


def test_serve_answers_as_the_server_and_scales(cluster):
    application = deployment("demo", replicas=(1, 2), ongoing_requests=1, cpus=1, **FLAGS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"port": port})
    try:
        serve.run(application, route_prefix="/", name="demo")
        url = f"http://127.0.0.1:{port}"
        body = {"query": "red planet", "texts": ["Bread is baked.", "Mars is red."]}
        answer = httpx.post(f"{url}/rerank", json=body, timeout=60)
        assert answer.status_code == 200 and answer.headers["x-compute-tokens"], answer.text
        with ter.serve("demo", **FLAGS) as client, ter.Client(url) as balanced:
            direct, through = (found.rerank(body["query"], body["texts"]) for found in (client, balanced))
            assert [rank.index for rank in through] == [rank.index for rank in direct]
            with pytest.raises(ter.EmptyInputError):
                balanced.rerank("", ["a"])
        long = {"query": "red planet", "texts": [f"{number} Mars is red." for number in range(200)]}
        end = time.monotonic() + 240
        with ThreadPoolExecutor(6) as pool:
            while replicas() < 2 and time.monotonic() < end:
                answers = list(pool.map(lambda _: httpx.post(f"{url}/rerank", json=long, timeout=300).status_code, range(6)))
                assert set(answers) == {200}
        assert replicas() == 2
    finally:
        serve.shutdown()


def test_an_embedder_and_a_reranker_in_each_replica(cluster, tmp_path):
    file = tmp_path / "models.toml"
    file.write_text(f'[models.embeds]\nmodel-id = "{EMBEDDING_MODEL}"\n[models.ranks]\nmodel-id = "demo"\n')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"port": port})
    try:
        serve.run(deployment(str(file), replicas=(1, 1), cpus=1, **FLAGS), route_prefix="/", name="both")
        texts = ["Bread is baked.", "Mars is red."]
        with ter.Client(f"http://127.0.0.1:{port}") as through, ter.serve(file, **FLAGS) as direct:
            assert through.embed(texts) == direct.embed(texts)
            assert through.rerank("red planet", texts) == direct.rerank("red planet", texts)
    finally:
        serve.shutdown()


def replicas() -> int:
    (found,) = serve.status().applications["demo"].deployments.values()
    return found.replica_states.get("RUNNING", 0)
