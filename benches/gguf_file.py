#!/usr/bin/env python3
"""Writes the benchmark's model as a GGUF file for llama.cpp. Without a tokenizer, because the peer sends ids.

Matrices are stored in bfloat16 (BF16) or quantised in blocks (Q8_0), norms in float32, like the files of
llama.cpp's own converter and quantiser.
usage: gguf_file.py MODEL_FOLDER GGUF_FILE BF16|Q8_0"""

import sys
from pathlib import Path

import gguf
from checkpoint import Checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration_tests"))
from gguf_writer import add_decoder_sizes, add_sizes, add_tensor, finish  # noqa: E402


def write(folder: Path, path: Path, kind: str) -> None:
    checkpoint = Checkpoint(folder)
    config = checkpoint.config
    writer = gguf.GGUFWriter(None, "qwen3")
    add_sizes(writer, config)
    add_decoder_sizes(writer, config)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name in checkpoint.entries:
        if name != "__metadata__":
            add_tensor(writer, names.get_name(name, try_suffixes=(".weight",)), checkpoint.values(name), kind)
    finish(writer, path)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
