//! The candle backend: model files in, a [`Backend`] out.
//!
//! `models` are written in the `operations`, which `cpu` computes with this crate's kernels and `tensors` with candle;
//! `load` reads checkpoints, `device` chooses.

mod attention;
mod cpu;
mod device;
mod kernels;
mod load;
mod models;
mod operations;
mod rope;
mod tensors;

use crate::{
    cpu::CpuOperations,
    device::Chosen,
    kernels::InstructionSet,
    load::Checkpoint,
    models::Model,
    operations::{Operations, Result},
    tensors::TensorOperations,
};
use std::path::PathBuf;
use text_embeddings_backend_core::{
    AnswerTokens, Backend, BackendError, Batch, BatchBuilder, Head, Predictions, Wanted,
};

/// What a model is loaded from, and how.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The content of `config.json`.
    pub config: serde_json::Value,
    /// The safetensors files.
    pub weights: Vec<PathBuf>,
    /// What becomes of the last hidden states, which the model is served for.
    pub head: Head,
    /// Compute threads on the CPU.
    pub threads: usize,
}

/// A model on a device.
struct CandleBackend<O: Operations, M> {
    operations: O,
    model: M,
}

impl<O: Operations, M: Model<O>> Backend for CandleBackend<O, M> {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions> {
        let model = &mut self.model;
        let scores = self.operations.enter(|operations| model.forward(operations, batch))?;
        Ok(Predictions::new(scores, 1))
    }
}

/// A loaded model and the words for where it computes.
pub struct Loaded {
    /// The model.
    pub backend: Box<dyn Backend>,
    /// `cpu`, `cuda` or `metal`: the `x-compute-type` of answers.
    pub device: &'static str,
    /// What start-up logs: threads and instruction set, or the device.
    pub description: String,
}

/// Loads a model and runs it once.
///
/// # Errors
///
/// [`BackendError::Load`] if a file, setting or weight is missing, broken or not supported, or if the model's scores
/// are not numbers.
pub fn load(options: &LoadOptions) -> Result<Loaded> {
    let Head::Answers(answers) = options.head else {
        return Err(BackendError::Load(
            "this kind of model is not served yet: `--model-type listwise-reranker` serves a folder as a generative \
             re-ranker, if that is what it is"
                .to_owned(),
        ));
    };
    match device::choose()? {
        Chosen::Cpu => {
            let set = InstructionSet::best();
            let description = format!("{} threads, {set}", options.threads);
            let backend = load_on(CpuOperations::start(options.threads, set)?, options, answers)?;
            Ok(Loaded { backend, device: "cpu", description })
        }
        Chosen::Candle(device) => {
            let name = if device.is_cuda() { "cuda" } else { "metal" };
            let backend = load_on(TensorOperations::new(device), options, answers)?;
            Ok(Loaded { backend, device: name, description: name.to_owned() })
        }
    }
}

fn load_on<O: Operations + 'static>(
    operations: O,
    options: &LoadOptions,
    answers: AnswerTokens,
) -> Result<Box<dyn Backend>> {
    let checkpoint = Checkpoint::open(&options.weights)?;
    let model = models::load(&options.config, checkpoint, answers, &operations)?;
    let mut backend = CandleBackend { operations, model };
    refuse_nan(&mut backend, options, answers)?;
    Ok(Box::new(backend))
}

/// Scores a first batch: broken weights show here, not in the first request.
fn refuse_nan(backend: &mut impl Backend, options: &LoadOptions, answers: AnswerTokens) -> Result<()> {
    let mut builder = BatchBuilder::default();
    builder.push(&[answers.true_id; 2], Wanted::Whole);
    let predictions = backend.predict(&builder.build())?;
    if predictions.texts().flat_map(|text| text.values).all(|score| score.is_finite()) {
        return Ok(());
    }
    let cause = Checkpoint::open(&options.weights)?.find_nan().map_or_else(
        || "the weights are finite, so they are too large for this arithmetic".to_owned(),
        |(path, name)| format!("tensor `{name}` in {} holds a NaN: download it again", path.display()),
    );
    Err(BackendError::Load(format!("the model's first score is not a number: {cause}")))
}

#[cfg(test)]
mod tests;
