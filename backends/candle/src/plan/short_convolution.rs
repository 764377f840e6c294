//! A gated convolution over few tokens: a mixer that costs little, and sees only neighbours.

use super::MatrixPlan;

/// The weights of a gated convolution (transformers, `Lfm2ShortConv`; [`crate::short_convolution`] has the
/// formulas).
#[derive(Debug, Clone)]
pub(crate) struct ShortConvolutionPlan {
    /// `[2 · hidden, hidden]`: the gate of the input, then the input.
    pub(crate) input: MatrixPlan,
    /// `[hidden, hidden]`: the gate of the result.
    pub(crate) gate: MatrixPlan,
    /// `[hidden, hidden]`
    pub(crate) output: MatrixPlan,
    /// The tensor of the convolution, `[hidden, 1, taps]`; converted by llama.cpp, it is `[hidden, taps]`.
    pub(crate) taps_tensor: String,
    /// Tokens that a result depends on.
    pub(crate) taps: usize,
    /// Values of a token.
    pub(crate) width: usize,
    /// Whether the token is in the middle of these tokens. Otherwise it is the last one.
    pub(crate) is_centred: bool,
    /// Whether llama.cpp's converter changed the tensor.
    pub(crate) is_converted: bool,
}

impl ShortConvolutionPlan {
    /// The most values of a token at once: input and its gate, result, its gate, and the operand.
    pub(crate) fn values_per_token(&self) -> usize {
        5 * self.width
    }

    /// Values of the state that a text is continued from: the inputs of the tokens before.
    pub(crate) fn state_values(&self) -> usize {
        (self.taps - 1) * self.width
    }
}
