//! The blocks of a layer other than its MLP: attention, with DeBERTa's relative positions; a gated delta rule
//! ("linear attention"), whose cost for a token does not depend on the number of tokens before it; a gated
//! convolution over few tokens; and a third block, in which the token's embedding gates the residual stream.

use super::{MatrixPlan, NormPlan, TablePlan};
use text_embeddings_backend_core::Activation;

/// The weights of attention.
#[derive(Debug, Clone)]
pub(crate) struct AttentionPlan {
    /// The index of its kind in [`super::Plan::views`].
    pub(crate) view: usize,
    /// `[query heads · size, hidden]`
    pub(crate) query: MatrixPlan,
    /// `[2 · key heads · size, hidden]`: keys, then values.
    pub(crate) key_value: MatrixPlan,
    /// `[hidden, query heads · size]`
    pub(crate) output: MatrixPlan,
    pub(crate) norms: HeadNormsPlan,
    /// `[query heads · size, hidden]`: the context is multiplied by the sigmoid of this product.
    pub(crate) gate: Option<MatrixPlan>,
    /// DeBERTa's relative positions.
    pub(crate) disentangled: Option<DisentangledPlan>,
}

impl AttentionPlan {
    /// Attention of the first kind, without norms, a gate and relative positions.
    pub(crate) fn from_matrices(
        query: impl Into<MatrixPlan>,
        key_value: impl Into<MatrixPlan>,
        output: impl Into<MatrixPlan>,
    ) -> Self {
        Self {
            view: 0,
            query: query.into(),
            key_value: key_value.into(),
            output: output.into(),
            norms: HeadNormsPlan::None,
            gate: None,
            disentangled: None,
        }
    }
}

/// Norms of queries and keys, applied before rotation, and of values.
#[derive(Debug, Clone)]
pub(crate) enum HeadNormsPlan {
    None,
    /// Each head is normalised on its own.
    EachHead {
        query: NormPlan,
        key: NormPlan,
        /// The epsilon of the norm of the value heads, which has no weights; absent if there is no such norm.
        value_epsilon: Option<f32>,
    },
    /// One norm for queries, one for keys. All heads of a token are normalised at once.
    AllHeads(NormPlan, NormPlan),
}

/// DeBERTa's relative positions.
#[derive(Debug, Clone)]
pub(crate) struct DisentangledPlan {
    /// The table of relative positions, `[2 · span, hidden]`.
    pub(crate) table: TablePlan,
    pub(crate) norm: Option<NormPlan>,
    /// The matrix from the table to keys, if queries are scored with positions (c2p).
    pub(crate) keys: Option<MatrixPlan>,
    /// The matrix from the table to queries, if keys are scored with positions (p2c).
    pub(crate) queries: Option<MatrixPlan>,
    /// The table's row for a distance, query position minus key position.
    pub(crate) bucket: LogBuckets,
}

/// DeBERTa's buckets of distances: one for each near distance, logarithmic beyond.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogBuckets {
    /// Half of the table's rows.
    pub(crate) span: usize,
    /// Half of the buckets; if absent, each distance has a bucket of its own.
    pub(crate) buckets: Option<usize>,
    /// The first distance of the last bucket.
    pub(crate) max_distance: usize,
}

/// The weights of a gated delta rule (transformers, `Qwen3_5GatedDeltaNet`; [`crate::delta`] has the
/// formulas).
#[derive(Debug, Clone)]
pub(crate) struct DeltaPlan {
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

/// The weights of such a block (transformers, `EmbeddingGemma2TextPLEBlock`). With the embedding `e` and the
/// layer's result `x`: `x = scalar · (x + norm(output(activation(gate(x)) ∘ p)))`, where
/// `p = projection_norm(projection(e))`
#[derive(Debug, Clone)]
pub(crate) struct InputGatePlan {
    /// `[inner, hidden]`
    pub(crate) projection: MatrixPlan,
    /// The norm of its product.
    pub(crate) projection_norm: NormPlan,
    /// `[inner, hidden]`
    pub(crate) gate: MatrixPlan,
    /// `[hidden, inner]`
    pub(crate) output: MatrixPlan,
    /// The norm of its product.
    pub(crate) norm: NormPlan,
    pub(crate) activation: Activation,
    /// The tensor of the scalar, `[1]`.
    pub(crate) scalar: String,
}
