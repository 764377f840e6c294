//! From a token id to its row of the table of tokens, and the factor of that row (model2vec).
//!
//! Input: a [`TokenRowsPlan`] and the checkpoint, then token ids. Output: rows, and hidden states times their
//! factors. What must hold: every row is one of the table's, and every factor is finite; otherwise loading
//! fails with the name of the tensor.

use crate::{
    load::Checkpoint,
    operations::{Operations, Result},
    plan::{Plan, TokenRowsPlan},
};
use text_embeddings_backend_core::BackendError;

/// The row and the factor of each token id.
#[derive(Debug, Default)]
pub(super) struct TokenRows {
    /// Absent if token ids are rows.
    rows: Option<Vec<u32>>,
    /// Absent if all factors are 1.
    factors: Option<Vec<f32>>,
    /// The token id whose factor is 0, whatever its row.
    blank: Option<u32>,
    /// Values per hidden state.
    hidden: usize,
}

impl TokenRows {
    /// Reads the rows and factors of all token ids.
    pub(super) fn from_checkpoint(plan: &Plan, checkpoint: &Checkpoint) -> Result<Self> {
        let TokenRowsPlan { mapping, weights, blank } = plan.embeddings.token_rows;
        let rows = mapping.map(|name| load_rows(name, plan, checkpoint)).transpose()?;
        let factors = weights.map(|name| load_factors(name, plan, checkpoint)).transpose()?;
        Ok(Self { rows, factors, blank, hidden: plan.hidden })
    }

    /// The row of a token id. An unknown id has a row that no table has.
    pub(super) fn row_of(&self, id: u32) -> u32 {
        match &self.rows {
            _ if Some(id) == self.blank => 0,
            Some(rows) => rows.get(id as usize).copied().unwrap_or(u32::MAX),
            None => id,
        }
    }

    /// Multiplies each row of `hidden` by the factor of its token.
    pub(super) fn weigh_rows<O: Operations>(
        &self,
        operations: &mut O,
        hidden: O::Tensor,
        tokens: impl ExactSizeIterator<Item = u32>,
    ) -> Result<O::Tensor> {
        if self.factors.is_none() && self.blank.is_none() {
            return Ok(hidden);
        }
        let factors: Vec<f32> = tokens.map(|id| self.factor_of(id)).collect();
        if factors.iter().all(|&factor| factor.to_bits() == 1.0_f32.to_bits()) {
            return Ok(hidden);
        }
        let mut weighted = operations.tensor(&vec![0.0; factors.len() * self.hidden], self.hidden)?;
        let rows: Vec<usize> = (0..factors.len()).collect();
        operations.add_rows(&hidden, &rows, &factors, &mut weighted)?;
        Ok(weighted)
    }

    fn factor_of(&self, id: u32) -> f32 {
        match &self.factors {
            _ if Some(id) == self.blank => 0.0,
            Some(factors) => factors.get(id as usize).copied().unwrap_or(1.0),
            None => 1.0,
        }
    }
}

fn load_rows(name: &str, plan: &Plan, checkpoint: &Checkpoint) -> Result<Vec<u32>> {
    let table: usize = plan.embeddings.tables.iter().take(1).map(|table| table.shape[0]).sum();
    let rows = checkpoint.read_numbers(name, plan.vocabulary)?;
    if rows.iter().all(|&row| row >= 0.0 && row.fract() == 0.0 && row < table as f64) {
        return Ok(rows.into_iter().map(|row| row as u32).collect());
    }
    Err(BackendError::Load(format!(
        "the tensor `{name}` names a row that the table of {table} rows does not have: download the model \
         again"
    )))
}

fn load_factors(name: &str, plan: &Plan, checkpoint: &Checkpoint) -> Result<Vec<f32>> {
    let factors = checkpoint.read_numbers(name, plan.vocabulary)?;
    if factors.iter().all(|factor| factor.is_finite()) {
        return Ok(factors.into_iter().map(|factor| factor as f32).collect());
    }
    Err(BackendError::Load(format!(
        "the tensor `{name}` holds a NaN or an infinity: download the model again"
    )))
}
