#!/usr/bin/env python3
"""Writes the benchmark's model as a graph for `onnxruntime`, in float32 and with its fused operators: the
best that its optimiser could make of an exported model. The last token's state is taken before the final
norm, and the head has two rows. So the graph computes nothing that a re-ranker does not need, except for the
other rows of the last layer.

Inputs of the graph: `input_ids` [texts, longest], padded on the right; `last` [texts], the index of each
text's last token; `longest`. Output: `answers` [texts, 2], the logits of `yes` and `no`.
usage: onnx_graph.py MODEL_FOLDER GRAPH_FILE"""

import sys
from pathlib import Path

import numpy as np
import onnx
from checkpoint import Checkpoint
from onnx import TensorProto, helper, numpy_helper
from peer import Prompts

MICROSOFT = "com.microsoft"
# Rows of the rotation table: more than the tokens of any text in the workloads.
POSITIONS = 2048


class Graph:
    """Nodes and weights. Large weights are written to a file next to the graph as soon as they are added."""

    def __init__(self, path: Path):
        self.path, self.nodes, self.weights = path, [], []
        self.data = path.with_suffix(".data").open("wb")

    def weight(self, name: str, values: np.ndarray) -> str:
        values = np.ascontiguousarray(values)
        if values.nbytes < 4096:
            # Small tensors stay in the graph, because shapes must be there.
            self.weights.append(numpy_helper.from_array(values, name))
            return name
        tensor = TensorProto(name=name, dims=values.shape, data_type=helper.np_dtype_to_tensor_dtype(values.dtype))
        tensor.data_location = TensorProto.EXTERNAL
        self.data.write(b"\0" * (-self.data.tell() % 4096))
        place = {"location": Path(self.data.name).name, "offset": self.data.tell(), "length": values.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        values.tofile(self.data)
        self.weights.append(tensor)
        return name

    def node(self, operator: str, inputs: list[str], output: str, domain: str = "", **attributes) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def save(self, inputs: list, outputs: list) -> None:
        graph = helper.make_graph(self.nodes, "qwen3", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        self.data.close()
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), self.path)


