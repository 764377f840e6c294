"""Trained models of the package registries give the values that other software gives for the same files.

Input (`make trained-test`): TRAINED, the folder that `trained_files.py` fills; PYTHON_BACKEND_PYTHON, an
interpreter with PyTorch, transformers, sentence-transformers and ONNX Runtime; LLAMA_PYTHON, one with
llama.cpp. The texts are about 200 real ones in eight languages, some longer than the models' limits.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from llama import PYTHON, ask
from python_backend import INTERPRETER, TORCH_LIMIT
from server import Server
from test_trained_model import CASES as WRITTEN_BY_HAND
from test_vocabularies import TEXTS as ODD

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from text_embeddings_router.evaluation.questions import read  # noqa: E402

FOLDER = Path(os.environ.get("TRAINED") or "missing")
pytestmark = pytest.mark.skipif(
    not (FOLDER.is_dir() and INTERPRETER and PYTHON), reason="TRAINED has no trained models (`make trained-test`)"
)
WORKER = Path(__file__).with_name("trained_outputs.py")
LONGEST = 512
START_LIMIT = 180
# The largest difference of a value of a unit vector. In float32 only the order of sums differs. llama.cpp
# rounds activations to F16 for matrices in F16, and to bytes for blocks.
EXACT, HALF, BYTES = 2e-5, 2e-3, 6e-3


def lines(name: str, count: int) -> list[str]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in islice(file, count)]


def real_texts() -> list[str]:
    with gzip.open(FOLDER / "insuranceqa/answers.json.gz") as file:
        chinese = [answer["zh"].strip() for answer in islice(json.load(file).values(), 40)]
    papers = lines("scifact/corpus.jsonl", 40)
    short = lines("fiqa/queries.jsonl", 40) + ODD
    long = [" ".join(papers[start : start + 6]) for start in range(0, 18, 6)] + ["".join(chinese[:12])]
    written = [text for case in WRITTEN_BY_HAND for text in case["texts"]]
    return [text for text in short + lines("fiqa/corpus.jsonl", 40) + chinese + papers + written + long if text]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    found = real_texts()
    assert len(found) >= 200, len(found)
    return found


def reference(method: str, **arguments: object) -> list:
    request = json.dumps({"method": method, **arguments})
    ended = subprocess.run(
        [INTERPRETER, WORKER], input=request, capture_output=True, text=True, timeout=20 * TORCH_LIMIT,
        env={"PATH": os.environ.get("PATH", ""), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def started(name: str, *flags: str) -> Server:
    environment = None
    if "ort" in flags:
        import onnxruntime

        library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
        environment = {"ORT_DYLIB_PATH": str(library), "DTYPE": None}
    flags = (*flags, "--max-client-batch-size", "1000")
    return Server(FOLDER / name, *flags, environment=environment, start_limit=START_LIMIT)


def tokens(server: Server, texts: list[str]) -> list[list[int]]:
    rows = server.post("/tokenize", {"inputs": texts}).json()
    return [[token["id"] for token in row] for row in rows]


def embedded(server: Server, texts: list[str]) -> np.ndarray:
    """The vectors of the texts, one request each: other texts of a batch change dynamic bytes."""
    return np.array([server.post("/embed", {"inputs": text, "truncate": True}).json()[0] for text in texts])


def compared(name: str, texts: list[str], flags: tuple[str, ...], rows: list[dict], tolerance: float) -> None:
    with started(name, *flags) as server:
        longest = server.get("/info").json()["max_input_length"]
        ids, vectors = tokens(server, texts), embedded(server, texts)
    wrong = [text for text, own, row in zip(texts, ids, rows) if len(row["ids"]) < longest and own != row["ids"]]
    assert not wrong, f"{len(wrong)} texts have other ids, such as {wrong[0]!r}"
    assert any(len(row["ids"]) >= longest for row in rows), "no text is longer than the limit"
    difference = np.abs(vectors - np.array([row["values"] for row in rows])).max(axis=1)
    print(f"\n{name} {' '.join(flags)}: largest difference {difference.max():.2e}, median {np.median(difference):.2e}")
    assert difference.max() <= tolerance, texts[int(difference.argmax())]


@pytest.mark.parametrize("name", ["minilm", "mpnet"])
@pytest.mark.parametrize("backend", ["candle", "python"])
def test_vectors_are_those_of_sentence_transformers(name, backend, texts):
    rows = reference("sentence_transformers", folder=str(FOLDER / name), texts=texts)
    flags = ("--backend", "python", "--python", INTERPRETER) if backend == "python" else ("--dtype", "float32")
    compared(name, texts, flags, rows, EXACT)


@pytest.mark.parametrize("name, longest", [("minilm-float16", LONGEST), ("m3e-small", LONGEST), ("albert-korean", 256)])
def test_vectors_are_those_of_transformers(name, longest, texts):
    if not (FOLDER / name / "tokenizer.json").exists():
        reference("convert_words", folder=str(FOLDER / name))
    rows = reference("encoder", folder=str(FOLDER / name), texts=texts, pooling="mean", longest=longest)
    compared(name, texts, ("--dtype", "float32"), rows, EXACT)


def test_vectors_of_static_embeddings_are_those_of_model2vec(texts):
    rows = reference("static_model", folder=str(FOLDER / "potion-base-8M"), texts=texts)
    with started("potion-base-8M") as server:
        vectors = embedded(server, texts)
    difference = np.abs(vectors - np.array([row["values"] for row in rows])).max(axis=1)
    assert any(len(row["ids"]) >= LONGEST for row in rows), "no text is longer than the limit"
    print(f"\npotion-base-8M: largest difference {difference.max():.2e}, median {np.median(difference):.2e}")
    assert difference.max() <= EXACT, texts[int(difference.argmax())]


@pytest.mark.parametrize("name, pooling", [("minilm-onnx", "mean"), ("gte-small-onnx", "mean"), ("bge-small-onnx", "cls")])
def test_vectors_are_those_of_onnx_runtime(name, pooling, texts):
    rows = reference("graph", folder=str(FOLDER / name), texts=texts, pooling=pooling, longest=LONGEST)
    compared(name, texts, ("--backend", "ort"), rows, EXACT)


@pytest.mark.parametrize("name", ["bert-mini-reranker", "prompt-guard"])
def test_logits_of_a_classifier_are_those_of_onnx_runtime(name, texts):
    texts = [f"Query: Which planet is red?\nSentence: {text}" for text in texts]
    rows = reference("graph", folder=str(FOLDER / name), texts=texts, pooling="", longest=LONGEST)
    with started(name, "--backend", "ort") as server:
        labels = [label for _, label in sorted(server.get("/info").json()["model_type"]["classifier"]["id2label"].items())]
        found = [server.post("/predict", {"inputs": [[text]], "raw_scores": True, "truncate": True}).json()[0] for text in texts]
    scores = [{entry["label"]: entry["score"] for entry in row} for row in found]
    difference = np.abs([[row[label] for label in labels] for row in scores] - np.array([row["values"] for row in rows]))
    print(f"\n{name}: largest difference {difference.max():.2e}")
    assert difference.max() <= 1e-4


# Hangul, and letters of India: BERT's tokenizer decomposes them, and llama.cpp's table of accents lacks them.
DECOMPOSED = re.compile("[\u0900-\u0dff\uac00-\ud7a3]")


@pytest.mark.parametrize("name, tolerance", [("minilm-q8_0.gguf", BYTES), ("nomic.gguf", HALF)])
def test_vectors_of_a_gguf_file_are_those_of_llama_cpp(name, tolerance, texts):
    with started(name, "--dtype", "float32", "--max-input-length", str(LONGEST)) as server:
        width, ids = len(embedded(server, ["a"])[0]), tokens(server, texts)
    file = {"file": str(FOLDER / name), "pooling": "MEAN", "width": width}
    last = ids[0][-1]
    cut = [row if len(row) <= LONGEST else row[: LONGEST - 1] + [last] for row in ids]
    [rows] = ask(compute=[{**file, "texts": cut, "special": True}])
    [known] = ask(tokenize=[{"file": str(FOLDER / name), "texts": texts}])
    other = [text for text, expected, own in zip(texts, known, ids) if len(own) <= LONGEST and own[1:-1] != expected]
    assert all(DECOMPOSED.search(text) for text in other), other
    # Both files have the vocabulary of this folder.
    for row, expected in zip(rows, reference("ids", folder=str(FOLDER / "minilm"), texts=texts)):
        row["ids"] = expected
        row["values"] = list(np.array(row["values"]) / np.linalg.norm(row["values"]))
    compared(name, texts, ("--dtype", "float32", "--max-input-length", str(LONGEST)), rows, tolerance)


# The last line asks for one of two tokens, so that any causal model can be a re-ranker.
QUESTION = 'Query: {query}\nDocument: {document}\nDoes the document answer the query? Answer "yes" or "no".\nAnswer:'
TEMPLATE = Path(__file__).parent / "causal_reranker.jinja"


@pytest.mark.parametrize("name", ["qwen2.5-coder.gguf", "smollm2.gguf", "gemma3.gguf"])
def test_answers_of_a_causal_gguf_file_are_those_of_transformers(name, texts):
    query = "How much tax does a company pay?"
    texts = texts[::6]
    flags = ("--model-type", "listwise-reranker", "--chat-template", str(TEMPLATE))
    flags += ("--rerank-true-token", "yes", "--rerank-false-token", "no", "--dtype", "float32")
    # Gemma's vocabulary has tokens that the user defined, such as two spaces, which a text may contain.
    flags += ("--parse-special-tokens",) if "gemma" in name else ()
    with started(name, *flags) as server:
        found = np.array([server.scores(query, [text])[0] for text in texts])
        ids = tokens(server, [*texts, "yes", "no"])
    [known] = ask(tokenize=[{"file": str(FOLDER / name), "texts": texts}])
    prompts = [QUESTION.format(query=query, document=text) for text in texts]
    [of_prompts] = ask(tokenize=[{"file": str(FOLDER / name), "texts": prompts}])
    first = ids[0][: len(ids[0]) - len(known[0])]
    assert [row[len(first) :] for row in ids[:-2]] == known
    # The template has no first token, so the prompt has none either.
    expected = reference("answers", file=str(FOLDER / name), prompts=of_prompts, yes=ids[-2][-1], no=ids[-1][-1])
    difference = np.abs(found - expected)
    print(f"\n{name}: largest difference {difference.max():.2e} of scores from {min(expected):.1f} to {max(expected):.1f}")
    assert difference.max() <= 2e-3


@pytest.mark.parametrize("is_reranking", [False, True])
def test_the_measures_by_mteb_are_those_of_sentence_transformers(is_reranking):
    """As an encoder, and as a cross-encoder by cosines, which order like the encoder."""
    found = read(FOLDER / "scifact", top=20)
    found.sample(25)
    documents = sorted({one for row in found.candidates.values() for one in row})
    kept = set(documents)
    questions = {
        "queries": {query: found.queries[query] for query in found.candidates},
        "documents": {one: found.documents[one] for one in documents},
        "grades": {query: {one: grade for one, grade in found.grades[query].items() if one in kept} for query in found.candidates},
        "candidates": found.candidates,
    }
    with started("minilm", "--dtype", "float32") as server:
        own, theirs = reference("mteb", questions=questions, folder=str(FOLDER / "minilm"), url=server.url, is_reranking=is_reranking)
    print(f"\nmteb: NDCG@10 {own['ndcg_at_10']} and {theirs['ndcg_at_10']}")
    assert own["name"].endswith("minilm")
    measures = [name for name in theirs if name.startswith(("ndcg_at", "map_at", "recall_at", "mrr_at"))]
    assert len(measures) > 10 and theirs["ndcg_at_10"] > 0.3
    assert {name: own[name] for name in measures} == pytest.approx({name: theirs[name] for name in measures}, abs=1e-6)
