//! Loads a head's weights onto the device, and gives the head the device's hidden states and products.
//!
//! Input: a [`Head`] and the architecture's [`Plan`]. Output: a [`LoadedHead`], which does the rest. What
//! must hold: a head that the architecture lacks, and one whose weights give every text the same score, is
//! refused by name.

use crate::{
    load::{Checkpoint, LM_HEAD, Part, Weight},
    operations::{Operations, Precision, Result},
    plan::{Classification, MaskedLm, NormKind, Plan, Reads, StepPlan},
    transformer::Weights,
};
use text_embeddings_backend_core::{
    AnswerRule, AnswerToken, AnswerTokens, BackendError, Batch, Head, HeadModule, Pooling, SparseHead,
    TokenHead, Wanted, WholeHead,
};
use text_embeddings_backend_host::{
    Classes, HeadDevice, HostMatrix, LastStep, LoadedHead, SparseOutput, Step, Steps, WholeOutput,
};

/// The head of a model on the device of `O`.
pub(crate) type DeviceHead<O> = LoadedHead<<O as Operations>::Matrix>;

/// The hidden states of some rows of a batch, on the device.
pub(crate) struct DeviceStates<'a, O: Operations> {
    pub(crate) operations: &'a mut O,
    /// `[rows, width]`
    pub(crate) hidden: &'a O::Tensor,
    /// The rows of the batch, ascending.
    pub(crate) rows: &'a [usize],
    /// Values per state.
    pub(crate) width: usize,
}

impl<O: Operations> DeviceStates<'_, O> {
    /// The places of some rows of the batch among the states.
    fn row_places(&self, rows: &[usize]) -> Vec<usize> {
        let first = self.rows.first().copied().unwrap_or_default();
        if self.rows.last().is_some_and(|last| last - first + 1 == self.rows.len()) {
            // There is no gap, so nothing has to be searched.
            return rows.iter().map(|row| row - first).collect();
        }
        rows.iter().map(|&row| self.rows.partition_point(|&before| before < row)).collect()
    }
}

impl<O: Operations> HeadDevice for DeviceStates<'_, O> {
    type Matrix = O::Matrix;

    fn pool_states(&mut self, rows: &[Vec<usize>]) -> Result<Vec<f32>> {
        let places: Vec<Vec<usize>> = rows.iter().map(|rows| self.row_places(rows)).collect();
        self.operations.means(self.hidden, self.width, &places)
    }

    fn read_states(&mut self, rows: &[usize]) -> Result<Vec<f32>> {
        let states = self.operations.select(self.hidden, &self.row_places(rows))?; // [rows, width]
        Ok(self.operations.values(&states)?.into_owned())
    }

    fn multiply_matrix<R>(
        &mut self,
        matrix: &O::Matrix,
        vectors: &[f32],
        inputs: usize,
        read: impl FnOnce(&[f32]) -> R,
    ) -> Result<R> {
        let x = self.operations.tensor(vectors, inputs)?; // [vectors, inputs]
        let x = self.operations.operand(&x, Precision::High)?;
        let product = self.operations.linear(&x, matrix)?; // [vectors, outputs]
        Ok(read(&self.operations.values(&product)?))
    }
}

/// Loads the head's tensors: from `checkpoint`, the model's own, or from the files of the head's modules.
pub(crate) fn load_head<O: Operations>(
    head: &Head,
    plan: &Plan,
    checkpoint: &Checkpoint,
    operations: &mut O,
) -> Result<DeviceHead<O>> {
    let weights = Weights { checkpoint, operations };
    let whole = head.whole.as_ref().map(|whole| load_whole(whole, plan, &weights)).transpose()?;
    let tokens = head.tokens.as_ref().map(|tokens| load_tokens(tokens, plan, &weights)).transpose()?;
    let sparse = head.sparse.as_ref().map(|sparse| load_sparse(sparse, plan, &weights)).transpose()?;
    Ok(LoadedHead { whole, tokens, sparse })
}

