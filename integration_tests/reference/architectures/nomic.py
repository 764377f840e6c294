"""Nomic's encoders: nomic-embed-text-v1 and v1.5, CodeRankEmbed, snowflake-arctic-embed-m-long (gated), and
nomic-embed-text-v2-moe (experts).

Source: `modeling_hf_nomic_bert.py` of nomic-ai/nomic-bert-2048 (NomicBertModel). Written from the formulas:

    h = emb_ln(word[id] + type[t])
    q, k, v = attn.Wqkv(h); q, k rotated
    h = norm1(h + attn.out_proj(softmax(q·k / √head) · v))
    h = norm2(h + mlp(h))

    mlp, swiglu:     fc2(fc11(x) · silu(fc12(x)))
    mlp, gelu:       fc2(gelu(fc1(x)))
    mlp, experts:    Σ over the top k of p_e · gelu(x · w1_e^T) · w2_e, plus one shared bias; p = softmax over
                     all experts, not normalised again. Layers with index % moe_every_n_layers == 1.

With rotary_scaling_factor s, a text of n > max_trained_positions tokens is rotated with the base
rotary_emb_base · (s·n / max_trained_positions − (s − 1))^(head / (head − 2)).
"""

import torch
from torch.nn import functional

from .fixture import VOCABULARY, Fixture, Outputs, Tensors, cases, random_weights
from .remote_parts import ACTIVATIONS, attend, checked, inverse_frequencies, layer_norm, linear, rotate, split_heads

