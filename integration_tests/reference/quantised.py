#!/usr/bin/env python3
"""Writes fixtures/quantised_vectors.json: random vectors of odd lengths, and the binary forms that
sentence-transformers gives them (`quantize_embeddings`). Needs requirements.txt next to this file.

usage: quantised.py"""

import json
from pathlib import Path

import numpy as np
from sentence_transformers.util.quantization import quantize_embeddings

LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 100)
# Values at the border of a bit: zeros, and the smallest float32 values.
BORDER = (0.0, -0.0, 1e-45, -1e-45)


def main() -> None:
    generator = np.random.default_rng(20)
    rows = []
    for length in LENGTHS:
        vector = generator.normal(size=length).astype(np.float32)
        vector = np.where(generator.random(length) < 0.2, generator.choice(BORDER, length), vector).astype(np.float32)
        forms = {form: quantize_embeddings(vector[None], form)[0].tolist() for form in ("binary", "ubinary")}
        rows.append({"vector": vector.astype("<f4").tobytes().hex()} | forms)
    path = Path(__file__).parent / "fixtures" / "quantised_vectors.json"
    path.write_text(json.dumps(rows, indent=1).replace("\n   ", " ").replace("\n  ]", "]") + "\n")


if __name__ == "__main__":
    main()
