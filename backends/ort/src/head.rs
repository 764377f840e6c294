//! Turns the values of a graph's output into the outputs of texts.
//!
//! Input: the values of one group of texts, padded on the right. Output: an [`Output`] for each text. What
//! must hold: padding cells are never read; a wanted output that the graph does not have is an error, not an
//! empty answer.

use text_embeddings_backend_candle::HostModules;
use text_embeddings_backend_core::{
    AnswerTokens, BackendError, Batch, Head, HeadModule, Output, Padded, Pool, SparseValue, TokenVectors,
    Wanted, amount, largest_weights, pooled, splade_weights, take_largest,
};

use crate::signature::Meaning;

/// How an output is turned into answers.
pub(crate) enum LoadedHead {
    /// Hidden states are pooled and go through modules. The result is a vector or raw scores.
    Pooled(Box<Pooled>),
    /// The rows are the vectors or the raw scores. Each row has `width` values, if that is known.
    Rows { width: Option<usize>, what: &'static str },
    /// The logit of one token minus the logit of another, at a text's last token.
    Answers(AnswerTokens),
    /// For each entry of the vocabulary, the largest `log(1 + max(logit, 0))` over a text's tokens.
    Splade,
}

/// The steps after the hidden states.
pub(crate) struct Pooled {
    pool: Pool,
    modules: HostModules,
    /// The modules for the state of each token, if token vectors are wanted; absent for scores.
    tokens: Option<HostModules>,
    /// The modules that compute a token's weight, if the model has such a head.
    lexical: Option<HostModules>,
}

/// The values of an output for one group.
pub(crate) struct OutputValues<'a> {
    /// Row after row, padding included.
    pub(crate) values: &'a [f32],
    /// The length of a row.
    pub(crate) width: usize,
}

impl LoadedHead {
    /// Loads the weights of a head for a graph whose rows have `width` values.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] for a module that does not fit or is incomplete.
    pub(crate) fn load(head: &Head, meaning: Meaning, width: Option<usize>) -> Result<Self, BackendError> {
        let load = |modules: &[HeadModule]| {
            let takes = modules.first().map(|module| match module {
                HeadModule::Dense(module) => module.in_features,
                HeadModule::LayerNorm(module) => module.size,
            });
            HostModules::load(modules, width.or(takes).unwrap_or_default())
        };
        Ok(match (head, meaning) {
            (_, Meaning::Vector) => Self::Rows { width, what: "values of a vector" },
            (Head::Embedding { pool, modules, token_modules, lexical }, _) => {
                Self::Pooled(Box::new(Pooled {
                    pool: *pool,
                    modules: load(modules)?,
                    tokens: Some(load(token_modules)?),
                    lexical: lexical
                        .as_ref()
                        .map(|module| load(&[HeadModule::Dense(module.clone())]))
                        .transpose()?,
                }))
            }
            (Head::Scores { pool, modules }, _) => {
                let modules = load(modules)?;
                Self::Pooled(Box::new(Pooled { pool: *pool, modules, tokens: None, lexical: None }))
            }
            (Head::Classification { labels }, _) => {
                if width.is_some_and(|width| width != *labels) {
                    return Err(BackendError::Load(format!(
                        "the ONNX file gives {}, but config.json names {}: one of the two files belongs to \
                         another model",
                        amount(width.unwrap_or_default(), "score"),
                        amount(labels, "label")
                    )));
                }
                Self::Rows { width: Some(*labels), what: "labels" }
            }
            (Head::Answers(answers), _) => Self::Answers(*answers),
            (Head::Splade, _) => Self::Splade,
            (Head::Marks, _) => return Err(BackendError::Load("no head for marked tokens".to_owned())),
        })
    }

    /// Refuses a batch that wants an output without support in the head.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] naming the output.
    pub(crate) fn check(&self, batch: &Batch) -> Result<(), BackendError> {
        let (whole, tokens, sparse) = match self {
            Self::Pooled(steps) => (true, steps.tokens.is_some(), steps.lexical.is_some()),
            Self::Rows { .. } | Self::Answers(_) => (true, false, false),
            Self::Splade => (false, false, true),
        };
        let missing = |wanted: &Wanted| {
            let wants = [
                (wanted.whole && !whole, "a dense vector is"),
                (wanted.tokens && !tokens, "a vector of each token is"),
                (wanted.sparse && !sparse, "sparse weights are"),
            ];
            wants.into_iter().find_map(|(is_missing, what)| is_missing.then_some(what))
        };
        match batch.wanted().iter().find_map(missing) {
            Some(what) => Err(failed(&format!("{what} wanted, which this ONNX file does not give"))),
            None => Ok(()),
        }
    }

