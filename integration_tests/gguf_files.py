"""Makes GGUF files from the reference's model folders, as llama.cpp's converter does.

Input: a folder with safetensors weights and a tokenizer.json. Output: a `.gguf` file. Tensor names, metadata
and quantisation come from llama.cpp's own `gguf` package. The converter's changes to values and tokens are
repeated here: it interleaves the rows of Llama's queries and keys, adds one to the weights of Gemma's norms,
changes Qwen3.5's linear attention (`of_qwen35`), drops a dimension of LFM2's taps,
transposes the second matrices of experts and drops their bias, drops adapters, marks WordPiece pieces that
begin a word instead of those that continue one, removes RoBERTa's unused positions, writes a score for each
piece instead of merges, and keeps of a re-ranker's output embedding only the rows of `yes` and `no`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import models
import numpy as np
from arrays import values
from gguf_writer import add_decoder_sizes, add_sizes, add_tensor, finish

ARCHITECTURES = {
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "bert": gguf.MODEL_ARCH.BERT,
    "xlm-roberta": gguf.MODEL_ARCH.BERT,
    "nomic_bert": gguf.MODEL_ARCH.NOMIC_BERT,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "eurobert": gguf.MODEL_ARCH.EUROBERT,
    "llama_bidirec": gguf.MODEL_ARCH.LLAMA_EMBED,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA_EMBEDDING,
}
LLAMAS = ("llama", "llama_bidirec")
GEMMAS = ("gemma", "gemma3_text")
DECODERS = ("qwen3", "qwen2", "qwen3_5_text", "lfm2", "eurobert", *LLAMAS, *GEMMAS)
# The prompt that the converter writes into the file of a Qwen3-Reranker.
RERANK_PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note "
    'that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve '
    "relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n"
)


@dataclass
class Recipe:
    """How a file is made. The defaults are the converter's for a model that needs no special treatment."""

    # The type of matrices; vectors are F32 in any case.
    kind: str = "F32"
    pooling: gguf.PoolingType | None = None
    # Whether to convert it as a Qwen3 re-ranker: its head has two rows, and the file contains the prompt.
    rerank: bool = False
    prompt: str = RERANK_PROMPT
    name: str | None = None
    add_eos: bool = False
    pre: str = "qwen2"
    # Tensors to leave out, by llama.cpp's names.
    without: tuple[str, ...] = ()
    # Metadata that replaces the converter's at the end; None removes a key.
    metadata: dict = field(default_factory=dict)
    # Whether to store matrices of one row as vectors, as llama.cpp's quantiser does.
    flat: bool = False
    # Whether to store quantised matrices as the F32 values that they decode to.
    widened: bool = False
    # Whether to store the dense modules of Gemma, which the converter does if asked to.
    dense: bool = True
    # Whether to store the halves of Jina's gated MLPs as two matrices, as former converters did.
    separate: bool = False
    # Tokens of the vocabulary to write as tokens that the user defined.
    user_defined: tuple[str, ...] = ()


