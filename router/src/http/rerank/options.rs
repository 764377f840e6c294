//! What the dialects of re-ranking and scoring take beside the texts, each under the names that clients use.
//!
//! Input: a body's fields. Output: [`Options`]. What must hold: a field is honoured, or has no effect because it cannot
//! change the answer, or is refused by name; of two names of one thing the more specific wins.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, de::IgnoredAny};
use text_embeddings_core::tokenization::{TokenLimits, TruncationDirection};
use utoipa::ToSchema;

use super::super::{
    TruncationSide,
    openapi::{only_null, prompt_tokens},
};

/// What the dialects share.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = RerankOptions)]
pub(crate) struct Options {
    /// Without effect: there is one model, whatever its name.
    #[schema(default = json!(null))]
    model: Option<String>,
    /// What "relevant" means, for a generative re-ranker; the server's `--default-instruction` where it is absent.
    #[schema(default = json!(null))]
    instruction: Option<String>,
    /// `SGLang`'s name of `instruction`.
    #[schema(default = json!(null))]
    instruct: Option<String>,
    /// `vLLM`'s place for `instruction`, where it wins.
    #[schema(default = json!(null))]
    chat_template_kwargs: Option<TemplateArguments>,
    /// Whether what is too long for the model is cut; the server's `--auto-truncate` where it is absent or null.
    #[schema(default = json!(null))]
    truncate: Option<bool>,
    /// Voyage's name of `truncate`.
    #[schema(default = json!(null))]
    truncation: Option<bool>,
    /// `vLLM`: the most tokens of a prompt, template and instruction included; -1 for as many as the model takes.
    #[schema(schema_with = prompt_tokens)]
    truncate_prompt_tokens: Option<i64>,
    /// From which end a text is cut.
    #[schema(default = json!(null))]
    truncation_side: Option<TruncationSide>,
    /// TEI's name of `truncation_side`.
    #[schema(default = json!(null))]
    truncation_direction: Option<TruncationSide>,
    /// The most tokens of each document; 0 for no limit but the model's.
    #[schema(default = json!(null))]
    max_tokens_per_doc: Option<usize>,
    /// The most tokens of each query; 0 for no limit but the model's.
    #[schema(default = json!(null))]
    max_tokens_per_query: Option<usize>,
    /// Scores before the sigmoid.
    #[schema(default = json!(null))]
    raw_scores: Option<bool>,
    /// `vLLM`'s opposite of `raw_scores`.
    #[schema(default = json!(null))]
    use_activation: Option<bool>,
    /// The answer's `id`; one is made where it is absent.
    #[schema(default = json!(null))]
    pub(crate) request_id: Option<String>,
    /// Refused unless null: there are no images or sounds to process.
    #[schema(schema_with = only_null)]
    mm_processor_kwargs: Option<IgnoredAny>,
}

/// What `vLLM` takes beside a request's texts; all but the instruction is ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = RerankTemplateArguments)]
pub(super) struct TemplateArguments {
    #[schema(default = json!(null))]
    instruction: Option<String>,
}

/// A limit as clients send it, of which 0 is none.
pub(super) fn limit(sent: Option<usize>) -> Option<usize> {
    sent.filter(|limit| *limit > 0)
}

impl TemplateArguments {
    /// The instruction of a request: that among the template's arguments, then `instruction`, then `instruct`.
    pub(super) fn choose(
        arguments: Option<&Self>,
        instruction: Option<&String>,
        instruct: Option<&String>,
    ) -> Option<String> {
        arguments.and_then(|arguments| arguments.instruction.as_ref()).or(instruction).or(instruct).cloned()
    }
}

impl Options {
    /// What the pairs are judged by.
    pub(crate) fn instruction(&self) -> Option<String> {
        let arguments = self.chat_template_kwargs.as_ref();
        TemplateArguments::choose(arguments, self.instruction.as_ref(), self.instruct.as_ref())
    }

    /// Whether what is too long for the model is cut, if the request says.
    pub(crate) fn truncate(&self) -> Option<bool> {
        let whole_model = self.truncate_prompt_tokens.map(|_| true);
        self.truncate.or(self.truncation).or(whole_model)
    }

    /// From which end a text is cut.
    pub(crate) fn direction(&self) -> TruncationDirection {
        self.truncation_side.or(self.truncation_direction).unwrap_or_default().into()
    }

    /// The request's own limits.
    ///
    /// # Errors
    ///
    /// For a limit that is none.
    pub(crate) fn limits(&self) -> Result<TokenLimits, String> {
        let prompt = match self.truncate_prompt_tokens {
            None | Some(-1) => None,
            Some(tokens) if tokens > 0 => Some(usize::try_from(tokens).unwrap_or(usize::MAX)),
            Some(tokens) => {
                return Err(format!("`truncate_prompt_tokens` must be -1 or at least 1. Given: {tokens}"));
            }
        };
        Ok(TokenLimits {
            query: limit(self.max_tokens_per_query),
            document: limit(self.max_tokens_per_doc),
            prompt,
        })
    }

    /// Whether scores are wanted before the sigmoid.
    pub(crate) fn raw_scores(&self) -> bool {
        self.raw_scores.unwrap_or(self.use_activation == Some(false))
    }

    /// Whether the request has Voyage's name of `truncate`, which its client always sends.
    pub(super) fn is_voyages(&self) -> bool {
        self.truncation.is_some()
    }

    /// Whether the request has `raw_scores`, which Infinity's client always sends.
    pub(super) fn is_infinitys(&self) -> bool {
        self.raw_scores.is_some()
    }

    /// Refuses what would change the answer and is not computed.
    ///
    /// # Errors
    ///
    /// The field and why it is refused.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.mm_processor_kwargs {
            None => Ok(()),
            Some(_) => Err("`mm_processor_kwargs` is not supported: only text is ranked".to_owned()),
        }
    }

    /// Says once in the log that a request names another model than there is.
    pub(crate) fn note_model(&self, served: &str) {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        let Some(model) = self.model.as_deref().filter(|model| *model != served) else { return };
        if !IS_SAID.swap(true, Ordering::Relaxed) {
            let model: String = model.chars().take(100).collect();
            tracing::warn!(
                "a request names the model {model:?}; there is only {served:?}, which answers whatever is named (said once)"
            );
        }
    }
}
