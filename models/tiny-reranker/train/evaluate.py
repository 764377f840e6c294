"""Writes EVAL.md: what the model in a folder gets right on held-out groups, and what it gets wrong.

Usage: python evaluate.py FOLDER [--size N]. This run measures every number, from the bfloat16 weights of the
folder.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

import families
from groups import DEFAULT_INSTRUCTION, Group
from languages import LANGUAGES
from metrics import Scores, bm25, calibration, chance, first, ndcg, pairs
from scoring import Scorer

SEED = 20260
LANGUAGE_NAMES = {"en": "English", "ko": "Korean", "zh": "Chinese", "ru": "Russian", "es": "Spanish"}
MISLEADING = ["other years", "other entity", "same entity, other relation", "near duplicate", "mixed facts", "question repeated"]
ENOUGH = ["unrelated", "topic neighbour"]


class Report:
    """Collects the lines of EVAL.md; scores groups with the model and with BM25."""

    def __init__(self, scorer: Scorer, size: int):
        self.scorer, self.size, self.lines = scorer, size, []

    def add(self, *lines: str) -> None:
        self.lines += lines

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        """A table; all columns but the first are numbers."""
        self.add("| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|")
        self.add(*("| " + " | ".join(row) + " |" for row in rows), "")

    def both(self, groups: list[Group]) -> tuple[Scores, Scores]:
        """The model's scores and BM25's."""
        return self.scorer.scores(groups), bm25(groups)


def shown(number: float) -> str:
    """A share in per cent."""
    return f"{100 * number:.1f}"


def languages(report: Report) -> tuple[list[Group], Scores, Scores]:
    """Reports the families by language; returns all groups and their scores by the model and by BM25."""
    report.add(
        "## Held-out families by language", "",
        f"{families.CANDIDATES} candidates per query, {report.size} queries per family and language. *First*: share of queries whose best "
        "score is a relevant text's. *Pairs*: share of pairs (relevant, not relevant) in the right order; chance is 50. All in per cent, "
        "NDCG@10 as a fraction.", "",
    )  # fmt: skip
    rows, everything, ours, theirs = [], [], [], []
    for family, by_language in families.by_language(SEED, report.size).items():
        for language, groups in by_language.items():
            model, words = report.both(groups)
            row = [f"{family}, {LANGUAGE_NAMES[language]}", shown(first(groups, model)), shown(first(groups, words)), shown(chance(groups))]
            row += [shown(pairs(groups, scores)["all"][0]) for scores in (model, words)]
            rows.append(row + [f"{ndcg(groups, scores):.3f}" for scores in (model, words)])
            everything, ours, theirs = everything + groups, ours + model, theirs + words
    head = ["family, language", "first", "first, BM25", "first, chance", "pairs", "pairs, BM25", "NDCG@10", "NDCG@10, BM25"]
    report.table(head, rows)
    return everything, ours, theirs


def kinds(report: Report, groups: list[Group], ours: Scores, theirs: Scores) -> None:
    """Reports pairs by kind of negative: first where shared words mislead, then where they are enough."""
    extra = families.other_years(SEED, 2 * report.size)
    model, words = report.both(extra)
    invented = [index for index, group in enumerate(groups) if group.family == "relation"]
    groups = [groups[index] for index in invented] + extra
    results = [pairs(groups, [scores[index] for index in invented] + more) for scores, more in ((ours, model), (theirs, words))]
    for title, chosen in (("Where shared words mislead", MISLEADING), ("Where shared words are enough", ENOUGH)):
        report.add(f"## {title}", "", "Pairs in the right order by kind of the text that does not answer, per cent; chance is 50.", "")
        rows = [[kind, str(results[0][kind][1]), *(shown(result[kind][0]) for result in results)] for kind in chosen]
        if chosen is ENOUGH:
            asked = families.keywords(SEED, 2 * report.size)
            both = [pairs(asked, scores)["all"] for scores in report.both(asked)]
            rows.append(["queries of words from the text", str(both[0][1]), *(shown(result[0]) for result in both)])
        report.table(["the other text", "pairs", "model", "BM25"], rows)
    report.add(
        "The kinds: the same office in other years; the same relation of another thing, in the same years; another fact about the same "
        "thing; the relevant text with only the answering sentence changed; one fact about each of the two things, so that all words occur; "
        "the question itself without an answer; another thing of the same kind; anything else.", "",
    )  # fmt: skip
    report.add("The same by language, for all kinds where shared words mislead:", "")
    rows = []
    for language in LANGUAGES:
        own = [index for index, group in enumerate(groups) if group.language == language]
        part, row = [groups[index] for index in own], [LANGUAGE_NAMES[language]]
        for scores, more in ((ours, model), (theirs, words)):
            whole = [scores[index] for index in invented] + more
            counted = pairs(part, [whole[index] for index in own])
            total = sum(counted[kind][1] for kind in MISLEADING if kind in counted)
            row.append(shown(sum(counted[kind][0] * counted[kind][1] for kind in MISLEADING if kind in counted) / total))
        rows.append(row)
    report.table(["language", "model", "BM25"], rows)


def across(report: Report) -> None:
    """Reports groups whose query and documents are in different languages."""
    groups = families.across_languages(SEED, 2 * report.size)
    model, words = report.both(groups)
    report.add("## Query and texts in different languages", "")
    report.add("Names are spelled in the script of each language; one in six is Latin everywhere.", "")
    rows = []
    for name, scores in (("model", model), ("BM25", words)):
        rows.append([name, shown(first(groups, scores)), shown(pairs(groups, scores)["all"][0]), f"{ndcg(groups, scores):.3f}"])
    report.table(["", "first", "pairs", "NDCG@10"], rows + [["chance", shown(chance(groups)), "50.0", ""]])


def instructions(report: Report) -> None:
    """Reports the instruction families; each is also judged with the default instruction."""
    report.add(
        "## Instructions that change what is relevant", "",
        "Pairs in the right order, per cent: with the instruction, and on the same groups with the default instruction, which asks for "
        "something else. The difference is what the instruction does.", "",
    )  # fmt: skip
    rows = []
    for family, groups in families.instructed(SEED, report.size).items():
        scores = report.scorer.scores(groups)
        default = [replace(group, instruction=DEFAULT_INSTRUCTION) for group in groups]
        values = [pairs(groups, scores)["all"][0], pairs(groups, report.scorer.scores(default))["all"][0]]
        rows.append([family, shown(first(groups, scores)), *map(shown, values), shown(chance(groups))])
    report.table(["instruction", "first", "pairs", "pairs, default instruction", "first, chance"], rows)


def lengths(report: Report) -> None:
    """Reports long documents by the place of the answer."""
    report.add("## Long texts", "", "5 candidates of about the same length; share of first places, per cent (chance is about 24).", "")
    rows = []
    for sentences in (5, 10, 20, 30):
        row, tokens = [str(sentences)], []
        for place in (0.0, 0.5, 1.0):
            groups = families.long(SEED, report.size // 2, place, sentences)
            row.append(shown(first(groups, report.scorer.scores(groups))))
            tokens += [len(report.scorer.encoder.document(document.text())) for document in families.texts(groups)]
        rows.append([row[0], str(sum(tokens) // len(tokens)), *row[1:]])
    report.table(["other sentences", "tokens", "answer at the start", "in the middle", "at the end"], rows)


def probability(report: Report, groups: list[Group], scores: Scores) -> None:
    """Reports the reliability table."""
    rows, error = calibration(groups, scores)
    report.add("## Calibration", "", f"Over all groups of the first table. Expected calibration error: {error:.3f}.", "")
    shares = [[name, str(count), f"{mean:.3f}", f"{share:.3f}"] for name, count, mean, share in rows]
    report.table(["score", "texts", "mean score", "share relevant"], shares)


def write(folder: Path, size: int) -> None:
    """Measures everything and writes EVAL.md."""
    torch.set_num_threads(1)  # two threads wait for each other when other work uses the machine
    started = time.time()
    report = Report(Scorer.load(folder), size)
    report.add(
        "# Evaluation of the tiny re-ranker", "",
        "A demonstration and test fixture, not a product; for real work use `Qwen/Qwen3-Reranker-0.6B`. Made by `train/evaluate.py`, which "
        "measures every number below on generated groups that training never saw: other names (other syllables, other entries of the name "
        "lists), and where said other sentence forms, other relations, other everyday facts. BM25 is rank-bm25's `BM25Okapi`, over words, "
        "and pairs of characters for Chinese and Korean. What the numbers mean for a user, and what the model can't do, is in "
        "[README.md](README.md).", "",
    )  # fmt: skip
    groups, ours, theirs = languages(report)
    kinds(report, groups, ours, theirs)
    across(report)
    instructions(report)
    lengths(report)
    probability(report, groups, ours)
    (folder / "EVAL.md").write_text("\n".join(report.lines).rstrip() + "\n", encoding="utf-8")
    print(f"EVAL.md written in {time.time() - started:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=40, help="queries per family and language")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.size)
