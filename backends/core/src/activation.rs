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

    /// The names of functions in `config.json` that are supported.
    pub const NAMES: [&str; 13] = [
        "gelu",
        "gelu_python",
        "gelu_new",
        "gelu_fast",
        "gelu_pytorch_tanh",
        "gelu_python_tanh",
        "gelu_accurate",
        "silu",
        "swish",
        "relu",
        "tanh",
        "sigmoid",
        "linear",
    ];

    /// The function with this name in `config.json` (`ACT2FN` of transformers), or `None` if it is not
    /// supported.
    pub fn from_config(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_accurate" => {
                Self::GeluTanh
            }
            "relu" => Self::Relu,
            "tanh" => Self::Tanh,
            "sigmoid" => Self::Sigmoid,
            "linear" => Self::Identity,
            _ => return None,
        })
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
        assert!(Activation::NAMES.iter().all(|name| Activation::from_config(name).is_some()));
        for (index, (found, expected)) in table.into_iter().enumerate() {
            assert_eq!(found, expected, "row {index}");
        }
    }
}
