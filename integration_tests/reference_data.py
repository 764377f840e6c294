"""The pairs of `reference/` and what transformers says of them.

Input: `reference/fixtures/`. Output: `CASES` by name, documents written out; `EXPECTED` by model and case.
"""

import json
from pathlib import Path

from server import MODEL_FLAGS

FIXTURES = Path(__file__).resolve().parent / "reference/fixtures"


def _read(name: str) -> object:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


def _write_out(case: dict) -> dict:
    document = case["document"]
    return case | {"document": document if isinstance(document, str) else document["repeat"] * document["times"]}


CASES: dict[str, dict] = {case["name"]: _write_out(case) for case in _read("cases.json")}
IDS: dict[str, dict] = _read("expected/ids.json")
PROMPT: dict = _read("expected/prompt.json")
EXPECTED: dict[str, dict[str, dict]] = {
    model: {case["name"]: case for case in _read(f"expected/{model}.json")} for model in MODEL_FLAGS
}


def fields(case: dict) -> dict:
    """What a request says beside query and texts."""
    instruction = {} if case["instruction"] is None else {"instruction": case["instruction"]}
    return {"truncation_direction": case["truncation_direction"]} | instruction
