"""Alibaba's "new" encoders: gte-*-en-v1.5, gte-multilingual-base, gte-multilingual-reranker-base,
stella_en_400M_v5 and Snowflake's arctic-embed-m-v2.0.

Source: `modeling.py` and `configuration.py` of Alibaba-NLP/new-impl (NewModel, NewForSequenceClassification);
Snowflake's `modeling_hf_alibaba_nlp_gte.py` is the same code with GteModel. Written from the formulas:

    h = LN(word[id] + type[t])                                  no type table if type_vocab_size is 0
    q, k, v = qkv_proj(h); q, k rotated; q · log(tokens)/log(max_position_embeddings) if logn_attention_scale
    h = attn_ln(h + o_proj(softmax(q·k / √head) · v))
    up, gate = up_gate_proj(h)                                  first half up, second half gate
    h = mlp_ln(h + down_proj(gelu(gate) · up))
    logits = classifier(tanh(pooler.dense(h[0])))

rope_scaling {"type": "ntk", "factor": f}: frequencies (rope_theta · f)^(-2i/head) / f^(2/head), at every
length.
"""

import math

import torch

from .fixture import VOCABULARY, Fixture, Outputs, Tensors, cases, random_weights
from .remote_parts import ACTIVATIONS, attend, checked, inverse_frequencies, layer_norm, linear, rotate, split_heads

SOURCE = "own torch code after Alibaba-NLP/new-impl modeling.py"
HEADS, HIDDEN, INNER, LAYERS = 3, 36, 52, 2
REMOTE = {
    "AutoModel": "NewModel",
    "AutoModelForMaskedLM": "NewForMaskedLM",
    "AutoModelForMultipleChoice": "NewForMultipleChoice",
    "AutoModelForQuestionAnswering": "NewForQuestionAnswering",
    "AutoModelForSequenceClassification": "NewForSequenceClassification",
    "AutoModelForTokenClassification": "NewForTokenClassification",
}
AUTO_MAP = {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig"} | {
    kind: f"Alibaba-NLP/new-impl--modeling.{name}" for kind, name in REMOTE.items()
}