SOURCE = "own torch code after nomic-ai/nomic-bert-2048 modeling_hf_nomic_bert.py"
# The embedding table is padded to a multiple of 64 rows.
ROWS = -(-VOCABULARY // 64) * 64
HEADS, HIDDEN, INNER, LAYERS = 3, 36, 44, 2
REMOTE = "nomic-ai/nomic-bert-2048--"
AUTO_MAP = {
    "AutoConfig": f"{REMOTE}configuration_hf_nomic_bert.NomicBertConfig",
    "AutoModel": f"{REMOTE}modeling_hf_nomic_bert.NomicBertModel",
    "AutoModelForMaskedLM": f"{REMOTE}modeling_hf_nomic_bert.NomicBertForPreTraining",
}


def config(**changes: object) -> dict:
    """config.json with the key names of Nomic's repositories, which come from GPT-2."""
    base = {
        "activation_function": "swiglu",
        "architectures": ["NomicBertModel"],
        "attn_pdrop": 0.0,
        "auto_map": AUTO_MAP,
        "bos_token_id": None,
        "causal": False,
        "dense_seq_output": True,
        "embd_pdrop": 0.0,
        "eos_token_id": None,
        "fused_bias_fc": True,
        "fused_dropout_add_ln": True,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-12,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "model_type": "nomic_bert",
        "n_embd": HIDDEN,
        "n_head": HEADS,
        "n_inner": INNER,
        "n_layer": LAYERS,
        "n_positions": 8192,
        "pad_vocab_size_multiple": 64,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "summary_activation": None,
        "summary_first_dropout": 0.0,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "torch_dtype": "float32",
        "transformers_version": "4.37.2",
        "type_vocab_size": 2,
        "use_cache": True,
        "use_flash_attn": True,
        "use_rms_norm": False,
        "use_xentropy": True,
        "vocab_size": ROWS,
    }
    return dict(sorted((base | changes).items()))


def has_experts(config: dict, layer: int) -> bool:
    """Whether the layer's feed-forward network is a mixture of experts."""
    every = config.get("moe_every_n_layers", 0)
    return every > 0 and layer % every == 1


def feed_forward_shapes(config: dict, part: str, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer's feed-forward network."""
    hidden, inner = config["n_embd"], config["n_inner"]
    if has_experts(config, layer):
        experts = config["num_experts"]
        weights = {"router.layer.weight": (experts, hidden), "experts.bias": (hidden,)}
        weights |= {f"experts.mlp.{name}": (experts * inner, hidden) for name in ("w1", "w2")}
    elif config["activation_function"] == "swiglu":
        weights = {"fc11.weight": (inner, hidden), "fc12.weight": (inner, hidden), "fc2.weight": (hidden, inner)}
    else:
        weights = {"fc1.weight": (inner, hidden), "fc2.weight": (hidden, inner)}
        weights |= {"fc1.bias": (inner,), "fc2.bias": (hidden,)}
    return {f"{part}.mlp.{name}": shape for name, shape in weights.items()}


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Tensors of a checkpoint."""
    hidden = config["n_embd"]
    found = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
    }
    norms = ["emb_ln"]
    for layer in range(config["n_layer"]):
        part = f"encoder.layers.{layer}"
        projections = {"Wqkv": 3 * hidden, "out_proj": hidden}
        found |= {f"{part}.attn.{name}.weight": (size, hidden) for name, size in projections.items()}
        if config["qkv_proj_bias"]:
            found |= {f"{part}.attn.{name}.bias": (size,) for name, size in projections.items()}
        found |= feed_forward_shapes(config, part, layer)
        norms += [f"{part}.norm1", f"{part}.norm2"]
    return found | {f"{norm}.{kind}": (hidden,) for norm in norms for kind in ("weight", "bias")}


def frequencies(config: dict, tokens: int) -> torch.Tensor:
    """Rotary frequencies for a text of this length."""
    head, base = config["n_embd"] // config["n_head"], config["rotary_emb_base"]
    factor, trained = config["rotary_scaling_factor"], config["max_trained_positions"]
    if factor and tokens > trained:
        base = base * (factor * tokens / trained - (factor - 1)) ** (head / (head - 2))
    return inverse_frequencies(head, base)


def experts(tensors: Tensors, part: str, config: dict, states: torch.Tensor) -> torch.Tensor:
    """The sum of the most probable experts, weighted by their probabilities."""
    count, inner = config["num_experts"], config["n_inner"]
    first, second = (tensors[f"{part}.experts.mlp.{name}"].unflatten(0, (count, inner)) for name in ("w1", "w2"))
    probabilities = linear(tensors, f"{part}.router.layer", states).softmax(-1)
    weights, chosen = probabilities.topk(config["moe_top_k"], dim=-1)
    inside = functional.gelu(torch.einsum("th,tkih->tki", states, first[chosen]))
    return torch.einsum("tki,tkih,tk->th", inside, second[chosen], weights) + tensors[f"{part}.experts.bias"]


def feed_forward(tensors: Tensors, part: str, config: dict, states: torch.Tensor) -> torch.Tensor:
    """The layer's feed-forward network; its tensors tell the kind."""
    if f"{part}.router.layer.weight" in tensors:
        return experts(tensors, part, config, states)
    activation = ACTIVATIONS[config["activation_function"]]
    if f"{part}.fc11.weight" in tensors:
        gated = linear(tensors, f"{part}.fc11", states) * activation(linear(tensors, f"{part}.fc12", states))
        return linear(tensors, f"{part}.fc2", gated)
    return linear(tensors, f"{part}.fc2", activation(linear(tensors, f"{part}.fc1", states)))


def layer(tensors: Tensors, part: str, config: dict, states: torch.Tensor) -> torch.Tensor:
    """One encoder layer, normalised after each residual."""
    epsilon = config["layer_norm_epsilon"]
    query, key, value = split_heads(linear(tensors, f"{part}.attn.Wqkv", states), config["n_head"])
    rotary = frequencies(config, len(states))
    found = attend(rotate(query, rotary), rotate(key, rotary), value)
    states = layer_norm(tensors, f"{part}.norm1", states + linear(tensors, f"{part}.attn.out_proj", found), epsilon)
    found = feed_forward(tensors, f"{part}.mlp", config, states)
    return layer_norm(tensors, f"{part}.norm2", states + found, epsilon)


def read(config: dict, tensors: Tensors) -> Outputs:
    """The model."""

    def outputs(ids: list[int], types: list[int]) -> Tensors:
        states = tensors["embeddings.word_embeddings.weight"][ids]
        states = states + tensors["embeddings.token_type_embeddings.weight"][types]
        states = layer_norm(tensors, "emb_ln", states, config["layer_norm_epsilon"])
        for index in range(config["n_layer"]):
            states = layer(tensors, f"encoder.layers.{index}", config, states)
        return {"hidden": states}

    return outputs


def version_1_5() -> Fixture:
    """nomic-embed-text-v1.5 since 2026, which has two settings under transformers' names as well."""
    rope = {"rope_theta": 1000.0, "rope_type": "default"}
    found = config(max_position_embeddings=2048, rope_parameters=rope)
    return Fixture(found, random_weights(shapes(found), 411), checked(read), SOURCE, cases=cases(pairs=True))


def scaled() -> Fixture:
    """rotary_scaling_factor, which nomic-embed-text-v1 has. Here it scales texts of more than 64 tokens."""
    found = config(rotary_scaling_factor=2, max_trained_positions=64, n_positions=256)
    return Fixture(found, random_weights(shapes(found), 412), checked(read), SOURCE)


def version_2() -> Fixture:
    """nomic-embed-text-v2-moe."""
    found = config(
        _name_or_path="nomic-ai/nomic-xlm-2048",
        activation_function="gelu",
        add_pooling_layer=False,
        expert_choice_router=False,
        ffn_div=1,
        layer_norm_epsilon=1e-05,
        mlp_fc1_bias=True,
        mlp_fc2_bias=True,
        moe_every_n_layers=2,
        moe_impl="megablocks",
        moe_normalize_expert_weights=False,
        moe_resid_pdrop=0.0,
        moe_top_k=2,
        n_embd=24,
        n_inner=14,
        n_layer=4,
        n_positions=2048,
        num_experts=8,
        num_shared_experts=0,
        pad_token_id=1,
        qkv_proj_bias=True,
        rotary_emb_base=10000,
        router_aux_loss_coef=0.1,
        transformers_version="4.44.2",
        type_vocab_size=1,
        use_rms_norm=None,
    )
    # The rows of all experts are stacked in one matrix, so the inputs of w2 are its rows.
    scales = {"experts.mlp": 2.0, "mlp.w2": (found["n_embd"] / found["n_inner"]) ** 0.5}
    return Fixture(found, random_weights(shapes(found), 413, scales=scales), checked(read), SOURCE)


FIXTURES = {"nomic-v1.5": version_1_5, "nomic-scaled": scaled, "nomic-moe": version_2}
