//! Pooling: which tokens' states a text's vector is made of, and how.
//!
//! Input: a batch. Output: the rows whose mean is a text's vector; of a single row, the mean is the state
//! itself. What must hold: rows that are not pooled are not computed (`rows`).

use crate::operations::Result;
use text_embeddings_backend_core::{BackendError, Batch, Pool};

/// The poolings that are served, as sentence-transformers defines them (its `Pooling` module).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The first token's state.
    First,
    /// The mean over all tokens.
    Mean,
    /// The last token's state.
    Last,
    /// The state of the last token that is not this one; the first token's state if all tokens are.
    LastExcept(u32),
}

impl Pooling {
    /// The pooling that a model asks for.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] for one that is not supported.
    pub(crate) fn of(pool: Pool) -> Result<Self> {
        match pool {
            Pool::Cls => Ok(Self::First),
            Pool::Mean => Ok(Self::Mean),
            Pool::LastToken => Ok(Self::Last),
            Pool::Splade => Err(BackendError::Load(
                "splade pooling gives no vector to pool: `--pooling` takes `cls`, `mean` or `last-token` \
                 here"
                    .to_owned(),
            )),
        }
    }

    /// The rows of the batch that the vector of `text` is made of.
    pub(crate) fn rows(self, batch: &Batch, text: usize) -> Vec<usize> {
        let mut rows = batch.rows_of(text);
        match self {
            Self::First => rows.next().into_iter().collect(),
            Self::Mean => rows.collect(),
            Self::Last => rows.last().into_iter().collect(),
            Self::LastExcept(padding) => {
                let first = rows.next();
                rows.filter(|&row| batch.token_ids()[row] != padding).last().or(first).into_iter().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use text_embeddings_backend_core::{BatchBuilder, Packing, Text, Wanted};

    #[test]
    fn rows_are_those_of_the_text_and_no_others() {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for ids in [&[1, 2, 3, 4][..], &[1, 2, 5], &[1, 2], &[6]] {
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        // Rows: 1 2 | 3 4 | 5 | 6.
        let batch = builder.build();
        for (pool, wanted) in [
            (Pool::Cls, [vec![0], vec![0], vec![0], vec![5]]),
            (Pool::Mean, [vec![0, 1, 2, 3], vec![0, 1, 4], vec![0, 1], vec![5]]),
            (Pool::LastToken, [vec![3], vec![4], vec![1], vec![5]]),
        ] {
            let pooling = Pooling::of(pool).unwrap();
            for (text, wanted) in wanted.into_iter().enumerate() {
                assert_eq!(pooling.rows(&batch, text), wanted, "{pool}, text {text}");
            }
        }
        assert!(Pooling::of(Pool::Splade).unwrap_err().to_string().starts_with("splade pooling"));
    }
}
