//! Activation functions by the names that checkpoints give them.

use std::fmt;

/// A function of one value, applied to each value of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x`
    Identity,
    /// `x / (1 + e^-x)`
    Silu,
    /// `x · Φ(x)` with Φ of the normal distribution, computed exactly with the error function.
    Gelu,
    /// Like [`Activation::Gelu`], with the approximation `½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `tanh(x)`
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
}

impl Activation {
    /// All variants.
    pub const ALL: [Self; 7] =
        [Self::Identity, Self::Silu, Self::Gelu, Self::GeluTanh, Self::Relu, Self::Tanh, Self::Sigmoid];

    /// The supported functions by their names in `config.json` (`ACT2FN` of transformers).
    const BY_NAME: [(&str, Self); 13] = [
        ("gelu", Self::Gelu),
        ("gelu_python", Self::Gelu),
        ("gelu_new", Self::GeluTanh),
        ("gelu_fast", Self::GeluTanh),
        ("gelu_pytorch_tanh", Self::GeluTanh),
        ("gelu_python_tanh", Self::GeluTanh),
        ("gelu_accurate", Self::GeluTanh),
        ("silu", Self::Silu),
        ("swish", Self::Silu),
        ("relu", Self::Relu),
        ("tanh", Self::Tanh),
        ("sigmoid", Self::Sigmoid),
        ("linear", Self::Identity),
    ];

    /// The names of functions in `config.json` that are supported.
    pub fn config_names() -> [&'static str; 13] {
        Self::BY_NAME.map(|(name, _)| name)
    }

    /// The function with this name in `config.json`; `None` if it is not supported.
    pub fn from_config(name: &str) -> Option<Self> {
        Self::BY_NAME.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
    }

    /// The function for this torch class in the configuration of a sentence-transformers module, such as
    /// `torch.nn.modules.activation.Tanh`, or `None` if it is not supported.
    pub fn from_torch(class: &str) -> Option<Self> {
        Some(match class.strip_prefix("torch.nn.")?.rsplit('.').next()? {
            "Identity" => Self::Identity,
            "SiLU" => Self::Silu,
            "GELU" => Self::Gelu,
            "ReLU" => Self::Relu,
            "Tanh" => Self::Tanh,
            "Sigmoid" => Self::Sigmoid,
            _ => return None,
        })
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity => "identity",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu (tanh)",
            Self::Relu => "relu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_configurations_and_of_torch_are_known_or_refused() {
        let table = [
            (Activation::from_config("gelu"), Some(Activation::Gelu)),
            (Activation::from_config("gelu_new"), Some(Activation::GeluTanh)),
            (Activation::from_config("mish"), None),
            (Activation::from_torch("torch.nn.modules.activation.Tanh"), Some(Activation::Tanh)),
            (Activation::from_torch("torch.nn.modules.linear.Identity"), Some(Activation::Identity)),
            (Activation::from_torch("torch.nn.GELU"), Some(Activation::Gelu)),
            (Activation::from_torch("evil.Tanh"), None),
        ];
        assert!(Activation::config_names().iter().all(|name| Activation::from_config(name).is_some()));
        for (index, (found, expected)) in table.into_iter().enumerate() {
            assert_eq!(found, expected, "row {index}");
        }
    }
}
