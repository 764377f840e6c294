#!/usr/bin/env python3
"""Writes the benchmark's model as a GGUF file for llama.cpp. Without a tokenizer: the peer gives ids.

Matrices are kept in bfloat16 (BF16) or quantised in blocks (Q8_0), norms in float32, as llama.cpp's own
converter and quantiser have it. usage: gguf_file.py MODEL_FOLDER GGUF_FILE BF16|Q8_0"""

import sys
from pathlib import Path

import gguf
import numpy as np
from checkpoint import Checkpoint

CONTEXT = 40960


def write(folder: Path, path: Path, kind: str) -> None:
    checkpoint = Checkpoint(folder)
    config = checkpoint.config
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    chosen = gguf.GGMLQuantizationType[kind]
    for name in checkpoint.entries:
        if name == "__metadata__":
            continue
        to = names.get_name(name, try_suffixes=(".weight",))
        bits = checkpoint.bits(name)
        if bits.ndim == 1:
            writer.add_tensor(to, checkpoint.values(name))
        elif chosen == gguf.GGMLQuantizationType.BF16:
            writer.add_tensor(to, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=chosen)
        else:
            writer.add_tensor(to, gguf.quants.quantize(checkpoint.values(name), chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
