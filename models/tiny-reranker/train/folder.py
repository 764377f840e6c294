"""Writes a real model folder: configuration, weights, chat template, the files of sentence-transformers.

Input: sizes, tokenizer, tensors. Output: the folder, complete except for tokenizer.json (tokenizer.py writes
it) and README.md. A file appears whole or not at all.
"""

import json
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from groups import DEFAULT_INSTRUCTION
from model import Shape
from tokenizer import SUFFIX, SYSTEM_LINE

CHAT_TEMPLATE = (
    "{%- set default = " + json.dumps(DEFAULT_INSTRUCTION) + " -%}\n"
    '{%- set instruction = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default(default) -%}\n'
    '{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}\n'
    '{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}\n'
    f"<|im_start|>system\n{SYSTEM_LINE}<|im_end|>\n<|im_start|>user\n"
    "<Instruct>: {{ instruction }}\n<Query>: {{ query }}\n<Document>: {{ document }}" + SUFFIX + "\n"
)
LONGEST = 2048


def config(shape: Shape, tokenizer: Tokenizer) -> dict:
    """config.json of a Qwen3ForCausalLM."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "head_dim": shape.head,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inner,
        "max_position_embeddings": LONGEST,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_heads,
        "rms_norm_eps": shape.epsilon,
        "rope_scaling": None,
        "rope_theta": int(shape.theta),
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    }


def write_folder(folder: Path, shape: Shape, tokenizer: Tokenizer, tensors: dict[str, Tensor]) -> None:
    """Writes everything except tokenizer.json and README.md."""
    (folder / "1_LogitScore").mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config(shape, tokenizer))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    module = "sentence_transformers.{}"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": module.format("base.modules.transformer.Transformer")},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": module.format("cross_encoder.modules.logit_score.LogitScore")},
    ]
    write_json(folder / "modules.json", modules)
    score = {
        "true_token_id": tokenizer.token_to_id("yes"),
        "false_token_id": tokenizer.token_to_id("no"),
        "module_input_name": "causal_logits",
    }
    write_json(folder / "1_LogitScore" / "config.json", score)
    sentence_transformers = {
        "model_type": "CrossEncoder",
        "prompts": {"query": DEFAULT_INSTRUCTION},
        "default_prompt_name": "query",
        "activation_fn": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / "config_sentence_transformers.json", sentence_transformers)
    output = {"method": "forward", "method_output_name": "logits"}
    transformer = {
        "transformer_task": "text-generation",
        # Without "message", sentence-transformers joins query and document and never uses the template.
        "modality_config": {"text": output, "message": output | {"format": "flat"}},
        "module_output_name": "causal_logits",
    }
    write_json(folder / "sentence_bert_config.json", transformer)
    save_file(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").chmod(0o644)
    (folder / "model.safetensors.part").replace(folder / "model.safetensors")


def write_json(path: Path, content: object) -> None:
    """Writes readable JSON with a final newline."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
