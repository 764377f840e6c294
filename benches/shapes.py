#!/usr/bin/env python3
"""Writes models with random weights in the shapes of ModernBERT-base and nomic-embed-text-v2-moe, for
`make roofline-shapes`: a model with windows of attention, the same model without windows, and a model with
experts.

Input: a folder. Output: model folders in it, without tokenizers (1.3 GB). Each configuration is a test
fixture's with the sizes of the real model. Needs numpy. usage: shapes.py FOLDER"""

import json
import sys
from pathlib import Path

import numpy

REFERENCE = Path(__file__).resolve().parent.parent / "integration_tests" / "reference"
sys.path.append(str(REFERENCE))  # at the end, so that installed packages of the same names come first
from weights import Shapes, random_tensor, write_json, write_safetensors  # noqa: E402

SEED = 6
HIDDEN, HEADS = 768, 12
MODERNBERT = {
    "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": 22, "intermediate_size": 1152,
    "vocab_size": 50368, "max_position_embeddings": 8192, "local_attention": 128, "layer_types": None,
    "global_attn_every_n_layers": 3,
}
NOMIC = {"n_embd": HIDDEN, "n_head": HEADS, "n_layer": 12, "n_inner": 3072, "vocab_size": 250048}


def modernbert_shapes(config: dict) -> Shapes:
    inner = config["intermediate_size"]
    shapes = {"embeddings.tok_embeddings.weight": (config["vocab_size"], HIDDEN), "embeddings.norm.weight": (HIDDEN,)}
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "attn_norm": (HIDDEN,),
            "attn.Wqkv": (3 * HIDDEN, HIDDEN),
            "attn.Wo": (HIDDEN, HIDDEN),
            "mlp_norm": (HIDDEN,),
            "mlp.Wi": (2 * inner, HIDDEN),
            "mlp.Wo": (HIDDEN, inner),
        }
        # The embeddings' norm is the norm before the first layer.
        shapes |= {f"layers.{layer}.{part}.weight": shape for part, shape in parts.items() if (layer, part) != (0, "attn_norm")}
    return shapes | {"final_norm.weight": (HIDDEN,)}


def nomic_shapes(config: dict) -> Shapes:
    inner, experts = config["n_inner"], config["num_experts"]

    def linear(name: str, outputs: int, inputs: int) -> Shapes:
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name: str) -> Shapes:
        return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}

    tables = {"word": config["vocab_size"], "token_type": config["type_vocab_size"]}
    shapes = {f"embeddings.{name}_embeddings.weight": (rows, HIDDEN) for name, rows in tables.items()} | norm("emb_ln")
    for layer in range(config["n_layer"]):
        name = f"encoder.layers.{layer}"
        shapes |= linear(f"{name}.attn.Wqkv", 3 * HIDDEN, HIDDEN) | linear(f"{name}.attn.out_proj", HIDDEN, HIDDEN)
        shapes |= norm(f"{name}.norm1") | norm(f"{name}.norm2")
        if layer % config["moe_every_n_layers"] == 1:
            shapes[f"{name}.mlp.router.layer.weight"] = (experts, HIDDEN)
            shapes |= {f"{name}.mlp.experts.mlp.{part}": (experts * inner, HIDDEN) for part in ("w1", "w2")}
            shapes[f"{name}.mlp.experts.bias"] = (HIDDEN,)
        else:
            shapes |= linear(f"{name}.mlp.fc1", inner, HIDDEN) | linear(f"{name}.mlp.fc2", HIDDEN, inner)
    return shapes


def values(name: str, shape: tuple[int, ...]) -> numpy.ndarray:
    """A tensor of random values. All tokens get the same biases and token type, so these are zeros: tokens
    then differ more, and are routed to all experts."""
    if name.endswith("bias") or "token_type" in name:
        return numpy.zeros(shape, numpy.float32)
    return random_tensor(name, shape, SEED, 1.0)


def write(folder: Path, config: dict, shapes: Shapes) -> None:
    """Writes the folder. The weights have a temporary name until the file is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    unfinished = folder / "model.unfinished"
    write_safetensors(unfinished, shapes, (values(name, shape) for name, shape in shapes.items()), "bfloat16")
    unfinished.rename(folder / "model.safetensors")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: shapes.py FOLDER")
    folder = Path(sys.argv[1])
    fixtures = REFERENCE / "fixtures" / "architectures"
    modernbert, nomic = (json.loads((fixtures / name / "config.json").read_text()) | sizes
                         for name, sizes in (("modernbert-embedding", MODERNBERT), ("nomic-moe", NOMIC)))
    write(folder / "modernbert", modernbert, modernbert_shapes(modernbert))
    write(folder / "nomic-moe", nomic, nomic_shapes(nomic))
    without = folder / "modernbert-without-windows"
    without.mkdir(exist_ok=True)
    write_json(without / "config.json", modernbert | {"global_attn_every_n_layers": 1})
    weights = without / "model.safetensors"
    weights.unlink(missing_ok=True)
    weights.symlink_to(Path("..") / "modernbert" / "model.safetensors")


if __name__ == "__main__":
    main()
