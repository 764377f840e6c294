//! MPNet (transformers, `modeling_mpnet.py`): BERT without token types, with a bias by distance on attention
//! scores.

use super::{
    names, parse,
    parts::first_token_classification,
    post_norm::{BERT, EncoderConfig, LayerNames, encoder},
    refuse,
};
use crate::{
    bias::DistanceBuckets,
    operations::Result,
    plan::{Plan, Position},
};
use serde_json::Value;

const NAMES: LayerNames = LayerNames {
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    ..BERT
};

/// The position of the first token. Positions 0 and 1 belong to padding, whatever `pad_token_id` is.
const FIRST_POSITION: usize = 2;

/// The number of buckets for distances, and the distance from which on all have the last one.
const BUCKETS: usize = 32;
const MAX_DISTANCE: usize = 128;

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: EncoderConfig = parse(value)?;
    let buckets = &value["relative_attention_num_buckets"];
    let is_other = !buckets.is_null() && buckets.as_u64() != Some(BUCKETS as u64);
    refuse(value, is_other, &format!("relative_attention_num_buckets {buckets}"))?;
    let head = first_token_classification("classifier.dense", "classifier.out_proj", config.hidden_size);
    let mut plan = Plan {
        prefixes: &["mpnet."],
        ignored: names(&["embeddings.position_ids", "pooler.", "lm_head.", "classifier."]),
        classification: Some(head),
        ..encoder(value, &config, FIRST_POSITION, &NAMES)?
    };
    for view in &mut plan.views {
        view.position = Position::Buckets {
            table: "encoder.relative_attention_bias.weight".to_owned(),
            buckets: DistanceBuckets { count: BUCKETS, max_distance: MAX_DISTANCE },
        };
    }
    Ok(plan)
}
