//! A head with its weights: turns hidden states into scores, vectors and sparse weights.
//!
//! Input: the hidden states, after the final norm, of [`LoadedHead::needed_rows`]. Output: the wanted outputs
//! of each text. What must hold: a row is computed once, even if several texts need it; scores are summed in
//! double precision from `f32` weights, so that a generative re-ranker and its conversion to one label score
//! the same.

use crate::{
    HeadDevice, Steps, mean_state,
    sparse::{largest_weights, splade_weights, take_largest},
};
use text_embeddings_backend_core::{
    AnswerTokens, BackendError, Batch, Output, Pooling, SparseValue, TokenVectors, Wanted,
};

/// The number of tokens whose logits exist at a time, on each thread that computes a part of a batch: 64 MB
/// for a vocabulary of 250,000.
pub const TOKENS_PER_STEP: usize = 64;

/// A head with its weights: for each output that the model has, the way from hidden states to it.
#[derive(Debug)]
pub struct LoadedHead<M> {
    /// To raw scores or a vector.
    pub whole: Option<WholeOutput<M>>,
    /// To the vectors of tokens.
    pub tokens: Option<Steps<M>>,
    /// To weights of vocabulary entries.
    pub sparse: Option<SparseOutput<M>>,
}

/// The way from hidden states to raw scores or a vector: pool, steps, last step.
#[derive(Debug)]
pub struct WholeOutput<M> {
    /// The tokens whose states are pooled.
    pub pooling: Pooling,
    /// The steps that the pooled state goes through.
    pub steps: Steps<M>,
    /// Whether each state goes through the steps before the results are pooled.
    pub pools_last: bool,
    /// The last step.
    pub last: LastStep,
}

/// The last step to raw scores or a vector.
#[derive(Debug)]
pub enum LastStep {
    /// None: the result of the steps is the output.
    None,
    /// A classification head's last matrix.
    Classes(Classes),
    /// The result of the steps has a logit for each token of the vocabulary. The logits of these tokens
    /// become one raw score.
    Logits(AnswerTokens),
    /// The same, but the logits of these tokens are the output.
    LogitsOf(Vec<u32>),
    /// A hyperbolic tangent and rounding turn values into whole numbers from -128 to 127 (pplx-embed).
    Rounding,
}

/// The last matrix of a head that scores.
#[derive(Debug)]
pub struct Classes {
    /// A vector for each class, or for each answer of a generative re-ranker. If its raw score is a weighted
    /// sum of logits, it has one class: the weighted sum of its answers' vectors.
    pub vectors: Vec<Vec<f32>>,
    /// An addend for each class.
    pub bias: Vec<f32>,
    /// The divisor of logits.
    pub divisor: f32,
    /// The bound of logits: `bound · tanh(logit / bound)`.
    pub bound: Option<f32>,
    /// The answers whose logits make one raw score; absent if each logit is a raw score.
    pub answers: Option<AnswerTokens>,
}

/// The way from hidden states to weights of vocabulary entries.
#[derive(Debug)]
pub enum SparseOutput<M> {
    /// The steps from a token's state to the token's weight.
    Lexical(Steps<M>),
    /// SPLADE: for each vocabulary entry the largest `log(1 + max(logit, 0))` over a text's tokens.
    MaskedLm {
        /// The steps before the decoder.
        steps: Steps<M>,
        /// The matrix from their result to logits; absent if the states are logits themselves.
        decoder: Option<M>,
    },
}

impl<M> LoadedHead<M> {
    /// The outputs that it gives.
    pub fn outputs(&self) -> Wanted {
        Wanted { whole: self.whole.is_some(), tokens: self.tokens.is_some(), sparse: self.sparse.is_some() }
    }

