"""BERT and RoBERTa, with sizes, heads, prefixes and tensor names that occur in repositories on the Hub."""

import torch
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    CamembertModel,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from .native import native, pretrained

# For checkpoints with 16 bits per value. Those in float32 are smaller.
SIZES = {
    "vocab_size": 101,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
}
SMALL = SIZES | {"hidden_size": 30, "intermediate_size": 44, "num_hidden_layers": 2}
BERT = {"max_position_embeddings": 150}
# The first position is 2, so the longest input is 150.
ROBERTA = {
    "max_position_embeddings": 152,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
# Keys of a config.json from before transformers 5.
OLD = {
    "torch_dtype": "float32",
    "transformers_version": "4.41.2",
    "position_embedding_type": "absolute",
    "use_cache": True,
}
OLD_DROPPED = (
    "tie_word_embeddings",
    "is_decoder",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "bos_token_id",
    "eos_token_id",
)
# Factors that make the outputs of the heads differ clearly.
HEADS = {"classifier": 1.5, "score": 1.5}
# Checkpoints from before transformers 5 contain tied tensors twice.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def gamma_beta(name: str) -> str:
    """The names of norms in checkpoints converted from TensorFlow, with their prefix."""
    return "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )


FIXTURES = {
    "bert-embedding": lambda: native(BertModel, SMALL | BERT | {"num_attention_heads": 5}, 1),
    "bert-classifier-1": lambda: native(
        BertForSequenceClassification,
        SIZES | BERT,
        2,
        labels=["LABEL_0"],
        scales=HEADS,
        dtype=torch.float16,
        edit=OLD | {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        drop=OLD_DROPPED,
    ),
    "bert-classifier-3": lambda: native(
        BertForSequenceClassification,
        SMALL | BERT | {"hidden_act": "gelu_new"},
        3,
        labels=["contradiction", "entailment", "neutral"],
        scales=HEADS,
    ),
    "bert-relu": lambda: native(
        BertModel, SMALL | BERT | {"hidden_act": "relu", "layer_norm_eps": 1e-5}, 4, dtype=torch.bfloat16
    ),
    "bert-splade": lambda: native(
        BertForMaskedLM,
        SIZES | BERT,
        5,
        scales={"transform.LayerNorm": 0.4},
        dtype=torch.float16,
        copies=TIED,
    ),
    "bert-gamma-beta": lambda: native(
        BertModel,
        SMALL | BERT,
        6,
        rename=gamma_beta,
        edit=OLD | {"architectures": ["BertForMaskedLM"], "gradient_checkpointing": False},
        drop=OLD_DROPPED,
        buffers={"bert.embeddings.position_ids": torch.arange(150)[None]},
        reader=pretrained(BertModel, ignored=("position_ids",)),
    ),
    "xlm-roberta-embedding": lambda: native(XLMRobertaModel, SMALL | ROBERTA, 7, dtype=torch.float16),
    "xlm-roberta-classifier-1": lambda: native(
        XLMRobertaForSequenceClassification,
        SMALL | ROBERTA,
        8,
        labels=["LABEL_0"],
        scales=HEADS,
        edit=OLD,
        drop=OLD_DROPPED[:-2],
    ),
    "roberta-embedding": lambda: native(RobertaModel, SIZES | ROBERTA, 9, dtype=torch.bfloat16),
    "roberta-classifier-1": lambda: native(
        RobertaForSequenceClassification,
        SIZES | ROBERTA,
        10,
        labels=["LABEL_0"],
        scales=HEADS,
        dtype=torch.float16,
    ),
    "roberta-classifier-5": lambda: native(
        RobertaForSequenceClassification,
        SMALL | ROBERTA,
        11,
        labels=["admiration", "amusement", "anger", "joy", "neutral"],
        scales=HEADS,
        edit=OLD | {"problem_type": "multi_label_classification"},
        drop=OLD_DROPPED[:-2],
    ),
    "roberta-splade": lambda: native(
        RobertaForMaskedLM,
        SMALL | ROBERTA,
        12,
        edit=OLD,
        drop=OLD_DROPPED[:-2],
    ),
    "camembert-embedding": lambda: native(
        CamembertModel,
        SMALL | ROBERTA,
        13,
        rename=lambda name: f"roberta.{name}",
        dtype=torch.float16,
        edit={"architectures": ["CamembertForMaskedLM"]},
    ),
}
