"""A bfloat16 checkpoint of one safetensors file, for the writers of the peers' own formats.

Input: a model folder. Output: its configuration, and tensors as bfloat16's bits or as float32."""

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
        """The upper halves of the float32 values."""
        entry = self.entries[name]
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is stored as {entry['dtype']}, not as BF16")
        start, end = entry["data_offsets"]
        return self.bytes[start:end].view(np.uint16).reshape(entry["shape"])

    def values(self, name: str) -> np.ndarray:
        """The same as float32."""
        return (self.bits(name).astype(np.uint32) << 16).view(np.float32)