def rotation(config: dict) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, [positions, head size / 2]."""
    size = config["head_dim"]
    speeds = config["rope_theta"] ** -(np.arange(0, size, 2) / size)
    angles = np.outer(np.arange(POSITIONS), speeds)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class Layers:
    def __init__(self, graph: Graph, checkpoint: Checkpoint):
        self.graph, self.checkpoint, self.config = graph, checkpoint, checkpoint.config
        cosines, sines = rotation(self.config)
        graph.weight("cosines", cosines)
        graph.weight("sines", sines)
        for name, shape in (("flat", [-1, self.config["head_dim"]]),
                            ("queries", [0, -1, self.config["num_attention_heads"] * self.config["head_dim"]]),
                            ("keys", [0, -1, self.config["num_key_value_heads"] * self.config["head_dim"]])):
            graph.weight(f"shape_{name}", np.array(shape, dtype=np.int64))

    def product(self, x: str, name: str) -> str:
        weight = self.graph.weight(name, self.checkpoint.values(f"model.{name}.weight").T)
        return self.graph.node("MatMul", [x, weight], f"{name}.out")

    def norm_weight(self, name: str) -> str:
        return self.graph.weight(name, self.checkpoint.values(f"model.{name}.weight"))

    def head_norm(self, x: str, name: str, shape: str) -> str:
        """Normalises each head, as a row of its own. The `0` and `-1` of the shapes keep texts and tokens."""
        graph, whole = self.graph, f"{name}.shape"
        graph.node("Shape", [x], whole)
        flat = graph.node("Reshape", [x, "shape_flat"], f"{name}.flat")
        normed = graph.node("SimplifiedLayerNormalization", [flat, self.norm_weight(name)], f"{name}.normed",
                            epsilon=self.config["rms_norm_eps"], axis=-1)
        return graph.node("Reshape", [normed, whole], f"{name}.out")

    def attention(self, x: str, prefix: str) -> str:
        query, key, value = (self.product(x, f"{prefix}.self_attn.{part}_proj") for part in "qkv")
        query = self.head_norm(query, f"{prefix}.self_attn.q_norm", "shape_queries")
        key = self.head_norm(key, f"{prefix}.self_attn.k_norm", "shape_keys")
        inputs = [query, key, value, "", "", "last", "longest", "cosines", "sines"]
        out = f"{prefix}.context"
        node = helper.make_node("GroupQueryAttention", inputs, [out, f"{out}.keys", f"{out}.values"], domain=MICROSOFT,
                                num_heads=self.config["num_attention_heads"],
                                kv_num_heads=self.config["num_key_value_heads"], do_rotary=1)
        self.graph.nodes.append(node)
        return self.product(out, f"{prefix}.self_attn.o_proj")

    def mlp(self, x: str, prefix: str) -> str:
        gate, up = (self.product(x, f"{prefix}.mlp.{part}_proj") for part in ("gate", "up"))
        # x · sigmoid(x)
        gate = self.graph.node("QuickGelu", [gate], f"{prefix}.mlp.silu", domain=MICROSOFT, alpha=1.0)
        return self.product(self.graph.node("Mul", [gate, up], f"{prefix}.mlp.gated"), f"{prefix}.mlp.down_proj")

    def sum_and_norm(self, x: str, residual: str, name: str) -> tuple[str, str]:
        """The norm of the sum, and the sum."""
        normed, total = f"{name}.out", f"{name}.sum"
        node = helper.make_node("SkipSimplifiedLayerNormalization", [x, residual, self.norm_weight(name)],
                                [normed, "", "", total], domain=MICROSOFT, epsilon=self.config["rms_norm_eps"])
        self.graph.nodes.append(node)
        return normed, total

    def forward(self, residual: str) -> str:
        """The hidden states before the final norm."""
        graph = self.graph
        normed = graph.node("SimplifiedLayerNormalization", [residual, self.norm_weight("layers.0.input_layernorm")],
                            "layers.0.normed", epsilon=self.config["rms_norm_eps"], axis=-1)
        count = self.config["num_hidden_layers"]
        for layer in range(count):
            prefix = f"layers.{layer}"
            context = self.attention(normed, prefix)
            normed, residual = self.sum_and_norm(context, residual, f"{prefix}.post_attention_layernorm")
            update = self.mlp(normed, prefix)
            if layer + 1 < count:
                normed, residual = self.sum_and_norm(update, residual, f"layers.{layer + 1}.input_layernorm")
        return graph.node("Add", [update, residual], "hidden")


def write(folder: Path, path: Path) -> None:
    checkpoint, graph = Checkpoint(folder), Graph(path)
    prompts = Prompts(str(folder))
    layers = Layers(graph, checkpoint)
    embedding = checkpoint.values("model.embed_tokens.weight")
    hidden = graph.node("Gather", [graph.weight("embed_tokens", embedding), "input_ids"], "embedded")
    hidden = layers.forward(hidden)
    # The state of each text at its last token: [texts, 1, hidden].
    axis = graph.weight("axis", np.array([1], dtype=np.int64))
    places = graph.node("Cast", [graph.node("Unsqueeze", ["last", axis], "last.column")], "places", to=TensorProto.INT64)
    last = graph.node("GatherND", [hidden, places], "last.state", batch_dims=1)
    final = graph.node("SimplifiedLayerNormalization", [last, layers.norm_weight("norm")], "final",
                       epsilon=checkpoint.config["rms_norm_eps"], axis=-1)
    head = embedding[[prompts.yes, prompts.no]] if checkpoint.config["tie_word_embeddings"] else \
        checkpoint.values("lm_head.weight")[[prompts.yes, prompts.no]]
    graph.node("MatMul", [final, graph.weight("head", head.T)], "answers")
    graph.save(
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["texts", "tokens"]),
         helper.make_tensor_value_info("last", TensorProto.INT32, ["texts"]),
         helper.make_tensor_value_info("longest", TensorProto.INT32, [])],
        [helper.make_tensor_value_info("answers", TensorProto.FLOAT, ["texts", 2])],
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
