//! From arguments to a model that is ready: files, what the model is, encoder, weights, self-check, engine.
//!
//! Input: [`Args`] and the [`Machine`]. Output: [`Served`]. What must hold: a cause that would make every
//! answer wrong, or all answers the same, is found here. It ends the start with a sentence that names the
//! file or flag.

pub(crate) mod backend;
mod check;
pub(crate) mod flags;
mod found;
pub(crate) mod memory;
mod python;
mod suggestion;

use std::num::NonZeroU32;

use serde_json::Value;
use text_embeddings_backend::{Backend, BackendKind, LoadOptions, Loaded};
use text_embeddings_backend_core::{BackendError, Description, WeightChoices, amount};
use text_embeddings_core::{
    files::{self, HubOptions, ModelFolder, ModelSettings, ModelSource},
    infer::Engine,
    model::{MadeFor, Model, ModelFlags, ModelKind, PromptFlag, RerankScoring, check_head},
    service::Service,
    tokenization::{Encoder, Tokenization},
};

use found::weight_versions;
pub(crate) use found::{FoundModel, find_files, tokenizer};
use memory::MemoryPlan;

use crate::{
    args::{Args, HubArgs},
    available::megabytes,
    device_turn::DeviceTurns,
    features::flash_attention,
    info::{Computation, Info},
    machine::Machine,
    memory::held_bytes,
    models::Served,
    residency::Tenant,
};

/// Loads the model that `args` names, checks it and starts the engine.
pub(crate) async fn start(args: &Args, machine: &Machine) -> anyhow::Result<Served> {
    start_found(find_files(args).await?, args, machine)
}

/// Loads a model that was found, checks it and starts the engine. This takes seconds and blocks. It needs a
/// tokio runtime.
pub(crate) fn start_found(found: FoundModel, args: &Args, machine: &Machine) -> anyhow::Result<Served> {
    let (model, encoder) = found.read_texts()?;
    let FoundModel { flags, folder, versions, mut steps } = found;
    log_model(&model, &flags, machine);
    steps.done("tokenizer");
    if let Some(memory) = machine.memory {
        memory.check_weights(memory::weight_bytes(&folder), args.model.dtype, flags.backend)?;
    }
    let load = weights_loader(args, machine, &flags, &folder, &model, &encoder)?;
    memory::make_room(machine, args, &folder)?;
    let before = held_bytes();
    let mut loaded = load()?;
    let weights = held_bytes().zip(before).map_or(0, |(after, before)| after.saturating_sub(before));
    steps.done("weights");
    let (turns, weight) = (machine.turns.clone(), args.device_weight);
    loaded.backend = with_turns(loaded.backend, turns.as_ref(), weight);
    let dimensions =
        check::check_model(loaded.backend.as_mut(), &encoder, &model, folder.description.vocabulary)?;
    steps.done("check");
    let limits = flags::engine_limits(args, machine, &model, folder.description.token_work);
    let computation = describe_computation(&folder, &loaded);
    let prompt = check::describe_prompt(&encoder, &model)?;
    if let Some(calibration) = &flags.calibration {
        let (model_sha, arithmetic) = (folder.revision_sha.clone(), computation.arithmetic.clone());
        let served = MadeFor { model_id: args.model_id.clone(), model_sha, arithmetic, ..prompt.clone() };
        calibration.check_model(&model, &served)?;
    }
    let config = flags::service_config(args, model, dimensions, flags.calibration);
    tracing::info!(
        "Loaded in {steps}: {}, {}, computed in {} by {}{} from {}, on {}; prefix cache of at most {}",
        args.model_id,
        config.model.kind_name(),
        loaded.numbers.computed,
        loaded.kind,
        loaded.library.as_deref().map(|library| format!(" ({library})")).unwrap_or_default(),
        computation.weights,
        computer_words(machine, &loaded),
        megabytes(loaded.prefix_cache_bytes as u64)
    );
    let max_batch = limits.max_batch_tokens.max(config.model.limits.max_input_length);
    let memory = memory::plan_memory(machine, args, max_batch, limits.max_input_length, &loaded)?;
    log_answers(&config.model, dimensions);
    let summary = summary_words(args, machine, &loaded, memory, weights);
    let info = Info {
        model_id: args.model_id.clone(),
        served_model_name: served_name(args, &folder),
        model_sha: folder.revision_sha.clone(),
        config: config.clone(),
        limits,
        machine: machine.clone(),
        computation,
        cascade: None,
        prompt_hash: prompt.prompt_hash,
    };
    let metrics = machine.metrics_of(&info.served_model_name);
    let tenant = Tenant {
        name: info.served_model_name.clone(),
        weights,
        promised: memory.map_or(0, |plan| plan.batch + plan.prefixes),
        idle_limit: args.model.idle_unload.0,
        load: Box::new(move || load().map(|loaded| with_turns(loaded.backend, turns.as_ref(), weight))),
        metrics: metrics.clone(),
    };
    let (backend, resident) = machine.residency.take_in(loaded.backend, tenant);
    let service = Service::new(
        Tokenization::on_threads(encoder, machine.tokenizer_threads()?),
        Engine::start(backend, limits, metrics)?,
        config,
    )
    .with_similarity(loaded.similarity);
    let service = match &machine.scores {
        Some(cache) => service.with_score_cache(cache),
        None => service,
    };
    let (aliases, max_payload) = (args.aliases.clone(), memory.and_then(|plan| plan.payload));
    Ok(Served { service, info, aliases, resident, summary, versions, max_payload })
}

