"""The model for training: Qwen3's layers on packed tokens.

A query's prefix is computed once for all its documents. Input: a `Batch` of tokens. Output: one raw score per
document, `l_yes - l_no`. What must hold: the scores equal the scores of transformers' `Qwen3ForCausalLM` on
the saved weights (check.py measures it).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from tokenizer import MARKERS


@dataclass(frozen=True)
class Shape:
    """The sizes of config.json."""

    vocabulary: int
    hidden: int = 192
    layers: int = 5
    heads: int = 4
    key_heads: int = 2
    head: int = 64
    inner: int = 512
    theta: float = 1e6
    epsilon: float = 1e-6


@dataclass
class Rows:
    """Sequences of one batch side by side. Packed tokens: the tokens of all sequences, one after the other.

    `ids` [tokens]; `places` [tokens]: row * width + column of each token in the padded matrix; `positions`
    [rows, width].
    """

    ids: Tensor
    places: Tensor
    positions: Tensor

    @property
    def size(self) -> tuple[int, int]:
        return self.positions.shape[0], self.positions.shape[1]


@dataclass
class Batch:
    """Prefixes [groups, width] and documents [documents, width].

    `owner` [documents]: the group of each document. `bias` [documents, 1, share * width, prefix width +
    width] and `prefix_bias` [1, 1, share * width, width]: which tokens each token attends to, as `attend`
    takes it, for `share` query heads per key head. `last` [documents]: index of the last packed token of each
    document. The losses use the other fields.
    """

    prefixes: Rows
    documents: Rows
    owner: Tensor
    bias: Tensor
    prefix_bias: Tensor
    last: Tensor
    relevant: Tensor
    overlap: Tensor
    ends: Tensor
    end_answers: Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention. `q` is [rows, key heads, share * width, head].

    In `q`, the query heads that share a key head lie one after the other. `bias` [rows or 1, 1, share *
    width, keys] is 0 where a token is seen, and very low elsewhere.
    """
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + bias
    return torch.matmul(torch.softmax(scores, -1), v)


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def rotated(x: Tensor, weight: Tensor, epsilon: float, cosine: Tensor, sine: Tensor) -> Tensor:
    """Norm per head, then rotary positions, with halves paired as in Qwen3. `x` [tokens, heads, head]."""
    first, second = normed(x, weight, epsilon).chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(x.dtype)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """The activation of the feed-forward part."""
    return F.silu(gate) * up


def fuse() -> None:
    """Compiles the functions above, which shortens a step; needs a C++ compiler."""
    for function in (attend, normed, rotated, gated):
        globals()[function.__name__] = torch.compile(function, dynamic=True)


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, self.weight, self.epsilon)


class Layer(nn.Module):
    """Attention with normed queries and keys, then a gated feed-forward part. Names as in the checkpoint."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head, shape.key_heads * shape.head
        self.input_layernorm = Norm(shape.hidden, shape.epsilon)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(shape.hidden, queries, bias=False),
                "k_proj": nn.Linear(shape.hidden, keys, bias=False),
                "v_proj": nn.Linear(shape.hidden, keys, bias=False),
                "o_proj": nn.Linear(queries, shape.hidden, bias=False),
                "q_norm": Norm(shape.head, shape.epsilon),
                "k_norm": Norm(shape.head, shape.epsilon),
            }
        )
        self.post_attention_layernorm = Norm(shape.hidden, shape.epsilon)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(shape.hidden, shape.inner, bias=False),
                "up_proj": nn.Linear(shape.hidden, shape.inner, bias=False),
                "down_proj": nn.Linear(shape.inner, shape.hidden, bias=False),
            }
        )

    def heads(self, x: Tensor, rows: Rows, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values from packed normed tokens.

        Queries are as `attend` takes them; keys and values are [rows, key heads, width, head].
        """
        attention, shape = self.self_attn, self.shape
        height, width = rows.size
        result = []
        for name, count in (("q", shape.heads), ("k", shape.key_heads), ("v", shape.key_heads)):
            values = attention[f"{name}_proj"](x).view(-1, count, shape.head)
            if name != "v":
                norm = attention[f"{name}_norm"]
                values = rotated(values, norm.weight, norm.epsilon, *rope)
            padded = torch.zeros(height * width, count, shape.head, dtype=values.dtype).index_copy(0, rows.places, values)
            result.append(padded.view(height, width, count, shape.head).transpose(1, 2))
        return result[0].reshape(height, shape.key_heads, -1, shape.head), result[1], result[2]

    def finish(self, x: Tensor, attended: Tensor, rows: Rows) -> Tensor:
        """Adds attention's result and the feed-forward part to the packed tokens."""
        height, width = rows.size
        flat = attended.reshape(height, self.shape.heads, width, -1).transpose(1, 2).reshape(height * width, -1)
        x = x + self.self_attn["o_proj"](flat.index_select(0, rows.places))
        hidden = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](gated(self.mlp["gate_proj"](hidden), self.mlp["up_proj"](hidden)))


