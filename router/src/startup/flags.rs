//! The flags that decide what a model is and how it is served, from the command line's.
//!
//! Input: [`Args`]. Output: [`ModelFlags`] and the limits on requests. What must hold: an empty value, which
//! a chart may give to a variable, counts as not given.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use text_embeddings_backend::ON_CPU;
use text_embeddings_backend_core::WeightChoices;
use text_embeddings_core::{
    infer::EngineLimits,
    model::{
        BatchConditions, Calibration, EmbedderRanking, FLAGS, LengthFlags, Model, ModelFlags, PromptFlag,
        Refusal,
    },
    service::ServiceConfig,
};
use text_embeddings_door::read_small_text;

use crate::{
    args::{Args, ChatTemplateSource, nonempty},
    machine::Machine,
};

const DEFAULT_MAX_CLIENT_BATCH_SIZE: usize = 32;
const DEFAULT_MAX_RERANK_TEXTS: usize = 1000;
/// `OpenAI`'s own limit. Clients of `OpenAI` send up to this many texts in one request.
const DEFAULT_MAX_OPENAI_INPUTS: usize = 2048;
/// The bytes of a value of a vector in JSON, such as `-0.07785141,`.
const VALUE_BYTES: usize = 12;

/// The flags about the model. Fails if the file of `--chat-template` cannot be read.
pub(crate) fn model_flags(args: &Args) -> Result<ModelFlags, Refusal> {
    let model = &args.model;
    let chat_template = match &model.chat_template {
        None => None,
        Some(ChatTemplateSource::Builtin(family)) => Some(PromptFlag::Builtin(family)),
        Some(ChatTemplateSource::File(path)) => {
            let source = read_small_text(path).map_err(|error| Refusal::template_file(path, &error))?;
            Some(PromptFlag::File { path: path.clone(), source })
        }
    };
    let calibration = match &model.calibration {
        None => None,
        Some(path) => {
            let text = read_small_text(path).map_err(|error| Refusal::calibration(path, &error))?;
            Some(Calibration::from_text(path, &text)?)
        }
    };
    Ok(ModelFlags {
        model_type: model.model_type,
        pooling: args.pooling,
        backend: model.hub.backend,
        dense_path: nonempty(args.dense_path.as_ref()).cloned(),
        weights: WeightChoices {
            lora_task: nonempty(args.lora_task.as_ref()).cloned(),
            cutoff_layers: model.cutoff_layers.map(NonZeroUsize::get),
        },
        default_prompt: args.default_prompt.clone(),
        default_prompt_name: nonempty(args.default_prompt_name.as_ref()).cloned(),
        embedder_ranking: match (args.no_cosine_rerank, args.maxsim_rerank) {
            (true, _) => EmbedderRanking::Refused,
            (false, true) => EmbedderRanking::MaxSim,
            (false, false) => EmbedderRanking::Cosine,
        },
        default_instruction: model.default_instruction.clone(),
        chat_template,
        parse_special_tokens: model.parse_special_tokens,
        ignore_instruction: model.ignore_instruction,
        rerank_true_token: model.rerank_true_token.clone(),
        rerank_false_token: model.rerank_false_token.clone(),
        rerank_activation: model.rerank_activation,
        calibration,
        lengths: LengthFlags {
            max_input_length: model.max_input_length.map(NonZeroUsize::get),
            max_batch_tokens: model.max_batch_tokens.map(NonZeroUsize::get),
            auto_truncate: model.auto_truncate,
            on_cpu: ON_CPU,
        },
        given: FLAGS.iter().map(|flag| flag.name).filter(|name| is_given(args, name)).collect(),
    })
}

