//! The configurations of models most of whose layers have no attention: Qwen3.5 has a gated delta rule
//! instead, LFM2 a short convolution.

use super::{
    metadata_reader::{CONVERTED, MetadataReader, joined},
    translate::answers,
};
use crate::CheckpointError;
use serde_json::{Value, json};

/// The content of Qwen3.5's `config.json`. The converter puts value heads in another order than
/// `transformers`, and the decays as they are used; [`CONVERTED`] says so.
pub(super) fn delta_config(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
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

/// The content of LFM2's `config.json`. The converter stores the taps of a convolution as a matrix, without
/// the dimension of size 1 between; [`CONVERTED`] says so.
pub(super) fn convolution_config(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let file = reader.file;
    let (hidden, head) = (reader.number("embedding_length")?, reader.equal_heads()?);
    reader.check_rotary(head)?;
    let taps = reader.number("shortconv.l_cache")?;
    let sizes = reader.sizes(1)?;
    let mut kinds = Vec::new();
    for layer in 0..reader.number("block_count")? {
        let name = format!("blk.{layer}.shortconv.conv.weight");
        let has_taps = file.has_tensor(&name);
        if has_taps {
            reader.check("shortconv.l_cache", &name, [Some(hidden), Some(taps)])?;
        }
        kinds.push(if has_taps { "conv" } else { "full_attention" });
    }
    // A number for each layer, 0 in convolutions; or one for all, in files of models without attention.
    let key = reader.key("attention.head_count_kv");
    let listed = file.metadata.numbers(&key).unwrap_or_default();
    let largest = listed.into_iter().max().and_then(|number| usize::try_from(number).ok());
    let keys =
        file.metadata.number(&key).or(largest).ok_or_else(|| reader.missing("attention.head_count_kv"))?;
    if let Some(layer) = kinds.iter().position(|kind| *kind == "full_attention") {
        let rows = keys.checked_mul(head);
        reader.check(
            "attention.head_count_kv",
            &format!("blk.{layer}.attn_k.weight"),
            [rows, Some(hidden)],
        )?;
    }
    let fields = json!({
        CONVERTED: true,
        "num_key_value_heads": keys,
        "norm_eps": reader.real("attention.layer_norm_rms_epsilon")?,
        "rope_theta": reader.real("rope.freq_base")?,
        "conv_L_cache": taps,
        "layer_types": kinds,
        "block_auto_adjust_ff_dim": false,
        "max_position_embeddings": reader.number("context_length")?,
        "tie_embedding": file.shape("output.weight").is_none(),
    });
    Ok(joined(sizes, fields))
}
