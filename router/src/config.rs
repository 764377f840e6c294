//! From flags, and what the model's files say, to the configuration in force: every default that depends on
//! something and every cross-check is here.
//!
//! Input: [`Args`] and, for [`Config`], the [`ModelLimits`]. Output: [`ServerConfig`], which needs no model and is
//! checked before anything is loaded, and [`Config`]. What must hold: pure functions of their input (cores aside); a
//! setting that is not served is an error that names it; whatever was changed for the user is said in
//! [`Config::notices`].

mod error;

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    thread,
    time::Duration,
};

use text_embeddings_backend::{BackendKind, InstructionSet, ON_CPU};
use text_embeddings_backend_core::{DType, ModelType};
use text_embeddings_core::{
    families::{Limits, ScoreRule},
    tokenization::{NamedAnswer, TextLimits},
};

pub(crate) use self::error::ConfigError;
use crate::{
    args::{Args, ChatTemplate, parse_hostname},
    telemetry::collector::{Collector, Endpoint},
};

/// TEI's, for devices that compute so many in a moment. Without `--max-batch-tokens`, no longer input is taken either
/// unless it is asked for.
const DEFAULT_MAX_BATCH_TOKENS: usize = 16_384;
/// The longest prompt of a listwise re-ranker on the CPU: some minutes of two threads at 0.6B parameters, during which nothing
/// else is computed. Its authors' own, 131,072, would take longer than a batch may (`--device-timeout`).
const DEFAULT_LIST_TOKENS: usize = 32_768;
/// On the CPU, the default is this for each thread that computes. All that arrives waits for the forward pass that runs:
/// at about 200 tokens a second and thread (0.6B parameters, bfloat16) these take 1.3 s, where 16,384 on two threads take
/// 40 s. Twice as many are up to 4 % faster, half as many up to 6 % slower (`docs/performance-details.md` has the readings).
const CPU_BATCH_TOKENS_PER_THREAD: usize = 256;
const DEFAULT_MAX_CLIENT_BATCH_SIZE: usize = 32;
const DEFAULT_MAX_RERANK_TEXTS: usize = 1000;
const DEFAULT_PROMETHEUS_PORT: u16 = 9000;

/// Where to listen and for whom. Needs no model.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// The addresses to try in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The same for gRPC beside HTTP; none if it is not wanted.
    pub(crate) grpc_addresses: Option<Vec<SocketAddr>>,
    /// Where traces are sent; none are where there is no collector.
    pub(crate) collector: Option<Collector>,
    /// The second port for metrics; none where the first port serves them already.
    pub(crate) prometheus: Option<PrometheusPort>,
    /// The most bytes of a body.
    pub(crate) payload_limit: usize,
    /// Whether all routes but probes want the key.
    pub(crate) key_everywhere: bool,
    /// How it ends.
    pub(crate) shutdown: Shutdown,
    /// What only HTTP is told.
    #[cfg(feature = "http")]
    pub(crate) http: crate::http::HttpSettings,
}

/// How the server ends once it is asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shutdown {
    /// How long it goes on serving, not ready any more.
    pub(crate) delay: Duration,
    /// How long requests in flight may then take.
    pub(crate) drain: Duration,
}

/// The second port for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrometheusPort {
    /// The port.
    pub(crate) port: u16,
    /// Whether the user asked for it: then it must be free.
    pub(crate) explicit: bool,
}

