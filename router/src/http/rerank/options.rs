//! The options of the dialects of re-ranking and scoring, each under the names that clients use.
//!
//! Input: a body's fields. Output: [`Options`], alone or with the rest of the body ([`WithOptions`]). What
//! must hold: a field is honoured, or has no effect because it cannot change the answer, or is refused by
//! name; of two names for one option the more specific one wins.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{
    Deserialize,
    de::{Error, IgnoredAny, MapAccess},
};
use text_embeddings_core::{
    service::RerankRequest,
    tokenization::{TokenLimits, TruncationDirection},
};
use utoipa::ToSchema;

use super::parts::{HighlightCount, LongDocuments, wanted_chunking};
use crate::http::{
    named_fields::{FieldNotes, Noted, WithNames},
    schemas::{only_null, prompt_tokens},
    shared::{TruncateChoice, TruncationSide},
};
use crate::models::Served;

/// The options that the dialects share. TEI's body has some of them, and sets these.
#[derive(Debug, Default, ToSchema)]
#[schema(as = RerankOptions)]
pub(crate) struct Options {
    /// The name of one of several models. Without effect if the server has one.
    pub(super) model: Option<String>,
    /// What "relevant" means, for a generative re-ranker. Absent: as `--default-instruction` of the server
    /// says.
    pub(super) instruction: Option<String>,
    /// `SGLang`'s name for `instruction`.
    pub(super) instruct: Option<String>,
    /// `vLLM`'s place for `instruction`. It has priority over the others.
    #[schema(value_type = Option<TemplateArguments>)]
    pub(super) chat_template_kwargs: Option<WithNames<TemplateArguments>>,
    /// Whether a prompt that is too long for the model is cut, or the end from which a text is cut. Absent or
    /// null: as `--auto-truncate` of the server says.
    pub(super) truncate: Option<TruncateChoice>,
    /// Voyage's name for `truncate`.
    pub(super) truncation: Option<bool>,
    /// `vLLM`: the most tokens of a prompt, template and instruction included; -1 for as many as the model
    /// takes.
    #[schema(schema_with = prompt_tokens)]
    pub(super) truncate_prompt_tokens: Option<i64>,
    /// The end from which a text is cut.
    pub(super) truncation_side: Option<TruncationSide>,
    /// TEI's name for `truncation_side`.
    pub(super) truncation_direction: Option<TruncationSide>,
    /// The most tokens of each document; 0 for no limit but the model's.
    pub(super) max_tokens_per_doc: Option<usize>,
    /// The most tokens of each query; 0 for no limit but the model's.
    pub(super) max_tokens_per_query: Option<usize>,
    /// Whether a document that does not fit is cut, as by default, or divided into chunks. Then it has the
    /// score of its best chunk, and the answer says which one that is.
    pub(super) long_documents: Option<LongDocuments>,
    /// The most chunks of a document; the rest of it is cut. Asks for chunks unless `long_documents` is
    /// `cut`. Absent or null: 10.
    pub(super) max_chunks_per_doc: Option<usize>,
    /// The most tokens that a chunk repeats of the one before it. Asks for chunks unless `long_documents`
    /// is `cut`. Absent or null: 0.
    pub(super) chunk_overlap: Option<usize>,
    /// The number of best documents whose sentences get scores of their own; true for all that are returned.
    pub(super) highlight: Option<HighlightCount>,
    /// Scores before the sigmoid.
    pub(super) raw_scores: Option<bool>,
    /// `vLLM`'s opposite of `raw_scores`.
    pub(super) use_activation: Option<bool>,
    /// The least score of a document in the answer, as the answer shows it. Absent or null: as `--min-score`
    /// of the server says. Refused on `/score`.
    pub(super) min_score: Option<f32>,
    /// The answer's `id`. Absent: the server makes one.
    pub(crate) request_id: Option<String>,
    /// Refused unless null: there are no images or sounds to process.
    #[schema(schema_with = only_null)]
    pub(super) mm_processor_kwargs: Option<IgnoredAny>,
}

