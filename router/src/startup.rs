//! From arguments to a service that is ready: files, kind, configuration, prompt, weights, self-check, engine.
//!
//! Input: [`Args`]. Output: [`Started`]. What must hold: whatever would make every score wrong or the same is found
//! here, and keeps the server from starting with a sentence that names the file or flag.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context, ensure};
use text_embeddings_backend::{Backend, BatchBuilder, Head, LoadOptions, Loaded, Wanted};
use text_embeddings_core::{
    files::{self, HubOptions, KindFlags, ModelFacts, ModelFolder, ModelSource},
    infer::{Engine, EngineLimits},
    service::{Service, ServiceConfig},
    templates::{BuiltinTemplate, PromptTemplate, Qwen3RerankerTemplate},
    tokenization::{
        EncoderOptions, PromptEncoder, PromptText, Tokenization, Truncation, TruncationDirection,
        answer_tokens,
    },
};
use tokenizers::Tokenizer;

use crate::{
    args::{Args, ChatTemplate},
    config::{Config, ModelLimits},
    info::{Info, ModelDetails},
    secret::Secret,
};

/// Raw scores that are closer than this are the same: far above the rounding of one prompt scored twice, far below
/// the distance of any two prompts' scores by a model that reads them.
const SAME_SCORE: f32 = 1e-5;

/// What serving needs of start-up.
pub(crate) struct Started {
    /// What answers requests.
    pub(crate) service: Service,
    /// What `GET /info` says.
    pub(crate) info: Info,
    /// The device that computes: `cpu`, `cuda` or `metal`.
    pub(crate) compute_type: &'static str,
}

/// Loads the model that `args` names, checks it and starts the engine.
///
/// # Errors
///
/// Whatever keeps the model from being served.
pub(crate) async fn start(args: &Args) -> anyhow::Result<Started> {
    let start = Instant::now();
    let folder = files::load(&source(args), &HubOptions::from_environment()).await?;
    let config = resolve(args, &folder)?;
    for notice in &config.notices {
        tracing::warn!("{notice}");
    }
    let template = template(&config, &folder)?;
    let default_instruction = default_instruction(&config, &folder, &template)?;
    let details = ModelDetails {
        sha: folder.revision_sha.clone(),
        labels: vec!["yes".to_owned()],
        default_instruction: Some(default_instruction.clone()),
    };
    let encoder = encoder(&config, &folder, &template, default_instruction)?;
    let loaded = load_backend(&config, &folder, &encoder)?;
    tracing::info!(
        "Loaded a {} in {:.1} s: {}, {} on {}",
        config.model_type,
        start.elapsed().as_secs_f32(),
        config.model_id,
        config.dtype,
        loaded.description
    );
    let limits = EngineLimits {
        max_batch_tokens: config.max_batch_tokens,
        max_batch_requests: config.max_batch_requests,
        max_concurrent_requests: config.max_concurrent_requests,
    };
    let service = Service::new(
        Tokenization::start(encoder, config.tokenization_workers)?,
        Engine::start(loaded.backend, limits)?,
        ServiceConfig {
            model_type: config.model_type,
            max_rerank_texts: config.max_rerank_texts,
            max_client_batch_size: config.max_client_batch_size,
            auto_truncate: config.auto_truncate,
        },
    );
    Ok(Started { service, info: Info::new(config, details), compute_type: loaded.device })
}

fn source(args: &Args) -> ModelSource {
    let token = args.hf_token.as_ref().or(args.hf_api_token.as_ref());
    ModelSource {
        model_id: args.model_id.clone(),
        revision: args.revision.clone(),
        token: token.map(Secret::expose).map(str::to_owned),
        cache_dir: args.huggingface_hub_cache.clone(),
    }
}

/// The kind of the model, and the configuration that follows from it.
fn resolve(args: &Args, folder: &ModelFolder) -> anyhow::Result<Config> {
    let flags = KindFlags { model_type: args.model_type, pooling: args.pooling };
    let limits = ModelLimits {
        model_type: files::detect(&ModelFacts::from(folder), &flags)?,
        max_seq_length: folder.max_seq_length,
        max_position_embeddings: folder.config.max_position_embeddings,
    };
    Ok(Config::resolve(args, &limits)?)
}

