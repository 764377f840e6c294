"""T5's encoder, and ALBERT."""

import torch
from transformers import AlbertForSequenceClassification, AlbertModel, T5EncoderModel

from .bert import HEADS
from .native import native, pretrained

# Distances beyond the last bucket's first one occur, and heads are not as wide as their share of a state.
T5 = {
    "vocab_size": 101,
    "d_model": 30,
    "num_heads": 3,
    "d_kv": 7,
    "d_ff": 41,
    "num_layers": 3,
    "num_decoder_layers": 1,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 40,
    "n_positions": 150,
    "tie_word_embeddings": True,
}
# Scores are not divided by the root of a head's size, so queries are small, as in T5's own initialisation.
# The table of tokens is not called an embedding.
T5_SCALES = {"SelfAttention.q": 0.4, "shared": 5.0}
ALBERT = {
    "vocab_size": 101,
    "embedding_size": 20,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "intermediate_size": 52,
    "num_hidden_layers": 5,
    "num_hidden_groups": 2,
    "max_position_embeddings": 150,
    "hidden_act": "gelu_new",
}

FIXTURES = {
    "t5-relu": lambda: native(T5EncoderModel, T5 | {"feed_forward_proj": "relu"}, 501, gain=1.5, scales=T5_SCALES),
    "t5-gated": lambda: native(
        T5EncoderModel,
        T5 | {"feed_forward_proj": "gated-gelu", "d_kv": 12, "relative_attention_num_buckets": 32},
        502,
        gain=1.5,
        scales=T5_SCALES,
        dtype=torch.bfloat16,
        extra={"decoder.final_layer_norm.weight": (30,), "decoder.block.0.layer.0.SelfAttention.q.weight": (36, 30)},
        copies={"encoder.embed_tokens.weight": "shared.weight"},
        edit={"architectures": ["T5Model"]},
        drop=("relative_attention_max_distance",),
        reader=pretrained(T5EncoderModel, ignored=("decoder",)),
    ),
    "albert-embedding": lambda: native(AlbertModel, ALBERT, 503, gain=1.5, dtype=torch.float16),
    "albert-classifier-1": lambda: native(
        AlbertForSequenceClassification,
        ALBERT | {"num_hidden_groups": 1, "num_hidden_layers": 3, "hidden_size": 30, "hidden_act": "gelu"},
        504,
        gain=1.5,
        labels=["LABEL_0"],
        scales=HEADS,
        extra={"predictions.bias": (101,)},
        reader=pretrained(AlbertForSequenceClassification, ignored=("predictions",)),
    ),
}
