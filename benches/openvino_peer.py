#!/usr/bin/env python3
"""OpenVINO as a peer, with the graph that `openvino_graph.py` writes, in batches padded on the right.

usage: openvino_peer.py MODEL_FOLDER GRAPH float32|bfloat16 THREADS; see peer.py for its input and output."""

import sys

import numpy as np
import openvino
from peer import Prompts, batched, serve, sigmoid


def main() -> None:
    folder, graph, dtype, threads = sys.argv[1:]
    prompts = Prompts(folder)
    hints = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype], "INFERENCE_NUM_THREADS": int(threads),
             "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(graph, "CPU", hints)

    def score(ids: list[list[int]]) -> list[float]:
        lengths = np.array([len(text) for text in ids])
        padding = int(lengths.max()) - lengths
        inputs = {
            "input_ids": np.array([text + [0] * pad for text, pad in zip(ids, padding, strict=True)], dtype=np.int64),
            "attention_mask": np.array([[1] * len(text) + [0] * pad for text, pad in zip(ids, padding, strict=True)]),
            "last": lengths - 1,
        }
        return [sigmoid(float(yes) - float(no)) for yes, no in compiled(inputs)[0]]

    serve(prompts, lambda ids, batch: batched(ids, batch, score))


if __name__ == "__main__":
    main()
