//! Reads rotary positions from configurations: `rope_theta` with `rope_scaling`, or `rope_parameters`.

use super::{unsupported, unsupported_value};
use crate::{
    operations::Result,
    rope::{LongRope, Rope, Scaling, Yarn},
};
use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::{BackendError, amount};

/// The supported values of `rope_type`.
const ROPE_TYPES: [&str; 6] = ["default", "linear", "dynamic", "yarn", "llama3", "longrope"];

/// The fields of `rope_scaling` or `rope_parameters`.
#[derive(Debug, Default, Deserialize)]
struct Parameters {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older name of `rope_type`. A file may have both.
    r#type: Option<String>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    short_factor: Option<Vec<f64>>,
    long_factor: Option<Vec<f64>>,
    partial_rotary_factor: Option<f64>,
}

impl Parameters {
    fn type_name(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.r#type.as_deref())
    }

    fn needed_factor(&self) -> Result<f64> {
        self.factor.ok_or_else(|| missing_field("factor"))
    }

    /// The longest text before the scaling.
    fn original_positions(&self, config: &Value) -> Result<usize> {
        match config["original_max_position_embeddings"].as_u64() {
            Some(original) => Ok(original as usize),
            None => self.original_max_position_embeddings.map_or_else(|| max_positions(config), Ok),
        }
    }
}

fn missing_field(field: &str) -> BackendError {
    BackendError::Load(format!("config.json: the rope parameters lack {field}"))
}

fn max_positions(config: &Value) -> Result<usize> {
    let positions = config["max_position_embeddings"].as_u64();
    positions
        .map(|positions| positions as usize)
        .ok_or_else(|| BackendError::Load("config.json: max_position_embeddings is missing".to_owned()))
}

/// The divisors of the frequencies of heads of `size` values.
fn divisors(list: Option<&Vec<f64>>, field: &str, size: usize) -> Result<Vec<f64>> {
    match list {
        Some(list) if list.len() == size / 2 => Ok(list.clone()),
        _ => Err(missing_field(&format!("{field} of {}", amount(size / 2, "number")))),
    }
}

/// The rotation for heads of `size` values. `theta` is the base if the configuration has none.
pub(super) fn rope(config: &Value, size: usize, theta: Option<f64>) -> Result<Rope> {
    let theta = config["rope_theta"].as_f64().or(theta);
    rope_of(config, &[rope_settings(config)], size, theta)
}

/// The settings of rotary positions. Where a file has both, only the older ones count in transformers.
pub(super) fn rope_settings(config: &Value) -> &Value {
    let older = &config["rope_scaling"];
    if older.as_object().is_some_and(|fields| !fields.is_empty()) {
        older
    } else {
        &config["rope_parameters"]
    }
}

/// Like [`rope`], with the first of `parameters` that has the setting. `theta` is the base if they have none.
pub(super) fn rope_of(
    config: &Value,
    parameters: &[&Value],
    size: usize,
    theta: Option<f64>,
) -> Result<Rope> {
    if size == 0 || !size.is_multiple_of(2) {
        let message = format!("config.json: rotary positions need an even head size, not {size}");
        return Err(BackendError::Load(message));
    }
    let given = parameters.iter().filter(|value| !value.is_null()).map(|value| {
        serde_json::from_value((*value).clone())
            .map_err(|error| BackendError::Load(format!("config.json: rope parameters: {error}")))
    });
    let given: Vec<Parameters> = given.collect::<Result<_>>()?;
    let named = given.iter().find_map(|parameters| parameters.rope_theta);
    let theta = named.or(theta).ok_or_else(|| {
        BackendError::Load("config.json: neither rope_theta nor rope_parameters is given".to_owned())
    })?;
    let scaling = match given.iter().find(|parameters| parameters.type_name().is_some()) {
        Some(parameters) => scaling(config, parameters, size)?,
        None => Scaling::None,
    };
    Ok(Rope { size, rotated: size, theta, scaling })
}

/// The number unless it is 0, which counts as absent in transformers.
fn non_zero(number: Option<f64>) -> Option<f64> {
    number.filter(|number| *number != 0.0)
}

fn scaling(config: &Value, parameters: &Parameters, size: usize) -> Result<Scaling> {
    if parameters.partial_rotary_factor.is_some_and(|factor| factor.to_bits() != 1.0_f64.to_bits()) {
        return Err(unsupported(config, "partial_rotary_factor"));
    }
    match parameters.type_name() {
        None | Some("default") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear { factor: parameters.needed_factor()? }),
        Some("dynamic") => {
            Ok(Scaling::Dynamic { factor: parameters.needed_factor()?, original: max_positions(config)? })
        }
        Some("yarn") => {
            let factor = parameters.needed_factor()?;
            let magnitude = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
            let attention_factor = parameters.attention_factor.unwrap_or_else(|| {
                match (non_zero(parameters.mscale), non_zero(parameters.mscale_all_dim)) {
                    (Some(all), Some(each)) => magnitude(all) / magnitude(each),
                    _ => magnitude(1.0),
                }
            });
            Ok(Scaling::Yarn(Yarn {
                factor,
                original: parameters.original_positions(config)?,
                beta_fast: non_zero(parameters.beta_fast).unwrap_or(32.0),
                beta_slow: non_zero(parameters.beta_slow).unwrap_or(1.0),
                truncate: parameters.truncate.unwrap_or(true),
                attention_factor,
            }))
        }
        Some("llama3") => Ok(Scaling::Llama3 {
            factor: parameters.needed_factor()?,
            low: parameters.low_freq_factor.ok_or_else(|| missing_field("low_freq_factor"))?,
            high: parameters.high_freq_factor.ok_or_else(|| missing_field("high_freq_factor"))?,
            original: parameters.original_positions(config)?,
        }),
        Some("longrope") => {
            let (original, positions) = (parameters.original_positions(config)?, max_positions(config)?);
            let growth = parameters.factor.unwrap_or(positions as f64 / original as f64);
            let attention_factor = parameters.attention_factor.unwrap_or_else(|| {
                if growth <= 1.0 { 1.0 } else { (1.0 + growth.ln() / (original as f64).ln()).sqrt() }
            });
            Ok(Scaling::LongRope(LongRope {
                short: divisors(parameters.short_factor.as_ref(), "short_factor", size)?,
                long: divisors(parameters.long_factor.as_ref(), "long_factor", size)?,
                original,
                attention_factor,
            }))
        }
        Some(other) => Err(unsupported_value(config, "the rope type", other, &ROPE_TYPES)),
    }
}
