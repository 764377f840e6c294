"""The subject of a measurement: a server that scores documents for a query, and its answers to all questions.

Input: a client, and how its model is asked. Output: `Answers`, which are written to a file after each
question, so that an interrupted measurement goes on where it ended. What must hold: raw scores, in the order
of the documents; time is the time of the requests alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from .. import Client, serve
from .questions import Questions, QuestionsError, read


@dataclass(frozen=True)
class Asking:
    """How the model is asked: the re-ranker's instruction, an embedding model's prefixes, and a classifier's
    form of a pair, with the label that means relevant."""

    instruction: str | None = None
    query_prefix: str = ""
    document_prefix: str = ""
    pair: str | None = None
    label: str | None = None


@dataclass
class Answers:
    """Scores by question and document, and seconds by question."""

    name: str
    info: dict[str, Any]
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def pairs_per_second(self) -> float:
        return sum(map(len, self.scores.values())) / max(sum(self.seconds.values()), 1e-9)

    def milliseconds(self, percent: float) -> float:
        return float(np.percentile(list(self.seconds.values()), percent)) * 1000


class System:
    """A server. Re-rankers score, embedding models give cosines, classifiers the score of a label."""

    def __init__(self, name: str, client: Client, asking: Asking):
        self.name, self.info, self.client = name, client.info(), client
        self._asking = asking
        self._vectors: dict[str, Any] = {}

    def scores(self, query: str, texts: list[str]) -> list[float]:
        kinds = self.info.get("model_type", {})
        if "embedding" in kinds:
            return self._cosines(query, texts)
        asking = self._asking
        if asking.pair is None:
            ranks = self.client.rerank(query, texts, instruction=asking.instruction, raw_scores=True, truncate=True)
            return [rank.score for rank in sorted(ranks, key=lambda rank: rank.index)]
        inputs = [asking.pair.replace("{query}", query).replace("{document}", text) for text in texts]
        rows = self.client.predict(inputs, raw_scores=True, truncate=True)
        return [next(entry.score for entry in row if asking.label in (None, entry.label)) for row in rows]

    def _cosines(self, query: str, texts: list[str]) -> list[float]:
        """A text that several questions share is embedded once."""
        wanted = [self._asking.query_prefix + query, *(self._asking.document_prefix + text for text in texts)]
        missing = [text for text in dict.fromkeys(wanted) if text not in self._vectors]
        if missing:
            self._vectors.update(zip(missing, map(np.array, self.client.embed(missing, truncate=True)), strict=True))
        vectors = np.array([self._vectors[text] for text in wanted])
        return [float(score) for score in vectors[1:] @ vectors[0]]

    def answer(self, questions: Questions, file: Path | None = None) -> Answers:
        """Asks all questions. Those that `file` has already are not asked again."""
        found = Answers(self.name, self.info)
        if file is not None and file.is_file():
            _resume(found, file, questions)
        asked = [query for query in questions.candidates if query not in found.scores]
        for query in tqdm(asked, desc=self.name, unit="question", leave=False):
            documents = questions.candidates[query]
            start = time.perf_counter()
            scores = self.scores(questions.queries[query], [questions.documents[one] for one in documents])
            found.seconds[query] = time.perf_counter() - start
            found.scores[query] = dict(zip(documents, scores, strict=True))
            if file is not None:
                with file.open("a", encoding="utf-8") as out:
                    row = {"query": query, "seconds": found.seconds[query], "scores": found.scores[query]}
                    out.write(json.dumps(row) + "\n")
        return found


def answered(file: Path, questions: Questions) -> Answers:
    """The answers in a file that an earlier measurement wrote."""
    found = Answers(file.stem, {})
    _resume(found, file, questions)
    return found


def _resume(found: Answers, file: Path, questions: Questions) -> None:
    *lines, last = file.read_text(encoding="utf-8").split("\n")
    if last:
        # An interruption cut the last line.
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for number, line in enumerate(lines, 1):
        row = json.loads(line)
        query = row["query"]
        if query in questions.candidates:
            if set(row["scores"]) != set(questions.candidates[query]):
                raise QuestionsError(file, number, "has answers to other questions: give another --out, or delete the file")
            found.scores[query], found.seconds[query] = row["scores"], row["seconds"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what is asked and how."""
    parser.add_argument("questions", type=Path, help="a BEIR folder, a .jsonl file, or a .json file like HotpotQA's")
    parser.add_argument("--split", default="test", help="which qrels/SPLIT.tsv of a BEIR folder (default: test)")
    parser.add_argument("--run", type=Path, help="a TREC run with the documents to rank; otherwise BM25 finds them")
    parser.add_argument("--top", type=int, default=20, help="documents per question of a BEIR folder (default: 20)")
    parser.add_argument("--sample", type=int, default=200, help="number of questions, drawn with a fixed seed (default: 200)")
    parser.add_argument("--url", action="append", default=[], help="a running server; several times to compare several")
    parser.add_argument("--model", action="append", default=[], help="a model to start a server for; may be given several times")
    parser.add_argument("--dtype", action="append", default=[], help="arithmetic of the models to start; may be given several times")
    parser.add_argument("--instruction", help="what makes a document relevant, for re-rankers with a prompt")
    parser.add_argument("--query-prefix", default="", help="text before each query, for embedding models")
    parser.add_argument("--document-prefix", default="", help="text before each document, for embedding models")
    parser.add_argument("--pair", help="for a classifier: its text for a pair, with {query} and {document}")
    parser.add_argument("--label", help="for a classifier: the label that means relevant")


def sampled(arguments: argparse.Namespace) -> Questions:
    """The questions that the arguments name, as many as they ask for."""
    questions = read(arguments.questions, split=arguments.split, run=arguments.run, top=arguments.top)
    questions.sample(arguments.sample)
    return questions


def asking(arguments: argparse.Namespace) -> Asking:
    return Asking(
        arguments.instruction, arguments.query_prefix, arguments.document_prefix, arguments.pair, arguments.label
    )


@contextmanager
def started(name: str, url: str | None, dtype: str | None, how: Asking) -> Iterator[System]:
    """The server at `url`, or one that is started for the model `name`."""
    key = os.environ.get("API_KEY")
    if url is not None:
        with Client(url, api_key=key, timeout=600) as client:
            yield System(name, client, how)
        return
    with serve(name, dtype=dtype, client={"timeout": 600}) as client:
        yield System(f"{Path(name).name}{f' {dtype}' if dtype else ''}", client, how)


def named(arguments: argparse.Namespace) -> list[tuple[str, str | None, str | None]]:
    """For each server that the arguments name: its name, URL, arithmetic."""
    dtypes: list[str | None] = arguments.dtype or [None]
    running: list[tuple[str, str | None, str | None]] = [(url, url, None) for url in arguments.url]
    return running + [(model, None, dtype) for model in arguments.model for dtype in dtypes]
