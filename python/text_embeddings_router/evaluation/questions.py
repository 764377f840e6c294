"""Reads questions with judged answers from the forms that the field uses.

Input: a BEIR folder, a JSONL file with a list of documents per question, or a JSON file like HotpotQA's; and
optionally a TREC run, which says which documents are ranked. Output: `Questions`. What must hold: a wrong
line ends the program with one sentence that names the file, the line and the reason.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._errors import TextEmbeddingsError


class QuestionsError(TextEmbeddingsError):
    """A file of questions, judgements or rankings is wrong."""

    def __init__(self, path: Path, line: int | None, reason: str):
        super().__init__(f"{path}{f', line {line}' if line else ''}: {reason}")


@dataclass
class Questions:
    """Questions, and the documents that are ranked for each in the order that came in."""

    name: str
    queries: dict[str, str]
    documents: dict[str, str]
    # By question and document: 0 for irrelevant, more for relevant.
    grades: dict[str, dict[str, int]]
    candidates: dict[str, list[str]]

    def sample(self, count: int) -> None:
        """Keeps `count` questions, the same ones each time."""
        kept = sorted(self.candidates)
        if count < len(kept):
            kept = random.Random(1).sample(kept, count)
        self.candidates = {query: self.candidates[query] for query in kept}


def read(path: Path, *, split: str = "test", run: Path | None = None, top: int = 20) -> Questions:
    """The questions at `path`. `top` documents are ranked for each question of a BEIR folder."""
    if not path.exists():
        raise QuestionsError(path, None, "there is no such file or folder")
    if path.is_dir():
        found = _read_folder(path, split, run, top)
    elif run is not None:
        raise QuestionsError(path, None, "a run can only be given for a BEIR folder, because a file lists its own documents")
    else:
        found = _read_jsonl(path) if path.suffix == ".jsonl" else _read_hotpot(path)
    found.candidates = {
        query: documents for query, documents in found.candidates.items() if any(found.grades.get(query, {}).values())
    }
    if not found.candidates:
        raise QuestionsError(path, None, "no question has a relevant document")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    if not path.is_file():
        raise QuestionsError(path, None, "there is no such file")
    ends: set[bytes] = set()
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        text = line.rstrip(b"\r\n")
        ends.add(line[len(text) :] or next(iter(ends), b""))
        if len(ends) > 1:
            raise QuestionsError(path, number, "its end of line differs from the lines before (LF, CRLF): write one of them")
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise QuestionsError(path, number, f"is not UTF-8 ({error.reason} at byte {error.start})") from None
        if decoded.strip():
            yield number, decoded


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _parse(path: Path, line: int | None, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise QuestionsError(path, line, f"is not JSON: {error}") from None


def _entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in _lines(path):
        entry = _parse(path, line, text)
        if not isinstance(entry, dict):
            raise QuestionsError(path, line, "is not a JSON object")
        yield line, entry


def _text(path: Path, line: int, entry: dict[str, Any], name: str) -> str:
    if not isinstance(entry.get(name), str):
        raise QuestionsError(path, line, f"has no text `{name}`")
    return str(entry[name])


def _texts(path: Path) -> dict[str, str]:
    """Texts by `_id`, as in BEIR's corpus.jsonl and queries.jsonl. A title comes before its text."""
    found: dict[str, str] = {}
    for line, entry in _entries(path):
        key = _text(path, line, entry, "_id")
        if key in found:
            raise QuestionsError(path, line, f"has the id {key!r} a second time")
        found[key] = f"{entry.get('title') or ''} {_text(path, line, entry, 'text')}".strip()
    return found