class Reranker(nn.Module):
    """The whole model; two probes serve the auxiliary losses and are not saved."""

    def __init__(self, shape: Shape, words: Tokenizer, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.yes, self.no = words.token_to_id("yes"), words.token_to_id("no")
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
        self.overlap_probe, self.answer_probe = nn.Linear(shape.hidden, 1), nn.Linear(shape.hidden, 1)
        self.initialise(tuple(words.token_to_id(marker) for marker in MARKERS))

    @torch.no_grad()
    def initialise(self, markers: tuple[int, int]) -> None:
        """Sets random weights, plus patterns that every such model must find first and would find slowly.

        The first layer's heads start by looking at: the token before, the one before that, the marker
        `<Query`, the marker `<Document`. So a token soon knows its neighbours and in which part of the prompt
        it is. In the next two layers every other head compares contents: its query and key matrices are
        equal, except for a term that makes tokens of the document, above all the token itself, match less
        well.
        """
        table, layers = self.embed_tokens.weight, self.layers
        nn.init.normal_(table, std=0.5)
        table[[self.yes, self.no]] *= 0.1
        table[:, 0], table[:, 1:3] = 1.0, 0.0
        table[markers[0], 1], table[markers[1], 2] = 3.0, 3.0
        for layer in layers:
            for name, module in layer.named_modules():
                if isinstance(module, nn.Linear):
                    scale = (2 * self.shape.layers) ** -0.5 if name.endswith(("o_proj", "down_proj")) else 1.0
                    nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)
        size, half = self.shape.head, self.shape.head // 2
        q, k, v = (layers[0].self_attn[f"{name}_proj"].weight for name in "qkv")
        q *= 0.1
        k[:size] *= 0.1
        k[size:] *= 0.3
        v[size:] *= 0.4
        fast = torch.arange(4)
        k[fast, 0] += 3.0
        for back in (1, 2):
            angles = back * self.shape.theta ** (-fast.float() / half)
            start = (back - 1) * size
            q[start + fast, 0] += 3.0 * angles.cos()
            q[start + half + fast, 0] -= 3.0 * angles.sin()
        for marker, column in ((0, 1), (1, 2)):
            slow = half - 8 + 4 * marker + fast
            k[size + slow, column] += 2.0
            q[(2 + marker) * size + slow, 0] += 3.0
        share = self.shape.heads // self.shape.key_heads
        marked = layers[0].self_attn["o_proj"].weight[:, 3 * size :] @ v[size:] @ layers[0].input_layernorm(table[markers[1]])
        for layer in layers[1:3]:
            queries, keys = layer.self_attn["q_proj"].weight, layer.self_attn["k_proj"].weight
            for head in range(self.shape.key_heads):
                query, key = queries[head * share * size :][:size], keys[head * size :][:size]
                query.copy_(key)
                query[half - 4 : half, 0] += 1.1
                key[half - 4 : half] -= 0.6 * marked / marked.norm()

    def rope(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the packed tokens, [tokens, 1, head / 2]."""
        half = self.shape.head // 2
        frequencies = self.shape.theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = rows.positions.flatten()[rows.places].float()[:, None, None] * frequencies
        return angles.cos(), angles.sin()

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Raw scores [documents], and the probes' values per document token and per end of a sentence."""
        prefix, documents = batch.prefixes, batch.documents
        x, y = self.embed_tokens(prefix.ids), self.embed_tokens(documents.ids)
        ropes = self.rope(prefix), self.rope(documents)
        overlap = answer = None
        for index, layer in enumerate(self.layers):
            q, k, v = layer.heads(layer.input_layernorm(x), prefix, ropes[0])
            dq, dk, dv = layer.heads(layer.input_layernorm(y), documents, ropes[1])
            if index < len(self.layers) - 1:
                x = layer.finish(x, attend(q, k, v, batch.prefix_bias), prefix)
            keys = torch.cat((k.index_select(0, batch.owner), dk), 2)
            values = torch.cat((v.index_select(0, batch.owner), dv), 2)
            y = layer.finish(y, attend(dq, keys, values, batch.bias), documents)
            if index == 1:
                overlap = self.overlap_probe(y).squeeze(-1).float()
            if index == 3:
                answer = self.answer_probe(y.index_select(0, batch.ends)).squeeze(-1).float()
        last = self.norm(y.index_select(0, batch.last))
        with torch.autocast("cpu", enabled=False):
            scores = last @ (self.embed_tokens.weight[self.yes] - self.embed_tokens.weight[self.no])
        return scores, overlap, answer

    def checkpoint(self) -> dict[str, Tensor]:
        """The tensors for the folder, in bfloat16, by their names in the folder."""
        names = {name: value for name, value in self.state_dict().items() if "probe" not in name}
        return {f"model.{name}": value.detach().to(torch.bfloat16).contiguous() for name, value in names.items()}


def load(model: Reranker, folder: Path) -> None:
    """Loads the weights of a folder; every tensor must be there and be used. The probes keep their values."""
    tensors = {name.removeprefix("model."): value.float() for name, value in load_file(folder / "model.safetensors").items()}
    probes = {name: value for name, value in model.state_dict().items() if "probe" in name}
    model.load_state_dict(tensors | probes)
