//! The command line: every flag with its variable, default and help text, and nothing else.
//!
//! Input: the process's arguments and environment. Output: [`Args`], where a flag whose default depends on the model
//! or on other flags is still an `Option`. What must hold: every flag has a variable of the same name in capitals;
//! no secret appears in `Debug` or in the help; what a flag means together with others is `config`'s business.

mod door;

use std::{env, ffi::OsString, net::IpAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, Id, Parser,
    builder::BoolishValueParser, parser::ValueSource,
};
use text_embeddings_backend::{BackendKind, InstructionSet, is_built_in, not_built_in};
use text_embeddings_backend_core::{DType, Pool};
use text_embeddings_core::{
    families::{self, Family, ScoreRule},
    files::RequestedType,
    tokenization::NamedAnswer,
};

use crate::{secret::Secret, telemetry::collector::Endpoint};

pub(crate) use self::door::DoorArgs;

/// The model that is served where none is named, as in text-embeddings-inference.
pub(crate) const DEFAULT_MODEL_ID: &str = "BAAI/bge-large-en-v1.5";

/// Serves text embedding, re-ranking and classification models over HTTP and gRPC, in the place of
/// text-embeddings-inference.
#[derive(Debug, Clone, Parser)]
#[command(name = "text-embeddings-router", version)]
pub(crate) struct Args {
    /// The model to serve: a Hub id such as `Qwen/Qwen3-Reranker-0.6B`, the path of a local directory or of a weight file
    /// (`.gguf`, `.safetensors`, `.bin`), or `demo`, a tiny model that this binary carries to show itself.
    #[arg(long, env, default_value = DEFAULT_MODEL_ID, help_heading = "Model")]
    pub(crate) model_id: String,

    /// How the model is got, prompted and computed.
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// How an embedding model pools: `cls`, `mean`, `splade` or `last-token` [default: by its files, else `cls` for a kind of BERT].
    #[arg(long, env, value_parser = parse_pool, help_heading = "Model")]
    pub(crate) pooling: Option<Pool>,

    /// The folder of an embedding model's dense module, in the place of the one that modules.json names.
    #[arg(long, env, help_heading = "Model")]
    pub(crate) dense_path: Option<String>,

    /// The task whose adapter is added to the weights of a model with adapters for tasks, such as `retrieval.query` of
    /// jina-embeddings-v3 [default: no adapter].
    #[arg(long, env, help_heading = "Model")]
    pub(crate) lora_task: Option<String>,

    /// The model's name in OpenAI-style answers [default: the model id].
    #[arg(long, env, help_heading = "Model")]
    pub(crate) served_model_name: Option<String>,

    /// Which of an embedding model's prompts is put before texts where a request names none [default: by its files].
    #[arg(long, env, conflicts_with = "default_prompt", help_heading = "Prompt")]
    pub(crate) default_prompt_name: Option<String>,

    /// The prompt put before embedded texts where a request names none.
    #[arg(long, env, help_heading = "Prompt")]
    pub(crate) default_prompt: Option<String>,

    /// The requests that may be in flight at once; more are refused with status 429.
    #[arg(long, env, default_value = "512", help_heading = "Limits")]
    pub(crate) max_concurrent_requests: NonZeroUsize,

    /// The inputs of one client request [default: 32].
    #[arg(long, env, help_heading = "Limits")]
    pub(crate) max_client_batch_size: Option<NonZeroUsize>,

    /// The texts of one re-rank request [default: `--max-client-batch-size` if that is given, else 1000].
    #[arg(long, env, help_heading = "Limits")]
    pub(crate) max_rerank_texts: Option<NonZeroUsize>,

    /// The bytes of one request's body; more is refused with status 413.
    #[arg(long, env, default_value = "2000000", help_heading = "Limits")]
    pub(crate) payload_limit: NonZeroUsize,

    /// The tokens of all requests in flight; more are refused with status 429. A larger request is taken while no other is there.
    #[arg(long, env, default_value = "33554432", help_heading = "Limits")]
    pub(crate) max_queue_tokens: NonZeroUsize,

    /// The seconds, such as `0.5`, that a request may wait before it is begun; then it is refused with status 429 and not computed
    /// [default: any number].
    #[arg(long, env, value_parser = seconds, value_name = "SECONDS", help_heading = "Limits")]
    pub(crate) queue_timeout: Option<Duration>,

