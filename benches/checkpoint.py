"""Reads a bfloat16 checkpoint with one safetensors file, for the programs that write it in the peers'
formats.

Input: a model folder. Output: its configuration, and its tensors as bfloat16 bits or as float32."""

import json
from pathlib import Path

import numpy as np


class Checkpoint:
    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        file = folder / "model.safetensors"
        with file.open("rb") as opened:
            header = int.from_bytes(opened.read(8), "little")
            self.entries = json.loads(opened.read(header))
        self.bytes = np.memmap(file, dtype=np.uint8, mode="r", offset=8 + header)

    def bits(self, name: str) -> np.ndarray:
        """The bfloat16 values as uint16: the upper halves of the float32 values."""
        entry = self.entries[name]
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is stored as {entry['dtype']}, not as BF16")
        start, end = entry["data_offsets"]
        return self.bytes[start:end].view(np.uint16).reshape(entry["shape"])

    def values(self, name: str) -> np.ndarray:
        """The values as float32."""
        return (self.bits(name).astype(np.uint32) << 16).view(np.float32)
