//! The contract between the engine, which forms batches, and a backend, which computes them.
//!
//! Input: a [`Batch`] of token ids, packed as [`Backend::packing`] asks for. Output: [`Predictions`], for each text the
//! outputs that are [`Wanted`], in the order the texts were added. What must hold: a text's values depend on its own
//! tokens only, never on the rest of the batch (up to rounding).

mod activation;
mod batch;
mod describe;
mod head;
mod kind;
mod load;
mod model;
mod onnx;
mod padded;
mod pool;
mod python;
mod sparse;

pub use activation::Activation;
pub use batch::{Batch, BatchBuilder, Packing, Segment, Text, Wanted};
pub use describe::describe_any;
pub use head::{AnswerTokens, DenseModule, Head, LayerNormModule, Module};
pub use kind::BackendKind;
pub use load::{LoadOptions, Loaded};
pub use model::{DType, ModelType, Pool};
pub use onnx::{Graph, read_graph};
pub use padded::{MOST_PADDING, Padded, most_cells};
pub use pool::{mean, pooled};
pub use python::{Probe, PythonOptions};
pub use sparse::{largest_weights, splade_weights, take_largest};

/// What can go wrong between a batch and its predictions, or while a model is loaded.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The model's files hold something this backend does not serve, or lack something it needs.
    #[error("{0}")]
    Load(String),
    /// The backend has no such architecture; another backend may.
    #[error("{0}")]
    Architecture(String),
    /// The forward pass failed.
    #[error("inference failed: {0}")]
    Inference(String),
    /// The device has too little free memory for the batch, or for the model while it is loaded; what the device said. It goes on
    /// working: a smaller batch may fit.
    #[error("out of memory on the device: {0}")]
    OutOfMemory(String),
    /// The device is gone or broken, so that this process will compute nothing more on it; what the device said.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
}

/// What a model computed for a batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Predictions {
    /// For each text, in the order of addition, the outputs that were wanted of it.
    pub texts: Vec<Output>,
    /// What the batch took from earlier ones.
    pub reused: Reused,
}

/// The outputs of one text. Those that were not wanted are empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    /// The raw scores (logits), one for each class, or the pooled vector; not normalised.
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
    /// Values of a vector; zero if there are none.
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

/// Work that a batch did not have to do, and the size of the cache that spared it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reused {
    /// Texts of the batch whose first tokens were cached.
    pub texts: usize,
    /// The cached tokens, each counted once: rows of the batch that were not computed.
    pub tokens: usize,
    /// Bytes that the cache holds after the batch.
    pub bytes: usize,
}

impl Output {
    /// A text's raw scores or its vector.
    #[must_use]
    pub fn whole(values: impl Into<Vec<f32>>) -> Self {
        Self { whole: values.into(), ..Self::default() }
    }

    /// Whether any value is not a number.
    #[must_use]
    pub fn has_nan(&self) -> bool {
        self.values().any(f32::is_nan)
    }

    /// Whether all values are finite numbers.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.values().all(f32::is_finite)
    }

    fn values(&self) -> impl Iterator<Item = f32> {
        let sparse = self.sparse.iter().map(|entry| entry.value);
        self.whole.iter().chain(&self.tokens.values).copied().chain(sparse)
    }
}

/// Computes a first batch with a model that has this head, and says whether its answers are finite numbers: broken weights show
/// when a model is loaded, not in the first request.
///
/// # Errors
///
/// [`BackendError::Inference`] if the batch fails.
pub fn first_answer_is_finite(backend: &mut impl Backend, head: &Head) -> Result<bool, BackendError> {
    let wanted = match head {
        Head::Splade => Wanted::SPARSE,
        Head::Marks => Wanted::TOKENS,
        _ => Wanted::WHOLE,
    };
    let mut builder = BatchBuilder::new(backend.packing());
    builder.push(&Text::new([0; 2], wanted));
    Ok(backend.predict(&builder.build())?.texts.iter().all(Output::is_finite))
}

/// The facts about an architecture that follow from `config.json` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// The most tokens of an input that the model's positions allow; absent where nothing bounds them.
    pub longest_input: Option<usize>,
    /// Whether the second text of a pair has another token type than the first.
    pub has_token_types: bool,
    /// Whether a token sees only what is before it.
    pub is_causal: bool,
    /// Values of a hidden state.
    pub hidden: usize,
    /// Rows of the token embedding.
    pub vocabulary: usize,
    /// Layers that a layer-wise re-ranker goes through before it scores; absent for other models.
    pub cutoff_layers: Option<usize>,
}

/// A loaded model. It lives on one thread, which calls it for batch after batch.
pub trait Backend: Send {
    /// Computes what `batch` wants of each of its texts.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the forward pass fails or an output is wanted that the model's head does not give;
    /// [`BackendError::OutOfMemory`] if the batch does not fit the device's memory, whereupon the engine computes it in two
    /// halves; [`BackendError::DeviceLost`] if the device computes nothing any more, whereupon the process ends. Nothing of
    /// the batch was computed in any of these cases.
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError>;

    /// How texts must be packed.
    fn packing(&self) -> Packing;

    /// The most bytes that a batch of so many tokens takes while it is computed.
    fn batch_bytes(&self, tokens: usize) -> usize;

    /// The number of a text's first tokens that the next batch need not compute, because an earlier one did and the
    /// results are cached.
    fn known_tokens(&self, _text: &Text) -> usize {
        0
    }
}
