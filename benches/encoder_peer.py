#!/usr/bin/env python3
"""Libraries as peers for encoders: from texts to vectors or scores, in one padded batch.

Standard input has a request on each line, {"texts": [...]} or {"query", "texts"}. Standard output gets one
line when the peer is ready, then {"seconds", "values"} for each request: the normalised vector of each text,
or the score of each pair. The graphs of onnxruntime and OpenVINO are made from the model in float32 and kept
in WORK.
usage: encoder_peer.py MODEL_FOLDER KIND ARITHMETIC WORK cpu|cuda THREADS"""

import fcntl
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from peer import answer_requests, answers_only
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

Run = Callable[[dict[str, np.ndarray]], np.ndarray]
INPUTS = ("input_ids", "attention_mask")


class Bare(torch.nn.Module):
    """The model as a function of its two inputs. It returns logits if it has a head, else hidden states."""

    def __init__(self, folder: str, dtype: torch.dtype):
        super().__init__()
        classifies = AutoConfig.from_pretrained(folder).architectures[0].endswith("ForSequenceClassification")
        kind = AutoModelForSequenceClassification if classifies else AutoModel
        self.model = kind.from_pretrained(folder, dtype=dtype).eval()
        self.output = "logits" if classifies else "last_hidden_state"

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[self.output]


def with_torch(folder: str, dtype: str, device: str) -> Run:
    bare = Bare(folder, getattr(torch, dtype)).to(device)

    @torch.inference_mode()
    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        return bare(*(torch.from_numpy(inputs[name]).to(device) for name in INPUTS)).float().cpu().numpy()

    return run


def example() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([[101, 7592, 2088, 102], [101, 2748, 102, 0]])
    return ids, (ids != 0).long()


def with_openvino(folder: str, dtype: str, work: Path, threads: int) -> Run:
    import openvino

    path, core = work / "openvino.xml", openvino.Core()
    if not path.exists():
        graph = openvino.convert_model(Bare(folder, torch.float32), example_input=dict(zip(INPUTS, example(), strict=True)))
        openvino.save_model(graph, path, compress_to_fp16=False)
    hints = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype], "INFERENCE_NUM_THREADS": threads,
             "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(path, "CPU", hints)
    return lambda inputs: compiled(inputs)[0]


def with_onnxruntime(folder: str, dtype: str, work: Path, threads: int) -> Run:
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = work / "float32.onnx"
    if not path.exists():
        axes = dict.fromkeys((*INPUTS, "output"), {0: "texts", 1: "tokens"})
        # The path must be a string: only then are weights of more than 2 GB written to separate files.
        torch.onnx.export(Bare(folder, torch.float32), example(), str(path), input_names=list(INPUTS), output_names=["output"],
                          dynamic_axes=axes, dynamo=False)
    if dtype == "int8":
        quantised = work / "int8.onnx"
        if not quantised.exists():
            quantize_dynamic(path, quantised, weight_type=QuantType.QInt8, use_external_data_format=True)
        path = quantised
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def values(output: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The scores for logits, or the normalised mean of hidden states."""
    if output.ndim == 2:
        return 1 / (1 + np.exp(-output[:, 0]))
    mean = (output * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def main() -> None:
    folder, kind, dtype, work, device, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    # Must come before the libraries are loaded, because they print to standard output.
    answers = answers_only()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    Path(work).mkdir(parents=True, exist_ok=True)
    if kind == "transformers":
        run = with_torch(folder, dtype, device)
    else:
        with (Path(work) / "lock").open("w") as lock:
            # Several peers start at once. None may read a graph that another one still writes.
            fcntl.flock(lock, fcntl.LOCK_EX)
            make = {"openvino": with_openvino, "onnxruntime": with_onnxruntime}[kind]
            run = make(folder, dtype, Path(work), int(threads))

    def respond(request: dict) -> dict:
        texts = request["texts"]
        pair = [[request["query"]] * len(texts), texts] if "query" in request else [texts]
        encoded = tokenizer(*pair, padding=True, return_tensors="np")
        inputs = {name: encoded[name].astype(np.int64) for name in INPUTS}
        return {"values": values(run(inputs), inputs["attention_mask"])}

    answer_requests(answers, respond)


if __name__ == "__main__":
    main()
