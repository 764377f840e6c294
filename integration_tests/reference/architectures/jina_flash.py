"""XLM-RoBERTa with Jina's tensor names: jina-reranker-v2-base-multilingual and jina-embeddings-v3.

Source: `modeling_xlm_roberta.py`, `embedding.py`, `block.py` and `modeling_lora.py` of
jinaai/xlm-roberta-flash-implementation. Written from the formulas:

    h = emb_ln(word[id] + type[0] + position[i + pad_token_id + 1])     position_embedding_type absolute
    h = emb_ln(word[id] + type[0])                                      position_embedding_type rotary
    q, k, v = mixer.Wqkv(h); q, k rotated if rotary, with the base rotary_emb_base
    h = norm1(h + mixer.out_proj(softmax(q·k / √head) · v))
    h = norm2(h + mlp.fc2(gelu(mlp.fc1(h))))
    logits = classifier.out_proj(tanh(classifier.dense(h[0])))

With the task of index t in lora_adaptations, and s = lora_alpha / lora_rank, every matrix is
    linear layers  original + s · lora_B[t] · lora_A[t]
    embeddings     original + s · lora_A[t] · lora_B[t]
and without a task it is `original`. The shapes are lora_A [tasks, rank, inputs] and lora_B [tasks, outputs,
rank] for linear layers, lora_A [tasks, rows, rank] and lora_B [tasks, rank, hidden] for embeddings. Biases
and norms have no adapters.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from .fixture import LENGTHS, VOCABULARY, Fixture, Outputs, Tensors, cases, random_weights
from .remote_parts import attend, checked, inverse_frequencies, layer_norm, linear, rotate, split_heads

SOURCE = "own torch code after jinaai/xlm-roberta-flash-implementation"
MARK = ".parametrizations.weight."
TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
# The fixtures of the adapters have fewer texts, because only the adapter differs.
TASK_LENGTHS = (2, 7, 33, 100)


def auto_map(place: str, model: str, heads: tuple[str, ...]) -> dict[str, str]:
    """The location of the code. `model` is the class of AutoModel with its file."""
    found = {"AutoConfig": f"{place}configuration_xlm_roberta.XLMRobertaFlashConfig", "AutoModel": f"{place}{model}"}
    return found | {f"AutoModel{head}": f"{place}modeling_xlm_roberta.XLMRoberta{head}" for head in heads}


def config(**changes: object) -> dict:
    """The parts of config.json that both repositories have."""
    base = {
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "classifier_dropout": None,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-05,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "output_past": True,
        "pad_token_id": 1,
        "torch_dtype": "bfloat16",
        "type_vocab_size": 1,
        "use_flash_attn": True,
        "vocab_size": VOCABULARY,
    }
    return dict(sorted((base | changes).items()))


def shapes(config: dict, head: str) -> dict[str, tuple[int, ...]]:
    """The tensors without adapters. `head` is "classifier" or "pooler"."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    found = {
        "roberta.embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "roberta.embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
    }
    if config["position_embedding_type"] == "absolute":
        found["roberta.embeddings.position_embeddings.weight"] = (config["max_position_embeddings"], hidden)
    matrices, norms = {}, ["roberta.emb_ln"]
    for layer in range(config["num_hidden_layers"]):
        part = f"roberta.encoder.layers.{layer}"
        matrices |= {f"{part}.mixer.Wqkv": (3 * hidden, hidden), f"{part}.mixer.out_proj": (hidden, hidden)}
        matrices |= {f"{part}.mlp.fc1": (inner, hidden), f"{part}.mlp.fc2": (hidden, inner)}
        norms += [f"{part}.norm1", f"{part}.norm2"]
    if head == "classifier":
        matrices |= {"classifier.dense": (hidden, hidden), "classifier.out_proj": (1, hidden)}
    else:
        matrices["roberta.pooler.dense"] = (hidden, hidden)
    found |= {f"{name}.weight": shape for name, shape in matrices.items()}
    found |= {f"{name}.bias": shape[:1] for name, shape in matrices.items()}
    return found | {f"{norm}.{kind}": (hidden,) for norm in norms for kind in ("weight", "bias")}


def with_adapters(shapes: dict[str, tuple[int, ...]], tasks: int, rank: int) -> dict[str, tuple[int, ...]]:
    """Replaces each matrix by its original and its adapters."""
    found = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            found[name] = shape
            continue
        rows, columns = shape
        mark = name.removesuffix(".weight") + MARK
        is_table = "embeddings." in name
        found[f"{mark}original"] = shape
        found[f"{mark}0.lora_A"] = (tasks, rows, rank) if is_table else (tasks, rank, columns)
        found[f"{mark}0.lora_B"] = (tasks, rank, columns) if is_table else (tasks, rows, rank)
    return found


def merged(tensors: Tensors, config: dict, task: int | None) -> Tensors:
    """The tensors under their usual names, with a task's adapters added to the matrices."""
    found = {}
    for name, tensor in tensors.items():
        if MARK not in name:
            found[name] = tensor
        elif name.endswith(".original"):
            stem = name.removesuffix("original")
            if task is not None:
                first, second = tensors[f"{stem}0.lora_B"][task], tensors[f"{stem}0.lora_A"][task]
                product = second @ first if "embeddings." in name else first @ second
                tensor = tensor + product * (config["lora_alpha"] / config["lora_rank"])
            found[name.replace(MARK, ".").removesuffix("original") + "weight"] = tensor
    return found


