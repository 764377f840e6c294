//! Qwen2 (transformers, `modeling_qwen2.py`): jina-code-embeddings, mxbai-rerank-v2, and gte-Qwen2, which has
//! no causal mask (`is_causal` false).

use super::{
    decoder::{self, DecoderConfig, DecoderFamily, OptionalBiases},
    parse, qwen3,
};
use crate::{operations::Result, plan::Plan};
use serde_json::Value;

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let config = DecoderConfig::read(value)?;
    let biases = OptionalBiases::Nowhere;
    let family = DecoderFamily { query_bias: true, biases, ..qwen3::family(&config, &parse(value)?) };
    decoder::plan(value, &config, &family)
}
