"""Jina's encoders with ALiBi: jina-embeddings-v2-*, jina-reranker-v1-*, and jina-embeddings-v2-base-code,
which also normalises q and k.

Source: `modeling_bert.py` of jinaai/jina-bert-implementation and of jinaai/jina-bert-v2-qk-post-norm. Written
from the formulas:

    h = LN(word[id] + type[t])                      no positions
    a = softmax(q·k / √head − slope · |i − j|) · v  slopes: alibi_slopes in remote_parts.py

    jina-bert-implementation
        h = attention.output.LayerNorm(h + attention.output.dense(a))
        g, u = mlp.gated_layers(h)                  the first half is activated
        h = mlp.layernorm(h + mlp.wo(act(g) · u))

    jina-bert-v2-qk-post-norm
        q = layer_norm_q(query(h)), k = layer_norm_k(key(h))    over all heads at once
        r = layer_norm_1(h + attention.output.LayerNorm(h + attention.output.dense(a)))
        u, g = mlp.up_gated_layer(r)                the second half is activated
        h = layer_norm_2(r + mlp.down_layer(u · act(g)))

    act: feed_forward_type geglu → gelu, reglu → relu
    logits = classifier(tanh(pooler.dense(h[0])))
"""

import torch

from .fixture import VOCABULARY, Fixture, Outputs, Tensors, cases, random_weights
from .remote_parts import ACTIVATIONS, alibi_bias, attend, checked, heads_of, layer_norm, linear

HEADS, HIDDEN, INNER, LAYERS = 6, 36, 44, 2
PLAIN, NORMED = "jinaai/jina-bert-implementation", "jinaai/jina-bert-v2-qk-post-norm"
FEED_FORWARD = {"geglu": "gelu", "reglu": "relu"}


def auto_map(place: str = "", heads: tuple[str, ...] = ("ForMaskedLM", "ForSequenceClassification")) -> dict[str, str]:
    """The location of the code. `place` is a repository and "--", or empty for the model's own repository."""
    model = f"{place}modeling_bert.JinaBert"
    found = {"AutoConfig": f"{place}configuration_bert.JinaBertConfig", "AutoModel": f"{model}Model"}
    return found | {f"AutoModel{head}": f"{model}{head}" for head in heads}


