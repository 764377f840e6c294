//! From arguments to a service that is ready: files, kind, configuration, encoder, weights, self-check,
//! engine.
//!
//! Input: [`Args`]. Output: [`Started`]. What must hold: a cause that would make every answer wrong, or all
//! answers the same, is found here. It ends the start with a sentence that names the file or flag.

pub(crate) mod backend;
mod check;
mod memory;
mod parts;
mod prompts;
mod python;
pub(crate) mod reranker;
mod suggestion;

use std::{fmt, num::NonZeroUsize, time::Instant};

use anyhow::Context;
use serde_json::Value;
use text_embeddings_backend::{BackendKind, Head, LoadOptions, Loaded, ModelType};
use text_embeddings_backend_core::{BackendError, DType, Description, amount};
use text_embeddings_core::{
    files::{self, DEMO_MODEL_ID, HubOptions, KindFlags, ModelFacts, ModelFolder, ModelSource},
    infer::{Engine, EngineLimits},
    service::{RerankScoring, ServedModel, Service, ServiceConfig},
    tokenization::{Encoder, Tokenization, load_tokenizer},
};
use tokenizers::Tokenizer;

use self::parts::Parts;
use crate::{
    args::{Args, DEFAULT_MODEL_ID, HubArgs},
    config::{Config, ModelLimits},
    control_groups::Cores,
    features::flash_attention,
    info::{Info, ModelDetails, RerankerDetails},
    secret::Secret,
};

/// The result of the start.
pub(crate) struct Started {
    /// The engine with the model, which answers requests.
    pub(crate) service: Service,
    /// The answer of `GET /info`.
    pub(crate) info: Info,
    /// The device that computes: `cpu`, `cuda` or `metal`.
    pub(crate) compute_type: &'static str,
    /// Model, arithmetic, device and memory in a few words, for the log.
    pub(crate) summary: String,
}

/// Loads the model that `args` names, checks it and starts the engine.
///
/// # Errors
///
/// Whatever keeps the model from being served.
pub(crate) async fn start(args: &Args) -> anyhow::Result<Started> {
    backend::check(args)?;
    let mut steps = StepTimes::start();
    let mut source = model_source(&args.model_id, &args.model.hub);
    source.reader.dense_path = args.dense_path.clone().filter(|path| !path.is_empty());
    let folder = load(&source, Choices::of(args)).await.map_err(|error| named(error, &args.model_id))?;
    steps.done("files");
    let (config, reason) = resolve(args, &folder)?;
    tracing::info!("Served as {}: {reason}", config.model_type);
    tracing::info!("{}", config.longest_input);
    if let Some(quota) = Cores::read_limits().quota {
        let threads = amount(config.threads, "compute thread");
        tracing::info!("This container may use {quota:.2} CPUs at a time: {threads}");
    }
    for notice in &config.notices {
        tracing::warn!("{notice}");
    }
    let Parts { encoder, head, mut model, default_instruction, score_activation, reranker } =
        parts::parts(&config, &folder)?;
    steps.done("tokenizer");
    let available = memory::Available::read();
    if let Some(available) = available {
        available.check_weights(memory::weights(&folder), config.dtype, config.backend)?;
    }
    let mut loaded = load_weights(args, &config, &folder, &encoder, head)?;
    steps.done("weights");
    model.dimensions = check::model(loaded.backend.as_mut(), &encoder, config.model_type, &model)?;
    steps.done("check");
    let weights = backend::weight_files(&folder);
    tracing::info!("Loaded in {steps}: {}", loaded_model(&config, &loaded, &weights));
    let memory = memory::planned(available, args, &config, &loaded)?;
    log_answers(&config, &model, score_activation.as_deref(), reranker.as_ref());
    let held = memory.map_or_else(String::new, |plan| format!(", {} loaded", memory::megabytes(plan.loaded)));
    let summary = format!("{} in {} on {}{held}", config.model_id, loaded.dtype, computer(&config, &loaded));
    let details = ModelDetails {
        sha: folder.revision_sha.clone(),
        // A client that reads `float16` off TEI reads it here too, whatever a CPU computes in instead.
        dtype: config.dtype.filter(|dtype| *dtype == DType::Float16).unwrap_or(loaded.dtype).to_string(),
        arithmetic: loaded.dtype.to_string(),
        backend: loaded.kind.as_str(),
        weights,
        instruction_set: loaded.instruction_set,
        prefix_cache_bytes: loaded.prefix_cache_bytes,
        labels: model.labels.clone(),
        default_instruction,
        score_activation,
        reranker,
    };
    let service = Service::new(
        Tokenization::start(encoder, config.tokenization_workers)?,
        Engine::start(loaded.backend, engine_limits(&config))?,
        ServiceConfig {
            model_type: config.model_type,
            model,
            max_rerank_texts: config.max_rerank_texts,
            max_client_batch_size: config.max_client_batch_size,
            auto_truncate: config.auto_truncate,
            queue_timeout: config.queue_timeout,
        },
    );
    Ok(Started { service, info: Info::new(config, details), compute_type: loaded.device, summary })
}

