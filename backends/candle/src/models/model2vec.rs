//! Static embeddings (model2vec, and sentence-transformers' `StaticEmbedding`): a table of vectors by token,
//! without layers. A text's vector is the mean of its tokens' vectors.
//!
//! The configuration is not the file of the repository, which does not say the table's size:
//! `core/src/files/static_embedding.rs` makes it from the tensors.

use super::{parse, unsupported_value};
use crate::{
    operations::Result,
    plan::{Plan, TokenRowsPlan},
};
use serde::Deserialize;
use serde_json::Value;

/// The fields of the configuration.
#[derive(Debug, Deserialize)]
struct StaticConfig {
    hidden_size: usize,
    vocab_size: usize,
    table: String,
    table_rows: usize,
    has_mapping: bool,
    has_weights: bool,
    blank_token_id: u32,
}

/// The tables of the two layouts.
const TABLES: [&str; 2] = ["embeddings", "embedding.weight"];
/// The longest input, in tokens. There are no positions that bound it, but a batch has to fit into memory.
const MAX_TOKENS: usize = 32_768;

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config: StaticConfig = parse(value)?;
    let Some(table) = TABLES.into_iter().find(|table| *table == config.table) else {
        return Err(unsupported_value(value, "table", &config.table, &TABLES));
    };
    let mut plan = Plan {
        vocabulary: config.vocab_size,
        max_length: Some(MAX_TOKENS),
        unscaled_bytes: true,
        ..Plan::base(table, [config.table_rows, config.hidden_size])
    };
    plan.embeddings.token_rows = TokenRowsPlan {
        mapping: config.has_mapping.then_some("mapping"),
        weights: config.has_weights.then_some("weights"),
        blank: Some(config.blank_token_id),
    };
    Ok(plan)
}
