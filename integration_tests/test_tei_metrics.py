"""The metrics of text-embeddings-inference 1.9.3, with their labels, and how each request changes them.

Input: `tei_metrics.json`: TEI's families with their types, the values of their labels, and the bucket bounds
as TEI writes them, for a model with inputs of 512 tokens. All other metrics are this server's own, and the
documentation says so.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from server import Background, Server

ROOT = Path(__file__).resolve().parent
TEIS = json.loads((ROOT / "tei_metrics.json").read_text(encoding="utf-8"))
FAMILIES: dict[str, dict] = TEIS["families"]
MODEL, FLAGS = "embedding-last", ("--max-input-length", "512", "--max-concurrent-requests", "1")
LONG = "a b " * 600
SIMILARITY = {"source_sentence": "a", "sentences": ["b", "c"]}


@pytest.fixture(scope="module")
def embedder() -> Iterator[Server]:
    with Server(MODEL, *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def classifier() -> Iterator[Server]:
    with Server("seq-cls-3", *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def reranker() -> Iterator[Server]:
    with Server("tied-bf16") as server:
        yield server


def failed(err: str, texts: int = 1) -> dict[str, int]:
    return {f'te_request_failure{{err="{err}"}}': texts}


def counted(method: str) -> dict[str, int]:
    return {f'te_request_count{{method="{method}"}}': 1}


def answered(method: str, kind: str, texts: int) -> dict[str, int]:
    success = {f'te_request_success{{method="{method}"}}': 1}
    return counted(method) | success | {f"te_{kind}_count": texts, f"te_{kind}_success": texts}


# Server, path, body, and the changes of TEI's counters.
REQUESTS = {
    "a text": ("embedder", "/embed", {"inputs": "a"}, answered("single", "embed", 1)),
    "ids": ("embedder", "/embed", {"inputs": [1, 2]}, answered("single", "embed", 1)),
    "a list of one text": ("embedder", "/embed", {"inputs": ["a"]}, answered("batch", "embed", 1)),
    "a list": ("embedder", "/embed", {"inputs": ["a", "b"]}, answered("batch", "embed", 2)),
    "all tokens": ("embedder", "/embed_all", {"inputs": "a"}, answered("single", "embed", 1)),
    "OpenAI": ("embedder", "/v1/embeddings", {"input": ["a", "b"]}, answered("batch", "embed", 2)),
    "similarity": ("embedder", "/similarity", {"inputs": SIMILARITY}, answered("batch", "embed", 3)),
    "instances": (
        "embedder",
        "/vertex",
        {"instances": [{"inputs": "a"}]},
        answered("single", "embed", 1),
    ),
    "tokens": ("embedder", "/tokenize", {"inputs": ["a", "b"]}, {}),
    "text of ids": ("embedder", "/decode", {"ids": [1]}, {}),
    "one to classify": ("classifier", "/predict", {"inputs": "a"}, answered("single", "predict", 1)),
    "several to classify": ("classifier", "/predict", {"inputs": [["a"], ["b", "c"]]}, answered("batch", "predict", 2)),
    "one to rank": ("reranker", "/rerank", {"query": "q", "texts": ["a"]}, answered("batch", "predict", 1)),
    "no JSON": ("embedder", "/embed", None, {}),
    "a wrong type": ("embedder", "/embed", {"inputs": True}, {}),
    "an empty list": ("embedder", "/embed", {"inputs": []}, counted("single") | {"te_embed_count": 1} | failed("tokenization")),
    "an empty text": ("embedder", "/embed", {"inputs": ""}, counted("single") | {"te_embed_count": 1} | failed("tokenization")),
    "empty texts in a list": (
        "embedder",
        "/embed",
        {"inputs": ["", "a", ""]},
        counted("batch") | {"te_embed_count": 3} | failed("tokenization", 2),
    ),
    "texts that are too long": (
        "embedder",
        "/embed",
        {"inputs": [LONG, "a", LONG], "truncate": False},
        counted("batch") | {"te_embed_count": 3} | failed("tokenization", 2),
    ),
    "an unknown prompt": (
        "embedder",
        "/embed",
        {"inputs": ["a", "b"], "prompt_name": "x"},
        counted("batch") | {"te_embed_count": 2} | failed("tokenization", 2),
    ),
    "too many": ("embedder", "/embed", {"inputs": ["a"] * 33}, counted("batch") | failed("batch_size")),
    "no dimensions": ("embedder", "/embed", {"inputs": "a", "dimensions": 0}, counted("single") | failed("validation")),
    "not sparse": ("embedder", "/embed_sparse", {"inputs": ["a", "b"]}, counted("batch") | failed("model_type", 2)),
    "too many and not sparse": ("embedder", "/embed_sparse", {"inputs": ["a"] * 33}, counted("batch") | failed("batch_size")),
    "not a classifier": ("embedder", "/predict", {"inputs": [["a"], ["b"]]}, counted("batch") | failed("model_type", 2)),
    "not an embedding model": ("classifier", "/embed", {"inputs": ["a", "b"]}, counted("batch") | failed("model_type", 2)),
    "not a re-ranker": ("classifier", "/rerank", {"query": "q", "texts": ["a", "b"]}, failed("model_type")),
    "nothing to rank": ("reranker", "/rerank", {"query": "q", "texts": []}, failed("validation")),
    "too many to rank": (
        "reranker",
        "/rerank",
        {"query": "q", "texts": ["a"] * 1001},
        counted("batch") | failed("batch_size"),
    ),
    "similar to nothing": ("embedder", "/similarity", {"inputs": {**SIMILARITY, "sentences": []}}, failed("validation")),
    "similar to too many": (
        "embedder",
        "/similarity",
        {"inputs": {**SIMILARITY, "sentences": ["a"] * 32}},
        failed("batch_size"),
    ),
    "tokens of no list": ("embedder", "/tokenize", {"inputs": []}, failed("validation")),
    "tokens of empty texts": ("embedder", "/tokenize", {"inputs": ["", "a", ""]}, failed("tokenization", 2)),
    "tokens of too many": ("embedder", "/tokenize", {"inputs": ["a"] * 33}, failed("batch_size")),
    "tokens of too long a text": ("embedder", "/tokenize", {"inputs": "a" * 128_001}, failed("tokenization")),
}
# Counters that TEI does not have.
OURS = re.compile(r"te_(tokenize|batch_tokens|prefix|truncated|queue_tokens|queue_oldest|device|rerank)")


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_changes_the_same_counters_as_in_tei(request, name):
    fixture, path, body, expected = REQUESTS[name]
    server = request.getfixturevalue(fixture)

    def counters() -> dict[str, float]:
        types = parse(server)[0]
        values = server.metrics().items()
        return {name: value for name, value in values if types.get(name.split("{")[0]) == "counter" and not OURS.match(name)}

    before = counters()
    server.post(path, data="{") if body is None else server.post(path, body)
    moved = {key: value - before.get(key, 0) for key, value in counters().items()}
    assert {key: value for key, value in moved.items() if value} == expected


def parse(server: Server) -> tuple[dict[str, str], dict[str, dict[str, list[str]]]]:
    """The type of each family, and the values of its labels in order of appearance."""
    types: dict[str, str] = {}
    labels: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in server.get("/metrics").text.splitlines():
        if found := re.match(r"# TYPE (\S+) (\S+)", line):
            types[found[1]] = found[2]
        elif found := re.match(r"(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+$", line):
            family = found[1] if found[1] in types else line.split("{")[0].split(" ")[0]
            for label, value in re.findall(r'(\w+)="([^"]*)"', found[2] or ""):
                labels[family][label].append(value)
    return types, labels


def test_families_labels_and_buckets_are_teis(embedder, classifier):
    # One request of each kind, so that every family has a value. Further below, requests meet a server
    # without a free permit.
    for path, body in (
        ("/embed", {"inputs": "a"}),
        ("/embed", {"inputs": ["a", "b"]}),
        ("/embed", {"inputs": [""]}),
        ("/embed", {"inputs": ["a"] * 33}),
        ("/tokenize", {"inputs": []}),
        ("/predict", {"inputs": "a"}),
    ):
        embedder.post(path, body)
        classifier.post(path, body)
    many = [Background(embedder.post, "/embed", {"inputs": ["a b c " * 150] * 32}) for _ in range(8)]
    assert {request.result().status_code for request in many} == {200, 429}
    seen: set[str] = set()
    for server in (embedder, classifier):
        types, labels = parse(server)
        for name, kind in types.items():
            if name not in FAMILIES:
                assert documented_as_ours(name), name
                continue
            seen.add(name)
            family = FAMILIES[name]
            assert kind == family["type"], name
            edges = TEIS["durations"] if family.get("le") == "durations" else family.get("le")
            expected = {label: set(values) for label, values in family.get("labels", {}).items()}
            found = {label: values for label, values in labels[name].items() if label != "le"}
            assert set(found) == set(expected), name
            for label, values in found.items():
                ours = {"unhealthy", "dropped", "missing_values", "queue_timeout"} if label == "err" else set()
                assert set(values) <= expected[label] | ours, name
            if edges:
                assert labels[name]["le"] == [*edges, "+Inf"], name
    assert seen == set(FAMILIES)


def documented_as_ours(name: str) -> bool:
    """Whether the page lists a family as added."""
    page = (ROOT.parent / "docs/wire-compatibility.md").read_text(encoding="utf-8")
    return any(f"`{name}" in line and "added" in line for line in page.splitlines())
