"""Fits a temperature for each type of question to decisions with known answers.

Input: a JSONL file with `state`, `question` (as in `POST /v1/systemone`) and `answer` (an option's name, a
level's index, true or false), and a server that decides. Output: the temperatures, and the likelihood that
they reach. What must hold: every stated likelihood of a question comes from a fit without its state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.model_selection import GroupKFold
from tqdm import tqdm

from .questions import QuestionsError
from .systems import System

FOLDS = 5
TYPES = ("choice", "score", "noul")
# The temperatures that are tried: 0.05 to 20.
LOGARITHMS = (float(np.log(0.05)), float(np.log(20)))
# Smaller probabilities count as this one, so that a logarithm is finite.
SMALLEST = 1e-300


@dataclass
class Decision:
    """A question about a state, and the index of its right answer: of a yes-or-no question 0 for yes."""

    state: Any
    question: dict[str, Any]
    right: int


def are_decisions(path: Path) -> bool:
    """Whether a file of questions has decisions, by its first line."""
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as lines:
        try:
            first = json.loads(next(lines, ""))
        except ValueError:
            return False
    return isinstance(first, dict) and "state" in first


def read_decisions(path: Path) -> list[Decision]:
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise QuestionsError(path, number, f"is not JSON: {error}") from None
            if not isinstance(row, dict) or not {"state", "question", "answer"} <= row.keys():
                raise QuestionsError(path, number, "needs `state`, `question` and `answer`")
            question = row["question"]
            if not isinstance(question, dict) or question.get("type") not in TYPES:
                raise QuestionsError(path, number, "`question` needs a `type`: choice, score or noul")
            try:
                right = _right_index(question, row["answer"])
            except (TypeError, ValueError):
                raise QuestionsError(path, number, f"`answer` {row['answer']!r} is not an answer of the question") from None
            found.append(Decision(row["state"], question, right))
    return found


def _right_index(question: dict[str, Any], answer: Any) -> int:
    if question["type"] == "noul":
        return [True, False].index(answer) if isinstance(answer, bool) else ["true", "false"].index(answer)
    if question["type"] == "choice":
        return list(question["criteria"]).index(answer)
    if isinstance(answer, bool):
        raise ValueError
    return range(len(question["criteria"])).index(answer)


def probabilities(system: System, decisions: list[Decision]) -> list[Any]:
    """The server's probabilities of each question's answers."""
    found = []
    for decision in tqdm(decisions, desc=system.name, unit="question", leave=False):
        answer = system.client.decide(decision.state, {"q": decision.question})["q"]
        values = [answer["noul"], 1 - answer["noul"]] if "noul" in answer else list(answer["probabilities"].values())
        found.append(np.array(values))
    return found


def log_loss(rows: list[Any], right: list[int], temperature: float) -> float:
    """The mean negative logarithm of the right answer's probability."""
    losses = []
    for row, index in zip(rows, right, strict=True):
        logits = np.log(np.maximum(row, SMALLEST)) / temperature
        losses.append(np.logaddexp.reduce(logits) - logits[index])
    return float(np.mean(losses))


def temperature_of(rows: list[Any], right: list[int]) -> float:
    """The temperature with which the right answers are likeliest."""
    found = minimize_scalar(lambda logarithm: log_loss(rows, right, float(np.exp(logarithm))), bounds=LOGARITHMS, method="bounded")
    return float(np.exp(found.x))


def fit(rows: list[Any], right: list[int], groups: list[int]) -> dict[str, Any]:
    """The temperature of a type, and the loss of questions whose states the fit has not seen."""
    held_out = []
    for seen, unseen in GroupKFold(min(FOLDS, len(set(groups)))).split(rows, groups=groups):
        temperature = temperature_of([rows[place] for place in seen], [right[place] for place in seen])
        held_out += [log_loss([rows[place]], [right[place]], temperature) for place in unseen]
    return {
        "temperature": temperature_of(rows, right),
        "questions": len(rows),
        "accuracy": float(np.mean([int(row.argmax()) == index for row, index in zip(rows, right, strict=True)])),
        "log_loss": float(np.mean(held_out)),
        "log_loss_uncalibrated": log_loss(rows, right, 1.0),
        "log_loss_of_chance": float(np.mean([np.log(len(row)) for row in rows])),
    }


def fit_types(path: Path, decisions: list[Decision], rows: list[Any]) -> dict[str, Any]:
    """The fit of each type that the questions have."""
    fits = {}
    for kind in TYPES:
        # A question with one answer says nothing.
        places = [at for at, one in enumerate(decisions) if one.question["type"] == kind and len(rows[at]) > 1]
        states = [json.dumps(decisions[place].state, sort_keys=True) for place in places]
        if not places:
            continue
        if len(set(states)) < 2:
            raise QuestionsError(path, None, f"needs questions of the type {kind} about two states at least")
        order = {state: number for number, state in enumerate(dict.fromkeys(states))}
        fits[kind] = fit([rows[place] for place in places], [decisions[place].right for place in places], [order[state] for state in states])
    if not fits:
        raise QuestionsError(path, None, "has no questions with several answers")
    return fits
