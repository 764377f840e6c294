//! Qwen3.5 (transformers, `modeling_qwen3_5.py`), for texts only: most layers have a gated delta rule, every
//! fourth has attention. Files with a vision tower have the language model's settings in `text_config`.

use super::{
    decoder::{self, DecoderConfig, DecoderFamily, Mould},
    parse,
    parts::{LayerTensors, kind_indices},
    qwen_vl, refuse, require,
};
use crate::{
    attention::Heads,
    operations::Result,
    plan::{
        AttentionPlan, DeltaPlan, DeltaSizes, HeadNormsPlan, MatrixPart, MatrixPlan, MixerPlan, Plan,
        Position,
    },
    rope::Rope,
};
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use text_embeddings_backend_core::BackendError;
use text_embeddings_checkpoint::gguf::CONVERTED;

/// The kinds of layers, as `layer_types` names them.
const LAYER_TYPES: [&str; 2] = ["linear_attention", "full_attention"];
/// The longest convolution.
const MAX_TAPS: usize = 64;
/// The largest head. A state has as many values as the product of two heads' sizes.
const MAX_HEAD: usize = 1024;

/// Settings that only Qwen3.5 has.
#[derive(Debug, Deserialize)]
struct Settings {
    layer_types: Option<Vec<String>>,
    full_attention_interval: Option<usize>,
    hidden_act: Option<String>,
    attn_output_gate: Option<bool>,
    attention_bias: Option<bool>,
    partial_rotary_factor: Option<f64>,
    linear_conv_kernel_dim: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
}

pub(super) fn text_plan(value: &Value) -> Result<Plan> {
    let mut text = qwen_vl::text_config(value);
    let settings: Settings = parse(&text)?;
    let factor = take_rotary_factor(&mut text, &settings);
    if let Some(fields) = text.as_object_mut() {
        // The decoder's own kinds of layers are others.
        fields.remove("layer_types");
        fields.entry("head_dim").or_insert_with(|| 256.into());
    }
    let config = DecoderConfig::read(&text)?;
    let linear = linear_layers(value, &settings, config.num_hidden_layers)?;
    let is_converted = !text[CONVERTED].is_null();
    let sizes = delta_sizes(&settings, is_converted)?;
    let activation = settings.hidden_act.as_deref().unwrap_or("silu");
    require(value, "hidden_act", activation, &["silu"])?;
    let is_bidirectional =
        config.is_causal == Some(false) || config.use_bidirectional_attention == Some(true);
    refuse(value, settings.attn_output_gate == Some(false), "attn_output_gate false")?;
    refuse(value, settings.attention_bias == Some(true), "attention_bias true")?;
    refuse(value, is_bidirectional, "attention to later tokens")?;
    let family = DecoderFamily {
        head_norms: true,
        mould: Mould::PlusOne,
        ..DecoderFamily::llama(&config, activation)
    };
    let mut plan = qwen_vl::without_vision(decoder::plan(&text, &config, &family)?);
    plan.ignored.push("mtp.".to_owned());
    let rope = partial_rope(&mut plan, factor)?;
    let (heads, hidden) = (plan.views[0].heads, plan.hidden);
    for (index, (layer, is_linear)) in plan.layers.iter_mut().zip(linear).enumerate() {
        let block = if is_linear { "linear_attn" } else { "self_attn" };
        let prefix = format!("layers.{index}.{block}");
        let tensors = LayerTensors { prefix, epsilon: config.rms_norm_eps };
        if is_linear {
            layer.mixer = MixerPlan::Delta(delta_plan(&tensors, sizes, hidden));
        } else if let Some(attention) = layer.mixer.attention_mut() {
            gate_attention(attention, &tensors, heads, hidden, &rope.head_order());
        }
    }
    Ok(plan)
}

/// For each layer, whether it has a delta rule.
fn linear_layers(value: &Value, settings: &Settings, layers: usize) -> Result<Vec<bool>> {
    let Some(kinds) = &settings.layer_types else {
        let interval = settings.full_attention_interval.unwrap_or(4).max(1);
        return Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect());
    };
    let indices = kind_indices(value, kinds, &LAYER_TYPES, layers)?;
    Ok(indices.into_iter().map(|index| index == 0).collect())
}

