"""transformers' outputs for the trained re-ranker inside the binary, models/tiny-reranker.

Input: the model's folder; the pairs of ../trained_cases.json and ../../examples. Output: rows with query,
text, raw and score.
"""

import json
from pathlib import Path

import torch
from checkpoints import load
from prompt import Prompt

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent.parent / "models/tiny-reranker"
EXAMPLES = HERE.parent.parent / "examples"


def trained_cases() -> list[dict]:
    """The queries with their texts."""
    cases = json.loads((HERE.parent / "trained_cases.json").read_text(encoding="utf-8"))
    return cases + [json.loads((EXAMPLES / f"{name}.json").read_text(encoding="utf-8")) for name in ("korean", "english", "spanish")]


@torch.no_grad()
def trained_rows() -> list[dict]:
    """A row for each pair, computed in float32, one unpadded prompt at a time."""
    model, prompt = load(MODEL), Prompt(MODEL / "tokenizer.json")
    ids = json.loads((MODEL / "1_LogitScore/config.json").read_text())
    answers, rows = [ids["true_token_id"], ids["false_token_id"]], []
    for case in trained_cases():
        for text in case["texts"]:
            pair = {"instruction": None, "query": case["query"], "document": text, "max_length": 8192, "truncation_direction": "right"}
            yes, no = model(input_ids=torch.tensor([prompt.ids(pair)]), logits_to_keep=1).logits[0, -1, answers]
            values = {"raw": yes - no, "score": torch.sigmoid(yes - no)}
            numbers = {name: float(f"{value.item():.9g}") for name, value in values.items()}
            rows.append({"query": case["query"], "text": text} | numbers)
    return rows
