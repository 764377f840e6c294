"""`text-embeddings-router-compare`: the same requests to two servers or settings.

Input: questions, and two servers. Output: how far the scores and the orders differ, the questions whose first
text changed, and the times of both.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from . import report
from .questions import Questions
from .systems import Answers, add_arguments, asking, named, sampled, started

# Longer texts are cut in the list of changed tops.
SHOWN = 300


def differences(first: Answers, second: Answers) -> Any:
    """A row for each question: the largest difference of a score, the rank correlation, both first texts."""
    rows = []
    for query, scores in first.scores.items():
        others = second.scores[query]
        ours, theirs = np.array(list(scores.values())), np.array([others[one] for one in scores])
        documents = list(scores)
        rows.append(
            {
                "query": query,
                "largest difference": float(np.abs(ours - theirs).max()),
                # Undefined if all scores are equal, or for one text.
                "Kendall's tau": float(kendalltau(ours, theirs).statistic) if len(documents) > 1 else 1.0,
                "first": documents[int(ours.argmax())],
                "second": documents[int(theirs.argmax())],
            }
        )
    return pd.DataFrame(rows)


def summary(found: Any, first: Answers, second: Answers) -> Any:
    largest, tau = found["largest difference"], found["Kendall's tau"]
    rows = {
        "questions": len(found),
        "largest difference of a score": f"{largest.max():.6g}",
        "its median over the questions": f"{largest.median():.6g}",
        "Kendall's tau, mean and least": f"{tau.mean():.4f}, {tau.min():.4f}",
        "questions with another first text": int((found["first"] != found["second"]).sum()),
        **{f"p50 and p95 of {one.name}": f"{one.milliseconds(50):.1f} ms, {one.milliseconds(95):.1f} ms" for one in (first, second)},
    }
    return pd.DataFrame({"": rows.keys(), "value": [str(value) for value in rows.values()]})


def changed(questions: Questions, found: Any, first: Answers, second: Answers) -> Any:
    """The questions whose first text changed, with the texts."""
    swapped = found[found["first"] != found["second"]]
    return pd.DataFrame(
        {
            "question": [questions.queries[query] for query in swapped["query"]],
            f"first by {first.name}": [questions.documents[one][:SHOWN] for one in swapped["first"]],
            f"first by {second.name}": [questions.documents[one][:SHOWN] for one in swapped["second"]],
        }
    )


def main(parser: argparse.ArgumentParser, given: list[str]) -> None:
    add_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("comparison.html"), help="the page (default: comparison.html)")
    arguments = parser.parse_args(given)
    servers = named(arguments)
    if len(servers) != 2:
        parser.error(f"needs two servers by --url, or by --model and --dtype, not {len(servers)}")
    questions = sampled(arguments)
    answers = []
    for name, url, dtype in servers:
        with started(name, url, dtype, asking(arguments)) as system:
            answers.append(system.answer(questions))
    first, second = answers
    found = differences(first, second)
    table = summary(found, first, second)
    print(table.to_string(index=False, header=False))
    plot = report.histograms("milliseconds per question", {one.name: [1000 * each for each in one.seconds.values()] for one in answers})
    title = f"{questions.name}: {first.name} and {second.name}"
    report.write(arguments.out, title, [table, changed(questions, found, first, second)], [plot])
    print(f"Written: {arguments.out}")
