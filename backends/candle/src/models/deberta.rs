//! DeBERTa-v2 and DeBERTa-v3 (transformers, `modeling_deberta_v2.py`): BERT with attention scores that
//! include terms for relative positions. The largest models also have a convolution parallel to the first
//! layer.

use super::{
    activation, classification, names, parse,
    post_norm::{BERT, EncoderConfig, LayerNames, encoder},
    refuse, require,
};
use crate::{
    operations::Result,
    plan::{
        ConvolutionPlan, DisentangledPlan, LogBuckets, MatrixPart, NormPlan, Plan, Position, Reads, RowIndex,
        StepPlan, TablePlan,
    },
};
use serde::Deserialize;
use serde_json::Value;

/// The fields of `config.json` that BERT does not have.
#[derive(Debug, Deserialize)]
struct DebertaConfig {
    #[serde(default)]
    relative_attention: bool,
    pos_att_type: Option<Kinds>,
    #[serde(default)]
    share_att_key: bool,
    max_relative_positions: Option<i64>,
    position_buckets: Option<i64>,
    norm_rel_ebd: Option<String>,
    position_biased_input: Option<bool>,
    conv_kernel_size: Option<usize>,
    conv_groups: Option<usize>,
    conv_act: Option<String>,
    pooler_hidden_act: Option<String>,
    pooler_hidden_size: Option<usize>,
    embedding_size: Option<usize>,
    attention_head_size: Option<usize>,
}

/// The position terms of attention scores: `"c2p|p2c"` or a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Kinds {
    Joined(String),
    List(Vec<String>),
}

const NAMES: LayerNames = LayerNames {
    query: "attention.self.query_proj",
    key: "attention.self.key_proj",
    value: "attention.self.value_proj",
    ..BERT
};

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let (config, body): (DebertaConfig, EncoderConfig) = (parse(value)?, parse(value)?);
    let hidden = body.hidden_size;
    let is_other = |size: Option<usize>, known: usize| size.is_some_and(|size| size != known);
    let mut plan = encoder(value, &body, 0, &NAMES)?;
    let head_size = plan.views[0].heads.size;
    refuse(value, is_other(config.embedding_size, hidden), "embedding_size other than hidden_size")?;
    refuse(value, is_other(config.pooler_hidden_size, hidden), "pooler_hidden_size other than hidden_size")?;
    refuse(value, is_other(config.attention_head_size, head_size), "attention_head_size")?;
    refuse(value, is_other(config.conv_groups, 1), "conv_groups other than 1")?;
    let act = activation(value, "pooler_hidden_act", config.pooler_hidden_act.as_deref().unwrap_or("gelu"))?;
    let pooler = vec![StepPlan::dense("pooler.dense", [hidden, hidden], act)];
    plan.prefixes = &["deberta."];
    plan.ignored = names(&[
        "embeddings.position_",
        "pooler.",
        "classifier.",
        "cls.",
        "lm_predictions.",
        "mask_predictions.",
    ]);
    plan.classification = Some(classification(Reads::First, pooler, "classifier", hidden));
    if config.position_biased_input == Some(false) {
        plan.embeddings.tables.retain(|table| !matches!(table.index, RowIndex::Position { .. }));
    }
    let kinds = kinds(value, &config)?;
    // The divisor also counts position terms that are missing because `relative_attention` is off.
    let divisor = ((head_size * (1 + kinds.len())) as f32).sqrt();
    plan.views.iter_mut().for_each(|view| view.divisor = divisor);
    if config.relative_attention {
        plan.views.iter_mut().for_each(|view| view.position = Position::Disentangled);
        let bucket = buckets(value, &config, body.max_position_embeddings)?;
        let attentions = plan.layers.iter_mut().filter_map(|layer| layer.mixer.attention_mut());
        for (index, attention) in attentions.enumerate() {
            attention.disentangled = Some(disentangled(&config, &body, index, &kinds, bucket));
        }
    }
    let taps = config.conv_kernel_size.unwrap_or(0);
    if taps > 0 {
        refuse(value, taps.is_multiple_of(2), &format!("conv_kernel_size {taps}"))?;
        plan.convolution = Some(ConvolutionPlan {
            name: "encoder.conv.conv",
            taps,
            activation: activation(value, "conv_act", config.conv_act.as_deref().unwrap_or("tanh"))?,
            norm: NormPlan::layer("encoder.conv.LayerNorm", hidden, body.layer_norm_eps),
        });
    }
    Ok(plan)
}

/// The position terms of a layer's attention scores.
fn disentangled(
    config: &DebertaConfig,
    body: &EncoderConfig,
    index: usize,
    kinds: &[&str],
    bucket: LogBuckets,
) -> DisentangledPlan {
    let hidden = body.hidden_size;
    let matrix = |kind, of_content: &str, of_position: &str| {
        let name = if config.share_att_key { of_content } else { of_position };
        let name = format!("{}.{index}.attention.self.{name}", NAMES.layers);
        kinds.contains(&kind).then(|| MatrixPart::new(&name, [hidden, hidden]).into())
    };
    let is_normed =
        config.norm_rel_ebd.as_ref().is_some_and(|norm| norm.to_lowercase().contains("layer_norm"));
    DisentangledPlan {
        table: TablePlan {
            tensor: "encoder.rel_embeddings.weight".to_owned(),
            shape: [2 * bucket.span, hidden],
            index: RowIndex::First,
        },
        norm: is_normed.then(|| NormPlan::layer("encoder.LayerNorm", hidden, body.layer_norm_eps)),
        keys: matrix("c2p", "key_proj", "pos_key_proj"),
        queries: matrix("p2c", "query_proj", "pos_query_proj"),
        bucket,
    }
}

/// The position terms, each once.
fn kinds(value: &Value, config: &DebertaConfig) -> Result<Vec<&'static str>> {
    let names: Vec<String> = match &config.pos_att_type {
        None => Vec::new(),
        Some(Kinds::Joined(names)) => names.split('|').map(|name| name.trim().to_lowercase()).collect(),
        Some(Kinds::List(names)) => names.clone(),
    };
    let known = ["c2p", "p2c"];
    for name in &names {
        require(value, "pos_att_type", name, &known)?;
    }
    Ok(known.into_iter().filter(|kind| names.iter().any(|name| name == kind)).collect())
}

/// The buckets of distances, for inputs of at most `positions` tokens.
fn buckets(value: &Value, config: &DebertaConfig, positions: usize) -> Result<LogBuckets> {
    // Other numbers than positive ones mean none.
    let [max_distance, buckets] = [config.max_relative_positions, config.position_buckets]
        .map(|number| number.and_then(|number| usize::try_from(number).ok()).filter(|&number| number > 0));
    let max_distance = max_distance.unwrap_or(positions);
    // Half of the buckets hold a single distance each. The others grow logarithmically from there to `most -
    // 1`.
    let are_too_many = buckets.is_some_and(|buckets| buckets < 2 || buckets / 2 + 1 >= max_distance);
    refuse(value, are_too_many, "position_buckets too large for max_relative_positions")?;
    Ok(LogBuckets { span: buckets.unwrap_or(max_distance), buckets, max_distance })
}