    /// The seconds that one batch may take; then the device counts as hung, `/health` says 503, and what waits fails. 0: any number.
    #[arg(long, env, default_value = "600", value_name = "SECONDS", help_heading = "Limits")]
    pub(crate) device_timeout: u32,

    /// The address to listen on: an IPv4 or IPv6 address, or `localhost`.
    #[arg(long, env, default_value = "0.0.0.0", help_heading = "Network")]
    pub(crate) hostname: String,

    /// The port to listen on.
    #[arg(long, short, env, default_value = "3000", help_heading = "Network")]
    pub(crate) port: u16,

    /// The port to serve gRPC on, beside HTTP [default: gRPC is not served].
    #[cfg_attr(all(feature = "http", feature = "grpc"), arg(long, env, help_heading = "Network"))]
    #[cfg_attr(not(all(feature = "http", feature = "grpc")), arg(skip))]
    pub(crate) grpc_port: Option<u16>,

    /// The key that clients must send as `Authorization: Bearer KEY` [default: no key is wanted].
    #[arg(long, env, hide_env_values = true, help_heading = "Network")]
    pub(crate) api_key: Option<Secret>,

    /// An origin whose pages may call this server, such as `https://example.org`; repeatable [default: any].
    #[arg(long, env, help_heading = "Network")]
    pub(crate) cors_allow_origin: Vec<String>,

    /// How clients connect, and what each of them may take.
    #[command(flatten)]
    pub(crate) door: DoorArgs,

    /// The port to listen on in the place of `--port`, as Vertex AI asks for it.
    #[arg(long, env, help_heading = "Hosting platforms")]
    pub(crate) aip_http_port: Option<u16>,

    /// A further path of `POST /vertex`, as Vertex AI asks for it; `/predict` is then no longer our own.
    #[arg(long, env, help_heading = "Hosting platforms")]
    pub(crate) aip_predict_route: Option<String>,

    /// A further path of `GET /health`, as Vertex AI asks for it.
    #[arg(long, env, help_heading = "Hosting platforms")]
    pub(crate) aip_health_route: Option<String>,

    /// The Hub's name of the task: with `sentence-similarity`, `POST /` and `/invocations` of an embedding model are `/similarity`; others
    /// have no effect.
    #[arg(long, env, help_heading = "Hosting platforms")]
    pub(crate) task: Option<String>,

    /// Write the log as JSON; the variable `LOG_LEVEL` (default `info`) says how much of it.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Telemetry")]
    pub(crate) json_output: bool,

    /// Leave the spans, which hold a request's costs, out of the log.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Telemetry")]
    pub(crate) disable_spans: bool,

    /// The collector that traces are sent to in OTLP over gRPC, such as `http://localhost:4317`; a user name and a
    /// password in it are sent as credentials [default: no traces].
    #[arg(long, env, hide_env_values = true, help_heading = "Telemetry")]
    pub(crate) otlp_endpoint: Option<Endpoint>,

    /// The service's name in traces.
    #[arg(long, env, default_value = "text-embeddings-inference.server", help_heading = "Telemetry")]
    pub(crate) otlp_service_name: String,

    /// The second port that serves the metrics, beside `/metrics` on the first [default: 9000].
    #[arg(long, env, help_heading = "Telemetry")]
    pub(crate) prometheus_port: Option<u16>,

    /// The seconds after SIGTERM or SIGINT that the server goes on serving while `/health/ready` says 503: time for load
    /// balancers to send requests elsewhere.
    #[arg(long, env, default_value = "0", value_name = "SECONDS", help_heading = "Network")]
    pub(crate) shutdown_delay: u32,

    /// The seconds that requests in flight may then take before they are dropped; new connections are refused.
    #[arg(long, env, default_value = "25", value_name = "SECONDS", help_heading = "Network")]
    pub(crate) drain_timeout: u32,

    /// Stop, as on SIGTERM, when standard input ends: for a program that starts the server as its child and keeps a pipe to
    /// it open, so that the server ends with the program however that ends.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Network")]
    pub(crate) stop_with_stdin: bool,

    /// The value of the variable `HOSTNAME` where it was set aside (see [`set_aside_container_name`]).
    #[arg(skip)]
    pub(crate) ignored_hostname: Option<String>,

