"""`text-embeddings-router-calibrate`: from raw scores to probabilities, and from which score on a text counts
as relevant.

Input: judged questions and one server. Output: a JSON file with temperature, offset and thresholds, or with a
temperature for each type of decision, and the model, arithmetic, prompt, instruction and data that they hold
for, which the server reads (`--calibration`). What must hold: every stated probability of a
question comes from a fit without this question.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, precision_recall_curve
from sklearn.model_selection import GroupKFold, cross_val_predict

from . import decisions, report
from .questions import Questions
from .systems import Answers, System, add_arguments, asking, named, sampled, started

FOLDS = 5
RESAMPLES = 200
# Almost without a penalty, which would pull the slope to zero.
MODEL = LogisticRegression(C=1e6)


def pairs(questions: Questions, answers: Answers) -> tuple[Any, Any, Any]:
    """The raw score, the label and the question of each pair."""
    rows = [
        (score, questions.grades[query].get(document, 0) > 0, place)
        for place, (query, scores) in enumerate(answers.scores.items())
        for document, score in scores.items()
    ]
    scores, labels, groups = zip(*rows, strict=True)
    return np.array(scores), np.array(labels), np.array(groups)


def threshold(scores: Any, labels: Any, precision: float | None, recall: float | None) -> float | None:
    """The least raw score with the precision, or the largest with the recall; None if no score has it."""
    precisions, recalls, thresholds = precision_recall_curve(labels, scores)
    fits = recalls[:-1] >= recall if recall is not None else precisions[:-1] >= precision
    if not fits.any():
        return None
    return float(thresholds[fits].max() if recall is not None else thresholds[fits].min())


def interval(scores: Any, labels: Any, groups: Any, precision: float | None, recall: float | None) -> list[float] | None:
    """The 95 % interval of a threshold, from resampled questions. None if a tenth of the samples has none."""
    generator, count = np.random.default_rng(1), groups.max() + 1
    members = [np.flatnonzero(groups == group) for group in range(count)]
    found = []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([members[group] for group in generator.integers(0, count, count)])
        if 0 < labels[drawn].sum() < len(drawn):
            value = threshold(scores[drawn], labels[drawn], precision, recall)
            found += [value] if value is not None else []
    if len(found) < 0.9 * RESAMPLES:
        return None
    return [float(value) for value in np.percentile(found, [2.5, 97.5])]


def fit(scores: Any, labels: Any, groups: Any) -> tuple[dict[str, Any], Any]:
    """Temperature and offset of `sigmoid(raw / temperature + offset)`, and cross-validated probabilities."""
    folds = GroupKFold(min(FOLDS, groups.max() + 1))
    column = scores.reshape(-1, 1)
    held_out = cross_val_predict(MODEL, column, labels, groups=groups, cv=folds, method="predict_proba")[:, 1]
    fitted = MODEL.fit(column, labels)
    slope, offset = float(fitted.coef_[0][0]), float(fitted.intercept_[0])
    if slope <= 0:
        sys.exit("Error: higher scores of this model are no sign of relevance in these questions: it cannot be calibrated")
    rate = labels.mean()
    return {
        "temperature": 1 / slope,
        "offset": offset,
        "log_loss": float(log_loss(labels, held_out)),
        "log_loss_of_the_rate_alone": float(log_loss(labels, np.full(len(labels), rate))),
        "brier_score": float(brier_score_loss(labels, held_out)),
    }, held_out


def made_for(info: dict[str, Any]) -> dict[str, Any]:
    """The model that the numbers hold for, as the server knows it again."""
    return {
        "model_id": info.get("model_id"),
        "model_sha": info.get("model_sha"),
        "arithmetic": info.get("arithmetic", info.get("model_dtype")),
        "prompt_hash": info.get("prompt_hash"),
    }


def decide(system: System, arguments: argparse.Namespace) -> None:
    """Writes the temperatures of decisions."""
    path = arguments.questions
    if (system.info.get("calibration") or {}).get("decisions"):
        sys.exit("Error: the server's answers are calibrated already: start it without --calibration")
    asked = decisions.read_decisions(path)
    fits = decisions.fit_types(path, asked, decisions.probabilities(system, asked))
    data = {"name": path.stem, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "questions": len(asked)}
    result = {**made_for(system.info), "data": data, "decisions": fits}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(pd.DataFrame(fits).T.to_string())
    print(f"Written: {arguments.out}")


def main(parser: argparse.ArgumentParser, given: list[str]) -> None:
    add_arguments(parser)
    parser.add_argument("--precision", type=float, action="append", default=[], help="find the threshold with this precision")
    parser.add_argument("--recall", type=float, action="append", default=[], help="find the threshold with this recall")
    parser.add_argument("--out", type=Path, default=Path("calibration.json"), help="the file (default: calibration.json)")
    arguments = parser.parse_args(given)
    servers = named(arguments)
    if len(servers) != 1:
        parser.error(f"calibrates one server, by --url or --model, not {len(servers)}")
    [(name, url, dtype)] = servers
    if decisions.are_decisions(arguments.questions):
        with started(name, url, dtype, asking(arguments)) as system:
            decide(system, arguments)
        return
    questions = sampled(arguments)
    with started(name, url, dtype, asking(arguments)) as system:
        answers = system.answer(questions)
    scores, labels, groups = pairs(questions, answers)
    if labels.all() or not labels.any() or groups.max() == 0:
        sys.exit(f"Error: {arguments.questions} needs at least two questions, and relevant and other documents among the ranked ones")
    found, held_out = fit(scores, labels, groups)
    targets = [("precision", value) for value in arguments.precision or [0.9]]
    targets += [("recall", value) for value in arguments.recall or [0.9]]
    found["thresholds"] = []
    for kind, value in targets:
        wanted = (value, None) if kind == "precision" else (None, value)
        raw = threshold(scores, labels, *wanted)
        row = {kind: value, "raw_score": raw, "interval": interval(scores, labels, groups, *wanted)}
        row["probability"] = None if raw is None else 1 / (1 + np.exp(-(raw / found["temperature"] + found["offset"])))
        found["thresholds"].append(row)
    info = answers.info
    data = "".join(f"{query}\t{one}\t{grade}\n" for query in answers.scores for one, grade in sorted(questions.grades[query].items()))
    result = {
        **made_for(info),
        "instruction": info.get("default_instruction") if arguments.instruction is None else arguments.instruction,
        "data": {"name": questions.name, "sha256": hashlib.sha256(data.encode()).hexdigest(), "pairs": len(scores), "relevant": int(labels.sum())},
        **found,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    observed, predicted = calibration_curve(labels, held_out, n_bins=10, strategy="quantile")
    page = arguments.out.with_suffix(".html")
    plot = report.reliability("cross-validated", predicted, observed)
    table = pd.DataFrame(found["thresholds"])
    report.write(page, f"{questions.name}: {answers.name}", [table], [plot])
    print(f"probability = sigmoid(raw / {found['temperature']:.4g} {found['offset']:+.4g})", table.to_string(index=False), sep="\n")
    print(f"Written: {arguments.out} and {page}")