impl ServerConfig {
    /// Checks the flags that need no model, also those that are not supported.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first flag that cannot be served.
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        if args.api_key.as_ref().is_some_and(|key| key.expose().is_empty()) {
            return Err(ConfigError::EmptyKey);
        }
        if args.door.api_key_everywhere && args.api_key.is_none() && args.door.api_key_file.is_none() {
            return Err(ConfigError::NoKey);
        }
        let addresses = parse_hostname(&args.hostname).ok_or_else(|| ConfigError::Value {
            flag: "--hostname",
            value: args.hostname.clone(),
            problem: "is no address: give an IPv4 or IPv6 address, or `localhost`".to_owned(),
        })?;
        let at = |port| addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
        let listen = args.aip_http_port.unwrap_or(args.port);
        let collector = args.otlp_endpoint.as_ref().map(collector).transpose()?.flatten();
        let prometheus = PrometheusPort {
            port: args.prometheus_port.unwrap_or(DEFAULT_PROMETHEUS_PORT),
            explicit: args.prometheus_port.is_some(),
        };
        Ok(Self {
            addresses: at(listen),
            grpc_addresses: args.grpc_port.map(at),
            collector,
            prometheus: (!served_on(listen, prometheus.port)).then_some(prometheus),
            payload_limit: args.payload_limit.get(),
            key_everywhere: args.door.api_key_everywhere,
            shutdown: Shutdown {
                delay: Duration::from_secs(args.shutdown_delay.into()),
                drain: Duration::from_secs(args.drain_timeout.into()),
            },
            #[cfg(feature = "http")]
            http: crate::http::HttpSettings::resolve(args)?,
        })
    }
}

/// Whether the first port, which is `listen`, serves the metrics where `port` was meant to. Only HTTP does.
fn served_on(listen: u16, port: u16) -> bool {
    cfg!(feature = "http") && port == listen && listen != 0
}

fn collector(endpoint: &Endpoint) -> Result<Option<Collector>, ConfigError> {
    endpoint.resolve().map_err(|problem| ConfigError::Value {
        flag: "--otlp-endpoint",
        value: endpoint.to_string(),
        problem: problem.to_owned(),
    })
}

/// What the model's files say about limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelLimits {
    /// The detected kind.
    pub(crate) model_type: ModelType,
    /// `max_seq_length` of `sentence_bert_config.json`.
    pub(crate) max_seq_length: Option<usize>,
    /// The tokens that the model's positions allow.
    pub(crate) longest_input: Option<usize>,
    /// What the family of a re-ranker recommends; absent where the positions decide.
    pub(crate) recommended: Option<Limits>,
}

/// How the model is served.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "switches that do not exclude each other")]
pub(crate) struct Config {
    /// The model, as the user named it.
    pub(crate) model_id: String,
    /// Its name in answers.
    pub(crate) served_model_name: String,
    /// Its kind.
    pub(crate) model_type: ModelType,
    /// The backend that computes.
    pub(crate) backend: BackendKind,
    /// The arithmetic; none stands for the backend's choice.
    pub(crate) dtype: Option<DType>,
    /// The CPU's vector instructions; none stands for the best.
    pub(crate) instruction_set: Option<InstructionSet>,
    /// The folder of the one dense module; none stands for those of modules.json.
    pub(crate) dense_path: Option<String>,
    /// The task whose adapter is added to the weights.
    pub(crate) lora_task: Option<String>,
    /// The layers of a layer-wise re-ranker to go through; none stands for its authors' choice.
    pub(crate) cutoff_layers: Option<usize>,
    /// What is put before embedded texts where a request names no prompt.
    pub(crate) default_prompt: Option<String>,
    /// The name of that prompt; with neither, it is the model's own default.
    pub(crate) default_prompt_name: Option<String>,
    /// The instruction of requests without one; none stands for the model's own.
    pub(crate) default_instruction: Option<String>,
    /// The prompt's source; none stands for the model's own template or the built-in one.
    pub(crate) chat_template: Option<ChatTemplate>,
    /// Whether control tokens in a client's text take effect.
    pub(crate) parse_special_tokens: bool,
    /// Whether a request's instruction is left out where the prompt has no place for one.
    pub(crate) ignore_instruction: bool,
    /// The token whose logit is a generative re-ranker's raw score; none stands for the files' or the family's.
    pub(crate) rerank_true_token: Option<NamedAnswer>,
    /// The token whose logit is taken from it.
    pub(crate) rerank_false_token: Option<NamedAnswer>,
    /// What scores are of raw ones; none stands for the family's rule.
    pub(crate) rerank_activation: Option<ScoreRule>,
    /// The longest input in tokens, prompt included.
    pub(crate) max_input_length: usize,
    /// The longest texts of a re-ranker's prompt.
    pub(crate) text_limits: TextLimits,
    /// The tokens of a forward pass; a longer input has one of its own.
    pub(crate) max_batch_tokens: usize,
    /// The texts of a forward pass.
    pub(crate) max_batch_requests: Option<usize>,
    /// The requests in flight.
    pub(crate) max_concurrent_requests: usize,
    /// Their tokens.
    pub(crate) max_queue_tokens: usize,
    /// How long a request waits before it is begun.
    pub(crate) queue_timeout: Option<Duration>,
    /// How long a batch takes before the device counts as hung.
    pub(crate) device_timeout: Option<Duration>,
    /// The inputs of a request, except for re-ranking.
    pub(crate) max_client_batch_size: usize,
    /// The texts of a re-rank request.
    pub(crate) max_rerank_texts: usize,
    /// Whether too long inputs are cut where a request does not say.
    pub(crate) auto_truncate: bool,
    /// Threads that tokenize.
    pub(crate) tokenization_workers: usize,
    /// Threads that compute.
    pub(crate) threads: usize,
    /// Whether each of them is kept on a CPU of its own.
    pub(crate) pin_threads: bool,
    /// The most bytes kept of prefixes.
    pub(crate) prefix_cache_bytes: usize,
    /// What was changed for the user, a sentence each; to be logged.
    pub(crate) notices: Vec<String>,
}

