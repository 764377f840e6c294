//! The model that is served, decided once at the start by [`Model::resolve`].
//!
//! Input: a [`ModelFolder`], its tokenizer, [`ModelFlags`]. Output: a [`Model`], which requests, `GET /info`,
//! the log and the metrics read. What must hold: pure functions of their input; a file or flag that would
//! give wrong answers is a [`Refusal`] that names it.

mod calibration;
mod decider;
mod detect;
mod embedder;
mod flags;
mod laya;
mod limits;
mod pointer;
mod refusal;
mod reranker;
mod scoring;

use text_embeddings_backend_core::{BackendKind, Head, ModelType};
use tokenizers::Tokenizer;

pub use calibration::{Calibration, DecisionTemperatures, MadeFor};
pub use decider::{Decider, Deciding, LabelDecider};
pub use detect::{Detected, RequestedType, check_head, detect_kind};
pub use embedder::{ComparedVectors, CosineRanking, EmbeddingModel, InputType, Prompts, bare_tokens};
pub use flags::{EmbedderRanking, FLAGS, FlagScope, ModelFlags, PromptFlag};
pub use laya::Laya;
pub use limits::{BatchConditions, DEFAULT_MAX_BATCH_TOKENS, InputLimits, LengthFlags};
pub use pointer::Pointer;
pub use refusal::Refusal;
pub use reranker::{Reading, Reranker};
pub use scoring::RerankScoring;

use self::limits::LengthBounds;
use crate::files::{ModelFolder, class_labels};
use crate::templates::PromptTemplate;
use crate::tokenization::{
    Encoder, EncoderError, EncoderOptions, MarkedLayout, PromptEncoder, TextEncoder, TextOptions,
};

/// A decision, and where it comes from, for messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The decision.
    pub value: T,
    /// Its source in words.
    pub source: String,
}

impl<T> Sourced<T> {
    fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into() }
    }
}

/// The kind of a model, and how it is served.
#[derive(Debug, Clone)]
pub struct Model {
    /// The kind, with the parts that only models of this kind have.
    pub kind: ModelKind,
    /// The reason why it is of this kind, in words.
    pub reason: String,
    /// The head: the computation after the last hidden states.
    pub head: Head,
    /// The limits on its inputs.
    pub limits: InputLimits,
}

/// The kind of a model.
#[derive(Debug, Clone)]
pub enum ModelKind {
    /// Texts become vectors.
    Embedder(EmbeddingModel),
    /// Texts or pairs get one of these labels, in the order of their classes.
    Classifier(Vec<String>),
    /// Pairs of a query and a document get a score.
    Reranker(Box<Reranker>),
    /// Questions about a text get a probability for each answer.
    Decider(Box<Decider>),
}

impl ModelKind {
    /// The kind in the words of the command line.
    pub fn model_type(&self) -> ModelType {
        match self {
            Self::Embedder(model) => ModelType::Embedding(model.pool),
            Self::Classifier(_) => ModelType::Classifier,
            Self::Reranker(model) if model.is_generative => ModelType::ListwiseReranker,
            Self::Reranker(_) => ModelType::Reranker,
            Self::Decider(_) => ModelType::Decider,
        }
    }
}

impl Model {
    /// Decides the kind of a model and all that depends on it.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if files and flags leave something open, contradict each other, or name something that is
    /// not supported.
    pub fn resolve(files: &ModelFolder, tokenizer: &Tokenizer, flags: &ModelFlags) -> Result<Self, Refusal> {
        let Detected { model_type, reason } =
            detect_kind(files, flags.model_type, flags.pooling, flags.named_family())?;
        flags.check_kind(model_type, &files.model_id)?;
        let (kind, head) = match model_type {
            ModelType::Embedding(pool) => {
                let (model, head) = EmbeddingModel::resolve(files, tokenizer, flags, pool)?;
                (ModelKind::Embedder(model), head)
            }
            ModelType::Classifier => {
                let labels = class_labels(&files.config)?;
                let head = Head::classification(labels.len());
                (ModelKind::Classifier(labels), head)
            }
            ModelType::Reranker | ModelType::ListwiseReranker => {
                let (model, head) = Reranker::resolve(files, tokenizer, flags, model_type)?;
                (ModelKind::Reranker(Box::new(model)), head)
            }
            ModelType::Decider => {
                let (model, head) = Decider::resolve_decider(files, tokenizer, flags)?;
                (ModelKind::Decider(Box::new(model)), head)
            }
        };
        let limits = InputLimits::resolve(flags.lengths, &length_bounds(files, flags, &kind))?;
        Ok(Self { kind, reason, head, limits })
    }

    /// The kind in the words of the command line.
    pub fn model_type(&self) -> ModelType {
        self.kind.model_type()
    }

    /// The kind in words, for people.
    pub fn kind_name(&self) -> String {
        match self.reranker() {
            Some(model) if model.late.is_some() => "late-interaction re-ranker".to_owned(),
            _ => self.model_type().to_string(),
        }
    }

    /// The embedding model, if it is one.
    pub fn embedder(&self) -> Option<&EmbeddingModel> {
        if let ModelKind::Embedder(model) = &self.kind { Some(model) } else { None }
    }

