//! Nomic BERT (transformers, `modeling_nomic_bert.py`, and the remote code of nomic-ai/nomic-bert-2048):
//! nomic-embed-text-v1 and v1.5, v2-moe with experts, `CodeRankEmbed`, Snowflake's arctic-embed-m-long.

use super::{
    activation, head_size, parse,
    parts::{LayerTensors, encoder, fused_attention, refuse_set},
    post_norm::EncoderConfig,
    refuse,
    rotary::rope,
};
use crate::{
    operations::Result,
    plan::{ExpertsPlan, LayerPlan, MatrixPart, MlpPlan, Plan, Position},
    rope::Scaling,
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::Activation;
use text_embeddings_checkpoint::gguf::CONVERTED;

/// The remote code's field names, which come from GPT-2, with the names in transformers. If a file has both,
/// the remote code's counts.
const NAMES: [(&str, &str); 7] = [
    ("n_embd", "hidden_size"),
    ("n_inner", "intermediate_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_positions", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("activation_function", "hidden_act"),
];

/// Settings that every known model switches off.
const OFF: [&str; 11] = [
    "prenorm",
    "parallel_block",
    "causal",
    "use_rms_norm",
    "norm_mlp",
    "rotary_emb_interleaved",
    "rotary_emb_scale_base",
    "scale_attn_by_inverse_layer_idx",
    "num_shared_experts",
    "expert_choice_router",
    "moe_normalize_expert_weights",
];

/// Settings that only the remote code has.
#[derive(Debug, Deserialize)]
struct Settings {
    activation_function: Option<String>,
    pad_vocab_size_multiple: Option<usize>,
    #[serde(default)]
    qkv_proj_bias: bool,
    #[serde(default)]
    mlp_fc1_bias: bool,
    #[serde(default)]
    mlp_fc2_bias: bool,
    rotary_emb_base: Option<f64>,
    rotary_scaling_factor: Option<f64>,
    max_trained_positions: Option<usize>,
    moe_every_n_layers: Option<usize>,
    num_experts: Option<usize>,
    moe_top_k: Option<usize>,
}

pub(super) fn plan(value: &Value) -> Result<Plan> {
    let mut named = value.clone();
    for (name, ours) in NAMES.into_iter().filter(|(name, _)| !value[name].is_null()) {
        named[ours] = value[name].clone();
    }
    let (mut config, settings): (EncoderConfig, Settings) = (parse(&named)?, parse(value)?);
    let size = head_size(config.hidden_size, config.num_attention_heads)?;
    refuse_set(value, &OFF)?;
    let fraction = value["rotary_emb_fraction"].as_f64();
    refuse(value, fraction.is_some_and(|fraction| fraction < 1.0), "rotary_emb_fraction below 1")?;
    config.vocab_size =
        config.vocab_size.next_multiple_of(settings.pad_vocab_size_multiple.unwrap_or(1).max(1));
    // The class in transformers has another default than the code in repositories, which has GPT-2's names.
    let base = if value["n_embd"].is_null() { 1_000.0 } else { 10_000.0 };
    let mut rotation = rope(value, size, Some(base))?;
    rotation.theta = settings.rotary_emb_base.unwrap_or(rotation.theta);
    if let Some(factor) = settings.rotary_scaling_factor {
        rotation.scaling =
            Scaling::Dynamic { factor, original: settings.max_trained_positions.unwrap_or(2048) };
    }
    let layers = (0..config.num_hidden_layers).map(|index| layer(value, &config, &settings, index));
    let layers = layers.collect::<Result<_>>()?;
    Ok(Plan {
        prefixes: &["nomic_bert.", "bert."],
        ..encoder(value, &config, "emb_ln", Position::Rotary(rotation), layers)?
    })
}

fn layer(value: &Value, config: &EncoderConfig, settings: &Settings, index: usize) -> Result<LayerPlan> {
    let hidden = config.hidden_size;
    let tensors = LayerTensors { prefix: format!("encoder.layers.{index}"), epsilon: config.layer_norm_eps };
    let has_experts = settings.moe_every_n_layers.is_some_and(|every| every > 0 && index % every == 1);
    let mlp = if has_experts { experts } else { mlp };
    Ok(LayerPlan {
        mixer: fused_attention(
            tensors.biased_part("attn.Wqkv", [3 * hidden, hidden]).biased(settings.qkv_proj_bias),
            tensors.biased_part("attn.out_proj", [hidden, hidden]).biased(settings.qkv_proj_bias),
        )
        .into(),
        attention_norms: tensors.layer_norm_after("norm1", hidden),
        mlp: mlp(value, config, settings, &tensors.tensor_name("mlp"))?,
        mlp_norms: tensors.layer_norm_after("norm2", hidden),
    })
}

fn mlp(value: &Value, config: &EncoderConfig, settings: &Settings, name: &str) -> Result<MlpPlan> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let up =
        |up: &str| MatrixPart::new(&format!("{name}.{up}"), [inner, hidden]).biased(settings.mlp_fc1_bias);
    let down = MatrixPart::new(&format!("{name}.fc2"), [hidden, inner]).biased(settings.mlp_fc2_bias).into();
    let activation = match settings.activation_function.as_deref() {
        Some("swiglu") => Activation::Silu,
        Some("geglu") => Activation::Gelu,
        Some(plain) => {
            let activation = activation(value, "activation_function", plain)?;
            return Ok(MlpPlan::Plain { up: up("fc1").into(), down, activation });
        }
        // The MLP of transformers is always gated.
        None => activation(value, "hidden_act", &config.hidden_act)?,
    };
    Ok(MlpPlan::Gated { gate: up("fc12"), up: up("fc11"), down, activation })
}

/// The checkpoint stores the experts' matrices one below the other. The second matrix of each expert is
/// transposed, except in a converted file, which has no bias either.
fn experts(value: &Value, config: &EncoderConfig, settings: &Settings, name: &str) -> Result<MlpPlan> {
    let (hidden, inner, count) =
        (config.hidden_size, config.intermediate_size, settings.num_experts.unwrap_or(0));
    refuse(value, count == 0, "moe_every_n_layers without num_experts")?;
    let is_converted = !value[CONVERTED].is_null();
    let ending = if is_converted { ".weight" } else { "" };
    let stored = |tensor: &str, [rows, columns]: [usize; 2], index: usize, transposed| MatrixPart {
        weight: format!("{name}.experts.mlp.{tensor}{ending}"),
        bias: None,
        shape: [count * rows, columns],
        rows: index * rows..(index + 1) * rows,
        transposed,
    };
    let shape = if is_converted { [hidden, inner] } else { [inner, hidden] };
    Ok(MlpPlan::Experts(ExpertsPlan {
        router: MatrixPart::new(&format!("{name}.router.layer"), [count, hidden]).biased(false).into(),
        mlps: (0..count)
            .map(|index| {
                let up = stored("w1", [inner, hidden], index, false);
                [up.into(), stored("w2", shape, index, !is_converted).into()]
            })
            .collect(),
        bias: (!is_converted).then(|| format!("{name}.experts.bias")),
        hidden,
        top: settings.moe_top_k.unwrap_or(1),
        activation: activation(value, "activation_function", &config.hidden_act)?,
    }))
}