    /// The variables that were set aside because they hold a service link (see [`set_aside_service_links`]).
    #[arg(skip)]
    pub(crate) ignored_variables: Vec<String>,
}

/// How a model is got, prompted and computed, whatever it is then used for.
#[derive(Debug, Clone, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches that do not exclude each other")]
pub(crate) struct ModelArgs {
    /// How its files are got.
    #[command(flatten)]
    pub(crate) hub: HubArgs,

    /// The kind of the model: `embedding`, `classifier`, `reranker` or `listwise-reranker` [default: by its files].
    #[arg(long, env, help_heading = "Model")]
    pub(crate) model_type: Option<RequestedType>,

    /// The interpreter of `--backend python`, which has PyTorch and sentence-transformers [default: that of the virtual
    /// environment which `VIRTUAL_ENV` names, else `python3`].
    #[arg(long, env, help_heading = "Model", value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,

    /// The arithmetic: `float32` (exact), `float16`, `bfloat16`, `int8` or `int4`, the last two not with `--backend python`. A CPU
    /// computes in bfloat16 instead of `float16` if it multiplies that, else in float32 [default: bfloat16 if the checkpoint is
    /// stored in it, this CPU multiplies it and `candle` computes, else float32].
    #[arg(long, env, value_parser = parse_dtype, help_heading = "Model")]
    pub(crate) dtype: Option<DType>,

    /// The CPU's vector instructions to compute with: `portable`, `avx2`, `avx2+vnni`, `avx512`, `avx512+vnni`,
    /// `avx512+vnni+bf16` or `avx512+vnni+bf16+amx`; on ARM `portable`, `neon`, `neon+dotprod` or `neon+i8mm+bf16`
    /// [default: the best that this CPU has].
    #[arg(long, env, help_heading = "Model")]
    pub(crate) instruction_set: Option<InstructionSet>,

    /// What "relevant" means where a request says nothing [default: the model's own instruction].
    #[arg(long, env, help_heading = "Prompt")]
    pub(crate) default_instruction: Option<String>,

    /// The prompt of a re-ranker: the name of a family (`docs/rerankers.md` lists them), whose answers and scores apply,
    /// too; `builtin` for Qwen3-Reranker's; or the path of a Jinja file [default: the model's own template if it has query
    /// and document roles, else that of its family].
    #[arg(long, env, value_parser = parse_chat_template, help_heading = "Prompt")]
    pub(crate) chat_template: Option<ChatTemplate>,

    /// The layers that a layer-wise re-ranker goes through before it scores, fewer of which are faster and less exact: 8 to 40
    /// of bge-reranker-v2-minicpm-layerwise [default: 28, as its authors' card, or all if the model has no score there].
    #[arg(long, env, help_heading = "Model", value_name = "LAYERS")]
    pub(crate) cutoff_layers: Option<NonZeroUsize>,

    /// Leave a request's instruction out where the model's prompt has no place for one, rather than refuse it.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Prompt")]
    pub(crate) ignore_instruction: bool,

    /// The token whose logit is a generative re-ranker's raw score: its text, or its number as `id:9454` [default: by
    /// `1_LogitScore/config.json`, else by the model's family].
    #[arg(long, env, help_heading = "Score")]
    pub(crate) rerank_true_token: Option<NamedAnswer>,

    /// The token whose logit is taken from it [default: none where `--rerank-true-token` is given].
    #[arg(long, env, requires = "rerank_true_token", help_heading = "Score")]
    pub(crate) rerank_false_token: Option<NamedAnswer>,

    /// What a re-ranker's score is of its raw one, x, where a request does not ask for raw scores: `sigmoid`, `sigmoid(x/5)`,
    /// `sigmoid(x-2.65)`, `(x+1)/2` or `identity` [default: by the model's family, else `sigmoid`].
    #[arg(long, env, help_heading = "Score")]
    pub(crate) rerank_activation: Option<ScoreRule>,

    /// Let control tokens such as `<|im_end|>` in a client's text take effect; only for comparisons with other
    /// servers, because a document can then answer for the model.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Prompt")]
    pub(crate) parse_special_tokens: bool,

    /// The longest input in tokens, prompt included [default: by the model's files; 8192 for generative re-rankers,
    /// 32768 for jina-reranker-v3, whose prompts hold many documents].
    #[arg(long, env, help_heading = "Limits")]
    pub(crate) max_input_length: Option<NonZeroUsize>,

