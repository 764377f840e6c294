"""sentence-transformers' outputs for the embedding models, in float32, one text at a time.

Input: model folders and the cases. Output: rows for expected/<name>.json (see README.md). Needs torch and
sentence-transformers.
"""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import Tokenizer

from embedding_cases import CASES, DIMENSIONS_OF, LIMIT_OFFSETS, PROMPTS, TOKENS_OF
from tokenizer import SPECIAL

# Further pooling modes to compute for a model, for tests of `--pooling`.
OTHER_POOLS = {"embedding-last": ("mean", "cls")}


def text_of(case: dict) -> str:
    """The text with its prompt, with repetitions written out."""
    text = case["text"]
    if isinstance(text, dict):
        text = text["repeat"] * text["times"]
    return PROMPTS.get(case["prompt_name"], "") + text


def resolved_cases(tokenizer_json: Path) -> list[dict]:
    """The cases, with the limits set that depend on a text's length."""
    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    return [
        case | {"max_length": len(tokenizer.encode(text_of(case)).ids) + LIMIT_OFFSETS[case["name"]]}
        if case["name"] in LIMIT_OFFSETS
        else case
        for case in CASES
    ]


class Reference:
    """A model's pipeline, with and without the last module, which scales to length one."""

    def __init__(self, folder: Path):
        self.name = folder.name
        self.normalizing = SentenceTransformer(
            str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32}
        )
        modules = list(self.normalizing)
        assert isinstance(modules[-1], Normalize) and self.normalizing.prompts == PROMPTS
        self.raw = SentenceTransformer(modules=modules[:-1], device="cpu", prompts=PROMPTS)
        width = modules[1].get_embedding_dimension()
        self.pooled = {
            mode: SentenceTransformer(modules=[modules[0], Pooling(width, mode), *modules[2:-1]], device="cpu")
            for mode in OTHER_POOLS.get(self.name, ())
        }
        self.tokenizer = self.normalizing.tokenizer
        self.limit = self.normalizing.max_seq_length

    def ids(self, case: dict) -> list[int]:
        """The ids of prompt and text as one string, in which special tokens are text, and of the end token.
        Only the text is truncated.

        They equal sentence-transformers' ids, unless the text contains special tokens or
        sentence-transformers would cut the prompt.
        """
        text, prompt, direction = text_of(case), PROMPTS.get(case["prompt_name"], ""), case["truncation_direction"]
        limit = case["max_length"] or self.limit
        encoding = self.tokenizer(text, split_special_tokens=True, return_offsets_mapping=True)
        ends = [end for _, end in encoding["offset_mapping"][:-1]]
        first = next((index for index, end in enumerate(ends) if end > len(prompt)), len(ends))
        excess = max(len(ends) + 1 - limit, 0)
        assert first + excess <= len(ends), case["name"]
        cut = range(len(ends) - excess, len(ends)) if direction == "right" else range(first, first + excess)
        ours = [token for index, token in enumerate(encoding["input_ids"]) if index not in cut]
        self.tokenizer.truncation_side = direction
        self.raw[0].max_seq_length = limit
        theirs = self.raw.preprocess([text])["input_ids"][0].tolist()
        differs = any(token in text for token in SPECIAL) or (prompt and excess and direction == "left")
        assert (ours != theirs) if differs else (ours == theirs), case["name"]
        assert len(ours) <= limit and ours[-1] == theirs[-1]
        return ours

    @torch.no_grad()
    def row(self, case: dict) -> dict:
        """All stored values of a case."""
        ids = self.ids(case)
        raw = self.run(self.raw, ids)
        row = {"name": case["name"], "ids": ids, "raw": numbers(raw["sentence_embedding"])}
        row["normalized"] = numbers(self.run(self.normalizing, ids)["sentence_embedding"])
        row |= {mode: numbers(self.run(model, ids)["sentence_embedding"]) for mode, model in self.pooled.items()}
        if case["name"] in TOKENS_OF:
            row["tokens"] = [numbers(token) for token in raw["token_embeddings"]]
        if case["name"] in DIMENSIONS_OF:
            row["dimensions"] = {count: self.first(case, count) for count in (1, 7, len(row["raw"]) - 1, len(row["raw"]))}
        return row

    @staticmethod
    def run(model: SentenceTransformer, ids: list[int]) -> dict:
        """The features of one text after all modules of a pipeline."""
        tokens = torch.tensor([ids])
        features = model({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
        return {key: value[0] for key, value in features.items() if key.endswith(("_embedding", "_embeddings"))}

    def first(self, case: dict, count: int) -> list[float]:
        """The first `count` values of the vector, as sentence-transformers itself shortens it."""
        vector = self.normalizing.encode(text_of(case), truncate_dim=count, normalize_embeddings=True, convert_to_tensor=True)
        return numbers(vector)


def numbers(vector: torch.Tensor) -> list[float]:
    """The values with nine significant digits, which identify a float32."""
    assert vector.dtype == torch.float32 and vector.dim() == 1
    return [float(f"{value:.9g}") for value in vector.tolist()]


def expected_vectors(folder: Path, cases: list[dict]) -> list[dict]:
    """The rows of a model. Different texts must have different vectors."""
    reference = Reference(folder)
    rows = [reference.row(case) for case in cases if folder.name in (case["models"] or [folder.name])]
    unlike = {tuple(row["ids"]): row["normalized"] for row in rows}
    vectors = torch.tensor(list(unlike.values()))
    cosines = (vectors @ vectors.T)[~torch.eye(len(vectors), dtype=torch.bool)]
    print(f"{folder.name}: {len(rows)} cases, {len(vectors)} different, cosine mean {cosines.mean():.3f} max {cosines.max():.5f}")
    assert cosines.max() < 0.995
    return rows
