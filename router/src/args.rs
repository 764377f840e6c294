//! The command line: every flag with its variable, default and help text, and nothing else.
//!
//! Input: the process's arguments and environment. Output: [`Args`], where a flag whose default depends on
//! the model or on other flags is still an `Option`. What must hold: every flag has a variable of the same
//! name in capitals; no secret appears in `Debug` or in the help; the meaning of flags together is decided in
//! `config`.
//!
//! `-h` shows the first paragraph of each doc comment, `--help` and `docs/cli.md` show all of it.

mod door;
mod environment;
mod given;
mod model;
pub(crate) mod models;
mod values;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::{
    ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser,
    builder::{BoolishValueParser, NonEmptyStringValueParser},
    parser::ValueSource,
};
use text_embeddings_backend_core::Pool;
use text_embeddings_core::secret::Secret;

use self::environment::set_aside_container_name;
use crate::collector::Endpoint;

pub(crate) use self::{
    door::DoorArgs,
    environment::{parse_hostname, set_aside_service_links},
    given::{Given, variables_of},
    model::{ChatTemplateSource, HubArgs, ModelArgs},
    models::CascadeArgs,
    values::{LoadTime, at_least_one, nonempty, port, seconds, whole},
};

/// The model that is served without `--model-id`, as in text-embeddings-inference.
pub(crate) const DEFAULT_MODEL_ID: &str = "BAAI/bge-large-en-v1.5";

/// Serves text embedding, re-ranking and classification models over HTTP and gRPC, as a replacement for
/// text-embeddings-inference.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(name = "text-embeddings-router", version = env!("ROUTER_VERSION"), next_help_heading = "Limits")]
#[expect(clippy::struct_excessive_bools, reason = "switches that do not exclude each other")]
pub(crate) struct Args {
    /// The model to serve: a Hub id, a local path, or `demo`; repeatable.
    ///
    /// A Hub id is such as `Qwen/Qwen3-Reranker-0.6B`. A path names a directory or a weight file
    /// (`.gguf`, `.safetensors`, `.bin`). `demo` is a tiny model that this binary carries, to try the server.
    /// Several models have the same flags; the variable separates them by commas.
    #[arg(long, env, default_value = DEFAULT_MODEL_ID, action = ArgAction::Append, help_heading = "Model")]
    pub(crate) model_id: String,

