//! A model as data: what `config.json` says, in the words of [`crate::transformer`], which loads and runs it.
//!
//! Input: written by `models/`, one function for each architecture. Output: tensors by name and shape, and
//! how they are put together. What must hold: a plan names everything that the model computes, so that it can
//! be checked without weights; whatever an architecture has that no plan can say is refused by name.

mod head;
mod matrix;

use crate::{
    attention::{Heads, Mask},
    operations::NormKind,
    rope::Rope,
};
pub(crate) use head::{Classification, MaskedLm, Reads, Step};
pub(crate) use matrix::{Matrix, MatrixPart};
use text_embeddings_backend_core::{Activation, Packing};

/// A model up to its last hidden states, and its own heads.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// What tensor names may begin with, which is left away; the longest first.
    pub(crate) prefixes: &'static [&'static str],
    /// Beginnings of the names of tensors that may be in the checkpoint without being asked for: other heads
    /// than the one served, buffers.
    pub(crate) ignored: Vec<String>,
    /// Values of a hidden state.
    pub(crate) hidden: usize,
    /// Rows of the token embedding.
    pub(crate) vocabulary: usize,
    /// The most tokens of an input that the positions allow.
    pub(crate) longest_input: Option<usize>,
    /// The token that pads texts in training.
    pub(crate) padding: Option<u32>,
    /// Tokens to the first hidden states.
    pub(crate) embeddings: Embeddings,
    /// The kinds of attention that layers have.
    pub(crate) views: Vec<View>,
    /// Query heads, key heads, and their size: the same in all layers.
    pub(crate) heads: Heads,
    /// The layers.
    pub(crate) layers: Vec<Layer>,
    /// A convolution beside the first layer.
    pub(crate) convolution: Option<Convolution>,
    /// The norm after the last layer.
    pub(crate) final_norm: Option<Norm>,
    /// The matrix that turns hidden states into logits of tokens, of a causal model.
    pub(crate) output_embedding: &'static str,
    /// The classification head of this architecture, if it has one.
    pub(crate) classification: Option<Classification>,
    /// The masked-language-model head of this architecture, if it has one.
    pub(crate) masked_lm: Option<MaskedLm>,
    /// What the state of a marked token goes through, in a listwise re-ranker; empty for other models.
    pub(crate) projector: Vec<Step>,
    /// What a pooled vector goes through in the model itself, before the modules of its repository.
    pub(crate) vector_steps: Vec<Step>,
    /// Whether vectors end as whole numbers from -128 to 127, after a hyperbolic tangent (pplx-embed).
    pub(crate) quantised_vectors: bool,
    /// Layers that are gone through, of a layer-wise re-ranker, which scores after one of several.
    pub(crate) cutoff_layers: Option<usize>,
    /// The adapters with which all matrices and tables are stored, if they are.
    pub(crate) adapters: Option<Adapters>,
}

/// Adapters of low rank for several tasks (`LoRA`). A matrix `X.weight` is stored as
/// `X.parametrizations.weight.original`. The product of the chosen task's slices of `….0.lora_A` and
/// `….0.lora_B` is added to it when it is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Adapters {
    /// The number of tasks.
    pub(crate) tasks: usize,
    /// The task whose product is added; without one the original is used alone.
    pub(crate) task: Option<usize>,
    /// Columns of the product's first factor.
    pub(crate) rank: usize,
    /// The product is multiplied by this.
    pub(crate) scale: f32,
}

impl Plan {
    /// Texts share the rows of their common beginning if no token's state depends on anything behind it.
    pub(crate) fn packing(&self) -> Packing {
        let is_causal = |view: &View| {
            let depends_on_length =
                matches!(&view.position, Position::Rotary(rope) if rope.scaling.depends_on_length());
            view.mask.after == 0 && !depends_on_length
        };
        Packing { shares_prefixes: self.views.iter().all(is_causal) && !self.has_token_types() }
    }

    /// Values that exist for a token at once, at most: the residual stream and its operand, a copy of each in
    /// the norms between, queries, keys and values, the context, and what the MLP has inside.
    pub(crate) fn values_per_token(&self) -> usize {
        let Heads { queries, keys, size } = self.heads;
        let inner = self.layers.iter().map(|layer| layer.mlp.inner()).max().unwrap_or(0);
        4 * self.hidden + 2 * queries * size + 2 * keys * size + 2 * inner
    }

