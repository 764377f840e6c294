"""`text-embeddings-router-eval`: does re-ranking help a search, which model, which arithmetic?

Input: judged questions and servers. Output: a table, an HTML page with plots, and the rankings as TREC runs.
`ir-measures` computes the measures.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from . import report
from .questions import Questions
from .systems import Answers, add_arguments, asking, named, sampled, started

MEASURES = ("nDCG@10", "RR@10", "AP@10", "R@5")
INCOMING = "as it came in"


def values(questions: Questions, scores: dict[str, dict[str, float]], measures: tuple[str, ...] = MEASURES) -> Any:
    """Each measure of each question: a table with a row per question."""
    grades = {query: questions.grades[query] for query in questions.candidates}
    parsed = [ir_measures.parse_measure(name) for name in measures]
    rows = [(one.query_id, str(one.measure), one.value) for one in ir_measures.iter_calc(parsed, grades, scores)]
    table = pd.DataFrame(rows, columns=["query", "measure", "value"]).pivot(index="query", columns="measure", values="value")
    return table.reindex(columns=measures)


def incoming(questions: Questions) -> dict[str, dict[str, float]]:
    """The order of the candidates as scores."""
    return {query: {one: -float(place) for place, one in enumerate(found)} for query, found in questions.candidates.items()}


def interval(differences: Any) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences, by the bootstrap."""
    if len(differences) < 2 or np.ptp(differences) == 0:
        return float(np.mean(differences)), float(np.mean(differences))
    found = bootstrap((np.asarray(differences),), np.mean, n_resamples=2000, method="percentile", random_state=1)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def summary(questions: Questions, answers: list[Answers]) -> Any:
    """The table of the report: a row for the order that came in and for each server."""
    base = values(questions, incoming(questions))
    rows = [{"ranked by": INCOMING, **base.mean().round(4).to_dict()}]
    for one in answers:
        found = values(questions, one.scores)
        gains = (found - base)[MEASURES[0]]
        low, high = interval(gains)
        rows.append(
            {
                "ranked by": one.name,
                **found.mean().round(4).to_dict(),
                f"gain of {MEASURES[0]}": f"{gains.mean():+.4f} ({low:+.4f} to {high:+.4f})",
                "more than chance": "yes" if low > 0 else "worse" if high < 0 else "no",
                "p50 ms": round(one.milliseconds(50), 1),
                "p95 ms": round(one.milliseconds(95), 1),
                "pairs/s": round(one.pairs_per_second(), 1),
            }
        )
    return pd.DataFrame(rows).astype(object).fillna("")


def file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


def write_run(path: Path, one: Answers) -> None:
    """A TREC run, in which other tools read the ranking."""
    with path.open("w", encoding="utf-8") as out:
        for query, scores in one.scores.items():
            for rank, (document, score) in enumerate(sorted(scores.items(), key=lambda pair: -pair[1]), 1):
                out.write(f"{query} Q0 {document} {rank} {score:.9g} {file_name(one.name)}\n")


def main(parser: argparse.ArgumentParser, given: list[str]) -> None:
    add_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("evaluation"), help="folder of the results (default: evaluation)")
    arguments = parser.parse_args(given)
    servers = named(arguments)
    if not servers:
        parser.error("name a server with --url, or a model with --model")
    questions = sampled(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    answers = []
    for name, url, dtype in servers:
        with started(name, url, dtype, asking(arguments)) as system:
            stem = arguments.out / file_name(system.name)
            answers.append(system.answer(questions, stem.with_name(stem.name + ".jsonl")))
            write_run(stem.with_name(stem.name + ".run"), answers[-1])
    table = summary(questions, answers)
    pairs = sum(map(len, questions.candidates.values()))
    title = f"{questions.name}: {len(questions.candidates)} questions, {pairs} pairs"
    print(title, table.to_string(index=False), sep="\n")
    page = arguments.out / "report.html"
    measured = {one.name: values(questions, one.scores)[MEASURES[0]] for one in answers}
    plots = [
        report.bars(f"{MEASURES[0]} with 95 % intervals", {name: (each.mean(), *interval(each)) for name, each in measured.items()}),
        report.histograms("milliseconds per question", {one.name: [1000 * each for each in one.seconds.values()] for one in answers}),
    ]
    report.write(page, title, [table], plots)
    print(f"Written: {page}, and a run for each server in {arguments.out}")
