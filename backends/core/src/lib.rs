//! The contract between the engine, which forms batches, and a backend, which computes them.
//!
//! Input: a [`Batch`] of token ids, packed by the rule of [`Backend::packing`]. Output: [`Predictions`], the
//! [`Wanted`] outputs of each text in the order of addition. What must hold: a text's values depend only on
//! its own tokens, never on the rest of the batch (up to rounding).

mod activation;
mod amount;
mod batch;
mod head;
mod load;
mod model;
mod numbers;
mod onnx;
mod pool;
mod similarity;

use std::time::Duration;

pub use activation::Activation;
pub use amount::amount;
pub use batch::{Batch, BatchBuilder, Packing, RowsToCompute, Segment, Text};
pub use head::{
    AnswerRule, AnswerToken, AnswerTokens, DenseModule, Head, HeadModule, LayerNormModule, SparseHead,
    TokenHead, WholeHead,
};
pub use load::{LoadOptions, Loaded, Probe, PythonOptions, WeightChoices};
pub use model::{BackendKind, DType, ModelType, Pool};
pub use numbers::{NumberSupport, Numbers};
pub use onnx::{Graph, read_graph};
pub use pool::Pooling;
pub use similarity::{PlainSimilarity, TokenSimilarity};
pub use text_embeddings_checkpoint::ModelFile;

/// An error of loading a model or computing a batch.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The model's files contain something that this backend does not support, or lack something that it
    /// needs.
    #[error("{0}")]
    Load(String),
    /// This backend does not know the architecture; another backend may.
    #[error("{0}")]
    Architecture(String),
    /// The forward pass failed.
    #[error("inference failed: {0}")]
    Inference(String),
    /// The device has too little free memory for the batch, or for the model while it is loaded. The text is
    /// the device's message. The device still works: a smaller batch may fit.
    #[error("out of memory on the device: {0}")]
    OutOfMemory(String),
    /// The device is gone or broken, so that this process cannot compute on it any more. The text is the
    /// device's message.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
}

/// A set of outputs of a text: those that a caller wants, at least one, or those that a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Wanted {
    /// One row of values: the text's raw scores, or its pooled vector.
    pub whole: bool,
    /// One vector for each of its tokens, or only for the marked ones
    /// ([`Text::marks`](Text::marks)). Models that give scores do not have this output.
    pub tokens: bool,
    /// Weights of vocabulary entries (SPLADE, and models with a lexical head such as bge-m3).
    pub sparse: bool,
}

impl Wanted {
    /// Only the text's raw scores or its vector.
    pub const WHOLE: Self = Self { whole: true, tokens: false, sparse: false };
    /// Only the vectors of its tokens.
    pub const TOKENS: Self = Self { whole: false, tokens: true, sparse: false };
    /// Only the weights of vocabulary entries.
    pub const SPARSE: Self = Self { whole: false, tokens: false, sparse: true };

    /// The outputs of this set that are not in `given`.
    #[must_use]
    pub fn without(self, given: Self) -> Self {
        Self {
            whole: self.whole && !given.whole,
            tokens: self.tokens && !given.tokens,
            sparse: self.sparse && !given.sparse,
        }
    }
}

/// The results of a batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Predictions {
    /// For each text, in the order of addition, the outputs that the batch wanted.
    pub texts: Vec<Output>,
    /// The work that cached results of earlier batches saved.
    pub reused: Reused,
    /// The part of the call in which the batch waited: for the model's turn on a shared device, or until the
    /// model was in memory.
    pub waited: Duration,
}

/// The outputs of one text. An output that was not wanted is empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    /// The raw scores (logits), one for each class, or the pooled vector. Not normalised.
    pub whole: Vec<f32>,
    /// The vectors of its tokens, or of the marked ones.
    pub tokens: TokenVectors,
    /// Weights of vocabulary entries: above zero, by ascending index, each index once.
    pub sparse: Vec<SparseValue>,
}

