//! llama.cpp's architectures: their names, the kind of model, and the names of their tensors.
//!
//! Each row of [`ARCHITECTURES`] describes one architecture.

use super::File;
use super::tensor_names::{
    BERT_ATTENTION, CONVOLUTION_LAYER, DECODER_LAYER, DELTA, EMBEDDINGS, EMBEDDINGS_NORM, NOMIC_ATTENTION,
    NUMBERED_NORMS, PLAIN_MLP, TensorNames,
};
use crate::CheckpointError;

/// A supported architecture of llama.cpp.
pub(super) struct GgufArchitecture {
    /// Its name in `general.architecture`.
    pub(super) name: &'static str,
    /// A tensor of its models, if others with the same name lack it. The first row that fits a file counts.
    marker: Option<&'static str>,
    /// `model_type` in config.json.
    pub(super) model_type: &'static str,
    pub(super) sight: Sight,
    /// The prefix of its class names in `transformers`.
    pub(super) class: &'static str,
    pub(super) body: TransformerKind,
    /// The prefix of a layer's number in the tensor names of `transformers`.
    layers: &'static str,
    /// The names of a layer's tensors, without `.weight` and `.bias`, in groups that architectures share.
    layer: &'static [TensorNames],
    /// The names of all other tensors, in the same form.
    others: &'static [TensorNames],
}

/// The tokens that a token attends to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Earlier ones, unless the file says otherwise. Holds the `model_type` of models in which tokens also
    /// attend to later ones.
    Back(&'static str),
    /// All tokens.
    Both,
}

/// The kind of model, which decides the form of its configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TransformerKind {
    /// Causal, with RMS norms and rotary positions.
    Decoder(DecoderStyle),
    /// BERT, and RoBERTa without the positions below its first one.
    Bert,
    /// BERT with rotary positions, and with a gated MLP or with experts.
    Nomic,
    /// BERT with `ALiBi` and a gated MLP.
    JinaAlibi,
    /// XLM-RoBERTa with rotary positions. Its adapters are files of their own.
    JinaRotary,
    /// `ModernBERT`: windows in most layers.
    Modern,
}

/// The changes that the converter made in a decoder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DecoderStyle {
    /// Nothing.
    Plain,
    /// The rows of queries and keys are interleaved, as another form of rotary positions needs.
    Interleaved,
    /// The weights of norms are larger by 1.
    Gemma,
    /// Qwen3.5's gated delta rule: the weights of most norms are larger by 1, and the heads of values are in
    /// another order.
    Delta,
    /// LFM2's short convolutions: their taps are a matrix.
    Convolution,
}

/// The remedy where a file lacks a part of the model, or is not supported at all.
pub(super) const SAFETENSORS: &str = "choose a repository with safetensors weights";

/// Divisors of the rotary frequencies of a decoder. The configuration holds them.
pub(super) const DIVISORS: &str = "rope_freqs.weight";
/// The dense modules behind the pooled vector of EmbeddingGemma, in their order.
pub(super) const DENSE: [&str; 2] = ["dense_2.weight", "dense_3.weight"];

/// The output embedding of a causal model.
const OUTPUT: &str = "output";
/// The head that computes scores.
const SCORES: &str = "cls.output";

/// Qwen3, from which the other decoders differ.
const DECODER: GgufArchitecture = GgufArchitecture {
    name: "qwen3",
    marker: None,
    model_type: "qwen3",
    sight: Sight::Back("qwen3"),
    class: "Qwen3",
    body: TransformerKind::Decoder(DecoderStyle::Plain),
    layers: "model.layers",
    layer: &[DECODER_LAYER, &[("ffn_norm", "post_attention_layernorm")]],
    others: &[&[
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        (OUTPUT, "lm_head"),
        (SCORES, "score"),
    ]],
};

/// Gemma 3, text only.
const GEMMA_3: GgufArchitecture = GgufArchitecture {
    name: "gemma3",
    model_type: "gemma3_text",
    sight: Sight::Back("gemma3_text"),
    class: "Gemma3",
    body: TransformerKind::Decoder(DecoderStyle::Gemma),
    layer: &[
        DECODER_LAYER,
        &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
    ],
    ..DECODER
};