    /// Whether the second text of a pair has another token type than the first.
    pub(crate) fn has_token_types(&self) -> bool {
        self.embeddings.tables.iter().any(|table| table.index == Index::Type)
    }
}

/// From tokens to the first hidden states.
#[derive(Debug, Clone)]
pub(crate) struct Embeddings {
    /// The tables whose vectors are added up.
    pub(crate) tables: Vec<Table>,
    /// What the sum is multiplied by.
    pub(crate) scale: f32,
    /// The norm of the sum.
    pub(crate) norm: Option<Norm>,
    /// What the normalised sum goes through, where it is not as wide as a hidden state.
    pub(crate) projection: Option<Matrix>,
}

/// A table of vectors.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// The tensor, `[rows, width]`.
    pub(crate) tensor: String,
    /// Its shape.
    pub(crate) shape: [usize; 2],
    /// What names a row.
    pub(crate) index: Index,
}

/// What names a row of an embedding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Index {
    /// The token id.
    Token,
    /// The position in the text, plus an offset.
    Position {
        /// The row of the first token.
        offset: usize,
    },
    /// The token type: 0, or 1 in the second text of a pair.
    Type,
    /// Always the first row.
    First,
}

/// A norm in the checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Norm {
    /// The tensors are `NAME.weight` and, if `bias`, `NAME.bias`.
    pub(crate) name: String,
    /// What it divides by.
    pub(crate) kind: NormKind,
    /// Its values.
    pub(crate) size: usize,
    /// Whether there is a bias.
    pub(crate) bias: bool,
    /// Whether one is added to the stored weight (Gemma).
    pub(crate) add_one: bool,
    /// Added to the mean square, or to the variance.
    pub(crate) epsilon: f32,
}

impl Norm {
    /// A layer norm with a bias.
    pub(crate) fn layer(name: impl Into<String>, size: usize, epsilon: f32) -> Self {
        Self { name: name.into(), kind: NormKind::Layer, size, bias: true, add_one: false, epsilon }
    }

    /// A root-mean-square norm.
    pub(crate) fn rms(name: impl Into<String>, size: usize, epsilon: f32) -> Self {
        Self { name: name.into(), kind: NormKind::Rms, size, bias: false, add_one: false, epsilon }
    }
}

/// A kind of attention.
#[derive(Debug, Clone)]
pub(crate) struct View {
    /// Which tokens a query sees.
    pub(crate) mask: Mask,
    /// How positions take part.
    pub(crate) position: Position,
    /// The divisor of scores: usually the root of a head's size.
    pub(crate) divisor: f32,
    /// The soft cap of scores.
    pub(crate) soft_cap: Option<f32>,
}

/// How positions take part in attention.
#[derive(Debug, Clone)]
pub(crate) enum Position {
    /// Not at all: they are in the embeddings.
    None,
    /// Queries and keys are turned by them.
    Rotary(Rope),
    /// Scores fall with the distance, for each head by its slope.
    Alibi,
    /// Scores get a value by the distance's bucket, from a table `[buckets, heads]`.
    Buckets {
        /// The tensor.
        table: String,
        /// Its rows.
        buckets: usize,
        /// The bucket of a distance, key less query.
        bucket: fn(distance: i64, buckets: usize) -> usize,
    },
    /// Each layer scores them with its queries and keys ([`Disentangled`]).
    Disentangled,
}

/// A convolution of the first hidden states over the positions of a text, with zeros in front of it and
/// behind it. With the first layer's result `x`: `x = norm(x + activation(convolution))`.
#[derive(Debug, Clone)]
pub(crate) struct Convolution {
    /// The tensors are `NAME.weight`, `[hidden, hidden, taps]`, and `NAME.bias`.
    pub(crate) name: &'static str,
    /// Positions that a result is made of: its own in the middle. Odd.
    pub(crate) taps: usize,
    /// The activation.
    pub(crate) activation: Activation,
    /// The norm of the sum.
    pub(crate) norm: Norm,
}

/// A transformer layer: attention, then an MLP, each with a residual. Norms that an architecture lacks are
/// absent.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    /// Its kind of attention, among the plan's views.
    pub(crate) view: usize,
    /// Attention.
    pub(crate) attention: Attention,
    /// The norms around it.
    pub(crate) attention_norms: Norms,
    /// The MLP.
    pub(crate) mlp: Mlp,
    /// The norms around it.
    pub(crate) mlp_norms: Norms,
}

