"""EmbeddingGemma 2: the text model, alone and with the settings of a model with other inputs."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from transformers import EmbeddingGemma2TextConfig, EmbeddingGemma2TextModel

from .decoders import unscaled_embeddings
from .fixture import Fixture, Outputs, Tensors, load_tensors
from .native import native, pretrained, run

# Layers with a window have two key heads of 6 values, layers without one key head of 10. The radius of the
# window is shorter than most texts.
SIZES = {
    "vocab_size": 101,
    "hidden_size": 28,
    "intermediate_size": 30,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "global_head_dim": 10,
    "num_global_key_value_heads": 1,
    "sliding_window": 9,
    "sliding_window_pattern": 2,
    "hidden_size_per_layer_input": 13,
    "embedding_dim": 22,
    "max_position_embeddings": 256,
}
# Scores are not divided by the root of a head's size.
SCALES = unscaled_embeddings(28) | {"q_norm": 0.5, "k_norm": 0.7}


def averaged(_: Path, found: Tensors) -> Tensors:
    """The vector of a text is the mean of its tokens' vectors."""
    return {"embedding": found["hidden"].mean(dim=0)}


def nested(folder: Path) -> Outputs:
    """The text model inside a model that also reads images."""
    config = json.loads((folder / "config.json").read_text())["text_config"]
    model = EmbeddingGemma2TextModel(EmbeddingGemma2TextConfig(**config, attn_implementation="eager"))
    prefix = "language_model."
    own = {name.removeprefix(prefix): values for name, values in load_tensors(folder).items() if name.startswith(prefix)}
    missing, unexpected = model.load_state_dict(own, strict=False)
    assert not unexpected and all("rotary" in name or "embed_scale" in name for name in missing), (missing, unexpected)
    model.eval()
    return lambda ids, types: averaged_run(folder, run(model, ids, types))


def averaged_run(folder: Path, found: Tensors) -> Tensors:
    """The outputs with the vector."""
    return found | averaged(folder, found)


def whole(seed: int) -> Fixture:
    """The text model with the tensor names and settings of a model that also reads images and sounds."""
    text = native(
        EmbeddingGemma2TextModel,
        SIZES | {"num_hidden_layers": 3},
        seed,
        gain=1.5,
        dtype=torch.float16,
        scales=SCALES,
        rename=lambda name: f"language_model.{name}",
        extra={"vision_tower.patch.weight": (3, 5), "embed_audio.projection.weight": (2, 4)},
        reader=nested,
    )
    config = {"architectures": ["EmbeddingGemma2Model"], "model_type": "embedding_gemma2", "dtype": "float16"}
    config |= {"image_token_id": 258880, "vision_config": {"model_type": "gemma4_vision"}, "text_config": text.config}
    return replace(text, config=config)


FIXTURES = {
    "embedding-gemma2-text": lambda: native(
        EmbeddingGemma2TextModel,
        SIZES,
        520,
        gain=1.5,
        dtype=torch.bfloat16,
        scales=SCALES,
        reader=pretrained(EmbeddingGemma2TextModel, after=averaged),
    ),
    "embedding-gemma2-whole": lambda: whole(521),
}
