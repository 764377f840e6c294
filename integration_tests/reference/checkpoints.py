"""Makes the model folders: configuration, weights, tokenizer, and for one model the official repository's
extra files.

Input: `SPECS`, and the cases on which the answer rows are calibrated. Output: fixtures/models/<name>/. Needs
torch and transformers.
"""

import json
import shutil
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM

from prompt import DEFAULT_INSTRUCTION, SUFFIX, SYSTEM_LINE
from weights import Arrays, random_tensor, tensor_shapes, write_checkpoint, write_json

TARGET_STD = 2.5
BASE = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "rms_norm_eps": 1e-06,
    "sliding_window": None,
    "use_cache": True,
    "use_sliding_window": False,
}
FLAT_ROPE = {"rope_scaling": None, "rope_theta": 1000000}
NESTED_ROPE = {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}}


def spec(seed, dtype, sizes, tied, rope, **options):
    """The recipe of a checkpoint. `sizes`: hidden, intermediate, layers, query heads, key heads, head_dim.
    `options`: shards, bare, official, extra_rows."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    config = BASE | dict(zip(keys, sizes, strict=True)) | rope | {"tie_word_embeddings": tied, "torch_dtype": dtype}
    defaults = {"shards": 1, "bare": False, "official": False, "extra_rows": 0}
    return {"seed": seed, "dtype": dtype, "config": config} | defaults | options


SPECS = {
    "tied-bf16": spec(1, "bfloat16", (64, 160, 3, 4, 2, 24), True, FLAT_ROPE, official=True),
    "untied-bf16-shards": spec(2, "bfloat16", (48, 128, 3, 8, 2, 16), False, NESTED_ROPE, shards=2),
    "tied-f32-bare": spec(3, "float32", (40, 88, 2, 3, 1, 24), True, FLAT_ROPE, bare=True),
    # More rows than the tokenizer has tokens, no grouped heads, and another theta.
    "untied-f16": spec(4, "float16", (32, 96, 2, 4, 4, 16), False, {"rope_scaling": None, "rope_theta": 10000.0}, extra_rows=18),
}
CHAT_TEMPLATE = (
    "{%- set default = " + json.dumps(DEFAULT_INSTRUCTION) + " -%}\n"
    '{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default(default) -%}\n'
    '{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}\n'
    f"<|im_start|>system\n{SYSTEM_LINE}<|im_end|>\n<|im_start|>user\n"
    "<Instruct>: {{ instruction }}\n<Query>: {{ query }}\n<Document>: {{ document }}" + SUFFIX + "\n"
)


def load(folder: Path) -> AutoModelForCausalLM:
    """Loads the checkpoint in float32. Every tensor must be used, and none may be missing."""
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


@torch.no_grad()
def last_hidden(model: AutoModelForCausalLM, id_lists: list[list[int]]) -> numpy.ndarray:
    """Hidden states of the last position after the final norm, one row per prompt, computed in float32."""
    rows = [model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1] for ids in id_lists]
    return torch.stack(rows).double().numpy()


def calibrate(folder: Path, tensors: Arrays, answers: tuple[int, int], id_lists: list[list[int]], spec: dict) -> None:
    """Sets the rows of yes and no so that the prompts' raw scores have mean 0 and standard deviation
    TARGET_STD.

    Each row is a common row plus or minus half of a direction that is orthogonal to the mean hidden state.
    With tied embeddings, the rows also change the input, so several rounds are needed.
    """
    yes, no = answers
    rows = tensors["model.embed_tokens.weight" if spec["config"]["tie_word_embeddings"] else "lm_head.weight"]
    common = rows[no].copy()
    generator = numpy.random.Generator(numpy.random.PCG64(spec["seed"] + 77))
    direction = generator.standard_normal(rows.shape[1])
    for _ in range(6 if spec["config"]["tie_word_embeddings"] else 1):
        write_weights(folder, tensors, spec)
        hidden = last_hidden(load(folder), id_lists)
        mean = hidden.mean(axis=0)
        difference = direction - mean * (direction @ mean) / (mean @ mean)
        difference *= TARGET_STD / (hidden @ difference).std()
        # Six decimals do not change a score visibly, and are equal on machines whose float32 sums differ in
        # the last bit.
        difference = difference.round(6).astype(numpy.float32)
        rows[yes], rows[no] = common + difference / 2, common - difference / 2
    write_weights(folder, tensors, spec)


def write_weights(folder: Path, tensors: Arrays, spec: dict) -> None:
    """Writes the tensors with the checkpoint's dtype, names and number of files."""
    named = {name.removeprefix("model.") if spec["bare"] else name: values for name, values in tensors.items()}
    write_checkpoint(folder, named, spec["dtype"], spec["shards"])


def make_checkpoint(folder: Path, spec: dict, tokenizer: Path, vocabulary: dict[str, int], id_lists: list[list[int]]) -> None:
    """Writes a whole model folder."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    ends = {"bos_token_id": vocabulary["<|endoftext|>"], "eos_token_id": vocabulary["<|im_end|>"]}
    config = spec["config"] | ends | {"vocab_size": len(vocabulary) + spec["extra_rows"]}
    write_json(folder / "config.json", dict(sorted(config.items())))
    answers = vocabulary["yes"], vocabulary["no"]
    if spec["official"]:
        write_official_files(folder, *answers)
    gain = 32 / config["hidden_size"] ** 0.5
    tensors = {name: random_tensor(name, shape, spec["seed"], gain) for name, shape in tensor_shapes(config).items()}
    calibrate(folder, tensors, answers, id_lists, spec)


def write_official_files(folder: Path, yes: int, no: int) -> None:
    """Writes the files that the official repositories have since April 2026."""
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_LogitScore",
            "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
        },
    ]
    write_json(folder / "modules.json", modules)
    (folder / "1_LogitScore").mkdir()
    score = {"true_token_id": yes, "false_token_id": no, "module_input_name": "causal_logits"}
    write_json(folder / "1_LogitScore" / "config.json", score)
    sentence_transformers = {
        "model_type": "CrossEncoder",
        "prompts": {"query": DEFAULT_INSTRUCTION},
        "default_prompt_name": "query",
        "activation_fn": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / "config_sentence_transformers.json", sentence_transformers)
    transformer = {"transformer_task": "text-generation", "module_output_name": "causal_logits"}
    write_json(folder / "sentence_bert_config.json", transformer)
