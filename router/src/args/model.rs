//! The flags about the model: how it is fetched, prompted and computed, whatever it is then used for.
//!
//! Part of [`super::Args`], and of the commands that start a model.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{ArgAction, builder::BoolishValueParser};
use text_embeddings_backend::{BackendKind, InstructionSet};
use text_embeddings_backend_core::DType;
use text_embeddings_core::{
    families::{Family, ScoreRule},
    model::RequestedType,
    secret::Secret,
    tokenization::NamedAnswer,
};

use super::values::{self, IdleLimit, at_least_one, whole};

/// How a model is fetched, prompted and computed.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub(crate) struct ModelArgs {
    /// How its files are fetched.
    #[command(flatten)]
    pub(crate) hub: HubArgs,

    /// The kind of the model: `embedding`, `classifier`, `reranker`, `listwise-reranker` or `decider`
    /// [default: by its files, which never say `decider`].
    #[arg(long, env, help_heading = "Model")]
    pub(crate) model_type: Option<RequestedType>,

    /// The interpreter of `--backend python`, which has PyTorch and sentence-transformers [default: the
    /// interpreter of the virtual environment in `VIRTUAL_ENV`, else `python3`].
    #[arg(long, env, help_heading = "Model", value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,

    /// The arithmetic: `float32` (exact), `float16`, `bfloat16`, `int8` or `int4` [default: bfloat16 if the
    /// checkpoint is stored in it and the device is faster in 16 bits, else float32 on a CPU and float16 on
    /// a GPU, but bfloat16 there for Gemma and T5].
    ///
    /// `fp32`, `fp16` and `bf16` are other names of the first three. For `float16`, a CPU computes in
    /// bfloat16 if it is faster in 16 bits, else in float32. A CPU with AVX2 or VNNI that does not multiply
    /// bfloat16 takes 16-bit integers in its place, which round less. A GPU has neither `int8` nor `int4`;
    /// nor has `--backend python`, whose default is float32.
    #[arg(long, env, value_parser = values::dtype, help_heading = "Model")]
    pub(crate) dtype: Option<DType>,

    /// Unload the model after this time without a request, such as `15m`; the next request loads it again.
    ///
    /// `90s`, `15m`, `2h` or `never`. Among several models it also leaves, the longest idle first, when
    /// another one needs its memory.
    #[arg(long, env, value_parser = values::idle_limit, default_value = "never", help_heading = "Model")]
    pub(crate) idle_unload: IdleLimit,

    /// The CPU's vector instructions to compute with [default: the best that this CPU has].
    ///
    /// `portable`, `avx2`, `avx2+vnni`, `avx512`, `avx512+vnni`, `avx512+vnni+bf16` or
    /// `avx512+vnni+bf16+amx`; on ARM `portable`, `neon`, `neon+dotprod` or `neon+i8mm+bf16`.
    #[arg(long, env, help_heading = "Model")]
    pub(crate) instruction_set: Option<InstructionSet>,

    /// What "relevant" means if a request does not say it [default: the model's own instruction].
    #[arg(long, env, help_heading = "Prompt")]
    pub(crate) default_instruction: Option<String>,

    /// The prompt of a re-ranker: the name of a family, or the path of a Jinja file [default: the model's own
    /// template if it has query and document roles, else its family's].
    ///
    /// `docs/rerankers.md` lists the families; the answers and scores of the named family apply, too.
    /// `builtin` is Qwen3-Reranker's prompt.
    #[arg(long, env, value_parser = values::chat_template, help_heading = "Prompt")]
    pub(crate) chat_template: Option<ChatTemplateSource>,

    /// The number of layers after which a layer-wise re-ranker scores [default: 28, as its authors' card, or
    /// all if the model has no score there].
    ///
    /// Fewer are faster and less exact: 8 to 40 of bge-reranker-v2-minicpm-layerwise.
    #[arg(
        long, env, value_parser = at_least_one::<NonZeroUsize>, help_heading = "Model", value_name = "LAYERS"
    )]
    pub(crate) cutoff_layers: Option<NonZeroUsize>,

    /// Ignore a request's instruction if the model's prompt has no place for one, instead of refusing the
    /// request.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Prompt")]
    pub(crate) ignore_instruction: bool,

    /// The token whose logit is a generative re-ranker's raw score: its text, or its number as `id:9454`
    /// [default: by `1_LogitScore/config.json`, else by the model's family].
    #[arg(long, env, help_heading = "Score")]
    pub(crate) rerank_true_token: Option<NamedAnswer>,

    /// The token whose logit is subtracted from it [default: none if `--rerank-true-token` is given].
    #[arg(long, env, requires = "rerank_true_token", help_heading = "Score")]
    pub(crate) rerank_false_token: Option<NamedAnswer>,

    /// How a re-ranker's score follows from its raw score, x [default: by the model's family, else
    /// `sigmoid`].
    ///
    /// `sigmoid`, `sigmoid(x/5)`, `sigmoid(x-2.65)`, `(x+1)/2` or `identity`. Requests may ask for raw
    /// scores.
    #[arg(long, env, help_heading = "Score")]
    pub(crate) rerank_activation: Option<ScoreRule>,

    /// A file that `text-embeddings-router-calibrate` wrote for this model: scores of a re-ranker, or answers
    /// of a decider, become probabilities as in its judged data.
    ///
    /// A file that was made for another model, prompt or arithmetic is refused. `GET /info` names it.
    #[arg(long, env, help_heading = "Score", value_name = "FILE", conflicts_with = "rerank_activation")]
    pub(crate) calibration: Option<PathBuf>,

    /// Let control tokens such as `<|im_end|>` in a client's text take effect.
    ///
    /// Only for comparisons with other servers, because a document can then answer for the model.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Prompt")]
    pub(crate) parse_special_tokens: bool,

    /// The longest input in tokens, prompt included [default: by the model's files; 8192 for generative
    /// re-rankers, 32768 for jina-reranker-v3, whose prompts hold many documents].
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>, help_heading = "Limits")]
    pub(crate) max_input_length: Option<NonZeroUsize>,

    /// Cut inputs that are too long, unless a request says otherwise, instead of refusing them.
    #[arg(
        long, env, action = ArgAction::Set, num_args = 0..=1,
        default_value = "true", default_missing_value = "true",
        value_parser = values::optional_switch, help_heading = "Limits"
    )]
    pub(crate) auto_truncate: bool,

    /// The most tokens of one forward pass; a prefix that several texts share counts once [default: 16384; on
    /// the CPU, with a prefix cache, 256 for each of `--threads`, of small models more].
    ///
    /// Longer inputs are computed alone. If this flag is given and `--max-input-length` is not, they are cut
    /// to it.
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>, help_heading = "Limits")]
    pub(crate) max_batch_tokens: Option<NonZeroUsize>,

    /// The most texts of one forward pass [default: no limit].
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>, help_heading = "Limits")]
    pub(crate) max_batch_requests: Option<NonZeroUsize>,

    /// The most bytes of memory for computed beginnings of texts (template, instruction, query, prompt); 0:
    /// none.
    ///
    /// Later requests that begin alike need not compute them again. A GPU keeps them in 16-bit arithmetic
    /// only.
    #[arg(long, env, default_value = "268435456", value_parser = whole::<usize>, help_heading = "Limits")]
    pub(crate) prefix_cache_bytes: usize,

    /// The threads that tokenize [default: the cores less one, 2 to 64].
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>, help_heading = "Threads")]
    pub(crate) tokenization_workers: Option<NonZeroUsize>,

    /// The threads that compute [default: all cores, or the container's CPU quota rounded up].
    ///
    /// More than the cores are slower; more than four times the cores are refused.
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>, help_heading = "Threads")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// Keep each computing thread on a CPU of its own, among those that this process may use [default: if
    /// there are as many threads as CPUs].
    ///
    /// Next to other busy processes, threads without CPUs of their own often wait for each other on one CPU.
    #[arg(
        long, env, num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = BoolishValueParser::new(), help_heading = "Threads"
    )]
    pub(crate) pin_threads: Option<bool>,
}

