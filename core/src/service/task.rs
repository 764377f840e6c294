//! The model's task for the inputs of a request, and the inputs that become a prompt together.
//!
//! Input: a request that lists its inputs. Output: the inputs of each prompt, in order. What must hold: which
//! inputs become a prompt depends on the task and on nothing else.

use super::vectors::{unit_vectors, without_first};
use crate::{
    error::Error,
    metrics::{EMBED, PREDICT, TextMetrics},
    model::RerankScoring,
    tokenization::{Input, Side},
};
use std::ops::Range;
use text_embeddings_backend_core::{Output, Wanted};

/// The most tokens of a text whose vector is kept: about the length of a search query. Documents are
/// rarely embedded twice.
pub(super) const MAX_VECTOR_TOKENS: usize = 64;

/// A request that is a list of inputs.
pub(super) trait Inputs: Send + Sync + 'static {
    fn count(&self) -> usize;

    /// The input at an index below `count`.
    fn input(&self, index: usize) -> Input<'_>;

    /// The index in the client's request of the text that the input at `index` is, or is part of. `None` if
    /// it is not one of several.
    fn index_in_request(&self, index: usize) -> Option<usize> {
        Some(index)
    }

    /// Whether all inputs are pairs with one query and one instruction.
    fn have_one_query(&self) -> bool {
        false
    }
}

/// The model's task for each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ModelTask {
    /// Compute its raw scores.
    Score(RerankScoring),
    /// Compute the logits of a decider's labels, or of its marked tokens.
    Decide(Wanted),
    /// Compute one vector, or one for each of its tokens.
    Embed(Wanted),
    /// Compute the vectors of its tokens, which are compared by an embedding model's rule.
    Compare,
}

/// The inputs of a request that are encoded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PromptInputs {
    /// One input, which becomes one prompt.
    One(usize),
    /// Pairs with one query, which become as many prompts as they need.
    List(Range<usize>),
    /// The query or the document of a pair. A query comes before its documents.
    Side(Side, usize),
}

impl PromptInputs {
    pub(super) fn input_range(&self) -> Range<usize> {
        match self {
            Self::One(index) | Self::Side(_, index) => *index..index + 1,
            Self::List(range) => range.clone(),
        }
    }

    /// The error of encoding these inputs, which names the input if the request has several. A list of
    /// several names it itself.
    pub(super) fn name_input(&self, error: Error, inputs: &impl Inputs) -> Error {
        let index = match self {
            Self::Side(Side::Query, _) if inputs.have_one_query() => None,
            Self::List(range) if range.len() > 1 => None,
            _ => inputs.index_in_request(self.input_range().start),
        };
        match index {
            Some(index) if inputs.count() > 1 => error.of_input(index),
            _ => error,
        }
    }

    /// The input that becomes one prompt alone; `None` for a list.
    pub(super) fn single_input<'a>(&self, inputs: &'a impl Inputs) -> Option<Input<'a>> {
        match self {
            Self::One(index) => Some(inputs.input(*index)),
            Self::Side(side, index) => Some(match inputs.input(*index) {
                Input::Pair(pair) => pair.late_side(*side),
                other => other,
            }),
            Self::List(_) => None,
        }
    }
}

impl RerankScoring {
    /// The output that the prompts need.
    pub(super) fn wanted_output(self) -> Wanted {
        match self {
            Self::Logits { .. } => Wanted::WHOLE,
            Self::Lists | Self::MaxSim => Wanted::TOKENS,
        }
    }

    /// The prompts of a request, in the order of its inputs.
    pub(super) fn prompt_inputs(self, inputs: &impl Inputs) -> Vec<PromptInputs> {
        let count = inputs.count();
        match self {
            Self::Logits { .. } => (0..count).map(PromptInputs::One).collect(),
            Self::Lists if inputs.have_one_query() => vec![PromptInputs::List(0..count)],
            Self::Lists => (0..count).map(|index| PromptInputs::List(index..index + 1)).collect(),
            Self::MaxSim => {
                let mut prompts = Vec::with_capacity(count + 1);
                for index in 0..count {
                    if index == 0 || !inputs.have_one_query() {
                        prompts.push(PromptInputs::Side(Side::Query, index));
                    }
                    prompts.push(PromptInputs::Side(Side::Document, index));
                }
                prompts
            }
        }
    }
}

impl ModelTask {
    /// The prompts of a request. A decider and an embedding model read each input alone.
    pub(super) fn prompt_inputs(self, inputs: &impl Inputs) -> Vec<PromptInputs> {
        match self {
            Self::Score(scoring) => scoring.prompt_inputs(inputs),
            Self::Decide(_) | Self::Embed(_) | Self::Compare => {
                (0..inputs.count()).map(PromptInputs::One).collect()
            }
        }
    }

    pub(super) fn wanted_output(self) -> Wanted {
        match self {
            Self::Score(scoring) => scoring.wanted_output(),
            Self::Decide(wanted) | Self::Embed(wanted) => wanted,
            Self::Compare => Wanted::TOKENS,
        }
    }

    /// The values that an answer has because of this output, if their number follows from the text's tokens.
    pub(super) fn answer_values(self, output: &Output) -> usize {
        match self {
            Self::Embed(wanted) if wanted.tokens || wanted.sparse => {
                output.tokens.values.len() + 2 * output.sparse.len()
            }
            Self::Score(_) | Self::Decide(_) | Self::Embed(_) | Self::Compare => 0,
        }
    }

    /// The output as it is compared, and kept: vectors of tokens that are compared have length one.
    pub(super) fn finish_output(self, output: Output) -> Result<Output, Error> {
        let tokens = match self {
            Self::Score(RerankScoring::MaxSim) => unit_vectors(output.tokens)?,
            // bge-m3's authors leave out the first vector, which stands for the beginning of the text.
            Self::Compare => unit_vectors(without_first(output.tokens))?,
            Self::Score(_) | Self::Decide(_) | Self::Embed(_) => return Ok(output),
        };
        Ok(Output { tokens, ..output })
    }

    /// Whether outputs of this task are kept.
    pub(super) fn keeps_outputs(self) -> bool {
        match self {
            Self::Score(RerankScoring::MaxSim) => true,
            Self::Score(scoring) => scoring.wanted_output() == Wanted::WHOLE,
            // The logits of all labels take a kilobyte, and a question is short.
            Self::Decide(_) | Self::Compare => false,
            Self::Embed(wanted) => wanted == Wanted::WHOLE,
        }
    }

    /// Whether the output of a prompt of `tokens` tokens is kept.
    pub(super) fn keeps_output(self, tokens: usize) -> bool {
        self.keeps_outputs() && (!matches!(self, Self::Embed(_)) || tokens <= MAX_VECTOR_TOKENS)
    }

    pub(super) fn text_metrics(self) -> &'static TextMetrics {
        match self {
            Self::Score(_) | Self::Decide(_) => &PREDICT,
            Self::Embed(_) | Self::Compare => &EMBED,
        }
    }
}
