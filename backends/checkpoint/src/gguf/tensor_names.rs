//! The names of tensors, in groups that architectures share. Weights and biases have one name.

/// Names of tensors: llama.cpp's name, then the name in `transformers`.
pub(super) type TensorNames = &'static [(&'static str, &'static str)];

/// The parts of a decoder's layer, without the norm that every family names in its own way.
pub(super) const DECODER_LAYER: TensorNames = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// A gated delta rule, and the norm before the MLP. Two names have their endings, which differ.
pub(super) const DELTA: TensorNames = &[
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("post_attention_norm", "post_attention_layernorm"),
];

/// A layer of LFM2: a short convolution or attention, and an MLP.
pub(super) const CONVOLUTION_LAYER: TensorNames = &[
    ("attn_norm", "operator_norm"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("attn_output", "self_attn.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
];

/// The embeddings of words and token types in kinds of BERT.
pub(super) const EMBEDDINGS: TensorNames =
    &[("token_embd", "embeddings.word_embeddings"), ("token_types", "embeddings.token_type_embeddings")];

/// The norm of the embeddings in BERT.
pub(super) const EMBEDDINGS_NORM: TensorNames = &[("token_embd_norm", "embeddings.LayerNorm")];

/// Attention in a layer of BERT.
pub(super) const BERT_ATTENTION: TensorNames = &[
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
];

/// The norms of a layer in the models of Nomic and Jina.
pub(super) const NUMBERED_NORMS: TensorNames =
    &[("attn_output_norm", "norm1"), ("layer_output_norm", "norm2")];

/// Attention with one matrix for queries, keys and values, in Nomic's models.
pub(super) const NOMIC_ATTENTION: TensorNames =
    &[("attn_qkv", "attn.Wqkv"), ("attn_output", "attn.out_proj")];

/// An MLP without a gate, in the models of Nomic and Jina.
pub(super) const PLAIN_MLP: TensorNames = &[("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")];