    /// Cut inputs that are too long where a request says nothing, rather than refuse them.
    #[arg(
        long, env, action = ArgAction::Set, num_args = 0..=1, default_value = "true", default_missing_value = "true",
        value_parser = BoolishValueParser::new(), help_heading = "Limits"
    )]
    pub(crate) auto_truncate: bool,

    /// The tokens of one forward pass, a prefix that several texts share counted once. Longer inputs are computed alone;
    /// where this is given and `--max-input-length` is not, they are cut to it [default: 16384; on the CPU, with a
    /// prefix cache, at most 256 for each of `--threads`].
    #[arg(long, env, help_heading = "Limits")]
    pub(crate) max_batch_tokens: Option<NonZeroUsize>,

    /// The texts of one forward pass [default: no limit].
    #[arg(long, env, help_heading = "Limits")]
    pub(crate) max_batch_requests: Option<NonZeroUsize>,

    /// The bytes of memory for what was computed of texts' beginnings (template, instruction, query, prompt), so that later
    /// requests which begin alike need not compute it again; 0 for none. On the CPU only.
    #[arg(long, env, default_value = "268435456", help_heading = "Limits")]
    pub(crate) prefix_cache_bytes: usize,

    /// The threads that tokenize [default: the cores less one, 1 to 64].
    #[arg(long, env, help_heading = "Threads")]
    pub(crate) tokenization_workers: Option<NonZeroUsize>,

    /// The threads that compute [default: all cores].
    #[arg(long, env, help_heading = "Threads")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// Keep each thread that computes on a CPU of its own, of those that this process may use: steadier times where
    /// nothing else runs on them, and worse ones where something does.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Threads")]
    pub(crate) pin_threads: bool,
}

/// How a model's files are got.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HubArgs {
    /// The branch, tag, commit or `refs/pr/N` of the model on the Hub.
    #[arg(long, env, default_value = "main", help_heading = "Model")]
    pub(crate) revision: String,

    /// The GGUF file of the model, where it has several, or other weights, too. `--model-id` may name it as well:
    /// `owner/name:FILE.gguf`.
    #[arg(long, env, help_heading = "Model")]
    pub(crate) gguf_file: Option<String>,

    /// The token for gated and private models on the Hub [default: the Hub client's own].
    #[arg(long, env, hide_env_values = true, help_heading = "Model")]
    pub(crate) hf_token: Option<Secret>,

    /// The old name of `--hf-token`, which takes over its value.
    #[arg(long, env, hide = true, hide_env_values = true)]
    pub(crate) hf_api_token: Option<Secret>,

    /// The folder for downloaded models [default: the Hub client's own].
    #[arg(long, env, help_heading = "Model")]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,

    /// What reads the weights and computes: `candle` (this server's own models and kernels), `ort` (ONNX Runtime, for
    /// models in ONNX; a build with the feature `ort`) or `python` (sentence-transformers, for models that the others do
    /// not have; a build with the feature `python`).
    #[arg(long, env, value_parser = parse_backend, default_value = "candle", help_heading = "Model")]
    pub(crate) backend: BackendKind,

    /// The ONNX file that `--backend ort` reads, such as `model_int8.onnx`, below the model's folder or its folder `onnx`
    /// [default: onnx/model.onnx, else model.onnx, else the only one].
    #[arg(long, env, help_heading = "Model", value_name = "NAME")]
    pub(crate) onnx_file: Option<String>,

    /// Let `--backend python` run the Python files of the model, with all that this user may do: read them first, and give
    /// a `--revision` that is a commit, so that they stay as they are.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Model")]
    pub(crate) trust_remote_code: bool,
}

impl HubArgs {
    /// The Hub's token, by either name. An empty variable is no token, as for the Hub's own clients.
    pub(crate) fn token(&self) -> Option<&Secret> {
        [&self.hf_token, &self.hf_api_token].into_iter().flatten().find(|token| !token.expose().is_empty())
    }
}

/// Where a generative re-ranker's prompt comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChatTemplate {
    /// That of a family.
    Builtin(&'static Family),
    /// A Jinja file with the roles system, query and document.
    File(PathBuf),
}

