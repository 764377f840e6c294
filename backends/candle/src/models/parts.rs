//! Parts that several architectures share: kinds of layers, names of a layer's tensors, and the parts of
//! encoders with BERT's tables and configuration, but other tensors in their layers.

use super::{head_size, names, post_norm::EncoderConfig, refuse, unsupported, unsupported_value};
use crate::{
    attention::{Heads, Mask},
    operations::Result,
    plan::{
        AttentionPlan, Classification, Embeddings, LayerPlan, MatrixPart, NormPlan, NormsPlan, Plan,
        Position, Reads, RowIndex, StepPlan, TablePlan, View,
    },
};
use serde_json::Value;
use text_embeddings_backend_core::{Activation, BackendError};

/// Refuses the first of these settings with a value other than null, false or 0.
pub(super) fn refuse_set(config: &Value, settings: &[&str]) -> Result<()> {
    let set = settings.iter().find(|setting| match &config[**setting] {
        Value::Null | Value::Bool(false) => false,
        other => other.as_f64() != Some(0.0),
    });
    match set {
        Some(setting) => Err(unsupported(config, &format!("{setting} {}", config[*setting]))),
        None => Ok(()),
    }
}

/// For each layer, the index that its kind in `layer_types` has among the `known` ones.
pub(super) fn kind_indices(
    config: &Value,
    layer_types: &[String],
    known: &[&str],
    layers: usize,
) -> Result<Vec<usize>> {
    let mut indices = Vec::with_capacity(layer_types.len());
    for kind in layer_types {
        let index = known.iter().position(|name| name == kind);
        indices.push(index.ok_or_else(|| unsupported_value(config, "layer_types", kind, known))?);
    }
    if indices.len() != layers {
        return Err(BackendError::Load(format!(
            "config.json: layer_types must name the kind of each layer: it names {}, but num_hidden_layers is \
             {layers}",
            indices.len()
        )));
    }
    Ok(indices)
}

/// An encoder without heads: the sum of the word and token type embeddings, its norm, and layers. Every token
/// attends to its whole text.
pub(super) fn encoder(
    value: &Value,
    config: &EncoderConfig,
    norm: &str,
    position: Position,
    layers: Vec<LayerPlan>,
) -> Result<Plan> {
    refuse(value, config.is_decoder, "is_decoder true")?;
    let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
    let heads = Heads { queries: heads, keys: heads, size: head_size(hidden, heads)? };
    let words = "embeddings.word_embeddings.weight";
    let mut base = Plan::base(words, [config.vocab_size, hidden])
        .with_limits(Some(config.max_position_embeddings), config.pad_token_id);
    if config.type_vocab_size > 0 {
        base.embeddings.tables.push(TablePlan {
            tensor: "embeddings.token_type_embeddings.weight".to_owned(),
            shape: [config.type_vocab_size, hidden],
            index: if config.type_vocab_size > 1 { RowIndex::Type } else { RowIndex::First },
        });
    }
    Ok(Plan {
        ignored: names(&["embeddings.position_ids", "pooler.", "classifier.", "cls.", "lm_head."]),
        embeddings: Embeddings {
            norm: Some(NormPlan::layer(norm, hidden, config.layer_norm_eps)),
            ..base.embeddings
        },
        views: vec![View::new(heads, Mask::FULL, position)],
        layers,
        ..base
    })
}

/// The tensors of a layer, whose names begin alike.
pub(super) struct LayerTensors {
    /// The beginning of the names.
    pub(super) prefix: String,
    /// Added to the mean square, or to the variance, in norms.
    pub(super) epsilon: f32,
}

impl LayerTensors {
    pub(super) fn tensor_name(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// All of a matrix, without a bias.
    pub(super) fn matrix_part(&self, name: &str, shape: [usize; 2]) -> MatrixPart {
        self.biased_part(name, shape).biased(false)
    }

    pub(super) fn biased_part(&self, name: &str, shape: [usize; 2]) -> MatrixPart {
        MatrixPart::new(&self.tensor_name(name), shape)
    }

    pub(super) fn layer_norm_after(&self, name: &str, size: usize) -> NormsPlan {
        NormsPlan::after(self.layer_norm(name, size))
    }

    pub(super) fn layer_norm(&self, name: &str, size: usize) -> NormPlan {
        NormPlan::layer(self.tensor_name(name), size, self.epsilon)
    }

    pub(super) fn rms_norm(&self, name: &str, size: usize) -> NormPlan {
        NormPlan::rms(self.tensor_name(name), size, self.epsilon)
    }

    /// A root-mean-square norm before a block.
    pub(super) fn norm_before(&self, name: &str, size: usize) -> NormsPlan {
        NormsPlan::before(self.rms_norm(name, size))
    }
}

/// Attention whose queries, keys and values are the three thirds of one matrix, without norms.
pub(super) fn fused_attention(query_key_value: MatrixPart, output: MatrixPart) -> AttentionPlan {
    let [outputs, _] = query_key_value.shape;
    let query = query_key_value.clone().rows(0..outputs / 3);
    AttentionPlan::from_matrices(query, query_key_value.rows(outputs / 3..outputs), output)
}

/// A classification head on the first token: the matrix `dense` with a tanh, then `logits`.
pub(super) fn first_token_classification(dense: &str, logits: &str, hidden: usize) -> Classification {
    let dense = StepPlan::dense(dense, [hidden, hidden], Activation::Tanh);
    super::classification(Reads::First, vec![dense], logits, hidden)
}