/// The sizes of the delta rules, with the defaults of transformers.
fn delta_sizes(settings: &Settings, is_converted: bool) -> Result<DeltaSizes> {
    let sizes = DeltaSizes {
        key_heads: settings.linear_num_key_heads.unwrap_or(16),
        value_heads: settings.linear_num_value_heads.unwrap_or(32),
        key_size: settings.linear_key_head_dim.unwrap_or(128),
        value_size: settings.linear_value_head_dim.unwrap_or(128),
        taps: settings.linear_conv_kernel_dim.unwrap_or(4),
        is_tiled: is_converted,
    };
    let DeltaSizes { key_heads, value_heads, key_size, value_size, taps, .. } = sizes;
    if [key_heads, value_heads, key_size, value_size, taps].contains(&0)
        || !value_heads.is_multiple_of(key_heads)
        || taps > MAX_TAPS
        || key_size.max(value_size) > MAX_HEAD
    {
        return Err(BackendError::Load(format!(
            "config.json: the sizes of linear attention must be positive, linear_num_value_heads a multiple of \
             linear_num_key_heads, linear_conv_kernel_dim at most {MAX_TAPS}, and both head sizes at most {MAX_HEAD}"
        )));
    }
    Ok(sizes)
}

/// The share of a head's values that positions rotate. It is removed from the settings of the rotation, which
/// otherwise belong to whole heads.
fn take_rotary_factor(text: &mut Value, settings: &Settings) -> f64 {
    let mut factor = None;
    for name in ["rope_parameters", "rope_scaling"] {
        let removed = text[name].as_object_mut().and_then(|fields| fields.remove("partial_rotary_factor"));
        factor = factor.or_else(|| removed?.as_f64());
    }
    factor.or(settings.partial_rotary_factor).unwrap_or(0.25)
}

/// Lets positions rotate this share of each head's values.
fn partial_rope(plan: &mut Plan, factor: f64) -> Result<Rope> {
    let size = plan.views[0].heads.size;
    let rotated = (size as f64 * factor) as usize;
    if rotated == 0 || rotated > size || !rotated.is_multiple_of(2) {
        return Err(BackendError::Load(format!(
            "config.json: partial_rotary_factor {factor} must make an even number of each head's {size} values"
        )));
    }
    for view in &mut plan.views {
        if let Position::Rotary(rope) = &mut view.position {
            rope.rotated = rotated;
            return Ok(rope.clone());
        }
    }
    Err(BackendError::Load("config.json: the layers have no rotary positions".to_owned()))
}

/// Attention whose query matrix also has the rows of the gate: for each head its queries, then its gate.
fn gate_attention(
    attention: &mut AttentionPlan,
    tensors: &LayerTensors,
    Heads { queries, keys, size }: Heads,
    hidden: usize,
    order: &[Range<usize>; 4],
) {
    let both = tensors.matrix_part("q_proj", [2 * queries * size, hidden]);
    let [key, value] = ["k_proj", "v_proj"].map(|name| tensors.matrix_part(name, [keys * size, hidden]));
    let gates = (0..queries).map(|head| both.clone().rows((2 * head + 1) * size..(2 * head + 2) * size));
    attention.gate = Some(MatrixPlan { parts: gates.collect() });
    attention.query = MatrixPlan { parts: ordered_rows(&both, queries, 2 * size, order) };
    let mut parts = ordered_rows(&key, keys, size, order);
    parts.push(value);
    attention.key_value = MatrixPlan { parts };
    if let HeadNormsPlan::EachHead { query, key, .. } = &mut attention.norms {
        query.order = order.to_vec();
        key.order = order.to_vec();
    }
}

/// The rows of some heads, each in this order. Their first rows are `stride` apart.
fn ordered_rows(
    part: &MatrixPart,
    heads: usize,
    stride: usize,
    order: &[Range<usize>; 4],
) -> Vec<MatrixPart> {
    let firsts = (0..heads).map(|head| head * stride);
    let rows = firsts.flat_map(|first| order.iter().map(move |rows| first + rows.start..first + rows.end));
    rows.filter(|rows| !rows.is_empty()).map(|rows| part.clone().rows(rows)).collect()
}

fn delta_plan(tensors: &LayerTensors, sizes: DeltaSizes, hidden: usize) -> DeltaPlan {
    let [strengths, decays] =
        ["in_proj_b", "in_proj_a"].map(|name| tensors.matrix_part(name, [sizes.value_heads, hidden]));
    DeltaPlan {
        sizes,
        query_key_value: tensors.matrix_part("in_proj_qkv", [sizes.channel_count(), hidden]).into(),
        rates: [strengths, decays].into(),
        gate: tensors.matrix_part("in_proj_z", [sizes.value_count(), hidden]).into(),
        output: tensors.matrix_part("out_proj", [hidden, sizes.value_count()]).into(),
        convolution: tensors.tensor_name("conv1d.weight"),
        decays: tensors.tensor_name("A_log"),
        decay_bias: tensors.tensor_name("dt_bias"),
        // Unlike the model's other norms, this one multiplies by the stored weights.
        norm: tensors.rms_norm("norm", sizes.value_size),
        is_converted: sizes.is_tiled,
    }
}
