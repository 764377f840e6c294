#!/usr/bin/env python3
"""Writes the tables of docs/quality.md: what trained models rank, in each arithmetic, on judged questions.

usage: quality.py --trained FOLDER --work FOLDER [--only COLLECTION] [--model NAME] [--dtype TYPE] [--speed]

Input: the models and questions that `trained_files.py` unpacks, and the server's binary
(TEXT_EMBEDDINGS_ROUTER). Output: a file of scores for each model, arithmetic and collection in the work
folder, so that an interrupted run goes on; then the tables. Measurements that are not in the work folder are
not in the tables. Speeds are measured apart, by `--speed`, because scores do not mind a busy machine.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from text_embeddings_router import Client, serve  # noqa: E402
from text_embeddings_router.evaluation.evaluate import file_name, incoming, interval, values  # noqa: E402
from text_embeddings_router.evaluation.questions import Questions, read  # noqa: E402
from text_embeddings_router.evaluation.systems import Answers, Asking, System, answered  # noqa: E402

PAGE = ROOT / "docs/quality.md"
MEASURE = "nDCG@10"
CANDIDATES = 10
# Retrieval by MiniLM, then re-ranking: of each question MiniLM's first documents of the whole collection.
RETRIEVED, RETRIEVED_CANDIDATES = "SciFact, the first 50 of all-MiniLM-L6-v2", 50
CASCADE = """
[models.first]
model-id = "{trained}/minilm"
[models.second]
model-id = "{trained}/mpnet"
[cascade.both]
first = "first"
then = "second"
keep = 10
"""
# A speed is measured for so long, without the first question.
SPEED_SECONDS = 5
ALL = ("float32", "bfloat16", "int8", "int4")
# The question is the last line, so that any causal model answers it with one of two tokens.
TEMPLATE = ROOT / "integration_tests/causal_reranker.jinja"
ZERO_SHOT = {"model_type": "listwise-reranker", "rerank_true_token": "yes", "rerank_false_token": "no"}


@dataclass
class Model:
    """A model: its place in the folder of trained models, and how it is started and asked."""

    file: str
    questions: int
    dtypes: tuple[str | None, ...] = ALL
    flags: dict[str, str] = field(default_factory=dict)
    asking: Asking = Asking()
    has_template: bool = False
    is_cascade: bool = False


PAIR = Asking(pair="Query: {query}\nSentence: {document}", label="relevant")
NOMIC = Asking(query_prefix="search_query: ", document_prefix="search_document: ")
BGE = Asking(query_prefix="Represent this sentence for searching relevant passages: ")
ONNX = {"backend": "ort"}
MODELS = {
    "all-MiniLM-L6-v2": Model("minilm", 200),
    "the built-in re-ranker": Model("demo", 200),
    "BERT-mini re-ranker, ONNX int8": Model("bert-mini-reranker", 200, (None,), ONNX, PAIR),
    "gte-small, ONNX": Model("gte-small-onnx", 100, (None,), ONNX),
    "bge-small-en-v1.5, ONNX int8": Model("bge-small-onnx", 100, (None,), ONNX, BGE),
    "all-mpnet-base-v2": Model("mpnet", 40),
    "nomic-embed-text-v1.5, GGUF F16": Model("nomic.gguf", 40, ALL, {}, NOMIC),
    "Qwen2.5-Coder-0.5B, GGUF Q4_K_M, zero-shot": Model("qwen2.5-coder.gguf", 20, ALL, ZERO_SHOT, has_template=True),
    "cascade: all-MiniLM-L6-v2, then all-mpnet-base-v2 for 10": Model("cascade", 40, ("float32",), is_cascade=True),
}
COLLECTIONS = ("HotpotQA", "SciFact", "FiQA", "InsuranceQA", "InsuranceQA, Chinese", RETRIEVED)


def insurance(folder: Path, language: str) -> Questions:
    """Each question with its right answers and the first wrong ones, in a fixed random order."""
    opened = {name: json.load(gzip.open(folder / f"{name}.json.gz")) for name in ("test", "answers")}
    found, generator = Questions("", {}, {}, {}, {}), np.random.default_rng(1)
    for query, row in opened["test"].items():
        answers = (row["answers"] + row["negatives"])[:CANDIDATES]
        order = [answers[at] for at in generator.permutation(len(answers))]
        found.queries[query] = " ".join(row[language].split())
        found.documents.update({answer: opened["answers"][answer][language].strip() for answer in order})
        found.grades[query] = {answer: int(answer in row["answers"]) for answer in order}
        found.candidates[query] = order
    return found


def retrieved(trained: Path, work: Path) -> Questions:
    """SciFact's questions with MiniLM's nearest documents, nearest first."""
    found = read(trained / "scifact", top=CANDIDATES)
    file = work / "retrieved.json"
    if not file.is_file():
        names = list(found.documents)
        with serve(trained / "minilm", dtype="float32", client={"timeout": 600}) as client:
            documents = client.embed_array([found.documents[name] for name in names], truncate=True)
            queries = client.embed_array([found.queries[query] for query in found.candidates], truncate=True)
        nearest = np.argsort(-queries @ documents.T, axis=1, kind="stable")[:, :RETRIEVED_CANDIDATES]
        file.write_text(json.dumps({query: [names[at] for at in row] for query, row in zip(found.candidates, nearest)}))
    found.candidates = json.loads(file.read_text())
    return found


@cache
def load(trained: Path, work: Path, name: str) -> Questions:
    """All questions of a collection. Reading FiQA takes a minute."""
    if name == RETRIEVED:
        return retrieved(trained, work)
    if name.startswith("InsuranceQA"):
        return insurance(trained / "insuranceqa", "zh" if "Chinese" in name else "en")
    path = {"HotpotQA": "hotpotqa.json", "SciFact": "scifact", "FiQA": "fiqa"}[name]
    return read(trained / path, top=CANDIDATES)


def sample(trained: Path, work: Path, name: str, count: int) -> Questions:
    """`count` questions of a collection; fewer where each has more documents."""
    found = replace(load(trained, work, name))
    found.sample(max(10, count * CANDIDATES // RETRIEVED_CANDIDATES) if name == RETRIEVED else count)
    return found


@contextmanager
def serving(model: Model, dtype: str | None, trained: Path, file: Path, **more: int) -> Iterator[System]:
    """The model on a server of its own."""
    flags = model.flags | more
    if model.has_template:
        flags["chat_template"] = str(TEMPLATE)
    name = "demo" if model.file == "demo" else trained / model.file
    if model.is_cascade:
        name = file.with_suffix(".toml")
        name.write_text(CASCADE.format(trained=trained.resolve()))
    server = serve(name, dtype=dtype, client={"timeout": 600}, **flags).start()
    try:
        with Client(server.url + ("/models/both" if model.is_cascade else ""), timeout=600) as client:
            yield System(f"{model.file} {dtype}", client, model.asking)
    finally:
        server.stop()


def measure(model: Model, dtype: str | None, questions: Questions, trained: Path, file: Path) -> Answers:
    if file.is_file() and file.read_text(encoding="utf-8").count("\n") == len(questions.candidates):
        return answered(file, questions)
    with serving(model, dtype, trained, file) as system:
        return system.answer(questions, file)


def measure_speed(model: Model, dtype: str | None, questions: Questions, trained: Path, file: Path) -> None:
    """Writes the pairs of question and document per second. The server keeps no scores."""
    pairs, seconds = 0, 0.0
    with serving(model, dtype, trained, file, score_cache_bytes=0) as system:
        for index, (query, documents) in enumerate(questions.candidates.items()):
            found = system.answer(replace(questions, candidates={query: documents}))
            if index > 0:
                pairs, seconds = pairs + len(documents), seconds + found.seconds[query]
            if seconds > SPEED_SECONDS:
                break
    file.with_suffix(".speed").write_text(str(pairs / seconds))


def row(name: str, dtype: str | None, speed: Path, questions: Questions, found: Answers, exact: Answers | None) -> dict:
    """A row of the table: the quality with its interval, the loss against float32, and the speed."""
    quality = values(questions, found.scores, (MEASURE,))[MEASURE]
    base = values(questions, incoming(questions), (MEASURE,))[MEASURE]
    low, high = interval(quality - base)
    entry = {
        "model": name,
        "arithmetic": dtype or "the file's",
        "questions": len(quality),
        MEASURE: f"{quality.mean():.3f}",
        "gain over the incoming order": f"{(quality - base).mean():+.3f} ({low:+.3f} to {high:+.3f})",
        "change against float32": "",
        "worst raw difference": "",
        "pairs/s": f"{float(speed.read_text()):.3g}" if speed.is_file() else "",
    }
    if exact is not None and dtype not in (None, "float32"):
        change = quality - values(questions, exact.scores, (MEASURE,))[MEASURE]
        low, high = interval(change)
        entry["change against float32"] = f"{change.mean():+.4f} ({low:+.4f} to {high:+.4f})"
        pairs = [(scores[one], exact.scores[query][one]) for query, scores in found.scores.items() for one in scores]
        entry["worst raw difference"] = f"{max(abs(ours - theirs) for ours, theirs in pairs):.4f}"
    return entry


def markdown(table: pd.DataFrame) -> str:
    lines = [list(table.columns), ["---"] * len(table.columns), *table.values.tolist()]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", action="append", help="measure only this collection")
    parser.add_argument("--model", action="append", help="measure only this model")
    parser.add_argument("--dtype", action="append", help="measure only this arithmetic")
    parser.add_argument("--speed", action="store_true", help="measure speeds, too, on a machine that does nothing else")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    parts = []
    for collection in COLLECTIONS:
        rows = []
        for name, model in MODELS.items():
            if model.is_cascade and collection != RETRIEVED:
                continue
            is_wanted = collection in (arguments.only or [collection]) and name in (arguments.model or [name])
            files = {dtype: arguments.work / f"{file_name(f'{collection} {model.file} {dtype}')}.jsonl" for dtype in model.dtypes}
            dtypes = arguments.dtype or model.dtypes
            files = {dtype: file for dtype, file in files.items() if is_wanted and dtype in dtypes or file.is_file()}
            questions = sample(arguments.trained, arguments.work, collection, model.questions) if files else None
            exact = None
            for dtype, file in files.items():
                found = measure(model, dtype, questions, arguments.trained, file)
                exact = found if dtype == "float32" else exact
                speed = file.with_suffix(".speed")
                if arguments.speed and is_wanted and dtype in dtypes and not speed.is_file():
                    measure_speed(model, dtype, questions, arguments.trained, file)
                rows.append(row(name, dtype, speed, questions, found, exact))
                print(collection, rows[-1], flush=True)
        if rows:
            parts.append(f"### {collection}\n\n{markdown(pd.DataFrame(rows))}")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- tables -->\n")
    after = rest.partition("<!-- end of tables -->")[2]
    PAGE.write_text("\n\n".join([before + "<!-- tables -->", *parts, "<!-- end of tables -->"]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
