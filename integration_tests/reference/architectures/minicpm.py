"""The layer-wise MiniCPM of BAAI/bge-reranker-v2-minicpm-layerwise, whose class exists only in its
repository.

Source: `FlagEmbedding`, inference/reranker/decoder_only/models/modeling_minicpm_reranker.py
(LayerWiseMiniCPMForCausalLM). Written from the formulas, with r(x) = x / √(mean(x²) + rms_norm_eps) · weight
and s = scale_depth / √num_hidden_layers, even if fewer layers are computed:

    h = embed_tokens[id] · scale_emb
    h = h + s · o_proj(softmax(q·k / √head) · v)           q, k, v of r(h); q, k rotated; causal
    h = h + s · down_proj(silu(gate_proj(x)) · up_proj(x)) x = r(h)
    score after layer c = lm_head[c − start_layer].linear_head · norm(h of the last token)

for c from start_layer to num_hidden_layers. With head_type "simple", the state is not divided by
hidden_size / dim_model_base before the head.
"""

import math

import torch
from torch.nn import functional

from .fixture import VOCABULARY, Fixture, Outputs, Tensors, cases, random_weights
from .remote_parts import checked, heads_of, inverse_frequencies, linear, rotate

SOURCE = "own torch code after FlagEmbedding modeling_minicpm_reranker.py LayerWiseMiniCPMForCausalLM"
START, LAYERS = 2, 6


def config(vocabulary: int = VOCABULARY, **changes: object) -> dict:
    """config.json as in the repository, with other sizes."""
    base = {
        "architectures": ["LayerWiseMiniCPMForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_minicpm_reranker.LayerWiseMiniCPMConfig",
            "AutoModel": "modeling_minicpm_reranker.LayerWiseMiniCPMModel",
            "AutoModelForCausalLM": "modeling_minicpm_reranker.LayerWiseMiniCPMForCausalLM",
        },
        "bos_token_id": 1,
        "dim_model_base": 8,
        "eos_token_id": 2,
        "head_multi": True,
        "head_type": "simple",
        "hidden_act": "silu",
        "hidden_size": 24,
        "initializer_range": 0.1,
        "intermediate_size": 40,
        "max_position_embeddings": 2048,
        "model_type": "minicpm",
        "num_attention_heads": 2,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "scale_depth": 1.4,
        "scale_emb": 12,
        "start_layer": START,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.38.1",
        "use_cache": False,
        "vocab_size": vocabulary,
    }
    return dict(sorted((base | changes).items()))


def shapes(settings: dict) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the tensors."""
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    keys = hidden // settings["num_attention_heads"] * settings["num_key_value_heads"]
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    layers = range(settings["num_hidden_layers"])
    heads = range(settings["num_hidden_layers"] - settings["start_layer"] + 1)
    return (
        {"model.embed_tokens.weight": (settings["vocab_size"], hidden), "model.norm.weight": (hidden,)}
        | {f"model.layers.{index}.{name}": shape for index in layers for name, shape in layer.items()}
        | {f"lm_head.{index}.linear_head.weight": (1, hidden) for index in heads}
    )


def weights(settings: dict, seed: int) -> Tensors:
    """Random weights. Embeddings are small, like the model's own: they are multiplied by `scale_emb`."""
    scales = {"embed_tokens": 1 / settings["scale_emb"], "linear_head": 1.5}
    return random_weights(shapes(settings), seed, gain=1.6, scales=scales)


def norm(tensors: Tensors, name: str, states: torch.Tensor, epsilon: float) -> torch.Tensor:
    """MiniCPMRMSNorm."""
    return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + epsilon) * tensors[f"{name}.weight"]


def attention(tensors: Tensors, settings: dict, name: str, states: torch.Tensor) -> torch.Tensor:
    """MiniCPMAttention for one text."""
    queries, keys = settings["num_attention_heads"], settings["num_key_value_heads"]
    frequencies = inverse_frequencies(states.shape[-1] // queries, settings.get("rope_theta", 10000.0))
    query = rotate(heads_of(linear(tensors, f"{name}.q_proj", states), queries), frequencies)
    key = rotate(heads_of(linear(tensors, f"{name}.k_proj", states), keys), frequencies)
    value = heads_of(linear(tensors, f"{name}.v_proj", states), keys)
    key, value = (each.repeat_interleave(queries // keys, dim=1) for each in (key, value))
    future = torch.full((len(states), len(states)), -math.inf).triu(1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1]) + future
    return linear(tensors, f"{name}.o_proj", torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value).flatten(1))


def states_after(tensors: Tensors, settings: dict, ids: list[int]) -> list[torch.Tensor]:
    """The normed states after 0, 1, … layers, each `[tokens, hidden]`."""
    epsilon = settings["rms_norm_eps"]
    scale = settings["scale_depth"] / math.sqrt(settings["num_hidden_layers"])
    states = tensors["model.embed_tokens.weight"][ids] * settings["scale_emb"]
    found = [norm(tensors, "model.norm", states, epsilon)]
    for index in range(settings["num_hidden_layers"]):
        name = f"model.layers.{index}"
        normed = norm(tensors, f"{name}.input_layernorm", states, epsilon)
        states = states + scale * attention(tensors, settings, f"{name}.self_attn", normed)
        normed = norm(tensors, f"{name}.post_attention_layernorm", states, epsilon)
        gated = functional.silu(linear(tensors, f"{name}.mlp.gate_proj", normed)) * linear(tensors, f"{name}.mlp.up_proj", normed)
        states = states + scale * linear(tensors, f"{name}.mlp.down_proj", gated)
        found.append(norm(tensors, "model.norm", states, epsilon))
    return found


def score(tensors: Tensors, settings: dict, states: list[torch.Tensor], cutoff: int) -> torch.Tensor:
    """The raw score after `cutoff` layers."""
    return linear(tensors, f"lm_head.{cutoff - settings['start_layer']}.linear_head", states[cutoff][-1])


def reader(cutoff: int):
    """A reader for the states and the score after `cutoff` layers."""

    def read(settings: dict, tensors: Tensors) -> Outputs:
        def outputs(ids: list[int], types: list[int]) -> Tensors:
            states = states_after(tensors, settings, ids)
            return {"hidden": states[cutoff], "logits": score(tensors, settings, states, cutoff)}

        return outputs

    return checked(read)


def fixture(seed: int, cutoff: int = LAYERS, **changes: object) -> Fixture:
    """A layer-wise re-ranker, with its outputs after `cutoff` layers."""
    settings = config(**changes)
    return Fixture(settings, weights(settings, seed), reader(cutoff), SOURCE, torch.bfloat16, cases(), causal=True)


FIXTURES = {
    "minicpm-layerwise": lambda: fixture(400),
    "minicpm-layerwise-cutoff-3": lambda: fixture(
        401, 3, num_attention_heads=4, num_key_value_heads=2, attention_bias=False, rope_theta=50000.0, scale_depth=0.9
    ),
}
