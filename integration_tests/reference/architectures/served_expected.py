"""Answers of sentence-transformers for the folders of served.py, in float32, one unpadded input at a time.

Input: a folder with its tokenizer. Output: the rows of fixtures/served/<name>.expected.json, which
../README.md describes.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from cases import MARS, MIXED, PLANET, RIVER, TULSA
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from tokenizers import Tokenizer
from torch.nn.functional import normalize
from transformers import AutoModel

from .fixture import numbers, write_json

FLOAT = {"dtype": torch.float32}
VENUS = "Venus is often called Earth's twin because of its similar size and proximity."
JUPITER = "Jupiter, the largest planet in our solar system, has a prominent red spot."
SATURN = "Saturn, famous for its rings, is sometimes mistaken for the Red Planet."
LONG = f"{RIVER} {RIVER} {RIVER}"
TEXTS = [
    [MARS],
    ["What is Deep Learning?"],
    [TULSA],
    [MIXED],
    ["a"],
    ["Café, naïve: 12.6 V — 10 % (of 2,000 €)!"],
    ["😀 🚀"],
    [LONG],
]
PAIRS = [
    [PLANET, VENUS],
    [PLANET, MARS],
    [PLANET, JUPITER],
    [PLANET, SATURN],
    [MARS, PLANET],
    [TULSA, "감독은 스티브 크래그소프였다."],
    ["red", "a"],
    [PLANET, LONG],
]
# An input, the longest length including special tokens, and the side that is cut.
TRUNCATED = [([MARS], 9, "right"), ([MARS], 9, "left")]
TRUNCATED_PAIRS = [
    ([PLANET, MARS], 40, "right"), ([PLANET, MARS], 21, "right"), ([PLANET, MARS], 21, "left"),
    ([PLANET, MARS], 20, "right"),
    (["red", LONG], 16, "right"), ([LONG, "red"], 16, "right"), ([LONG, RIVER], 25, "left"),
]  # fmt: skip

Rows = list[dict]


class Encoder:
    """The tokenizer of a folder, read by the `tokenizers` library, with the longest input."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.path, self.limit = str(folder / "tokenizer.json"), limit

    def encode(self, inputs: list[str], limit: int | None, direction: str, prompt: str = "") -> dict:
        """The ids and types of a row."""
        tokenizer = Tokenizer.from_file(self.path)
        tokenizer.no_padding()
        tokenizer.enable_truncation(limit or self.limit, strategy="longest_first", direction=direction)
        encoding = tokenizer.encode(prompt + inputs[0], *inputs[1:])
        return {"ids": encoding.ids, "types": encoding.type_ids}

    def rows(self, inputs: list[list[str]], truncated: list[tuple]) -> Rows:
        """Rows for inputs at the model's own limit, then for inputs at other limits."""
        cases = [(case, None, "right") for case in inputs] + truncated
        return [
            {"inputs": case, "max_length": limit, "direction": side} | self.encode(case, limit, side)
            for case, limit, side in cases
        ]


def features(model: torch.nn.Module, row: dict) -> dict:
    """The input of the pipeline for a row."""
    ids = torch.tensor([row["ids"]])
    fed = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if (getattr(model[0].model.config, "type_vocab_size", 0) or 0) > 1:
        fed["token_type_ids"] = torch.tensor([row["types"]])
    return fed


def check_ids(model: torch.nn.Module, row: dict, prompt: str = "") -> None:
    """Checks that sentence-transformers has the same ids at the model's own limit."""
    if row["max_length"] is None:
        given = [prompt + row["inputs"][0]] if len(row["inputs"]) == 1 else [tuple(row["inputs"])]
        theirs = model.preprocess(given)["input_ids"][0].tolist()
        assert theirs == row["ids"], (row["inputs"], theirs, row["ids"])


def spread(vectors: list[list[float]]) -> float:
    """The largest cosine between two vectors. Different inputs must have different vectors."""
    unit = normalize(torch.tensor(vectors), dim=1)
    products = unit @ unit.T - 2 * torch.eye(len(unit))
    largest = products.max().item()
    assert largest < 0.99, (largest, divmod(products.argmax().item(), len(unit)))
    return largest