impl Args {
    /// What [`crate::commands::command_line`] found, where it is no other command's.
    ///
    /// # Errors
    ///
    /// clap's, for a flag that is missing or malformed.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::from_arg_matches(matches)?;
        if matches.value_source("hostname") == Some(ValueSource::EnvVariable) {
            set_aside_container_name(&mut args);
        }
        Ok(args)
    }

    /// What a command that serves nobody starts a model with: the flags about serving have their defaults, whatever
    /// the variables say.
    ///
    /// # Errors
    ///
    /// clap's, which a default does not cause.
    pub(crate) fn offline(model_id: &str, model: ModelArgs) -> Result<Self, clap::Error> {
        let command = Self::command().mut_args(|argument| argument.env(None::<&'static str>));
        let matches = command.try_get_matches_from([String::new(), format!("--model-id={model_id}")])?;
        Ok(Self { model, ..Self::from_arg_matches(&matches)? })
    }
}

/// Takes variables of ports off the flags where they hold a service link, and gives their names. Kubernetes tells each pod
/// of every service in such a variable: of a service `prometheus`, it is `PROMETHEUS_PORT=tcp://10.0.0.1:9090`.
pub(crate) fn set_aside_service_links(mut command: Command) -> (Command, Vec<String>) {
    let is_link = |argument: &Arg| {
        let value = argument.get_env().and_then(|variable| env::var(variable).ok());
        let scheme = value.as_deref().and_then(|value| value.split_once("://")).map(|(scheme, _)| scheme);
        matches!(scheme, Some("tcp" | "udp" | "sctp"))
    };
    let links = command.get_arguments().filter(|argument| argument.get_id().as_str().ends_with("port"));
    let links: Vec<(Id, OsString)> = links
        .filter(|argument| is_link(argument))
        .filter_map(|argument| Some((argument.get_id().clone(), argument.get_env()?.to_owned())))
        .collect();
    for (id, _) in &links {
        command = command.mut_arg(id, |argument| argument.env(None::<&'static str>));
    }
    (command, links.into_iter().map(|(_, variable)| variable.to_string_lossy().into_owned()).collect())
}

/// Every container runtime sets `HOSTNAME` to the container's name, which is no wish to listen on one address only:
/// the variable counts where it holds an address or `localhost`. The flag always counts.
fn set_aside_container_name(args: &mut Args) {
    if parse_hostname(&args.hostname).is_none() {
        args.ignored_hostname = Some(std::mem::replace(&mut args.hostname, "0.0.0.0".to_owned()));
    }
}

/// The addresses that a hostname stands for, the preferred one first: `localhost` may lack IPv4 or IPv6.
pub(crate) fn parse_hostname(hostname: &str) -> Option<Vec<IpAddr>> {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if hostname.eq_ignore_ascii_case("localhost") {
        return Some(vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    }
    let unbracketed = hostname.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(hostname);
    unbracketed.parse().ok().map(|address| vec![address])
}

impl Args {
    /// The bytes that bodies, texts, tokens and answers take if every limit on them is reached.
    pub(crate) fn most_bytes_of_requests(&self) -> u64 {
        let unread = self.door.max_unread_bytes.map_or(crate::door::DEFAULT_UNREAD_BYTES, NonZeroUsize::get);
        let texts = self.max_concurrent_requests.get().saturating_mul(self.payload_limit.get());
        let tokens = self.max_queue_tokens.get().saturating_mul(size_of::<u32>());
        [unread, texts, tokens, self.door.max_unsent_bytes.get()].iter().map(|bytes| *bytes as u64).sum()
    }
}

/// A time in seconds, more than none and less than a year.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds < 3.2e7);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| "must be a number of seconds above 0, such as `2.5`".to_owned())
}

fn parse_dtype(text: &str) -> Result<DType, String> {
    let found = DType::ALL.into_iter().find(|dtype| dtype.to_string() == text);
    found.ok_or_else(|| "expected float32, float16, bfloat16, int8 or int4".to_owned())
}

fn parse_backend(text: &str) -> Result<BackendKind, String> {
    let found = BackendKind::ALL.into_iter().find(|backend| backend.as_str() == text);
    let backend = found.ok_or("expected candle, ort or python")?;
    if is_built_in(backend) { Ok(backend) } else { Err(not_built_in(backend)) }
}

fn parse_pool(text: &str) -> Result<Pool, String> {
    let all = [Pool::Cls, Pool::Mean, Pool::Splade, Pool::LastToken];
    let found = all.into_iter().find(|pool| pool.to_string() == text);
    found.ok_or_else(|| "expected cls, mean, splade or last-token".to_owned())
}

#[expect(clippy::unnecessary_wraps, reason = "clap wants a parser that can fail")]
fn parse_chat_template(text: &str) -> Result<ChatTemplate, String> {
    Ok(families::by_name(text).map_or_else(|_| ChatTemplate::File(text.into()), ChatTemplate::Builtin))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::ffi::OsString;

    impl Args {
        /// What a server has that is started with `arguments`, the program's name first.
        pub(crate) fn try_from(
            arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
        ) -> Result<Self, clap::Error> {
            Self::from_matches(&Self::command().try_get_matches_from(arguments)?)
        }
    }

    fn parse(flags: &str) -> Result<Args, clap::Error> {
        let start = ["text-embeddings-router", "--model-id", "m"];
        Args::try_from(start.into_iter().chain(flags.split_whitespace()))
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
        let args = parse(
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
        let args = parse("").unwrap();
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
            assert_eq!(parse(flags).unwrap().model.auto_truncate, expected, "{flags}");
        }
    }

    #[test]
    fn a_backend_is_one_that_is_built_in() {
        assert_eq!(parse("").unwrap().model.hub.backend, BackendKind::Candle);
        assert!(
            parse("--backend=tensorrt").unwrap_err().to_string().contains("expected candle, ort or python")
        );
        for backend in BackendKind::ALL {
            let message = parse(&format!("--backend={backend}")).err().map(|error| error.to_string());
            assert_eq!(message.is_none(), is_built_in(backend));
            assert!(message.is_none_or(|message| message.contains(&format!("--features {backend}"))));
        }
    }

    #[test]
    fn values_are_parsed_or_refused_by_name() {
        let args =
            parse("--dtype bfloat16 --pooling last-token --model-type listwise-reranker -p 80").unwrap();
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
        ] {
            let message = parse(&format!("{flag}={value}")).unwrap_err().to_string();
            assert!(message.contains(flag) && message.contains(value), "{message}");
        }
        assert_eq!(Args::try_from(["text-embeddings-router"]).unwrap().model_id, DEFAULT_MODEL_ID);
    }

    #[test]
    fn a_default_prompt_is_given_by_name_or_as_it_is() {
        assert_eq!(
            parse("--default-prompt-name query").unwrap().default_prompt_name.as_deref(),
            Some("query")
        );
        assert_eq!(parse("--default-prompt=").unwrap().default_prompt.as_deref(), Some(""));
        let message = parse("--default-prompt-name query --default-prompt x").unwrap_err().to_string();
        assert!(
            message.contains("--default-prompt-name") && message.contains("--default-prompt"),
            "{message}"
        );
    }

    #[test]
    fn a_template_is_a_name_or_a_file() {
        let table = [
            ("builtin", ChatTemplate::Builtin(&families::QWEN3_RERANKER)),
            (
                "qwen3-reranker-evaluation",
                ChatTemplate::Builtin(families::by_name("qwen3-reranker-evaluation").unwrap()),
            ),
            ("./my.jinja", ChatTemplate::File("./my.jinja".into())),
        ];
        for (text, expected) in table {
            assert_eq!(
                parse(&format!("--chat-template {text}")).unwrap().model.chat_template,
                Some(expected)
            );
        }
    }

    #[test]
    fn a_containers_name_in_the_variable_is_set_aside() {
        let mut args = parse("--hostname 3f2a9c").unwrap();
        assert_eq!(args.hostname, "3f2a9c");
        set_aside_container_name(&mut args);
        assert_eq!((args.hostname.as_str(), args.ignored_hostname.as_deref()), ("0.0.0.0", Some("3f2a9c")));
        let mut args = parse("--hostname 127.0.0.1").unwrap();
        set_aside_container_name(&mut args);
        assert_eq!((args.hostname.as_str(), args.ignored_hostname), ("127.0.0.1", None));
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
            let hub = parse(flags).unwrap().model.hub;
            assert_eq!(hub.token().map(Secret::expose), expected, "{flags}");
        }
    }
}