fn engine_limits(config: &Config) -> EngineLimits {
    EngineLimits {
        max_batch_tokens: config.max_batch_tokens,
        max_batch_requests: config.max_batch_requests,
        max_concurrent_requests: config.max_concurrent_requests,
        max_queue_tokens: config.max_queue_tokens,
        device_timeout: config.device_timeout,
    }
}

/// The loaded model in words: kind, arithmetic, backend, weight files, device and prefix cache.
fn loaded_model(config: &Config, loaded: &Loaded, weights: &str) -> String {
    format!(
        "{}, {}, computed in {} by {}{} from {weights}, on {}; prefix cache of at most {} MB",
        config.model_id,
        config.model_type,
        loaded.dtype,
        loaded.kind,
        loaded.library.as_deref().map(|library| format!(" ({library})")).unwrap_or_default(),
        computer(config, loaded),
        loaded.prefix_cache_bytes >> 20
    )
}

/// The device that computes, for a CPU with its threads and instructions.
fn computer(config: &Config, loaded: &Loaded) -> String {
    let thread = if config.pin_threads { "pinned thread" } else { "thread" };
    let threads = amount(config.threads, thread);
    match &loaded.instruction_set {
        Some(set) => format!("{}, {threads} with {set}", loaded.device),
        None if loaded.device == "cpu" => format!("cpu, {threads}"),
        None => loaded.device.to_owned(),
    }
}

/// Loads the weights with the backend of `--backend`.
fn load_weights(
    args: &Args,
    config: &Config,
    folder: &ModelFolder,
    encoder: &Encoder,
    head: Head,
) -> anyhow::Result<Loaded> {
    let options = LoadOptions {
        backend: config.backend,
        folder: folder.root.clone(),
        config: Choices::of(args).applied(&folder.config.raw),
        weights: folder.weights.clone(),
        max_input_length: config.max_input_length,
        head,
        dtype: config.dtype,
        threads: config.threads,
        pin_threads: config.pin_threads,
        instruction_set: config.instruction_set.map(|set| set.to_string()),
        prefix_cache_bytes: config.prefix_cache_bytes,
        flash_attention: flash_attention(),
        device_timeout: config.device_timeout,
    };
    Ok(match python::options(args, config, folder, encoder)? {
        Some(python) => text_embeddings_backend::load_python(&options, &python)?,
        None => text_embeddings_backend::load(&options)?,
    })
}

/// The error, and if the model is the default one, how to choose another: the user may not have meant this
/// model.
fn named(error: anyhow::Error, model_id: &str) -> anyhow::Error {
    if model_id != DEFAULT_MODEL_ID {
        return error;
    }
    anyhow::anyhow!(
        "{error:#}; `{DEFAULT_MODEL_ID}` is the default model: `--model-id` names another, and `--model-id \
         {DEMO_MODEL_ID}` one that needs no download"
    )
}

/// The time of each step of the start, for the log.
struct StepTimes {
    start: Instant,
    /// The name of each step, and when it ended.
    done: Vec<(&'static str, Instant)>,
}

impl StepTimes {
    fn start() -> Self {
        Self { start: Instant::now(), done: Vec::new() }
    }

