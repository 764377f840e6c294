#!/usr/bin/env python3
"""Remakes the files in fixtures/: tokenizer, model folders, cases, and transformers' float32 outputs.

Input: only the modules next to this file. Output: see README.md. Two runs on one machine give identical
files. On another machine, reference values may differ in their last digits (float32 sums). The parts
`embedding` and `classification` are made from the models of `generative`.
"""

import argparse
import hashlib
import json
import re
import shutil
import struct
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from cases import BATTERY, CASES, LIMIT_OFFSETS
from checkpoints import SPECS, load, make_checkpoint
from classifiers import CAUSAL, CONVERSIONS, check_conversion, convert, make_classifier, pair_rows, text_rows
from embedding_models import SPECS as EMBEDDING_SPECS
from embedding_models import make_embedding_model
from embedding_reference import expected_vectors, resolved_cases
from prompt import DEFAULT_INSTRUCTION, PREFIX, SUFFIX, Prompt, body_parts
from trained import trained_rows
from tokenizer import NOT_SPECIAL, PLAIN_SIZE, SPECIAL, write_tokenizer

# Longer lists of ids are stored as their first and last ids and a hash.
WHOLE_IDS = 600
EDGE_IDS = 64
# cases.json has \u escapes for characters that an editor could normalise or hide.
FRAGILE = re.compile("[\u00a0\u00ad\u0300-\u036f\u1100-\u11ff\u200b-\u200f\u2028\u2029\ufe0f\ufeff]")


def write_rows(path: Path, rows: list | dict) -> None:
    """Writes JSON with one entry per line."""
    if isinstance(rows, dict):
        lines, brackets = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in rows.items()], "{}"
    else:
        lines, brackets = [json.dumps(row, ensure_ascii=False) for row in rows], "[]"
    text = f"{brackets[0]}\n" + ",\n".join(lines) + f"\n{brackets[1]}\n"
    path.write_text(FRAGILE.sub(lambda match: f"\\u{ord(match[0]):04x}", text), encoding="utf-8")


def stored_ids(ids: list[int]) -> dict:
    """The ids in the form that ids.json has."""
    if len(ids) <= WHOLE_IDS:
        return {"length": len(ids), "ids": ids}
    digest = hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
    return {"length": len(ids), "first": ids[:EDGE_IDS], "last": ids[-EDGE_IDS:], "sha256": digest}


def check_ids(prompt: Prompt, official: AutoTokenizer, cases: list[dict]) -> None:
    """Checks the ids. Texts without added tokens have the ids of the official procedure; texts with added
    tokens have ids of plain tokens only."""
    for case in cases:
        ours, text = prompt.body_ids(case), "".join(body_parts(case))
        assert max(ours) < PLAIN_SIZE, case["name"]
        expected = official(text)["input_ids"]
        if any(token in text for token in SPECIAL + NOT_SPECIAL):
            assert max(expected) >= PLAIN_SIZE, case["name"]
        elif len(expected) <= prompt.body_limit(case):
            assert ours == expected, case["name"]
        else:
            assert len(ours) == prompt.body_limit(case), case["name"]
            if case["truncation_direction"] == "right" and "query" not in case["name"]:
                assert ours == expected[: len(ours)], case["name"]
    lengths = {case["name"]: len(prompt.ids(case)) for case in cases}
    frame = len(prompt.ids({**cases[0], "query": BATTERY, "document": ""}))
    assert lengths["tokens-32768"] - frame == 32768, lengths["tokens-32768"] - frame


def check_template(folder: Path, cases: list[dict]) -> None:
    """Checks that the repository's template renders the same text as the built-in prompt."""
    official = AutoTokenizer.from_pretrained(folder)
    for case in cases:
        before, query, _, document = body_parts(case)
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if case["instruction"] is not None:
            messages.insert(0, {"role": "system", "content": case["instruction"]})
        rendered = official.apply_chat_template(messages, tokenize=False)
        assert rendered == PREFIX + "".join(body_parts(case)) + SUFFIX, case["name"]


@torch.no_grad()
def expected_rows(folder: Path, cases: list[dict], prompt: Prompt, answers: tuple[int, int]) -> list[dict]:
    """Logits and scores of a model, for one unpadded prompt at a time, with nine significant digits, which
    identify a float32."""
    model, rows = load(folder), []
    for case in cases:
        if case["models"] is not None and folder.name not in case["models"]:
            continue
        logits = model(input_ids=torch.tensor([prompt.ids(case)]), logits_to_keep=1).logits[0, -1, list(answers)]
        yes, no = logits
        score = torch.nn.functional.log_softmax(logits, dim=0)[0].exp()
        values = {"logit_yes": yes, "logit_no": no, "raw": yes - no, "score": score}
        rows.append({"name": case["name"]} | {key: float(f"{value.item():.9g}") for key, value in values.items()})
    return rows


