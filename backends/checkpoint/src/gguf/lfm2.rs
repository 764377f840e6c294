//! The configuration of LFM2, most of whose layers have a short convolution instead of attention.

use super::metadata_reader::{CONVERTED, MetadataReader, joined};
use crate::CheckpointError;
use serde_json::{Value, json};

/// The content of `config.json`. The converter stores the taps of a convolution as a matrix, without the
/// dimension of size 1 between; [`CONVERTED`] says so.
pub(super) fn convolution_config(reader: &MetadataReader<'_>) -> Result<Value, CheckpointError> {
    let file = reader.file;
    let (hidden, heads) = (reader.number("embedding_length")?, reader.number("attention.head_count")?);
    let head = hidden.checked_div(heads).unwrap_or(0);
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
