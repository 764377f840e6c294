//! llama.cpp's architectures: the names of their tensors, and the changes that its converter made.
//!
//! Each row of [`ARCHITECTURES`] describes one architecture. What must hold: a tensor without an entry in its
//! row is an error, because dropping it would silently change scores.

use super::File;
use crate::{CheckpointError, Source, Tensor, insert};
use std::collections::BTreeMap;

/// A supported architecture of llama.cpp.
pub(super) struct GgufArchitecture {
    /// Its name in `general.architecture`.
    pub(super) name: &'static str,
    /// `model_type` in config.json.
    pub(super) model_type: &'static str,
    /// The prefix of its class names in `transformers`.
    pub(super) class: &'static str,
    pub(super) body: TransformerKind,
    /// The prefix of a layer's number in the tensor names of `transformers`.
    layers: &'static str,
    /// The names of a layer's tensors, without `.weight` and `.bias`: llama.cpp's name, then the name in
    /// `transformers`.
    layer: &'static [(&'static str, &'static str)],
    /// The names of all other tensors, in the same form.
    others: &'static [(&'static str, &'static str)],
}

/// The kind of model, which decides the form of its configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TransformerKind {
    /// Causal, with RMS norms and rotary positions.
    Decoder {
        /// Whether the rows of queries and keys are interleaved, as another form of rotary positions needs.
        interleaved: bool,
    },
    /// BERT, and RoBERTa without the positions below its first one.
    Bert,
    /// BERT with rotary positions and a gated MLP.
    Nomic,
}

const DECODER_LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const DECODER_OTHERS: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    (OUTPUT, "lm_head"),
    (SCORES, "score"),
];

const BERT_OTHERS: &[(&str, &str)] = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    // BERT's pooler and classifier: a dense layer with tanh, then the scores. RoBERTa's head is the same
    // under other names.
    ("cls", "pooler.dense"),
    (SCORES, "classifier"),
];

/// The output embedding of a causal model.
const OUTPUT: &str = "output";
/// The head that computes scores.
const SCORES: &str = "cls.output";

pub(super) const ARCHITECTURES: [GgufArchitecture; 5] = [
    GgufArchitecture {
        name: "qwen3",
        model_type: "qwen3",
        class: "Qwen3",
        body: TransformerKind::Decoder { interleaved: false },
        layers: "model.layers",
        layer: DECODER_LAYER,
        others: DECODER_OTHERS,
    },
    GgufArchitecture {
        name: "qwen2",
        model_type: "qwen2",
        class: "Qwen2",
        body: TransformerKind::Decoder { interleaved: false },
        layers: "model.layers",
        layer: DECODER_LAYER,
        others: DECODER_OTHERS,
    },
    GgufArchitecture {
        name: "llama",
        model_type: "llama",
        class: "Llama",
        body: TransformerKind::Decoder { interleaved: true },
        layers: "model.layers",
        layer: DECODER_LAYER,
        others: DECODER_OTHERS,
    },
    GgufArchitecture {
        name: "bert",
        model_type: "bert",
        class: "Bert",
        body: TransformerKind::Bert,
        layers: "encoder.layer",
        layer: &[
            ("attn_q", "attention.self.query"),
            ("attn_k", "attention.self.key"),
            ("attn_v", "attention.self.value"),
            ("attn_output", "attention.output.dense"),
            ("attn_output_norm", "attention.output.LayerNorm"),
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
            ("layer_output_norm", "output.LayerNorm"),
        ],
        others: BERT_OTHERS,
    },
    GgufArchitecture {
        name: "nomic-bert",
        model_type: "nomic_bert",
        class: "NomicBert",
        body: TransformerKind::Nomic,
        layers: "encoder.layers",
        layer: &[
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.out_proj"),
            ("attn_output_norm", "norm1"),
            ("ffn_up", "mlp.fc11"),
            ("ffn_gate", "mlp.fc12"),
            ("ffn_down", "mlp.fc2"),
            ("layer_output_norm", "norm2"),
        ],
        others: &[
            ("token_embd", "embeddings.word_embeddings"),
            ("token_types", "embeddings.token_type_embeddings"),
            ("token_embd_norm", "emb_ln"),
        ],
    },
];