/// The arguments that `vLLM` passes to a chat template; all but the instruction are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = RerankTemplateArguments)]
pub(super) struct TemplateArguments {
    instruction: Option<String>,
}

impl Options {
    /// The request to rank `texts`, all of them, without repeating them in the answer.
    pub(super) fn request(&self, query: String, texts: Vec<String>) -> RerankRequest {
        RerankRequest {
            query,
            texts,
            instruction: self.instruction(),
            truncate: self.truncate(),
            truncation_direction: self.direction(),
            limits: self.limits(),
            raw_scores: self.raw_scores(),
            return_text: false,
            min_score: self.min_score,
            top_n: None,
            chunking: wanted_chunking(self.long_documents, self.max_chunks_per_doc, self.chunk_overlap),
            highlight: self.highlight.map_or(0, HighlightCount::max_texts),
        }
    }

    /// The instruction: among the template's arguments, else `instruction`, else `instruct`.
    pub(crate) fn instruction(&self) -> Option<String> {
        let argument =
            self.chat_template_kwargs.as_ref().and_then(|arguments| arguments.body.instruction.as_ref());
        argument.or(self.instruction.as_ref()).or(self.instruct.as_ref()).cloned()
    }

    /// Whether a prompt that is too long for the model is cut, if the request says so or the opposite.
    pub(crate) fn truncate(&self) -> Option<bool> {
        let whole_model = self.truncate_prompt_tokens.map(|_| true);
        let named = self.truncate.map(|choice| choice.cut_end().is_allowed());
        named.or(self.truncation).or(whole_model)
    }

    /// The end from which a text is cut.
    pub(crate) fn direction(&self) -> TruncationDirection {
        match self.truncation_side.or(self.truncation_direction) {
            Some(side) => side.into(),
            None => self.truncate.map(|choice| choice.cut_end().cut_side()).unwrap_or_default(),
        }
    }