    /// How it re-ranks by cosine, if it is an embedding model that does.
    pub fn cosine_ranking(&self) -> Option<&CosineRanking> {
        self.embedder().and_then(|model| model.cosine_ranking.as_ref())
    }

    /// The re-ranker, if it is one.
    pub fn reranker(&self) -> Option<&Reranker> {
        if let ModelKind::Reranker(model) = &self.kind { Some(model) } else { None }
    }

    /// The prompts that can precede a text; none unless it is an embedding model.
    pub fn prompts(&self) -> &Prompts {
        self.embedder().map_or(Prompts::NONE, |model| &model.prompts)
    }

    /// The label of each class. `["yes"]` for a generative re-ranker; empty for an embedding model and
    /// a decider.
    pub fn labels(&self) -> &[String] {
        match &self.kind {
            ModelKind::Embedder(_) | ModelKind::Decider(_) => &[],
            ModelKind::Classifier(labels) => labels,
            ModelKind::Reranker(model) => &model.labels,
        }
    }

    /// The label of a class. A class without a label gets the numbered label of transformers.
    pub fn label(&self, class: usize) -> String {
        self.labels().get(class).cloned().unwrap_or_else(|| format!("LABEL_{class}"))
    }

    /// The encoder of its inputs, which encoded some texts as a test.
    ///
    /// # Errors
    ///
    /// [`EncoderError`] if the tokenizer does not fit the prompt, or does not tell texts apart.
    pub fn encoder(
        &self,
        files: &ModelFolder,
        tokenizer: Tokenizer,
        flags: &ModelFlags,
    ) -> Result<Encoder, EncoderError> {
        if let Some((template, default_instruction)) = self.prompt_template() {
            let options = EncoderOptions {
                default_instruction: default_instruction.cloned(),
                max_input_length: self.limits.max_input_length,
                parse_special_tokens: flags.parse_special_tokens,
                ignore_instruction: flags.ignore_instruction,
                limits: self.limits.texts,
                vocabulary: Some(files.description.vocabulary),
            };
            let encoder = PromptEncoder::new(tokenizer, template, options)?;
            match self.kind {
                ModelKind::Decider(_) => encoder.self_check_questions()?,
                _ => encoder.self_check()?,
            }
            return Ok(encoder.into());
        }
        let embedder = self.embedder();
        let options = TextOptions {
            max_input_length: self.limits.max_input_length,
            parse_special_tokens: flags.parse_special_tokens,
            vocabulary: files.description.vocabulary,
            has_token_types: files.has_token_types,
            ignore_instruction: flags.ignore_instruction,
            last_token: embedder.and_then(|model| model.last_token),
            bare: embedder.and_then(|model| model.bare_tokens),
            late: self.reranker().and_then(|model| model.late.clone()),
            marked: match self.as_decider() {
                Some(Decider::Laya(laya)) => Some(MarkedLayout::Laya(laya.tokens.clone())),
                Some(Decider::Pointer(pointer)) => Some(MarkedLayout::Pointer(pointer.tokens.clone())),
                Some(Decider::Labels(_)) | None => None,
            },
        };
        let encoder = TextEncoder::new(tokenizer, options)?;
        match &self.kind {
            ModelKind::Embedder(model) => encoder.self_check(&model.prompts.default)?,
            ModelKind::Classifier(_) => {
                encoder.self_check("")?;
                encoder.self_check_pairs()?;
            }
            ModelKind::Reranker(model) if model.late.is_some() => encoder.self_check("")?,
            ModelKind::Reranker(_) => encoder.self_check_pairs()?,
            ModelKind::Decider(_) => {}
        }
        Ok(encoder.into())
    }

    /// The template of its inputs, if they have one, and the instruction of requests without one.
    fn prompt_template(&self) -> Option<(&PromptTemplate, Option<&String>)> {
        match &self.kind {
            ModelKind::Reranker(model) => match &model.reading {
                Reading::Template(template) => Some((template, model.instruction.as_ref())),
                Reading::Joined => None,
            },
            ModelKind::Decider(model) => match model.as_ref() {
                Decider::Labels(model) => Some((model.conversation.value.prompt_template(), None)),
                Decider::Laya(_) | Decider::Pointer(_) => None,
            },
            ModelKind::Embedder(_) | ModelKind::Classifier(_) => None,
        }
    }
}

fn length_bounds(files: &ModelFolder, flags: &ModelFlags, kind: &ModelKind) -> LengthBounds {
    // sentence-transformers cuts inputs there.
    let tokenizer_cuts = flags.backend == BackendKind::Python || files.tokenizer_cuts;
    let positions = files.description.max_length;
    let of_tokenizer = files.model_max_length.map(|length| length.min(positions.unwrap_or(usize::MAX)));
    LengthBounds {
        // PyLate leaves the length of its last call in the file.
        max_seq_length: match &files.late_interaction {
            Some(late) => late.max_length(of_tokenizer),
            None => files.max_seq_length,
        },
        model_max_length: if tokenizer_cuts { files.model_max_length } else { None },
        positions,
        recommended: reranker::recommended_limits(files, flags, kind.model_type()),
        reads_lists: matches!(kind, ModelKind::Reranker(model) if model.reads_lists()),
        never_cuts: matches!(kind, ModelKind::Decider(_)),
    }
}