/// Whether a flag of [`FLAGS`] was given.
fn is_given(args: &Args, flag: &str) -> bool {
    let (model, hub) = (&args.model, &args.model.hub);
    match flag {
        "--onnx-file" => nonempty(hub.onnx_file.as_ref()).is_some(),
        "--python" => model.python.is_some(),
        "--trust-remote-code" => hub.trust_remote_code,
        "--instruction-set" => model.instruction_set.is_some(),
        "--pin-threads" => model.pin_threads == Some(true),
        "--default-instruction" => nonempty(model.default_instruction.as_ref()).is_some(),
        "--chat-template" => model.chat_template.is_some(),
        "--rerank-activation" => model.rerank_activation.is_some(),
        "--calibration" => model.calibration.is_some(),
        "--cutoff-layers" => model.cutoff_layers.is_some(),
        "--rerank-true-token" => model.rerank_true_token.is_some(),
        "--min-score" => args.min_score.is_some(),
        "--ignore-instruction" => model.ignore_instruction,
        "--default-prompt" => nonempty(args.default_prompt.as_ref()).is_some(),
        "--default-prompt-name" => nonempty(args.default_prompt_name.as_ref()).is_some(),
        "--no-cosine-rerank" => args.no_cosine_rerank,
        "--maxsim-rerank" => args.maxsim_rerank,
        "--dense-path" => nonempty(args.dense_path.as_ref()).is_some(),
        "--lora-task" => nonempty(args.lora_task.as_ref()).is_some(),
        _ => false,
    }
}

/// The limits on batches and on requests in flight.
pub(crate) fn engine_limits(
    args: &Args,
    machine: &Machine,
    served: &Model,
    token_work: Option<u64>,
) -> EngineLimits {
    let model = &args.model;
    EngineLimits {
        max_batch_tokens: batch_tokens(args, machine, token_work),
        max_input_length: served.limits.max_input_length,
        max_batch_requests: model.max_batch_requests.map(NonZeroUsize::get),
        max_concurrent_requests: args.max_concurrent_requests.get(),
        max_queue_tokens: args.max_queue_tokens.get(),
        device_timeout: device_timeout(args),
    }
}

/// The token budget of a batch, for a model with this work for each token.
pub(crate) fn batch_tokens(args: &Args, machine: &Machine, token_work: Option<u64>) -> usize {
    let (threads, prefix_cache_bytes) = (machine.threads, args.model.prefix_cache_bytes);
    let conditions = BatchConditions { on_cpu: ON_CPU, threads, prefix_cache_bytes, token_work };
    args.model.max_batch_tokens.map_or_else(|| conditions.default_tokens(), NonZeroUsize::get)
}

/// How long a batch may take before the device counts as hung.
pub(crate) fn device_timeout(args: &Args) -> Option<Duration> {
    (args.device_timeout > 0).then(|| Duration::from_secs(args.device_timeout.into()))
}