@torch.no_grad()
def embedding_rows(folder: Path, limit: int) -> tuple[Rows, dict, str]:
    """Vectors before and after normalisation. A model with several dense folders has a vector for each."""
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs=FLOAT)
    assert model.max_seq_length == limit
    rows, others = (
        [],
        [path for path in sorted(folder.glob("*_Dense*")) if len(list(folder.glob("*_Dense_*"))) > 1],
    )
    encoder = Encoder(folder, limit)
    base = encoder.rows(TEXTS, TRUNCATED)
    prompted = [
        {**row, "prompt_name": name} | encoder.encode(row["inputs"], None, "right", text)
        for name, text in model.prompts.items()
        if text
        for row in base[:3]
    ]
    for row in base + prompted:
        check_ids(model, row, model.prompts.get(row.get("prompt_name"), ""))
        vector, fed, pooled = None, features(model, row), None
        for module in model:
            if isinstance(module, Normalize):
                break
            if isinstance(module, Dense) and pooled is None:
                pooled = fed["sentence_embedding"][0]
            fed = module(fed)
        vector = fed["sentence_embedding"][0]
        row |= {"raw": numbers(vector), "normalized": numbers(normalize(vector, dim=0))}
        if others:
            row["dense"] = {path.name: numbers(dense(path, pooled)) for path in others}
        if row["max_length"] is None:
            ours = model.encode(
                row["inputs"][0],
                prompt_name=row.get("prompt_name"),
                convert_to_tensor=True,
                normalize_embeddings=True,
            )
            assert (ours - normalize(vector, dim=0)).abs().max() < 1e-5
        rows.append(row)
    modules = [type(module).__name__ for module in model]
    return (
        rows,
        {"prompts": model.prompts, "modules": modules},
        # A long prompt makes the vectors of short texts alike.
        f"largest cosine {spread([row['raw'] for row in rows if not row.get('prompt_name')]):.2f}",
    )


def named_rows(folder: Path, limit: int) -> tuple[Rows, dict, str]:
    """A few rows for a model that differs from another fixture in its settings only."""
    rows, more, line = embedding_rows(folder, limit)
    prompted = [row for row in rows if row.get("prompt_name")]
    return [row for row in rows if row not in prompted and row["max_length"] is None][:5] + prompted, more, line


