//! Qwen3.5 (transformers, `modeling_qwen3_5.py`), for texts only: most layers have a gated delta rule, every
//! fourth has attention. Files with a vision tower have the language model's settings in `text_config`.

use super::{
    decoder::{self, DecoderConfig, DecoderFamily, Mould},
    parse, qwen_vl, refuse, require,
};
use crate::{
    attention::Heads,
    operations::Result,
    plan::{
        AttentionPlan, DeltaPlan, DeltaSizes, HeadNormsPlan, MatrixPart, MatrixPlan, MixerPlan, NormPlan,
        Plan, Position,
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

/// Settings that only Qwen3.5 has, with the defaults of transformers.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Settings {
    layer_types: Option<Vec<String>>,
    full_attention_interval: usize,
    hidden_act: String,
    attn_output_gate: bool,
    attention_bias: bool,
    partial_rotary_factor: Option<f64>,
    linear_conv_kernel_dim: usize,
    linear_key_head_dim: usize,
    linear_value_head_dim: usize,
    linear_num_key_heads: usize,
    linear_num_value_heads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            layer_types: None,
            full_attention_interval: 4,
            hidden_act: "silu".to_owned(),
            attn_output_gate: true,
            attention_bias: false,
            partial_rotary_factor: None,
            linear_conv_kernel_dim: 4,
            linear_key_head_dim: 128,
            linear_value_head_dim: 128,
            linear_num_key_heads: 16,
            linear_num_value_heads: 32,
        }
    }
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
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
    let sizes = sizes(&settings, is_converted)?;
    require(value, "hidden_act", &settings.hidden_act, &["silu"])?;
    let is_bidirectional =
        config.is_causal == Some(false) || config.use_bidirectional_attention == Some(true);
    refuse(
        value,
        &[
            (!settings.attn_output_gate, "attn_output_gate false"),
            (settings.attention_bias, "attention_bias true"),
            (is_bidirectional, "attention to later tokens"),
        ],
    )?;
    let family = DecoderFamily {
        head_norms: true,
        mould: Mould::PlusOne,
        ..DecoderFamily::llama(&config, &settings.hidden_act)
    };
    let mut plan = qwen_vl::without_vision(decoder::plan(&text, &config, &family)?);
    plan.ignored.push("mtp.".to_owned());
    let rope = partial_rope(&mut plan, factor)?;
    let (heads, hidden) = (plan.heads, plan.hidden);
    for (index, (layer, is_linear)) in plan.layers.iter_mut().zip(linear).enumerate() {
        let prefix = format!("layers.{index}");
        if is_linear {
            layer.mixer = MixerPlan::Delta(delta(&prefix, sizes, hidden, config.rms_norm_eps));
        } else if let Some(attention) = layer.mixer.attention_mut() {
            gate_attention(attention, &format!("{prefix}.self_attn"), (heads, hidden), &rope.order());
        }
    }
    Ok(plan)
}

/// For each layer, whether it has a delta rule.
fn linear_layers(value: &Value, settings: &Settings, layers: usize) -> Result<Vec<bool>> {
    let Some(kinds) = &settings.layer_types else {
        let interval = settings.full_attention_interval.max(1);
        return Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect());
    };
    for kind in kinds {
        require(value, "layer_types", kind, &LAYER_TYPES)?;
    }
    if kinds.len() < layers {
        let message = "config.json: layer_types must name the kind of each layer";
        return Err(BackendError::Load(message.to_owned()));
    }
    Ok(kinds.iter().take(layers).map(|kind| kind == LAYER_TYPES[0]).collect())
}

fn sizes(settings: &Settings, is_converted: bool) -> Result<DeltaSizes> {
    let sizes = DeltaSizes {
        key_heads: settings.linear_num_key_heads,
        value_heads: settings.linear_num_value_heads,
        key_size: settings.linear_key_head_dim,
        value_size: settings.linear_value_head_dim,
        taps: settings.linear_conv_kernel_dim,
        is_tiled: is_converted,
    };
    let DeltaSizes { key_heads, value_heads, key_size, value_size, taps, .. } = sizes;
    if [key_heads, value_heads, key_size, value_size, taps].contains(&0)
        || !value_heads.is_multiple_of(key_heads)
        || taps > MAX_TAPS
    {
        return Err(BackendError::Load(format!(
            "config.json: the sizes of linear attention must be positive, linear_num_value_heads a multiple of \
             linear_num_key_heads, and linear_conv_kernel_dim at most {MAX_TAPS}"
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
    let rotated = (plan.heads.size as f64 * factor) as usize;
    if rotated == 0 || rotated > plan.heads.size || !rotated.is_multiple_of(2) {
        return Err(BackendError::Load(format!(
            "config.json: partial_rotary_factor {factor} must make an even number of each head's {} values",
            plan.heads.size
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
    name: &str,
    (Heads { queries, keys, size }, hidden): (Heads, usize),
    order: &[Range<usize>; 4],
) {
    let part =
        |part: &str, rows: usize| MatrixPart::new(&format!("{name}.{part}"), [rows, hidden]).biased(false);
    let (both, key, value) =
        (part("q_proj", 2 * queries * size), part("k_proj", keys * size), part("v_proj", keys * size));
    let gate_of = |head: usize| both.clone().rows((2 * head + 1) * size..(2 * head + 2) * size);
    attention.gate = Some(MatrixPlan { parts: (0..queries).map(gate_of).collect() });
    attention.query = MatrixPlan { parts: ordered(&both, (0..queries).map(|head| 2 * head * size), order) };
    let mut key_value = ordered(&key, (0..keys).map(|head| head * size), order);
    key_value.push(value);
    attention.key_value = MatrixPlan { parts: key_value };
    if let HeadNormsPlan::EachHead(query, key) = &mut attention.norms {
        query.order = order.to_vec();
        key.order = order.to_vec();
    }
}

/// The rows of some heads, each in this order. `firsts` are the heads' first rows.
fn ordered(
    part: &MatrixPart,
    firsts: impl Iterator<Item = usize>,
    order: &[Range<usize>; 4],
) -> Vec<MatrixPart> {
    let rows = firsts.flat_map(|first| order.iter().map(move |rows| first + rows.start..first + rows.end));
    rows.filter(|rows| !rows.is_empty()).map(|rows| part.clone().rows(rows)).collect()
}

fn delta(prefix: &str, sizes: DeltaSizes, hidden: usize, epsilon: f32) -> DeltaPlan {
    let name = |name: &str| format!("{prefix}.linear_attn.{name}");
    let part = |part: &str, rows: usize| MatrixPart::new(&name(part), [rows, hidden]).biased(false);
    let output = MatrixPart::new(&name("out_proj"), [hidden, sizes.values()]).biased(false);
    DeltaPlan {
        sizes,
        query_key_value: part("in_proj_qkv", sizes.channels()).into(),
        rates: [part("in_proj_b", sizes.value_heads), part("in_proj_a", sizes.value_heads)].into(),
        gate: part("in_proj_z", sizes.values()).into(),
        output: output.into(),
        convolution: name("conv1d.weight"),
        decays: name("A_log"),
        decay_bias: name("dt_bias"),
        // Unlike the model's other norms, this one multiplies by the stored weights.
        norm: NormPlan::rms(name("norm"), sizes.value_size, epsilon),
        is_converted: sizes.is_tiled,
    }
}