def layer(tensors: Tensors, part: str, config: dict, states: torch.Tensor) -> torch.Tensor:
    """One encoder layer, normalised after each residual."""
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    query, key, value = split_heads(linear(tensors, f"{part}.mixer.Wqkv", states), heads)
    if config["position_embedding_type"] == "rotary":
        frequencies = inverse_frequencies(query.shape[-1], config["rotary_emb_base"])
        query, key = rotate(query, frequencies), rotate(key, frequencies)
    attended = linear(tensors, f"{part}.mixer.out_proj", attend(query, key, value))
    states = layer_norm(tensors, f"{part}.norm1", states + attended, epsilon)
    inside = functional.gelu(linear(tensors, f"{part}.mlp.fc1", states))
    return layer_norm(tensors, f"{part}.norm2", states + linear(tensors, f"{part}.mlp.fc2", inside), epsilon)


def read(config: dict, tensors: Tensors, task: int | None = None) -> Outputs:
    """The model with the adapters of a task; its outputs include logits if the file has a classifier."""
    tensors = {name.removeprefix("roberta."): tensor for name, tensor in merged(tensors, config, task).items()}

    def outputs(ids: list[int], types: list[int]) -> Tensors:
        states = tensors["embeddings.word_embeddings.weight"][ids]
        states = states + tensors["embeddings.token_type_embeddings.weight"][types]
        if config["position_embedding_type"] == "absolute":
            first = config["pad_token_id"] + 1
            states = states + tensors["embeddings.position_embeddings.weight"][first : first + len(ids)]
        states = layer_norm(tensors, "emb_ln", states, config["layer_norm_eps"])
        for index in range(config["num_hidden_layers"]):
            states = layer(tensors, f"encoder.layers.{index}", config, states)
        if "classifier.dense.weight" not in tensors:
            return {"hidden": states}
        pooled = torch.tanh(linear(tensors, "classifier.dense", states[0]))
        return {"hidden": states, "logits": linear(tensors, "classifier.out_proj", pooled)}

    return outputs


def reranker() -> Fixture:
    """jina-reranker-v2-base-multilingual, which has no model_type. Its longest text has 150 tokens."""
    heads = ("ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
    found = config(
        architectures=["XLMRobertaForSequenceClassification"],
        auto_map=auto_map("", "modeling_xlm_roberta.XLMRobertaModel", heads),
        hidden_size=36,
        id2label={"0": "LABEL_0"},
        intermediate_size=44,
        label2id={"LABEL_0": 0},
        max_position_embeddings=max(LENGTHS) + 2,
        position_embedding_type="absolute",
        transformers_version="4.40.0",
        use_cache=False,
    )
    weights = random_weights(shapes(found, "classifier"), 431, scales={"out_proj.weight": 1.5, "position": 0.7})
    return Fixture(found, weights, checked(read), SOURCE, dtype=torch.bfloat16)


def embedding_config() -> dict:
    """jina-embeddings-v3's config.json."""
    place = "jinaai/xlm-roberta-flash-implementation--"
    instructions = {
        "retrieval.query": "Represent the query for retrieving evidence documents: ",
        "retrieval.passage": "Represent the document for retrieval: ",
    }
    return config(
        architectures=["XLMRobertaModel"],
        auto_map=auto_map(place, "modeling_lora.XLMRobertaLoRA", ("ForMaskedLM", "ForPreTraining")),
        emb_pooler=None,
        hidden_size=24,
        intermediate_size=28,
        load_trained_adapters=True,
        lora_adaptations=TASKS,
        lora_alpha=1,
        lora_dropout_p=0.0,
        lora_main_params_trainable=False,
        lora_rank=4,
        matryoshka_dimensions=[8, 16, 24],
        max_position_embeddings=8194,
        model_type="xlm-roberta",
        position_embedding_type="rotary",
        rotary_emb_base=20000.0,
        task_instructions={task: instructions.get(task, "") for task in TASKS},
        transformers_version="4.30.2",
        truncate_dim=None,
        use_cache=True,
    )


def embedding(task: int | None = None) -> Fixture:
    """jina-embeddings-v3 with one adapter or none. Only expected.json differs between these fixtures."""
    found = embedding_config()
    names = with_adapters(shapes(found, "pooler"), len(TASKS), found["lora_rank"])
    # random_weights divides by the number of a matrix's inputs, which is wrong for a stack of adapters.
    scales = {"lora_": 3.0, f"word_embeddings{MARK}original": 6.0, f"mlp.fc1{MARK}original": 1.5}
    weights = random_weights(names, 445, scales=scales)
    texts = cases() if task is None else cases(lengths=TASK_LENGTHS, seed=2 + task)
    source = SOURCE if task is None else f"{SOURCE}, task {TASKS[task]}"
    return Fixture(found, weights, checked(partial(read, task=task)), source, dtype=torch.bfloat16, cases=texts)


FIXTURES: dict[str, Callable[[], Fixture]] = {"jina-reranker-v2": reranker, "jina-v3": embedding}
FIXTURES |= {f"jina-v3-task-{task}": partial(embedding, task) for task in range(len(TASKS))}
