//! A gated delta rule ("linear attention"): a mixer whose cost for a token does not depend on the number of
//! tokens before it.

use super::{MatrixPlan, NormPlan};

/// The weights of a gated delta rule (transformers, `Qwen3_5GatedDeltaNet`; [`crate::delta`] has the
/// formulas).
#[derive(Debug, Clone)]
pub(crate) struct DeltaPlan {
    /// The sizes.
    pub(crate) sizes: DeltaSizes,
    /// `[channels, hidden]`: queries, keys and values before the convolution.
    pub(crate) query_key_value: MatrixPlan,
    /// `[2 · value heads, hidden]`: for each head the strength of its writes, then for each its decay.
    pub(crate) rates: MatrixPlan,
    /// `[value heads · value size, hidden]`: the gate of the result.
    pub(crate) gate: MatrixPlan,
    /// `[hidden, value heads · value size]`
    pub(crate) output: MatrixPlan,
    /// The tensor of the convolution, `[channels, 1, taps]`; converted, it is `[channels, taps]`.
    pub(crate) convolution: String,
    /// The tensor A of the decays, `[value heads]`; converted, it holds −exp(A).
    pub(crate) decays: String,
    /// The tensor that is added to the products for the decays, `[value heads]`.
    pub(crate) decay_bias: String,
    /// The norm of each head's result.
    pub(crate) norm: NormPlan,
    /// Whether llama.cpp's converter changed the tensors.
    pub(crate) is_converted: bool,
}

/// The sizes of a gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeltaSizes {
    /// Heads of queries and of keys.
    pub(crate) key_heads: usize,
    /// Heads of values: a multiple of the key heads.
    pub(crate) value_heads: usize,
    /// Whether value heads with the same key head are as far apart as there are key heads (llama.cpp).
    /// Otherwise they follow each other.
    pub(crate) is_tiled: bool,
    /// Values per head of queries and of keys.
    pub(crate) key_size: usize,
    /// Values per head of values.
    pub(crate) value_size: usize,
    /// Tokens that a result of the convolution depends on: its own, and those before.
    pub(crate) taps: usize,
}

impl DeltaSizes {
    /// Values of a token's queries, keys and values.
    pub(crate) fn channel_count(&self) -> usize {
        2 * self.key_heads * self.key_size + self.value_count()
    }

    /// Values of a token's result.
    pub(crate) fn value_count(&self) -> usize {
        self.value_heads * self.value_size
    }

    /// The first channels of a value head's queries, keys and values, and the number of channels of each.
    pub(crate) fn head_slices(&self, head: usize) -> [(usize, usize); 3] {
        let keys = self.key_heads * self.key_size;
        let key_head =
            if self.is_tiled { head % self.key_heads } else { head / (self.value_heads / self.key_heads) };
        [
            (key_head * self.key_size, self.key_size),
            (keys + key_head * self.key_size, self.key_size),
            (2 * keys + head * self.value_size, self.value_size),
        ]
    }

    /// The most values of a token at once: channels, rates, results, and their gate with its operand.
    pub(crate) fn values_per_token(&self) -> usize {
        self.channel_count() + 2 * self.value_heads + 3 * self.value_count()
    }
}