/// Refuses a batch that wants an output which the head does not give.
pub(crate) fn refuse_missing(outputs: Wanted, batch: &Batch) -> Result<()> {
    for wanted in batch.wanted() {
        let missing = wanted.without(outputs);
        let what = match missing {
            Wanted { whole: true, .. } => "dense vectors",
            Wanted { tokens: true, .. } => "vectors of tokens",
            Wanted { sparse: true, .. } => "sparse weights",
            _ => continue,
        };
        return Err(BackendError::Inference(format!("this model's head does not give {what}")));
    }
    Ok(())
}

fn load_whole<O: Operations>(
    whole: &WholeHead,
    plan: &Plan,
    weights: &Weights<'_, O>,
) -> Result<WholeOutput<O::Matrix>> {
    let states = Steps::none(plan.hidden);
    Ok(match whole {
        WholeHead::Answers(answers) => WholeOutput {
            pooling: Pooling::Last,
            steps: states,
            pools_last: false,
            last: LastStep::Classes(load_answers(answers, weights.checkpoint, plan)?),
        },
        WholeHead::Labels(tokens) => WholeOutput {
            pooling: Pooling::Last,
            steps: states,
            pools_last: false,
            last: LastStep::Classes(load_labels(tokens, weights.checkpoint, plan)?),
        },
        WholeHead::Classification { labels } => {
            let head = plan.classification.as_ref().ok_or_else(|| no_head("classification"))?;
            WholeOutput {
                pooling: match head.reads {
                    Reads::First => Pooling::First,
                    Reads::Mean | Reads::EachToken => Pooling::Mean,
                    Reads::Last => Pooling::Last,
                    Reads::LastUnpadded => plan.padding.map_or(Pooling::Last, Pooling::LastExcept),
                },
                steps: load_steps(&head.steps, states, weights)?,
                pools_last: head.reads == Reads::EachToken,
                last: LastStep::Classes(load_classes(head, *labels, weights.checkpoint)?),
            }
        }
        WholeHead::Scores { pooling, modules } => WholeOutput {
            pooling: *pooling,
            steps: load_modules(modules, states, weights)?,
            pools_last: false,
            last: LastStep::None,
        },
        WholeHead::Vector { pooling, modules } => {
            let own = load_steps(&plan.vector_steps, states, weights)?;
            WholeOutput {
                pooling: *pooling,
                steps: load_modules(modules, own, weights)?,
                pools_last: false,
                last: if plan.quantised_vectors { LastStep::Rounding } else { LastStep::None },
            }
        }
    })
}

fn load_tokens<O: Operations>(
    tokens: &TokenHead,
    plan: &Plan,
    weights: &Weights<'_, O>,
) -> Result<Steps<O::Matrix>> {
    let states = Steps::none(plan.hidden);
    match tokens {
        TokenHead::Modules(modules) => load_modules(modules, states, weights),
        TokenHead::Projector if plan.projector.is_empty() => Err(no_head("listwise")),
        TokenHead::Projector => load_steps(&plan.projector, states, weights),
    }
}

fn load_sparse<O: Operations>(
    sparse: &SparseHead,
    plan: &Plan,
    weights: &Weights<'_, O>,
) -> Result<SparseOutput<O::Matrix>> {
    let states = Steps::none(plan.hidden);
    match sparse {
        SparseHead::Lexical(module) => {
            let modules = [HeadModule::Dense(module.clone())];
            Ok(SparseOutput::Lexical(load_modules(&modules, states, weights)?))
        }
        SparseHead::MaskedLm => {
            let head = plan.masked_lm.as_ref().ok_or_else(|| no_head("masked-language-model"))?;
            let steps = load_steps(&head.steps, states, weights)?;
            Ok(SparseOutput::MaskedLm { steps, decoder: Some(load_decoder(head, plan, weights)?) })
        }
    }
}

/// The matrix `[vocabulary, width]` of a masked-language-model head.
fn load_decoder<O: Operations>(head: &MaskedLm, plan: &Plan, weights: &Weights<'_, O>) -> Result<O::Matrix> {
    let checkpoint = weights.checkpoint;
    let weight = checkpoint.tensor(checkpoint.first_of(&head.decoder)?, &[plan.vocabulary, head.width])?;
    let bias = match head.bias.as_slice() {
        [] => None,
        names => Some(checkpoint.vector(checkpoint.first_of(names)?, plan.vocabulary)?),
    };
    weights.operations.matrix(vec![Part { weight, bias }], Precision::High)
}

