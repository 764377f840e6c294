//! Turns the values of a graph's output into the outputs of texts.
//!
//! Input: the values of one group of texts, padded on the right. Output: an [`Output`] for each text. What
//! must hold: padding cells are never read; a wanted output that the graph does not have is an error, not an
//! empty answer.

use text_embeddings_backend_core::{
    BackendError, Batch, Head, HeadModule, Output, Pooling, SparseHead, TokenHead, Wanted, WholeHead, amount,
};
use text_embeddings_backend_host::{
    HostMatrix, HostStates, LastStep, LoadedHead, Padded, SparseOutput, Steps, WholeOutput,
};

use crate::signature::Meaning;

/// How an output is turned into answers.
pub(crate) enum GraphHead {
    /// The graph gives a row of values for each token.
    Tokens {
        head: Box<LoadedHead<HostMatrix>>,
        /// The values of a row, if that is known.
        width: Option<usize>,
    },
    /// The graph gives the vectors or the raw scores of texts.
    Texts {
        /// The values of a row, if that is known.
        width: Option<usize>,
        /// The name of a row's values, for messages.
        what: &'static str,
    },
}

/// The values of an output for one group.
pub(crate) struct OutputValues<'a> {
    /// Row after row, padding included.
    pub(crate) values: &'a [f32],
    /// The length of a row.
    pub(crate) width: usize,
}

impl GraphHead {
    /// Loads the weights of a head for a graph whose rows have `width` values.
    pub(crate) fn load(head: &Head, meaning: Meaning, width: Option<usize>) -> Result<Self, BackendError> {
        match (&head.whole, meaning) {
            (_, Meaning::Vector) => return Ok(Self::Texts { width, what: "values of a vector" }),
            (Some(WholeHead::Classification { labels }), _) => {
                if width.is_some_and(|width| width != *labels) {
                    return Err(BackendError::Load(format!(
                        "the ONNX file gives {}, but config.json names {}: one of the two files belongs to \
                         another model",
                        amount(width.unwrap_or_default(), "score"),
                        amount(labels, "label")
                    )));
                }
                return Ok(Self::Texts { width: Some(*labels), what: "labels" });
            }
            _ => {}
        }
        let loaded = LoadedHead {
            whole: head.whole.as_ref().map(|whole| load_whole(whole, width)).transpose()?,
            tokens: head.tokens.as_ref().map(|tokens| load_tokens(tokens, width)).transpose()?,
            sparse: head.sparse.as_ref().map(|sparse| load_sparse(sparse, width)).transpose()?,
        };
        // The graph states how many logits it gives only when it runs.
        let width = if meaning == Meaning::States { width } else { None };
        Ok(Self::Tokens { head: Box::new(loaded), width })
    }

    /// Refuses a batch that wants an output without support in the head.
    pub(crate) fn refuse_missing(&self, batch: &Batch) -> Result<(), BackendError> {
        let outputs = match self {
            Self::Tokens { head, .. } => head.outputs(),
            Self::Texts { .. } => Wanted::WHOLE,
        };
        for wanted in batch.wanted() {
            let what = match wanted.without(outputs) {
                Wanted { whole: true, .. } => "a dense vector is",
                Wanted { tokens: true, .. } => "a vector of each token is",
                Wanted { sparse: true, .. } => "sparse weights are",
                _ => continue,
            };
            return Err(failed(&format!("{what} wanted, which this ONNX file does not give")));
        }
        Ok(())
    }

    /// Writes the wanted outputs of a group's texts into `outputs`.
    pub(crate) fn read(
        &self,
        batch: &Batch,
        group: &Padded,
        rows: &OutputValues<'_>,
        outputs: &mut [Output],
    ) -> Result<(), BackendError> {
        self.check_width(rows.width)?;
        match self {
            Self::Tokens { head, .. } => {
                let mut states = HostStates::new(batch, group, rows.values, rows.width);
                head.read_outputs(&mut states, batch, &group.texts, outputs)
            }
            Self::Texts { .. } => {
                for (&text, row) in group.texts.iter().zip(rows.values.chunks_exact(rows.width)) {
                    outputs[text].whole = row.to_vec();
                }
                Ok(())
            }
        }
    }

    fn check_width(&self, width: usize) -> Result<(), BackendError> {
        let (expected, what) = match self {
            Self::Tokens { head, width: expected } => {
                if let Some(WholeOutput { last: LastStep::Logits(answers), .. }) = &head.whole {
                    let largest = answers.tokens.iter().map(|token| token.id as usize).max();
                    if let Some(largest) = largest.filter(|&largest| largest >= width) {
                        let reason =
                            format!("the ONNX file gives {width} logits, and none of token {largest}");
                        return Err(failed(&reason));
                    }
                }
                (*expected, "values of a state")
            }
            Self::Texts { width, what } => (*width, *what),
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

fn load_whole(whole: &WholeHead, width: Option<usize>) -> Result<WholeOutput<HostMatrix>, BackendError> {
    let (pooling, modules, last) = match whole {
        WholeHead::Vector { pooling, modules } | WholeHead::Scores { pooling, modules } => {
            (*pooling, modules.as_slice(), LastStep::None)
        }
        WholeHead::Answers(answers) => (Pooling::Last, &[][..], LastStep::Logits(answers.clone())),
        WholeHead::Labels(tokens) => (Pooling::Last, &[][..], LastStep::LogitsOf(tokens.clone())),
        WholeHead::Classification { .. } => {
            return Err(BackendError::Load("a graph computes its classification head itself".to_owned()));
        }
    };
    Ok(WholeOutput { pooling, steps: load_modules(modules, width)?, pools_last: false, last })
}

fn load_tokens(tokens: &TokenHead, width: Option<usize>) -> Result<Steps<HostMatrix>, BackendError> {
    match tokens {
        TokenHead::Modules(modules) => load_modules(modules, width),
        TokenHead::Projector => Err(BackendError::Load("no head for marked tokens".to_owned())),
    }
}

fn load_sparse(sparse: &SparseHead, width: Option<usize>) -> Result<SparseOutput<HostMatrix>, BackendError> {
    Ok(match sparse {
        SparseHead::Lexical(module) => {
            SparseOutput::Lexical(load_modules(&[HeadModule::Dense(module.clone())], width)?)
        }
        SparseHead::MaskedLm => SparseOutput::MaskedLm { steps: load_modules(&[], width)?, decoder: None },
    })
}

fn load_modules(modules: &[HeadModule], width: Option<usize>) -> Result<Steps<HostMatrix>, BackendError> {
    let mut steps = Steps::none(width.unwrap_or_default());
    steps.load_modules(modules, Ok)?;
    Ok(steps)
}

pub(crate) fn failed(reason: &str) -> BackendError {
    BackendError::Inference(reason.to_owned())
}

#[cfg(test)]
mod tests;
