"""Makes the models with a classification head, and transformers' float32 outputs for them.

Input: the causal fixture `untied-f16`, the pairs of cases.py and the texts below. Output:
models/seq-cls-<labels>/ and rows for expected/seq-cls-<labels>.json (see README.md). Needs torch and
transformers.
"""

import json
import shutil
from pathlib import Path

import numpy
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from cases import BATTERY, MARS, MIXED, PLANET, TULSA
from checkpoints import CHAT_TEMPLATE, FLAT_ROPE, spec
from weights import random_tensor, tensor_shapes, write_json, write_safetensors

CAUSAL = "untied-f16"
# The labels of converted re-rankers: one label with its usual name, or one label for each answer.
CONVERSIONS = {"seq-cls-1": ["LABEL_0"], "seq-cls-2": ["no", "yes"]}
LABELS = ["contradiction", "neutral", "entailment"]
THREE = spec(13, "bfloat16", (24, 56, 2, 3, 1, 16), True, FLAT_ROPE)
SCORE_GAIN = 1.5
# One text, or a pair.
TEXTS = {
    "english": [MARS],
    "korean": [TULSA],
    "mixed-scripts": [MIXED],
    "one-letter": ["a"],
    "emoji": ["😀 🚀 👍🏽"],
    "long": ["The river rises in the mountains and reaches the sea. " * 20],
    "pair": [PLANET, MARS],
    "pair-turned": [MARS, PLANET],
    "pair-korean": [TULSA, "감독은 스티브 크래그소프였다."],
    "pair-battery": [BATTERY, "Cold slows the chemistry inside, so the voltage falls."],
    "pair-half-empty": [PLANET, ""],
}


def label_fields(labels: list[str]) -> dict:
    """The fields of config.json about labels."""
    return {
        "architectures": ["Qwen3ForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def convert(models: Path, target: Path, labels: list[str], answers: tuple[int, int]) -> None:
    """Copies a causal re-ranker's folder and makes a head from the rows of its two answers. The head stays
    float32, so that the difference of the rows is exact."""
    shutil.copytree(models / CAUSAL, target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    # Conversions are saved with tied embeddings, because they have no output embedding.
    config |= label_fields(labels) | {"tie_word_embeddings": True}
    write_json(target / "config.json", dict(sorted(config.items())))
    (target / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tensors = load_file(target / "model.safetensors")
    yes, no = (tensors["lm_head.weight"][answer].astype(numpy.float32) for answer in answers)
    del tensors["lm_head.weight"]
    tensors["score.weight"] = numpy.stack([no, yes]) if len(labels) == 2 else (yes - no)[None]
    write_tensors(target, tensors)


def write_tensors(target: Path, tensors: dict[str, numpy.ndarray]) -> None:
    """Writes all tensors in float16, except for the head."""
    # The writer takes one type per file, so there are two files and an index.
    head = {"score.weight": tensors.pop("score.weight")}
    files = {"model-00001-of-00002.safetensors": (tensors, "float16"), "model-00002-of-00002.safetensors": (head, "float32")}
    weight_map = {}
    (target / "model.safetensors").unlink()
    for name, (part, dtype) in files.items():
        write_safetensors(target / name, {key: values.shape for key, values in part.items()}, part.values(), dtype)
        weight_map |= dict.fromkeys(part, name)
    total = sum(values.size * (2 if dtype == "float16" else 4) for part, dtype in files.values() for values in part.values())
    write_json(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def make_classifier(models: Path, target: Path) -> None:
    """Makes a small random model with three labels and the tokenizer of the causal fixture."""
    target.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(models / CAUSAL / name, target / name)
    ids = {token["content"]: token["id"] for token in json.loads((target / "tokenizer.json").read_text())["added_tokens"]}
    config = THREE["config"] | label_fields(LABELS) | {"vocab_size": max(ids.values()) + 1, "pad_token_id": ids["<|endoftext|>"]}
    config |= {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    write_json(target / "config.json", dict(sorted(config.items())))
    shapes = tensor_shapes(config) | {"score.weight": (len(LABELS), config["hidden_size"])}
    gain = 32 / config["hidden_size"] ** 0.5
    gains = {"score.weight": SCORE_GAIN / 0.02 / config["hidden_size"] ** 0.5}
    tensors = [random_tensor(name, shape, THREE["seed"], gains.get(name, gain)) for name, shape in shapes.items()]
    write_safetensors(target / "model.safetensors", shapes, tensors, THREE["dtype"])


@torch.no_grad()
def logits(folder: Path, id_lists: list[list[int]]) -> list[list[float]]:
    """A row of logits for each prompt. Fails if the model lacks a tensor, or leaves one of the checkpoint
    unused."""
    model, report = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    rows = [model.eval()(input_ids=torch.tensor([ids])).logits[0] for ids in id_lists]
    return [[float(f"{value:.9g}") for value in row.tolist()] for row in rows]


def pair_rows(folder: Path, cases: list[dict], ids: dict[str, list[int]]) -> list[dict]:
    """The logits of the pairs, with the prompts of the causal model."""
    names = [case["name"] for case in cases if case["models"] is None and len(ids[case["name"]]) < 600]
    rows = logits(folder, [ids[name] for name in names])
    return [{"name": name, "logits": row} for name, row in zip(names, rows, strict=True)]


def check_conversion(rows: list[dict], causal: list[dict]) -> None:
    """Checks that a conversion scores like the causal model."""
    raw = {row["name"]: row["raw"] for row in causal}
    for row in rows:
        converted = row["logits"][-1] - (row["logits"][0] if len(row["logits"]) == 2 else 0)
        assert abs(converted - raw[row["name"]]) < 2e-5, row


def text_rows(folder: Path) -> list[dict]:
    """Texts, ids, logits and softmax of the classifier."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    id_lists = [tokenizer(*texts)["input_ids"] for texts in TEXTS.values()]
    rows = []
    for (name, texts), ids, values in zip(TEXTS.items(), id_lists, logits(folder, id_lists), strict=True):
        softmax = torch.tensor(values).softmax(0).tolist()
        scores = [float(f"{value:.9g}") for value in softmax]
        rows.append({"name": name, "inputs": texts, "ids": ids, "logits": values, "scores": scores})
    spread = torch.tensor([row["logits"] for row in rows]).std(0)
    best = {row["logits"].index(max(row["logits"])) for row in rows}
    print(f"{folder.name}: {len(rows)} cases, std of the logits {spread.tolist()}, best labels {best}")
    assert spread.min() > 0.3 and len(best) > 1
    return rows