/// Loads the checkpoint's steps after the steps `before`.
fn load_steps<O: Operations>(
    plans: &[StepPlan],
    before: Steps<O::Matrix>,
    weights: &Weights<'_, O>,
) -> Result<Steps<O::Matrix>> {
    let mut steps = before;
    for step in plans {
        steps.push(match step {
            StepPlan::Dense(matrix, activation) => Step::Dense {
                // As exact as the last layer's result. It is computed only once per text.
                matrix: weights.matrix(matrix, Precision::High)?,
                outputs: matrix.outputs(),
                activation: *activation,
            },
            StepPlan::Norm(norm) => {
                let (weight, bias) = weights.norm_values(norm)?;
                let bias = bias.unwrap_or_else(|| vec![0.0; norm.size]);
                Step::Norm { is_centred: norm.kind == NormKind::Layer, weight, bias, epsilon: norm.epsilon }
            }
        });
    }
    Ok(steps)
}

/// Loads the files of modules after the steps `before`.
fn load_modules<O: Operations>(
    modules: &[HeadModule],
    before: Steps<O::Matrix>,
    weights: &Weights<'_, O>,
) -> Result<Steps<O::Matrix>> {
    let mut steps = before;
    steps.load_modules(modules, |HostMatrix { weight, inputs, bias }| {
        let weight = Weight::from_values(&weight, inputs);
        weights.operations.matrix(vec![Part { weight, bias }], Precision::High)
    })?;
    Ok(steps)
}

fn no_head(kind: &str) -> BackendError {
    BackendError::Load(format!("this architecture has no {kind} head that this server knows"))
}

/// The rows of the output embedding that give the logits of these tokens.
fn output_rows(tokens: &[u32], checkpoint: &Checkpoint, plan: &Plan) -> Result<Vec<Vec<f32>>> {
    let Plan { vocabulary, hidden, output_embedding, .. } = plan;
    let mut rows = Vec::with_capacity(tokens.len());
    for &id in tokens {
        let row = id as usize;
        if row >= *vocabulary {
            return Err(BackendError::Load(format!(
                "answer token {id} is outside the vocabulary of {vocabulary} in config.json"
            )));
        }
        // Reads only this row of a table that may have gigabytes.
        let read = |table: &str| checkpoint.tensor_rows(table, &[*vocabulary, *hidden], row..row + 1);
        let values = read(output_embedding)?.row(0);
        if *output_embedding != LM_HEAD && checkpoint.has(LM_HEAD) && read(LM_HEAD)?.row(0) != values {
            return Err(BackendError::Load(format!(
                "config.json says that the embedding is also the head (`tie_word_embeddings`), but the checkpoint has \
                 another `{LM_HEAD}`: set it to false, or remove the tensor"
            )));
        }
        rows.push(values);
    }
    Ok(rows)
}

/// A class for each of a decider's labels.
fn load_labels(tokens: &[u32], checkpoint: &Checkpoint, plan: &Plan) -> Result<Classes> {
    let vectors = output_rows(tokens, checkpoint, plan)?;
    if vectors.iter().all(|row| *row == vectors[0]) {
        return Err(BackendError::Load(
            "the output embedding does not tell the labels apart: every answer would be the same; the \
             checkpoint's head is missing or empty: download it again"
                .to_owned(),
        ));
    }
    let bias = vec![0.0; vectors.len()];
    Ok(Classes { vectors, bias, divisor: 1.0, bound: plan.logit_bound, answers: None })
}

