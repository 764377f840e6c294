"""The pairs and texts in `reference/`, with their values from transformers and sentence-transformers.

Input: `reference/fixtures/`. Output: `CASES` and `TEXTS` by name, with repeated texts written out;
`EXPECTED`, `VECTORS` and `LOGITS` by model and case.
"""

import json
from pathlib import Path

from server import CLASSIFIERS, EMBEDDING_MODELS, MODEL_FLAGS, ROOT

FIXTURES = Path(__file__).resolve().parent / "reference/fixtures"


def _read(name: str) -> object:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


def _write_out(case: dict, field: str) -> dict:
    text = case[field]
    return case | {field: text if isinstance(text, str) else text["repeat"] * text["times"]}


def _by_name(rows: list[dict]) -> dict[str, dict]:
    return {row["name"]: row for row in rows}


CASES = _by_name([_write_out(case, "document") for case in _read("cases.json")])
# Without empty texts: sentence-transformers embeds them, the server refuses them.
TEXTS = _by_name([case for row in _read("embedding_cases.json") if (case := _write_out(row, "text"))["text"]])
# The rankings of the demonstration; the first is the README's example.
EXAMPLES = [json.loads((ROOT / f"examples/{name}.json").read_text(encoding="utf-8")) for name in ("korean", "english", "spanish")]
IDS: dict[str, dict] = _read("expected/ids.json")
PROMPT: dict = _read("expected/prompt.json")
EXPECTED, VECTORS, LOGITS = (
    {model: _by_name(_read(f"expected/{model}.json")) for model in models}
    for models in (MODEL_FLAGS, EMBEDDING_MODELS, CLASSIFIERS)
)
for _rows in VECTORS.values():
    for _name in set(_rows) - set(TEXTS):
        del _rows[_name]


def fields(case: dict) -> dict:
    """The fields of a request other than query and texts."""
    instruction = {} if case["instruction"] is None else {"instruction": case["instruction"]}
    return {"truncation_direction": case["truncation_direction"]} | instruction
