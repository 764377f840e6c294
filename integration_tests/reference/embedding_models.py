"""Makes the folders of the embedding models: configuration, weights, tokenizer, and the files that only
sentence-transformers reads.

Input: a folder with the tokenizer of the other fixtures. Output: models/<name>/. Needs only numpy.
"""

import json
import shutil
from pathlib import Path

import numpy

from checkpoints import FLAT_ROPE, spec
from embedding_cases import PROMPTS
from weights import Arrays, random_tensor, tensor_shapes, write_checkpoint, write_json

END = "<|endoftext|>"
DENSE_FEATURES = 19
MAX_SEQ_LENGTH = 47
NESTED_ROPE = {"rope_parameters": {"rope_theta": 50000, "rope_type": "default"}}
SPECS = {
    # Like Qwen's repositories: a causal model's architecture, names without `model.`, the older layout.
    "embedding-last": spec(11, "bfloat16", (40, 88, 2, 3, 1, 24), True, FLAT_ROPE, bare=True),
    # Like a model saved by sentence-transformers 6: a limit of its own, a dense module, names with `model.`.
    "embedding-mean-dense": spec(12, "float16", (32, 72, 2, 4, 2, 16), True, NESTED_ROPE),
}
ARCHITECTURES = {"embedding-last": "Qwen3ForCausalLM", "embedding-mean-dense": "Qwen3Model"}
OLD, NEW = "sentence_transformers.models", "sentence_transformers"


def tokenizer_with_end(source: Path) -> dict:
    """tokenizer.json with a post-processor that appends one token to each text, like Qwen3-Embedding's."""
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    end = next(token["id"] for token in content["added_tokens"] if token["content"] == END)
    first, second, special = (
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
        {"SpecialToken": {"id": END, "type_id": 0}},
    )
    template = {
        "type": "TemplateProcessing",
        "single": [first, special],
        "pair": [first, special, second, special],
        "special_tokens": {END: {"id": END, "ids": [end], "tokens": [END]}},
    }
    content["post_processor"] = {"type": "Sequence", "processors": [content["post_processor"], template]}
    return content


def make_embedding_model(folder: Path, name: str, tokenizer: Path) -> None:
    """Writes a whole model folder."""
    folder.mkdir(parents=True)
    content = tokenizer_with_end(tokenizer)
    (folder / "tokenizer.json").write_text(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    shutil.copyfile(tokenizer / "tokenizer_config.json", folder / "tokenizer_config.json")
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    chosen = SPECS[name]
    config = chosen["config"] | {"architectures": [ARCHITECTURES[name]], "vocab_size": max(ids.values()) + 1}
    config |= {"bos_token_id": ids[END], "eos_token_id": ids[END]}
    write_json(folder / "config.json", dict(sorted(config.items())))
    shapes = tensor_shapes(config)
    gain = 32 / config["hidden_size"] ** 0.5
    tensors = {
        key.removeprefix("model.") if chosen["bare"] else key: random_tensor(key, shape, chosen["seed"], gain)
        for key, shape in shapes.items()
    }
    write_checkpoint(folder, tensors, chosen["dtype"])
    prompts = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    (write_old_modules if chosen["bare"] else write_new_modules)(folder, config["hidden_size"], chosen["seed"])


def write_old_modules(folder: Path, hidden: int, _: int) -> None:
    """Writes modules in the older layout: pooling of the last token, with a switch for each mode."""
    write_modules(folder, {"": f"{OLD}.Transformer", "1_Pooling": f"{OLD}.Pooling", "2_Normalize": f"{OLD}.Normalize"})
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": hidden} | {f"pooling_mode_{mode}": mode == "lasttoken" for mode in modes}
    write_json(folder / "1_Pooling/config.json", pooling | {"include_prompt": True})


def write_new_modules(folder: Path, hidden: int, seed: int) -> None:
    """Writes modules in the newer layout: mean pooling, a dense module, a limit on the tokens."""
    modules = {
        "": f"{NEW}.base.modules.transformer.Transformer",
        "1_Pooling": f"{NEW}.sentence_transformer.modules.pooling.Pooling",
        "2_Dense": f"{NEW}.base.modules.dense.Dense",
        "3_Normalize": f"{NEW}.base.modules.normalize.Normalize",
    }
    write_modules(folder, modules)
    write_json(folder / "1_Pooling/config.json", {"embedding_dimension": hidden, "pooling_mode": "mean", "include_prompt": True})
    ends = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    write_json(folder / "3_Normalize/config.json", ends)
    dense = {"in_features": hidden, "out_features": DENSE_FEATURES, "bias": True}
    write_json(folder / "2_Dense/config.json", dense | {"activation_function": "torch.nn.modules.activation.Tanh"} | ends)
    write_checkpoint(folder / "2_Dense", dense_tensors(hidden, seed), "float32")
    limits = {"transformer_task": "feature-extraction", "max_seq_length": MAX_SEQ_LENGTH, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", limits)


def dense_tensors(hidden: int, seed: int) -> Arrays:
    """A matrix whose products are large enough for tanh to bend them, and a bias large enough to be missed if
    it is left out."""
    generator = numpy.random.Generator(numpy.random.PCG64(seed + 77))
    weight = generator.standard_normal((DENSE_FEATURES, hidden), dtype=numpy.float32) / numpy.float32(hidden**0.5)
    bias = generator.standard_normal(DENSE_FEATURES, dtype=numpy.float32) / 2
    return {"linear.weight": weight, "linear.bias": bias}


def write_modules(folder: Path, modules: dict[str, str]) -> None:
    """Writes modules.json and creates the folders that it names."""
    rows = [{"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(modules.items())]
    write_json(folder / "modules.json", rows)
    for path in modules:
        (folder / path).mkdir(exist_ok=True)
