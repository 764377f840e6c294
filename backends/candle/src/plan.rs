//! A model as data: the contents of `config.json`, in the terms of [`crate::transformer`], which loads and
//! runs the plan.
//!
//! Input: written by `models/`, one function for each architecture. Output: the model's tensors by name and
//! shape, and how they are put together. What must hold: a plan names everything that the model computes, so
//! that it can be checked without weights; a feature of an architecture that no plan can express is refused
//! by name.

mod blocks;
mod head;
mod tensors;
mod variants;

use crate::{
    attention::{Heads, Mask},
    bias::DistanceBuckets,
    rope::Rope,
};
pub(crate) use blocks::{
    AttentionPlan, DeltaPlan, DeltaSizes, DisentangledPlan, HeadNormsPlan, InputGatePlan, LogBuckets,
    ShortConvolutionPlan,
};
pub(crate) use head::{Classification, MaskedLm, Reads, StepPlan};
pub(crate) use tensors::{
    KindsPlan, MatrixPart, MatrixPlan, NormKind, NormPlan, NormsPlan, RowIndex, TablePlan, TokenRowsPlan,
};
use text_embeddings_backend_core::{Activation, Packing};
use text_embeddings_backend_host::TOKENS_PER_STEP;
pub(crate) use variants::{AdapterLayout, Adapters, LayerHeads};

/// A model up to its last hidden states, and its own heads.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Prefixes that tensor names may have in the checkpoint. They are dropped; the longest comes first.
    pub(crate) prefixes: &'static [&'static str],
    /// Prefixes of tensor names that the checkpoint may have although the plan does not read them: buffers,
    /// and heads other than the served one.
    pub(crate) ignored: Vec<String>,
    /// Values per hidden state.
    pub(crate) hidden: usize,
    /// Rows of the token embedding.
    pub(crate) vocabulary: usize,
    /// The longest input, in tokens, that the positions allow.
    pub(crate) max_length: Option<usize>,
    /// The token that padded texts in training.
    pub(crate) padding: Option<u32>,
    /// From tokens to the first hidden states.
    pub(crate) embeddings: Embeddings,
    /// The kinds of attention among the layers.
    pub(crate) views: Vec<View>,
    pub(crate) layers: Vec<LayerPlan>,
    /// The indices of the layers in the order in which they run, if some run more than once.
    pub(crate) repeated: Option<Vec<usize>>,
    /// A convolution that runs next to the first layer.
    pub(crate) convolution: Option<ConvolutionPlan>,
    /// A third block of each layer; empty if layers have two.
    pub(crate) input_gates: Vec<InputGatePlan>,
    /// A table whose rows are added to the states before a layer, if the model knows kinds of texts.
    pub(crate) kinds: Option<KindsPlan>,
    pub(crate) final_norm: Option<NormPlan>,
    /// The matrix from a causal model's hidden states to logits of tokens.
    pub(crate) output_embedding: &'static str,
    /// The bound of these logits: `bound · tanh(logit / bound)`.
    pub(crate) logit_bound: Option<f32>,
    /// The classification head of this architecture, if it has one.
    pub(crate) classification: Option<Classification>,
    /// The masked-language-model head of this architecture, if it has one.
    pub(crate) masked_lm: Option<MaskedLm>,
    /// The steps for the state of a marked token; empty if the model marks none.
    pub(crate) projector: Vec<StepPlan>,
    /// The model's own steps for a pooled vector, which come before the modules of its repository.
    pub(crate) vector_steps: Vec<StepPlan>,
    /// Whether stored bytes are the values themselves, without scales (model2vec).
    pub(crate) unscaled_bytes: bool,
    /// Whether values on the way may be larger than float16's largest, 65,504: its authors or `transformers`
    /// rule float16 out.
    #[cfg_attr(
        not(any(test, feature = "tensors")),
        expect(dead_code, reason = "the CPU does not compute in float16")
    )]
    pub(crate) exceeds_float16: bool,
    /// Whether values of vectors are rounded to whole numbers from -128 to 127 (pplx-embed).
    pub(crate) quantised_vectors: bool,
    /// The heads after layers, if the model can score after several.
    pub(crate) layer_heads: Option<LayerHeads>,
    /// The adapters, if all matrices and tables are stored with some.
    pub(crate) adapters: Option<Adapters>,
}

