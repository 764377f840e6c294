//! The contract between the engine, which forms batches, and a backend, which computes them.
//!
//! Input: a [`Batch`] of token ids, packed and with every shared prefix stored once. Output: [`Predictions`],
//! one row of values per text or, where a text's tokens are [`Wanted`], one for each of them, in the order the texts
//! were added. What must hold: a text's values depend on its own tokens only, never on what else is in the batch (up to
//! rounding).

mod batch;
mod head;
mod model;

pub use batch::{Batch, BatchBuilder, Segment, Text, Wanted};
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

/// The values of a batch, text after text.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Predictions {
    values: Vec<f32>,
    texts: Vec<Rows>,
    /// What the batch took from earlier ones.
    pub reused: Reused,
}

/// What a batch took from earlier ones, and what the backend keeps for later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reused {
    /// Texts of the batch that begin with tokens of which the results were kept.
    pub texts: usize,
    /// These tokens, each once: rows of the batch that were not computed.
    pub tokens: usize,
    /// Bytes that are kept after the batch.
    pub bytes: usize,
}

/// How many rows of how many values a text has.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rows {
    count: usize,
    width: usize,
}

/// The values of one text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextValues<'a> {
    /// Its rows, one after the other.
    pub values: &'a [f32],
    /// Values of a row. Within a batch, it may be another for the tokens of a text than for a whole one, which has
    /// gone through dense modules.
    pub width: usize,
}

impl Predictions {
    /// One row for each text: `values` holds `width` raw scores (logits), or a vector of this length, per text.
    #[must_use]
    pub fn new(values: Vec<f32>, width: usize) -> Self {
        debug_assert!(width > 0 && values.len().is_multiple_of(width));
        let texts = vec![Rows { count: 1, width }; values.len() / width];
        Self { values, texts, reused: Reused::default() }
    }

    /// Adds the next text: whole rows of `width` values.
    pub fn push(&mut self, values: &[f32], width: usize) {
        debug_assert!(width > 0 && values.len().is_multiple_of(width));
        self.values.extend_from_slice(values);
        self.texts.push(Rows { count: values.len() / width, width });
    }

    /// The values of each text in turn.
    #[must_use]
    pub fn texts(&self) -> impl ExactSizeIterator<Item = TextValues<'_>> {
        let mut rest = self.values.as_slice();
        self.texts.iter().map(move |&Rows { count, width }| {
            let (values, after) = rest.split_at(count * width);
            rest = after;
            TextValues { values, width }
        })
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

    /// How many of a text's first tokens the next batch need not compute, because what earlier ones computed of them was
    /// kept.
    fn known_tokens(&self, _text: &Text) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_gets_its_own_rows() {
        let whole = Predictions::new(vec![1.0, 2.0, 3.0, 4.0], 2);
        assert_eq!(whole.texts().map(|text| text.values).collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
        assert!(whole.texts().all(|text| text.width == 2));
        let mut mixed = Predictions::default();
        let texts = [(vec![0.0, 1.0], 2), ((2..8_u8).map(f32::from).collect(), 3), (vec![8.0, 9.0], 2)];
        for (values, width) in &texts {
            mixed.push(values, *width);
        }
        let got: Vec<_> = mixed.texts().map(|text| (text.values.to_vec(), text.width)).collect();
        assert_eq!(got, texts);
        assert_eq!(Predictions::new(Vec::new(), 3).texts().len(), 0);
    }
}
