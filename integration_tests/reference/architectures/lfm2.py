"""LFM2, causal as transformers has it, and bidirectional: attention without a mask, and a convolution with
the token in its middle, as in LFM2.5-Embedding. transformers lacks the bidirectional class, so its two
changes are made here.
"""

from pathlib import Path

import torch
from torch.nn import functional
from transformers import Lfm2Model

from .fixture import Outputs, Tensors, cases
from .native import load, native

# The width of the MLPs is 2/3 of 63, rounded up to a multiple of 12: 48.
LFM2 = {
    "vocab_size": 101,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 63,
    "block_multiple_of": 12,
    "max_position_embeddings": 256,
    "norm_eps": 1e-5,
}
LENGTHS = (1, 2, 3, 4, 7, 17, 33, 64, 150)
KINDS = {"c": "conv", "f": "full_attention"}


def layers(kinds: str) -> dict:
    """Layers of these kinds."""
    return {"num_hidden_layers": len(kinds), "layer_types": [KINDS[kind] for kind in kinds]}


def bidirectional(folder: Path) -> Outputs:
    """The bidirectional model of a folder."""
    model = load(Lfm2Model, folder, (), {})
    for layer in model.layers:
        if not layer.is_attention_layer:
            layer.conv.forward = centred(layer.conv)

    def outputs(ids: list[int], types: list[int]) -> Tensors:
        masks = {"full_attention": None, "conv": None}
        return {"hidden": model(torch.tensor([ids]), attention_mask=masks, use_cache=False).last_hidden_state[0]}

    return outputs


def centred(conv: torch.nn.Module) -> object:
    """The convolution with as many tokens before as behind, and zeros beyond the text."""

    def forward(hidden_states: torch.Tensor, **_: object) -> torch.Tensor:
        before, after, values = conv.in_proj(hidden_states).transpose(-1, -2).chunk(3, dim=-2)
        weight = conv.conv.weight
        mixed = functional.conv1d(before * values, weight, padding=weight.shape[-1] // 2, groups=len(weight))
        return conv.out_proj((after * mixed).transpose(-1, -2))

    return forward


FIXTURES = {
    "lfm2-causal": lambda: native(
        Lfm2Model,
        LFM2 | layers("ccfcf") | {"hidden_size": 30},
        510,
        dtype=torch.bfloat16,
        gain=1.5,
        causal=True,
        texts=cases(lengths=LENGTHS, seed=510),
        rename=lambda name: f"model.{name}",
        edit={"architectures": ["Lfm2ForCausalLM"]},
    ),
    "lfm2-old-keys": lambda: native(
        Lfm2Model,
        LFM2 | layers("fcc") | {"hidden_size": 24, "num_attention_heads": 2, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False, "intermediate_size": 40},
        511,
        gain=1.5,
        causal=True,
        texts=cases(lengths=LENGTHS, seed=511),
        edit={"block_ff_dim": 40, "full_attn_idxs": [0], "intermediate_size": 99, "rope_theta": 1000000.0},
        drop=("layer_types", "rope_parameters"),
    ),
    "lfm2-bidirectional": lambda: native(
        Lfm2Model,
        LFM2 | layers("cfc"),
        512,
        gain=1.5,
        dtype=torch.float16,
        texts=cases(lengths=LENGTHS, seed=512),
        edit={"architectures": ["Lfm2BidirectionalModel"]},
        reader=bidirectional,
    ),
}