def config(**changes: object) -> dict:
    """config.json as in the en-v1.5 repositories."""
    base = {
        "architectures": ["NewModel"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": AUTO_MAP,
        "classifier_dropout": None,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "max_position_embeddings": 8192,
        "model_type": "new",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pack_qkv": True,
        "pad_token_id": 0,
        "position_embedding_type": "rope",
        "rope_scaling": None,
        "rope_theta": 500000,
        "torch_dtype": "float32",
        "transformers_version": "4.39.1",
        "type_vocab_size": 0,
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
        "vocab_size": VOCABULARY,
    }
    return dict(sorted((base | changes).items()))


def shapes(config: dict, prefix: str = "", labels: int = 0, pooler: bool = False) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint. `prefix` is "new." if it was saved from a model with a head."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    found = {f"{prefix}embeddings.word_embeddings.weight": (config["vocab_size"], hidden)}
    if config["type_vocab_size"]:
        found[f"{prefix}embeddings.token_type_embeddings.weight"] = (config["type_vocab_size"], hidden)
    vectors = [f"{prefix}embeddings.LayerNorm.weight", f"{prefix}embeddings.LayerNorm.bias"]
    for layer in range(config["num_hidden_layers"]):
        part = f"{prefix}encoder.layer.{layer}"
        found |= {
            f"{part}.attention.qkv_proj.weight": (3 * hidden, hidden),
            f"{part}.attention.qkv_proj.bias": (3 * hidden,),
            f"{part}.attention.o_proj.weight": (hidden, hidden),
            f"{part}.mlp.up_gate_proj.weight": (2 * inner, hidden),
            f"{part}.mlp.down_proj.weight": (hidden, inner),
        }
        vectors += [f"{part}.{name}.bias" for name in ("attention.o_proj", "mlp.down_proj", "attn_ln", "mlp_ln")]
        vectors += [f"{part}.{name}.weight" for name in ("attn_ln", "mlp_ln")]
    if pooler:
        found[f"{prefix}pooler.dense.weight"] = (hidden, hidden)
        vectors.append(f"{prefix}pooler.dense.bias")
    if labels:
        found |= {"classifier.weight": (labels, hidden), "classifier.bias": (labels,)}
    return found | {name: (hidden,) for name in vectors}


def frequencies(config: dict) -> torch.Tensor:
    """Rotary frequencies, with the NTK scaling of `rope_scaling` if there is one."""
    head, base = config["hidden_size"] // config["num_attention_heads"], config["rope_theta"]
    scaling = config["rope_scaling"]
    if scaling is None:
        return inverse_frequencies(head, base)
    assert scaling["type"] == "ntk" and "mixed_b" not in scaling
    return inverse_frequencies(head, base * scaling["factor"]) / scaling["factor"] ** (2 / head)


def layer(tensors: Tensors, part: str, config: dict, states: torch.Tensor) -> torch.Tensor:
    """One encoder layer, normalised after each residual."""
    fused = linear(tensors, f"{part}.attention.qkv_proj", states)
    query, key, value = split_heads(fused, config["num_attention_heads"])
    query, key = rotate(query, frequencies(config)), rotate(key, frequencies(config))
    if config["logn_attention_scale"]:
        assert not config["logn_attention_clip1"]
        query = query * (math.log(len(states)) / math.log(config["max_position_embeddings"]))
    attended = linear(tensors, f"{part}.attention.o_proj", attend(query, key, value))
    states = layer_norm(tensors, f"{part}.attn_ln", states + attended, config["layer_norm_eps"])
    up, gate = linear(tensors, f"{part}.mlp.up_gate_proj", states).chunk(2, -1)
    down = linear(tensors, f"{part}.mlp.down_proj", ACTIVATIONS[config["hidden_act"]](gate) * up)
    return layer_norm(tensors, f"{part}.mlp_ln", states + down, config["layer_norm_eps"])


def read(config: dict, tensors: Tensors) -> Outputs:
    """The model; its outputs include logits if it is a sequence classifier."""
    classifier = config["architectures"] == ["NewForSequenceClassification"]
    tensors = {name.removeprefix("new."): tensor for name, tensor in tensors.items()}

    def outputs(ids: list[int], types: list[int]) -> Tensors:
        states = tensors["embeddings.word_embeddings.weight"][ids]
        if config["type_vocab_size"]:
            states = states + tensors["embeddings.token_type_embeddings.weight"][types]
        states = layer_norm(tensors, "embeddings.LayerNorm", states, config["layer_norm_eps"])
        for index in range(config["num_hidden_layers"]):
            states = layer(tensors, f"encoder.layer.{index}", config, states)
        if not classifier:
            return {"hidden": states}
        pooled = torch.tanh(linear(tensors, "pooler.dense", states[0]))
        return {"hidden": states, "logits": linear(tensors, "classifier", pooled)}

    return outputs


def base_en() -> Fixture:
    """gte-base-en-v1.5: no scaling, no token types, no prefix."""
    found = config()
    return Fixture(found, random_weights(shapes(found), 401), checked(read), SOURCE)


def large_en() -> Fixture:
    """gte-large-en-v1.5 and stella_en_400M_v5: NTK scaling and two token types, and stella's switches."""
    found = config(
        rope_theta=160000,
        rope_scaling={"factor": 2.0, "type": "ntk"},
        type_vocab_size=2,
        unpad_inputs=True,
        use_memory_efficient_attention=True,
    )
    return Fixture(found, random_weights(shapes(found), 402), checked(read), SOURCE, cases=cases(pairs=True))


MULTILINGUAL = {
    "layer_norm_eps": 1e-12,
    "pad_token_id": 1,
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "torch_dtype": "float16",
    "type_vocab_size": 1,
}


def multilingual() -> Fixture:
    """gte-multilingual-base: prefix `new.`. Its head is for sparse weights; the vector does not use it."""
    found = config(architectures=["NewModel", "NewForTokenClassification"], **MULTILINGUAL)
    return Fixture(found, random_weights(shapes(found, "new.", 1), 403), checked(read), SOURCE, dtype=torch.float16)


def reranker() -> Fixture:
    """gte-multilingual-reranker-base."""
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    found = config(architectures=["NewForSequenceClassification"], classifier_dropout=0.0, **MULTILINGUAL, **labels)
    weights = random_weights(shapes(found, "new.", 1, pooler=True), 404, scales={"classifier": 2.0})
    return Fixture(found, weights, checked(read), SOURCE, dtype=torch.float16)


def snowflake() -> Fixture:
    """snowflake-arctic-embed-m-v2.0, whose configuration writes the two switches as strings."""
    auto_map = {
        "AutoConfig": "configuration_hf_alibaba_nlp_gte.GteConfig",
        "AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel",
    }
    found = config(
        architectures=["GteModel"],
        auto_map=auto_map,
        matryoshka_dimensions=[12],
        model_type="gte",
        pad_token_id=1,
        rope_theta=160000,
        type_vocab_size=1,
        unpad_inputs="true",
        use_memory_efficient_attention="true",
    )
    return Fixture(found, random_weights(shapes(found), 405), checked(read), SOURCE)


def logn() -> Fixture:
    """logn_attention_scale, which no known checkpoint uses: queries grow with the logarithm of the length."""
    found = config(logn_attention_scale=True, max_position_embeddings=160, rope_theta=10000)
    return Fixture(found, random_weights(shapes(found), 406, gain=1.3), checked(read), SOURCE)


FIXTURES = {
    "new-base-en": base_en,
    "new-large-en": large_en,
    "new-multilingual": multilingual,
    "new-reranker": reranker,
    "gte-arctic": snowflake,
    "new-logn": logn,
}
