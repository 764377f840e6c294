"""Writes the reference's encoders as ONNX files, in the form that exporters write, without PyTorch.

Input: a model folder with safetensors weights of BERT or RoBERTa. Output: a graph of plain operators in
float32. Invariants: the graph computes the same values as `transformers`, so that the server is compared with
the values that `transformers` gave.
"""

import json
from pathlib import Path

import arrays
import models
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# For each head: the name of the graph's output, and its shape.
OUTPUTS = {
    "states": ("last_hidden_state", ["texts", "tokens", None]),
    "sentence": ("sentence_embedding", ["texts", None]),
    "labels": ("logits", ["texts", None]),
    "masked": ("logits", ["texts", "tokens", None]),
}


def weights(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file in float32, by their names without the model's prefix."""
    tensors = models.read_tensors(file).items()
    return {name.removeprefix("bert.").removeprefix("roberta."): arrays.values(tensor) for name, tensor in tensors}


class Graph:
    """A list of nodes. Each node is named after its output."""

    def __init__(self) -> None:
        self.nodes, self.tensors, self.count = [], {}, 0

    def constant(self, values: object, dtype: type = np.float32) -> str:
        self.count += 1
        return self.tensor(f"constant{self.count}", np.array(values, dtype=dtype))

    def tensor(self, name: str, values: np.ndarray) -> str:
        self.tensors[name] = values
        return name

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        self.count += 1
        output = f"{operator.lower()}{self.count}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def shape(self, values: list[int]) -> str:
        return self.constant(values, np.int64)


class Encoder:
    """An encoder of BERT's kind with the heads that it can have."""

    def __init__(self, folder: Path, inputs: tuple[str, ...], narrow: bool):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = weights(folder / "model.safetensors")
        self.graph, self.inputs, self.narrow = Graph(), inputs, narrow
        self.is_roberta = "roberta" in self.config["model_type"]

    def weight(self, name: str, *, transposed: bool = False) -> str:
        values = self.weights[name]
        return self.graph.tensor(name, np.ascontiguousarray(values.T if transposed else values))

    def linear(self, x: str, name: str) -> str:
        product = self.graph.node("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.graph.node("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.graph.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.config["layer_norm_eps"])

    def gelu(self, x: str) -> str:
        graph = self.graph
        erf = graph.node("Erf", graph.node("Div", x, graph.constant(np.sqrt(2))))
        return graph.node("Mul", graph.node("Mul", x, graph.node("Add", erf, graph.constant(1))), graph.constant(0.5))

    def input(self, name: str) -> str:
        """An input of the graph, cast to int64."""
        return self.graph.node("Cast", name, to=TensorProto.INT64) if self.narrow else name

    def positions(self, ids: str) -> str:
        graph = self.graph
        if "position_ids" in self.inputs:
            return self.input("position_ids")
        if self.is_roberta:
            padding = graph.constant(self.config["pad_token_id"], np.int64)
            words = graph.node("Cast", graph.node("Not", graph.node("Equal", ids, padding)), to=TensorProto.INT64)
            counted = graph.node("CumSum", words, graph.constant(1, np.int64))
            return graph.node("Add", graph.node("Mul", counted, words), padding)
        ones = graph.node("Mul", ids, graph.constant(0, np.int64))
        ones = graph.node("Add", ones, graph.constant(1, np.int64))
        counted = graph.node("CumSum", ones, graph.constant(1, np.int64))
        return graph.node("Sub", counted, graph.constant(1, np.int64))

    def embedded(self) -> str:
        graph, ids = self.graph, self.input("input_ids")
        types = (
            self.input("token_type_ids") if "token_type_ids" in self.inputs else graph.node("Mul", ids, graph.constant(0, np.int64))
        )
        words = graph.node("Gather", self.weight("embeddings.word_embeddings.weight"), ids)
        kinds = graph.node("Gather", self.weight("embeddings.token_type_embeddings.weight"), types)
        places = graph.node("Gather", self.weight("embeddings.position_embeddings.weight"), self.positions(ids))
        return self.norm(graph.node("Add", graph.node("Add", words, kinds), places), "embeddings.LayerNorm")

    def attention(self, x: str, mask: str | None, name: str) -> str:
        graph, heads = self.graph, self.config["num_attention_heads"]
        size = self.config["hidden_size"] // heads
        split = graph.shape([0, 0, heads, size])
        query, key, value = (
            graph.node("Transpose", graph.node("Reshape", self.linear(x, f"{name}.self.{part}"), split), perm=[0, 2, 1, 3])
            for part in ("query", "key", "value")
        )
        scores = graph.node("MatMul", query, graph.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = graph.node("Div", scores, graph.constant(np.sqrt(size)))
        scores = graph.node("Add", scores, mask) if mask else scores
        mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
        joined = graph.node("Reshape", graph.node("Transpose", mixed, perm=[0, 2, 1, 3]), graph.shape([0, 0, heads * size]))
        return self.linear(joined, f"{name}.output.dense")

    def states(self) -> str:
        graph, x, mask = self.graph, self.embedded(), None
        if "attention_mask" in self.inputs:
            seen = graph.node("Cast", self.input("attention_mask"), to=TensorProto.FLOAT)
            seen = graph.node("Unsqueeze", seen, graph.shape([1, 2]))
            mask = graph.node("Mul", graph.node("Sub", graph.constant(1), seen), graph.constant(-1e9))
        for layer in range(self.config["num_hidden_layers"]):
            name = f"encoder.layer.{layer}"
            context = self.attention(x, mask, f"{name}.attention")
            x = self.norm(graph.node("Add", x, context), f"{name}.attention.output.LayerNorm")
            inner = self.gelu(self.linear(x, f"{name}.intermediate.dense"))
            x = self.norm(graph.node("Add", x, self.linear(inner, f"{name}.output.dense")), f"{name}.output.LayerNorm")
        return x

    def head(self, states: str, head: str) -> str:
        graph = self.graph
        if head == "sentence":
            return graph.node("ReduceMean", states, axes=[1], keepdims=0)
        if head == "labels":
            first = graph.node("Gather", states, graph.constant(0, np.int64), axis=1)
            dense, logits = ("classifier.dense", "classifier.out_proj") if self.is_roberta else ("pooler.dense", "classifier")
            return self.linear(graph.node("Tanh", self.linear(first, dense)), logits)
        if head == "masked":
            transform = "cls.predictions.transform"
            x = self.norm(self.gelu(self.linear(states, f"{transform}.dense")), f"{transform}.LayerNorm")
            words = self.weights["embeddings.word_embeddings.weight"]
            product = graph.node("MatMul", x, graph.tensor("decoder", np.ascontiguousarray(words.T)))
            return graph.node("Add", product, self.weight("cls.predictions.bias"))
        return states


def save(graph: Graph, path: Path, inputs: list, outputs: list, *, external: str | None = None) -> Path:
    """Writes a graph. With `external`, tensors of 1 KiB or more go into a file of this name next to it."""
    tensors = [numpy_helper.from_array(values, name) for name, values in graph.tensors.items()]
    made = helper.make_graph(graph.nodes, "model", inputs, outputs, tensors)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=external is not None, location=external, size_threshold=1024)
    return path


def encoder(
    folder: Path,
    path: Path,
    head: str = "states",
    inputs: tuple[str, ...] = INPUTS,
    *,
    narrow: bool = False,
    half: bool = False,
    external: str | None = None,
) -> Path:
    """Writes the encoder of `folder` with a head. `narrow`: int32 inputs; `half`: float16 output."""
    model = Encoder(folder, inputs, narrow)
    graph, kind = model.graph, TensorProto.INT32 if narrow else TensorProto.INT64
    name, shape = OUTPUTS[head]
    result = model.head(model.states(), head)
    if half:
        graph.nodes.append(helper.make_node("Cast", [result], [name], to=TensorProto.FLOAT16))
    else:
        graph.nodes.append(helper.make_node("Identity", [result], [name]))
    taken = [helper.make_tensor_value_info(it, kind, ["texts", "tokens"]) for it in inputs]
    given = helper.make_tensor_value_info(name, TensorProto.FLOAT16 if half else TensorProto.FLOAT, shape)
    return save(graph, path, taken, [given], external=external)


def causal(path: Path, vocabulary: int, seed: int = 0) -> Path:
    """Writes a small causal model: the running mean of token vectors, projected onto the vocabulary."""
    graph, random = Graph(), np.random.default_rng(seed)
    table = graph.tensor("table", random.normal(size=(vocabulary, 16)).astype(np.float32))
    words = graph.node("Gather", table, "input_ids")
    places = graph.node("CumSum", graph.node("Cast", "attention_mask", to=TensorProto.FLOAT), graph.constant(1, np.int64))
    sums = graph.node("CumSum", words, graph.constant(1, np.int64))
    means = graph.node("Div", sums, graph.node("Unsqueeze", places, graph.shape([2])))
    head = graph.tensor("head", random.normal(size=(16, vocabulary)).astype(np.float32))
    graph.nodes.append(helper.make_node("MatMul", [graph.node("Tanh", means), head], ["logits"]))
    taken = [helper.make_tensor_value_info(it, TensorProto.INT64, ["texts", "tokens"]) for it in INPUTS[:2]]
    given = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["texts", "tokens", vocabulary])
    return save(graph, path, taken, [given])


def changed(path: Path, change) -> Path:
    """Applies `change` to the `GraphProto` of a written model and writes the model back."""
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)
    return path
