//! Encoder, head and answers of a model, by its kind.
//!
//! Input: the configuration and the model's files. Output: [`Parts`]. What must hold: a tokenizer, template
//! or module that would give wrong answers is an error that names it.

use anyhow::Context;
use text_embeddings_backend::{Activation, BackendKind, Head, ModelType, Pool, Pooling};
use text_embeddings_core::{
    files::{self, ModelFacts, ModelFolder},
    service::{RerankScoring, ServedModel},
    tokenization::{Encoder, EncoderOptions, PromptEncoder, TextEncoder, TextOptions},
};
use tokenizers::Tokenizer;

use super::{
    prompts,
    reranker::{self, Prompt, Resolved},
    tokenizer,
};
use crate::{config::Config, info::RerankerDetails};

/// XLM-RoBERTa's tokens that represent no part of a text, for a tokenizer that does not name its own.
const EMPTY_TOKENS: [&str; 4] = ["<s>", "</s>", "<pad>", "<unk>"];

/// Everything that serving a model needs, except for its weights.
pub(super) struct Parts {
    pub(super) encoder: Encoder,
    pub(super) head: Head,
    pub(super) model: ServedModel,
    /// The instruction of requests without one; absent where the model takes none.
    pub(super) default_instruction: Option<String>,
    /// The function that sentence-transformers applies to a re-ranker's raw score.
    pub(super) score_activation: Option<String>,
    /// The settings that decide a re-ranker's scores, each with its source.
    pub(super) reranker: Option<RerankerDetails>,
}

impl Parts {
    fn new(encoder: impl Into<Encoder>, head: Head, model: ServedModel) -> Self {
        let encoder = encoder.into();
        Self { encoder, head, model, default_instruction: None, score_activation: None, reranker: None }
    }
}

/// Reads the parts from the model's files.
pub(super) fn parts(config: &Config, folder: &ModelFolder) -> anyhow::Result<Parts> {
    let tokenizer = tokenizer(folder)?;
    match config.model_type {
        ModelType::Embedding(pool) => embedding(config, folder, tokenizer, pool),
        ModelType::Classifier => {
            let labels = files::class_labels(&folder.config)?;
            let encoder = TextEncoder::new(tokenizer, text_options(config, folder))?;
            encoder.self_check("")?;
            encoder.self_check_pairs()?;
            let head = Head::classification(labels.len());
            Ok(Parts::new(encoder, head, ServedModel { labels, ..ServedModel::default() }))
        }
        ModelType::Reranker if folder.ends_in_scores => {
            let head = files::scores_head(folder)?;
            reranker(config, folder, tokenizer, Some(head), one_label())
        }
        ModelType::Reranker if folder.has_unnamed_score || has_family_head(folder) => {
            let head = Head::classification(1);
            reranker(config, folder, tokenizer, Some(head), one_label())
        }
        ModelType::Reranker => {
            let labels = files::class_labels(&folder.config)?;
            let positive = (labels.len() == 2).then(|| files::positive_label(&folder.name(), &labels));
            let head = Head::classification(labels.len());
            let scoring = RerankScoring::Logits { positive: positive.transpose()? };
            let model = ServedModel { labels, scoring, ..ServedModel::default() };
            reranker(config, folder, tokenizer, Some(head), model)
        }
        ModelType::ListwiseReranker => {
            let model = ServedModel { labels: vec!["yes".to_owned()], ..ServedModel::default() };
            reranker(config, folder, tokenizer, None, model)
        }
    }
}

/// The model of a head whose only label has no name.
fn one_label() -> ServedModel {
    ServedModel { labels: vec!["LABEL_0".to_owned()], ..ServedModel::default() }
}

fn embedding(
    config: &Config,
    folder: &ModelFolder,
    tokenizer: Tokenizer,
    pool: Pool,
) -> anyhow::Result<Parts> {
    let head = match Pooling::from_flag(pool) {
        // sentence-transformers reads the modules, and has more of them.
        Some(pooling) if config.backend == BackendKind::Python => Head::embedding(pooling, Vec::new()),
        _ => files::embedding_head(folder, pool)?,
    };
    let named: Vec<&str> = folder.empty_tokens.iter().map(String::as_str).collect();
    let empty = if named.is_empty() { &EMPTY_TOKENS[..] } else { &named };
    let model = ServedModel {
        prompts: prompts::prompts(config, folder)?,
        dimensions: folder.description.vocabulary,
        outputs: head.outputs(),
        empty_tokens: empty.iter().filter_map(|token| tokenizer.token_to_id(token)).collect(),
        ..ServedModel::default()
    };
    let last_token = match ModelFacts::from(folder).evidence().embedder() {
        Some(embedder) => Some(tokenizer.token_to_id(embedder.last_token).with_context(|| {
            format!(
                "{} puts `{}` behind each text, which the tokenizer (tokenizer.json) does not have: check \
                 that it belongs to the model",
                embedder.name, embedder.last_token
            )
        })?),
        None => None,
    };
    let options = TextOptions { last_token, ..text_options(config, folder) };
    let encoder = TextEncoder::new(tokenizer, options)?;
    encoder.self_check(&model.prompts.default)?;
    Ok(Parts::new(encoder, head, model))
}

