"""Re-rank clients of other projects get transformers' scores and documents, and raise useful errors."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import pytest
from reference_data import CASES, EXPECTED
from rerank_clients import CLIENTS, KEY, Client, Question
from server import ROOT, Server, wait_until

MODEL = "tied-bf16"
SCORE = 1e-5
# Cases with the same query, which a client sends as one request.
REQUESTS = {
    "english": ["english-1", "english-2", "one-token-document", "english-3", "english-4"],
    "control tokens": ["english-1", "control-close-turn", "control-special", "control-not-special", "frame-in-document"],
    "korean": ["korean-1", "korean-2", "korean-3"],
    "arabic": ["arabic-1", "arabic-2"],
    "emoji": ["emoji"],
    "decomposed": ["decomposed"],
    "mixed scripts": ["mixed-scripts"],
}
INSTRUCTIONS = ["instruction-english", "instruction-korean", "instruction-code"]
MANY = 12
# More than a minute of work, which the server drops when its client disconnects.
SLOW = {"query": "q", "texts": [f"{number} " + "word " * 2000 for number in range(150)]}
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


def that_say(*names: str):
    """Runs a test for each client that can send all of these."""
    chosen = {name: client for name, client in CLIENTS.items() if set(names) <= client.says}
    assert len(chosen) > 3
    return pytest.mark.parametrize(
        "client",
        [
            pytest.param(client, id=name, marks=[pytest.mark.reaches_for(client.reaches)] if client.reaches else [])
            for name, client in chosen.items()
        ],
    )


each = that_say()


def of(names: list[str]) -> tuple[str, list[str], list[float]]:
    """The query, the documents and their expected scores."""
    (query,) = {CASES[name]["query"] for name in names}
    return query, [CASES[name]["document"] for name in names], [EXPECTED[MODEL][name]["score"] for name in names]


def check(ranks: list, expected: list[float]) -> None:
    """Checks that the ranks are the best of the expected ones, best first."""
    order = sorted(range(len(expected)), key=lambda index: -expected[index])
    assert [rank.index for rank in ranks] == order[: len(ranks)]
    assert [rank.score for rank in ranks] == pytest.approx([expected[rank.index] for rank in ranks], abs=SCORE, rel=0)


def requests_of(server: Server) -> float:
    return sum(value for name, value in server.metrics().items() if name.startswith("te_request_count"))


@pytest.fixture
def keyed(served) -> Server:
    return served(MODEL, "--api-key", KEY, "--max-rerank-texts", str(MANY - 1))


@each
@pytest.mark.parametrize("names", REQUESTS.values(), ids=REQUESTS)
def test_scores_and_order_are_those_of_transformers(keyed, client: Client, names):
    query, texts, expected = of(names)
    before = requests_of(keyed)
    ranks = client.ask(Question(keyed.url, query, texts))
    check(ranks, expected)
    assert len(ranks) == len(texts) and requests_of(keyed) == before + 1


@that_say("top_n")
@pytest.mark.parametrize("top_n", [1, 2, 5, 9])
def test_only_the_best_come_back(keyed, client, top_n):
    query, texts, expected = of(REQUESTS["english"])
    ranks = client.ask(Question(keyed.url, query, texts, top_n=top_n))
    check(ranks, expected)
    assert len(ranks) == min(top_n, len(texts))


@that_say("echo")
@pytest.mark.parametrize("names", REQUESTS.values(), ids=REQUESTS)
def test_documents_come_back_as_they_were_sent(keyed, client, names):
    query, texts, expected = of(names)
    ranks = client.ask(Question(keyed.url, query, texts, echo=True))
    check(ranks, expected)
    assert [rank.text for rank in ranks] == [texts[rank.index] for rank in ranks]


@that_say("instruction")
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction_reaches_the_model(keyed, client, name):
    case = CASES[name]
    ranks = client.ask(Question(keyed.url, case["query"], [case["document"]], instruction=case["instruction"]))
    check(ranks, [EXPECTED[MODEL][name]["score"]])
    without = client.ask(Question(keyed.url, case["query"], [case["document"]]))
    assert abs(without[0].score - ranks[0].score) > 100 * SCORE


def refused(server: Server, client: Client, words: list[str], **changes: object) -> None:
    """Checks that the client raises its own error, with the server's words in it."""
    question = Question(server.url, **{"query": "q", "texts": ["a", "b", "c"], **changes})
    with pytest.raises(client.error) as error:
        client.ask(question)
    if client.readable:
        assert all(word in str(error.value) for word in words), str(error.value)


@each
def test_a_wrong_key(keyed, client):
    refused(keyed, client, ["key"], key="wrong")


@each
def test_more_texts_than_the_server_takes(keyed, client):
    refused(keyed, client, [str(MANY), str(MANY - 1)], texts=["a"] * MANY)


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """Occupies the server's only permit."""

    def batches() -> float:
        return server.metrics().get("te_batch_next_size_count", 0)

    before = batches()
    body = json.dumps(SLOW).encode()
    head = "POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        stream.sendall(head.encode() + body)
        wait_until(lambda: batches() > before, 30, "none of its batches began")
        yield
    free = {"query": "a", "texts": ["b"]}
    wait_until(lambda: server.post("/rerank", free, headers=AUTHORIZED).status_code == 200, 60, "its permit is not released")


@pytest.mark.reaches_for("huggingface.co")
def test_an_overloaded_server(served, monkeypatch):
    # By default cohere's client would wait for `retry-after` and succeed; now it waits this long at most.
    monkeypatch.setattr("cohere.core.http_client.MAX_RETRY_DELAY_SECONDS", 0.1)
    server = served(MODEL, "--api-key", KEY, "--max-concurrent-requests", "1")
    for client in CLIENTS.values():
        # Occupied anew for each client: all clients together may take longer than one slow request.
        with busy(server):
            refused(server, client, ["overloaded"])


def test_the_table_in_the_documents_lists_the_tested_clients():
    text = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    rows = {row[0]: row[1:] for row in rows if len(row) == 7 and row[0] in CLIENTS}
    assert list(rows) == list(CLIENTS)
    for (package, _, instruction, top_n, echo, error), client in zip(rows.values(), CLIENTS.values(), strict=True):
        assert package == f"{client.package} {version(client.package)}"
        said = {"instruction": instruction, "top_n": top_n, "echo": echo}
        assert {name for name, cell in said.items() if cell != "–"} == client.says, package
        assert re.match("`(.+?)`", error)[1] == client.error.__name__
        assert error.endswith("with the server's sentence") == client.readable, package


def test_all_versions_in_the_documents_are_those_of_the_requirements():
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "integration_tests/requirements.txt").read_text(), re.M))
    text = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `([\w-]+)` \| (\d[\d.]*\d) \|", text[text.index("## Embeddings") :], re.MULTILINE))
    assert len(said) == 10 and said == {name: pinned[name] for name in said}
