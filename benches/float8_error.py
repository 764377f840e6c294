#!/usr/bin/env python3
"""Computes the loss in ranking of products in FP8, next to bfloat16 and int8, on trained models.

usage: float8_error.py --trained FOLDER --work FOLDER --model NAME --questions COUNT [--collection NAME]

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

from quality import COLLECTIONS, MEASURE, sample  # noqa: E402
from text_embeddings_router.evaluation.evaluate import interval, values  # noqa: E402
from text_embeddings_router.evaluation.questions import Questions  # noqa: E402

PROMPT = 'Query: {}\nDocument: {}\nDoes the document answer the query? Answer "yes" or "no".\nAnswer:'
LONGEST = 512
Rounding = Callable[[Tensor], Tensor]
# The largest number of e4m3, and of a signed byte.
FLOAT8_MAX, INT8_MAX = 448.0, 127.0


def scaled(rows: Tensor, largest: float, rounded: Rounding) -> Tensor:
    """The rows, each rounded after its largest value was scaled to `largest`."""
    scale = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / largest
    return rounded(rows / scale) * scale


ARITHMETIC: dict[str, Rounding] = {
    "float32": lambda rows: rows,
    "bfloat16": lambda rows: rows.bfloat16().float(),
    "int8": lambda rows: scaled(rows, INT8_MAX, torch.round),
    "FP8": lambda rows: scaled(rows, FLOAT8_MAX, lambda values: values.to(torch.float8_e4m3fn).float()),
}


class Rounded(nn.Module):
    """A linear layer whose inputs and weights are rounded."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.exact, self.bias = layer.weight.data, layer.bias

    def use(self, rounded: Rounding) -> None:
        self.weight, self.rounded = rounded(self.exact), rounded

    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.linear(self.rounded(rows), self.weight, self.bias)


def replace_layers(module: nn.Module) -> None:
    """Makes all linear layers `Rounded`, except the head, which this server computes exactly."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and name != "lm_head":
            setattr(module, name, Rounded(child))
        else:
            replace_layers(child)


class Embedder:
    """Scores are cosines."""

    def __init__(self, path: Path):
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(path), device="cpu", model_kwargs={"dtype": torch.float32})
        self.model.max_seq_length = LONGEST

    def scores(self, query: str, texts: list[str]) -> list[float]:
        query_vector, *vectors = (self.model.encode(text, normalize_embeddings=True) for text in (query, *texts))
        return [float(query_vector @ vector) for vector in vectors]


class Reranker:
    """Scores are differences of the logits of "yes" and "no"."""

    def __init__(self, path: Path):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        place = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
        self.tokenizer = AutoTokenizer.from_pretrained(**place)
        self.model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval()
        self.yes, self.no = (self.tokenizer.encode(answer, add_special_tokens=False)[0] for answer in ("yes", "no"))

    def scores(self, query: str, texts: list[str]) -> list[float]:
        prompts = [self.tokenizer(PROMPT.format(query, text), return_tensors="pt").input_ids for text in texts]
        logits = [self.model(prompt, logits_to_keep=1).logits[0, -1] for prompt in prompts]
        return [float(row[self.yes] - row[self.no]) for row in logits]


def measured(scorer: Embedder | Reranker, rounded: Rounding, questions: Questions) -> dict[str, dict[str, float]]:
    """The scores by question and document."""
    for module in scorer.model.modules():
        if isinstance(module, Rounded):
            module.use(rounded)
    return {
        query: dict(zip(names, scorer.scores(questions.queries[query], [questions.documents[name] for name in names])))
        for query, names in questions.candidates.items()
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", required=True, help="minilm, mpnet, or a causal model's GGUF file")
    parser.add_argument("--questions", type=int, required=True)
    parser.add_argument("--collection", choices=COLLECTIONS, default="HotpotQA")
    arguments = parser.parse_args()
    print(f"| model | arithmetic | questions | {MEASURE} | change against float32 | median, worst difference |")
    print("|---|---|--:|--:|--:|--:|")
    path = arguments.trained / arguments.model
    scorer = (Reranker if path.suffix == ".gguf" else Embedder)(path)
    replace_layers(scorer.model)
    questions = sample(arguments.trained, arguments.work, arguments.collection, arguments.questions)
    exact: dict[str, dict[str, float]] = {}
    for arithmetic, rounded in ARITHMETIC.items():
        found = measured(scorer, rounded, questions)
        exact = exact or found
        quality, base = (values(questions, scores, (MEASURE,))[MEASURE] for scores in (found, exact))
        low, high = interval(quality - base)
        pairs = [(score, exact[query][document]) for query, row in found.items() for document, score in row.items()]
        differences = [abs(score - other) for score, other in pairs]
        change = f"{(quality - base).mean():+.4f} ({low:+.4f} to {high:+.4f})"
        worst = f"{np.median(differences):.4f}, {max(differences):.4f}"
        print(f"| {arguments.model} | {arithmetic} | {len(quality)} | {quality.mean():.3f} | {change} | {worst} |", flush=True)


if __name__ == "__main__":
    main()