    /// A file with the models to serve, in TOML: a table for each, with the flags that are its own.
    ///
    /// `docs/models-file.md` has examples.
    #[arg(
        long,
        env,
        visible_alias = "models",
        conflicts_with = "model_id",
        value_name = "FILE",
        help_heading = "Model"
    )]
    pub(crate) models_file: Option<PathBuf>,

    /// When a model of a models file is loaded and checked: `at-start`, or at the `first-request` for it.
    ///
    /// One at least is loaded at the start. Until then, requests find the others by their names only.
    #[arg(
        long, env, default_value = "at-start", value_parser = values::load_time, value_name = "TIME",
        help_heading = "Model"
    )]
    pub(crate) load: LoadTime,

    /// How the model is fetched, prompted and computed.
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// How an embedding model pools: `cls`, `mean`, `splade` or `last-token` [default: by its files, else
    /// `cls` for a BERT-like model].
    #[arg(long, env, value_parser = values::pool, help_heading = "Model")]
    pub(crate) pooling: Option<Pool>,

    /// The folder of an embedding model's dense module, instead of the one that modules.json names.
    #[arg(long, env, help_heading = "Model")]
    pub(crate) dense_path: Option<String>,

    /// The task whose adapter is added to the weights [default: no adapter, or the model's own default].
    ///
    /// For models with adapters for tasks: jina-embeddings-v3 with tasks such as `retrieval.query`, and
    /// jina-embeddings-v5-text, whose default is `retrieval`.
    #[arg(long, env, help_heading = "Model")]
    pub(crate) lora_task: Option<String>,

    /// The model's name in OpenAI-style answers [default: the model id, or the name of its folder or file].
    #[arg(long, env, help_heading = "Model", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) served_model_name: Option<String>,

    /// The name of the prompt that is put before a text if its request names none [default: by the model's
    /// files].
    ///
    /// For embedding models.
    #[arg(long, env, conflicts_with = "default_prompt", help_heading = "Prompt")]
    pub(crate) default_prompt_name: Option<String>,

    /// The prompt that is put before an embedded text if its request names none.
    #[arg(long, env, help_heading = "Prompt")]
    pub(crate) default_prompt: Option<String>,

    /// Refuse to re-rank with an embedding model, as text-embeddings-inference does. Without this flag,
    /// `/rerank` and `/score` give the cosine of query and document.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Score")]
    pub(crate) no_cosine_rerank: bool,

    /// Re-rank by the vectors of tokens instead of the cosine, with a model that has them (bge-m3).
    #[arg(long, env, value_parser = BoolishValueParser::new(), conflicts_with = "no_cosine_rerank", help_heading = "Score")]
    pub(crate) maxsim_rerank: bool,

    /// The most requests in flight at once; more are refused with status 429.
    #[arg(long, env, default_value = "512", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) max_concurrent_requests: NonZeroUsize,

    /// The most inputs of one client request [default: 32; 2048 on `/v1/embeddings`].
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) max_client_batch_size: Option<NonZeroUsize>,

    /// The most texts of one re-rank request [default: `--max-client-batch-size` if that is given, else
    /// 1000].
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) max_rerank_texts: Option<NonZeroUsize>,

    /// The most questions of one request to decide.
    #[arg(long, env, default_value = "400", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) max_questions: NonZeroUsize,

    /// The least score of a re-ranked text in an answer, unless a request says another [default: none].
    ///
    /// It is compared with the score that the answer shows, which is a raw score if the request wants those.
    #[arg(long, env, value_parser = values::finite_number, allow_negative_numbers = true)]
    pub(crate) min_score: Option<f32>,

    /// Take token ids from the package `openai` on `/v1/embeddings`, as ids of this model's vocabulary.
    ///
    /// Without it they are refused, because `LangChain` and others make them with another vocabulary. Ids
    /// from other clients are taken in any case.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Model")]
    pub(crate) accept_openai_token_ids: bool,

    /// Refuse bodies with fields that the route does not know, and name the nearest known one. Otherwise such
    /// fields are ignored, and the header `x-ignored-fields` of the answer names them.
    #[arg(long, env, value_parser = BoolishValueParser::new())]
    pub(crate) strict_fields: bool,

    /// The most bytes of one request's body; more are refused with status 413.
    #[arg(long, env, default_value = "2000000", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) payload_limit: NonZeroUsize,

    /// The most tokens of all requests in flight; more are refused with status 429.
    ///
    /// A request with more tokens than that is accepted while there is no other.
    #[arg(long, env, default_value = "33554432", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) max_queue_tokens: NonZeroUsize,

    /// The most bytes of memory for computed scores, and for vectors of short texts; 0: none.
    ///
    /// A text that comes again with the same query, or a short text that is embedded again, is not computed
    /// again. All models share it.
    #[arg(long, env, default_value = "67108864", value_parser = whole::<usize>)]
    pub(crate) score_cache_bytes: usize,

    /// The most seconds, such as `0.5`, that a request may wait in the queue [default: no limit].
    ///
    /// A request that waits longer is refused with status 429 and is not computed.
    #[arg(long, env, value_parser = seconds, value_name = "SECONDS")]
    pub(crate) queue_timeout: Option<Duration>,

    /// The most seconds that one batch may take; 0: no limit.
    ///
    /// After that the device counts as hung: `/health` says 503, and waiting requests fail.
    #[arg(long, env, default_value = "600", value_parser = whole::<u32>, value_name = "SECONDS")]
    pub(crate) device_timeout: u32,

    /// The model's share of the device's time while others of the process wait for it, too: 1 to 100.
    ///
    /// A model of weight 2 gets twice the time of one of weight 1.
    #[arg(long, env, default_value = "1", value_parser = values::device_weight, value_name = "WEIGHT")]
    pub(crate) device_weight: NonZeroU32,

    /// The address to listen on: an IPv4 or IPv6 address, or `localhost`.
    #[arg(long, env, default_value = "0.0.0.0", help_heading = "Network")]
    pub(crate) hostname: String,

    /// The port to listen on.
    #[arg(long, short, env, default_value = "3000", value_parser = port, help_heading = "Network")]
    pub(crate) port: u16,

    /// The port for gRPC, in addition to HTTP [default: gRPC is not served].
    #[cfg_attr(
        all(feature = "plain-http", feature = "grpc"),
        arg(long, env, value_parser = port, help_heading = "Network")
    )]
    #[cfg_attr(not(all(feature = "plain-http", feature = "grpc")), arg(skip))]
    pub(crate) grpc_port: Option<u16>,

    /// The key that clients must send as `Authorization: Bearer KEY` [default: no key is required].
    #[arg(long, env, hide_env_values = true, help_heading = "Network")]
    pub(crate) api_key: Option<Secret>,

    /// An origin whose pages may call this server, such as `https://example.org`; repeatable [default: any].
    #[arg(long, env, help_heading = "Network")]
    pub(crate) cors_allow_origin: Vec<String>,

    /// How clients connect, and the limits on each of them.
    #[command(flatten)]
    pub(crate) door: DoorArgs,

    /// The port to listen on instead of `--port`; Vertex AI sets the variable.
    #[arg(long, env, value_parser = port, help_heading = "Hosting platforms")]
    pub(crate) aip_http_port: Option<u16>,

    /// A further path of `POST /vertex`; Vertex AI sets the variable.
    ///
    /// If it is `/predict`, that path no longer has this server's own meaning.
    #[arg(long, env, help_heading = "Hosting platforms")]
    pub(crate) aip_predict_route: Option<String>,

    /// A further path of `GET /health`; Vertex AI sets the variable.
    #[arg(long, env, help_heading = "Hosting platforms")]
    pub(crate) aip_health_route: Option<String>,

    /// The Hub's name of the task.
    ///
    /// With `sentence-similarity`, `POST /` and `/invocations` of an embedding model are `/similarity`. Other
    /// tasks have no effect.
    #[arg(long, env, help_heading = "Hosting platforms")]
    pub(crate) task: Option<String>,

    /// Write the log as JSON; the variable `LOG_LEVEL` (default `info`) sets its level.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Telemetry")]
    pub(crate) json_output: bool,

    /// Leave the spans, which hold a request's id and route, out of the log.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Telemetry")]
    pub(crate) disable_spans: bool,

    /// The collector of traces, by OTLP over gRPC, such as `http://localhost:4317` [default: no traces].
    ///
    /// A user name and a password in the address are sent as credentials.
    #[arg(long, env, hide_env_values = true, help_heading = "Telemetry")]
    pub(crate) otlp_endpoint: Option<Endpoint>,

    /// The service's name in traces.
    #[arg(long, env, default_value = "text-embeddings-inference.server", help_heading = "Telemetry")]
    pub(crate) otlp_service_name: String,

    /// A second port for the metrics, which are also at `/metrics` of the first [default: 9000].
    #[arg(long, env, value_parser = port, help_heading = "Telemetry")]
    pub(crate) prometheus_port: Option<u16>,

    /// The seconds after SIGTERM or SIGINT during which the server still serves, but is not ready.
    ///
    /// `/health/ready` says 503 in that time, so that load balancers send requests elsewhere.
    #[arg(
        long, env, default_value = "0", value_parser = whole::<u32>, value_name = "SECONDS",
        help_heading = "Network"
    )]
    pub(crate) shutdown_delay: u32,

    /// The seconds that requests in flight may then take before they are dropped.
    ///
    /// New connections are refused in that time.
    #[arg(
        long, env, default_value = "25", value_parser = whole::<u32>, value_name = "SECONDS",
        help_heading = "Network"
    )]
    pub(crate) drain_timeout: u32,

    /// Stop, as on SIGTERM, when standard input ends.
    ///
    /// For a program that starts the server as its child and keeps a pipe to it open: the server then ends
    /// with the program, however the program ends.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Network")]
    pub(crate) stop_with_stdin: bool,

    /// Further names of the model, from the models file.
    #[arg(skip)]
    pub(crate) aliases: Vec<String>,

    /// The value of the variable `HOSTNAME` if it was set aside (see `environment`).
    #[arg(skip)]
    pub(crate) ignored_hostname: Option<String>,

    /// The variables that were set aside because they hold a service link (see [`set_aside_service_links`]).
    #[arg(skip)]
    pub(crate) ignored_variables: Vec<String>,
}

