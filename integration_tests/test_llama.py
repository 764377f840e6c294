"""GGUF files give the values that llama.cpp gives them.

Input: LLAMA_PYTHON, an interpreter with llama-cpp-python (`make llama-test`). The models are random, with
rows long enough for every type of blocks; llama.cpp itself quantises them. llama.cpp rounds the activations
of products with quantised matrices to bytes in blocks; this server computes here in float32. So the values
differ by the error of these bytes, which is small next to the error of four bits.
"""

import json
import math
from functools import partial
from pathlib import Path

import gguf
import models
import numpy as np
import pytest
from gguf_files import RERANK_PROMPT, Recipe, write
from gguf_models import SERVED, nomic_moe, with_words
from llama import PYTHON, ask
from server import MODELS, Server

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="LLAMA_PYTHON names no interpreter with llama-cpp-python (`make llama-test`)"
)

Pooling = gguf.PoolingType
QUERY = "Which planet is red?"
TEXTS = [
    "Mars is red.",
    "Bread is baked from flour and water 1234.",
    "The capital of China is Beijing; is it?",
]
SPACED = [*TEXTS, "Two  spaces, two lines:\n\nand   three."]
# The largest difference of a probability, or of a value of a unit vector, by the type of the matrices. In
# F32, llama.cpp reads GELU from a table in F16; in F16, its activations are F16, too. In the other types, its
# activations are bytes: the last number of each row of `KINDS`.
EXACT = {"F32": 1e-3, "F16": 2e-3}
TYPES = (*EXACT, "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q4_K_M", "Q5_K_M", "Q6_K")
# The types whose own error is far above the tolerance, so that a wrong block would be seen.
COARSE = ("Q4_0", "Q4_1", "IQ4_NL", "Q4_K_M")


def wide(fixture: Path, folder: Path, sizes: dict[int, int], **config: object) -> Path:
    """A random model of the fixture's architecture and tokenizer. `sizes` gives the new length of each
    dimension by its old one."""
    folder.mkdir()
    for file in fixture.iterdir():
        if file.is_file() and not file.name.endswith(".safetensors"):
            (folder / file.name).write_bytes(file.read_bytes())
    models.edit_json(folder / "config.json", **config)
    generator, tensors = np.random.default_rng(5), {}
    for name, tensor in models.read_tensors(fixture / "model.safetensors").items():
        if tensor.dtype == "I64":
            continue
        shape = [sizes.get(size, size) for size in tensor.shape]
        values = generator.normal(size=shape)
        if name.endswith("bias"):
            values *= 0.1
        elif len(shape) == 1:
            values = 1 + 0.1 * values
        else:
            # An embedding that is also the output embedding gives moderate logits.
            values *= 0.1 if "embed" in name else 1.5 / math.sqrt(shape[1])
        tensors[name] = models.Tensor("F32", shape, bytearray(values.astype(np.float32).tobytes()))
    models.write_tensors(folder / "model.safetensors", tensors)
    return folder


def reranker(folder: Path) -> Path:
    sizes = {64: 256, 160: 512, 96: 256, 48: 128, 24: 64}
    config = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    return write(wide(MODELS / "tied-bf16", folder / "rerank", sizes, **config), folder / "rerank.gguf", Recipe(rerank=True))


def embedder(folder: Path) -> Path:
    config = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    model = wide(SERVED / "bert-embedding-mean", folder / "bert", {24: 256, 36: 512}, **config)
    return write(model, folder / "bert.gguf", Recipe(pooling=Pooling.MEAN, without=("cls.weight", "cls.bias")))


def cross_encoder(folder: Path) -> Path:
    fixture = SERVED / "xlm-roberta-reranker"
    old = json.loads((fixture / "config.json").read_text())
    sizes = {old["hidden_size"]: 256, old["intermediate_size"]: 512}
    config = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    return write(wide(fixture, folder / "cross", sizes, **config), folder / "cross.gguf", Recipe(pooling=Pooling.RANK))


def scores_of_a_reranker(file: Path) -> tuple[np.ndarray, np.ndarray]:
    prompts = [RERANK_PROMPT.replace("{query}", QUERY).replace("{document}", text) for text in TEXTS]
    [found] = ask(compute=[{"file": str(file), "pooling": "RANK", "width": 2, "texts": prompts, "special": False}])
    with Server(file, "--dtype", "float32") as server:
        ours = server.scores(QUERY, TEXTS, raw_scores=False)
    return np.array(ours), np.array([row["values"][0] for row in found])


