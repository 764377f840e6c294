"""Qwen3.5 as an embedding model and as a classifier: text only, and with a vision tower.

There are more value heads than key heads, the last layer is of either kind, and the lengths lie on both sides
of the borders of transformers' chunks (64 tokens).
"""

import torch
from transformers import Qwen3_5Model, Qwen3_5TextForSequenceClassification, Qwen3_5TextModel

from .fixture import cases
from .native import native, pretrained

LENGTHS = (1, 2, 3, 4, 7, 17, 63, 64, 65, 129, 200)
KINDS = {"l": "linear_attention", "f": "full_attention"}
ROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [1, 1, 0],
    "mrope_interleaved": True,
}
SIZES = {
    "vocab_size": 101,
    "hidden_size": 28,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 30,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "rope_parameters": ROPE,
}
# Decays from nearly one to nearly zero. The mixer's own norm multiplies by its weights, the others by one
# more.
SCALES = {"A_log": 6.0, "linear_attn.norm": 3.0}
VISION = {
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_heads": 1,
    "out_hidden_size": 28,
    "num_position_embeddings": 4,
    "patch_size": 2,
}


def layers(kinds: str) -> dict:
    """Layers of these kinds."""
    return {"num_hidden_layers": len(kinds), "layer_types": [KINDS[kind] for kind in kinds]}


def texts(seed: int) -> list:
    """Texts on both sides of the borders."""
    return cases(lengths=LENGTHS, seed=seed)


FIXTURES = {
    "qwen3_5-text": lambda: native(
        Qwen3_5TextModel,
        SIZES | layers("llfll"),
        320,
        dtype=torch.bfloat16,
        gain=1.0,
        centre=0.0,
        scales=SCALES,
        causal=True,
        texts=texts(320),
        rename=lambda name: f"model.{name}",
        extra={"mtp.fc.weight": (3, 5)},
        edit={"architectures": ["Qwen3_5ForCausalLM"], "mtp_num_hidden_layers": 1},
        reader=pretrained(Qwen3_5TextModel, ignored=("mtp",)),
    ),
    "qwen3_5-vision": lambda: native(
        Qwen3_5Model,
        {
            "text_config": SIZES | layers("llf") | {"linear_num_value_heads": 2, "linear_key_head_dim": 17},
            "vision_config": VISION,
            "tie_word_embeddings": True,
        },
        321,
        dtype=torch.float16,
        gain=1.0,
        centre=0.0,
        scales=SCALES,
        causal=True,
        texts=texts(321),
        rename=lambda name: f"model.{name}",
        edit={"architectures": ["Qwen3_5ForConditionalGeneration"]},
    ),
    "qwen3_5-classifier-2": lambda: native(
        Qwen3_5TextForSequenceClassification,
        SIZES | layers("lfl") | {"pad_token_id": 0},
        322,
        dtype=torch.float16,
        gain=1.0,
        centre=0.0,
        scales=SCALES | {"score": 1.5},
        labels=["0", "1"],
        causal=True,
        texts=texts(322),
    ),
}
