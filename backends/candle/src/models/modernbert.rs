//! ModernBERT (transformers, `modeling_modernbert.py`): some layers attend to the whole text, the others to a
//! window.

use super::{
    activation, classification, head_size, names, parse,
    parts::{LayerTensors, fused_attention, kind_indices},
    refuse, require,
    rotary::rope_of,
};
use crate::{
    attention::{Heads, Mask},
    operations::Result,
    plan::{
        AttentionPlan, Classification, Embeddings, LayerPlan, MaskedLm, MatrixPart, MlpPlan, NormPlan,
        NormsPlan, Plan, Position, Reads, StepPlan, View,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use text_embeddings_backend_core::Activation;

/// The fields of `config.json`.
#[derive(Debug, Deserialize)]
struct ModernBertConfig {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    max_position_embeddings: usize,
    hidden_activation: String,
    norm_eps: f32,
    norm_bias: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    /// The size of a window in tokens, including the query's own.
    local_attention: usize,
    layer_types: Option<Vec<String>>,
    global_attn_every_n_layers: Option<NonZeroUsize>,
    classifier_pooling: Option<String>,
    classifier_activation: Option<String>,
    classifier_bias: Option<bool>,
    decoder_bias: Option<bool>,
    pad_token_id: Option<i64>,
}

const WORDS: &str = "embeddings.tok_embeddings.weight";
/// The kinds of attention, in the order of the plan's views.
const KINDS: [&str; 2] = ["full_attention", "sliding_attention"];

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: ModernBertConfig = parse(value)?;
    let hidden = config.hidden_size;
    let heads = config.num_attention_heads;
    let heads = Heads { queries: heads, keys: heads, size: head_size(hidden, heads)? };
    let activation = activation(value, "hidden_activation", &config.hidden_activation)?;
    let (classification, masked_lm) = tops(value, &config)?;
    let kinds = kinds(value, &config)?.into_iter().enumerate();
    let base = Plan::base(WORDS, [config.vocab_size, hidden])
        .with_limits(Some(config.max_position_embeddings), config.pad_token_id);
    Ok(Plan {
        prefixes: &["model."],
        ignored: names(&["head.", "classifier.", "decoder."]),
        embeddings: Embeddings { norm: Some(config.norm("embeddings.norm")), ..base.embeddings },
        views: views(value, &config, heads)?,
        layers: kinds.map(|(index, view)| config.layer(index, view, activation)).collect(),
        final_norm: Some(config.norm("final_norm")),
        classification: Some(classification),
        masked_lm: Some(masked_lm),
        ..base
    })
}

impl ModernBertConfig {
    fn norm(&self, name: &str) -> NormPlan {
        let bias = self.norm_bias == Some(true);
        NormPlan { bias, ..NormPlan::layer(name, self.hidden_size, self.norm_eps) }
    }

    fn layer(&self, index: usize, view: usize, activation: Activation) -> LayerPlan {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let tensors = LayerTensors { prefix: format!("layers.{index}"), epsilon: self.norm_eps };
        let [attention_bias, mlp_bias] = [self.attention_bias, self.mlp_bias].map(|bias| bias == Some(true));
        let qkv = tensors.biased_part("attn.Wqkv", [3 * hidden, hidden]).biased(attention_bias);
        let output = tensors.biased_part("attn.Wo", [hidden, hidden]).biased(attention_bias);
        let gate_up = tensors.biased_part("mlp.Wi", [2 * inner, hidden]).biased(mlp_bias);
        // The embeddings' norm has already normalised the input of the first layer.
        let input = (index > 0).then(|| self.norm(&tensors.tensor_name("attn_norm")));
        LayerPlan {
            mixer: AttentionPlan { view, ..fused_attention(qkv, output) }.into(),
            attention_norms: NormsPlan { input, ..NormsPlan::default() },
            mlp: MlpPlan::Gated {
                gate: gate_up.clone().rows(0..inner),
                up: gate_up.rows(inner..2 * inner),
                down: tensors.biased_part("mlp.Wo", [hidden, inner]).biased(mlp_bias).into(),
                activation,
            },
            mlp_norms: NormsPlan::before(self.norm(&tensors.tensor_name("mlp_norm"))),
        }
    }
}

/// The head's dense layer and norm: once before the classifier, once before the vocabulary.
fn tops(value: &Value, config: &ModernBertConfig) -> Result<(Classification, MaskedLm)> {
    let width = config.hidden_size;
    let pooling = config.classifier_pooling.as_deref().unwrap_or("cls");
    require(value, "classifier_pooling", pooling, &["cls", "mean"])?;
    let act = config.classifier_activation.as_deref().unwrap_or("gelu");
    let act = activation(value, "classifier_activation", act)?;
    let dense = MatrixPart::new("head.dense", [width, width]).biased(config.classifier_bias == Some(true));
    let steps = vec![StepPlan::Dense(dense.into(), act), StepPlan::Norm(config.norm("head.norm"))];
    let reads = if pooling == "mean" { Reads::Mean } else { Reads::First };
    let classification = classification(reads, steps.clone(), "classifier", width);
    let bias = config.decoder_bias.unwrap_or(true).then(|| "decoder.bias".to_owned());
    let decoder = vec!["decoder.weight".to_owned(), WORDS.to_owned()];
    Ok((classification, MaskedLm { steps, decoder, bias: bias.into_iter().collect(), width }))
}

/// The kind of each layer's attention.
fn kinds(value: &Value, config: &ModernBertConfig) -> Result<Vec<usize>> {
    let Some(types) = &config.layer_types else {
        let every = config.global_attn_every_n_layers.map_or(3, NonZeroUsize::get);
        return Ok((0..config.num_hidden_layers).map(|index| usize::from(index % every != 0)).collect());
    };
    kind_indices(value, types, &KINDS, config.num_hidden_layers)
}

fn views(value: &Value, config: &ModernBertConfig, heads: Heads) -> Result<Vec<View>> {
    let window = config.local_attention / 2;
    // transformers takes its size from this field, wherever it is, and never writes it.
    let has_other = value["sliding_window"].as_u64().is_some_and(|other| other != window as u64);
    refuse(value, has_other, "a sliding_window that is not half of local_attention")?;
    let masks = [Mask::FULL, Mask { before: window, after: window }];
    let global = value["global_rope_theta"].as_f64().unwrap_or(160_000.0);
    // A base of null means the global base.
    let local = value.get("local_rope_theta").map_or(10_000.0, |theta| theta.as_f64().unwrap_or(global));
    masks
        .into_iter()
        .zip(KINDS)
        .zip([global, local])
        .map(|((mask, kind), theta)| {
            let (own, theta) = (&value["rope_parameters"][kind], json!({ "rope_theta": theta }));
            let rope = rope_of(value, &[&value["rope_scaling"], own, &theta], heads.size, None)?;
            Ok(View::new(heads, mask, Position::Rotary(rope)))
        })
        .collect()
}
