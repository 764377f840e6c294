#!/usr/bin/env python3
"""Measures each family of docs/rerankers.md on a random model of its shape: `make compare`.

Each model and a model of Qwen3-Reranker-0.6B's shape get W1 (one query, 32 texts of about 128 tokens) in
turn, in rounds. The model that is not being asked is paused (SIGSTOP). Output: pairs per second, and
GFLOP/s as a share of the base model's, into benches/results/rerankers.json and, with --write, into the table
of docs/rerankers.md.

The widths are the models' own, except for the embedding, which has Qwen's vocabulary. Of large models, only
some layers are written (`layers` of `all_layers`); pairs per second are scaled to all layers, GFLOP/s need no
scaling. GFLOP/s count the products of the layers, without attention, for the tokens that the server computed
according to te_batch_tokens_computed. Of the last layer, only keys and values count, unless the model reads
the states of all tokens: the server computes no more than that. A model is deleted once it has been measured.
To add a family, add a row to SHAPES. Needs numpy and Qwen3's tokenizer."""

import argparse
import datetime
import json
import re
import shutil
import statistics
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from systems import Server, commit, machine

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration_tests" / "reference"))
import weights  # noqa: E402

PAGE = HERE.parent / "docs" / "rerankers.md"
BEGIN, END = "<!-- made by benches/reranker_speeds.py -->\n", "<!-- end -->\n"
SEED = 18


@dataclass(frozen=True)
class Shape:
    """A model's layers. `name` is the name of its folder, which tells the server its family; `parameters` is
    from its card."""

    name: str
    family: str
    parameters: str
    model_type: str
    architecture: str
    hidden: int
    inner: int
    heads: tuple[int, int]
    head: int
    all_layers: int
    layers: int
    config: dict = field(default_factory=dict)
    controls: tuple[str, ...] = ()
    query_bias: bool = False
    # Whether the head reads the states of all tokens. If not, hardly anything of the last layer is computed.
    reads_all: bool = False
    head_norms: bool = False
    # Names and shapes of further tensors, from the hidden size.
    extra: dict[str, tuple] = field(default_factory=dict)

    def whole_layers(self, layers: int) -> int:
        """The number of these layers that are computed for all tokens."""
        return layers if self.reads_all else layers - 1

    @property
    def products(self) -> int:
        """The number of multiplications per token."""
        keys_and_values = 0 if self.reads_all else 2 * self.hidden * self.heads[1] * self.head
        return self.whole_layers(self.layers) * self.layer_weights + keys_and_values

    @property
    def layer_weights(self) -> int:
        """The number of weights in the matrices of one layer."""
        queries, keys = (count * self.head for count in self.heads)
        return self.hidden * (2 * queries + 2 * keys + 3 * self.inner)