/// One vector for each token of a text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenVectors {
    /// The vectors, one after the other; not normalised.
    pub values: Vec<f32>,
    /// The length of a vector; zero if there are no vectors.
    pub width: usize,
}

/// The weight of a vocabulary entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparseValue {
    /// The token id.
    pub index: u32,
    /// Its weight.
    pub value: f32,
}

/// The work that the prefix cache saved for a batch, and the cache's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reused {
    /// Texts of the batch whose first tokens were cached.
    pub texts: usize,
    /// Rows of the batch that were cached and not computed again.
    pub tokens: usize,
    /// The cache's size after the batch, in bytes.
    pub bytes: usize,
}

impl Output {
    /// A text's raw scores or its vector.
    pub fn whole(values: impl Into<Vec<f32>>) -> Self {
        Self { whole: values.into(), ..Self::default() }
    }

    /// Whether any value is not a number.
    pub fn has_nan(&self) -> bool {
        self.values().any(f32::is_nan)
    }

    /// Whether all values are finite numbers.
    pub fn is_finite(&self) -> bool {
        self.values().all(f32::is_finite)
    }

    fn values(&self) -> impl Iterator<Item = f32> {
        let sparse = self.sparse.iter().map(|entry| entry.value);
        self.whole.iter().chain(&self.tokens.values).copied().chain(sparse)
    }
}

/// Computes a first batch with a model that has this head, and says whether all its values are finite. Broken
/// weights thus show when the model is loaded, not in the first request.
///
/// # Errors
///
/// [`BackendError::Inference`] if the batch fails.
pub fn first_answer_is_finite(backend: &mut impl Backend, head: &Head) -> Result<bool, BackendError> {
    let outputs = head.outputs();
    let wanted = match (outputs.whole, outputs.tokens) {
        (true, _) => Wanted::WHOLE,
        (false, true) => Wanted::TOKENS,
        (false, false) => Wanted::SPARSE,
    };
    let mut builder = BatchBuilder::new(backend.packing());
    builder.push(&Text::new([0; 2], wanted));
    Ok(backend.predict(&builder.build())?.texts.iter().all(Output::is_finite))
}

/// The facts about an architecture that follow from `config.json` alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Description {
    /// The most tokens of an input for which the model has positions; absent if nothing bounds them.
    pub max_length: Option<usize>,
    /// Whether the second text of a pair has another token type than the first.
    pub has_token_types: bool,
    /// Whether a token attends only to itself and earlier tokens.
    pub is_causal: bool,
    /// The number of values of a hidden state.
    pub hidden: usize,
    /// The number of rows of the token embedding.
    pub vocabulary: usize,
    /// The number of layers that a layer-wise re-ranker runs before it scores; absent for other models.
    pub cutoff_layers: Option<usize>,
    /// Multiplications of a token with weights; absent if they are not known.
    pub token_work: Option<u64>,
}

/// A loaded model. It lives on one thread, which calls it for one batch after the other.
pub trait Backend: Send {
    /// Computes the wanted outputs of each text of `batch`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the forward pass fails, or if the model's head does not have a wanted
    /// output. [`BackendError::OutOfMemory`] if the batch does not fit the device's memory: the engine then
    /// computes it in two halves. [`BackendError::DeviceLost`] if the device computes nothing any more: the
    /// process then ends. The whole batch fails in all these cases.
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError>;

    /// How texts must be packed.
    fn packing(&self) -> Packing;

    /// The most memory that a batch of `tokens` tokens takes while it is computed, in bytes.
    fn batch_bytes(&self, tokens: usize) -> usize;

    /// The number of first tokens of a text whose results are cached, so that the next batch need not compute
    /// them.
    fn known_tokens(&self, _text: &Text) -> usize {
        0
    }

    /// Says that no next batch is due yet. A shared device then does not wait for one.
    fn begin_rest(&mut self) {}
}