    /// Writes the wanted outputs of a group's texts into `outputs`.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the rows do not have the width that the head takes.
    pub(crate) fn read(
        &mut self,
        batch: &Batch,
        group: &Padded,
        rows: &OutputValues<'_>,
        outputs: &mut [Output],
    ) -> Result<(), BackendError> {
        self.check_width(rows.width)?;
        for (row, (&text, &length)) in group.texts.iter().zip(&group.lengths).enumerate() {
            let output = &mut outputs[text];
            let states = || {
                let start = row * group.width * rows.width;
                &rows.values[start..start + length * rows.width]
            };
            let wanted = batch.wanted()[text];
            match self {
                Self::Pooled(steps) => {
                    let Pooled { pool, modules, tokens, lexical } = steps.as_mut();
                    let states = states();
                    if wanted.whole {
                        let vector = pooled(*pool, states, rows.width);
                        let vector =
                            vector.ok_or_else(|| failed("splade pooling gives no vector to pool"))?;
                        output.whole = modules.run(vector)?;
                    }
                    if let (true, Some(tokens)) = (wanted.tokens, tokens.as_mut()) {
                        output.tokens = token_vectors(batch, text, states, (rows.width, tokens))?;
                    }
                    if let (true, Some(lexical)) = (wanted.sparse, lexical.as_mut()) {
                        let ids = batch.rows_of(text).map(|row| batch.token_ids()[row]);
                        output.sparse = largest_weights(ids.zip(lexical.run(states.to_vec())?));
                    }
                }
                Self::Rows { .. } => {
                    output.whole = rows.values[row * rows.width..(row + 1) * rows.width].to_vec();
                }
                Self::Answers(answers) => {
                    let states = states();
                    let last = &states[states.len() - rows.width..];
                    let no = answers.false_id.map_or(0.0, |id| f64::from(last[id as usize]));
                    output.whole = vec![(f64::from(last[answers.true_id as usize]) - no) as f32];
                }
                Self::Splade => output.sparse = splade(states(), rows.width),
            }
        }
        Ok(())
    }

    fn check_width(&self, width: usize) -> Result<(), BackendError> {
        let (expected, what) = match self {
            Self::Pooled(steps) => {
                (Some(steps.modules.widths().0).filter(|&takes| takes > 0), "values of a state")
            }
            Self::Rows { width, what } => (*width, *what),
            Self::Answers(AnswerTokens { true_id, false_id }) => {
                let largest = (*true_id).max(false_id.unwrap_or_default()) as usize;
                return if width > largest {
                    Ok(())
                } else {
                    Err(failed(&format!("the ONNX file gives {width} logits, and none of token {largest}")))
                };
            }
            Self::Splade => (None, ""),
        };
        match expected.filter(|&expected| expected != width) {
            Some(expected) => {
                Err(failed(&format!("the ONNX file gives {width} instead of {expected} {what}")))
            }
            None if width == 0 => Err(failed("the ONNX file gives rows without values")),
            None => Ok(()),
        }
    }
}

/// The vectors of a text's marked tokens, or of all its tokens.
fn token_vectors(
    batch: &Batch,
    text: usize,
    states: &[f32],
    (width, modules): (usize, &mut HostModules),
) -> Result<TokenVectors, BackendError> {
    let first = batch.rows_of(text).next().unwrap_or_default();
    // The rows of a text are contiguous, because texts do not share rows.
    let marked = batch.marked_rows(text).into_iter().map(|row| row - first);
    let states: Vec<f32> =
        marked.flat_map(|token| states[token * width..(token + 1) * width].to_vec()).collect();
    let tokens = states.len() / width;
    let values = modules.run(states)?;
    let width = values.len() / tokens.max(1);
    Ok(TokenVectors { values, width })
}

fn splade(logits: &[f32], vocabulary: usize) -> Vec<SparseValue> {
    let mut largest = vec![0.0_f32; vocabulary];
    logits.chunks_exact(vocabulary).for_each(|row| take_largest(&mut largest, row));
    splade_weights(&largest)
}

pub(crate) fn failed(reason: &str) -> BackendError {
    BackendError::Inference(reason.to_owned())
}

#[cfg(test)]
mod tests;
