//! SPLADE: for each vocabulary entry the largest `log(1 + max(logit, 0))` over a text's tokens.
//!
//! Input: the hidden states of all tokens. Output: the entries above zero. What must hold: logits exist for a
//! few tokens at a time, because each token has one for every entry of the vocabulary.

use super::place;
use crate::{
    modules::Steps,
    operations::{Operations, Part, Precision, Result},
    plan::{MaskedLm, Plan},
    transformer::Weights,
};
use text_embeddings_backend_core::{Batch, Output, splade_weights, take_largest};

/// Tokens whose logits exist at a time: 64 MB of them for a vocabulary of 250,000.
const TOKENS_PER_STEP: usize = 64;

/// A masked-language-model head.
pub(crate) struct Splade<O: Operations> {
    steps: Steps<O>,
    decoder: O::Matrix,
    vocabulary: usize,
}

impl<O: Operations> Splade<O> {
    pub(super) fn load(head: &MaskedLm, plan: &Plan, weights: &Weights<'_, O>) -> Result<Self> {
        let steps = Steps::of_plan(&head.steps, plan.hidden, weights)?;
        let decoder = weights.checkpoint.first_of(&head.decoder)?;
        let weight = weights.checkpoint.tensor(decoder, &[plan.vocabulary, head.width])?;
        let bias = match head.bias.as_slice() {
            [] => None,
            names => Some(weights.checkpoint.vector(weights.checkpoint.first_of(names)?, plan.vocabulary)?),
        };
        let decoder = weights.operations.matrix(vec![Part { weight, bias }], Precision::High)?;
        Ok(Self { steps, decoder, vocabulary: plan.vocabulary })
    }

    /// The weights of each text.
    pub(super) fn predict(
        &self,
        operations: &mut O,
        hidden: &O::Tensor,
        rows: &[usize],
        batch: &Batch,
    ) -> Result<Vec<Output>> {
        let texts = (0..batch.leaves().len()).map(|text| {
            let places: Vec<usize> = batch.rows_of(text).map(|row| place(rows, row)).collect();
            let mut largest = vec![0.0_f32; self.vocabulary];
            for places in places.chunks(TOKENS_PER_STEP) {
                let states = operations.select(hidden, places)?; // [tokens, hidden]
                let states = operations.values(&states)?.into_owned();
                let states = self.steps.run(operations, states)?;
                let states = operations.tensor(&states, self.steps.widths.1)?;
                let operand = operations.operand(&states, Precision::High)?;
                let logits = operations.linear(&operand, &self.decoder)?; // [tokens, vocabulary]
                for logits in operations.values(&logits)?.chunks_exact(self.vocabulary) {
                    take_largest(&mut largest, logits);
                }
            }
            Ok(Output { sparse: splade_weights(&largest), ..Output::default() })
        });
        texts.collect()
    }
}
