"""The parts of a GGUF file that the tests' files (`gguf_files.py`) and the benchmark's
(`benches/gguf_file.py`) share.

Input: a `gguf.GGUFWriter`, the content of a config.json, float32 arrays. Output: metadata and tensors in the
file. Needs only gguf and numpy, because the benchmark runs in an environment of its own.
"""

from pathlib import Path

import gguf
import numpy as np


def add_sizes(writer: gguf.GGUFWriter, config: dict, unused_positions: int = 0) -> None:
    """Adds the sizes that all architectures have. `unused_positions` shortens the longest text."""
    writer.add_embedding_length(config.get("hidden_size") or config["n_embd"])
    writer.add_block_count(config.get("num_hidden_layers") or config["n_layer"])
    writer.add_head_count(config.get("num_attention_heads") or config["n_head"])
    writer.add_feed_forward_length(config.get("intermediate_size") or config["n_inner"])
    writer.add_context_length((config.get("n_positions") or config["max_position_embeddings"]) - unused_positions)
    rotary = config.get("rope_theta") or config.get("rotary_emb_base")
    rotary = rotary or config.get("rope_parameters", {}).get("rope_theta")
    if rotary:
        writer.add_rope_freq_base(rotary)


def add_decoder_sizes(writer: gguf.GGUFWriter, config: dict) -> None:
    """Adds the sizes that only decoders have."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str, *, widened: bool = False) -> None:
    """Adds a tensor. Like llama.cpp's converter, it stores matrices as `kind` (such as Q8_0), and F32 for
    vectors, small tables and rows that are not whole blocks. With `widened`, it stores the F32 values that
    `kind` decodes to."""
    values = np.ascontiguousarray(values, np.float32)
    chosen = gguf.GGMLQuantizationType[kind]
    is_small = values.ndim == 1 or name.startswith(("position_embd", "token_types"))
    if is_small or kind == "F32" or values.shape[-1] % gguf.GGML_QUANT_SIZES[chosen][0]:
        writer.add_tensor(name, values)
        return
    stored = gguf.quants.quantize(values, chosen)
    if widened:
        writer.add_tensor(name, gguf.quants.dequantize(stored, chosen))
    else:
        writer.add_tensor(name, stored, raw_dtype=chosen)


def finish(writer: gguf.GGUFWriter, path: Path) -> None:
    """Writes the file."""
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