/// The most bytes that a tokenizer takes for each byte that it encodes at once: U+FDFA for XLM-R, which NFKC
/// makes 18 letters, takes 1317 if each letter is a token. Dots for BERT take 594, digits for Qwen 399.
const DENSE_ENCODING: usize = 1400;
/// The same for a text that has few tokens, and so is encoded whole: 98 were measured.
const SPARSE_ENCODING: usize = 150;
/// The bytes for each token of the longest input, and the least bytes, that are encoded at once
/// (`borders.rs`).
const BYTES_PER_TOKEN: usize = 8;
const LARGE_TEXT: usize = 64 << 10;
/// The copies of a body while it is read: its bytes, the same as JSON, its texts, and theirs with a prompt.
const COPIES: usize = 4;
/// gRPC's default limit for a message, in bytes. Clients of text-embeddings-inference may send that much
/// whatever `--payload-limit` says.
pub(crate) const MESSAGE_LIMIT: usize = 4 << 20;
/// The least body that every server takes.
const MIN_PAYLOAD: usize = 64 << 10;

/// The most bytes that one tokenizer thread takes for a text of `payload` bytes.
fn encoding_bytes(payload: usize, max_length: usize) -> usize {
    let at_once = max_length.saturating_mul(BYTES_PER_TOKEN).max(LARGE_TEXT).saturating_add(LARGE_TEXT);
    let sparse = payload.saturating_mul(SPARSE_ENCODING);
    payload.min(at_once).saturating_mul(DENSE_ENCODING).saturating_add(sparse)
}