def vectors_of(texts: list[str], file: Path) -> tuple[np.ndarray, np.ndarray]:
    with Server(file, "--dtype", "float32") as server:
        ours = np.array(server.post("/embed", {"inputs": texts}).json())
        rows = [[token["id"] for token in row] for row in server.post("/tokenize", {"inputs": texts}).json()]
    [found] = ask(compute=[{"file": str(file), "pooling": "MEAN", "width": ours.shape[1], "texts": texts, "special": True}])
    assert [row["ids"] for row in found] == rows
    theirs = np.array([row["values"] for row in found])
    return ours, theirs / np.linalg.norm(theirs, axis=1, keepdims=True)


def scores_of_a_cross_encoder(file: Path) -> tuple[np.ndarray, np.ndarray]:
    with Server(file, "--dtype", "float32") as server:
        ours = np.array(server.scores(QUERY, TEXTS, raw_scores=False))
        alone = [[token["id"] for token in row] for row in server.post("/tokenize", {"inputs": [QUERY, *TEXTS]}).json()]
    query, *documents = alone
    # <s> query </s></s> document </s>
    pairs = [query + [query[-1]] + document[1:] for document in documents]
    asked = {"file": str(file), "pooling": "RANK", "width": 1, "special": True}
    of_texts, of_pairs = ask(compute=[{**asked, "texts": [QUERY, *TEXTS]}, {**asked, "texts": pairs}])
    assert [row["ids"] for row in of_texts] == alone
    return ours, np.array([1 / (1 + math.exp(-row["values"][0])) for row in of_pairs])


def embedder_of(fixture: Path, folder: Path, sizes: dict[int, int], config: dict, **recipe: object) -> Path:
    return write(wide(fixture, folder / "wide", sizes, **config), folder / "wide.gguf", Recipe(pooling=Pooling.MEAN, **recipe))


def embedding_gemma(folder: Path) -> Path:
    """Without its dense modules. Two spaces, and two line breaks, are tokens that the user defined."""
    defined = {"{": "\u2581\u2581", "}": "\n\n"}
    fixture = models.copy(SERVED / "gemma3-embedding", folder)

    def define(tokenizer):
        vocabulary = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {defined.get(token, token): index for token, index in vocabulary.items()}

    models.edit_json(fixture / "tokenizer.json", define)
    config = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "query_pre_attn_scalar": 64}
    sizes = {24: 256, 40: 512, 16: 64, 32: 128}
    return embedder_of(fixture, folder, sizes, config, dense=False, user_defined=tuple(defined.values()))


def jina(folder: Path) -> Path:
    config = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    return embedder_of(with_words("jina-v2-base", folder), folder, {36: 256, 44: 512, 88: 1024}, config)


def nomic_with_experts(folder: Path) -> Path:
    config = {"n_embd": 256, "n_inner": 512, "n_head": 4}
    sizes = {24: 256, 72: 768, 14: 512, 112: 8 * 512}
    return embedder_of(nomic_moe(folder), folder, sizes, config)


KINDS = {
    "Qwen3-Reranker": (reranker, scores_of_a_reranker, 5e-2),
    "BERT": (embedder, partial(vectors_of, TEXTS), 5e-3),
    "XLM-RoBERTa cross-encoder": (cross_encoder, scores_of_a_cross_encoder, 2e-2),
    "EmbeddingGemma": (embedding_gemma, partial(vectors_of, SPACED), 1.5e-2),
    "Jina with ALiBi": (jina, partial(vectors_of, TEXTS), 1e-2),
    "Nomic with experts": (nomic_with_experts, partial(vectors_of, TEXTS), 5e-3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_type_of_blocks_gives_the_values_of_llama_cpp(kind, tmp_path):
    make, both, rounded = KINDS[kind]
    exact = make(tmp_path)
    files = {name: exact if name == "F32" else tmp_path / f"{name}.gguf" for name in TYPES}
    ask(quantise=[(str(exact), str(file), name) for name, file in files.items() if name != "F32"])
    unrounded, wrong = None, []
    for name, file in files.items():
        ours, theirs = both(file)
        unrounded = ours if unrounded is None else unrounded
        difference, error = np.abs(ours - theirs).max(), np.abs(ours - unrounded).max()
        print(f"{kind:28} {name:7} {difference:.6f}, for an error of the type of {error:.6f}", flush=True)
        if not difference <= EXACT.get(name, rounded) or name in COARSE and not difference < error / 2:
            wrong.append((name, difference, error))
    assert not wrong, wrong
    assert np.ptp(unrounded) > 20 * EXACT["F32"], "the values of the texts are nearly equal"