impl Plan {
    /// A model without layers, norms and heads. An architecture names its differences, so that a new field
    /// of a plan concerns only those that use it.
    pub(crate) fn base(words: &'static str, [vocabulary, hidden]: [usize; 2]) -> Self {
        let (tensor, shape) = (words.to_owned(), [vocabulary, hidden]);
        let table = TablePlan { tensor, shape, index: RowIndex::Token };
        Self {
            prefixes: &[],
            ignored: Vec::new(),
            hidden,
            vocabulary,
            max_length: None,
            padding: None,
            embeddings: Embeddings {
                tables: vec![table],
                token_rows: TokenRowsPlan::default(),
                scale: 1.0,
                norm: None,
                projection: None,
            },
            views: Vec::new(),
            layers: Vec::new(),
            repeated: None,
            convolution: None,
            input_gates: Vec::new(),
            kinds: None,
            final_norm: None,
            output_embedding: words,
            logit_bound: None,
            classification: None,
            masked_lm: None,
            projector: Vec::new(),
            vector_steps: Vec::new(),
            unscaled_bytes: false,
            exceeds_float16: false,
            quantised_vectors: false,
            layer_heads: None,
            adapters: None,
        }
    }

    /// The plan with the number of positions, and with the token that padded texts in training. A model
    /// without such a token has none or a negative number in its configuration.
    pub(crate) fn with_limits(self, positions: Option<usize>, padding: Option<i64>) -> Self {
        Self { max_length: positions, padding: padding.and_then(|id| u32::try_from(id).ok()), ..self }
    }

    /// Texts share the rows of their common beginning if no token's state depends on later tokens.
    pub(crate) fn packing(&self) -> Packing {
        // Without layers, a shared row would save no work.
        let saves_work = !self.layers.is_empty() && !self.has_token_types() && self.kinds.is_none();
        let are_causal = self.views.iter().all(|view| {
            let depends_on_length =
                matches!(&view.position, Position::Rotary(rope) if rope.scaling.depends_on_length());
            view.mask.after == 0 && !depends_on_length
        });
        let see_ahead = self.layers.iter().any(|layer| layer.mixer.sees_ahead());
        Packing { shares_prefixes: saves_work && are_causal && !see_ahead }
    }

    /// The most values of a token at once: the residual stream and its operand, a copy of each for the norms
    /// between blocks, the values of a mixer (queries, keys, values, the context), and the MLP's inner
    /// values.
    pub(crate) fn values_per_token(&self) -> usize {
        let inner = self.layers.iter().map(|layer| layer.mlp.inner()).max().unwrap_or(0);
        let mixed = self.layers.iter().map(|layer| match &layer.mixer {
            MixerPlan::Attention(attention) => {
                let Heads { queries, keys, size } = self.views[attention.view].heads;
                // A gate and its operand are as wide as the context.
                let gate = if attention.gate.is_some() { queries * size } else { 0 };
                2 * queries * size + 2 * keys * size + gate
            }
            MixerPlan::Delta(delta) => delta.sizes.values_per_token(),
            MixerPlan::Convolution(convolution) => convolution.values_per_token(),
        });
        // The embedding and the sum that the block changes, and two products with their operands.
        let gates = self.input_gates.iter().map(|block| 2 * self.hidden + 4 * block.gate.outputs());
        4 * self.hidden + mixed.max().unwrap_or(0) + 2 * inner + gates.max().unwrap_or(0)
    }

    /// The bytes of the logits that a SPLADE head holds at a time, on all threads.
    pub(crate) fn logit_bytes(&self, threads: usize) -> usize {
        threads * TOKENS_PER_STEP * self.vocabulary * size_of::<f32>()
    }

    /// Whether the second text of a pair has another token type than the first.
    pub(crate) fn has_token_types(&self) -> bool {
        self.embeddings.tables.iter().any(|table| table.index == RowIndex::Type)
    }
}

/// From tokens to the first hidden states.
#[derive(Debug, Clone)]
pub(crate) struct Embeddings {
    /// The tables whose vectors are added up. The first is the one for the token ids.
    pub(crate) tables: Vec<TablePlan>,
    /// From token ids to rows of the first table.
    pub(crate) token_rows: TokenRowsPlan,
    /// The factor of the sum.
    pub(crate) scale: f32,
    /// The norm of the sum.
    pub(crate) norm: Option<NormPlan>,
    /// The matrix after the norm, if the sum is not as wide as a hidden state.
    pub(crate) projection: Option<MatrixPlan>,
}

