"""Parts of encoders that transformers does not have: plain torch functions on tensors by name, one text at a
time.

Input: `tensors` (by name), states [tokens, hidden]. Output: states of the same shape. No dropout, padding or
mask. Each module that uses this file names the authors' code that it repeats.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from .fixture import Outputs, Reader, Tensors, load_tensors

# Largest float32 error that a fixture may have; the tests allow 1e-4.
NOISE = 3e-5

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "swiglu": functional.silu,
}


def checked(read: Callable[[dict, Tensors], Outputs]) -> Reader:
    """A reader that runs `read(config, tensors)` in float32, and in float64 to check the float32 error."""

    def reader(folder: Path) -> Outputs:
        config, tensors = read_config(folder), load_tensors(folder)
        single = read(config, tensors)
        double = read(config, {name: tensor.double() for name, tensor in tensors.items()})

        def outputs(ids: list[int], types: list[int]) -> Tensors:
            found, exact = single(ids, types), double(ids, types)
            for key, value in found.items():
                noise = (value - exact[key]).abs().max().item()
                assert noise < NOISE, f"{folder.name}: {key} of {len(ids)} tokens has an error of {noise:.1e}"
            return found

        return outputs

    return reader


def read_config(folder: Path) -> dict:
    """The config.json of a folder."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def linear(tensors: Tensors, name: str, states: torch.Tensor) -> torch.Tensor:
    """`states` times the weight's transpose, plus the bias if the checkpoint has one."""
    return functional.linear(states, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def layer_norm(tensors: Tensors, name: str, states: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Layer normalisation over the last dimension."""
    weight = tensors[f"{name}.weight"]
    return functional.layer_norm(states, weight.shape, weight, tensors[f"{name}.bias"], epsilon)


def inverse_frequencies(dimensions: int, base: float) -> torch.Tensor:
    """base^(-2i / dimensions) for i below dimensions / 2."""
    return 1.0 / base ** (torch.arange(0, dimensions, 2, dtype=torch.float32) / dimensions)


def rotate(states: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Applies rotary positions 0, 1, … to [tokens, heads, head]. Components i and i + head / 2 are a pair."""
    angles = torch.outer(torch.arange(len(states), dtype=torch.float32), frequencies)[:, None, :]
    first, second = states.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def heads_of(states: torch.Tensor, heads: int) -> torch.Tensor:
    """Reshapes [tokens, hidden] to [tokens, heads, head]."""
    return states.unflatten(-1, (heads, -1))


def split_heads(states: torch.Tensor, heads: int) -> list[torch.Tensor]:
    """Query, key and value of a fused projection, each [tokens, heads, head]."""
    return [heads_of(third, heads) for third in states.chunk(3, dim=-1)]


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Softmax attention of every token to every token.

    Inputs are [tokens, heads, head], `bias` is [heads, tokens, tokens], the output [tokens, hidden].
    """
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1]) + bias
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value).flatten(1)


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi slopes. If the number of heads n is a power of two: 2^(-8k/n) for k = 1 … n.

    Otherwise: the slopes of the next smaller power of two, then every other slope of twice that power.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * index / power) for index in range(1, power + 1)]
    extra = [2.0 ** (-4.0 * index / power) for index in range(1, 2 * power + 1, 2)]
    return slopes + extra[: heads - power]


def alibi_bias(tokens: int, heads: int) -> torch.Tensor:
    """Symmetric ALiBi: −slope · |query − key|, [heads, tokens, tokens]."""
    positions = torch.arange(tokens, dtype=torch.float32)
    distances = (positions[:, None] - positions[None, :]).abs()
    return -torch.tensor(alibi_slopes(heads))[:, None, None] * distances