    fn done(&mut self, step: &'static str) {
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

/// Fetches and reads a model. A model that the backend does not serve, or not with these choices, is refused
/// before its weights are fetched.
pub(crate) async fn load(source: &ModelSource, choices: Choices) -> anyhow::Result<ModelFolder> {
    let options = HubOptions::from_environment();
    let backend = source.reader.backend;
    let describe = move |config: &Value| choices.describe(config, backend);
    let loaded = files::load(source, &options, &describe).await.map_err(backend::with_advice);
    loaded.map_err(|error| match suggestion::hub_id(&source.model_id) {
        Some(meant) => anyhow::anyhow!("{error:#}; did you mean `{meant}`?"),
        None => error,
    })
}

/// The flags that choose among the weights of a model. Each sets a field of `config.json`, where the backend
/// reads it: the flag with its value, the field, and the field's value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Choices {
    fields: Vec<(String, &'static str, Value)>,
    /// The flags that decide the kind of the model; absent where no flag can.
    kind: Option<KindFlags>,
}

impl Choices {
    fn of(args: &Args) -> Self {
        let task = args.lora_task.as_deref().filter(|task| !task.is_empty());
        let task =
            task.map(|task| (format!("--lora-task {task}"), text_embeddings_backend::LORA_TASK, task.into()));
        let layers = args.model.cutoff_layers.map(NonZeroUsize::get);
        let layers = layers.map(|layers| {
            (format!("--cutoff-layers {layers}"), text_embeddings_backend::CUTOFF_LAYERS, layers.into())
        });
        Self { fields: task.into_iter().chain(layers).collect(), kind: Some(kind_flags(args)) }
    }

    /// The backend's description of `config.json` with the choices. If only a choice is wrong, the error
    /// names its flag.
    fn describe(&self, config: &Value, backend: BackendKind) -> Result<Description, BackendError> {
        let mut config = config.clone();
        let mut described = text_embeddings_backend::describe(&config, backend)?;
        if let Some(flags) = &self.kind {
            files::check_head(&config, flags).map_err(|error| BackendError::Load(error.to_string()))?;
        }
        for (flag, field, value) in &self.fields {
            config[*field] = value.clone();
            described = text_embeddings_backend::describe(&config, backend).map_err(|error| match error {
                BackendError::Load(reason) => BackendError::Load(format!("`{flag}`: {reason}")),
                other => other,
            })?;
        }
        Ok(described)
    }

    /// `config.json` with the choices.
    fn applied(&self, config: &Value) -> Value {
        let mut config = config.clone();
        for (_, field, value) in &self.fields {
            config[*field] = value.clone();
        }
        config
    }
}

/// The model of this name, and where it is fetched from.
pub(crate) fn model_source(model_id: &str, hub: &HubArgs) -> ModelSource {
    ModelSource {
        model_id: model_id.to_owned(),
        revision: hub.revision.clone(),
        token: hub.token().map(Secret::expose).map(str::to_owned),
        cache_dir: hub.huggingface_hub_cache.clone(),
        reader: backend::reader(hub),
    }
}

/// The flags that decide the kind of the model.
fn kind_flags(args: &Args) -> KindFlags {
    KindFlags { model_type: args.model.model_type, pooling: args.pooling }
}

/// The configuration of the model, and the reason why it is of its kind.
pub(crate) fn resolve(args: &Args, folder: &ModelFolder) -> anyhow::Result<(Config, String)> {
    let (model_type, reason) = files::detect(&ModelFacts::from(folder), &kind_flags(args))?;
    let limits = ModelLimits {
        model_type,
        max_seq_length: folder.max_seq_length,
        // sentence-transformers cuts inputs there.
        model_max_length: folder.model_max_length.filter(|_| args.model.hub.backend == BackendKind::Python),
        longest_input: folder.description.longest_input,
        recommended: reranker::limits(args, folder, model_type),
    };
    Ok((Config::resolve(args, &limits)?, reason))
}

/// The tokenizer of a model.
pub(crate) fn tokenizer(folder: &ModelFolder) -> anyhow::Result<Tokenizer> {
    load_tokenizer(folder.tokenizer.clone()).with_context(|| folder.tokenizer.path().display().to_string())
}

/// Logs the form of the answers, as far as it depends on the model.
fn log_answers(
    config: &Config,
    model: &ServedModel,
    score_activation: Option<&str>,
    reranker: Option<&RerankerDetails>,
) {
    match config.model_type {
        ModelType::Embedding(_) => {
            let names: Vec<&str> = model.prompts.named.keys().map(String::as_str).collect();
            tracing::info!(
                "Vectors have {}; prompts: {}; put before texts by default: {:?}",
                amount(model.dimensions, "value"),
                if names.is_empty() { "none".to_owned() } else { names.join(", ") },
                model.prompts.default
            );
        }
        ModelType::Classifier => tracing::info!("Labels: {}", model.labels.join(", ")),
        ModelType::Reranker | ModelType::ListwiseReranker => {
            if let RerankScoring::Logits { positive: Some(class) } = model.scoring {
                tracing::info!("Scores are those of the label `{}`", model.labels[class]);
            }
            let Some(reranker) = reranker else { return };
            tracing::info!("{reranker}");
            let score = reranker.score.as_str();
            if let Some(activation) = score_activation.filter(|activation| *activation != score) {
                tracing::info!(
                    "sentence-transformers applies this model's own activation ({activation}) to the raw \
                     score instead"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::{fs::File, path::Path, time::Duration};

    /// The `config.json` of a random reference model.
    fn config_of(model: &str) -> Value {
        let models = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../integration_tests/reference/fixtures/architectures");
        serde_json::from_reader(File::open(models.join(model).join("config.json")).unwrap()).unwrap()
    }

    #[test]
    fn a_choice_among_the_weights_is_one_of_the_models_own_and_a_wrong_one_names_its_flag() {
        let choices = |flags: &[&str]| {
            let start = ["text-embeddings-router", "--model-id", "m"];
            Choices::of(&Args::try_from(start.iter().chain(flags)).unwrap())
        };
        let with_adapters = config_of("jina-v3");
        let known = with_adapters["lora_adaptations"][0].as_str().unwrap();
        for flags in [&[][..], &["--lora-task", ""], &["--lora-task", known]] {
            assert!(choices(flags).describe(&with_adapters, BackendKind::Candle).is_ok(), "{flags:?}");
        }
        for (model, flag, value, part) in [
            ("jina-v3", "--lora-task", "clustering", "choose one of "),
            ("bert-embedding", "--lora-task", "clustering", "no adapters for tasks"),
            ("minicpm-layerwise", "--cutoff-layers", "1", "after 2 to 6 layers"),
            ("minicpm-layerwise", "--cutoff-layers", "7", "after 2 to 6 layers"),
            ("bert-embedding", "--cutoff-layers", "2", "after its last layer only"),
        ] {
            let message = choices(&[flag, value])
                .describe(&config_of(model), BackendKind::Candle)
                .unwrap_err()
                .to_string();
            assert!(message.contains(&format!("`{flag} {value}`: ")) && message.contains(part), "{message}");
        }
        let layer_wise = config_of("minicpm-layerwise");
        for (flags, layers) in [(&[][..], 6), (&["--cutoff-layers", "2"], 2), (&["--cutoff-layers", "5"], 5)]
        {
            assert_eq!(
                choices(flags).describe(&layer_wise, BackendKind::Candle).unwrap().cutoff_layers,
                Some(layers)
            );
        }
        assert_eq!(choices(&[]).applied(&with_adapters), with_adapters);
        assert_eq!(
            choices(&["--lora-task", "x"]).applied(&with_adapters)[text_embeddings_backend::LORA_TASK],
            "x"
        );
    }

    #[test]
    fn each_step_is_shown_with_its_own_time() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let steps = StepTimes { start, done: vec![("files", after(120)), ("weights", after(2_400))] };
        assert_eq!(steps.to_string(), "2.4 s (files 0.1, weights 2.3)");
    }
}