impl GgufArchitecture {
    /// The row of [`ARCHITECTURES`] for a file.
    pub(super) fn of(file: &File) -> Result<&'static Self, CheckpointError> {
        let name = file.architecture();
        ARCHITECTURES.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let known: Vec<_> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
            file.unsupported(format!(
                "its architecture (`general.architecture`) is {name:?}, which is not supported as GGUF: only {} are; \
                 choose a repository with safetensors weights",
                known.join(", ")
            ))
        })
    }

    /// The name in `transformers` of llama.cpp's tensor `name`; `None` if the architecture has no such
    /// tensor.
    fn translate(&self, name: &str) -> Option<String> {
        let (stem, ending) =
            name.rsplit_once('.').filter(|(_, ending)| ["weight", "bias"].contains(ending))?;
        let find = |names: &[(&str, &'static str)], stem: &str| {
            names.iter().find(|(theirs, _)| *theirs == stem).map(|(_, ours)| *ours)
        };
        let Some((layer, part)) = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return find(self.others, stem).map(|ours| format!("{ours}.{ending}"));
        };
        let number: usize = layer.parse().ok()?;
        find(self.layer, part).map(|ours| format!("{}.{number}.{ours}.{ending}", self.layers))
    }
}

/// Whether a file's model is a kind of BERT, in which tokens also attend to later tokens.
#[must_use]
pub fn is_bidirectional(file: &File) -> bool {
    GgufArchitecture::of(file)
        .is_ok_and(|architecture| !matches!(architecture.body, TransformerKind::Decoder { .. }))
}

/// The ids of the answer tokens, if the re-ranker's head is two rows of the output embedding. Its labels are
/// then tokens of the model.
pub(super) fn answers(file: &File) -> Option<Vec<usize>> {
    let TransformerKind::Decoder { .. } = GgufArchitecture::of(file).ok()?.body else { return None };
    let labels = labels(file)?;
    let tokens = file.metadata.texts("tokenizer.ggml.tokens")?;
    if labels != ["yes", "no"] || file.shape("cls.output.weight")?.first() != Some(&labels.len()) {
        return None;
    }
    labels.iter().map(|label| tokens.iter().position(|token| token == label)).collect()
}

/// The labels of the head that computes scores.
pub(super) fn labels(file: &File) -> Option<&[String]> {
    file.metadata.texts(&format!("{}.classifier.output_labels", file.architecture()))
}

/// The tensors under their names in `transformers`, with their values in the order of `transformers`.
pub(super) fn tensors(file: &File, source: &Source) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
    let architecture = GgufArchitecture::of(file)?;
    let answers = answers(file);
    let vocabulary = file.shape("token_embd.weight").and_then(|shape| shape.first()).copied().unwrap_or(0);
    let count = |name: &str| file.metadata.number(&format!("{}.attention.{name}", architecture.name));
    let heads = |name: &str| count(name).or_else(|| count("head_count")).unwrap_or(0);
    let mut found = BTreeMap::new();
    for (name, tensor) in &file.tensors {
        let mut tensor = tensor.clone();
        let Some(mut translated) = architecture.translate(name) else {
            return Err(source.unsupported(format!(
                "the tensor `{name}` is not part of the architecture {}: the model uses a feature that is not \
                 supported",
                architecture.name
            )));
        };
        if architecture.body == (TransformerKind::Decoder { interleaved: true }) {
            let heads = match name.rsplit('.').nth(1) {
                Some("attn_q") => Some(heads("head_count")),
                Some("attn_k") => Some(heads("head_count_kv")),
                _ => None,
            };
            if let Some(heads) = heads {
                if heads == 0 || tensor.shape().len() != 2 || tensor.rows() % (2 * heads) != 0 {
                    return Err(
                        source.damaged(format!("the tensor `{name}` does not have rows for {heads} heads"))
                    );
                }
                tensor = tensor.interleaved(heads);
            }
        }
        if let Some(answers) = answers.as_ref().filter(|_| name == "cls.output.weight") {
            tensor = tensor.picked(vocabulary, answers.clone());
            "lm_head.weight".clone_into(&mut translated);
        }
        insert(&mut found, translated, tensor)?;
    }
    Ok(found)
}
