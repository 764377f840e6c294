"""Writes fixtures/served/: whole folders as on the Hub, with tokenizers, and reference answers for real
texts.

Run `python -m architectures.served [NAME…]` in the folder above; without names, all are made. This file has
the table, served_tokenizers.py the tokenizers, served_folders.py the files of sentence-transformers,
served_expected.py the answers.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sentence_transformers
import torch
import transformers
from transformers.utils import logging

from . import bert, decoders, embedding_gemma2, encoders, t5_albert
from .fixture import FOLDER as ARCHITECTURES
from .fixture import Fixture, folder_bytes, store
from .native import native
from .served_expected import KINDS
from .served_folders import (
    Finish,
    by_cross_encoder,
    by_sparse_encoder,
    modular_cross_encoder,
    old_modules,
    splade_modules,
    with_adapters,
    with_bge_m3_heads,
    with_dense,
)
from .served_tokenizers import KINDS as TOKENIZERS
from .served_tokenizers import Made

FOLDER = ARCHITECTURES.parent / "served"
LIMIT = 72
SOURCE = f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}"
BERT = {
    **bert.SMALL,
    "hidden_size": 24,
    "num_attention_heads": 2,
    "intermediate_size": 36,
    "max_position_embeddings": LIMIT,
}
ROBERTA = BERT | bert.ROBERTA | {"max_position_embeddings": LIMIT + 2}
DEBERTA = BERT | encoders.DEBERTA | {"max_position_embeddings": LIMIT}
DISTILBERT = {"dim": 24, "n_heads": 2, "hidden_dim": 36, "n_layers": 2, "max_position_embeddings": LIMIT}
MODERNBERT = encoders.MODERNBERT_SMALL | {"max_position_embeddings": LIMIT}
QWEN2 = decoders.SMALL | {
    "hidden_size": 24,
    "rope_parameters": decoders.QWEN2["rope_parameters"],
    "tie_word_embeddings": True,
    "max_position_embeddings": 96,
}
QWEN3 = decoders.QWEN3 | {"hidden_size": 24, "tie_word_embeddings": True, "max_position_embeddings": 96}
GEMMA3 = decoders.GEMMA3 | {
    "hidden_size": 24,
    "head_dim": 16,
    "sliding_window": 12,
    "sliding_window_pattern": 2,
    "use_bidirectional_attention": True,
}
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
INSTRUCTED = "Instruct: Retrieve relevant passages\nQuery: "
SEARCHED = "Represent this sentence for searching relevant passages: "
T5 = t5_albert.T5 | {"d_model": 24, "num_layers": 2, "feed_forward_proj": "gated-gelu", "n_positions": LIMIT}
EMOTIONS = ["admiration", "amusement", "anger", "joy", "sadness", "neutral"]
# The pooling modes in repositories from before sentence-transformers 2.3.
FOUR_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")


@dataclass(frozen=True)
class Served:
    """A folder: its model, kind of tokenizer, kind of answers and further files.

    `limit` is the longest input in tokens. With `padding`, tokenizer.json pads each text to that length.
    """

    model: Callable[[dict], Fixture]
    tokenizer: str
    kind: str
    finish: Finish = lambda _: None
    limit: int = LIMIT
    special_map: bool = True
    padding: bool = False


def model(
    name: str, config: dict, seed: int, dtype: torch.dtype = torch.float16, **options: object
) -> Callable[[dict], Fixture]:
    """Gives a function that makes the weights once the ids of the tokenizer are known."""
    scales = bert.HEADS | {"transform.LayerNorm": 0.3, "vocab_layer_norm": 0.3} | options.pop("scales", {})
    return lambda ids: native(
        getattr(transformers, name), config | ids, seed, dtype=dtype, scales=scales, **options
    )


FIXTURES = {
    "bert-embedding-mean": Served(
        model("BertModel", BERT | {"max_position_embeddings": 80}, 201, edit=bert.OLD, drop=bert.OLD_DROPPED),
        "bert",
        "embedding",
        old_modules("mean_tokens", 24, 64, pooling=FOUR_MODES),
        64,
        padding=True,
    ),
    "bert-cls-no-modules": Served(model("BertModel", BERT, 102), "bert", "cls"),
    "bert-cross-encoder": Served(
        model(
            "BertForSequenceClassification",
            BERT,
            103,
            torch.float32,
            labels=["LABEL_0"],
            drop=bert.OLD_DROPPED,
            edit=bert.OLD | {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        ),
        "bert",
        "score",
    ),
    "bert-classifier-3": Served(
        model("BertForSequenceClassification", BERT, 104, labels=["contradiction", "entailment", "neutral"]),
        "bert",
        "score",
    ),
    "bert-classifier-2": Served(
        model("BertForSequenceClassification", BERT, 105, labels=["LABEL_0", "LABEL_1"]),
        "bert",
        "score",
        special_map=False,
    ),
    "xlm-roberta-reranker": Served(
        model(
            "XLMRobertaForSequenceClassification",
            ROBERTA,
            106,
            labels=["LABEL_0"],
            edit=bert.OLD,
            drop=bert.OLD_DROPPED[:-2],
        ),
        "xlm-roberta",
        "score",
    ),
    "roberta-classifier-many": Served(
        model(
            "RobertaForSequenceClassification",
            ROBERTA,
            107,
            labels=EMOTIONS,
            edit=bert.OLD | {"problem_type": "multi_label_classification"},
        ),
        "roberta",
        "score",
    ),
    "bert-splade": Served(model("BertForMaskedLM", BERT, 108), "bert", "splade"),
    "bert-splade-saved": Served(model("BertForMaskedLM", BERT, 109), "bert", "splade", by_sparse_encoder),
    "distilbert-splade": Served(
        model("DistilBertForMaskedLM", DISTILBERT, 110, edit={"torch_dtype": "float32"}),
        "bert",
        "splade",
        splade_modules(455, 60),
        60,
    ),
    "bge-m3": Served(
        model("XLMRobertaModel", ROBERTA, 111, edit=bert.OLD, drop=bert.OLD_DROPPED[:-2]),
        "xlm-roberta",
        "bge-m3",
        with_bge_m3_heads(old_modules("cls_token", 24, LIMIT, pooling=FOUR_MODES), 24, 111),
    ),
    "modernbert-reranker": Served(
        model(
            "ModernBertForSequenceClassification",
            MODERNBERT | {"classifier_pooling": "mean"},
            112,
            labels=["LABEL_0"],
        ),
        "modernbert",
        "score",
        by_cross_encoder,
    ),
    "ettin-modular": Served(
        model("ModernBertModel", MODERNBERT, 113), "modernbert", "score", modular_cross_encoder(24, 113)
    ),
    "deberta-v2-reranker": Served(
        model(
            "DebertaV2ForSequenceClassification",
            DEBERTA,
            114,
            labels=["LABEL_0"],
            edit={"pos_att_type": "p2c|c2p", "torch_dtype": "float16"},
        ),
        "deberta",
        "score",
    ),
    "mpnet-embedding": Served(
        model(
            "MPNetModel",
            BERT | {"max_position_embeddings": LIMIT + 2, "layer_norm_eps": 1e-5},
            115,
            edit=bert.OLD,
            drop=bert.OLD_DROPPED[:-2],
        ),
        "mpnet",
        "embedding",
        old_modules("mean_tokens", 24, 48, pooling=FOUR_MODES),
        48,
    ),
    "gemma3-embedding": Served(
        model(
            "Gemma3TextModel",
            GEMMA3,
            116,
            torch.bfloat16,
            centre=0.0,
            scales=decoders.unscaled_embeddings(24),
        ),
        "gemma",
        "embedding",
        with_dense(
            old_modules("mean_tokens", 24, 96, {"2_Dense": "", "3_Dense": ""}, prompts=PROMPTS),
            {"2_Dense": (24, 40), "3_Dense": (40, 24)},
            116,
            False,
        ),
        96,
    ),
    "stella-like": Served(
        model(
            "Qwen2Model",
            QWEN2,
            117,
            edit=decoders.QWEN2_OLD | {"is_causal": False},
            drop=decoders.OLD_DROPPED,
        ),
        "qwen2",
        "embedding",
        with_dense(
            old_modules(
                "mean_tokens",
                24,
                LIMIT,
                {"2_Dense_32": ""},
                end=False,
                prompts={"s2p_query": "Instruct: find passages.\nQuery: "},
            ),
            {"2_Dense_16": (24, 16), "2_Dense_32": (24, 32), "2_Dense_48": (24, 48)},
            117,
            True,
        ),
    ),
    "harrier-like": Served(
        model(
            "Gemma3TextModel",
            GEMMA3 | {"use_bidirectional_attention": False},
            119,
            torch.bfloat16,
            centre=0.0,
            scales=decoders.unscaled_embeddings(24),
            causal=True,
        ),
        "gemma",
        "named",
        old_modules("lasttoken", 24, 96, prompts={"web_search_query": INSTRUCTED}),
        96,
    ),
    "granite-r2-like": Served(
        model("ModernBertModel", MODERNBERT | {"hidden_activation": "silu"}, 120),
        "modernbert",
        "named",
        old_modules("cls_token", 24, LIMIT),
    ),
    "mmbert-like": Served(
        model("ModernBertModel", MODERNBERT, 121),
        "gemma",
        "named",
        old_modules("cls_token", 24, LIMIT, end=False, prompts={"query": "query: ", "document": "document: "}),
    ),
    "mdbr-leaf-like": Served(
        model("BertModel", BERT, 133),
        "bert",
        "named",
        with_dense(
            old_modules("mean_tokens", 24, LIMIT, {"2_Dense": ""}, prompts={"query": SEARCHED}),
            {"2_Dense": (24, 40)},
            122,
            True,
        ),
    ),
    "jina-v5-like": Served(
        model("Qwen3Model", QWEN3, 125, causal=True, gain=1.5),
        "qwen2",
        "adapted",
        with_adapters(
            old_modules("lasttoken", 24, LIMIT, prompts={"query": "Query: ", "document": "Document: "}),
            ["retrieval", "clustering"],
            125,
        ),
    ),
    "sentence-t5-like": Served(
        model("T5EncoderModel", T5, 123, torch.float16, gain=1.5, scales=t5_albert.T5_SCALES),
        "t5",
        "named",
        with_dense(
            old_modules("mean_tokens", 24, LIMIT, {"2_Dense": ""}, pooling=FOUR_MODES),
            {"2_Dense": (24, 24)},
            123,
            False,
        ),
    ),
    "embedding-gemma2-like": Served(
        model(
            "EmbeddingGemma2TextModel",
            embedding_gemma2.SIZES | {"hidden_size": 24, "max_position_embeddings": 96},
            124,
            torch.bfloat16,
            gain=1.5,
            scales=embedding_gemma2.SCALES,
        ),
        "gemma",
        "named",
        old_modules("mean_tokens", 22, 96, prompts=PROMPTS),
        96,
    ),
    "qwen2-embedding-last": Served(
        model(
            "Qwen2Model",
            QWEN2,
            118,
            torch.bfloat16,
            rename=decoders.prefixed,
            edit=decoders.QWEN2_OLD,
            drop=decoders.OLD_DROPPED,
            causal=True,
        ),
        "qwen2",
        "embedding",
        old_modules("lasttoken", 24, LIMIT),
    ),
}


def special_ids(made: Made) -> dict[str, int]:
    """The keys of config.json that depend on the vocabulary."""
    named = {role.replace("_token", "_token_id"): made.id(token) for role, token in made.roles.items()}
    return {"vocab_size": made.size} | {
        key: value for key, value in named.items() if key.split("_")[0] in ("bos", "eos", "pad", "cls", "sep")
    }


def write(name: str) -> str:
    """Makes a folder and its answers, replacing the old ones. Returns a line for the summary."""
    served = FIXTURES[name]
    made = TOKENIZERS[served.tokenizer]()
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary) / name
        fresh.mkdir()
        store(fresh, served.model(special_ids(made)))
        made.write(fresh, served.limit, served.special_map, served.padding)
        served.finish(fresh)
        rows, more, line = KINDS[served.kind](fresh, served.limit)
        head = {"source": SOURCE, "kind": served.kind, "max_length": served.limit}
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        shutil.move(fresh, FOLDER / name)
    expected = FOLDER / f"{name}.expected.json"
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    expected.write_text(
        json.dumps(head | more, ensure_ascii=False)[:-1] + f', "rows": [\n{lines}\n]}}\n', encoding="utf-8"
    )
    sizes = folder_bytes(FOLDER / name) / 1000, expected.stat().st_size / 1000
    return f"{name:24} {sizes[0]:6.1f} KB, answers {sizes[1]:5.1f} KB  {len(rows)} rows, {line}"


def main() -> None:
    """Makes the named fixtures and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FIXTURES, []], help="fixtures (default: all)")
    names = parser.parse_args().names or list(FIXTURES)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for name in names:
        print(write(name), flush=True)
    print(f"{folder_bytes(FOLDER) / 1e6:.2f} MB in all")


if __name__ == "__main__":
    main()