/// How a model's files are fetched.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub(crate) struct HubArgs {
    /// The branch, tag, commit or `refs/pr/N` of the model on the Hub.
    #[arg(long, env, default_value = "main", help_heading = "Model")]
    pub(crate) revision: String,

    /// The model's GGUF file, if it has several, or other weights as well.
    ///
    /// `--model-id` may name the file, too: `owner/name:FILE.gguf`.
    #[arg(long, env, help_heading = "Model")]
    pub(crate) gguf_file: Option<String>,

    /// The token for gated and private models on the Hub [default: the Hub client's own].
    #[arg(long, env, hide_env_values = true, help_heading = "Model")]
    pub(crate) hf_token: Option<Secret>,

    /// The old name of `--hf-token`, which wins if both are given.
    // Without a heading, it is no key of a models file.
    #[arg(long, env, hide = true, hide_env_values = true, help_heading = None::<&str>)]
    pub(crate) hf_api_token: Option<Secret>,

    /// The folder for downloaded models [default: the Hub client's own].
    #[arg(long, env, help_heading = "Model")]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,

    /// The backend, which reads the weights and computes: `candle`, `ort` or `python`.
    ///
    /// `candle`: this server's own models and kernels. `ort`: ONNX Runtime, for models in ONNX (a build with
    /// the feature `ort`). `python`: sentence-transformers, for models that the others do not have (a build
    /// with the feature `python`).
    #[arg(long, env, value_parser = values::backend, default_value = "candle", help_heading = "Model")]
    pub(crate) backend: BackendKind,

    /// The ONNX file that `--backend ort` reads, such as `model_int8.onnx` [default: onnx/model.onnx, else
    /// model.onnx, else the only one].
    ///
    /// It is looked for in the model's folder and in its folder `onnx`.
    #[arg(long, env, help_heading = "Model", value_name = "NAME")]
    pub(crate) onnx_file: Option<String>,

    /// Let `--backend python` run the Python files of the model, with all permissions of this user.
    ///
    /// Read them first, and give a commit as `--revision`, so that they cannot change.
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
pub(crate) enum ChatTemplateSource {
    /// The prompt of a family.
    Builtin(&'static Family),
    /// A Jinja file with the roles system, query and document.
    File(PathBuf),
}