def _number(path: Path, line: int, text: str, read: Callable[[str], float]) -> float:
    try:
        value = read(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise QuestionsError(path, line, f"has {text!r} where a number must be")
    return value


def _check_known(path: Path, line: int, known: dict[str, str], key: str, kind: str) -> None:
    if key not in known:
        raise QuestionsError(path, line, f"names the {kind} {key!r}, which is not in {kind}s")


def _columns(path: Path, line: int, text: str, count: int, meaning: str) -> list[str]:
    columns = text.split()
    if len(columns) != count:
        raise QuestionsError(path, line, f"has {len(columns)} columns instead of {count} ({meaning})")
    return columns


def _read_grades(path: Path, queries: dict[str, str], documents: dict[str, str]) -> dict[str, dict[str, int]]:
    """Judgements: BEIR's three columns under a header, or the four columns of TREC."""
    found: dict[str, dict[str, int]] = {}
    is_beir = False
    for line, text in _lines(path):
        if line == 1 and text.startswith("query-id"):
            is_beir = True
            continue
        if is_beir:
            query, document, grade = _columns(path, line, text, 3, "query-id, corpus-id, score")
        else:
            query, _, document, grade = _columns(path, line, text, 4, "question, 0, document, grade")
        _check_known(path, line, queries, query, "query")
        _check_known(path, line, documents, document, "document")
        if document in found.setdefault(query, {}):
            raise QuestionsError(path, line, f"judges the document {document!r} for the query {query!r} a second time")
        found[query][document] = int(_number(path, line, grade, int))
    if not found:
        raise QuestionsError(path, None, "has no judgements")
    return found


def read_run(path: Path, queries: dict[str, str], documents: dict[str, str], top: int) -> dict[str, list[str]]:
    """The first `top` documents of each question in a TREC run."""
    found: dict[str, dict[str, float]] = {}
    for line, text in _lines(path):
        query, _, document, _, score, _ = _columns(path, line, text, 6, "question, Q0, document, rank, score, name")
        _check_known(path, line, queries, query, "query")
        _check_known(path, line, documents, document, "document")
        if document in found.setdefault(query, {}):
            raise QuestionsError(path, line, f"has the document {document!r} for the query {query!r} a second time")
        found[query][document] = _number(path, line, score, float)
    return {query: sorted(scores, key=lambda one: -scores[one])[:top] for query, scores in found.items()}


def _read_folder(path: Path, split: str, run: Path | None, top: int) -> Questions:
    documents, queries = _texts(path / "corpus.jsonl"), _texts(path / "queries.jsonl")
    judged = path / "qrels" / f"{split}.tsv"
    grades = _read_grades(judged if judged.is_file() else path / "qrels.tsv", queries, documents)
    if run is not None:
        candidates = read_run(run, queries, documents, top)
    else:
        candidates = _search(documents, {query: queries[query] for query in grades}, top)
    return Questions(path.name, queries, documents, grades, candidates)


def _search(documents: dict[str, str], queries: dict[str, str], top: int) -> dict[str, list[str]]:
    """The first `top` documents of each question by BM25."""
    import bm25s

    ids = list(documents)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(documents.values()), show_progress=False), show_progress=False)
    asked = bm25s.tokenize(list(queries.values()), show_progress=False)
    found, _ = index.retrieve(asked, k=min(top, len(ids)), show_progress=False)
    return {query: [ids[at] for at in row] for query, row in zip(queries, found.tolist(), strict=True)}


def _from_lists(path: Path, rows: Iterator[tuple[str, list[str], list[int]]]) -> Questions:
    """Questions from rows of a query, its documents, and their grades."""
    found = Questions(path.stem, {}, {}, {}, {})
    for number, (query, texts, grades) in enumerate(rows):
        key = str(number)
        keys = [f"{key}-{at}" for at in range(len(texts))]
        found.queries[key] = query
        found.documents.update(zip(keys, texts, strict=True))
        found.grades[key] = dict(zip(keys, grades, strict=True))
        found.candidates[key] = keys
    return found


def _read_jsonl(path: Path) -> Questions:
    """Lines with `query`, `documents`, and `relevant` (places in `documents`, from 0) or `grades`."""

    def rows() -> Iterator[tuple[str, list[str], list[int]]]:
        for line, entry in _entries(path):
            texts, relevant, grades = entry.get("documents"), entry.get("relevant"), entry.get("grades")
            if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
                raise QuestionsError(path, line, "has no list of texts `documents`")
            if len(set(texts)) < len(texts):
                raise QuestionsError(path, line, "has the same document twice")
            places = range(len(texts))
            if isinstance(relevant, list) and all(isinstance(at, int) and at in places for at in relevant):
                grades = [int(at in relevant) for at in places]
            if not isinstance(grades, list) or len(grades) != len(texts) or not all(isinstance(one, int) for one in grades):
                raise QuestionsError(path, line, "has neither `relevant`, the places of right documents from 0, nor `grades`")
            yield _text(path, line, entry, "query"), texts, grades

    return _from_lists(path, rows())


def _read_hotpot(path: Path) -> Questions:
    """A list of objects with `question`, `context` (titles with their sentences) and `supporting_facts`."""
    rows = _parse(path, None, "\n".join(text for _, text in _lines(path)))

    def read_rows() -> Iterator[tuple[str, list[str], list[int]]]:
        for number, row in enumerate(rows):
            try:
                right = {title for title, _ in row["supporting_facts"]}
                texts = [f"{title} {''.join(sentences)}" for title, sentences in row["context"]]
                yield row["question"], texts, [int(title in right) for title, _ in row["context"]]
            except (KeyError, TypeError, ValueError):
                reason = f"entry {number} has no `question`, `context` or `supporting_facts` as in HotpotQA"
                raise QuestionsError(path, None, reason) from None

    if not isinstance(rows, list):
        raise QuestionsError(path, None, "is not a list of questions as in HotpotQA")
    return _from_lists(path, read_rows())
