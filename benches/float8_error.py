#!/usr/bin/env python3
"""Computes the loss in ranking of products in FP8, next to bfloat16 and int8, on trained models.

usage: float8_error.py --trained FOLDER --work FOLDER [--model NAME]

Input: the models and questions that `trained_files.py` unpacks. Output: a table. The inputs and weights of
each linear layer are rounded to the values that the arithmetic stores, and the product is taken in float32.
FP8 (e4m3) and int8 have a scale per token and per output channel. Needs PyTorch, sentence-transformers and
the packages of the extra `[eval]`.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from quality import COLLECTIONS, MEASURE, load  # noqa: E402
from text_embeddings_router.evaluation.evaluate import interval, values  # noqa: E402
from text_embeddings_router.evaluation.questions import Questions  # noqa: E402

QUESTIONS = {"qwen2.5-coder.gguf": 6, "mpnet": 20, "minilm": 60}
PROMPT = 'Query: {}\nDocument: {}\nDoes the document answer the query? Answer "yes" or "no".\nAnswer:'
LONGEST = 512
# The largest number of e4m3, and of a signed byte.
FLOAT8_MAX, INT8_MAX = 448.0, 127.0


def scaled(rows: Tensor, largest: float, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """The rows, each rounded after its largest value was scaled to `largest`."""
    scale = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / largest
    return rounded(rows / scale) * scale


ARITHMETIC: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda rows: rows,
    "bfloat16": lambda rows: rows.bfloat16().float(),
    "int8": lambda rows: scaled(rows, INT8_MAX, torch.round),
    "FP8": lambda rows: scaled(rows, FLOAT8_MAX, lambda values: values.to(torch.float8_e4m3fn).float()),
}


class Rounded(nn.Module):
    """A linear layer whose inputs and weights are rounded."""

    def __init__(self, layer: nn.Linear, rounded: Callable[[Tensor], Tensor]):
        super().__init__()
        self.weight, self.bias, self.rounded = rounded(layer.weight.data), layer.bias, rounded

    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.linear(self.rounded(rows), self.weight, self.bias)


def round_layers(module: nn.Module, rounded: Callable[[Tensor], Tensor]) -> None:
    for name, child in module.named_children():
        if name == "lm_head":
            continue
        if isinstance(child, nn.Linear):
            setattr(module, name, Rounded(child, rounded))
        else:
            round_layers(child, rounded)


def embedder(folder: Path, rounded: Callable[[Tensor], Tensor]) -> Callable[[str, list[str]], list[float]]:
    """Cosines of a query and documents. A text that several questions share is embedded once."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    model.max_seq_length = LONGEST
    round_layers(model[0], rounded)
    vectors: dict[str, np.ndarray] = {}

    def cosines(query: str, texts: list[str]) -> list[float]:
        for text in (query, *texts):
            if text not in vectors:
                vectors[text] = model.encode(text, normalize_embeddings=True)
        return [float(vectors[query] @ vectors[text]) for text in texts]

    return cosines


def reranker(file: Path, rounded: Callable[[Tensor], Tensor]) -> Callable[[str, list[str]], list[float]]:
    """Differences of the logits of "yes" and "no"."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    round_layers(model, rounded)
    yes, no = (tokenizer.encode(answer, add_special_tokens=False)[0] for answer in ("yes", "no"))

    def differences(query: str, texts: list[str]) -> list[float]:
        found = []
        for text in texts:
            ids = tokenizer(PROMPT.format(query, text), return_tensors="pt").input_ids
            logits = model(ids, logits_to_keep=1).logits[0, -1]
            found.append(float(logits[yes] - logits[no]))
        return found

    return differences


@torch.no_grad()
def measured(path: Path, arithmetic: str, asked: dict[str, Questions]) -> dict[str, dict[str, dict[str, float]]]:
    """The scores by collection, question and document."""
    start = reranker if path.suffix == ".gguf" else embedder
    score = start(path, ARITHMETIC[arithmetic])
    scores = {}
    for collection, questions in asked.items():
        print(f"{path.name}, {arithmetic}, {collection}", file=sys.stderr, flush=True)
        scores[collection] = {
            query: dict(zip(names, score(questions.queries[query], [questions.documents[name] for name in names])))
            for query, names in questions.candidates.items()
        }
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", choices=QUESTIONS, action="append", help="measure only this model")
    arguments = parser.parse_args()
    print(f"| model | collection | arithmetic | {MEASURE} | change against float32 | median, worst difference |")
    print("|---|---|---|--:|--:|--:|")
    for name in arguments.model or QUESTIONS:
        asked = {one: load(arguments.trained, arguments.work, one, QUESTIONS[name]) for one in COLLECTIONS[:2]}
        exact: dict[str, dict[str, dict[str, float]]] = {}
        for arithmetic in ARITHMETIC:
            found = measured(arguments.trained / name, arithmetic, asked)
            exact = exact or found
            for collection, questions in asked.items():
                quality, base = (values(questions, one[collection], (MEASURE,))[MEASURE] for one in (found, exact))
                low, high = interval(quality - base)
                differences = [
                    abs(score - exact[collection][query][document])
                    for query, row in found[collection].items()
                    for document, score in row.items()
                ]
                change = f"{(quality - base).mean():+.4f} ({low:+.4f} to {high:+.4f})"
                worst = f"{np.median(differences):.4f}, {max(differences):.4f}"
                print(f"| {name} | {collection} | {arithmetic} | {quality.mean():.3f} | {change} | {worst} |", flush=True)


if __name__ == "__main__":
    main()
