#!/usr/bin/env python3
"""Writes fixtures/blocks.json: random blocks of each quantised type of GGUF, and the bits of their float32
values as llama.cpp's own package decodes them (`gguf`, in `../requirements.txt`).

usage: blocks.py"""

import json
from pathlib import Path

import gguf
import numpy as np

TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "Q2_K", "Q3_K")
# Byte offsets of the float16 scales in a block. Other bytes may have any value.
SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,)}
VALUES = 512


def blocks(name: str, generator: np.random.Generator) -> np.ndarray:
    """Whole blocks with finite scales."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = VALUES // values
    if name == "F16":
        return generator.normal(size=count).astype(np.float16).view(np.uint8)
    if name == "BF16":
        return (generator.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    found = generator.integers(0, 256, (count, size), dtype=np.uint8)
    for place in SCALES.get(name, (0,)):
        found[:, place : place + 2] = generator.normal(size=(count, 1)).astype(np.float16).view(np.uint8)
    return found.reshape(-1)


def main() -> None:
    generator = np.random.default_rng(18)
    rows = {}
    for name in TYPES:
        stored = blocks(name, generator)
        values = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name])
        assert values.dtype == np.float32 and values.size == VALUES and np.isfinite(values).all()
        rows[name] = {"blocks": stored.tobytes().hex(), "values": values.astype("<f4").tobytes().hex()}
    path = Path(__file__).parent / "fixtures" / "blocks.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