/// The backend, which waits for its turn if there are turns.
fn with_turns(
    backend: Box<dyn Backend>,
    turns: Option<&DeviceTurns>,
    weight: NonZeroU32,
) -> Box<dyn Backend> {
    match turns {
        Some(turns) => turns.share_device(backend, weight),
        None => backend,
    }
}

/// The model's name in answers: `--served-model-name`, else the model id. Of a local path it is the folder's
/// or file's own name, because clients have no use for the server's folders.
fn served_name(args: &Args, folder: &ModelFolder) -> String {
    match &args.served_model_name {
        Some(name) => name.clone(),
        None if folder.revision_sha.is_none() => folder.name(),
        None => args.model_id.clone(),
    }
}

/// The device that computes, for a CPU with its threads and instructions.
fn computer_words(machine: &Machine, loaded: &Loaded) -> String {
    let thread = if loaded.pinned_threads { "pinned thread" } else { "thread" };
    let threads = amount(machine.threads, thread);
    match &loaded.instruction_set {
        Some(set) => format!("{}, {threads} with {set}", loaded.device),
        None if loaded.device == "cpu" => format!("cpu, {threads}"),
        None => loaded.device.to_owned(),
    }
}

/// Model, arithmetic, device and memory in a few words. The memory is what the process holds; where it has
/// several models, the model's `weights`.
fn summary_words(
    args: &Args,
    machine: &Machine,
    loaded: &Loaded,
    memory: Option<MemoryPlan>,
    weights: u64,
) -> String {
    let several = machine.turns.is_some();
    let held = memory.map(|plan| if several { weights } else { plan.loaded });
    let held = held.map_or_else(String::new, |bytes| format!(", {} loaded", megabytes(bytes)));
    let model = match &args.served_model_name {
        Some(name) if several => format!("{name}: {}", args.model_id),
        _ => args.model_id.clone(),
    };
    let computer = computer_words(machine, loaded);
    format!("{model} in {} on {computer}{held}", loaded.numbers.computed)
}

/// How the loaded model computes.
fn describe_computation(folder: &ModelFolder, loaded: &Loaded) -> Computation {
    Computation {
        backend: loaded.kind.as_str(),
        device: loaded.device,
        dtype: loaded.numbers.reported.to_string(),
        arithmetic: loaded.numbers.computed.to_string(),
        weights: backend::weight_files(folder),
        instruction_set: loaded.instruction_set.clone(),
        pinned_threads: loaded.pinned_threads,
        prefix_cache_bytes: loaded.prefix_cache_bytes,
    }
}

/// How the weights are loaded, with the backend of `--backend`. The first time and each later time read the
/// same files, or fail.
fn weights_loader(
    args: &Args,
    machine: &Machine,
    flags: &ModelFlags,
    folder: &ModelFolder,
    model: &Model,
    encoder: &Encoder,
) -> anyhow::Result<impl Fn() -> Result<Loaded, BackendError> + Send + Sync + use<>> {
    let options = LoadOptions {
        backend: flags.backend,
        folder: folder.root.clone(),
        config: folder.config.raw.clone(),
        choices: flags.weights.clone(),
        weights: folder.weights.clone(),
        max_input_length: model.limits.max_input_length,
        head: model.head.clone(),
        dtype: args.model.dtype,
        threads: machine.threads,
        pin_threads: args.model.pin_threads,
        instruction_set: machine.instruction_set.map(|set| set.to_string()),
        prefix_cache_bytes: args.model.prefix_cache_bytes,
        flash_attention: flash_attention(),
        device_timeout: flags::device_timeout(args),
    };
    let python = python::options(args, model, folder, encoder)?;
    let versions = weight_versions(&options.weights);
    Ok(move || {
        if weight_versions(&options.weights) != versions {
            return Err(BackendError::Load(
                "its files have changed since it was first loaded: start the server again, or with \
                 `--models-file` send it SIGHUP"
                    .to_owned(),
            ));
        }
        match &python {
            Some(python) => text_embeddings_backend::load_python(&options, python),
            None => text_embeddings_backend::load(&options),
        }
    })
}

