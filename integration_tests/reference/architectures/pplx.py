"""pplx-embed-v1: Qwen3 without a causal mask, and vectors of whole numbers.

Source: `modeling.py` and `st_quantize.py` (FlexibleQuantizer, int8) of perplexity-ai/pplx-embed-v1-0.6b. The
model is transformers' Qwen3Model with is_causal false. The vector follows from the mean of the hidden states
after the final norm:

    embedding = clamp(round(tanh(mean) · 127), −128, 127)       halves round to even; no normalisation
"""

from pathlib import Path

import torch
from transformers import Qwen3Model

from .decoders import QWEN3
from .fixture import Fixture, Tensors
from .native import native, pretrained

# Scaled values keep at least this distance from a half, so that float32 noise does not decide their rounding.
MARGIN = 1e-3
AUTO_MAP = {"AutoConfig": "configuration.PPLXQwen3Config", "AutoModel": "modeling.PPLXQwen3Model"}
EDIT = {
    "architectures": ["PPLXQwen3Model"],
    "auto_map": AUTO_MAP,
    "model_type": "bidirectional_pplx_qwen3",
    "tie_word_embeddings": True,
    "use_bidirectional_attention": True,
    "use_cache": False,
}


def quantized(folder: Path, found: Tensors) -> Tensors:
    """The vector of whole numbers."""
    scaled = torch.tanh(found["hidden"].mean(dim=0)) * 127
    distance = (scaled - scaled.floor() - 0.5).abs().min().item()
    assert distance > MARGIN, f"{folder.name}: a value is {distance:.1e} from a half"
    # Adding zero turns −0 into 0.
    return {"embedding": torch.round(scaled).clamp(-128, 127) + 0.0}


def embedding() -> Fixture:
    """pplx-embed-v1-0.6b. Its norm weights are small, so that tanh is neither linear nor saturated."""
    reader = pretrained(Qwen3Model, after=quantized, is_causal=False)
    return native(Qwen3Model, QWEN3, 454, scales={"norm.weight": 0.8}, edit=EDIT, reader=reader)


FIXTURES = {"pplx-embed-v1": embedding}
