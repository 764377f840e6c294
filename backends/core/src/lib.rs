//! The contract between the engine, which forms batches, and a backend, which computes them.
//!
//! Input: a [`Batch`] of token ids, packed and with every shared prefix stored once. Output: [`Predictions`],
//! one row of values per text or, where a text's tokens are [`Wanted`], one for each of them, in the order the texts
//! were added. What must hold: a text's values depend on its own tokens only, never on what else is in the batch (up to
//! rounding).

mod batch;
mod head;
mod model;

pub use batch::{Batch, BatchBuilder, Segment, Wanted};
pub use head::{Activation, AnswerTokens, DenseModule, Head};
pub use model::{DType, ModelType, Pool};

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

/// The values of a batch: rows of `width` values, the rows of a text after those of the text before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    values: Vec<f32>,
    width: usize,
    rows: Vec<usize>,
}

impl Predictions {
    /// One row for each text: `values` holds `width` raw scores (logits), or a vector of this length, per text.
    #[must_use]
    pub fn new(values: Vec<f32>, width: usize) -> Self {
        debug_assert!(width > 0);
        let rows = vec![1; values.len() / width];
        Self::with_rows(values, width, rows)
    }

    /// `rows[i]` rows for text `i`. Together they must be all of `values`.
    #[must_use]
    pub fn with_rows(values: Vec<f32>, width: usize, rows: Vec<usize>) -> Self {
        debug_assert_eq!(values.len(), rows.iter().sum::<usize>() * width);
        Self { values, width, rows }
    }

    /// Each text's rows in turn, one row after the other.
    #[must_use]
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        let mut rest = self.values.as_slice();
        self.rows.iter().map(move |rows| {
            let (text, after) = rest.split_at(rows * self.width);
            rest = after;
            text
        })
    }

    /// Values of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }
}

/// A loaded model. It lives on one thread, which calls it for batch after batch.
pub trait Backend: Send {
    /// Computes what `batch` wants of each of its texts.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the forward pass fails or a text's tokens are wanted of a model that has no
    /// vectors; nothing of the batch was computed then.
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_gets_its_own_rows() {
        let predictions = Predictions::new(vec![1.0, 2.0, 3.0, 4.0], 2);
        assert_eq!(predictions.texts().collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
        let predictions = Predictions::with_rows((0..10_u8).map(f32::from).collect(), 2, vec![1, 3, 1]);
        assert_eq!((predictions.texts().len(), predictions.width()), (3, 2));
        let texts: Vec<&[f32]> = predictions.texts().collect();
        assert_eq!(texts, [&[0.0, 1.0][..], &[2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &[8.0, 9.0]]);
        assert_eq!(Predictions::new(Vec::new(), 3).texts().len(), 0);
    }
}