/// The prompt: by flag, else the repository's if it has query and document roles, else the built-in one.
fn template(config: &Config, folder: &ModelFolder) -> anyhow::Result<PromptTemplate> {
    match (&config.chat_template, &folder.chat_template) {
        (Some(ChatTemplate::Builtin(name)), _) => Ok(PromptTemplate::builtin(*name)),
        (Some(ChatTemplate::File(path)), _) => template_file(path),
        (None, Some(source)) if files::template_has_roles(source) => {
            tracing::info!("The prompt is the repository's chat template");
            PromptTemplate::from_chat_template(source).context("the repository's chat template")
        }
        (None, _) => {
            tracing::info!(
                "The prompt is Qwen3-Reranker's, as the repository has no template for queries and documents"
            );
            Ok(PromptTemplate::builtin(BuiltinTemplate::Qwen3Reranker))
        }
    }
}

fn template_file(path: &Path) -> anyhow::Result<PromptTemplate> {
    let advice = || {
        format!(
            "`--chat-template {}`: give `builtin`, `qwen3-reranker-evaluation` or a Jinja file",
            path.display()
        )
    };
    let source = fs::read_to_string(path).with_context(advice)?;
    PromptTemplate::from_chat_template(&source).with_context(advice)
}

/// The instruction of requests without one: by flag, by the repository's default prompt, by the template.
fn default_instruction(
    config: &Config,
    folder: &ModelFolder,
    template: &PromptTemplate,
) -> anyhow::Result<String> {
    ensure!(
        config.default_instruction.is_none() || template.has_instruction(),
        "`--default-instruction` has no place in this model's chat template: leave it out, or give `--chat-template builtin`"
    );
    let named = folder.default_prompt_name.as_ref().and_then(|name| folder.prompts.get(name));
    let instruction = config.default_instruction.as_deref().or(named.map(String::as_str));
    let instruction = instruction.or(template.default_instruction());
    Ok(instruction.unwrap_or(Qwen3RerankerTemplate::DEFAULT_INSTRUCTION).to_owned())
}

fn encoder(
    config: &Config,
    folder: &ModelFolder,
    template: &PromptTemplate,
    default_instruction: String,
) -> anyhow::Result<PromptEncoder> {
    let path = &folder.tokenizer;
    let tokenizer = Tokenizer::from_file(path).map_err(|error| {
        anyhow::anyhow!("{} is not a tokenizer ({error}): download it again", path.display())
    })?;
    let options = EncoderOptions {
        default_instruction,
        max_input_length: config.max_input_length,
        parse_special_tokens: config.parse_special_tokens,
    };
    let encoder = PromptEncoder::new(tokenizer, template, options)?;
    encoder.self_check()?;
    Ok(encoder)
}

fn load_backend(config: &Config, folder: &ModelFolder, encoder: &PromptEncoder) -> anyhow::Result<Loaded> {
    let logit_score = folder.logit_score.as_ref().map(|ids| (ids.true_token_id, ids.false_token_id));
    let mut loaded = text_embeddings_backend::load(&LoadOptions {
        config: folder.config.raw.clone(),
        weights: folder.weights.clone(),
        head: Head::Answers(answer_tokens(encoder.tokenizer(), logit_score)?),
        threads: config.threads,
    })?;
    refuse_constant_scores(loaded.backend.as_mut(), encoder)?;
    Ok(loaded)
}

/// Two different pairs must get two different scores: a server that gives every text 0.7310586 is worse than none.
fn refuse_constant_scores(backend: &mut dyn Backend, encoder: &PromptEncoder) -> anyhow::Result<()> {
    let pairs = [
        ("What is the capital of China?", "The capital of China is Beijing."),
        ("How does gravity work?", "Bread is baked from flour, water, yeast and salt."),
    ];
    let mut batch = BatchBuilder::default();
    for (query, document) in pairs {
        let text = PromptText { instruction: None, query, document };
        let truncation = Truncation { truncate: true, direction: TruncationDirection::Right };
        batch.push(&encoder.encode_prompt(&text, truncation)?.ids, Wanted::Whole);
    }
    let predictions = backend.predict(&batch.build())?;
    let scores: Vec<f32> = predictions.texts().flat_map(|text| text.values).copied().collect();
    ensure!(
        scores.iter().all(|score| score.is_finite()),
        "two test pairs got the raw scores {scores:?}: the checkpoint's weights are broken; download it again"
    );
    ensure!(
        (scores[0] - scores[1]).abs() > SAME_SCORE,
        "two different test pairs got the same raw score, {}: the checkpoint's weights do not read the prompt; \
         download it again, or check that it is the re-ranker that `--model-id` means",
        scores[0]
    );
    Ok(())
}