/// Fetches and reads a model. With `flags`, a model that is not served with them is refused before its
/// weights are fetched.
pub(crate) async fn load(source: &ModelSource, flags: Option<&ModelFlags>) -> anyhow::Result<ModelFolder> {
    let options = HubOptions::from_environment();
    let (backend, flags) = (source.reader.backend, flags.cloned());
    let describe = move |config: &Value| describe(config, backend, flags.as_ref());
    let loaded = files::load(source, &options, &describe).await.map_err(backend::with_advice);
    loaded.map_err(|error| suggestion::with_meant_id(error, &source.model_id))
}

fn describe(
    config: &Value,
    backend: BackendKind,
    flags: Option<&ModelFlags>,
) -> Result<Description, BackendError> {
    let Some(flags) = flags else {
        return text_embeddings_backend::describe(config, &WeightChoices::default(), backend);
    };
    let described = text_embeddings_backend::describe(config, &flags.weights, backend)?;
    check_head(config, flags.model_type).map_err(|error| BackendError::Load(error.to_string()))?;
    Ok(described)
}

/// Reads `config.json` of a model, and fetches nothing else.
pub(crate) async fn load_settings(source: &ModelSource) -> anyhow::Result<ModelSettings> {
    let found = files::load_settings(source, &HubOptions::from_environment()).await;
    found.map_err(|error| suggestion::with_meant_id(backend::with_advice(error), &source.model_id))
}

/// The model of this name, and where it is fetched from.
pub(crate) fn model_source(model_id: &str, hub: &HubArgs) -> ModelSource {
    ModelSource {
        model_id: model_id.to_owned(),
        revision: hub.revision.clone(),
        token: hub.token().cloned(),
        cache_dir: hub.huggingface_hub_cache.clone(),
        reader: backend::reader(hub),
    }
}

/// The model that these flags make of the files. The error is a [`text_embeddings_core::model::Refusal`], or
/// the tokenizer's error.
pub(crate) fn resolve_model(args: &Args, folder: &ModelFolder) -> anyhow::Result<Model> {
    Ok(Model::resolve(folder, &tokenizer(folder)?, &flags::model_flags(args)?)?)
}

/// Logs the kind of the model, and consequences of flags that the user may not have meant.
fn log_model(model: &Model, flags: &ModelFlags, machine: &Machine) {
    tracing::info!("Served as {}: {}", model.kind_name(), model.reason);
    tracing::info!("{}", model.limits.reason);
    if let Some(quota) = machine.cpu_quota {
        let threads = amount(machine.threads, "compute thread");
        tracing::info!("This container may use {quota:.2} CPUs at a time: {threads}");
    }
    if machine.threads > machine.cores {
        tracing::warn!(
            "`--threads {}` is more than the {} that this process may use: threads wait for each other, and \
             every answer takes longer",
            machine.threads,
            amount(machine.cores, "core")
        );
    }
    if flags.parse_special_tokens {
        tracing::warn!(
            "control tokens in the texts of clients take effect (`--parse-special-tokens`): a document can write \
             what only the template should, and so decide its own score"
        );
    }
    if let (Some(PromptFlag::File { path, .. }), ModelKind::Reranker(reranker)) =
        (&flags.chat_template, &model.kind)
        && let Some(family) = reranker.reading.family_with_other_end()
    {
        tracing::warn!(
            "the prompt of `--chat-template {}` is that of the family {name} with another end, which changes every \
             score: give `--chat-template {name}`, unless the model was trained with this end",
            path.display(),
            name = family.name
        );
    }
    for warning in &model.limits.warnings {
        tracing::warn!("{warning}");
    }
}

/// Logs the form of the answers, as far as it depends on the model.
fn log_answers(model: &Model, dimensions: usize) {
    match &model.kind {
        ModelKind::Embedder(embedder) => {
            let names: Vec<&str> = embedder.prompts.named.keys().map(String::as_str).collect();
            tracing::info!(
                "Vectors have {}; prompts: {}; put before texts by default: {:?}",
                amount(dimensions, "value"),
                if names.is_empty() { "none".to_owned() } else { names.join(", ") },
                embedder.prompts.default
            );
        }
        ModelKind::Classifier(labels) => tracing::info!("Labels: {}", labels.join(", ")),
        ModelKind::Reranker(reranker) => {
            if let RerankScoring::Logits { positive: Some(class) } = reranker.scoring {
                tracing::info!("Scores are those of the label `{}`", reranker.labels[class]);
            }
            tracing::info!("{reranker}");
        }
        ModelKind::Decider(decider) => tracing::info!("{decider}"),
    }
}