def check_rows(name: str, rows: list[dict]) -> None:
    """Checks that the scores depend on the texts."""
    raw = torch.tensor([row["raw"] for row in rows])
    distinct = len({round(row["raw"], 3) for row in rows})
    print(f"{name}: {len(rows)} cases, raw mean {raw.mean():+.2f} std {raw.std():.2f} min {raw.min():.2f} max {raw.max():.2f}, {distinct} distinct")
    assert 1.5 < raw.std() < 4 and abs(raw.mean()) < 1 and distinct > 0.9 * len(rows)


def make_generative(folder: Path) -> None:
    """Writes the causal re-rankers, their cases and outputs into an empty folder."""
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer = Path(temporary)
        write_tokenizer(tokenizer)
        prompt = Prompt(tokenizer / "tokenizer.json")
        vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab()
        answers = vocabulary["yes"], vocabulary["no"]
        cases = [
            case | {"max_length": len(prompt.ids(case)) + LIMIT_OFFSETS[case["name"]]} if case["name"] in LIMIT_OFFSETS else case
            for case in CASES
        ]
        assert len({case["name"] for case in cases}) == len(cases)
        check_ids(prompt, AutoTokenizer.from_pretrained(tokenizer), cases)
        ids = {case["name"]: prompt.ids(case) for case in cases}
        short = [tokens for tokens in ids.values() if len(tokens) <= WHOLE_IDS]
        (folder / "expected").mkdir(parents=True)
        for name, spec in SPECS.items():
            target = folder / "models" / name
            make_checkpoint(target, spec, tokenizer, vocabulary, short)
            if spec["official"]:
                check_template(target, cases)
            rows = expected_rows(target, cases, prompt, answers)
            check_rows(name, rows)
            write_rows(folder / "expected" / f"{name}.json", rows)
    write_rows(folder / "cases.json", cases)
    fixed = {"prefix": prompt.prefix, "suffix": prompt.suffix, "yes": answers[0], "no": answers[1]}
    write_rows(folder / "expected" / "prompt.json", fixed | {"default_instruction": DEFAULT_INSTRUCTION})
    write_rows(folder / "expected" / "ids.json", {name: stored_ids(tokens) for name, tokens in ids.items()})


def make_embedding(folder: Path, made: Path) -> None:
    """Writes the embedding models, their cases and vectors."""
    (folder / "expected").mkdir(parents=True)
    for name in EMBEDDING_SPECS:
        make_embedding_model(folder / "models" / name, name, made / "models" / CAUSAL)
    cases = resolved_cases(folder / "models/embedding-last/tokenizer.json")
    assert len({case["name"] for case in cases}) == len(cases)
    for name in EMBEDDING_SPECS:
        write_rows(folder / "expected" / f"{name}.json", expected_vectors(folder / "models" / name, cases))
    write_rows(folder / "embedding_cases.json", cases)


def make_classification(folder: Path, made: Path) -> None:
    """Writes the models with a classification head and their outputs, for the causal re-rankers' pairs."""
    (folder / "expected").mkdir(parents=True)
    models, cases = folder / "models", read(made / "cases.json")
    answers = read(made / "expected/prompt.json")
    prompt = Prompt(made / "models" / CAUSAL / "tokenizer.json")
    ids = {case["name"]: prompt.ids(case) for case in cases}
    for name, labels in CONVERSIONS.items():
        convert(made / "models", models / name, labels, (answers["yes"], answers["no"]))
        rows = pair_rows(models / name, cases, ids)
        check_conversion(rows, read(made / "expected" / f"{CAUSAL}.json"))
        write_rows(folder / "expected" / f"{name}.json", rows)
    make_classifier(made / "models", models / "seq-cls-3")
    write_rows(folder / "expected" / "seq-cls-3.json", text_rows(models / "seq-cls-3"))


def make_trained(folder: Path, _made: Path) -> None:
    """Writes the outputs of the trained model, which is made elsewhere (models/tiny-reranker/train)."""
    (folder / "expected").mkdir(parents=True)
    write_rows(folder / "expected" / "tiny-reranker.json", trained_rows())


def read(path: Path) -> list | dict:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def put_in_place(fresh: Path, output: Path) -> None:
    """Moves model folders and files to the output folder, in place of old ones with the same names."""
    for path in [*fresh.glob("models/*"), *fresh.glob("expected/*"), *fresh.glob("*.json")]:
        target = output / path.relative_to(fresh)
        if path.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    shutil.rmtree(fresh)


def main() -> None:
    """Makes each part in a temporary folder and then moves it into place, so that a failed run leaves the
    part as it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).parent / "fixtures"
    makers = {"embedding": make_embedding, "classification": make_classification, "trained": make_trained}
    parts = ("generative", *makers)
    parser.add_argument("parts", nargs="*", choices=parts, default=parts, help="what to remake (default: all, in this order)")
    parser.add_argument("--output", type=Path, default=default, help="output folder (default: fixtures next to this file)")
    arguments = parser.parse_args()
    output = arguments.output
    torch.set_num_threads(2)
    fresh = output.with_name(output.name + ".new")
    for part in arguments.parts:
        shutil.rmtree(fresh, ignore_errors=True)
        if part == "generative":
            make_generative(fresh)
        else:
            makers[part](fresh, output)
        put_in_place(fresh, output)


if __name__ == "__main__":
    main()
