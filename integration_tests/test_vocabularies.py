"""Real vocabularies in GGUF files give the tokens that `transformers` gives for them.

Input: LLAMA_VOCABULARIES, the folder `models` of llama.cpp's source (`make llama-test`). It has the
vocabularies of well-known models as GGUF files without tensors, texts (`.inp`), and the ids that the models'
own tokenizers give for these texts (`.out`).
"""

import os
import shutil
from pathlib import Path

import gguf
import models
import numpy as np
import pytest
from gguf_files import Recipe, write
from server import MODELS, ROOT, Server

FOLDER = Path(os.environ.get("LLAMA_VOCABULARIES") or "missing")
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="LLAMA_VOCABULARIES names no folder with llama.cpp's vocabularies (`make llama-test`)"
)

BERT = ROOT / "integration_tests/reference/fixtures/served/bert-embedding-mean"
SEPARATOR = "\n__ggml_vocab_test__\n"
# Each vocabulary with a model that gets it.
VOCABULARIES = {
    "llama-spm": MODELS / "tied-f32-bare",
    "llama-bpe": MODELS / "tied-f32-bare",
    "qwen2": MODELS / "tied-f32-bare",
    "gpt-2": MODELS / "tied-f32-bare",
    "bert-bge": BERT,
}


def with_vocabulary(base: Path, vocabulary: Path, folder: Path) -> Path:
    """A random model with the tokenizer of `vocabulary`."""
    fields = gguf.GGUFReader(vocabulary).fields
    metadata = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    rows = len(metadata["tokenizer.ggml.tokens"])
    model = Path(shutil.copytree(base, folder / "model"))
    models.edit_json(model / "config.json", vocab_size=rows)

    def with_rows(tensors):
        name = next(name for name in tensors if name.endswith(("embed_tokens.weight", "word_embeddings.weight")))
        size = [rows, tensors[name].shape[1]]
        values = np.random.default_rng(3).normal(size=size).astype(np.float32)
        tensors[name] = models.Tensor("F32", size, bytearray(values.tobytes()))

    models.edit_tensors(model, with_rows)
    recipe = Recipe(pooling=gguf.PoolingType.MEAN, metadata=metadata, without=("cls.weight", "cls.bias"))
    return write(model, folder / "file.gguf", recipe)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_vocabulary_gives_the_ids_of_its_model(name, tmp_path):
    vocabulary = FOLDER / f"ggml-vocab-{name}.gguf"
    texts = vocabulary.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    expected = [[int(id) for id in line.split()] for line in vocabulary.with_suffix(".gguf.out").read_text().splitlines()]
    file = with_vocabulary(VOCABULARIES[name], vocabulary, tmp_path)
    wrong = []
    with Server(file, "--dtype", "float32", "--pooling", "mean") as server:
        for text, ids in zip(texts, expected):
            if not text:
                continue
            answer = server.post("/tokenize", {"inputs": text, "add_special_tokens": False}).json()
            found = [token["id"] for token in answer[0]]
            if found != ids:
                wrong.append((text, found, ids))
    assert len(texts) > 30 and not wrong, wrong