impl Config {
    /// Joins the flags with what the model's files say.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for flags that do not go with the kind of model, or limits that contradict each other.
    pub(crate) fn resolve(args: &Args, limits: &ModelLimits) -> Result<Self, ConfigError> {
        refuse_other_kinds(args, limits.model_type)?;
        let mut notices = Vec::new();
        if args.model.parse_special_tokens {
            notices.push(
                "control tokens in the texts of clients take effect (`--parse-special-tokens`): a document can speak in \
                 the template's name, and so decide its own score"
                    .to_owned(),
            );
        }
        if let Some(name) = &args.ignored_hostname {
            notices.push(format!(
                "the variable HOSTNAME holds a name ({name}), not an address: listening on 0.0.0.0"
            ));
        }
        let longest = longest_input(args, limits, &mut notices)?;
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let or = |given: Option<NonZeroUsize>, default| given.map_or(default, NonZeroUsize::get);
        let threads = or(args.model.threads, cores);
        let default_budget = default_budget(ON_CPU, threads, args.model.prefix_cache_bytes);
        let is_list = limits.recommended.is_some_and(|of| of.document.is_some());
        let (max_input_length, max_batch_tokens) =
            fit_into_batch(args, (longest, is_list), default_budget, &mut notices)?;
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
            max_input_length,
            text_limits: TextLimits {
                // Whoever says how long a prompt may be means all of it.
                texts: limits
                    .recommended
                    .and_then(|of| of.texts)
                    .filter(|_| args.model.max_input_length.is_none()),
                query: limits.recommended.and_then(|of| of.query),
                document: limits.recommended.and_then(|of| of.document),
            },
            max_batch_tokens,
            max_batch_requests: args.model.max_batch_requests.map(NonZeroUsize::get),
            max_concurrent_requests: args.max_concurrent_requests.get(),
            max_queue_tokens: args.max_queue_tokens.get(),
            queue_timeout: args.queue_timeout,
            device_timeout: NonZeroU32::new(args.device_timeout)
                .map(|seconds| Duration::from_secs(seconds.get().into())),
            max_client_batch_size: or(args.max_client_batch_size, DEFAULT_MAX_CLIENT_BATCH_SIZE),
            // Who limits a request's inputs the way TEI knows means re-ranking too.
            max_rerank_texts: or(
                args.max_rerank_texts.or(args.max_client_batch_size),
                DEFAULT_MAX_RERANK_TEXTS,
            ),
            auto_truncate: args.model.auto_truncate,
            tokenization_workers: or(args.model.tokenization_workers, cores.saturating_sub(1).clamp(1, 64)),
            threads,
            pin_threads: args.model.pin_threads,
            prefix_cache_bytes: args.model.prefix_cache_bytes,
            notices,
        })
    }
}