    /// The rows of the batch whose hidden states [`LoadedHead::read_outputs`] needs: ascending, each once.
    pub fn needed_rows(&self, batch: &Batch) -> Vec<usize> {
        let mut rows = Vec::new();
        for (text, wanted) in batch.wanted().iter().enumerate() {
            if wanted.sparse {
                rows.extend(batch.rows_of(text));
                continue;
            }
            if wanted.tokens {
                rows.extend(batch.marked_rows(text));
            }
            if let (true, Some(whole)) = (wanted.whole, &self.whole) {
                rows.extend(whole.pooling.rows(batch, text));
            }
        }
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Writes the wanted outputs of some texts of the batch to their places in `outputs`. `device` has the
    /// states of their rows.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the device fails.
    pub fn read_outputs<D: HeadDevice<Matrix = M>>(
        &self,
        device: &mut D,
        batch: &Batch,
        texts: &[usize],
        outputs: &mut [Output],
    ) -> Result<(), BackendError> {
        if let Some(whole) = &self.whole {
            whole.read_whole(device, batch, texts, outputs)?;
        }
        for &text in texts {
            let wanted = batch.wanted()[text];
            if let (true, Some(steps)) = (wanted.tokens, &self.tokens) {
                let states = device.read_states(&batch.marked_rows(text))?;
                let values = steps.run(device, states)?;
                outputs[text].tokens = TokenVectors { values, width: steps.outputs };
            }
            if let (true, Some(sparse)) = (wanted.sparse, &self.sparse) {
                outputs[text].sparse = sparse.read_sparse(device, batch, text)?;
            }
        }
        Ok(())
    }
}

impl<M> WholeOutput<M> {
    fn read_whole<D: HeadDevice<Matrix = M>>(
        &self,
        device: &mut D,
        batch: &Batch,
        texts: &[usize],
        outputs: &mut [Output],
    ) -> Result<(), BackendError> {
        let texts: Vec<usize> = texts.iter().copied().filter(|&text| batch.wanted()[text].whole).collect();
        if texts.is_empty() {
            return Ok(());
        }
        let rows: Vec<Vec<usize>> = texts.iter().map(|&text| self.pooling.rows(batch, text)).collect();
        let results = if self.pools_last {
            self.pool_results(device, &rows)?
        } else {
            let pooled = device.pool_states(&rows)?;
            self.steps.run(device, pooled)?
        };
        for (&text, result) in texts.iter().zip(results.chunks_exact(results.len() / texts.len())) {
            outputs[text].whole = self.last.run(result);
        }
        Ok(())
    }

    /// For each list of rows, the mean of the results of the steps on their states.
    fn pool_results<D: HeadDevice<Matrix = M>>(
        &self,
        device: &mut D,
        rows: &[Vec<usize>],
    ) -> Result<Vec<f32>, BackendError> {
        let mut pooled = Vec::with_capacity(rows.len() * self.steps.outputs);
        for rows in rows {
            let states = device.read_states(rows)?;
            let results = self.steps.run(device, states)?;
            pooled.extend(mean_state(results.chunks_exact(self.steps.outputs), self.steps.outputs));
        }
        Ok(pooled)
    }
}

impl LastStep {
    fn run(&self, state: &[f32]) -> Vec<f32> {
        match self {
            Self::None => state.to_vec(),
            Self::Classes(classes) => classes.scores(state),
            Self::Logits(answers) => {
                let logits = answers.tokens.iter().map(|token| f64::from(state[token.id as usize]));
                vec![answers.raw_score(&logits.collect::<Vec<_>>())]
            }
            Self::LogitsOf(tokens) => tokens.iter().map(|&token| state[token as usize]).collect(),
            // The values of pplx-embed's vectors: hyperbolic tangents in steps of 1/127, as whole numbers.
            Self::Rounding => state
                .iter()
                .map(|value| (value.tanh() * 127.0).round_ties_even().clamp(-128.0, 127.0))
                .collect(),
        }
    }
}

impl Classes {
    /// The raw scores of a state.
    fn scores(&self, state: &[f32]) -> Vec<f32> {
        let logits = self.vectors.iter().zip(&self.bias).map(|(class, &bias)| {
            let dot: f64 = state.iter().zip(class).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            let logit = (dot + f64::from(bias)) / f64::from(self.divisor);
            self.bound.map(f64::from).map_or(logit, |bound| bound * (logit / bound).tanh())
        });
        match &self.answers {
            Some(answers) => vec![answers.raw_score(&logits.collect::<Vec<_>>())],
            None => logits.map(|logit| logit as f32).collect(),
        }
    }
}

impl<M> SparseOutput<M> {
    /// The weights of a text: above zero, by ascending index.
    fn read_sparse<D: HeadDevice<Matrix = M>>(
        &self,
        device: &mut D,
        batch: &Batch,
        text: usize,
    ) -> Result<Vec<SparseValue>, BackendError> {
        let rows: Vec<usize> = batch.rows_of(text).collect();
        match self {
            Self::Lexical(steps) => {
                let states = device.read_states(&rows)?;
                let weights = steps.run(device, states)?;
                Ok(largest_weights(rows.iter().map(|&row| batch.token_ids()[row]).zip(weights)))
            }
            Self::MaskedLm { steps, decoder } => {
                let mut largest = Vec::new();
                for rows in rows.chunks(TOKENS_PER_STEP) {
                    let states = device.read_states(rows)?;
                    let states = steps.run(device, states)?;
                    let mut take = |logits: &[f32]| {
                        let vocabulary = logits.len() / rows.len(); // [tokens, vocabulary]
                        largest.resize(vocabulary, 0.0);
                        logits.chunks_exact(vocabulary).for_each(|row| take_largest(&mut largest, row));
                    };
                    match decoder {
                        Some(decoder) => device.multiply_matrix(decoder, &states, steps.outputs, take)?,
                        None => take(&states),
                    }
                }
                Ok(splade_weights(&largest))
            }
        }
    }
}