impl Args {
    /// The server's arguments among all that clap matched.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::from_arg_matches(matches)?;
        if matches.value_source("hostname") == Some(ValueSource::EnvVariable) {
            args.ignored_hostname = set_aside_container_name(&mut args.hostname);
        }
        Ok(args)
    }

    /// The name by which requests may ask for the model.
    pub(crate) fn model_name(&self) -> &str {
        self.served_model_name.as_deref().unwrap_or(&self.model_id)
    }

    /// The arguments with which a command that does not serve starts a model: the flags about serving have
    /// their defaults, whatever their variables say. The error is clap's, which a default does not cause.
    pub(crate) fn offline(model_id: &str, model: ModelArgs) -> Result<Self, clap::Error> {
        let command = Self::command().mut_args(|argument| argument.env(None::<&'static str>));
        let matches = command.try_get_matches_from([String::new(), format!("--model-id={model_id}")])?;
        Ok(Self { model, ..Self::from_arg_matches(&matches)? })
    }

    /// The bytes of bodies, texts, tokens, answers and kept scores if every limit on them is reached, and if
    /// `workers` tokenizer threads encode the longest text each, for inputs of up to `max_length` tokens.
    pub(crate) fn max_request_bytes(&self, workers: usize, max_length: usize) -> u64 {
        let unread = self.door.unread_bytes(self.payload_limit.get());
        let texts = self.max_concurrent_requests.get().saturating_mul(self.payload_limit.get());
        let tokens = self.max_queue_tokens.get().saturating_mul(size_of::<u32>());
        let encoding = workers.saturating_mul(encoding_bytes(self.payload_limit.get(), max_length));
        let unsent = self.door.max_unsent_bytes.get();
        let scores = self.score_cache_bytes;
        [unread, texts, tokens, encoding, unsent, scores].iter().map(|bytes| *bytes as u64).sum()
    }

    /// The largest request for which there is room while it is the only one, at most the largest that is
    /// taken; absent if that is too small to serve.
    pub(crate) fn fitting_payload(&self, room: u64, max_length: usize) -> Option<usize> {
        let has_grpc = cfg!(feature = "grpc") && (self.grpc_port.is_some() || !cfg!(feature = "plain-http"));
        let mut payload = self.payload_limit.get().max(if has_grpc { MESSAGE_LIMIT } else { 0 });
        while (payload.saturating_mul(COPIES) + encoding_bytes(payload, max_length)) as u64 > room {
            payload -= payload.div_ceil(16);
            if payload < MIN_PAYLOAD {
                return None;
            }
        }
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::ffi::OsString;
    use text_embeddings_backend::{BackendKind, is_built_in};
    use text_embeddings_backend_core::DType;
    use text_embeddings_core::{families, model::RequestedType};

    impl Args {
        /// The arguments of a server that is started with `arguments`, the program's name first.
        pub(crate) fn try_from(
            arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
        ) -> Result<Self, clap::Error> {
            Self::from_matches(&Self::command().try_get_matches_from(arguments)?)
        }

        /// The arguments of a server for the model `m` with further flags.
        pub(crate) fn with_flags(flags: &str) -> Result<Self, clap::Error> {
            let start = ["text-embeddings-router", "--model-id", "m"];
            Self::try_from(start.into_iter().chain(flags.split_whitespace()))
        }
    }

    #[test]
    fn a_single_request_fits_the_memory_or_there_is_none() {
        let payload = |flags: &str, room: u64, max_length: usize| {
            Args::with_flags(flags).unwrap().fitting_payload(room, max_length)
        };
        assert_eq!(payload("", 1 << 40, 512), Some(2_000_000));
        // 154 bytes for each byte, and 1400 for each of 128 KiB.
        assert_eq!(payload("", 2_000_000 * 154 + 1400 * (128 << 10), 512), Some(2_000_000));
        let less = payload("", 2_000_000 * 154 + 1400 * (128 << 10) - 1, 512);
        assert!(less.is_some_and(|less| (1_800_000..2_000_000).contains(&less)), "{less:?}");
        assert!(payload("", 400_000_000, 32_768) < payload("", 400_000_000, 512));
        assert_eq!(payload("--grpc-port 1", 1 << 40, 512), Some(4 << 20));
        assert_eq!(payload("", 100_000_000, 512), None);
    }

    #[test]
    fn the_flags_are_well_formed_documented_and_have_their_variables() {
        let command = Args::command();
        command.clone().debug_assert();
        for argument in
            command.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str()))
        {
            let long = argument.get_long().unwrap();
            let variable = argument.get_env().unwrap().to_str().unwrap();
            assert_eq!(variable, long.replace('-', "_").to_uppercase());
            assert!(argument.get_help().is_some(), "--{long} has no help");
        }
    }

    #[test]
    fn the_secrets_are_neither_in_debug_nor_in_the_help() {
        let args = Args::with_flags(
            "--api-key s3cret --hf-token s3cret --hf-api-token s3cret --otlp-endpoint http://u:s3cret@a:4317",
        )
        .unwrap();
        assert!(!format!("{args:?}").contains("s3cret"));
        for name in ["api_key", "hf_token", "hf_api_token", "otlp_endpoint"] {
            let command = Args::command();
            let argument = command.get_arguments().find(|a| a.get_id() == name).unwrap();
            assert!(argument.is_hide_env_values_set(), "{name}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let args = Args::with_flags("").unwrap();
        assert_eq!(
            (args.model.hub.revision.as_str(), args.hostname.as_str(), args.port),
            ("main", "0.0.0.0", 3000)
        );
        assert_eq!((args.max_concurrent_requests.get(), args.payload_limit.get()), (512, 2_000_000));
        assert!(
            args.model.auto_truncate
                && !args.json_output
                && !args.disable_spans
                && !args.model.parse_special_tokens
        );
        assert_eq!(args.otlp_service_name, "text-embeddings-inference.server");
    }

    #[test]
    fn auto_truncate_takes_an_optional_value() {
        let table = [
            ("--auto-truncate", true),
            ("--auto-truncate true", true),
            ("--auto-truncate false", false),
            ("--auto-truncate=false", false),
            ("--auto-truncate --port 1", true),
        ];
        for (flags, expected) in table {
            assert_eq!(Args::with_flags(flags).unwrap().model.auto_truncate, expected, "{flags}");
        }
        let message = Args::with_flags("--auto-truncate TEXT").unwrap_err().to_string();
        assert!(message.contains("write the flag as `--auto-truncate=true`"), "{message}");
    }

    #[test]
    fn a_value_of_pin_threads_follows_an_equals_sign_so_that_texts_can_stand_behind_the_flag() {
        let table = [("", None), ("--pin-threads", Some(true)), ("--pin-threads=false", Some(false))];
        for (flags, expected) in table {
            assert_eq!(Args::with_flags(flags).unwrap().model.pin_threads, expected, "{flags}");
        }
        Args::with_flags("--pin-threads false").unwrap_err();
    }

    #[test]
    fn a_backend_is_one_that_is_built_in() {
        assert_eq!(Args::with_flags("").unwrap().model.hub.backend, BackendKind::Candle);
        assert!(
            Args::with_flags("--backend=tensorrt")
                .unwrap_err()
                .to_string()
                .contains("expected candle, ort or python")
        );
        for backend in BackendKind::ALL {
            let message =
                Args::with_flags(&format!("--backend={backend}")).err().map(|error| error.to_string());
            assert_eq!(message.is_none(), is_built_in(backend));
            assert!(message.is_none_or(|message| message.contains(&format!("--features {backend}"))));
        }
    }

    #[test]
    fn values_are_parsed_or_refused_by_name() {
        let args =
            Args::with_flags("--dtype bfloat16 --pooling last-token --model-type listwise-reranker -p 80")
                .unwrap();
        assert_eq!(
            (args.model.dtype, args.pooling, args.port),
            (Some(DType::BFloat16), Some(Pool::LastToken), 80)
        );
        assert_eq!(args.model.model_type, Some(RequestedType::ListwiseReranker));
        for (flag, value) in [
            ("--dtype", "int2"),
            ("--pooling", "max"),
            ("--model-type", "llm"),
            ("--port", "70000"),
            ("--max-batch-tokens", "0"),
            ("--payload-limit", "-1"),
            ("--auto-truncate", "maybe"),
            ("--served-model-name", ""),
        ] {
            let message = Args::with_flags(&format!("{flag}={value}")).unwrap_err().to_string();
            assert!(message.contains(flag) && message.contains(value), "{message}");
        }
        assert_eq!(Args::try_from(["text-embeddings-router"]).unwrap().model_id, DEFAULT_MODEL_ID);
    }

    #[test]
    fn a_default_prompt_is_given_by_name_or_as_it_is() {
        assert_eq!(
            Args::with_flags("--default-prompt-name query").unwrap().default_prompt_name.as_deref(),
            Some("query")
        );
        assert_eq!(Args::with_flags("--default-prompt=").unwrap().default_prompt.as_deref(), Some(""));
        let message =
            Args::with_flags("--default-prompt-name query --default-prompt x").unwrap_err().to_string();
        assert!(
            message.contains("--default-prompt-name") && message.contains("--default-prompt"),
            "{message}"
        );
    }

    #[test]
    fn a_template_is_a_name_or_a_file() {
        let table = [
            ("builtin", ChatTemplateSource::Builtin(&families::QWEN3_RERANKER)),
            (
                "qwen3-reranker-evaluation",
                ChatTemplateSource::Builtin(families::by_name("qwen3-reranker-evaluation").unwrap()),
            ),
            ("./my.jinja", ChatTemplateSource::File("./my.jinja".into())),
        ];
        for (text, expected) in table {
            assert_eq!(
                Args::with_flags(&format!("--chat-template {text}")).unwrap().model.chat_template,
                Some(expected)
            );
        }
    }

    #[test]
    fn the_hubs_token_has_two_names() {
        let table = [
            ("", None),
            ("--hf-token=", None),
            ("--hf-token a", Some("a")),
            ("--hf-api-token b", Some("b")),
            ("--hf-token= --hf-api-token b", Some("b")),
            ("--hf-token a --hf-api-token b", Some("a")),
        ];
        for (flags, expected) in table {
            let hub = Args::with_flags(flags).unwrap().model.hub;
            assert_eq!(hub.token().map(Secret::expose), expected, "{flags}");
        }
    }
}
