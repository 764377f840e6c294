"""Seeded random weights of a Qwen3ForCausalLM, and a writer for the safetensors format. Needs only numpy.

Input: a `config.json` as a dict, and a seed. Output: float32 arrays by tensor name, or files in bf16, f16 or
f32. The same seed gives the same bytes on every machine.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy

Arrays = dict[str, numpy.ndarray]
Shapes = dict[str, tuple[int, ...]]
DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def tensor_shapes(config: dict) -> Shapes:
    """Name and shape of every tensor of the checkpoint, in the order of writing."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def random_tensor(name: str, shape: tuple[int, ...], seed: int, gain: float) -> numpy.ndarray:
    """Random values. Norms are 1 ± 5 %, but q's and k's are 1.5 ± 5 %, so that attention is not uniform.
    Embeddings are N(0, 0.02), other matrices N(0, 0.02 · gain)."""
    generator = numpy.random.Generator(numpy.random.PCG64([seed, zlib.crc32(name.encode())]))
    values = generator.standard_normal(shape, dtype=numpy.float32)
    if len(shape) == 1:
        centre = 1.5 if "q_norm" in name or "k_norm" in name else 1.0
        return numpy.float32(centre) * (1 + numpy.float32(0.05) * values)
    scale = 0.02 if "embed_tokens" in name or "lm_head" in name else 0.02 * gain
    values *= numpy.float32(scale)
    return values


def rounded(values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """The values in the checkpoint's dtype. bf16: the upper 16 bits, rounded to nearest, ties to even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(numpy.float32).view(numpy.uint32)
    bits = bits + numpy.uint32(0x7FFF) + ((bits >> numpy.uint32(16)) & numpy.uint32(1))
    return (bits >> numpy.uint32(16)).astype(numpy.uint16)


def write_safetensors(path: Path, shapes: Shapes, tensors: Iterable[numpy.ndarray], dtype: str) -> None:
    """Writes a file. `tensors` come in the order of `shapes`, one at a time."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = int(numpy.prod(shape)) * (4 if dtype == "float32" else 2)
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, shape), values in zip(shapes.items(), tensors, strict=True):
            assert values.shape == tuple(shape), name
            file.write(rounded(values, dtype).tobytes())


def write_checkpoint(folder: Path, tensors: Arrays, dtype: str, shards: int = 1) -> None:
    """Writes `model.safetensors`, or shards with an index as on the Hub."""
    if shards == 1:
        shapes = {name: values.shape for name, values in tensors.items()}
        write_safetensors(folder / "model.safetensors", shapes, tensors.values(), dtype)
        return
    names, weight_map = list(tensors), {}
    share = -(-len(names) // shards)
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name].shape for name in names[shard * share : (shard + 1) * share]}
        write_safetensors(folder / file_name, part, (tensors[name] for name in part), dtype)
        weight_map |= {name: file_name for name in part}
    total = sum(values.size for values in tensors.values()) * (4 if dtype == "float32" else 2)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: Path, content: object) -> None:
    """Writes indented JSON with a final newline."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
