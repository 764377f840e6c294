"""Writes fixtures/any2jev/: a small random adapter of the family any2jev, with the answers of its authors'
package.

Run `python -m architectures.pointer` in the folder above, with `any2jev` 0.1.0 and `peft` importable (both
Apache-2.0). `small.expected.json` has requests in TypeSafe's dialect (`body`), and for each question the ids
of its row and the probabilities of its answers, in float32.

The base is the instruct model `deciders/qwen3-instruct`, to which a link leads. The tokenizer reads special
tokens in texts as text, as the server does and the authors' package does not do with all of them.
"""

import json
import shutil
from pathlib import Path

import torch
from any2jev.model import DecisionModel
from any2jev.packing import rows_of
from any2jev.schema import SystemOneRequest, render, to_specs

from . import deciders
from .fixture import FOLDER as ARCHITECTURES
from .fixture import numbers, write_json

FOLDER = ARCHITECTURES.parent / "any2jev"
BASE = "qwen3-instruct"
NAME = "small"
NESTED = {"a": [1, "  two", {"b": None, "c": [True, []]}], "empty": {}, "é:": 2.5, "list": [["x", "y"], {}]}


def requests() -> list[dict]:
    """The instruct models' bodies, and values that only this family writes in a form of its own."""
    # The authors' package reads this text as a token, and the server as text.
    bodies = json.loads(json.dumps(deciders.requests(with_codes=False)).replace("<think>", "think"))
    choice = {"type": "choice", "instructions": NESTED, "criteria": {"a": NESTED, "b": False, "c": "", "d": 0, "<|x y|>": ["<|fim_suffix|>"]}}
    noul = {"type": "noul", "instructions": ["<|box_end|> <||> <|a|b|> <|<|box_start|>", 1], "criteria": {"true": {"k": True}, "false": None}}
    bodies.append({"state": NESTED, "questions": {"choice": choice, "noul": noul}})
    bodies.append({"state": [["a"], "b\n c", {"d": "e"}], "questions": {"score": {"type": "score", "criteria": [{"x": 1}, ["y"], "z"]}}})
    for body in bodies:
        # The authors' package refuses a scale of one level.
        body["questions"] = {key: one for key, one in body["questions"].items() if one["type"] != "score" or len(one["criteria"]) > 1}
    return [body for body in bodies if body["questions"]]


def model() -> DecisionModel:
    """The decider with random weights."""
    made = DecisionModel.from_base(str(deciders.FOLDER / BASE), lora_r=3, lora_alpha=5, head_dim=24, device="cpu")
    generator = torch.Generator().manual_seed(38)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name or "trainable_tokens" in name or name.startswith("head."):
                scale = 1.0 if parameter.ndim == 1 or "tokens" in name else 1.5 / parameter.shape[-1] ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    made.temperature = 1.609
    return made.eval()


def main() -> None:
    """Makes the folder and its answers."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    (FOLDER / BASE).symlink_to(Path("..") / "deciders" / BASE)
    decider = model()
    decider.save(FOLDER / NAME)
    settings = FOLDER / NAME / "any2jev.json"
    written = json.loads(settings.read_text())
    written["base"] = written["meta"]["base"] = f"example/{BASE}"
    write_json(settings, written)
    (FOLDER / NAME / "adapter/README.md").unlink(missing_ok=True)
    adapter = FOLDER / NAME / "adapter/adapter_config.json"
    write_json(adapter, json.loads(adapter.read_text()) | {"base_model_name_or_path": f"example/{BASE}"})
    # The base's tokens are these.
    tokenizer = FOLDER / NAME / "tokenizer/tokenizer.json"
    tokenizer.unlink()
    tokenizer.symlink_to(Path("../..") / BASE / "tokenizer.json")
    decider.tok.split_special_tokens = True
    rows, leads = [], []
    for body in requests():
        specs = to_specs(SystemOneRequest.model_validate(body))
        packed = decider.encode(render(body["state"]), specs)
        assert not packed.truncated
        answers = {}
        for spec, row, found in zip(specs, rows_of(packed), decider.probs([packed])[0], strict=True):
            probabilities = found.double().flip(0) if spec.qtype == "noul" else found.double()
            answers[spec.qid] = deciders.stored(row.ids) | {"probabilities": numbers(probabilities)}
            leads.append(float(found.max()) - 1 / len(found))
        rows.append({"body": body, "answers": answers})
    lines = ",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) for row in rows)
    (FOLDER / f"{NAME}.expected.json").write_text(f'{{"source": "any2jev 0.1.0", "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    size = sum(path.stat().st_size for path in (FOLDER / NAME).rglob("*") if path.is_file())
    print(f"{NAME}: {size / 1000:.1f} KB, {len(rows)} requests, {len(leads)} questions, leads {min(leads):.2f} to {max(leads):.2f}")


if __name__ == "__main__":
    main()