def config(repository: str, **changes: object) -> dict:
    """config.json as in the jina-embeddings-v2 repositories."""
    base = {
        "_name_or_path": repository,
        "architectures": ["JinaBertForMaskedLM"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": auto_map(f"{repository}--"),
        "classifier_dropout": None,
        "emb_pooler": "mean",
        "feed_forward_type": "geglu",
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 8192,
        "model_max_length": 8192,
        "model_type": "bert",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pad_token_id": 0,
        "position_embedding_type": "alibi",
        "torch_dtype": "float32",
        "transformers_version": "4.26.0",
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
    return dict(sorted((base | changes).items()))


def layer_shapes(part: str, hidden: int, inner: int, normed: bool) -> dict[str, tuple[int, ...]]:
    """Tensors of one layer."""
    projections = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    norms = ["attention.output.LayerNorm"]
    if normed:
        norms += ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2"]
        up, down = "mlp.up_gated_layer", "mlp.down_layer"
    else:
        norms.append("mlp.layernorm")
        up, down = "mlp.gated_layers", "mlp.wo"
    found = {f"{part}.{name}.weight": (hidden, hidden) for name in projections}
    found |= {f"{part}.{up}.weight": (2 * inner, hidden), f"{part}.{down}.weight": (hidden, inner)}
    found |= {f"{part}.{norm}.weight": (hidden,) for norm in norms}
    return found | {f"{part}.{name}.bias": (hidden,) for name in [*projections, *norms, down]}


def shapes(config: dict, prefix: str = "", pooler: bool = True, labels: int = 0) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint. `prefix` is "bert." in checkpoints that were saved with a head."""
    hidden = config["hidden_size"]
    found = {
        f"{prefix}embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        f"{prefix}embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        f"{prefix}embeddings.LayerNorm.weight": (hidden,),
        f"{prefix}embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        part = f"{prefix}encoder.layer.{layer}"
        found |= layer_shapes(part, hidden, config["intermediate_size"], NORMED in config["_name_or_path"])
    if pooler:
        found |= {f"{prefix}pooler.dense.weight": (hidden, hidden), f"{prefix}pooler.dense.bias": (hidden,)}
    if labels:
        found |= {"classifier.weight": (labels, hidden), "classifier.bias": (labels,)}
    return found


def attention(tensors: Tensors, part: str, config: dict, states: torch.Tensor) -> torch.Tensor:
    """Self-attention with its residual and norm."""
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    query, key, value = (linear(tensors, f"{part}.self.{name}", states) for name in ("query", "key", "value"))
    if f"{part}.self.layer_norm_q.weight" in tensors:
        query = layer_norm(tensors, f"{part}.self.layer_norm_q", query, epsilon)
        key = layer_norm(tensors, f"{part}.self.layer_norm_k", key, epsilon)
    found = attend(*(heads_of(part, heads) for part in (query, key, value)), alibi_bias(len(states), heads))
    found = linear(tensors, f"{part}.output.dense", found)
    return layer_norm(tensors, f"{part}.output.LayerNorm", states + found, epsilon)


def layer(tensors: Tensors, part: str, config: dict, states: torch.Tensor) -> torch.Tensor:
    """One encoder layer of either kind."""
    epsilon, activation = config["layer_norm_eps"], ACTIVATIONS[FEED_FORWARD[config["feed_forward_type"]]]
    attended = attention(tensors, f"{part}.attention", config, states)
    if f"{part}.mlp.gated_layers.weight" in tensors:
        gate, up = linear(tensors, f"{part}.mlp.gated_layers", attended).chunk(2, -1)
        found = linear(tensors, f"{part}.mlp.wo", activation(gate) * up)
        return layer_norm(tensors, f"{part}.mlp.layernorm", attended + found, epsilon)
    states = layer_norm(tensors, f"{part}.layer_norm_1", states + attended, epsilon)
    up, gate = linear(tensors, f"{part}.mlp.up_gated_layer", states).chunk(2, -1)
    found = linear(tensors, f"{part}.mlp.down_layer", up * activation(gate))
    return layer_norm(tensors, f"{part}.layer_norm_2", states + found, epsilon)


def read(config: dict, tensors: Tensors) -> Outputs:
    """The model; its outputs include logits if the file has a classifier."""
    tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}

    def outputs(ids: list[int], types: list[int]) -> Tensors:
        states = tensors["embeddings.word_embeddings.weight"][ids]
        states = states + tensors["embeddings.token_type_embeddings.weight"][types]
        states = layer_norm(tensors, "embeddings.LayerNorm", states, config["layer_norm_eps"])
        for index in range(config["num_hidden_layers"]):
            states = layer(tensors, f"encoder.layer.{index}", config, states)
        if "classifier.weight" not in tensors:
            return {"hidden": states}
        pooled = torch.tanh(linear(tensors, "pooler.dense", states[0]))
        return {"hidden": states, "logits": linear(tensors, "classifier", pooled)}

    return outputs


def source(repository: str) -> str:
    """The `source` in `expected.json`."""
    return f"own torch code after {repository} modeling_bert.py"


def embedding() -> Fixture:
    """jina-embeddings-v2-base-en: the number of heads is not a power of two; the pooler is not used."""
    found = config(PLAIN)
    return Fixture(found, random_weights(shapes(found), 421), checked(read), source(PLAIN), cases=cases(pairs=True))


def reglu() -> Fixture:
    """A number of heads that is a power of two, as in v2-small-en; and feed_forward_type reglu, which no
    known checkpoint has."""
    found = config(PLAIN, num_attention_heads=4, feed_forward_type="reglu")
    return Fixture(found, random_weights(shapes(found), 422), checked(read), source(PLAIN))


def reranker() -> Fixture:
    """jina-reranker-v1-tiny-en: the file has a classifier, but the configuration does not mention it."""
    heads = ("ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification", "ForTokenClassification")
    found = config(
        PLAIN,
        _name_or_path="jinaai/jina-reranker-v1-tiny-en",
        architectures=["JinaBertModel"],
        attention_probs_dropout_prob=0.1,
        attn_implementation=None,
        auto_map=auto_map(heads=heads),
        torch_dtype="float16",
    )
    found.pop("model_max_length")
    weights = random_weights(shapes(found, "bert.", labels=1), 427, scales={"classifier": 2.0})
    return Fixture(found, weights, checked(read), source(PLAIN), dtype=torch.float16, cases=cases(pairs=True))


def code() -> Fixture:
    """jina-embeddings-v2-base-code."""
    found = config(NORMED, attn_implementation="torch")
    # Attention has two residuals: without stronger weights, a token's neighbours would hardly matter.
    scales = {"self.value": 1.5, "output.dense.weight": 1.5}
    weights = random_weights(shapes(found, pooler=False), 426, scales=scales)
    return Fixture(found, weights, checked(read), source(NORMED), cases=cases(pairs=True))


FIXTURES = {"jina-v2-base": embedding, "jina-v2-reglu": reglu, "jina-reranker-v1": reranker, "jina-v2-code": code}
