"""Random models for files in GGUF: the reference's, and others of the same sizes.

Input: an empty folder. Output: the folder of a model with safetensors weights and a tokenizer, inside it.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import models
import numpy as np
from server import ROOT

FIXTURES = ROOT / "integration_tests/reference/fixtures"
SERVED = FIXTURES / "served"


def llama(folder: Path) -> Path:
    """A random Llama with a byte-level tokenizer: Qwen3's reference without the norms of queries and keys."""
    model = models.copy("tied-f32-bare", folder)
    config = {"model_type": "llama", "architectures": ["LlamaModel"], "rope_theta": 1e4}
    models.edit_json(model / "config.json", lambda content: content.pop("is_reranker", None), **config)

    def without_norms(tensors):
        for name in [name for name in tensors if name.endswith(("q_norm.weight", "k_norm.weight"))]:
            del tensors[name]

    models.edit_tensors(model, without_norms)
    return model


def qwen2(folder: Path) -> Path:
    """The same as a Qwen2, with biases for queries, keys and values."""
    model = llama(folder)
    models.edit_json(model / "config.json", model_type="qwen2", architectures=["Qwen2Model"])

    def with_biases(tensors):
        generator = np.random.default_rng(7)
        for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
            size = tensors[name].shape[0]
            bias = generator.normal(size=size).astype(np.float32).tobytes()
            tensors[name.replace(".weight", ".bias")] = models.Tensor("F32", [size], bytearray(bias))

    models.edit_tensors(model, with_biases)
    return model


def bidirectional_qwen2(folder: Path) -> Path:
    """A Qwen2 in which tokens also attend to later tokens, as gte-Qwen2."""
    model = qwen2(folder)
    models.edit_json(model / "config.json", is_causal=False)
    return model


# Wavelengths of the small heads are on both sides of, and between, the two limits.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def scaled_llama(folder: Path, **changes: float) -> Path:
    """A Llama with the rotary scaling of Llama 3."""
    model = llama(folder)
    models.edit_json(model / "config.json", rope_scaling=LLAMA3 | changes)
    return model


def bidirectional_llama(folder: Path) -> Path:
    """The same without a causal mask, as llama-nemotron-embed."""
    model = scaled_llama(folder)
    models.edit_json(model / "config.json", model_type="llama_bidirec", architectures=["LlamaBidirectionalModel"])
    return model


def eurobert(folder: Path) -> Path:
    """A EuroBERT: a Llama without a causal mask, whose queries and keys the converter does not interleave."""
    model = llama(folder)
    models.edit_json(model / "config.json", model_type="eurobert", architectures=["EuroBertModel"])
    return model


def lfm2(fixture: str, folder: Path) -> Path:
    """An LFM2 with a byte-level tokenizer."""
    model = models.copy(FIXTURES / "architectures" / fixture, folder)
    shutil.copy(models.MODELS / "tied-f32-bare/tokenizer.json", model)
    set_rows(model, json.loads((models.MODELS / "tied-f32-bare/config.json").read_text())["vocab_size"])
    return model


def with_tokenizer_of(served: str, fixture: str, folder: Path) -> Path:
    """A reference model with the part of another one's tokenizer that its vocabulary has rows for."""
    model = models.copy(FIXTURES / "architectures" / fixture, folder)
    shutil.copy(SERVED / served / "tokenizer.json", model)
    rows = json.loads((model / "config.json").read_text())["vocab_size"]

    def cut(tokenizer):
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):
            tokenizer["model"]["vocab"] = vocabulary[:rows]
        else:
            tokenizer["model"]["vocab"] = {token: index for token, index in vocabulary.items() if index < rows}
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < rows]

    models.edit_json(model / "tokenizer.json", cut)
    return model


with_words = partial(with_tokenizer_of, "bert-embedding-mean")
with_pieces = partial(with_tokenizer_of, "xlm-roberta-reranker")


def set_rows(model: Path, rows: int) -> None:
    """Gives the model a vocabulary of `rows` tokens, with random vectors."""
    models.edit_json(model / "config.json", vocab_size=rows)

    def change(tensors):
        name = next(name for name in tensors if name.endswith(("embed_tokens.weight", "word_embeddings.weight")))
        size = [rows, tensors[name].shape[1]]
        values = np.random.default_rng(11).normal(size=size).astype(np.float32)
        tensors[name] = models.Tensor("F32", size, bytearray(values.tobytes()))

    models.edit_tensors(model, change)


def cased(folder: Path) -> Path:
    """A BERT whose tokenizer leaves capitals and accents as they are."""
    model = models.copy(SERVED / "bert-embedding-mean", folder)
    models.edit_json(
        model / "tokenizer.json", lambda content: content["normalizer"].update(lowercase=False, strip_accents=False)
    )
    models.edit_json(model / "tokenizer_config.json", do_lower_case=False, strip_accents=False)
    return model


def padded(folder: Path) -> Path:
    """A BERT with more rows than tokens. The converter fills the vocabulary with `[PAD…]`."""
    model = models.copy(SERVED / "bert-embedding-mean", folder)
    set_rows(model, json.loads((model / "config.json").read_text())["vocab_size"] + 6)
    return model


def jina_v3(folder: Path) -> Path:
    """jina-embeddings-v3, whose adapters are not part of the file."""
    return with_pieces("jina-v3", folder)


def nomic_moe(folder: Path) -> Path:
    """nomic-embed-text-v2-moe. The converter drops the bias behind the experts, so it is zero here."""
    model = with_pieces("nomic-moe", folder)

    def without_bias(tensors):
        for name in [name for name in tensors if name.endswith("experts.bias")]:
            tensors[name].data[:] = bytes(len(tensors[name].data))

    models.edit_tensors(model, without_bias)
    return model


def embedding_gemma(folder: Path) -> Path:
    """EmbeddingGemma with two dense modules. llama.cpp divides by the root of the size of a head."""
    model = models.copy(SERVED / "gemma3-embedding", folder)
    models.edit_json(model / "config.json", lambda content: content.update(query_pre_attn_scalar=content["head_dim"]))
    return model


def gemma(name: str, folder: Path) -> Path:
    """A random Gemma with EmbeddingGemma's tokenizer. llama.cpp divides by the root of the size of a head."""
    model = models.copy(FIXTURES / "architectures" / name, folder)
    models.edit_json(model / "config.json", lambda content: content.update(query_pre_attn_scalar=content["head_dim"]))
    shutil.copy(SERVED / "gemma3-embedding/tokenizer.json", model)
    set_rows(model, len(json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]))
    return model