/// The answers' rows of the output embedding, or their weighted sum where the raw score is one.
fn load_answers(answers: &AnswerTokens, checkpoint: &Checkpoint, plan: &Plan) -> Result<Classes> {
    let hidden = plan.hidden;
    let tokens: Vec<u32> = answers.tokens.iter().map(|answer| answer.id).collect();
    let rows = output_rows(&tokens, checkpoint, plan)?;
    let (vectors, answers, is_constant) = match answers.rule {
        // The sum of bounded logits is not the bounded sum.
        AnswerRule::WeightedLogits if plan.logit_bound.is_none() => {
            let mut sum = vec![0.0_f32; hidden];
            for (row, AnswerToken { weight, .. }) in rows.iter().zip(&answers.tokens) {
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            }
            let is_constant = sum.iter().all(|&value| value == 0.0);
            (vec![sum], None, is_constant)
        }
        AnswerRule::WeightedLogits | AnswerRule::ExpectedWeight => {
            let is_constant = rows.iter().all(|row| *row == rows[0]);
            (rows, Some(answers.clone()), is_constant)
        }
    };
    if is_constant {
        let (apart, score) = match &answers {
            None => ("the two answers", "0.5"),
            Some(_) => ("the answers", "the same"),
        };
        return Err(BackendError::Load(format!(
            "the output embedding does not tell {apart} apart: every score would be {score}; the \
             checkpoint's head is missing or empty: download it again"
        )));
    }
    let bias = vec![0.0; vectors.len()];
    Ok(Classes { vectors, bias, divisor: 1.0, bound: plan.logit_bound, answers })
}

/// The classes of a classification head.
fn load_classes(head: &Classification, labels: usize, checkpoint: &Checkpoint) -> Result<Classes> {
    let Classification { logits, logits_bias, width, divisor, .. } = head;
    let name = format!("{logits}.weight");
    let weight = checkpoint.tensor(&name, &[labels, *width])?;
    let vectors: Vec<Vec<f32>> = (0..labels).map(|label| weight.row(label)).collect();
    if vectors.iter().flatten().all(|&value| value == 0.0) {
        return Err(BackendError::Load(format!(
            "the classification head `{name}` is all zeros: every text would get the same scores; download \
             the checkpoint again"
        )));
    }
    let bias = logits_bias.then(|| checkpoint.vector(&format!("{logits}.bias"), labels)).transpose()?;
    let bias = bias.unwrap_or_else(|| vec![0.0; labels]);
    Ok(Classes { vectors, bias, divisor: *divisor, bound: None, answers: None })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{cpu::CpuOperations, kernels::InstructionSet, plan::NormPlan};
    use safetensors::{Dtype, tensor::TensorView};
    use text_embeddings_backend_core::DType;

    #[test]
    fn a_norm_of_a_head_has_its_weights_in_order_and_plus_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = |values: [f32; 4]| values.map(f32::to_le_bytes).concat();
        let (weight, bias) = (bytes([1.0, 2.0, 3.0, 4.0]), bytes([10.0, 20.0, 30.0, 40.0]));
        let view = |values| TensorView::new(Dtype::F32, vec![4], values).unwrap();
        let stored = [("norm.weight", view(&weight)), ("norm.bias", view(&bias))];
        safetensors::serialize_to_file(stored, None, file.path()).unwrap();
        let checkpoint = Checkpoint::open(&[file.path().into()]).unwrap();
        let mut operations = CpuOperations::start(1, InstructionSet::best(), DType::Float32).unwrap();
        let hidden = operations.tensor(&[0.0; 4], 4).unwrap();
        for (add_one, order, expected) in [
            (false, vec![], [11.0, 22.0, 33.0, 44.0]),
            (true, vec![], [12.0, 23.0, 34.0, 45.0]),
            (true, vec![2..4, 0..2], [34.0, 45.0, 12.0, 23.0]),
        ] {
            let norm = NormPlan { bias: true, add_one, order, ..NormPlan::rms("norm", 4, 0.0) };
            let weights = Weights { checkpoint: &checkpoint, operations: &mut operations };
            let steps = load_steps(&[StepPlan::Norm(norm)], Steps::none(4), &weights).unwrap();
            let mut device =
                DeviceStates { operations: &mut operations, hidden: &hidden, rows: &[0], width: 4 };
            assert_eq!(steps.run(&mut device, vec![1.0; 4]).unwrap(), expected, "{add_one}");
        }
    }
}
