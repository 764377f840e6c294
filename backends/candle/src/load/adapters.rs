//! Matrices that are stored with adapters: the original, plus the product of two thin matrices for the chosen
//! task, which may come from a file of their own.
//!
//! Input: a matrix's usual name. Output: the sum, computed when the matrix is requested. What must hold: a
//! matrix's adapters count as used even if no task is chosen, so that `finish` does not complain about them.

use super::{Checkpoint, Weight};
use crate::plan::{AdapterLayout, Adapters};
use text_embeddings_backend_core::BackendError;

/// A matrix, and the factors of the product that is added to it.
struct Factors {
    /// `[rows, columns]`
    original: Weight,
    /// `[rows, rank]`
    left: Weight,
    /// `[rank, columns]`
    right: Weight,
}

impl Factors {
    /// The matrix with its adapter.
    fn add_product(self, [rows, columns]: [usize; 2], scale: f32) -> Weight {
        let right: Vec<Vec<f32>> = (0..self.right.rows()).map(|row| self.right.row(row)).collect();
        let mut factors = vec![0.0; right.len()];
        Weight::from_rows([rows, columns], |row, out| {
            self.original.widen_row(row, out);
            self.left.widen_row(row, &mut factors);
            for (factor, right) in factors.iter().zip(&right) {
                out.iter_mut().zip(right).for_each(|(out, value)| *out += scale * factor * value);
            }
        })
    }
}

impl Checkpoint {
    /// From now on, matrices may be stored with these adapters.
    pub(crate) fn with_adapters(self, adapters: Option<Adapters>) -> Self {
        Self { adapters, ..self }
    }

    /// The matrix `name`, if it is stored with adapters.
    pub(super) fn adapted(
        &self,
        name: &str,
        shape: &[usize],
        adapters: &Adapters,
    ) -> Result<Option<Weight>, BackendError> {
        let (Some(name), &[rows, columns]) = (name.strip_suffix(".weight"), shape) else { return Ok(None) };
        let delta = format!("{name}.token_adapter.trainable_tokens_delta");
        if !adapters.token_rows.is_empty() && self.has(&delta) {
            return self
                .replaced_rows(&format!("{name}.weight"), &delta, [rows, columns], adapters)
                .map(Some);
        }
        let factors = match adapters.layout {
            AdapterLayout::Stacked { rank } => {
                let stored = |part: &str| format!("{name}.parametrizations.weight.{part}");
                if !self.has(&stored("original")) {
                    return Ok(None);
                }
                let original = self.tensor(&stored("original"), shape)?;
                let (task, tasks) = (adapters.task, adapters.tasks.len());
                // The first factor has as many rows as the matrix. It is B for a linear layer, and A for a
                // table of vectors.
                let mut factors = ["0.lora_B", "0.lora_A"].map(stored);
                if !self.has_shape(&factors[0], &[tasks, rows, rank]) {
                    factors.reverse();
                }
                let [left, right] = factors;
                let left = self.tensor(&left, &[tasks, rows, rank])?;
                let right = self.tensor(&right, &[tasks, rank, columns])?;
                let Some(task) = task else { return Ok(Some(original)) };
                let left = left.narrow(task * rows..(task + 1) * rows);
                Factors { original, left, right: right.narrow(task * rank..(task + 1) * rank) }
            }
            AdapterLayout::OwnFile => {
                let [right, left] = ["A", "B"].map(|factor| format!("{name}.lora_{factor}.weight"));
                let Some(tensor) = self.tensors.get(&right) else { return Ok(None) };
                let rank = tensor.shape().first().copied().unwrap_or(0);
                let original = self.stored_rows(&format!("{name}.weight"), shape, 0..rows)?;
                let left = self.stored_rows(&left, &[rows, rank], 0..rows)?;
                Factors { original, left, right: self.stored_rows(&right, &[rank, columns], 0..rank)? }
            }
        };
        Ok(Some(factors.add_product([rows, columns], adapters.scale)))
    }

    /// A table of tokens with the rows that are stored with the adapter.
    fn replaced_rows(
        &self,
        name: &str,
        delta: &str,
        [rows, columns]: [usize; 2],
        adapters: &Adapters,
    ) -> Result<Weight, BackendError> {
        let original = self.stored_rows(name, &[rows, columns], 0..rows)?;
        let count = adapters.token_rows.len();
        let replaced = self.stored_rows(delta, &[count, columns], 0..count)?;
        Ok(Weight::from_rows([rows, columns], |row, out| {
            match adapters.token_rows.iter().position(|token| *token as usize == row) {
                Some(place) => replaced.widen_row(place, out),
                None => original.widen_row(row, out),
            }
        }))
    }

    fn has_shape(&self, name: &str, shape: &[usize]) -> bool {
        self.tensors.get(name).is_some_and(|tensor| tensor.shape() == shape)
    }
}