QWEN3 = ("qwen3", "Qwen3ForCausalLM")
BASE = Shape("Qwen3-Reranker-0.6B", "qwen3-reranker", "0.6B", *QWEN3, 1024, 3072, (16, 8), 128, 28, 28, head_norms=True)
SHAPES = [
    Shape("mxbai-rerank-base-v2", "mxbai-rerank-v2", "0.5B", "qwen2", "Qwen2ForCausalLM", 896, 4864, (14, 2), 64, 24, 24,
          query_bias=True),
    Shape("zerank-1-small", "zerank", "1.7B", *QWEN3, 2048, 6144, (16, 8), 128, 28, 10, head_norms=True),
    Shape("zerank-2-reranker", "zerank", "4B", *QWEN3, 2560, 9728, (32, 8), 128, 36, 6, head_norms=True),
    Shape("ctxl-rerank-v2-instruct-multilingual-2b", "ctxl-rerank", "2B", *QWEN3, 2048, 6144, (16, 8), 128, 28, 10, head_norms=True),
    Shape("bge-reranker-v2-gemma", "bge-reranker-v2-gemma", "2B", "gemma", "GemmaForCausalLM", 2048, 16384, (8, 1), 256, 18, 6,
          {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}, ("<bos>",)),
    Shape("bge-reranker-v2-minicpm-layerwise", "bge-reranker-v2-minicpm-layerwise", "2.7B; 28 layers", "minicpm",
          "LayerWiseMiniCPMForCausalLM", 2304, 5760, (36, 36), 64, 28, 8,
          {"scale_emb": 12, "scale_depth": 1.4, "start_layer": 8, "head_multi": True, "head_type": "simple"}, ("<s>",),
          extra={"lm_head.0.linear_head.weight": (1, "hidden")}),
    Shape("llama-nemotron-rerank-1b-v2", "llama-nemotron-rerank", "1B", "llama_bidirec",
          "LlamaBidirectionalForSequenceClassification", 2048, 8192, (32, 8), 64, 16, 8,
          {"pooling": "avg", "temperature": 1.0, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
          ("<|begin_of_text|>",), reads_all=True, extra={"score.weight": (1, "hidden")}),
    Shape("Qwen3-VL-Reranker-2B", "qwen3-vl-reranker", "2B", "qwen3_vl", "Qwen3VLForConditionalGeneration", 2048, 6144, (16, 8),
          128, 28, 10, head_norms=True),
    Shape("jina-reranker-m0", "jina-reranker-m0", "2B", "qwen2_vl", "JinaVLForRanking", 1536, 8960, (12, 2), 128, 28, 10,
          query_bias=True, extra={"score.0.weight": ("hidden", "hidden"), "score.0.bias": ("hidden",),
                                  "score.2.weight": (1, "hidden"), "score.2.bias": (1,)}),
    Shape("jina-reranker-v3", "jina-reranker-v3", "0.6B", "qwen3", "JinaForRanking", 1024, 3072, (16, 8), 128, 28, 28,
          {"max_position_embeddings": 131072}, ("<|embed_token|>", "<|rerank_token|>"), head_norms=True,
          extra={"projector.0.weight": (512, "hidden"), "projector.2.weight": (512, 512)}),
]


# Families whose layers are not in these names: docs/performance-details.md has a few layers of Qwen3.5.
NOT_MEASURED = {"prism-qwen3.5-reranker"}


def tensor_shapes(shape: Shape, vocabulary: int) -> weights.Shapes:
    """The names and shapes of all tensors, with the names that Llama and its relatives use."""
    config = {
        "hidden_size": shape.hidden, "intermediate_size": shape.inner, "head_dim": shape.head, "vocab_size": vocabulary,
        "num_attention_heads": shape.heads[0], "num_key_value_heads": shape.heads[1], "num_hidden_layers": shape.layers,
        "tie_word_embeddings": True,
    }
    shapes = weights.tensor_shapes(config)
    if not shape.head_norms:
        shapes = {name: of for name, of in shapes.items() if "q_norm" not in name and "k_norm" not in name}
    if shape.query_bias:
        shapes |= {
            name.replace(".weight", ".bias"): of[:1] for name, of in shapes.items() if re.search(r"[qkv]_proj\.weight", name)
        }
    size = lambda of: shape.hidden if of == "hidden" else of
    return shapes | {name: tuple(map(size, of)) for name, of in shape.extra.items()}


def configuration(shape: Shape, vocabulary: int) -> dict:
    """The content of config.json."""
    return {
        "architectures": [shape.architecture], "model_type": shape.model_type, "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads[0],
        "num_key_value_heads": shape.heads[1], "head_dim": shape.head, "vocab_size": vocabulary, "hidden_act": "silu",
        "rms_norm_eps": 1e-06, "max_position_embeddings": 40960, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "rope_theta": 1000000.0,
    } | shape.config


def folder(shape: Shape, tokenizer: Path, work: Path) -> Path:
    """The model's folder, which is made if it is missing."""
    path = work / "rerankers" / shape.name
    if (path / "complete").exists():
        return path
    print(f"writing {path}", file=sys.stderr, flush=True)
    path.mkdir(parents=True, exist_ok=True)
    content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    known = {token["content"] for token in content["added_tokens"]}
    first = 1 + max(*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"]))
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    new = [token for token in shape.controls if token not in known]
    content["added_tokens"] += [{"id": first + index, "content": token} | plain for index, token in enumerate(new)]
    (path / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    vocabulary = first + len(new)
    shapes = tensor_shapes(shape, vocabulary)
    weights.write_json(path / "config.json", configuration(shape, vocabulary))
    tensors = (weights.random_tensor(name, of, SEED, 1.0) for name, of in shapes.items())
    weights.write_safetensors(path / "model.safetensors", shapes, tensors, "bfloat16")
    (path / "complete").touch()
    return path


def computed_tokens(server: Server) -> int:
    """The number of tokens that the server has computed so far."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        found = re.search(r"^te_batch_tokens_computed(?:\{[^}]*\})? (\S+)", answer.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def ask(server: Server, workload: dict) -> dict:
    """Seconds, prompt tokens and computed tokens of a request."""
    server.release()
    before = computed_tokens(server)
    seconds, scores, tokens = server.ask(workload)
    reading = {"seconds": seconds, "tokens": tokens, "computed": computed_tokens(server) - before}
    server.hold()
    assert len(set(scores)) > 1, "every text got the same score"
    return reading


def started(shape: Shape, arguments: argparse.Namespace) -> Server:
    path = folder(shape, arguments.tokenizer, arguments.work)
    server = Server(arguments.binary, path, ["--dtype", arguments.dtype], arguments.threads)
    family = server.info()["reranker"]["family"]
    assert family == shape.family, f"{path} is served as {family}"
    ask(server, WORKLOAD)
    return server


def summary(shape: Shape, readings: list[dict]) -> dict:
    """The medians and further values for a row of the table."""
    rates = [2 * shape.products * it["computed"] / it["seconds"] / 1e9 for it in readings]
    share = shape.whole_layers(shape.layers) / shape.whole_layers(shape.all_layers)
    seconds = statistics.median(it["seconds"] for it in readings)
    pairs = len(WORKLOAD["documents"])
    return {
        "name": shape.name, "parameters": shape.parameters, "layers": shape.layers, "all_layers": shape.all_layers,
        "tokens": readings[-1]["tokens"], "computed": readings[-1]["computed"], "seconds": seconds,
        "gflops": statistics.median(rates), "pairs_per_second": pairs / seconds * share,
        "readings": readings,
    }


def table(results: dict) -> str:
    """The table for docs/rerankers.md. It has no absolute speeds, because docs/performance.md has the base
    model's from another machine."""
    lines = [
        f"{results['date']}, {results['machine']}, {results['threads']} threads, {results['dtype']}, commit {results['commit']}; "
        f"medians of {results['rounds']} rounds.",
        "",
        "| shape of | layers computed | tokens of W1, computed of them | pairs a second, of Qwen3's | GFLOP/s, of Qwen3's |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        of, base = row["shape"], row["base"]
        lines.append(
            f"| {of['name']} ({of['parameters']}) | {of['layers']} of {of['all_layers']} | {of['tokens']}, {of['computed']} | "
            + " | ".join(f"{100 * of[rate] / base[rate]:.0f} %" for rate in ("pairs_per_second", "gflops")) + " |"
        )
    return "\n".join(lines) + "\n"


def write_page(text: str) -> None:
    """Puts the table between its marks in the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, behind = rest.split(END)
    PAGE.write_text(before + BEGIN + text + END + behind, encoding="utf-8")


WORKLOAD = json.loads((HERE / "workloads" / "w1.json").read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with Qwen3's tokenizer.json")
    parser.add_argument("--work", type=Path, required=True, help="folder for the models (4 GB)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="names of shapes to measure, separated by commas")
    parser.add_argument("--write", action="store_true", help="also write benches/results/ and docs/rerankers.md")
    arguments = parser.parse_args()
    chosen = [shape for shape in SHAPES if not arguments.only or shape.name in arguments.only.split(",")]
    base, rows = started(BASE, arguments), []
    try:
        for shape in [BASE, *chosen]:
            other = started(shape, arguments)
            try:
                pairs = [(ask(base, WORKLOAD), ask(other, WORKLOAD)) for _ in range(arguments.rounds)]
            finally:
                other.stop()
                if shape is not BASE:
                    shutil.rmtree(arguments.work / "rerankers" / shape.name)
            of_base, of_shape = (summary(kind, list(readings)) for kind, readings in zip((BASE, shape), zip(*pairs)))
            rows.append({"base": of_base, "shape": of_shape})
            print(f"{shape.name:42} {of_shape['pairs_per_second']:8.2f} pairs/s {of_shape['gflops']:8.0f} GFLOP/s, "
                  f"Qwen3's {of_base['gflops']:.0f}", flush=True)
    finally:
        base.stop()
    results = {
        "date": str(datetime.date.today()), "machine": machine(), "threads": arguments.threads, "dtype": arguments.dtype,
        "commit": commit(), "rounds": arguments.rounds, "rows": rows,
    }
    print("\n" + table(results))
    if arguments.write:
        (HERE / "results" / "rerankers.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_page(table(results))


if __name__ == "__main__":
    main()