/// A kind of attention.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) heads: Heads,
    pub(crate) mask: Mask,
    pub(crate) position: Position,
    /// The divisor of scores: usually the root of a head's size.
    pub(crate) divisor: f32,
    pub(crate) soft_cap: Option<f32>,
}

impl View {
    /// Attention with the usual divisor and without a soft cap.
    pub(crate) fn new(heads: Heads, mask: Mask, position: Position) -> Self {
        Self { heads, mask, position, divisor: (heads.size as f32).sqrt(), soft_cap: None }
    }
}

/// How positions take part in attention.
#[derive(Debug, Clone)]
pub(crate) enum Position {
    /// Not at all: positions are in the embeddings.
    None,
    /// Positions rotate queries and keys.
    Rotary(Rope),
    /// Scores fall with the distance, by each head's slope.
    Alibi,
    /// Each score gets the value of its distance's bucket, from a table `[buckets, heads]`.
    Buckets { table: String, buckets: DistanceBuckets },
    /// Each layer scores positions with its queries and keys ([`DisentangledPlan`]).
    Disentangled,
}

/// A convolution of the first hidden states over the positions of a text, padded with zeros on both sides.
/// With the first layer's result `x`: `x = norm(x + activation(convolution))`.
#[derive(Debug, Clone)]
pub(crate) struct ConvolutionPlan {
    /// The tensors are `NAME.weight`, `[hidden, hidden, taps]`, and `NAME.bias`.
    pub(crate) name: &'static str,
    /// Positions that a result depends on, centred on its own. Odd.
    pub(crate) taps: usize,
    pub(crate) activation: Activation,
    /// The norm of the sum.
    pub(crate) norm: NormPlan,
}

/// A transformer layer: a mixer of tokens, then an MLP, each with a residual. Norms that an architecture
/// lacks are absent.
#[derive(Debug, Clone)]
pub(crate) struct LayerPlan {
    pub(crate) mixer: MixerPlan,
    /// The norms around it.
    pub(crate) attention_norms: NormsPlan,
    pub(crate) mlp: MlpPlan,
    /// The norms around it.
    pub(crate) mlp_norms: NormsPlan,
}

/// The block of a layer in which tokens see other tokens.
#[derive(Debug, Clone)]
pub(crate) enum MixerPlan {
    Attention(AttentionPlan),
    Delta(DeltaPlan),
    Convolution(ShortConvolutionPlan),
}

impl MixerPlan {
    #[cfg(test)]
    pub(crate) fn as_attention(&self) -> Option<&AttentionPlan> {
        if let Self::Attention(attention) = self { Some(attention) } else { None }
    }

    /// Whether it is a convolution that depends on later tokens.
    fn sees_ahead(&self) -> bool {
        matches!(self, Self::Convolution(convolution) if convolution.is_centred)
    }

    pub(crate) fn attention_mut(&mut self) -> Option<&mut AttentionPlan> {
        if let Self::Attention(attention) = self { Some(attention) } else { None }
    }
}

impl From<AttentionPlan> for MixerPlan {
    fn from(attention: AttentionPlan) -> Self {
        Self::Attention(attention)
    }
}

/// The MLP of a layer.
#[derive(Debug, Clone)]
pub(crate) enum MlpPlan {
    /// `down(activation(up(x)))`
    Plain {
        /// `[inner, hidden]`
        up: MatrixPlan,
        /// `[hidden, inner]`
        down: MatrixPlan,
        activation: Activation,
    },
    /// `down(activation(gate(x)) ∘ up(x))`
    Gated {
        /// `[inner, hidden]`
        gate: MatrixPart,
        /// `[inner, hidden]`
        up: MatrixPart,
        /// `[hidden, inner]`
        down: MatrixPlan,
        activation: Activation,
    },
    /// The sum of a bias and of some experts' MLPs, each times its share of the router's softmax.
    Experts(ExpertsPlan),
}

impl MlpPlan {
    /// Inner values per token.
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
pub(crate) struct ExpertsPlan {
    /// `[experts, hidden]`
    pub(crate) router: MatrixPlan,
    /// The experts' MLPs: up `[inner, hidden]`, down `[hidden, inner]`.
    pub(crate) mlps: Vec<[MatrixPlan; 2]>,
    /// The bias, `[hidden]`, if there is one.
    pub(crate) bias: Option<String>,
    /// Values per hidden state.
    pub(crate) hidden: usize,
    /// The number of experts for each token.
    pub(crate) top: usize,
    pub(crate) activation: Activation,
}