/// BERT, from which the other encoders differ.
const BERT: GgufArchitecture = GgufArchitecture {
    name: "bert",
    marker: None,
    model_type: "bert",
    sight: Sight::Both,
    class: "Bert",
    body: TransformerKind::Bert,
    layers: "encoder.layer",
    layer: &[
        BERT_ATTENTION,
        &[
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
            ("layer_output_norm", "output.LayerNorm"),
        ],
    ],
    // BERT's pooler and classifier: a dense layer with tanh, then the scores. RoBERTa's head is the same
    // under other names.
    others: &[
        EMBEDDINGS,
        EMBEDDINGS_NORM,
        &[
            ("position_embd", "embeddings.position_embeddings"),
            ("cls", "pooler.dense"),
            (SCORES, "classifier"),
        ],
    ],
};

/// Jina's BERT with `ALiBi`. The converter drops its pooler.
const JINA: GgufArchitecture = GgufArchitecture {
    name: "jina-bert-v2",
    class: "JinaBert",
    body: TransformerKind::JinaAlibi,
    layer: &[
        BERT_ATTENTION,
        &[
            ("ffn_up", "mlp.gated_layers"),
            ("ffn_gate", "mlp.gate_layer"),
            ("ffn_down", "mlp.wo"),
            ("layer_output_norm", "mlp.layernorm"),
        ],
    ],
    others: &[EMBEDDINGS, EMBEDDINGS_NORM],
    ..BERT
};

/// Nomic's BERT.
const NOMIC: GgufArchitecture = GgufArchitecture {
    name: "nomic-bert",
    model_type: "nomic_bert",
    class: "NomicBert",
    body: TransformerKind::Nomic,
    layers: "encoder.layers",
    layer: &[
        NOMIC_ATTENTION,
        NUMBERED_NORMS,
        &[("ffn_up", "mlp.fc11"), ("ffn_gate", "mlp.fc12"), ("ffn_down", "mlp.fc2")],
    ],
    others: &[EMBEDDINGS, &[("token_embd_norm", "emb_ln")]],
    ..BERT
};

