//! The contract between the engine, which forms batches, and a backend, which computes them.
//!
//! Input: a [`Batch`] of token ids, packed and with every shared prefix stored once. Output: [`Predictions`],
//! one row of raw scores per text, in the order the texts were added. What must hold: a text's scores depend on
//! its own tokens only, never on what else is in the batch (up to rounding).

mod batch;
mod model;

pub use batch::{Batch, BatchBuilder, Segment};
pub use model::{AnswerTokens, DType, ModelType, Pool};

/// What can go wrong between a batch and its predictions, or while a model is loaded.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The model's files hold something this backend does not serve, or lack something it needs.
    #[error("{0}")]
    Load(String),
    /// The forward pass failed.
    #[error("inference failed: {0}")]
    Inference(String),
}

/// Raw scores of a batch: `classes` values for each text, text after text.
#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    values: Vec<f32>,
    classes: usize,
}

impl Predictions {
    /// `values` holds `classes` raw scores (logits) per text, in the order of the batch.
    #[must_use]
    pub fn new(values: Vec<f32>, classes: usize) -> Self {
        debug_assert!(classes > 0 && values.len().is_multiple_of(classes));
        Self { values, classes }
    }

    /// The raw scores of each text in turn.
    #[must_use]
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.classes)
    }
}

/// A loaded model. It lives on one thread, which calls it for batch after batch.
pub trait Backend: Send {
    /// Scores every text of `batch`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the forward pass fails; nothing of the batch was scored then.
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError>;
}
