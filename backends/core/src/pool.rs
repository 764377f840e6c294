//! Pooling: the tokens whose states become a text's vector.
//!
//! Input: a batch. Output: the rows whose mean is a text's vector; of a single row, the mean is the state
//! itself. What must hold: rows that are not pooled are not computed (`rows`).

use crate::{Batch, Pool};

/// The tokens whose mean state is the state of a text, as sentence-transformers defines them (its `Pooling`
/// module).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The first token.
    First,
    /// All tokens.
    Mean,
    /// The last token.
    Last,
    /// The last token that is not this one; the first token if all are.
    LastExcept(u32),
}

impl Pooling {
    /// The pooling that `--pooling` names; `None` for SPLADE, which pools no states.
    pub fn from_flag(pool: Pool) -> Option<Self> {
        match pool {
            Pool::Cls => Some(Self::First),
            Pool::Mean => Some(Self::Mean),
            Pool::LastToken => Some(Self::Last),
            Pool::Splade => None,
        }
    }

    /// The rows of the batch that the vector of `text` is made of.
    pub fn rows(self, batch: &Batch, text: usize) -> Vec<usize> {
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
    use super::*;
    use crate::{BatchBuilder, Packing, Text, Wanted};

    #[test]
    fn rows_are_those_of_the_text_and_no_others() {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for ids in [&[1, 2, 3, 4][..], &[1, 2, 5], &[1, 2], &[6]] {
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        // Rows: 1 2 | 3 4 | 5 | 6.
        let batch = builder.build();
        for (pooling, expected) in [
            (Pooling::First, [vec![0], vec![0], vec![0], vec![5]]),
            (Pooling::Mean, [vec![0, 1, 2, 3], vec![0, 1, 4], vec![0, 1], vec![5]]),
            (Pooling::Last, [vec![3], vec![4], vec![1], vec![5]]),
            (Pooling::LastExcept(5), [vec![3], vec![1], vec![1], vec![5]]),
            (Pooling::LastExcept(6), [vec![3], vec![4], vec![1], vec![5]]),
        ] {
            for (text, expected) in expected.into_iter().enumerate() {
                assert_eq!(pooling.rows(&batch, text), expected, "{pooling:?}, text {text}");
            }
        }
    }
}