/// The limits and defaults of requests to a model, whose vectors have `dimensions` values.
pub(crate) fn service_config(
    args: &Args,
    model: Model,
    dimensions: usize,
    calibration: Option<Calibration>,
) -> ServiceConfig {
    let max_client_batch_size = args.max_client_batch_size.map(NonZeroUsize::get);
    ServiceConfig {
        model: Arc::new(model),
        calibration: calibration.map(Arc::new),
        dimensions,
        // TEI's flag bounds re-ranking, too.
        max_rerank_texts: args
            .max_rerank_texts
            .map(NonZeroUsize::get)
            .or(max_client_batch_size)
            .unwrap_or(DEFAULT_MAX_RERANK_TEXTS),
        max_questions: args.max_questions.get(),
        min_score: args.min_score,
        max_client_batch_size: max_client_batch_size.unwrap_or(DEFAULT_MAX_CLIENT_BATCH_SIZE),
        max_openai_inputs: max_client_batch_size.unwrap_or(DEFAULT_MAX_OPENAI_INPUTS),
        max_answer_values: args.door.max_unsent_bytes.get() / VALUE_BYTES,
        auto_truncate: args.model.auto_truncate,
        queue_timeout: args.queue_timeout,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use text_embeddings_backend_core::Head;
    use text_embeddings_core::model::{InputLimits, ModelKind};

    fn args(flags: &str) -> Args {
        Args::with_flags(flags).unwrap()
    }

    #[test]
    fn every_flag_of_the_table_is_given_by_a_value_that_is_not_empty() {
        // It is read at once, and excludes `--rerank-activation`.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.json");
        let content = r#"{"model_id":"m","arithmetic":"float32","prompt_hash":"1","data":{"name":"d"}}"#;
        std::fs::write(&file, content).unwrap();
        let calibrated = format!("--default-prompt x --maxsim-rerank --calibration {}", file.display());
        for (flags, expected) in [
            ("", &[][..]),
            ("--dense-path= --default-prompt= --lora-task=", &[]),
            ("--default-prompt-name=", &[]),
            ("--default-instruction= --onnx-file=", &[]),
            ("--default-prompt x --dense-path y", &["--default-prompt", "--dense-path"]),
        ] {
            assert_eq!(model_flags(&args(flags)).unwrap().given, expected, "{flags}");
        }
        let with_values = "--onnx-file m.onnx --python python3 --trust-remote-code --instruction-set portable \
            --pin-threads --default-instruction x --chat-template builtin --rerank-activation identity \
            --cutoff-layers 3 --rerank-true-token yes --dense-path 2_Dense --lora-task t --default-prompt-name n \
            --no-cosine-rerank --min-score -0.5 --ignore-instruction";
        let mut given = model_flags(&args(with_values)).unwrap().given;
        given.extend(model_flags(&args(&calibrated)).unwrap().given);
        given.sort_unstable();
        let mut names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        assert_eq!(given, names);
    }

    #[test]
    fn a_file_that_cannot_be_read_or_never_ends_is_named() {
        for (path, problem) in [
            ("/no/such.jinja", ": No such file or directory (os error 2)"),
            ("/dev/zero", ": it is not a regular file"),
        ] {
            let refusal = |flag: &str| model_flags(&args(&format!("{flag} {path}"))).unwrap_err().to_string();
            let error = refusal("--chat-template");
            let start =
                format!("`--chat-template {path}`: give a Jinja file, or one of builtin, qwen3-reranker, ");
            assert!(error.starts_with(&start) && error.ends_with(problem), "{error}");
            assert_eq!(refusal("--calibration"), format!("`--calibration {path}`{problem}"));
        }
    }

    fn config(flags: &str) -> ServiceConfig {
        service_config(&args(flags), classifier_model(), 0, None)
    }

    fn classifier_model() -> Model {
        let (reason, limits) = (String::new(), InputLimits::default());
        Model { kind: ModelKind::Classifier(Vec::new()), reason, head: Head::SPLADE, limits }
    }

    #[test]
    fn the_limits_of_reranking_and_openais_route_follow_teis_flag_where_that_is_given() {
        let table = [
            ("", 1000, 2048),
            ("--max-client-batch-size 16", 16, 16),
            ("--max-client-batch-size 5000", 5000, 5000),
            ("--max-rerank-texts 7", 7, 2048),
            ("--max-client-batch-size 16 --max-rerank-texts 200", 200, 16),
        ];
        for (flags, rerank, openai) in table {
            let config = config(flags);
            assert_eq!((config.max_rerank_texts, config.max_openai_inputs), (rerank, openai), "{flags}");
        }
    }

    #[test]
    fn counts_have_the_contracts_defaults() {
        let args = args("--threads 2");
        let limits = engine_limits(&args, &Machine::from_args(&args).unwrap(), &classifier_model(), None);
        assert_eq!((limits.max_concurrent_requests, limits.max_batch_requests), (512, None));
        assert_eq!(limits.max_batch_tokens, if ON_CPU { 512 } else { 16_384 });
        assert_eq!(config("").max_client_batch_size, 32);
    }
}
