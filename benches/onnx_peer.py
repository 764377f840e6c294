#!/usr/bin/env python3
"""`onnxruntime` as a peer, with the graph that `onnx_graph.py` writes, in batches padded on the right.

usage: onnx_peer.py MODEL_FOLDER GRAPH THREADS; see peer.py for its input and output."""

import sys

import numpy as np
import onnxruntime
from peer import Prompts, batched, serve, sigmoid


def main() -> None:
    folder, graph, threads = sys.argv[1:]
    prompts = Prompts(folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def score(ids: list[list[int]]) -> list[float]:
        lengths = np.array([len(text) for text in ids], dtype=np.int32)
        longest = int(lengths.max())
        inputs = {
            "input_ids": np.array([text + [0] * (longest - len(text)) for text in ids], dtype=np.int64),
            "last": lengths - 1,
            "longest": np.array(longest, dtype=np.int32),
        }
        (answers,) = session.run(["answers"], inputs)
        return [sigmoid(float(yes) - float(no)) for yes, no in answers]

    serve(prompts, lambda ids, batch: batched(ids, batch, score))


if __name__ == "__main__":
    main()
