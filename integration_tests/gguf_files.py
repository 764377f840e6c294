"""Makes GGUF files from the reference's model folders, as llama.cpp's converter does.

Input: a folder with safetensors weights and a tokenizer.json. Output: a `.gguf` file. Tensor names, metadata
and quantisation come from llama.cpp's own `gguf` package. The converter's changes to values and tokens are
repeated here: it interleaves the rows of Llama's queries and keys, marks WordPiece pieces that begin a word
instead of those that continue one, removes RoBERTa's unused positions, and keeps of a re-ranker's output
embedding only the rows of `yes` and `no`.
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
}
DECODERS = ("qwen3", "qwen2", "llama")
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
    # Whether to store quantised matrices as the F32 values that they decode to.
    widened: bool = False


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Alternates the rows of the two halves of each head."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def named(folder: Path, config: dict, names: gguf.TensorNameMap) -> dict[str, np.ndarray]:
    """The folder's tensors under llama.cpp's names."""
    model_type, found = config["model_type"], {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in models.read_tensors(file).items():
            if tensor.dtype == "I64" or name.startswith(("cls.predictions", "lm_head.bias")):
                continue
            value = values(tensor)
            bare = name
            for prefix in ("bert.", "roberta."):
                bare = bare.removeprefix(prefix)
            if model_type in DECODERS and not bare.startswith(("model.", "lm_head.")):
                bare = "model." + bare
            # BERT's pooler has the role that the first layer of the head has in RoBERTa.
            bare = bare.replace("pooler.dense", "classifier.dense")
            if bare in ("classifier.weight", "classifier.bias"):
                bare = bare.replace("classifier", "classifier.out_proj")
            if model_type == "xlm-roberta" and bare == "embeddings.position_embeddings.weight":
                value = value[config["pad_token_id"] + 1 :]
            if model_type == "llama":
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

    def kind(index: int) -> gguf.TokenType:
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
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        for add, token in ((writer.add_bos_token_id, "<s>"), (writer.add_eos_token_id, "</s>"), (writer.add_sep_token_id, "</s>")):
            add(named_id[token])
        writer.add_unk_token_id(named_id["<unk>"])
    elif model["type"] == "WordPiece":
        writer.add_tokenizer_model("bert")
        tokens = [
            token
            if token.startswith("[") and token.endswith("]")
            else token[2:]
            if token.startswith("##")
            else "\u2581" + token
            for token in tokens
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


def write(folder: Path, path: Path, recipe: Recipe | None = None) -> Path:
    """Writes the model in `folder` to `path`."""
    recipe = recipe or Recipe()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_type = config["model_type"]
    architecture = ARCHITECTURES[model_type]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(recipe.name or "model")
    add_sizes(writer, config, config["pad_token_id"] + 1 if model_type == "xlm-roberta" else 0)
    tensors = named(folder, config, gguf.get_tensor_name_map(architecture, layers))
    if model_type in DECODERS:
        add_decoder_sizes(writer, config)
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["layer_norm_epsilon"])
        writer.add_causal_attention(False)
        writer.add_token_type_count(config.get("type_vocab_size") or 1)
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
            add_tensor(writer, name, value, recipe.kind, widened=recipe.widened)
    finish(writer, path)
    return path