/// Flags that mean nothing for this kind of model. An empty value, as a chart may set a variable, is none.
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

fn not_empty(value: Option<&String>) -> Option<String> {
    value.filter(|value| !value.is_empty()).cloned()
}

/// The longest input by flag, files or kind of model; never more than the positions allow.
fn longest_input(args: &Args, limits: &ModelLimits, notices: &mut Vec<String>) -> Result<usize, ConfigError> {
    let positions = limits.longest_input.unwrap_or(usize::MAX);
    if let Some(asked) = args.model.max_input_length.map(NonZeroUsize::get) {
        return if asked <= positions {
            Ok(asked)
        } else {
            Err(ConfigError::BeyondPositions { asked, positions })
        };
    }
    let longest = match (limits.max_seq_length, limits.recommended) {
        (Some(length), _) => length,
        (None, Some(recommended)) => return Ok(recommended.prompt.min(positions)),
        (None, None) => positions,
    };
    if longest > positions {
        notices.push(format!(
            "max_seq_length {longest} is more than the {positions} tokens that the model's positions allow, which are the \
             longest input"
        ));
    }
    Ok(longest.min(positions))
}

/// The token budget where none is given. Without a prefix cache every batch computes the beginning that its texts share
/// anew, so that small batches would cost more than they give.
fn default_budget(on_cpu: bool, threads: usize, prefix_cache_bytes: usize) -> usize {
    if on_cpu && prefix_cache_bytes > 0 {
        threads.saturating_mul(CPU_BATCH_TOKENS_PER_THREAD).min(DEFAULT_MAX_BATCH_TOKENS)
    } else {
        DEFAULT_MAX_BATCH_TOKENS
    }
}

