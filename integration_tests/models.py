"""Model folders for tests: changed copies of reference models, and a small random model with any vocabulary.

Input: the name of a reference model and a folder to write to. Output: the new folder. Safetensors
files are read and written with the standard library alone.
"""

import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from server import MODELS

WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}
# A quiet NaN of each type, little-endian.
NAN = {"F32": b"\x00\x00\xc0\x7f", "F16": b"\x00\x7e", "BF16": b"\xc0\x7f"}


@dataclass
class Tensor:
    """A tensor as it is stored in a file."""

    dtype: str
    shape: list[int]
    data: bytearray

    def row(self, index: int) -> slice:
        """The byte range of a matrix row in `data`."""
        size = len(self.data) // self.shape[0]
        return slice(index * size, (index + 1) * size)


def copy(name: str | Path, folder: Path) -> Path:
    """A copy of a reference model, or of another folder's model, which the test may change. The folder is
    called `model`, so its name does not reveal the kind of model."""
    return Path(shutil.copytree(MODELS / name, folder / "model"))


def edit_json(path: Path, change: Callable[[dict], object] | None = None, **values: object) -> None:
    """Sets fields of a JSON file to `values`, then applies `change` to its content."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= values
    if change:
        change(content)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, values = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: Tensor(entry["dtype"], entry["shape"], bytearray(values[slice(*entry["data_offsets"])]))
        for name, entry in header.items()
    }


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a safetensors file."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values()))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Applies `change` to the tensors of a model with one weight file."""
    path = folder / "model.safetensors"
    tensors = read_tensors(path)
    change(tensors)
    write_tensors(path, tensors)


def zero(tensors: dict[str, Tensor], *endings: str) -> None:
    """Sets all tensors whose names have one of the endings to 0."""
    for name, tensor in tensors.items():
        if name.endswith(endings):
            tensor.data[:] = bytes(len(tensor.data))


def make_tiny(folder: Path, tokenizer: Path, vocabulary: int) -> Path:
    """A random, untied bf16 model with one narrow layer and the tokenizer of the folder `tokenizer`."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    hidden, inner, heads, keys, head = 16, 32, 2, 1, 16
    config = json.loads((MODELS / "untied-bf16-shards/config.json").read_text())
    config |= {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1, "head_dim": head}
    config |= {"num_attention_heads": heads, "num_key_value_heads": keys, "vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    layer = {
        "input_layernorm": [hidden],
        "self_attn.q_proj": [heads * head, hidden],
        "self_attn.k_proj": [keys * head, hidden],
        "self_attn.v_proj": [keys * head, hidden],
        "self_attn.o_proj": [hidden, heads * head],
        "self_attn.q_norm": [head],
        "self_attn.k_norm": [head],
        "post_attention_layernorm": [hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    shapes = {f"model.layers.0.{part}.weight": shape for part, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
    shapes |= {"lm_head.weight": [vocabulary, hidden]}
    generator = random.Random(1)
    write_tensors(
        folder / "model.safetensors",
        {name: Tensor("BF16", shape, _random_values(generator, shape)) for name, shape in shapes.items()},
    )
    return folder


def _random_values(generator: random.Random, shape: list[int]) -> bytearray:
    """Values in bf16. Norms are all 1. Matrix values are random, with a magnitude from 0.03 to 0.5: the upper
    byte is drawn from the six entries of `upper`, and the lower byte is random."""
    size = shape[0] if len(shape) == 1 else shape[0] * shape[1]
    if len(shape) == 1:
        return bytearray(b"\x80\x3f" * size)
    values = bytearray(generator.randbytes(2 * size))
    upper = bytes([0x3D, 0x3D, 0x3E, 0xBD, 0xBD, 0xBE])
    values[1::2] = values[1::2].translate(bytes(upper[byte % 6] for byte in range(256)))
    return values