/// Where a block is normalised: `x = sum_norm(x + output_norm(block(input_norm(x))))`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Norms {
    /// The norm of its input (pre-norm).
    pub(crate) input: Option<Norm>,
    /// The norm of its result before it is added.
    pub(crate) output: Option<Norm>,
    /// The norm of the sum (post-norm).
    pub(crate) sum: Option<Norm>,
    /// After that the block's input is added once more, and this norm taken.
    pub(crate) second_sum: Option<Norm>,
}

impl Norms {
    /// Only of the input.
    pub(crate) fn before(norm: Norm) -> Self {
        Self { input: Some(norm), ..Self::default() }
    }

    /// Only of the sum.
    pub(crate) fn after(norm: Norm) -> Self {
        Self { sum: Some(norm), ..Self::default() }
    }
}

/// The weights of attention.
#[derive(Debug, Clone)]
pub(crate) struct Attention {
    /// `[query heads · size, hidden]`
    pub(crate) query: Matrix,
    /// `[2 · key heads · size, hidden]`: keys, then values.
    pub(crate) key_value: Matrix,
    /// `[hidden, query heads · size]`
    pub(crate) output: Matrix,
    /// Norms of queries and keys.
    pub(crate) norms: HeadNorms,
    /// DeBERTa's relative positions.
    pub(crate) disentangled: Option<Disentangled>,
}

/// Norms of queries and keys, before they are turned.
#[derive(Debug, Clone, Default)]
pub(crate) enum HeadNorms {
    /// None.
    #[default]
    None,
    /// One for all heads of the queries, one for those of the keys: each head is normalised on its own.
    EachHead(Norm, Norm),
    /// All heads of a token at once.
    AllHeads(Norm, Norm),
}

/// DeBERTa's relative positions.
#[derive(Debug, Clone)]
pub(crate) struct Disentangled {
    /// The table of relative positions, `[2 · span, hidden]`.
    pub(crate) table: Table,
    /// Its norm.
    pub(crate) norm: Option<Norm>,
    /// What makes keys of it, if queries are scored with positions (c2p).
    pub(crate) keys: Option<Matrix>,
    /// What makes queries of it, if keys are scored with positions (p2c).
    pub(crate) queries: Option<Matrix>,
    /// The row of the table for a distance, query less key.
    pub(crate) bucket: LogBuckets,
}

/// DeBERTa's buckets of distances: one for each near distance, then by logarithm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogBuckets {
    /// Half of the table's rows.
    pub(crate) span: usize,
    /// Half of the buckets; absent where each distance has a bucket of its own.
    pub(crate) buckets: Option<usize>,
    /// The distance that the last bucket begins with.
    pub(crate) most: usize,
}

/// The MLP of a layer.
#[derive(Debug, Clone)]
pub(crate) enum Mlp {
    /// `down(activation(up(x)))`
    Plain {
        /// `[inner, hidden]`
        up: Matrix,
        /// `[hidden, inner]`
        down: Matrix,
        /// The activation.
        activation: Activation,
    },
    /// `down(activation(gate(x)) ∘ up(x))`
    Gated {
        /// `[inner, hidden]`
        gate: MatrixPart,
        /// `[inner, hidden]`
        up: MatrixPart,
        /// `[hidden, inner]`
        down: Matrix,
        /// The activation.
        activation: Activation,
    },
    /// The sum of the MLPs of some experts, each times its share of the router's softmax, and of a bias.
    Experts(Experts),
}

impl Mlp {
    /// Values that it has inside for a token.
    fn inner(&self) -> usize {
        match self {
            Self::Plain { up, .. } => up.outputs(),
            Self::Gated { up, .. } => up.rows.len(),
            Self::Experts(experts) => experts.mlps.iter().map(|[up, _]| up.outputs()).max().unwrap_or(0),
        }
    }
}

/// A mixture of experts.
#[derive(Debug, Clone)]
pub(crate) struct Experts {
    /// `[experts, hidden]`
    pub(crate) router: Matrix,
    /// The experts' MLPs: up `[inner, hidden]`, down `[hidden, inner]`.
    pub(crate) mlps: Vec<[Matrix; 2]>,
    /// The bias, `[hidden]`.
    pub(crate) bias: String,
    /// Values of a hidden state.
    pub(crate) hidden: usize,
    /// How many experts a token has.
    pub(crate) top: usize,
    /// The activation.
    pub(crate) activation: Activation,
}