def architecture_of(config: dict) -> gguf.MODEL_ARCH:
    if config.get("position_embedding_type") == "alibi":
        return gguf.MODEL_ARCH.JINA_BERT_V2
    if config.get("lora_adaptations"):
        return gguf.MODEL_ARCH.JINA_BERT_V3
    if config.get("moe_every_n_layers"):
        return gguf.MODEL_ARCH.NOMIC_BERT_MOE
    if config["model_type"] == "gemma3_text" and not config["use_bidirectional_attention"]:
        return gguf.MODEL_ARCH.GEMMA3
    return ARCHITECTURES[config["model_type"]]


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Alternates the rows of the two halves of each head."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def of_qwen35(name: str, value: np.ndarray, config: dict) -> tuple[str, np.ndarray]:
    """A tensor of Qwen3.5: value heads with the same key head are no longer neighbours, decays are stored as
    they are used, and one is added to the weights of all norms but one."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width = config["linear_value_head_dim"]

    def tiled(rows: np.ndarray, size: int) -> np.ndarray:
        return rows.reshape(keys, heads // keys, size, -1).swapaxes(0, 1).reshape(rows.shape)

    prefix, _, part = name.partition("linear_attn.")
    if not part:
        return name, value + 1 if name.endswith("norm.weight") else value
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        value, first = value.reshape(len(value), -1), 2 * keys * config["linear_key_head_dim"]
        value = np.concatenate([value[:first], tiled(value[first:], width)])
    elif part == "in_proj_z.weight":
        value = tiled(value, width)
    elif part == "out_proj.weight":
        value = tiled(np.ascontiguousarray(value.T), width).T
    elif part != "norm.weight":
        value = tiled(value, 1)
    if part == "A_log":
        value = -np.exp(value)
    return f"{prefix}linear_attn.{part.replace('dt_bias', 'dt_proj.bias')}", value


def named(folder: Path, config: dict, names: gguf.TensorNameMap, recipe: Recipe) -> dict[str, np.ndarray]:
    """The folder's tensors under llama.cpp's names."""
    model_type, found = config["model_type"], {}
    alibi, experts = config.get("position_embedding_type") == "alibi", config.get("num_experts")
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in models.read_tensors(file).items():
            if tensor.dtype == "I64" or name.startswith(("cls.predictions", "lm_head.bias")):
                continue
            if ".lora_" in name or name.endswith("experts.bias") or alibi and "pooler.dense" in name:
                continue
            if config.get("lora_adaptations") and "pooler.dense" in name:
                continue
            value = values(tensor)
            bare = name.replace(".parametrizations.weight.original", ".weight")
            if "mlp.experts.mlp.w" in bare:
                value = value.reshape(experts, -1, value.shape[-1])
                value = value.swapaxes(1, 2) if bare.endswith("w2") else value
                bare += ".weight"
            if bare.startswith("mtp."):
                continue
            if model_type == "qwen3_5_text":
                bare, value = of_qwen35(bare, value, config)
            if bare.endswith("conv.conv.weight"):
                value = value.squeeze(1)
            if model_type in GEMMAS and bare.endswith("norm.weight"):
                value = value + 1
            gated = next((part for part in ("mlp.gated_layers", "mlp.up_gated_layer") if part in bare), None)
            if recipe.separate and gated:
                halves = np.split(value, 2)
                up, gate = halves if gated == "mlp.up_gated_layer" else halves[::-1]
                layer = bare.removeprefix("bert.").split(".")[2]
                found |= {f"blk.{layer}.ffn_up.weight": up, f"blk.{layer}.ffn_gate.weight": gate}
                continue
            for prefix in ("bert.", "roberta."):
                bare = bare.removeprefix(prefix)
            if model_type == "modernbert":
                bare = bare.removeprefix("model.")
            if model_type in DECODERS and not bare.startswith(("model.", "lm_head.")):
                bare = "model." + bare
            # BERT's pooler has the role that the first layer of the head has in RoBERTa.
            bare = bare.replace("pooler.dense", "classifier.dense")
            if bare in ("classifier.weight", "classifier.bias"):
                bare = bare.replace("classifier", "classifier.out_proj")
            if model_type == "xlm-roberta" and bare == "embeddings.position_embeddings.weight":
                value = value[config["pad_token_id"] + 1 :]
            if model_type in LLAMAS:
                for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
                    if f"{part}.weight" in bare:
                        value = interleaved(value, config[heads])
            to = names.get_name(bare, try_suffixes=(".weight", ".bias"))
            assert to, f"llama.cpp has no name for {name}"
            found[to] = value
    return found


def write_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict, recipe: Recipe) -> list[str]:
    """Writes the vocabulary and returns its tokens."""
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model, added = content["model"], {entry["id"]: entry for entry in content["added_tokens"]}
    unigram = model["type"] == "Unigram"
    ids = {index: token for index, (token, _) in enumerate(model["vocab"])} if unigram else {}
    ids |= {} if unigram else {index: token for token, index in model["vocab"].items()}
    ids |= {index: entry["content"] for index, entry in added.items()}
    size = config["vocab_size"]
    tokens = [ids.get(index, f"[PAD{index}]") for index in range(size)]

    spelled = model["type"] == "BPE" and model.get("byte_fallback")

    def kind(index: int) -> gguf.TokenType:
        if spelled and tokens[index].startswith("<0x"):
            return gguf.TokenType.BYTE
        if spelled and tokens[index] == model["unk_token"]:
            return gguf.TokenType.UNKNOWN
        if tokens[index] in recipe.user_defined:
            return gguf.TokenType.USER_DEFINED
        if index in added:
            return gguf.TokenType.CONTROL if added[index]["special"] else gguf.TokenType.USER_DEFINED
        return gguf.TokenType.NORMAL if index in ids else gguf.TokenType.UNUSED

    kinds = [kind(index) for index in range(size)]
    named_id = {token: index for index, token in ids.items()}
    if unigram:
        writer.add_tokenizer_model("t5")
        scores = [score for _, score in model["vocab"]]
        writer.add_token_scores(scores + [-1000.0] * (size - len(scores)))
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        for add, token in ((writer.add_bos_token_id, "<s>"), (writer.add_eos_token_id, "</s>"), (writer.add_sep_token_id, "</s>")):
            add(named_id[token])
        writer.add_unk_token_id(named_id["<unk>"])
    elif spelled:
        writer.add_tokenizer_model("llama")
        merges = [merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"]]
        ranks = {"".join(merge): -float(rank) for rank, merge in reversed(list(enumerate(merges)))}
        writer.add_token_scores([ranks.get(token, -1e6) for token in tokens])
        writer.add_add_space_prefix(False)
        writer.add_bos_token_id(named_id["<bos>"])
        writer.add_eos_token_id(named_id["<eos>"])
        writer.add_unk_token_id(named_id["<unk>"])
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        # The converter writes these with their spaces.
        tokens = [token.replace("\u2581", " ") if token in recipe.user_defined else token for token in tokens]
    elif config["model_type"] == "modernbert":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("modern-bert")
        writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
        for add in (writer.add_add_bos_token, writer.add_add_eos_token, writer.add_add_sep_token):
            add(True)
        writer.add_bos_token_id(named_id["[CLS]"])
        writer.add_sep_token_id(named_id["[SEP]"])
    elif model["type"] == "WordPiece":
        writer.add_tokenizer_model("bert")
        # Padding and other names in brackets become words, too.
        tokens = [
            token if kind == gguf.TokenType.CONTROL else token[2:] if token.startswith("##") else "\u2581" + token
            for token, kind in zip(tokens, kinds)
        ]
        for add, token in ((writer.add_bos_token_id, "[CLS]"), (writer.add_sep_token_id, "[SEP]"), (writer.add_unk_token_id, "[UNK]")):
            add(named_id[token])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(recipe.pre)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        writer.add_token_merges(merges)
        if "<|endoftext|>" in named_id:
            writer.add_eos_token_id(named_id["<|endoftext|>"])
        writer.add_add_eos_token(recipe.add_eos)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    return tokens


def divisors_of_llama3(config: dict) -> np.ndarray:
    """The divisors of the rotary frequencies, which the converter stores instead of Llama 3's scaling."""
    scaling = config["rope_scaling"]
    frequencies = config["rope_theta"] ** -(np.arange(0, config["head_dim"], 2, dtype=np.float32) / config["head_dim"])
    factor, low, high = (scaling[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    length = scaling["original_max_position_embeddings"]
    smooth = np.clip((length * frequencies / (2 * np.pi) - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def add_modern_settings(writer: gguf.GGUFWriter, config: dict) -> None:
    """ModernBERT's windows, activation and rotary bases."""
    writer.add_layer_norm_eps(config["norm_eps"])
    writer.add_causal_attention(False)
    writer.add_sliding_window(config["local_attention"])
    of_text, of_number = gguf.GGUFValueType.STRING, gguf.GGUFValueType.UINT32
    writer.add_key_value("modern-bert.attention.sliding_window_pattern", config["global_attn_every_n_layers"], of_number)
    writer.add_key_value("modern-bert.hidden_act", config["hidden_activation"], of_text)
    pooling = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS}[config.get("classifier_pooling", "cls")]
    writer.add_key_value("modern-bert.classifier.pooling_type", int(pooling), of_number)
    of_all, of_windows = (config["rope_parameters"][kind]["rope_theta"] for kind in ("full_attention", "sliding_attention"))
    writer.add_rope_freq_base(of_all)
    writer.add_key_value("modern-bert.rope.freq_base_swa", of_windows, gguf.GGUFValueType.FLOAT32)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def add_gemma_settings(writer: gguf.GGUFWriter, config: dict) -> None:
    """The windows and rotary base of Gemma 3."""
    scalar = config["query_pre_attn_scalar"]
    assert scalar == config["head_dim"], f"llama.cpp divides scores by the root of head_dim, not of {scalar}"
    if config["use_bidirectional_attention"]:
        writer.add_causal_attention(False)
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    pattern = f"{writer.arch}.attention.sliding_window_pattern"
    writer.add_key_value(pattern, config["sliding_window_pattern"], gguf.GGUFValueType.UINT32)


def add_qwen35_settings(writer: gguf.GGUFWriter, config: dict) -> None:
    """The sizes of Qwen3.5's linear attention, and its rotation."""
    rope = config["rope_parameters"]
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_full_attention_interval(4)
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])


def add_lfm2_settings(writer: gguf.GGUFWriter, config: dict) -> None:
    """The sizes of LFM2: heads of keys by layer, and the width of its MLPs, which config.json lacks."""
    keys = config["num_key_value_heads"]
    writer.add_head_count_kv([0 if kind == "conv" else keys for kind in config["layer_types"]])
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    width, multiple = 2 * config["intermediate_size"] // 3, config["block_multiple_of"]
    writer.kv_data[0].pop("lfm2.feed_forward_length")
    writer.add_feed_forward_length(multiple * -(-width // multiple))


def dense_modules(folder: Path) -> dict[str, np.ndarray]:
    files = {number: folder / f"{number}_Dense/model.safetensors" for number in (2, 3)}
    found = {number: models.read_tensors(file)["linear.weight"] for number, file in files.items() if file.exists()}
    return {f"dense_{number}.weight": values(tensor) for number, tensor in found.items()}


def write(folder: Path, path: Path, recipe: Recipe | None = None) -> Path:
    """Writes the model in `folder` to `path`."""
    recipe = recipe or Recipe()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_type = config["model_type"]
    architecture = architecture_of(config)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(recipe.name or "model")
    add_sizes(writer, config, config["pad_token_id"] + 1 if model_type == "xlm-roberta" else 0)
    tensors = named(folder, config, gguf.get_tensor_name_map(architecture, layers), recipe)
    if model_type in DECODERS:
        (add_lfm2_settings if model_type == "lfm2" else add_decoder_sizes)(writer, config)
        is_bidirectional = model_type == "eurobert" or config["architectures"] == ["Lfm2BidirectionalModel"]
        if is_bidirectional or config.get("is_causal") is False:
            writer.add_causal_attention(False)
        if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
            tensors["rope_freqs.weight"] = divisors_of_llama3(config)
        if model_type == "qwen3_5_text":
            add_qwen35_settings(writer, config)
        if model_type == "gemma3_text":
            add_gemma_settings(writer, config)
            tensors |= dense_modules(folder) if recipe.dense else {}
    elif model_type == "modernbert":
        add_modern_settings(writer, config)
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["layer_norm_epsilon"])
        writer.add_causal_attention(False)
        writer.add_token_type_count(config.get("type_vocab_size") or 1)
    if config.get("moe_every_n_layers"):
        writer.add_moe_every_n_layers(config["moe_every_n_layers"])
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["moe_top_k"])
    tokens = write_tokenizer(writer, folder, config, recipe)
    if recipe.pooling is not None:
        writer.add_pooling_type(recipe.pooling)
    if recipe.rerank:
        head = tensors.pop("output.weight", tensors["token_embd.weight"])
        tensors["cls.output.weight"] = head[[tokens.index("yes"), tokens.index("no")]]
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_chat_template([{"name": "rerank", "template": recipe.prompt}])
    for key, value in recipe.metadata.items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, value in tensors.items():
        if name not in recipe.without:
            value = value[0] if recipe.flat and value.ndim == 2 and len(value) == 1 else value
            add_tensor(writer, name, value, recipe.kind, widened=recipe.widened)
    finish(writer, path)
    return path
