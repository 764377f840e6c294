#!/usr/bin/env python3
"""Writes a checkpoint with the exact shape of Qwen3-Reranker-0.6B and seeded random weights (1.2 GB), for
`make bench`.

Input: a folder with tokenizer.json. Output: a model folder. Needs only numpy. The scores differ by text, but
mean nothing.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from weights import random_tensor, tensor_shapes, write_json, write_safetensors

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}
SEED = 6


def check_tokenizer(path: Path, vocab: int) -> None:
    """Exits with an error if this model could not be served with the tokenizer."""
    content = json.loads(path.read_text(encoding="utf-8"))
    plain = content["model"]["vocab"]
    missing = [token for token in ("yes", "no") if token not in plain]
    if missing:
        sys.exit(f"{path}: no token {missing[0]!r} in the vocabulary; give --tokenizer a folder with Qwen3's tokenizer.json")
    largest = max([*plain.values(), *(token["id"] for token in content["added_tokens"])])
    if largest >= vocab:
        sys.exit(f"{path}: token id {largest} does not fit --vocab {vocab}; make --vocab larger")


def main() -> None:
    """Writes the folder. The weights come last, under a temporary name until the file is complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write; created if missing")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json and perhaps tokenizer_config.json")
    parser.add_argument("--vocab", type=int, default=151669, help="rows of the embedding (default: %(default)s, as Qwen3)")
    arguments = parser.parse_args()
    check_tokenizer(arguments.tokenizer / "tokenizer.json", arguments.vocab)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (arguments.tokenizer / name).exists():
            shutil.copyfile(arguments.tokenizer / name, arguments.folder / name)
    config = CONFIG | {"vocab_size": arguments.vocab}
    write_json(arguments.folder / "config.json", config)
    shapes = tensor_shapes(config)
    weights = arguments.folder / "model.safetensors"
    unfinished = weights.with_suffix(".unfinished")
    write_safetensors(unfinished, shapes, (random_tensor(name, shape, SEED, 1.0) for name, shape in shapes.items()), "bfloat16")
    unfinished.rename(weights)


if __name__ == "__main__":
    main()
