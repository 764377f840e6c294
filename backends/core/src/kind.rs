//! The names of the backends.

use std::fmt;

/// A backend: the code that computes the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// This project's own models and kernels, with candle on a GPU.
    #[default]
    Candle,
    /// ONNX Runtime, for models exported to ONNX.
    Ort,
    /// A Python process with sentence-transformers.
    Python,
}

impl BackendKind {
    /// Every backend, in the order of the help text.
    pub const ALL: [Self; 3] = [Self::Candle, Self::Ort, Self::Python];

    /// The value of `--backend`, which is also the Cargo feature that builds it in.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Candle => "candle",
            Self::Ort => "ort",
            Self::Python => "python",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
