//! From the flags and the model's files to the configuration in force: every default that depends on
//! something, and every check of one flag against another.
//!
//! Input: [`Args`] and, for [`Config`], the [`ModelLimits`]. Output: [`ServerConfig`], which needs no model
//! and is checked before anything is loaded, and [`Config`]. What must hold: pure functions of their input
//! (cores aside); a setting that is not served is an error that names it; [`Config::notices`] tells whatever
//! was changed for the user.

mod clients;
mod error;
mod limits;
mod model;

use std::{net::SocketAddr, time::Duration};

pub(crate) use self::{
    clients::{client_limits, descriptors},
    error::ConfigError,
    model::{Config, ModelLimits},
};
use crate::{
    args::{Args, parse_hostname},
    collector::{Collector, Endpoint},
};

/// TEI's default.
const DEFAULT_PROMETHEUS_PORT: u16 = 9000;

/// Where to listen, and for which clients. Needs no model.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// The addresses to try in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The same for gRPC in addition to HTTP; absent without `--grpc-port`.
    pub(crate) grpc_addresses: Option<Vec<SocketAddr>>,
    /// The collector of traces; absent if none are sent.
    pub(crate) collector: Option<Collector>,
    /// The second port for metrics; absent if it would be the first port, which serves them anyway.
    pub(crate) prometheus: Option<PrometheusPort>,
    /// The most bytes of a body.
    pub(crate) payload_limit: usize,
    /// Whether all routes except probes require the key.
    pub(crate) key_everywhere: bool,
    /// How the server ends.
    pub(crate) shutdown: Shutdown,
}

/// How the server ends after it is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shutdown {
    /// How long it still serves while it is not ready.
    pub(crate) delay: Duration,
    /// How long requests in flight may then take.
    pub(crate) drain: Duration,
}

/// The second port for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrometheusPort {
    /// The port.
    pub(crate) port: u16,
    /// Whether the user gave it: then it must be free.
    pub(crate) explicit: bool,
}

impl ServerConfig {
    /// Checks the flags that need no model, including those that are not supported.
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
            problem: "is not an address: give an IPv4 or IPv6 address, or `localhost`".to_owned(),
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
        })
    }
}

/// Whether the first port, `listen`, is also the `port` of the metrics and serves them. Only HTTP does.
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::limits::default_budget;
    use super::*;
    use crate::control_groups::Cores;
    use text_embeddings_backend::ON_CPU;
    use text_embeddings_backend_core::{ModelType, Pool};
    use text_embeddings_core::families::Limits;

    const QWEN: ModelLimits = ModelLimits {
        model_type: ModelType::ListwiseReranker,
        max_seq_length: None,
        model_max_length: None,
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
            ("", if ON_CPU { 32_768 } else { 16_384 }, 0),
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
            ("", Some(30_000), Some(40_960), (16_384, 512), 0),
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
    fn one_sentence_tells_what_bounds_the_longest_input() {
        let embedding =
            ModelLimits { model_type: ModelType::Embedding(Pool::Mean), recommended: None, ..QWEN };
        for (flags, max_seq_length, limits, expected) in [
            ("", None, QWEN, "8192 tokens (as recommended for this kind of re-ranker); longer ones are cut"),
            ("", None, embedding, "16384 tokens (the default bound, although the model takes 40960)"),
            ("", Some(512), embedding, "512 tokens (max_seq_length in the model's files)"),
            ("", Some(50_000), embedding, "16384 tokens (the default bound, although the model takes 40960)"),
            (
                "--auto-truncate false",
                None,
                embedding,
                "40960 tokens (all that the model's positions allow); longer ones \
                                                        are refused",
            ),
            ("--max-input-length 7", None, QWEN, "7 tokens (by `--max-input-length`); longer ones are cut"),
            (
                "--max-batch-tokens 99",
                None,
                embedding,
                "99 tokens (by `--max-batch-tokens`, although the model takes",
            ),
        ] {
            let config = Config::resolve(&args(flags), &ModelLimits { max_seq_length, ..limits }).unwrap();
            let told = &config.longest_input;
            assert!(told.starts_with(&format!("Longest input: {expected}")), "{flags}: {told}");
            let is_open = told.ends_with("; `--max-input-length` sets another length");
            assert_eq!(is_open, !flags.contains("--max-input-length"), "{told}");
            // Only a flag that was given is a reason to warn.
            let is_warned = config.notices.iter().any(|notice| notice.contains("--max-batch-tokens"));
            assert_eq!(is_warned, flags.contains("--max-batch-tokens"), "{:?}", config.notices);
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
        let cores = Cores::read_limits().threads;
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
                let limits = ModelLimits {
                    model_type,
                    max_seq_length,
                    model_max_length: None,
                    longest_input,
                    recommended: None,
                };
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
    fn a_tokenizer_s_longest_input_counts_where_no_file_names_another() {
        let limits = ModelLimits { model_type: ModelType::Embedding(Pool::Mean), recommended: None, ..QWEN };
        for (max_seq_length, model_max_length, longest_input, expected) in [
            (None, Some(256), Some(512), "256 tokens (model_max_length in tokenizer_config.json)"),
            (Some(300), Some(256), Some(512), "300 tokens (max_seq_length in the model's files)"),
            (None, Some(usize::MAX), Some(512), "512 tokens (all that the model's positions allow)"),
            (None, Some(256), None, "256 tokens (model_max_length in tokenizer_config.json)"),
        ] {
            let limits = ModelLimits { max_seq_length, model_max_length, longest_input, ..limits };
            let config = Config::resolve(&args(""), &limits).unwrap();
            assert!(config.longest_input.starts_with(&format!("Longest input: {expected}")), "{limits:?}");
            assert!(config.notices.is_empty(), "{:?}", config.notices);
        }
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
                "`--hostname 300.1.1.1` is not an address: give an IPv4 or IPv6 address, or `localhost`",
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