pub(super) const ARCHITECTURES: [GgufArchitecture; 17] = [
    DECODER,
    GgufArchitecture {
        name: "qwen2",
        model_type: "qwen2",
        sight: Sight::Back("qwen2"),
        class: "Qwen2",
        ..DECODER
    },
    GgufArchitecture {
        name: "qwen35",
        model_type: "qwen3_5_text",
        sight: Sight::Back("qwen3_5_text"),
        class: "Qwen3_5",
        body: TransformerKind::Decoder(DecoderStyle::Delta),
        layer: &[DECODER_LAYER, DELTA],
        ..DECODER
    },
    GgufArchitecture {
        name: "lfm2",
        model_type: "lfm2",
        sight: Sight::Back("lfm2_bidirectional"),
        class: "Lfm2",
        body: TransformerKind::Decoder(DecoderStyle::Convolution),
        layer: &[CONVOLUTION_LAYER],
        others: &[&[
            ("token_embd", "model.embed_tokens"),
            ("token_embd_norm", "model.embedding_norm"),
            (OUTPUT, "lm_head"),
        ]],
        ..DECODER
    },
    GgufArchitecture {
        name: "llama",
        model_type: "llama",
        sight: Sight::Back("llama_bidirec"),
        class: "Llama",
        body: TransformerKind::Decoder(DecoderStyle::Interleaved),
        ..DECODER
    },
    GgufArchitecture {
        name: "llama-embed",
        model_type: "llama_bidirec",
        sight: Sight::Both,
        class: "LlamaBidirectional",
        body: TransformerKind::Decoder(DecoderStyle::Interleaved),
        ..DECODER
    },
    GgufArchitecture {
        name: "eurobert",
        model_type: "eurobert",
        sight: Sight::Both,
        class: "EuroBert",
        ..DECODER
    },
    GgufArchitecture {
        name: "gemma",
        model_type: "gemma",
        sight: Sight::Back("gemma"),
        class: "Gemma",
        body: TransformerKind::Decoder(DecoderStyle::Gemma),
        ..DECODER
    },
    GEMMA_3,
    GgufArchitecture { name: "gemma-embedding", sight: Sight::Both, class: "Gemma3Text", ..GEMMA_3 },
    BERT,
    GgufArchitecture {
        name: "modern-bert",
        model_type: "modernbert",
        class: "ModernBert",
        body: TransformerKind::Modern,
        layers: "layers",
        layer: &[&[
            ("attn_norm", "attn_norm"),
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.Wo"),
            ("ffn_norm", "mlp_norm"),
            ("ffn_up", "mlp.Wi"),
            ("ffn_down", "mlp.Wo"),
        ]],
        others: &[&[
            ("token_embd", "embeddings.tok_embeddings"),
            ("token_embd_norm", "embeddings.norm"),
            ("output_norm", "final_norm"),
            ("cls", "head.dense"),
            ("cls.norm", "head.norm"),
            (SCORES, "classifier"),
        ]],
        ..BERT
    },
    NOMIC,
    GgufArchitecture {
        name: "nomic-bert-moe",
        layer: &[
            NOMIC_ATTENTION,
            NUMBERED_NORMS,
            PLAIN_MLP,
            &[
                ("ffn_gate_inp", "mlp.router.layer"),
                ("ffn_up_exps", "mlp.experts.mlp.w1"),
                ("ffn_down_exps", "mlp.experts.mlp.w2"),
            ],
        ],
        ..NOMIC
    },
    GgufArchitecture {
        marker: Some("blk.0.attn_q_norm.weight"),
        layer: &[
            BERT_ATTENTION,
            &[
                ("attn_q_norm", "attention.self.layer_norm_q"),
                ("attn_k_norm", "attention.self.layer_norm_k"),
                ("attn_norm_2", "layer_norm_1"),
                ("ffn_up", "mlp.up_gated_layer"),
                ("ffn_gate", "mlp.gate_layer"),
                ("ffn_down", "mlp.down_layer"),
                ("layer_output_norm", "layer_norm_2"),
            ],
        ],
        ..JINA
    },
    JINA,
    GgufArchitecture {
        name: "jina-bert-v3",
        model_type: "jina_embeddings_v3",
        class: "XLMRoberta",
        body: TransformerKind::JinaRotary,
        layer: &[NUMBERED_NORMS, PLAIN_MLP, &[("attn_qkv", "mixer.Wqkv"), ("attn_output", "mixer.out_proj")]],
        ..NOMIC
    },
];

impl GgufArchitecture {
    /// The row of [`ARCHITECTURES`] for a file.
    pub(super) fn from_file(file: &File) -> Result<&'static Self, CheckpointError> {
        let name = file.architecture();
        let found = ARCHITECTURES.iter().find(|architecture| {
            architecture.name == name && architecture.marker.is_none_or(|tensor| file.has_tensor(tensor))
        });
        found.ok_or_else(|| {
            let mut known: Vec<_> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
            known.dedup();
            file.unsupported(format!(
                "its architecture (`general.architecture`) is {name:?}, which is not supported as GGUF: only {} are; \
                 {SAFETENSORS}",
                known.join(", ")
            ))
        })
    }

    /// The name in `transformers` of llama.cpp's tensor `name`; `None` if the architecture has no such
    /// tensor.
    pub(super) fn translate(&self, name: &str) -> Option<String> {
        if let Some((number, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            let number: usize = number.parse().ok()?;
            let ours = find(self.layer, part).map(str::to_owned);
            let ours = ours.or_else(|| find_with_ending(self.layer, part))?;
            return Some(format!("{}.{number}.{ours}", self.layers));
        }
        find_with_ending(self.others, name)
    }
}

fn find(names: &[TensorNames], theirs: &str) -> Option<&'static str> {
    names.iter().copied().flatten().find(|(known, _)| *known == theirs).map(|(_, ours)| *ours)
}

/// The name of a weight or a bias.
fn find_with_ending(names: &[TensorNames], name: &str) -> Option<String> {
    let (stem, ending) = name.rsplit_once('.').filter(|(_, ending)| ["weight", "bias"].contains(ending))?;
    find(names, stem).map(|ours| format!("{ours}.{ending}"))
}
