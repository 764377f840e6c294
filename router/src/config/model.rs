//! How the model is served: the flags joined with the limits in the model's files.
//!
//! Input: [`Args`] and [`ModelLimits`]. Output: [`Config`]. What must hold: a flag that has no meaning for
//! the kind of model is an error, except for an empty value.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use text_embeddings_backend::{BackendKind, InstructionSet};
use text_embeddings_backend_core::{DType, ModelType};
use text_embeddings_core::{
    families::{Limits, ScoreRule},
    tokenization::{NamedAnswer, TextLimits},
};

use super::{
    ConfigError,
    limits::{Fitted, fit},
};
use crate::{
    args::{Args, ChatTemplateSource},
    control_groups::Cores,
};

const DEFAULT_MAX_CLIENT_BATCH_SIZE: usize = 32;
const DEFAULT_MAX_RERANK_TEXTS: usize = 1000;

/// The limits in the model's files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelLimits {
    /// The detected kind.
    pub(crate) model_type: ModelType,
    /// `max_seq_length` of `sentence_bert_config.json`.
    pub(crate) max_seq_length: Option<usize>,
    /// `model_max_length` of `tokenizer_config.json`, for a backend that it bounds.
    pub(crate) model_max_length: Option<usize>,
    /// The tokens that the model's positions allow.
    pub(crate) longest_input: Option<usize>,
    /// The limits that a re-ranker's family recommends; absent if the positions decide.
    pub(crate) recommended: Option<Limits>,
}

/// How the model is served.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "switches that do not exclude each other")]
pub(crate) struct Config {
    /// The model, as the user named it.
    pub(crate) model_id: String,
    /// The model's name in answers.
    pub(crate) served_model_name: String,
    /// The kind of model.
    pub(crate) model_type: ModelType,
    /// The backend that computes.
    pub(crate) backend: BackendKind,
    /// The arithmetic; absent: the backend chooses.
    pub(crate) dtype: Option<DType>,
    /// The CPU's vector instructions; absent: the best.
    pub(crate) instruction_set: Option<InstructionSet>,
    /// The folder of the only dense module; absent: the dense modules of modules.json.
    pub(crate) dense_path: Option<String>,
    /// The task whose adapter is added to the weights.
    pub(crate) lora_task: Option<String>,
    /// The number of layers after which a layer-wise re-ranker scores; absent: its authors' choice.
    pub(crate) cutoff_layers: Option<usize>,
    /// The prompt before an embedded text whose request names none.
    pub(crate) default_prompt: Option<String>,
    /// The name of that prompt. If both are absent, it is the model's own default.
    pub(crate) default_prompt_name: Option<String>,
    /// The instruction of requests without one; absent: the model's own.
    pub(crate) default_instruction: Option<String>,
    /// The prompt's source; absent: the model's own template, else the built-in one of its family.
    pub(crate) chat_template: Option<ChatTemplateSource>,
    /// Whether control tokens in a client's text take effect.
    pub(crate) parse_special_tokens: bool,
    /// Whether a request's instruction is ignored if the prompt has no place for one.
    pub(crate) ignore_instruction: bool,
    /// The token whose logit is a generative re-ranker's raw score; absent: by the files, else by the family.
    pub(crate) rerank_true_token: Option<NamedAnswer>,
    /// The token whose logit is subtracted from it.
    pub(crate) rerank_false_token: Option<NamedAnswer>,
    /// How scores follow from raw scores; absent: the family's rule.
    pub(crate) rerank_activation: Option<ScoreRule>,
    /// The longest input in tokens, prompt included.
    pub(crate) max_input_length: usize,
    /// The longest texts of a re-ranker's prompt.
    pub(crate) text_limits: TextLimits,
    /// The most tokens of a forward pass; a longer input is computed alone.
    pub(crate) max_batch_tokens: usize,
    /// The most texts of a forward pass.
    pub(crate) max_batch_requests: Option<usize>,
    /// The most requests in flight.
    pub(crate) max_concurrent_requests: usize,
    /// The most tokens of all requests in flight.
    pub(crate) max_queue_tokens: usize,
    /// How long a request may wait in the queue.
    pub(crate) queue_timeout: Option<Duration>,
    /// How long a batch may take before the device counts as hung.
    pub(crate) device_timeout: Option<Duration>,
    /// The most inputs of a request, except for re-ranking.
    pub(crate) max_client_batch_size: usize,
    /// The most texts of a re-rank request.
    pub(crate) max_rerank_texts: usize,
    /// Whether inputs that are too long are cut if the request does not say.
    pub(crate) auto_truncate: bool,
    /// Threads that tokenize.
    pub(crate) tokenization_workers: usize,
    /// Threads that compute.
    pub(crate) threads: usize,
    /// Whether each computing thread is kept on a CPU of its own.
    pub(crate) pin_threads: bool,
    /// The most bytes of the prefix cache.
    pub(crate) prefix_cache_bytes: usize,
    /// The bound of the longest input, and the flag that changes it: a sentence for the log.
    pub(crate) longest_input: String,
    /// Consequences of flags and variables that the user may not have meant, a sentence each: warnings for
    /// the log.
    pub(crate) notices: Vec<String>,
}