def adapted_rows(folder: Path, limit: int) -> tuple[Rows, dict, str]:
    """The rows of a model with the matrices of its adapter for retrieval, by the formula of PEFT."""
    adapter = folder / "adapters/retrieval"
    settings = json.loads((adapter / "adapter_config.json").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        merged = Path(shutil.copytree(folder, Path(temporary) / "model"))
        config = json.loads((merged / "config.json").read_text())
        write_json(merged / "config.json", config | {"model_type": "qwen3", "architectures": ["Qwen3Model"]})
        tensors, factors = load_file(merged / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
        for name in [name for name in factors if ".lora_A." in name]:
            product = factors[name.replace("lora_A", "lora_B")].double() @ factors[name].double()
            matrix = name.removeprefix("base_model.model.").replace(".lora_A", "")
            sum_ = tensors[matrix].double() + product * settings["lora_alpha"] / settings["r"]
            tensors[matrix] = sum_.float()
        save_file(tensors, merged / "model.safetensors", {"format": "pt"})
        return named_rows(merged, limit)


def dense(folder: Path, pooled: torch.Tensor) -> torch.Tensor:
    """The result of a dense folder without activation."""
    tensors = load_file(folder / "model.safetensors")
    return pooled @ tensors["linear.weight"].float().T + tensors["linear.bias"].float()


@torch.no_grad()
def cls_rows(folder: Path, limit: int) -> tuple[Rows, dict, str]:
    """The state of the first token, by transformers: without modules.json, sentence-transformers would take
    the mean of all tokens."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = Encoder(folder, limit).rows(TEXTS, TRUNCATED)
    for row in rows:
        vector = model(input_ids=torch.tensor([row["ids"]])).last_hidden_state[0, 0]
        row |= {"raw": numbers(vector), "normalized": numbers(normalize(vector, dim=0))}
    return rows, {}, f"largest cosine {spread([row['raw'] for row in rows]):.2f}"


def tei_scores(logits: torch.Tensor) -> torch.Tensor:
    """The sigmoid of a single label, the softmax of several."""
    return logits.sigmoid() if len(logits) == 1 else logits.softmax(0)


@torch.no_grad()
def score_rows(folder: Path, limit: int) -> tuple[Rows, dict, str]:
    """Logits, TEI's scores and sentence-transformers' scores of pairs, and of texts for classifiers."""
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs=FLOAT)
    assert model.max_seq_length == limit, model.max_seq_length
    single = model.num_labels > 1
    rows = Encoder(folder, limit).rows(PAIRS + single * TEXTS, TRUNCATED_PAIRS + single * TRUNCATED)
    for row in rows:
        if len(row["inputs"]) == 2:
            check_ids(model, row)
        logits = model(features(model, row))["scores"].flatten()
        given = model.activation_fn(logits)
        row |= {
            "raw": numbers(logits),
            "scores": numbers(tei_scores(logits)),
            "sentence_transformers": numbers(given),
        }
        if row["max_length"] is None and len(row["inputs"]) == 2:
            assert (torch.tensor(model.predict([tuple(row["inputs"])])).flatten() - given).abs().max() < 1e-5
    config = model[0].model.config
    labels = (
        [config.id2label[index] for index in range(model.num_labels)]
        if model.num_labels == config.num_labels
        else None
    )
    deviation = torch.tensor([row["raw"] for row in rows]).std(0)
    assert deviation.min() > 0.15, deviation
    return (
        rows,
        {"labels": labels, "activation": type(model.activation_fn).__name__},
        f"logits std {deviation.min():.2f}…{deviation.max():.2f}",
    )


@torch.no_grad()
def splade_rows(folder: Path, limit: int) -> tuple[Rows, dict, str]:
    """The weights above 0 of all terms."""
    model = SparseEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs=FLOAT)
    assert model.max_seq_length == limit
    rows = Encoder(folder, limit).rows(TEXTS, TRUNCATED)
    for row in rows:
        check_ids(model, row)
        weights = model(features(model, row))["sentence_embedding"][0]
        row["splade"] = [[index, numbers(weight)] for index, weight in enumerate(weights) if weight > 0]
        if row["max_length"] is None:
            assert (
                model.encode(row["inputs"][0], convert_to_sparse_tensor=False) - weights
            ).abs().max() < 1e-5
    terms = [len(row["splade"]) for row in rows]
    return rows, {"modules": [type(module).__name__ for module in model]}, f"terms {min(terms)}…{max(terms)}"


@torch.no_grad()
def bge_m3_rows(folder: Path, limit: int) -> tuple[Rows, dict, str]:
    """Dense, sparse and multi-vector outputs, by FlagEmbedding's definitions."""
    rows, more, line = embedding_rows(folder, limit)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    heads = {
        name: {key: value.float() for key, value in torch.load(folder / f"{name}_linear.pt").items()}
        for name in ("sparse", "colbert")
    }
    for row in rows:
        hidden = model(input_ids=torch.tensor([row["ids"]])).last_hidden_state[0]
        applied = {name: hidden @ head["weight"].T + head["bias"] for name, head in heads.items()}
        weights: dict[int, torch.Tensor] = {}
        # The ids of <s>, <pad>, </s> and <unk> have no weight.
        for token, weight in zip(row["ids"], applied["sparse"].flatten().relu(), strict=True):
            if token > 3 and weight > weights.get(token, 0):
                weights[token] = weight
        row["sparse"] = [[token, numbers(weights[token])] for token in sorted(weights)]
        row["colbert"] = numbers(normalize(applied["colbert"][1:], dim=1)) if len(row["ids"]) < 40 else None
    return (
        rows,
        more,
        f"{line}, terms {min(len(row['sparse']) for row in rows)}…{max(len(row['sparse']) for row in rows)}",
    )


KINDS: dict[str, Callable[[Path, int], tuple[Rows, dict, str]]] = {
    "embedding": embedding_rows,
    "named": named_rows,
    "adapted": adapted_rows,
    "cls": cls_rows,
    "score": score_rows,
    "splade": splade_rows,
    "bge-m3": bge_m3_rows,
}
