//! The files of a model: found, read but for the weights, and understood; and the time that each step of a
//! start takes.
//!
//! Input: [`Args`]. Output: a [`FoundModel`]. What must hold: a change of a file while it is read makes
//! another version.

use std::{fmt, path::Path, time::Instant};

use anyhow::Context;
use text_embeddings_backend::DEVICE;
use text_embeddings_backend_core::ModelFile;
use text_embeddings_core::{
    files::{DEMO_MODEL_ID, ModelFolder},
    model::{Model, ModelFlags},
    tokenization::{Encoder, load_tokenizer},
};
use tokenizers::Tokenizer;

use super::{flags, load, model_source};
use crate::{
    args::{Args, ChatTemplateSource, DEFAULT_MODEL_ID},
    file_versions::FileVersions,
};

/// The files of a model that `args` name, which were read but for the weights.
pub(crate) struct FoundModel {
    pub(super) flags: ModelFlags,
    pub(super) folder: ModelFolder,
    pub(crate) versions: FileVersions,
    pub(super) steps: StepTimes,
}

impl FoundModel {
    /// The model without its weights, and its encoder.
    pub(crate) fn read_texts(&self) -> anyhow::Result<(Model, Encoder)> {
        let tokenizer = tokenizer(&self.folder)?;
        let model = Model::resolve(&self.folder, &tokenizer, &self.flags)?;
        let encoder = model.encoder(&self.folder, tokenizer, &self.flags)?;
        Ok((model, encoder))
    }
}

/// Finds the files of the model that `args` name, and reads those that are not weights. Fails if there is no
/// model, or none that is served with these flags.
pub(crate) async fn find_files(args: &Args) -> anyhow::Result<FoundModel> {
    let flags = flags::model_flags(args)?;
    flags.check_backend(DEVICE)?;
    let mut steps = StepTimes::start();
    let mut source = model_source(&args.model_id, &args.model.hub);
    source.reader.dense_path.clone_from(&flags.dense_path);
    source.reader.lora_task.clone_from(&flags.weights.lora_task);
    // A change while they are read makes another version.
    let mut versions = FileVersions::read_model(Path::new(&args.model_id));
    let folder =
        load(&source, Some(&flags)).await.map_err(|error| with_default_model(error, &args.model_id))?;
    if folder.revision_sha.is_some() {
        versions = FileVersions::read_model(&folder.root);
    } else if source.revision != "main" {
        tracing::warn!(
            "`--revision {}` has no effect, because `{}` is not a model of the Hub: its files are read as they are",
            source.revision,
            args.model_id
        );
    }
    if let Some(ChatTemplateSource::File(path)) = &args.model.chat_template {
        versions = versions.with_others(FileVersions::read_files([path.as_path()]));
    }
    if let Some(path) = &args.model.calibration {
        versions = versions.with_others(FileVersions::read_files([path.as_path()]));
    }
    // An adapter's base is in another folder.
    versions = versions.with_others(weight_versions(&folder.weights));
    steps.done("files");
    Ok(FoundModel { flags, folder, versions, steps })
}

pub(super) fn weight_versions(weights: &[ModelFile]) -> FileVersions {
    FileVersions::read_files(weights.iter().map(ModelFile::path))
}

/// The error, and if the model is the default one, how to choose another: the user may not have meant this
/// model.
fn with_default_model(error: anyhow::Error, model_id: &str) -> anyhow::Error {
    if model_id != DEFAULT_MODEL_ID {
        return error;
    }
    anyhow::anyhow!(
        "{error:#}; `{DEFAULT_MODEL_ID}` is the default model: `--model-id` names another, and `--model-id \
         {DEMO_MODEL_ID}` one that needs no download"
    )
}

pub(crate) fn tokenizer(folder: &ModelFolder) -> anyhow::Result<Tokenizer> {
    load_tokenizer(folder.tokenizer.clone()).with_context(|| folder.tokenizer.path().display().to_string())
}

/// The time of each step of the start, for the log.
pub(super) struct StepTimes {
    start: Instant,
    /// The name of each step, and when it ended.
    done: Vec<(&'static str, Instant)>,
}

impl StepTimes {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), done: Vec::new() }
    }

    pub(super) fn done(&mut self, step: &'static str) {
        self.done.push((step, Instant::now()));
    }
}

impl fmt::Display for StepTimes {
    /// `2.4 s (files 0.1, weights 2.3)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.start;
        let mut steps = Vec::with_capacity(self.done.len());
        for &(step, done) in &self.done {
            steps.push(format!("{step} {:.1}", (done - last).as_secs_f32()));
            last = done;
        }
        write!(formatter, "{:.1} s ({})", (last - self.start).as_secs_f32(), steps.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_step_is_shown_with_its_own_time() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let steps = StepTimes { start, done: vec![("files", after(120)), ("weights", after(2_400))] };
        assert_eq!(steps.to_string(), "2.4 s (files 0.1, weights 2.3)");
    }
}