    /// The request's own limits. A client sends 0 for no limit, and -1 for no limit of the prompt.
    pub(crate) fn limits(&self) -> TokenLimits {
        let [query, document] = [self.max_tokens_per_query, self.max_tokens_per_doc]
            .map(|limit| limit.filter(|tokens| *tokens > 0));
        let prompt = self.truncate_prompt_tokens.filter(|tokens| *tokens > 0);
        TokenLimits {
            query,
            document,
            prompt: prompt.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)),
        }
    }

    /// Whether the answer has scores before the sigmoid.
    pub(crate) fn raw_scores(&self) -> bool {
        self.raw_scores.unwrap_or(self.use_activation == Some(false))
    }

    /// Sets NIM's defaults: a text that is too long is refused, and scores are logits.
    pub(super) fn take_nims_defaults(&mut self) {
        if self.truncate().is_none() {
            self.truncate = Some(TruncateChoice::Cut(false));
        }
        self.use_activation.get_or_insert(false);
    }

    /// Refuses values that have no meaning, and fields that would change the answer and are not supported.
    /// The error names the field and says why.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.mm_processor_kwargs.is_some() {
            return Err("`mm_processor_kwargs` is not supported: only text is ranked".to_owned());
        }
        match self.truncate_prompt_tokens {
            Some(tokens) if tokens < 1 && tokens != -1 => {
                Err(format!("`truncate_prompt_tokens` must be -1 or at least 1. Given: {tokens}"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses options of re-ranking on a route whose answer has one score for every pair.
    pub(crate) fn refuse_for_pairs(&self) -> Result<(), String> {
        let options = [
            ("min_score", self.min_score.is_some()),
            ("long_documents", self.long_documents == Some(LongDocuments::Chunks)),
            ("max_chunks_per_doc", self.max_chunks_per_doc.is_some()),
            ("chunk_overlap", self.chunk_overlap.is_some()),
            ("highlight", self.highlight.is_some()),
        ];
        match options.into_iter().find(|(_, is_there)| *is_there) {
            Some((name, _)) => {
                Err(format!("`{name}` is for re-ranking: on this route, every pair gets its score"))
            }
            None => Ok(()),
        }
    }

    /// Says once in the log that a request names a model that this server does not serve.
    pub(crate) fn note_model(&self, served: &Served) {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        let Some(model) = self.model.as_deref().filter(|model| !served.has_name(model)) else { return };
        if !IS_SAID.swap(true, Ordering::Relaxed) {
            let model: String = model.chars().take(100).collect();
            tracing::warn!(
                "a request names the model {model:?}; there is only {:?}, which answers whatever is \
                 named (said once)",
                served.info.served_model_name
            );
        }
    }
}

/// The options among a body's fields, which the body itself does not get.
#[derive(Debug, Default)]
pub(crate) struct ReadOptions {
    pub(crate) options: Options,
    /// The names of the options that were there.
    seen: Vec<&'static str>,
}

/// The options, and the body made of the other fields.
pub(crate) type WithOptions<T> = Noted<ReadOptions, T>;

impl FieldNotes for ReadOptions {
    fn take_field<'de, A: MapAccess<'de>>(&mut self, name: &str, fields: &mut A) -> Result<bool, A::Error> {
        macro_rules! take {
            ($($option:ident),*) => {
                match name {
                    $(stringify!($option) => self.options.$option = self.value(fields, stringify!($option))?,)*
                    _ => return Ok(false),
                }
            };
        }
        take!(
            model,
            instruction,
            instruct,
            chat_template_kwargs,
            truncate,
            truncation,
            truncate_prompt_tokens,
            truncation_side,
            truncation_direction,
            max_tokens_per_doc,
            max_tokens_per_query,
            long_documents,
            max_chunks_per_doc,
            chunk_overlap,
            highlight,
            raw_scores,
            use_activation,
            min_score,
            request_id,
            mm_processor_kwargs
        );
        Ok(true)
    }
}

impl ReadOptions {
    fn value<'de, A: MapAccess<'de>, V: Deserialize<'de>>(
        &mut self,
        fields: &mut A,
        name: &'static str,
    ) -> Result<V, A::Error> {
        if self.seen.contains(&name) {
            return Err(Error::duplicate_field(name));
        }
        self.seen.push(name);
        fields.next_value()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::{Value, json};
    use utoipa::PartialSchema;

    #[derive(Debug, Deserialize)]
    struct Rest {
        query: String,
    }

    #[test]
    fn every_described_option_is_read_and_no_other_field() {
        let schema = serde_json::to_value(Options::schema()).unwrap();
        let options: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(options.len(), 20);
        for option in options {
            let body = format!(r#"{{"{option}":null,"query":"q","{option}":null}}"#);
            let error = serde_json::from_str::<WithOptions<Rest>>(&body).unwrap_err().to_string();
            assert!(error.starts_with(&format!("duplicate field `{option}` at line 1 column")), "{error}");
        }
        let body = r#"{"other":1,"query":"q","other":2}"#;
        assert_eq!(serde_json::from_str::<WithOptions<Rest>>(body).unwrap().body.query, "q");
    }

    #[test]
    fn options_are_read_wherever_they_are() {
        let fields = [
            ("query", json!("q")),
            ("instruct", json!("i")),
            ("raw_scores", json!(true)),
            ("request_id", json!("r")),
            ("unknown", json!({"model": 3, "query": []})),
        ];
        for first in 0..fields.len() {
            let rotated = fields[first..].iter().chain(&fields[..first]);
            let members: Vec<String> = rotated.map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let text = format!("{{{}}}", members.join(","));
            let read: WithOptions<Rest> = serde_json::from_str(&text).unwrap();
            assert_eq!(read.body.query, "q", "{text}");
            assert_eq!(read.notes.options.instruction().as_deref(), Some("i"), "{text}");
            assert!(read.notes.options.raw_scores(), "{text}");
            assert_eq!(read.notes.options.request_id.as_deref(), Some("r"), "{text}");
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(WithOptions::<Rest>::deserialize(&value).unwrap().body.query, "q", "{text}");
        }
    }
}
