"""Adds the files of sentence-transformers to the folders of served.py, in layouts of the Hub or of release 6.

Input: a folder with config.json, model.safetensors and the tokenizer's files. Output: module folders, and the
files that list them.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import nn

from .fixture import random_tensor, write_json

Finish = Callable[[Path], None]
OLD = "sentence_transformers.models"
FLOAT = {"dtype": torch.float32}
IDENTITY = "torch.nn.modules.linear.Identity"
POOLING = (
    "cls_token",
    "mean_tokens",
    "max_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


def write_modules(folder: Path, modules: dict[str, str]) -> None:
    """Writes modules.json. Modules without files get no folder: a repository cannot have empty folders."""
    rows = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(modules.items())
    ]
    write_json(folder / "modules.json", rows)


def old_modules(
    mode: str,
    width: int,
    limit: int,
    dense: dict[str, str] | None = None,
    end: bool = True,
    prompts: dict | None = None,
    pooling: tuple[str, ...] = POOLING,
) -> Finish:
    """The layout of sentence-transformers 2 to 5: Transformer, Pooling, dense folders, Normalize."""

    def finish(folder: Path) -> None:
        named = {"": f"{OLD}.Transformer", "1_Pooling": f"{OLD}.Pooling"} | dict.fromkeys(
            dense or (), f"{OLD}.Dense"
        )
        write_modules(folder, named | ({f"{len(named)}_Normalize": f"{OLD}.Normalize"} if end else {}))
        (folder / "1_Pooling").mkdir()
        switches = {f"pooling_mode_{name}": name == mode for name in pooling}
        more = {"include_prompt": True} if pooling == POOLING else {}
        write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width} | switches | more)
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
        versions = {
            "__version__": {"sentence_transformers": "3.4.1", "transformers": "4.48.0", "pytorch": "2.5.1"}
        }
        spoken = (
            {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
            if pooling == POOLING
            else {}
        )
        write_json(folder / "config_sentence_transformers.json", versions | spoken)

    return finish


def with_dense(finish: Finish, sizes: dict[str, tuple[int, int]], seed: int, bias: bool) -> Finish:
    """Adds dense folders of these sizes, without activation. modules.json names some or all of them."""

    def finish_all(folder: Path) -> None:
        finish(folder)
        for name, (inputs, outputs) in sizes.items():
            (folder / name).mkdir()
            config = {
                "in_features": inputs,
                "out_features": outputs,
                "bias": bias,
                "activation_function": IDENTITY,
            }
            write_json(folder / name / "config.json", config)
            tensors = {"linear.weight": random_tensor(f"{name}.weight", (outputs, inputs), seed, 1.5, 1.0)}
            if bias:
                tensors["linear.bias"] = random_tensor(f"{name}.bias", (outputs,), seed, 1.0, 1.0)
            save_file(tensors, folder / name / "model.safetensors", {"format": "pt"})
            (folder / name / "model.safetensors").chmod(0o644)

    return finish_all


def with_adapters(finish: Finish, tasks: list[str], seed: int) -> Finish:
    """Adapters of rank 3 for the matrices of attention and of the MLP, in files of their own (PEFT)."""

    def finish_all(folder: Path) -> None:
        finish(folder)
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "jina_embeddings_v5", "architectures": ["JinaEmbeddingsV5Model"], "task_names": tasks}
        write_json(folder / "config.json", config)
        shapes = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
        for task in tasks:
            tensors = {}
            for name, shape in shapes.items():
                if name.endswith("_proj.weight"):
                    base = f"base_model.model.{name.removesuffix('.weight')}"
                    for factor, size in {"A": (3, shape[1]), "B": (shape[0], 3)}.items():
                        made = random_tensor(f"{task}.{name}.{factor}", size, seed, 1.0, 1.0)
                        tensors[f"{base}.lora_{factor}.weight"] = made.bfloat16()
            path = folder / "adapters" / task
            path.mkdir(parents=True)
            save_file(tensors, path / "adapter_model.safetensors", {"format": "pt"})
            (path / "adapter_model.safetensors").chmod(0o644)
            settings = {"peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "r": 3, "lora_alpha": 2}
            settings |= {"lora_dropout": 0.1, "bias": "none", "use_dora": False, "use_rslora": False}
            settings |= {"modules_to_save": None, "rank_pattern": {}, "target_modules": ["q_proj", "down_proj"]}
            write_json(path / "adapter_config.json", settings)

    return finish_all


def with_bge_m3_heads(finish: Finish, width: int, seed: int) -> Finish:
    """Adds `sparse_linear.pt` and `colbert_linear.pt`: two nn.Linear in float16, saved by torch.save."""

    def finish_all(folder: Path) -> None:
        finish(folder)
        for name, outputs in {"sparse": 1, "colbert": width}.items():
            weight = random_tensor(f"{name}.weight", (outputs, width), seed, 1.5, 1.0)
            state = {
                "weight": weight.half(),
                "bias": random_tensor(f"{name}.bias", (outputs,), seed, 1.0, 1.0).half(),
            }
            torch.save(state, folder / f"{name}_linear.pt")

    return finish_all


def splade_modules(width: int, limit: int) -> Finish:
    """The layout of a SparseEncoder of sentence-transformers 5."""

    def finish(folder: Path) -> None:
        kinds = f"{OLD.replace('models', 'sparse_encoder.models')}"
        write_modules(folder, {"": f"{kinds}.MLMTransformer", "1_SpladePooling": f"{kinds}.SpladePooling"})
        (folder / "1_SpladePooling").mkdir()
        pooling = {
            "pooling_strategy": "max",
            "activation_function": "relu",
            "word_embedding_dimension": width,
        }
        write_json(folder / "1_SpladePooling/config.json", pooling)
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
        versions = {"sentence_transformers": "5.0.0", "transformers": "4.50.3", "pytorch": "2.6.0+cu124"}
        more = {
            "model_type": "SparseEncoder",
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "dot",
        }
        write_json(folder / "config_sentence_transformers.json", {"__version__": versions} | more)

    return finish


def resaved(folder: Path, load: Callable[[str], nn.Module]) -> None:
    """Loads the folder with sentence-transformers, and replaces the folder by the model that it saves."""
    with tempfile.TemporaryDirectory() as temporary:
        load(str(folder)).save_pretrained(temporary, create_model_card=False)
        shutil.rmtree(folder)
        shutil.copytree(temporary, folder, copy_function=shutil.copyfile)


def by_cross_encoder(folder: Path) -> None:
    """Saves a classifier with CrossEncoder 6."""
    resaved(
        folder,
        lambda path: CrossEncoder(
            path, device="cpu", local_files_only=True, model_kwargs=FLOAT, activation_fn=nn.Identity()
        ),
    )


def by_sparse_encoder(folder: Path) -> None:
    """Saves a masked-language model with SparseEncoder 6."""

    def load(path: str) -> SparseEncoder:
        transformer = Transformer(path, transformer_task="fill-mask", model_kwargs=FLOAT)
        return SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")

    resaved(folder, load)


def modular_cross_encoder(width: int, seed: int) -> Finish:
    """Ettin's re-rankers, saved by CrossEncoder 6: pooling, dense, norm, and dense for the scores."""

    def load(path: str) -> CrossEncoder:
        hidden = Dense(width, width, bias=False, activation_function=nn.GELU())
        scores = Dense(width, 1, activation_function=nn.Identity(), module_output_name="scores")
        norm = LayerNorm(width)
        named = {
            "hidden.weight": hidden.linear.weight,
            "scores.weight": scores.linear.weight,
            "scores.bias": scores.linear.bias,
        }
        named |= {"norm.weight": norm.norm.weight, "norm.bias": norm.norm.bias}
        for name, parameter in named.items():
            parameter.data = random_tensor(name, tuple(parameter.shape), seed, 2.0, 1.0)
        transformer = Transformer(path, model_kwargs=FLOAT)
        return CrossEncoder(
            modules=[transformer, Pooling(width, "cls"), hidden, norm, scores],
            device="cpu",
            activation_fn=nn.Identity(),
        )

    return lambda folder: resaved(folder, load)