/// The longest input and the token budget. A budget that is given bounds the inputs, too, unless `--max-input-length`
/// does: what is longer than a batch and accepted is computed alone. The prompts of a listwise re-ranker (`is_list`) may be
/// longer, because how many documents one holds decides their scores.
fn fit_into_batch(
    args: &Args,
    (longest, is_list): (usize, bool),
    default_budget: usize,
    notices: &mut Vec<String>,
) -> Result<(usize, usize), ConfigError> {
    let explicit = args.model.max_batch_tokens.map(NonZeroUsize::get);
    let may_cut = args.model.auto_truncate;
    let most = match explicit {
        _ if args.model.max_input_length.is_some() => longest,
        Some(budget) if budget < longest && !may_cut => {
            return Err(ConfigError::BudgetTooSmall { budget, longest });
        }
        Some(budget) => budget,
        None if is_list && ON_CPU => DEFAULT_LIST_TOKENS,
        None if may_cut => DEFAULT_MAX_BATCH_TOKENS,
        None => longest,
    };
    if most < longest {
        notices.push(if is_list {
            format!(
                "documents of a request that need more than {most} tokens are read in several prompts, although the model takes \
                 {longest}: `--max-input-length` sets another length"
            )
        } else {
            format!(
                "inputs longer than `--max-batch-tokens` {most} are cut to it, although the model takes {longest} tokens"
            )
        });
    }
    Ok((longest.min(most), explicit.unwrap_or(default_budget)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use text_embeddings_backend_core::Pool;

    const QWEN: ModelLimits = ModelLimits {
        model_type: ModelType::ListwiseReranker,
        max_seq_length: None,
        longest_input: Some(40_960),
        recommended: Some(Limits::DEFAULT),
    };

    fn args(flags: &str) -> Args {
        let start = ["text-embeddings-router", "--model-id", "m"];
        Args::try_from(start.into_iter().chain(flags.split_whitespace())).unwrap()
    }

    fn resolve(flags: &str) -> Result<Config, ConfigError> {
        Config::resolve(&args(flags), &QWEN)
    }

    #[test]
    fn the_prompts_of_a_listwise_re_ranker_have_a_longest_length_of_their_own() {
        let recommended = Limits { prompt: 131_072, document: Some(2048), ..Limits::DEFAULT };
        let limits = ModelLimits { longest_input: Some(131_072), recommended: Some(recommended), ..QWEN };
        for (flags, longest, notices) in [
            ("", if ON_CPU { 32_768 } else { 16_384 }, 1),
            ("--max-input-length 131072", 131_072, 0),
            ("--max-input-length 999", 999, 0),
            ("--max-batch-tokens 4096", 4096, 1),
        ] {
            let config = Config::resolve(&args(flags), &limits).unwrap();
            assert_eq!((config.max_input_length, config.notices.len()), (longest, notices), "{flags}");
            assert_eq!(config.text_limits.document, Some(2048));
        }
    }

    #[test]
    fn the_longest_input_and_the_budget_fit_each_other() {
        // flags, max_seq_length, longest_input, (longest, budget), notices
        let table = [
            ("", None, Some(40_960), (8192, 512), 0),
            ("", None, Some(512), (512, 512), 0),
            ("", None, None, (8192, 512), 0),
            ("--prefix-cache-bytes 0", None, None, (8192, 16_384), 0),
            ("", Some(1000), Some(40_960), (1000, 512), 0),
            ("", Some(1000), Some(512), (512, 512), 1),
            ("", Some(30_000), Some(40_960), (16_384, 512), 1),
            ("--parse-special-tokens", None, Some(512), (512, 512), 1),
            ("--auto-truncate false", Some(30_000), Some(40_960), (30_000, 512), 0),
            ("--max-input-length 40960", None, Some(40_960), (40_960, 512), 0),
            ("--max-input-length 300", Some(1000), Some(512), (300, 512), 0),
            ("--max-input-length 20000 --auto-truncate false", None, Some(40_960), (20_000, 512), 0),
            ("--max-batch-tokens 4096", None, Some(40_960), (4096, 4096), 1),
            ("--max-batch-tokens 8192", None, Some(40_960), (8192, 8192), 0),
            ("--max-batch-tokens 16384", None, Some(40_960), (8192, 16_384), 0),
            ("--max-batch-tokens 4096 --max-input-length 30000", None, Some(40_960), (30_000, 4096), 0),
            (
                "--max-batch-tokens 99 --max-input-length 100 --auto-truncate false",
                None,
                Some(40_960),
                (100, 99),
                0,
            ),
            ("--max-batch-tokens 20000 --auto-truncate false", None, Some(40_960), (8192, 20_000), 0),
        ];
        for (flags, max_seq_length, longest_input, expected, notices) in table {
            let limits = ModelLimits { max_seq_length, longest_input, ..QWEN };
            let config = Config::resolve(&args(&format!("--threads 2 {flags}")), &limits).unwrap();
            assert_eq!((config.max_input_length, config.max_batch_tokens), expected, "{flags} {limits:?}");
            assert_eq!(config.notices.len(), notices, "{:?}", config.notices);
        }
    }

    #[test]
    fn a_cpu_has_a_budget_by_its_threads() {
        // on the CPU, threads, bytes of the prefix cache, tokens
        let table = [
            (true, 1, 1, 256),
            (true, 2, 1 << 28, 512),
            (true, 63, 1 << 28, 16_128),
            (true, 64, 1 << 28, 16_384),
            (true, 65, 1 << 28, 16_384),
            (true, usize::MAX, 1 << 28, 16_384),
            (true, 2, 0, 16_384),
            (false, 2, 1 << 28, 16_384),
            (false, 2, 0, 16_384),
        ];
        for (on_cpu, threads, prefix_cache_bytes, expected) in table {
            assert_eq!(default_budget(on_cpu, threads, prefix_cache_bytes), expected, "{on_cpu} {threads}");
        }
        // The number of cores is the number of threads.
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        assert_eq!(resolve("").unwrap().max_batch_tokens, default_budget(true, cores, 1));
    }

    #[test]
    fn contradicting_limits_are_refused() {
        let table = [
            ("--max-input-length 40961", ConfigError::BeyondPositions { asked: 40_961, positions: 40_960 }),
            (
                "--max-batch-tokens 4096 --auto-truncate false",
                ConfigError::BudgetTooSmall { budget: 4096, longest: 8192 },
            ),
        ];
        for (flags, expected) in table {
            assert_eq!(resolve(flags).unwrap_err(), expected, "{flags}");
        }
    }

    #[test]
    fn counts_have_the_contracts_defaults() {
        let config = resolve("").unwrap();
        assert_eq!(
            (config.max_concurrent_requests, config.max_batch_requests, config.max_client_batch_size),
            (512, None, 32)
        );
        assert_eq!((config.served_model_name.as_str(), config.dtype), ("m", None));
        assert!((1..=64).contains(&config.tokenization_workers) && config.threads > 0);
        let config = resolve("--tokenization-workers 99 --threads 3 --served-model-name n").unwrap();
        assert_eq!(
            (config.tokenization_workers, config.threads, config.served_model_name.as_str()),
            (99, 3, "n")
        );
    }

    #[test]
    fn the_port_of_vertex_ai_takes_the_place_of_the_servers() {
        for (flags, expected) in [("", 3000), ("--port 80", 80), ("--port 80 --aip-http-port 8080", 8080)] {
            assert_eq!(ServerConfig::resolve(&args(flags)).unwrap().addresses[0].port(), expected, "{flags}");
        }
    }

    #[test]
    fn the_limit_of_reranking_follows_teis_flag_where_that_is_given() {
        let table = [
            ("", 1000),
            ("--max-client-batch-size 16", 16),
            ("--max-client-batch-size 5000", 5000),
            ("--max-rerank-texts 7", 7),
            ("--max-client-batch-size 16 --max-rerank-texts 200", 200),
        ];
        for (flags, expected) in table {
            assert_eq!(resolve(flags).unwrap().max_rerank_texts, expected, "{flags}");
        }
    }

    #[test]
    fn flags_of_other_kinds_are_refused() {
        let (embedding, cls) = (ModelType::Embedding(Pool::LastToken), ModelType::Embedding(Pool::Cls));
        let table = [
            (ModelType::Embedding(Pool::Splade), "--default-prompt x", None),
            (cls, "--default-prompt x --dense-path y", None),
            (embedding, "--default-prompt-name x", None),
            (
                embedding,
                "--default-instruction x",
                Some("`--default-instruction` is for re-rankers, but `m`"),
            ),
            (embedding, "--chat-template builtin", Some("`--chat-template` is for re-rankers, but `m`")),
            (ModelType::Classifier, "--default-instruction x", Some("is served as classifier")),
            (ModelType::Classifier, "--default-prompt x", Some("`--default-prompt` is for embedding models")),
            (ModelType::Reranker, "--default-instruction x --chat-template builtin", None),
            (
                ModelType::Reranker,
                "--default-prompt-name x",
                Some("`--default-prompt-name` is for embedding"),
            ),
            (ModelType::ListwiseReranker, "--dense-path x", Some("`--dense-path` is for embedding models")),
            (ModelType::ListwiseReranker, "--dense-path= --default-prompt= --lora-task= ", None),
            (ModelType::Reranker, "--lora-task x", Some("`--lora-task` is for embedding models")),
            (cls, "--lora-task x", None),
            (embedding, "--default-instruction= --default-prompt-name= --dense-path=", None),
        ];
        for (model_type, flags, expected) in table {
            let result = Config::resolve(&args(flags), &ModelLimits { model_type, ..QWEN });
            let message = result.map_err(|error| error.to_string()).err();
            assert_eq!(message.is_some(), expected.is_some(), "{flags}: {message:?}");
            let message = message.unwrap_or_default();
            assert!(message.contains(expected.unwrap_or_default()), "{flags}: {message}");
        }
    }

    #[test]
    fn an_embedding_model_takes_what_its_positions_allow() {
        // max_seq_length, longest_input, flags, (longest, budget)
        let table = [
            (None, Some(32_768), "", (16_384, 512)),
            (None, Some(32_768), "--max-input-length 32768", (32_768, 512)),
            (Some(512), Some(32_768), "", (512, 512)),
            (None, Some(32_768), "--max-batch-tokens 8192", (8192, 8192)),
            (None, Some(512), "", (512, 512)),
            (None, Some(40_960), "--max-input-length 100", (100, 512)),
        ];
        for model_type in [ModelType::Embedding(Pool::Mean), ModelType::Classifier] {
            for (max_seq_length, longest_input, flags, expected) in table {
                let limits = ModelLimits { model_type, max_seq_length, longest_input, recommended: None };
                let config = Config::resolve(&args(&format!("--threads 2 {flags}")), &limits).unwrap();
                assert_eq!(
                    (config.max_input_length, config.max_batch_tokens),
                    expected,
                    "{flags} {limits:?}"
                );
            }
        }
        let reranker = ModelLimits { model_type: ModelType::Reranker, ..QWEN };
        assert_eq!(Config::resolve(&args(""), &reranker).unwrap().max_input_length, 8192);
        let encoder = ModelLimits { recommended: None, longest_input: Some(9000), ..reranker };
        assert_eq!(Config::resolve(&args(""), &encoder).unwrap().max_input_length, 9000);
    }

    #[test]
    fn what_is_not_served_is_named() {
        let table = [
            (
                "--otlp-endpoint https://me:s3cret@a:4317",
                "`--otlp-endpoint https://<redacted>@a:4317` asks for encryption, which is not supported: give the \
                 `http://` address of a collector nearby",
            ),
            (
                "--api-key=",
                "`--api-key` is empty: give a key, or leave the flag and the variable API_KEY out",
            ),
            (
                "--hostname 300.1.1.1",
                "`--hostname 300.1.1.1` is no address: give an IPv4 or IPv6 address, or `localhost`",
            ),
            (
                "--cors-allow-origin example.org",
                "`--cors-allow-origin example.org` is not an origin: give scheme and host such as `https://example.org`, \
                 or `*`",
            ),
        ];
        for (flags, expected) in table {
            assert_eq!(ServerConfig::resolve(&args(flags)).unwrap_err().to_string(), expected, "{flags}");
        }
    }

    #[test]
    fn a_hostname_is_an_address_or_localhost() {
        let table = [
            ("", vec!["0.0.0.0:3000"]),
            ("--hostname ::", vec!["[::]:3000"]),
            ("--hostname [::1] -p 80", vec!["[::1]:80"]),
            ("--hostname localhost", vec!["127.0.0.1:3000", "[::1]:3000"]),
            ("--hostname 127.0.0.1 --dtype float32", vec!["127.0.0.1:3000"]),
        ];
        for (flags, expected) in table {
            let addresses = ServerConfig::resolve(&args(flags)).unwrap().addresses;
            assert_eq!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{flags}");
        }
    }

    #[test]
    fn grpc_has_the_same_addresses_as_http() {
        let resolve = |flags| ServerConfig::resolve(&args(flags)).unwrap().grpc_addresses;
        assert_eq!(resolve(""), None);
        let expected = ["127.0.0.1:50051", "[::1]:50051"].map(|address| address.parse().unwrap()).to_vec();
        assert_eq!(resolve("--hostname localhost --grpc-port 50051"), Some(expected));
    }

    #[test]
    fn the_metrics_port_is_opened_where_it_differs() {
        let table = [
            ("", Some((9000, false))),
            ("--prometheus-port 9000", Some((9000, true))),
            ("--port 9000", None),
            ("--port 8080 --prometheus-port 8080", None),
            ("--port 0 --prometheus-port 0", Some((0, true))),
            ("--aip-http-port 9000", None),
        ];
        for (flags, expected) in table {
            let expected = expected.map(|(port, explicit)| PrometheusPort { port, explicit });
            assert_eq!(ServerConfig::resolve(&args(flags)).unwrap().prometheus, expected, "{flags}");
        }
    }
}