impl Config {
    /// Joins the flags with the limits in the model's files.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for a flag that has no meaning for the kind of model, or limits that contradict each
    /// other.
    pub(crate) fn resolve(args: &Args, limits: &ModelLimits) -> Result<Self, ConfigError> {
        refuse_other_kinds(args, limits.model_type)?;
        let mut notices = Vec::new();
        if args.model.parse_special_tokens {
            notices.push(
                "control tokens in the texts of clients take effect (`--parse-special-tokens`): a document \
                 can write what only the template should, and so decide its own score"
                    .to_owned(),
            );
        }
        if let Some(name) = &args.ignored_hostname {
            notices.push(format!(
                "the variable HOSTNAME holds a name ({name}), not an address: listening on 0.0.0.0"
            ));
        }
        let cores = Cores::read_limits().threads;
        let or = |given: Option<NonZeroUsize>, default| given.map_or(default, NonZeroUsize::get);
        let threads = or(args.model.threads, cores);
        let Fitted { longest, budget, told, warnings } = fit(args, limits, threads)?;
        notices.extend(warnings);
        Ok(Self {
            model_id: args.model_id.clone(),
            served_model_name: args.served_model_name.clone().unwrap_or_else(|| args.model_id.clone()),
            model_type: limits.model_type,
            backend: args.model.hub.backend,
            dtype: args.model.dtype,
            instruction_set: args.model.instruction_set,
            dense_path: not_empty(args.dense_path.as_ref()),
            lora_task: not_empty(args.lora_task.as_ref()),
            cutoff_layers: args.model.cutoff_layers.map(NonZeroUsize::get),
            default_prompt: args.default_prompt.clone(),
            default_prompt_name: not_empty(args.default_prompt_name.as_ref()),
            default_instruction: args.model.default_instruction.clone(),
            chat_template: args.model.chat_template.clone(),
            parse_special_tokens: args.model.parse_special_tokens,
            ignore_instruction: args.model.ignore_instruction,
            rerank_true_token: args.model.rerank_true_token.clone(),
            rerank_false_token: args.model.rerank_false_token.clone(),
            rerank_activation: args.model.rerank_activation,
            max_input_length: longest,
            text_limits: TextLimits {
                // The flag bounds the whole prompt, so the family's bound on its texts does not apply.
                texts: limits
                    .recommended
                    .and_then(|of| of.texts)
                    .filter(|_| args.model.max_input_length.is_none()),
                query: limits.recommended.and_then(|of| of.query),
                document: limits.recommended.and_then(|of| of.document),
            },
            max_batch_tokens: budget,
            max_batch_requests: args.model.max_batch_requests.map(NonZeroUsize::get),
            max_concurrent_requests: args.max_concurrent_requests.get(),
            max_queue_tokens: args.max_queue_tokens.get(),
            queue_timeout: args.queue_timeout,
            device_timeout: NonZeroU32::new(args.device_timeout)
                .map(|seconds| Duration::from_secs(seconds.get().into())),
            max_client_batch_size: or(args.max_client_batch_size, DEFAULT_MAX_CLIENT_BATCH_SIZE),
            // TEI's flag bounds re-ranking, too.
            max_rerank_texts: or(
                args.max_rerank_texts.or(args.max_client_batch_size),
                DEFAULT_MAX_RERANK_TEXTS,
            ),
            auto_truncate: args.model.auto_truncate,
            tokenization_workers: or(args.model.tokenization_workers, cores.saturating_sub(1).clamp(1, 64)),
            threads,
            pin_threads: args.model.pin_threads,
            prefix_cache_bytes: args.model.prefix_cache_bytes,
            longest_input: told,
            notices,
        })
    }
}

/// Refuses flags that have no meaning for this kind of model. An empty value, which a chart may give to a
/// variable, counts as not given.
fn refuse_other_kinds(args: &Args, model_type: ModelType) -> Result<(), ConfigError> {
    let is_reranker = matches!(model_type, ModelType::Reranker | ModelType::ListwiseReranker);
    let is_embedding = matches!(model_type, ModelType::Embedding(_));
    let is_set = |value: &Option<String>| value.as_ref().is_some_and(|value| !value.is_empty());
    let is_generative = model_type == ModelType::ListwiseReranker;
    let (rerankers, embeddings) = ("re-rankers", "embedding models");
    let generative = "generative re-rankers";
    let misplaced = [
        ("--default-instruction", rerankers, !is_reranker && is_set(&args.model.default_instruction)),
        ("--chat-template", rerankers, !is_reranker && args.model.chat_template.is_some()),
        ("--rerank-activation", rerankers, !is_reranker && args.model.rerank_activation.is_some()),
        ("--cutoff-layers", rerankers, !is_reranker && args.model.cutoff_layers.is_some()),
        ("--rerank-true-token", generative, !is_generative && args.model.rerank_true_token.is_some()),
        ("--default-prompt", embeddings, !is_embedding && is_set(&args.default_prompt)),
        ("--default-prompt-name", embeddings, !is_embedding && is_set(&args.default_prompt_name)),
        ("--dense-path", embeddings, !is_embedding && is_set(&args.dense_path)),
        ("--lora-task", embeddings, !is_embedding && is_set(&args.lora_task)),
    ];
    match misplaced.into_iter().find(|(_, _, misplaced)| *misplaced) {
        Some((flag, of, _)) => {
            Err(ConfigError::OtherKind { flag, of, model_id: args.model_id.clone(), model_type })
        }
        None => Ok(()),
    }
}

/// The value of a flag; absent if it is empty.
fn not_empty(value: Option<&String>) -> Option<String> {
    value.filter(|value| !value.is_empty()).cloned()
}
