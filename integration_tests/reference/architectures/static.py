"""Writes the static embedding models among fixtures/served/: folders as saved by model2vec and by
sentence-transformers, with the two libraries' own vectors.

Run `python -m architectures.static [NAME…]` in the folder above; without names, all are made. It needs
model2vec in addition to ../requirements.txt. served.py describes the folders' neighbours.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import model2vec
import numpy
import sentence_transformers
import torch
from cases import MARS, MIXED, PLANET
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from .fixture import FOLDER as ARCHITECTURES
from .fixture import folder_bytes, write_json
from .served_expected import LONG, TEXTS
from .served_tokenizers import KINDS as TOKENIZERS

FOLDER = ARCHITECTURES.parent / "served"
# Characters that no vocabulary here has, alone and between words, and a text without tokens.
ODD = [["🦄🦄"], ["red 🦄 planet"], [" "], ["x" * 150], [f"{PLANET} {MARS} {MIXED}"]]
Numbers = numpy.ndarray


@dataclass(frozen=True)
class Static:
    """A folder: its tokenizer, the width of its vectors, and how they are stored."""

    tokenizer: str
    width: int
    seed: int
    dtype: str = "float32"
    # Rows of the table, if tokens share rows, each with a factor of its own.
    rows: int | None = None
    # The longest input in tokens; of a folder of model2vec, 512 by default.
    limit: int | None = None
    # Prompts make it a folder of sentence-transformers, whose older versions have a folder for the module.
    prompts: dict[str, str] | None = None
    path: str = ""


FIXTURES = {
    "potion-like": Static("bert", 19, 301),
    "potion-quantised": Static("xlm-roberta", 33, 302, "float16", rows=57, limit=23),
    "potion-bytes": Static("bert", 8, 303, "int8", limit=40),
    "static-embedding": Static("bert", 31, 304, limit=29, prompts={"query": "query: "}),
    "static-unlimited": Static("roberta", 7, 305, prompts={}, path="0_StaticEmbedding"),
}


def random(seed: int, *shape: int) -> Numbers:
    return numpy.random.Generator(numpy.random.PCG64(seed)).standard_normal(shape, dtype=numpy.float32)


def bare_tokenizer(name: str) -> Tokenizer:
    """A tokenizer of ../served_tokenizers.py, which adds special tokens if it is asked to."""
    return TOKENIZERS[name]().tokenizer


def save_model2vec(folder: Path, static: Static) -> Callable[[str, int | None, str], tuple[list[int], Numbers]]:
    """Saves a folder of model2vec. Gives its ids and vector of a text, at a longest input."""
    tokenizer = bare_tokenizer(static.tokenizer)
    size = tokenizer.get_vocab_size()
    table = random(static.seed, static.rows or size, static.width)
    mapping = weights = None
    if static.rows:
        generator = numpy.random.Generator(numpy.random.PCG64(static.seed + 1000))
        mapping, weights = generator.integers(0, static.rows, size), generator.uniform(0.2, 2.0, size)
    stored = numpy.clip(numpy.rint(table * 40), -127, 127) if static.dtype == "int8" else table
    stored = stored.astype(static.dtype)
    options = {} if static.limit is None else {"max_length": static.limit}
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": static.width}
    StaticModel(stored, tokenizer, config, True, weights=weights, token_mapping=mapping, **options).save_pretrained(
        folder
    )
    (folder / "README.md").unlink(missing_ok=True)
    loaded = StaticModel.from_pretrained(folder)
    # The library computes in the stored type. Its float32 arithmetic on the same values is the reference.
    widened = StaticModel.from_pretrained(folder)
    widened.embedding = widened.embedding.astype(numpy.float32)
    blank = len(loaded.tokens)

    def encode(text: str, limit: int | None, prompt: str) -> tuple[list[int], Numbers]:
        limit = limit or loaded.max_length
        widened._set_max_length_in_tokenizer(limit)
        ids = widened.tokenize([(prompt + text)[: limit * widened.median_token_length]])[0]
        vector = widened.encode([prompt + text], max_length=limit, normalize=False)[0]
        theirs = loaded.encode([prompt + text], max_length=limit, normalize=False)[0]
        error = numpy.abs(vector - theirs.astype(numpy.float64)).max()
        assert error <= numpy.abs(vector).max() * (2**-11 if static.dtype == "float16" else 1e-6), error
        return ids or [blank], vector

    return encode


def save_sentence_transformers(
    folder: Path, static: Static
) -> Callable[[str, int | None, str], tuple[list[int], Numbers]]:
    """Saves a folder of sentence-transformers. Gives its ids and vector of a text."""
    tokenizer = bare_tokenizer(static.tokenizer)
    if static.limit:
        tokenizer.enable_truncation(static.limit)
    table = random(static.seed, tokenizer.get_vocab_size(), static.width)
    module = StaticEmbedding(tokenizer, embedding_weights=table)
    SentenceTransformer(modules=[module], prompts=static.prompts, device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    if static.path:
        (folder / static.path).mkdir()
        for file in ("model.safetensors", "tokenizer.json"):
            (folder / file).rename(folder / static.path / file)
        modules = json.loads((folder / "modules.json").read_text())
        modules[0] |= {"path": static.path, "type": "sentence_transformers.models.StaticEmbedding"}
        normalize = {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}
        write_json(folder / "modules.json", [*modules, normalize])
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)

    def encode(text: str, limit: int | None, prompt: str) -> tuple[list[int], Numbers]:
        if limit:
            model[0].tokenizer.enable_truncation(limit)
        elif static.limit:
            model[0].tokenizer.enable_truncation(static.limit)
        else:
            model[0].tokenizer.no_truncation()
        ids = model[0].preprocess([prompt + text])["input_ids"].tolist()
        return ids or [len(table)], model[0](model[0].preprocess([prompt + text]))["sentence_embedding"][0].numpy()

    return encode


def numbers(vector: Numbers) -> list[float]:
    return [float(f"{value:.7g}") for value in vector]


def write(name: str) -> str:
    """Makes a folder and its answers, replacing the old ones. Returns a line for the summary."""
    static = FIXTURES[name]
    by_library = static.prompts is None
    source = (
        f"model2vec {model2vec.__version__}"
        if by_library
        else f"sentence-transformers {sentence_transformers.__version__}"
    )
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary) / name
        encode = (save_model2vec if by_library else save_sentence_transformers)(fresh, static)
        prompts = static.prompts or {}
        cases = [(text, None, None) for [text] in TEXTS + ODD]
        cases += [(MARS, 9, None), (LONG, 2, None)]
        cases += [(text, None, prompt) for prompt in prompts for [text] in TEXTS[:3]]
        for text, limit, prompt in cases:
            ids, vector = encode(text, limit, prompts.get(prompt, ""))
            assert numpy.isfinite(vector).all(), text
            length = numpy.linalg.norm(vector)
            row = {"inputs": [text], "max_length": limit, "direction": "right"}
            row |= {"prompt_name": prompt} if prompt else {}
            row |= {"ids": ids, "types": [0] * len(ids)}
            rows.append(row | {"raw": numbers(vector), "normalized": numbers(vector / (length or 1))})
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        shutil.move(fresh, FOLDER / name)
    # Without a limit, the server takes its own default for a batch.
    longest = static.limit or (512 if by_library else 16384)
    head = {"source": source, "kind": "embedding", "max_length": longest, "prompts": prompts}
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    text = json.dumps(head, ensure_ascii=False)[:-1] + f', "rows": [\n{lines}\n]}}\n'
    (FOLDER / f"{name}.expected.json").write_text(text, encoding="utf-8")
    empty = sum(not any(row["raw"]) for row in rows)
    return f"{name:24} {folder_bytes(FOLDER / name) / 1000:6.1f} KB  {len(rows)} rows, {empty} without tokens"


@torch.no_grad()
def main() -> None:
    """Makes the named fixtures and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FIXTURES, []], help="fixtures (default: all)")
    for name in parser.parse_args().names or list(FIXTURES):
        print(write(name), flush=True)


if __name__ == "__main__":
    main()