/// Whether the checkpoint has a head that only the architecture of its family describes.
fn has_family_head(folder: &ModelFolder) -> bool {
    let facts = ModelFacts::from(folder);
    let named = facts.architectures.iter().any(|name| name.ends_with("Classification"));
    let family = facts.evidence().family();
    !named && family.is_some_and(|(family, _)| family.kind() == ModelType::Reranker)
}

/// A re-ranker with a template reads a prompt; another reads the pair as its tokenizer joins it. The head of
/// a generative re-ranker is its answers.
fn reranker(
    config: &Config,
    folder: &ModelFolder,
    tokenizer: Tokenizer,
    head: Option<Head>,
    model: ServedModel,
) -> anyhow::Result<Parts> {
    let resolved = reranker::resolve(config, folder, &tokenizer)?;
    let details = resolved.details(&tokenizer);
    let Resolved { family, prompt: (prompt, _), answers, score: (score, _), .. } = resolved;
    let model = ServedModel { score, ..model };
    let score_activation = score_activation(folder, &model);
    let template = match prompt {
        Prompt::Template(template) => template,
        Prompt::Joined => {
            reranker::refuse_instruction(config)?;
            let head = head.context("the model has no head")?;
            let encoder = TextEncoder::new(tokenizer, text_options(config, folder))?;
            encoder.self_check_pairs()?;
            let parts = Parts::new(encoder, head, model);
            return Ok(Parts { score_activation, reranker: Some(details), ..parts });
        }
    };
    let is_list = template.list().is_some();
    let answers = || answers.map(|(answers, _)| Head::answers(answers)).context("no answers were found");
    let (head, model, score_activation) = if is_list {
        (Head::PROJECTOR, ServedModel { scoring: RerankScoring::Lists, ..model }, None)
    } else {
        (head.map_or_else(answers, Ok)?, model, score_activation)
    };
    let family = family.map(|(family, _)| family);
    let default_instruction = reranker::default_instruction(config, folder, &template, family)?;
    let options = EncoderOptions {
        default_instruction: default_instruction.clone(),
        ..encoder_options(config, folder)
    };
    let encoder = PromptEncoder::new(tokenizer, &template, options)?;
    encoder.self_check()?;
    let default_instruction = default_instruction.or_else(|| template.has_instruction().then(String::new));
    let parts = Parts::new(encoder, head, model);
    Ok(Parts { default_instruction, score_activation, reranker: Some(details), ..parts })
}

/// The function in a word, such as `identity`, or by its name in the files if it is not known here. As in
/// sentence-transformers, it is the sigmoid if the files name none.
fn score_activation(folder: &ModelFolder, model: &ServedModel) -> Option<String> {
    if model.labels.len() != 1 {
        return None;
    }
    let named = folder.score_activation.as_deref();
    let known = named.map_or(Some(Activation::Sigmoid), Activation::from_torch);
    known.map(|activation| activation.to_string()).or_else(|| named.map(str::to_owned))
}

/// How prompts are encoded, except for the instruction.
fn encoder_options(config: &Config, folder: &ModelFolder) -> EncoderOptions {
    EncoderOptions {
        default_instruction: None,
        max_input_length: config.max_input_length,
        parse_special_tokens: config.parse_special_tokens,
        ignore_instruction: config.ignore_instruction,
        limits: config.text_limits,
        vocabulary: Some(folder.description.vocabulary),
    }
}

/// How texts are encoded without a template.
fn text_options(config: &Config, folder: &ModelFolder) -> TextOptions {
    TextOptions {
        max_input_length: config.max_input_length,
        parse_special_tokens: config.parse_special_tokens,
        vocabulary: folder.description.vocabulary,
        has_token_types: folder.has_token_types,
        ignore_instruction: config.ignore_instruction,
        last_token: None,
    }
}
