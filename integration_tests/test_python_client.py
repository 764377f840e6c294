"""The Python package's module, from its source, with the development build of the server.

Invariants: answers equal the answers to plain HTTP requests; every error has a type of its own and is one
sentence; a busy server is asked again after the time that it names; the server ends with the program that
started it, however that ends.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import requests
from busy_stub import Stub
from fake_hub import FakeHub
from server import BINARY, DEMO, MODELS, ROOT, Server, wait_until

PYTHON = ROOT / "python"
sys.path.insert(0, str(PYTHON))
os.environ["TEXT_EMBEDDINGS_ROUTER"] = str(BINARY)

import text_embeddings_router as ter  # noqa: E402

QUERY, TEXTS = "red planet", ["Bread is baked.", "Mars is red.", "화성은 붉다."]
# A program that starts a server, prints the server's process id and address, and then runs `then`.
HOLDER = """
    import os, sys, threading, time
    import text_embeddings_router as ter
    server = ter.Server("demo")
    {start}
    print(server.pid, server.url, flush=True)
    {then}
"""


@pytest.fixture(scope="module")
def demo(served) -> Server:
    return served(DEMO)


@contextlib.contextmanager
def ask_by(kind: str, url: str) -> Iterator[Callable[..., Any]]:
    """A function that calls a method of the client of this kind by its name."""
    if kind == "sync":
        with ter.Client(url) as client:
            yield lambda method, *arguments, **options: getattr(client, method)(*arguments, **options)
        return

    def ask(method: str, *arguments: object, **options: object) -> object:
        async def run() -> object:
            async with ter.AsyncClient(url) as client:
                return await getattr(client, method)(*arguments, **options)

        return asyncio.run(run())

    yield ask


def scores_of(server: Server) -> dict[int, float]:
    return {rank["index"]: rank["score"] for rank in server.rerank(QUERY, TEXTS)}


def test_answers_are_those_of_plain_requests(demo):
    with ter.Client(demo.url) as client:
        expected = demo.rerank(QUERY, TEXTS, return_text=True)
        assert client.rerank(QUERY, TEXTS, return_text=True) == [ter.Rank(**rank) for rank in expected]
        assert [rank.index for rank in client.rerank(QUERY, TEXTS, top_n=1)] == [expected[0]["index"]]
        raw = client.rerank(QUERY, TEXTS, raw_scores=True, instruction="Find the same words")
        assert [rank.score for rank in raw] != pytest.approx([rank["score"] for rank in expected], abs=1e-2)
        pairs = client.score([QUERY] * 3, TEXTS)
        assert dict(enumerate(pairs)) == pytest.approx(scores_of(demo), abs=1e-5)
        (label,), *_ = client.predict([(QUERY, text) for text in TEXTS])
        assert (label.label, label.score) == ("yes", pytest.approx(pairs[0], abs=1e-5))
        assert client.info()["model_id"] == DEMO


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_chunks_and_highlights_are_those_of_plain_requests(demo, kind):
    long = "Mars is red. " + "Bread is baked 🙂. " * 20
    fields = {"max_chunks_per_doc": 9, "chunk_overlap": 3, "highlight": 1}
    # The client has no limit on the tokens of a text, so the text must not fit the model.
    texts = [long * 40, "Mars is red. It is dry."]
    with ask_by(kind, demo.url) as ask:
        ranks = ask("rerank", QUERY, texts, return_text=True, **fields)
        expected = demo.rerank(QUERY, texts, return_text=True, **fields)
        for rank, plain in zip(ranks, expected, strict=True):
            assert (rank.index, rank.score) == (plain["index"], plain["score"])
            assert rank.best_passage == ter.Passage(**plain["best_passage"], score=plain["score"])
            part = texts[rank.index][rank.best_passage.start : rank.best_passage.end]
            assert rank.best_passage.text == part
            marked = plain.get("highlights")
            assert rank.highlights == (None if marked is None else tuple(ter.Passage(**part) for part in marked))
        assert [rank.highlights is None for rank in ranks] == [False, True]
        # More texts than a request takes: the best of all are highlighted, and no others.
        many = ask("rerank", QUERY, TEXTS * 400, highlight=2)
        assert [rank.highlights is not None for rank in many] == [True] * 2 + [False] * 1198
        assert ask("rerank", QUERY, TEXTS)[0].best_passage is None


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("encoding", ["int8", "uint8", "binary", "ubinary"])
def test_encoded_vectors_are_those_of_cohere(served, kind, encoding):
    embedder = served("embedding-last")
    body = {"texts": TEXTS, "input_type": "search_query", "embedding_types": [encoding], "output_dimension": 16}
    expected = embedder.post("/v2/embed", body).json()["embeddings"][encoding]
    with ask_by(kind, embedder.url) as ask:
        assert ask("embed_encoded", TEXTS, encoding, input_type="search_query", dimensions=16) == expected
        assert len(ask("embed_encoded", TEXTS, encoding)[0]) > len(expected[0])
        with pytest.raises(ter.ValidationError):
            ask("embed_encoded", TEXTS, "int3")
        with pytest.raises(ter.ValidationError):
            ask("embed_encoded", ["long text " * 9999], encoding, truncate=False)


def test_vectors_and_labels(served):
    embedder, classifier = served("embedding-last"), served("seq-cls-3")
    with ter.Client(embedder.url) as client:
        for options in ({}, {"normalize": False}, {"dimensions": 4}):
            expected = embedder.post("/embed", {"inputs": TEXTS, **options}).json()
            assert client.embed(TEXTS, **options) == expected
            array = client.embed_array(numpy.array(TEXTS), **options)
            assert array.dtype == numpy.float32 and numpy.array_equal(array, numpy.array(expected, numpy.float32))
        cosines = client.similarity(QUERY, TEXTS)
        assert cosines == pytest.approx(client.embed_array(TEXTS) @ client.embed_array([QUERY])[0], abs=1e-5)
    with ter.Client(classifier.url) as client:
        expected = classifier.post("/predict", {"inputs": [["a"], ["b", "c"]]}).json()
        assert client.predict(["a", ("b", "c")]) == [[ter.Prediction(**label) for label in row] for row in expected]
    splade = served(MODELS.parent / "served/bert-splade-saved")
    with ter.Client(splade.url) as client:
        expected = splade.post("/embed_sparse", {"inputs": TEXTS}).json()
        assert client.embed_sparse(TEXTS) == [{entry["index"]: entry["value"] for entry in row} for row in expected]


class TestLongLists:
    """Lists that are longer than the server takes in one request."""

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize("batch", [4, None])
    def test_they_are_sent_in_parts(self, served, kind, batch):
        flags = ("--max-client-batch-size", str(batch)) if batch else ()
        texts = [f"text {number}" for number in range(70 if batch is None else 10)]
        steps: list[tuple[int, int]] = []
        with ask_by(kind, served("embedding-last", *flags).url) as ask:
            vectors = ask("embed", texts, progress=lambda *step: steps.append(step))
            assert vectors[-1] == pytest.approx(ask("embed", texts[-1:])[0], abs=1e-5)
            assert len(vectors) == len(texts)
            assert steps == [(min(end, len(texts)), len(texts)) for end in range(batch or 32, len(texts) + (batch or 32), batch or 32)]
            cosines = ask("similarity", texts[0], texts)
            assert cosines == pytest.approx([sum(a * b for a, b in zip(vectors[0], vector, strict=True)) for vector in vectors], abs=1e-5)
        with ask_by(kind, served("seq-cls-3", *flags).url) as ask:
            labels = ask("predict", texts)
            assert len(labels) == len(texts) and {p.label: p.score for p in labels[-1]} == pytest.approx(
                {p.label: p.score for p in ask("predict", texts[-1:])[0]}, abs=1e-5
            )

    def test_ranks_of_parts_are_one_ranking(self, served, demo):
        texts = [f"{word} is number {number}." for number, word in enumerate(["Mars", "Bread", "Venus"] * 3)]
        whole = demo.rerank(QUERY, texts)
        with ter.Client(served(DEMO, "--max-rerank-texts", "4").url) as client:
            ranks = client.rerank(QUERY, texts)
            assert [rank.index for rank in ranks] == [rank["index"] for rank in whole]
            assert [rank.score for rank in ranks] == pytest.approx([rank["score"] for rank in whole], abs=1e-5)
            assert client.rerank(QUERY, texts, top_n=2) == ranks[:2]
            assert client.rerank(QUERY, texts, top_n=0) == ranks
            scores = client.score([QUERY] * 9, texts)
            assert [scores[rank.index] for rank in ranks] == pytest.approx([rank.score for rank in ranks], abs=1e-5)

    def test_a_listwise_reranker_is_sent_the_whole_list(self, served):
        listwise = served(MODELS.parent / "rerankers/jina-reranker-v3", "--max-rerank-texts", "2")
        with ter.Client(listwise.url) as client, pytest.raises(ter.ValidationError, match="3"):
            client.rerank(QUERY, TEXTS)

    def test_a_refused_part_says_which_one_it_was(self, served, capsys):
        with ter.Client(served("embedding-last").url) as client:
            with pytest.raises(ter.EmptyInputError) as found:
                client.embed(["a"] * 40 + [""], progress=True)
        assert found.value.__notes__ == ["in the request for the items 32 to 40 of 41, counted from 0"]
        assert capsys.readouterr().err == "\r32 of 41 done"


def test_both_clients_answer_alike(demo):
    async def ask() -> list:
        async with ter.AsyncClient(demo.url) as client:
            return await asyncio.gather(
                client.rerank(QUERY, TEXTS, return_text=True),
                client.score([QUERY] * 3, TEXTS),
                client.predict([(QUERY, text) for text in TEXTS]),
                client.info(),
            )

    with ter.Client(demo.url) as client:
        ranks, pairs, labels, info = asyncio.run(ask())
        assert [rank.text for rank in ranks] == [rank.text for rank in client.rerank(QUERY, TEXTS, return_text=True)]
        assert pairs == pytest.approx(client.score([QUERY] * 3, TEXTS), abs=1e-6)
        assert [row[0].score for row in labels] == pytest.approx(pairs, abs=1e-6)
        assert info == client.info()


@pytest.mark.parametrize(
    ("ask", "kind", "status", "words"),
    [
        (lambda client: client.embed(["a"]), ter.BackendError, 424, "not an embedding model"),
        (lambda client: client.rerank("", ["a"]), ter.EmptyInputError, 400, "`query`"),
        (lambda client: client.rerank("q", []), ter.EmptyInputError, 400, "texts"),
        (lambda client: client.rerank("q", ["a" * 3_000_000]), ter.ValidationError, 413, "2000000"),
    ],
)
def test_each_error_has_its_type_and_the_servers_message(demo, ask, kind, status, words):
    with ter.Client(demo.url) as client, pytest.raises(kind) as found:
        ask(client)
    error = found.value
    assert error.status == status and words in error.message and words in str(error), str(error)
    # Errors can be pickled, so that they travel between processes.
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_arguments_that_are_not_lists_or_pairs_are_refused_before_they_are_sent():
    client = ter.Client("http://127.0.0.1:1")
    for ask in (lambda: client.rerank("q", "a"), lambda: client.embed("a"), lambda: client.predict("a"), lambda: client.score("q", "a")):
        with pytest.raises(TypeError, match="must be a list"):
            ask()
    with pytest.raises(ValueError, match="1 queries and 2 texts"):
        client.score(["q"], ["a", "b"])
    with pytest.raises(ValueError, match="at least 1"):
        ter.Client(attempts=0)
    for url, words in [("127.0.0.1:8080", "such as `http://127.0.0.1:8080`"), ("localhost", "http://localhost"), ("ftp://a", "http://a")]:
        for kind in (ter.Client, ter.AsyncClient):
            with pytest.raises(ValueError, match=words):
                kind(url)


def test_the_key(served):
    server = served("tied-bf16", "--api-key", "k")
    with ter.Client(server.url) as client, pytest.raises(ter.UnauthorizedError):
        client.rerank("q", ["a"])
    with ter.Client(server.url, api_key="k") as client:
        assert len(client.rerank("q", ["a"])) == 1


class TestPatience:
    """The waiting of both clients while a server is busy."""

    @pytest.fixture(autouse=True)
    def pauses(self, monkeypatch) -> list[float]:
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        monkeypatch.setattr("text_embeddings_router._client.time.sleep", pauses.append)
        monkeypatch.setattr("text_embeddings_router._client.asyncio.sleep", sleep)
        return pauses

    @staticmethod
    def ask(kind: str, url: str, **settings: float) -> list[ter.Rank]:
        if kind == "sync":
            with ter.Client(url, **settings) as client:
                return client.rerank(QUERY, TEXTS)

        async def ask() -> list[ter.Rank]:
            async with ter.AsyncClient(url, **settings) as client:
                return await client.rerank(QUERY, TEXTS)

        return asyncio.run(ask())

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_it_asks_again_after_the_time_that_the_server_names(self, demo, pauses, kind):
        with Stub(demo, [(429, {"Retry-After": "3"}), (503, {"Retry-After": "0"}), (429, {})]) as stub:
            ranks = self.ask(kind, stub.url)
        assert {rank.index: rank.score for rank in ranks} == pytest.approx(scores_of(demo), abs=1e-5)
        assert pauses[:2] == [3, 0] and 1 <= pauses[2] <= 2 and len(pauses) == 3
        assert len(stub.requests) == 4 and len(set(stub.requests)) == 1

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize(
        ("refusals", "error", "sent", "words"),
        [
            ([(429, {"Retry-After": "1"})] * 3, ter.OverloadedError, 3, "Model is overloaded (429 Overloaded after 3 attempts)"),
            ([(503, {})] * 3, ter.UnhealthyError, 3, "stopping"),
            ([(429, {"Retry-After": "21"})], ter.OverloadedError, 1, "overloaded (429 Overloaded)"),
            ([(502, {})], ter.RequestError, 1, "Bad Gateway"),
        ],
    )
    def test_it_gives_up(self, demo, pauses, kind, refusals, error, sent, words):
        with Stub(demo, refusals) as stub, pytest.raises(error) as found:
            self.ask(kind, stub.url, attempts=3)
        assert words in str(found.value) and len(stub.requests) == sent and len(pauses) == sent - 1

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_without_a_server_it_gives_up(self, pauses, kind):
        with pytest.raises(ter.ServerUnreachableError, match="no answer from http://127.0.0.1:1"):
            self.ask(kind, "http://127.0.0.1:1", attempts=2)
        assert len(pauses) == 1
        with pytest.raises(ter.ServerUnreachableError):
            self.ask(kind, "http://127.0.0.1:1", attempts=100, longest_pause=600)
        assert len(pauses) == 5 and sum(pauses) < 10

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_server_that_is_silent_is_not_asked_again(self, pauses, kind):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with pytest.raises(ter.AnswerTimeoutError, match="within 0.2 s"):
                self.ask(kind, f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
        assert pauses == []


def test_serve_gives_a_client_and_stops_the_server():
    with ter.serve(DEMO, dtype="float32") as client:
        best, *_ = client.rerank(QUERY, TEXTS)
        assert TEXTS[best.index] == "Mars is red."
    with pytest.raises(ter.ServerUnreachableError):
        ter.Client(client.url, attempts=1).info()


def test_serve_takes_a_models_file(tmp_path):
    file = tmp_path / "models.toml"
    folder = MODELS / "embedding-last"
    file.write_text(f'[models.embeds]\nmodel-id = "{folder}"\n[models.ranks]\nmodel-id = "demo"\n', encoding="utf-8")
    with ter.serve(file, dtype="float32") as client:
        assert len(client.embed(TEXTS)) == len(TEXTS)
        assert TEXTS[client.rerank(QUERY, TEXTS)[0].index] == "Mars is red."
    with pytest.raises(ter.FlagError, match="`models_file` is set by `serve` itself"):
        ter.serve(DEMO, models_file=file)


def test_serve_for_asyncio_with_flags_of_every_kind():
    async def ask() -> dict:
        flags = {"auto_truncate": False, "pin_threads": True, "max_rerank_texts": 2, "served_model_name": "-name", "revision": None}
        async with ter.serve(DEMO, api_key="k", cors_allow_origin=["http://a", "http://b"], **flags) as client:
            assert len(await client.rerank(QUERY, TEXTS)) == 3
            return await client.info()

    info = asyncio.run(ask())
    assert (info["auto_truncate"], info["pin_threads"], info["max_rerank_texts"]) == (False, True, 2)


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.3])
def test_a_cancelled_start_leaves_no_server(pause):
    """The task is cancelled after `pause` seconds. The start takes longer, because no Hub answers."""

    async def cancel(server: ter.Server) -> None:
        async def start() -> None:
            async with server:
                pass

        task = asyncio.create_task(start())
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with socket.create_server(("127.0.0.1", 0)) as silent_hub, pytest.MonkeyPatch.context() as variables:
        variables.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent_hub.getsockname()[1]}")
        variables.setenv("HF_HUB_OFFLINE", "")
        server = ter.Server("a/b")
        asyncio.run(cancel(server))
    assert not server.is_running


def test_a_key_is_not_in_the_list_of_processes():
    server = ter.Server(DEMO, api_key="s3cret").start()
    try:
        assert "s3cret" not in Path(f"/proc/{server.pid}/cmdline").read_text()
        with server.client() as client:
            assert client.rerank(QUERY, TEXTS)
    finally:
        server.stop()
    assert not server.is_running


@pytest.mark.parametrize(
    ("model", "flags", "kind", "words"),
    [
        (DEMO, {"prot": 1}, ter.FlagError, "no flag `prot`: did you mean `port`?"),
        (DEMO, {"tls_cert": "cert.pem"}, ter.FlagError, "without TLS"),
        (DEMO, {"api_key_file": "keys.txt"}, ter.FlagError, "give it as `api_key`"),
        (DEMO, {"json_output": True}, ter.FlagError, "`json_output` is set by `serve` itself"),
        (DEMO, {"max_batch_tokens": "many"}, ter.FlagError, "invalid value 'many' for '--max-batch-tokens"),
        (DEMO, {"default_prompt": "query: "}, ter.ServerStartError, "`--default-prompt`"),
        ("/nowhere", {}, ter.ServerStartError, "there is no such directory"),
        (str(ROOT / "docs"), {}, ter.ServerStartError, "config.json"),
    ],
)
def test_a_start_that_fails_is_one_clear_error(model, flags, kind, words):
    with pytest.raises(kind) as found, ter.serve(model, **flags):
        pass
    message = str(found.value)
    assert words in message and "\n" not in message, message
    assert vars(pickle.loads(pickle.dumps(found.value))) == vars(found.value)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ter.ServerStartError, match=rf"cannot listen on 127.0.0.1:{port} \("):
            ter.Server(DEMO, port=port).start()


def test_a_start_that_takes_too_long_is_ended():
    with socket.create_server(("127.0.0.1", 0)) as silent_hub:
        hub = {"HF_ENDPOINT": f"http://127.0.0.1:{silent_hub.getsockname()[1]}", "HF_HUB_OFFLINE": ""}
        code = """
            import text_embeddings_router as ter
            try:
                ter.Server("a/b", start_timeout=1).start()
            except ter.ServerStartError as error:
                print(error)
        """
        ended = subprocess.run(program(code), capture_output=True, text=True, timeout=60, env=environment(hub))
    assert ended.stdout.startswith("the server did not start: it was not ready within 1 s"), ended


def test_the_log_goes_to_logging(caplog):
    with caplog.at_level(logging.INFO, "text_embeddings_router.server"), ter.serve(DEMO) as client:
        client.rerank(QUERY, TEXTS)
        wait_until(lambda: "Success" in caplog.text, 10, "the request is not in the log")
    assert "Ready: listening on" in caplog.text
    caplog.clear()
    with ter.serve(DEMO, max_rerank_texts=1) as client:
        # A client's mistake is information. That a request names another model is a warning.
        with pytest.raises(ter.EmptyInputError):
            client.rerank("", TEXTS[:1])
        body = {"model": "another", "query": QUERY, "documents": TEXTS[:1]}
        assert requests.post(f"{client.url}/rerank", json=body, timeout=30).status_code == 200
    assert [record.levelname for record in caplog.records] == ["WARNING"], caplog.text


def test_in_a_notebook_whose_kernel_wants_colours():
    code = """
        import text_embeddings_router as ter
        server = ter.serve("demo").start()
        print(server.client().info()["model_id"])
        server.stop()
        try:
            ter.serve("demo", max_batch_tokens="many").start()
        except ter.FlagError as error:
            print(error)
    """
    # As ipykernel sets them.
    colours = {"CLICOLOR": "1", "CLICOLOR_FORCE": "1", "FORCE_COLOR": "1"}
    ended = subprocess.run(program(code), capture_output=True, text=True, timeout=60, env=environment(colours))
    assert ended.stdout.startswith("demo\nthe server did not start: invalid value 'many' for"), ended


@pytest.mark.parametrize("shows", [True, False])
def test_the_progress_of_a_download_is_shown(shows, tmp_path, monkeypatch, capsys):
    with FakeHub("a/b", MODELS / "tied-bf16") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_OFFLINE", "")
        with ter.serve("a/b", huggingface_hub_cache=tmp_path, progress=shows):
            pass
    shown = capsys.readouterr().err
    assert ("downloaded model.safetensors (" in shown) == shows and (shown == "") != shows, shown


def test_it_can_be_imported_where_there_is_no_fork():
    """Windows has no `fork`, and these modules are of POSIX only."""
    code = """
        import os, sys
        # Python's own modules and httpx's are imported before the removal.
        import asyncio, httpx, multiprocessing
        for name in ("fork", "register_at_fork", "killpg", "getuid", "setsid"):
            delattr(os, name)
        for name in ("fcntl", "grp", "posix", "pwd", "resource", "termios"):
            sys.modules[name] = None
        import text_embeddings_router as ter
        with ter.Client(sys.argv[1]) as client:
            print(client.info()["model_id"])
    """
    with Server(DEMO) as server:
        ended = subprocess.run([*program(code), server.url], capture_output=True, text=True, timeout=60, env=environment())
    assert ended.stdout.strip() == DEMO, ended.stderr


def test_no_binary(monkeypatch):
    monkeypatch.setenv("TEXT_EMBEDDINGS_ROUTER", "/nowhere/router")
    with pytest.raises(ter.BinaryNotFoundError, match="names /nowhere/router"):
        ter.serve(DEMO)
    monkeypatch.delenv("TEXT_EMBEDDINGS_ROUTER")
    with pytest.raises(ter.BinaryNotFoundError, match="install the package again"):
        ter.serve(DEMO)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("#!/bin/sh\necho libcuda.so.1 is missing >&2\nexit 127\n", "--help failed: libcuda.so.1 is missing"),
        ("#!/bin/sh\nexit 1\n", "it ended with exit code 1"),
        ("no program\n", "cannot be run"),
    ],
)
def test_a_binary_that_cannot_run_is_one_clear_error(content, words, tmp_path, monkeypatch):
    binary = tmp_path / "router"
    binary.write_text(content)
    binary.chmod(0o755)
    monkeypatch.setenv("TEXT_EMBEDDINGS_ROUTER", str(binary))
    with pytest.raises(ter.ServerStartError) as found:
        ter.serve(DEMO)
    assert words in str(found.value) and "\n" not in str(found.value)


def program(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PYTHON), "HOME": "/nowhere", **(extra or {})}


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    # In a container whose first process does not reap orphans, an ended process remains as a zombie.
    return state != "Z"


@pytest.mark.parametrize(
    ("name", "start", "then", "number"),
    [
        ("killed", "server.start()", "time.sleep(600)", signal.SIGKILL),
        ("ended by a signal", "server.start()", "time.sleep(600)", signal.SIGTERM),
        ("ended in order without stopping it", "server.start()", "sys.exit()", None),
        ("crashed", "server.start()", "os.abort()", None),
        # The thread that started the server has ended; the server must keep running.
        (
            "killed, started by a thread that has ended",
            "thread = threading.Thread(target=server.start); thread.start(); thread.join()",
            "time.sleep(600)",
            signal.SIGKILL,
        ),
        # A child that does not call exec keeps copies of all open descriptors of its parent.
        ("killed, survived by a child", "server.start(); os.fork() or (time.sleep(5), os._exit(0))", "time.sleep(600)", signal.SIGKILL),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value and "." not in value and "(" not in value else None,
)
def test_the_server_ends_with_the_program_that_started_it(name, start, then, number):
    code = HOLDER.format(start=start, then=then)
    with subprocess.Popen(program(code), stdout=subprocess.PIPE, text=True, env=environment()) as holder:
        pid, url = holder.stdout.readline().split()
        if number is not None:
            assert requests.get(f"{url}/health", timeout=30).status_code == 200
            started = time.monotonic()
            holder.send_signal(number)
            wait_until(lambda: not is_there(int(pid)), 30, f"the server outlived its parent, which was {name}")
            if "survived" in name:
                assert time.monotonic() - started < 4.5, "the server ended with the child, not with its parent"
        wait_until(lambda: not is_there(int(pid)), 30, f"the server outlived its parent, which {name}")
        holder.kill()


def test_a_forked_child_does_not_stop_the_server():
    server = ter.Server(DEMO)
    with server as client:
        child = os.fork()
        if child == 0:
            # Happens when the child leaves a `with` block that began before the fork.
            try:
                server.stop()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert client.rerank(QUERY, TEXTS)


def test_the_types_hold():
    ended = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
