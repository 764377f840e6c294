"""Real vocabularies in GGUF files give the tokens that `transformers` gives for them.

Input: LLAMA_VOCABULARIES, the folder `models` of llama.cpp's source (`make llama-test`). It has the
vocabularies of well-known models as GGUF files without tensors, texts (`.inp`), and the ids that the models'
own tokenizers give for these texts (`.out`).
"""

import os
from pathlib import Path

import gguf
import models
import pytest
from gguf_files import Recipe, write
from gguf_models import SERVED, set_rows
from llama import PYTHON, ask
from server import MODELS, Server

FOLDER = Path(os.environ.get("LLAMA_VOCABULARIES") or "missing")
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="LLAMA_VOCABULARIES names no folder with llama.cpp's vocabularies (`make llama-test`)"
)

SEPARATOR = "\n__ggml_vocab_test__\n"
# Each vocabulary with a model that gets it.
VOCABULARIES = {
    "llama-spm": MODELS / "tied-f32-bare",
    "llama-bpe": MODELS / "tied-f32-bare",
    "qwen2": MODELS / "tied-f32-bare",
    "gpt-2": MODELS / "tied-f32-bare",
    "phi-3": MODELS / "tied-f32-bare",
    "bert-bge": SERVED / "bert-embedding-mean",
}
# For the normalisation of characters, which XLM-RoBERTa's vocabulary contains as a table.
TEXTS = [
    "Ｆｕｌｌ width ① ﬁ ligature",
    "naïve  cafe\u0301 Ångström",
    "日本語のテキスト、半角ｶﾅ",
    "línea\u00a0nbsp\u200bzwsp",
    "a\tb\n\nc",
    "   lead and trail   ",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "🙂🙃 emoji 👨\u200d👩\u200d👧",
    "½ ™ … № ㎏ x²+y²=z²",
]


def with_vocabulary(base: Path, vocabulary: Path, folder: Path) -> Path:
    """A random model with the tokenizer of `vocabulary`."""
    fields = gguf.GGUFReader(vocabulary).fields
    metadata = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    model = models.copy(base, folder)
    set_rows(model, len(metadata["tokenizer.ggml.tokens"]))
    head = [f"{name}.{part}" for name in ("cls", "cls.output") for part in ("weight", "bias")]
    recipe = Recipe(pooling=gguf.PoolingType.MEAN, metadata=metadata, without=tuple(head))
    return write(model, folder / "file.gguf", recipe)


def ids_of(server: Server, text: str) -> list[int]:
    answer = server.post("/tokenize", {"inputs": text, "add_special_tokens": False})
    return [token["id"] for token in answer.json()[0]]


def texts_of(vocabulary: Path) -> list[str]:
    return vocabulary.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_vocabulary_gives_the_ids_of_its_model(name, tmp_path):
    vocabulary = FOLDER / f"ggml-vocab-{name}.gguf"
    texts = texts_of(vocabulary)
    expected = [[int(id) for id in line.split()] for line in vocabulary.with_suffix(".gguf.out").read_text().splitlines()]
    file = with_vocabulary(VOCABULARIES[name], vocabulary, tmp_path)
    wrong = []
    with Server(file, "--dtype", "float32", "--pooling", "mean") as server:
        for text, ids in zip(texts, expected):
            if not text:
                continue
            found = ids_of(server, text)
            if found != ids:
                wrong.append((text, found, ids))
    assert len(texts) > 30 and not wrong, wrong


@pytest.mark.skipif(not PYTHON, reason="LLAMA_PYTHON names no interpreter with llama-cpp-python (`make llama-test`)")
def test_xlm_robertas_vocabulary_gives_the_ids_of_llama_cpp(tmp_path):
    """Its file comes without expected ids."""
    vocabulary = FOLDER / "ggml-vocab-nomic-bert-moe.gguf"
    texts = [text for text in texts_of(FOLDER / "ggml-vocab-bert-bge.gguf") + TEXTS if text]
    file = with_vocabulary(SERVED / "xlm-roberta-reranker", vocabulary, tmp_path)
    with Server(file, "--dtype", "float32") as server:
        found = [ids_of(server, text) for text in texts]
    [expected] = ask(tokenize=[{"file": str(vocabulary), "texts": texts}])
    wrong = [row for row in zip(texts, found, expected) if row[1] != row[2]]
    assert len(texts) > 50 and not wrong, wrong
