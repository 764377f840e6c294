//! The configuration of Qwen3.5, most of whose layers have a gated delta rule instead of attention.

use super::{
    metadata_reader::{CONVERTED, MetadataReader, joined},
    translate::answers,
};
use crate::CheckpointError;
use serde_json::{Value, json};

/// The content of `config.json`. The converter puts value heads in another order than `transformers`, and the
/// decays as they are used; [`CONVERTED`] says so.
pub(super) fn hybrid_config(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let file = reader.file;
    reader.check_scaling()?;
    let hidden = reader.number("embedding_length")?;
    let (heads, keys) = (reader.number("attention.head_count")?, reader.number("attention.head_count_kv")?);
    let (head, value) = (reader.number("attention.key_length")?, reader.number("attention.value_length")?);
    if value != head || head == 0 {
        let reason =
            format!("a head has {head} values in its keys and {value} in its values, which is not supported");
        return Err(file.unsupported(reason));
    }
    let interval = reader.number_if_given("full_attention_interval").unwrap_or(4).max(1);
    let (size, groups) = (reader.number("ssm.state_size")?, reader.number("ssm.group_count")?);
    let (inner, value_heads) = (reader.number("ssm.inner_size")?, reader.number("ssm.time_step_rank")?);
    // The shapes of tensors bound the sizes.
    if reader.number("block_count")? >= interval {
        for (number, tensor, rows) in [
            ("attention.head_count", "attn_q", checked_product(&[2, heads, head])),
            ("attention.head_count_kv", "attn_k", checked_product(&[keys, head])),
        ] {
            let tensor = format!("blk.{}.{tensor}.weight", interval - 1);
            reader.check(number, &tensor, [Some(rows), Some(hidden)])?;
        }
    }
    if interval > 1 {
        let channels = checked_product(&[2, size, groups]).checked_add(inner).unwrap_or(0);
        reader.check("ssm.inner_size", "blk.0.attn_qkv.weight", [Some(channels), Some(hidden)])?;
        reader.check("ssm.time_step_rank", "blk.0.ssm_alpha.weight", [Some(value_heads), Some(hidden)])?;
    }
    if value_heads == 0 || !inner.is_multiple_of(value_heads) {
        return Err(file.damaged(format!("`{}` cannot be {inner}", reader.key("ssm.inner_size"))));
    }
    let rotated = reader.number("rope.dimension_count")?;
    let fields = json!({
        CONVERTED: true,
        "num_key_value_heads": keys,
        "head_dim": head,
        "rms_norm_eps": reader.real("attention.layer_norm_rms_epsilon")?,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": reader.real("rope.freq_base")?,
            "partial_rotary_factor": rotated as f64 / head as f64,
        },
        "max_position_embeddings": reader.number("context_length")?,
        "hidden_act": "silu",
        "tie_word_embeddings": file.shape("output.weight").is_none() && answers(file).is_none(),
        "full_attention_interval": interval,
        "linear_conv_kernel_dim": reader.number("ssm.conv_kernel")?,
        "linear_key_head_dim": size,
        "linear_value_head_dim": inner / value_heads,
        "linear_num_key_heads": groups,
        "linear_num_value_heads": value_heads,
    });
    Ok(joined(reader.sizes(1)?, fields))
}

/// The product, or 0 if it is too large: no tensor has such a shape.
fn checked_product(factors: &[usize]) -> usize {
    factors.iter().try_fold(1_usize, |product, &factor| product.checked_mul(factor)).unwrap_or(0)
}
