"""Qwen2, Qwen3, Mistral, Llama and Gemma as embedding models and classifiers.

Some are causal, some bidirectional; some have sliding windows or scaled rotations.
"""

from pathlib import Path

import torch
from transformers import (
    Gemma2Model,
    Gemma3TextModel,
    GemmaModel,
    LlamaForSequenceClassification,
    LlamaModel,
    MistralForSequenceClassification,
    MistralModel,
    Qwen2ForSequenceClassification,
    Qwen2Model,
    Qwen3Model,
)

from .fixture import Fixture, Tensors, load_tensors
from .native import native, pretrained

SIZES = {
    "vocab_size": 101,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
SMALL = SIZES | {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Settings of config.json as transformers 4 wrote them.
OLD = {
    "torch_dtype": "float32",
    "transformers_version": "4.41.2",
    "rope_theta": 10000.0,
    "rope_scaling": None,
}
OLD_DROPPED = ("rope_parameters", "layer_types")
HEADS = {"score": 1.5}
# The length of the original training: longer texts have scaled rotations.
ORIGINAL = 32


def unscaled_embeddings(hidden: int) -> dict[str, float]:
    """Factors of the random weights for Gemma, which multiplies embeddings by √hidden. The embedding's factor
    undoes that: random layers would hardly change such large states."""
    return {"embed_tokens": hidden**-0.5}


def prefixed(name: str) -> str:
    """The name in the checkpoint of a causal model."""
    return f"model.{name}"


def llama_rope(seed: int, scaling: dict, dtype: torch.dtype = torch.float16, **config: object) -> Fixture:
    """A Llama with a scaled rotation, given as `rope_scaling` in config.json."""
    parameters = {"rope_theta": 10000.0} | scaling
    return native(
        LlamaModel,
        SIZES | {"rope_parameters": parameters} | config,
        seed,
        dtype=dtype,
        causal=True,
        gain=1.6,
        edit=OLD | {"rope_scaling": scaling},
        drop=OLD_DROPPED,
    )


def average_score(folder: Path, found: Tensors) -> Tensors:
    """The head of NVIDIA's bidirectional Llama: mean, matrix, division by the temperature."""
    return {"logits": found["hidden"].mean(dim=0) @ load_tensors(folder)["score.weight"].T / 0.5}


def projected(folder: Path, found: Tensors) -> Tensors:
    """voyage-4-nano: the mean of the hidden states, projected by a matrix at the top of the checkpoint."""
    return {"embedding": found["hidden"].mean(dim=0) @ load_tensors(folder)["linear.weight"].T}


QWEN2 = SIZES | {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
QWEN2_OLD = OLD | {
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "max_window_layers": 28,
    "use_sliding_window": False,
}
QWEN3 = SMALL | {"head_dim": 10, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
MISTRAL = SIZES | {"rms_norm_eps": 1e-5, "rope_parameters": DEFAULT_ROPE}
LLAMA = SMALL | {"rms_norm_eps": 1e-5, "rope_parameters": DEFAULT_ROPE}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
GEMMA = SMALL | {
    "num_key_value_heads": 1,
    "num_attention_heads": 2,
    "head_dim": 24,
    "tie_word_embeddings": True,
    "rope_parameters": DEFAULT_ROPE,
}
GEMMA2 = GEMMA | {
    "num_hidden_layers": 3,
    "query_pre_attn_scalar": 20,
    "sliding_window": 20,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3 = {key: value for key, value in GEMMA.items() if key != "rope_parameters"} | {
    "num_hidden_layers": 3,
    "query_pre_attn_scalar": 20,
    "sliding_window": 20,
    "sliding_window_pattern": 3,
}
GEMMA3_OLD = {
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "torch_dtype": "float32",
    "transformers_version": "4.57.0.dev0",
}
BIDIREC = {"model_type": "llama_bidirec", "pooling": "avg", "temperature": 0.5}

FIXTURES = {
    "qwen2-embedding": lambda: native(
        Qwen2Model,
        QWEN2,
        61,
        dtype=torch.bfloat16,
        rename=prefixed,
        extra={"lm_head.weight": (101, 36)},
        causal=True,
        edit=QWEN2_OLD | {"architectures": ["Qwen2ForCausalLM"]},
        drop=OLD_DROPPED,
        reader=pretrained(Qwen2Model, ignored=("lm_head",)),
    ),
    "qwen2-bidirectional": lambda: native(
        Qwen2Model,
        QWEN2,
        62,
        gain=1.5,
        dtype=torch.float16,
        edit=QWEN2_OLD | {"is_causal": False},
        drop=OLD_DROPPED,
    ),
    "qwen2-sliding": lambda: native(
        Qwen2Model,
        QWEN2 | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        63,
        gain=1.5,
        dtype=torch.bfloat16,
        causal=True,
    ),
    "qwen2-classifier-2": lambda: native(
        Qwen2ForSequenceClassification,
        SMALL | {"rope_parameters": QWEN2["rope_parameters"], "pad_token_id": 0},
        64,
        labels=["0", "1"],
        scales=HEADS,
        causal=True,
    ),
    "qwen3-bidirectional": lambda: native(
        Qwen3Model,
        QWEN3,
        65,
        dtype=torch.float16,
        edit={"use_bidirectional_attention": True},
        reader=pretrained(Qwen3Model, is_causal=False),
    ),
    "qwen3-projected": lambda: native(
        Qwen3Model,
        QWEN3,
        66,
        rename=prefixed,
        extra={"linear.weight": (20, 32)},
        edit={
            "use_bidirectional_attention": True,
            "num_labels": 20,
            "rope_theta": 1000000.0,
            "rope_scaling": None,
        },
        drop=OLD_DROPPED,
        reader=pretrained(Qwen3Model, ignored=("linear.weight",), after=projected, is_causal=False),
    ),
    "qwen3-sliding": lambda: native(
        Qwen3Model,
        QWEN3
        | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1, "num_hidden_layers": 3},
        67,
        dtype=torch.bfloat16,
        causal=True,
    ),
    "mistral-embedding": lambda: native(
        MistralModel,
        MISTRAL | {"sliding_window": 20},
        68,
        gain=1.5,
        dtype=torch.float16,
        causal=True,
        edit=OLD,
        drop=OLD_DROPPED,
    ),
    "mistral-classifier-1": lambda: native(
        MistralForSequenceClassification,
        MISTRAL | {"num_hidden_layers": 2, "sliding_window": None, "head_dim": 8, "pad_token_id": 0},
        69,
        labels=["LABEL_0"],
        scales=HEADS,
        causal=True,
    ),
    "llama-embedding": lambda: native(LlamaModel, LLAMA, 70, causal=True, edit=OLD, drop=OLD_DROPPED),
    "llama-llama3": lambda: llama_rope(71, LLAMA3, max_position_embeddings=256),
    "llama-linear": lambda: llama_rope(72, {"type": "linear", "factor": 4.0}, torch.bfloat16),
    "llama-dynamic": lambda: llama_rope(
        73, {"type": "dynamic", "factor": 4.0}, max_position_embeddings=ORIGINAL
    ),
    "llama-yarn": lambda: llama_rope(
        74, {"rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": ORIGINAL}, torch.bfloat16
    ),
    "llama-longrope": lambda: llama_rope(
        75,
        {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.0],
            "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0],
        },
        original_max_position_embeddings=ORIGINAL,
    ),
    "llama-bidirectional": lambda: native(
        LlamaModel,
        LLAMA | {"rope_parameters": {"rope_theta": 500000.0} | LLAMA3},
        76,
        gain=1.6,
        edit=BIDIREC
        | {"architectures": ["LlamaBidirectionalModel"], "rope_theta": 500000.0, "rope_scaling": LLAMA3},
        drop=OLD_DROPPED,
        reader=pretrained(LlamaModel, is_causal=False),
    ),
    "llama-bidirectional-classifier": lambda: native(
        LlamaForSequenceClassification,
        LLAMA | {"num_hidden_layers": 3},
        77,
        gain=1.6,
        dtype=torch.bfloat16,
        labels=["LABEL_0"],
        edit=BIDIREC
        | {
            "architectures": ["LlamaBidirectionalForSequenceClassification"],
            "rope_theta": 10000.0,
            "rope_scaling": None,
        },
        drop=OLD_DROPPED,
        reader=pretrained(LlamaModel, ignored=("score",), after=average_score, is_causal=False),
    ),
    "gemma-embedding": lambda: native(
        GemmaModel,
        GEMMA,
        78,
        centre=0.0,
        scales=unscaled_embeddings(32),
        causal=True,
        dtype=torch.bfloat16,
        edit=OLD | {"hidden_act": "gelu", "hidden_activation": None},
        drop=OLD_DROPPED,
    ),
    "gemma2-embedding": lambda: native(
        Gemma2Model,
        GEMMA2,
        79,
        centre=0.0,
        scales=unscaled_embeddings(32),
        causal=True,
        dtype=torch.float16,
        edit=OLD | {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
        drop=OLD_DROPPED,
    ),
    "gemma3-embedding": lambda: native(
        Gemma3TextModel,
        GEMMA3 | {"num_attention_heads": 2},
        80,
        centre=0.0,
        scales=unscaled_embeddings(32),
        causal=True,
        dtype=torch.float16,
    ),
    "gemma3-bidirectional": lambda: native(
        Gemma3TextModel,
        GEMMA3 | {"use_bidirectional_attention": True},
        81,
        centre=0.0,
        scales=unscaled_embeddings(32),
        dtype=torch.bfloat16,
        edit=GEMMA3_OLD | {"sliding_window": 21},
        drop=("rope_parameters",),
    ),
}
