"""Encoders other than BERT and RoBERTa, from DistilBERT to EuroBERT.

NomicBERT, Jina v3 and GTE are in the form that transformers saves; other modules have the Hub's layouts.
"""

import torch
from transformers import (
    DebertaV2ForSequenceClassification,
    DebertaV2Model,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertModel,
    ElectraForSequenceClassification,
    ElectraModel,
    EuroBertForSequenceClassification,
    EuroBertModel,
    GteForSequenceClassification,
    GteModel,
    JinaEmbeddingsV3Model,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertModel,
    MPNetForSequenceClassification,
    MPNetModel,
    NomicBertModel,
)

from .bert import HEADS, OLD, OLD_DROPPED, SIZES, SMALL
from .native import native

DISTILBERT = {
    "vocab_size": 101,
    "dim": 36,
    "n_heads": 3,
    "hidden_dim": 52,
    "n_layers": 3,
    "max_position_embeddings": 150,
}
DISTILBERT_SMALL = DISTILBERT | {"dim": 30, "hidden_dim": 44, "n_layers": 2}
# The first position is 2.
MPNET = {"max_position_embeddings": 152}
ELECTRA = {"embedding_size": 20, "max_position_embeddings": 150}
# Like mxbai-rerank-v1, with fewer buckets, so that most distances fall into logarithmic buckets.
DEBERTA = {
    "max_position_embeddings": 150,
    "relative_attention": True,
    "max_relative_positions": -1,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
MODERNBERT = SIZES | {
    "num_hidden_layers": 4,
    "global_attn_every_n_layers": 3,
    "local_attention": 16,
    "max_position_embeddings": 160,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
MODERNBERT_SMALL = MODERNBERT | {
    "hidden_size": 24,
    "intermediate_size": 30,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
}
# Like the configuration of answerdotai/ModernBERT-base.
MODERNBERT_OLD = {
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "layer_norm_eps": 1e-5,
    "reference_compile": None,
    "position_embedding_type": "absolute",
    "torch_dtype": "float32",
    "transformers_version": "4.48.0.dev0",
    "repad_logits_with_grad": False,
}
MODERNBERT_DROPPED = ("layer_types", "rope_parameters", "tie_word_embeddings")
EUROBERT = SIZES | {
    "num_key_value_heads": 1,
    "max_position_embeddings": 160,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0},
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mask_token_id": 3,
}
EUROBERT_SMALL = EUROBERT | {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
}
JINA_V3 = {
    "max_position_embeddings": 160,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
}
GTE = SMALL | {"max_position_embeddings": 160, "intermediate_size": 40, "pad_token_id": 1}

FIXTURES = {
    "distilbert-embedding": lambda: native(DistilBertModel, DISTILBERT, 21, dtype=torch.float16),
    "distilbert-classifier-2": lambda: native(
        DistilBertForSequenceClassification,
        DISTILBERT_SMALL,
        22,
        labels=["NEGATIVE", "POSITIVE"],
        scales=HEADS,
        edit={"torch_dtype": "float32"},
    ),
    "distilbert-splade": lambda: native(
        DistilBertForMaskedLM,
        DISTILBERT,
        23,
        gain=1.8,
        scales={"vocab_layer_norm": 0.4},
        dtype=torch.bfloat16,
    ),
    "mpnet-embedding": lambda: native(
        MPNetModel,
        SMALL | MPNET | {"layer_norm_eps": 1e-5},
        24,
        edit=OLD | {"architectures": ["MPNetForMaskedLM"]},
        drop=OLD_DROPPED[:-2],
    ),
    "mpnet-classifier-1": lambda: native(
        MPNetForSequenceClassification,
        SIZES | MPNET,
        25,
        labels=["LABEL_0"],
        scales=HEADS,
        dtype=torch.float16,
    ),
    "electra-embedding": lambda: native(ElectraModel, SIZES | ELECTRA, 26, dtype=torch.bfloat16),
    "electra-classifier-1": lambda: native(
        ElectraForSequenceClassification,
        SMALL | ELECTRA,
        27,
        labels=["LABEL_0"],
        scales=HEADS,
        edit=OLD,
        drop=OLD_DROPPED,
    ),
    "deberta-v2-classifier-1": lambda: native(
        DebertaV2ForSequenceClassification,
        SIZES | DEBERTA,
        128,
        labels=["LABEL_0"],
        scales=HEADS,
        dtype=torch.float16,
        edit={"torch_dtype": "float16", "transformers_version": "4.38.1"},
        drop=("legacy", "tie_word_embeddings", "bos_token_id", "eos_token_id"),
    ),
    "deberta-v2-string": lambda: native(
        DebertaV2ForSequenceClassification,
        SMALL | DEBERTA | {"position_buckets": 8, "max_relative_positions": 64},
        29,
        labels=["LABEL_0"],
        scales=HEADS,
        edit={"pos_att_type": "p2c|c2p"},
    ),
    "deberta-v2-conv": lambda: native(
        DebertaV2Model,
        SMALL
        | DEBERTA
        | {
            "share_att_key": False,
            "type_vocab_size": 2,
            "position_biased_input": True,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
        },
        30,
        edit={"pos_att_type": "c2p|p2c"},
        dtype=torch.bfloat16,
    ),
    "deberta-v2-clamped": lambda: native(
        DebertaV2Model,
        SMALL
        | DEBERTA
        | {
            "position_buckets": -1,
            "max_relative_positions": 24,
            "norm_rel_ebd": "none",
            "pos_att_type": ["c2p"],
            "share_att_key": False,
        },
        31,
        dtype=torch.float16,
    ),
    "modernbert-embedding": lambda: native(ModernBertModel, MODERNBERT, 41, dtype=torch.float16),
    "modernbert-old-keys": lambda: native(
        ModernBertModel,
        MODERNBERT | {"local_attention": 17, "num_hidden_layers": 3},
        42,
        dtype=torch.bfloat16,
        rename=lambda name: f"model.{name}",
        edit=MODERNBERT_OLD | {"architectures": ["ModernBertForMaskedLM"]},
        drop=MODERNBERT_DROPPED,
    ),
    "modernbert-classifier-1": lambda: native(
        ModernBertForSequenceClassification,
        MODERNBERT_SMALL | {"classifier_pooling": "mean", "num_hidden_layers": 4},
        43,
        gain=1.6,
        labels=["LABEL_0"],
        scales=HEADS,
        edit=MODERNBERT_OLD,
        drop=MODERNBERT_DROPPED,
    ),
    "modernbert-classifier-cls": lambda: native(
        ModernBertForSequenceClassification,
        MODERNBERT_SMALL
        | {
            "classifier_pooling": "cls",
            "global_attn_every_n_layers": 2,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 80000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
        44,
        labels=["contradiction", "entailment", "neutral"],
        scales=HEADS,
    ),
    "modernbert-splade": lambda: native(
        ModernBertForMaskedLM, MODERNBERT_SMALL, 45, gain=1.4, scales={"head.norm": 0.25}
    ),
    "eurobert-embedding": lambda: native(EuroBertModel, EUROBERT, 46, dtype=torch.bfloat16),
    "eurobert-classifier-1": lambda: native(
        EuroBertForSequenceClassification,
        EUROBERT_SMALL,
        47,
        labels=["LABEL_0"],
        scales=HEADS | {".dense": 1.2},
        edit={"rope_theta": 250000.0, "rope_scaling": None, "clf_pooling": "late", "torch_dtype": "float32"},
        drop=("rope_parameters", "classifier_pooling"),
    ),
    "eurobert-classifier-mean": lambda: native(
        EuroBertForSequenceClassification,
        EUROBERT_SMALL | {"classifier_pooling": "mean"},
        48,
        labels=["a", "b", "c"],
        scales=HEADS,
        dtype=torch.float16,
    ),
    "nomic-bert-native": lambda: native(
        NomicBertModel, SMALL | {"max_position_embeddings": 160, "intermediate_size": 40}, 49
    ),
    "jina-v3-native": lambda: native(JinaEmbeddingsV3Model, SMALL | JINA_V3, 50),
    "gte-native": lambda: native(GteModel, GTE | {"type_vocab_size": 0}, 51, gain=1.7, dtype=torch.float16),
    "gte-native-classifier-1": lambda: native(
        GteForSequenceClassification, GTE, 52, labels=["LABEL_0"], scales=HEADS
    ),
}
