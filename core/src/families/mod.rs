//! Families of re-rankers. Each is one declaration in `table.rs` with the prompt, the answers and the score
//! of its authors.
//!
//! Input: the hints in a model's files. Output: its [`Family`], and the reason. What must hold: a family is
//! only recognised by a name or an architecture that its authors publish, because another family's prompt
//! silently gives wrong scores; everything that is special about a family is in its row, and no other code
//! asks for a family's name.

mod score;
mod table;

pub use score::ScoreRule;
pub use table::{ALL, EMBEDDERS, QWEN3_RERANKER, UNSERVED};

use crate::templates::Slot;
use std::fmt;
use text_embeddings_backend_core::{AnswerRule, ModelType};
use tokenizers::Tokenizer;

/// A family of re-rankers with the same prompt and the same kind of answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name in messages, in `GET /info` and as `--chat-template`.
    pub name: &'static str,
    /// Parts of the names of its models, in lower case. Each model's name contains one of them.
    pub names: &'static [&'static str],
    /// Classes of `transformers` that no other family has.
    pub architectures: &'static [&'static str],
    /// The values of `model_type` in config.json.
    pub model_types: &'static [&'static str],
    /// Whether it includes re-rankers of these model types whose name does not say anything.
    pub takes_unnamed: bool,
    /// The prompt of a request without an instruction. If `instructed` is absent, also of a request with an
    /// instruction. Each string is encoded separately, as in the authors' code. `{instruction}`, `{query}`
    /// and `{document}` are the slots. In a prompt with many documents, `{each}` and `{end}` enclose the part
    /// for each document, `{count}` is their number, and `{number}` counts them from 0.
    pub prompt: &'static [&'static str],
    /// The prompt of a request with an instruction, if the authors use another one.
    pub instructed: Option<&'static [&'static str]>,
    /// The control tokens of the prompt, which the tokenizer must have.
    pub control_tokens: &'static [&'static str],
    /// A token at the end of the prompt that has no text.
    pub last_token: Option<u32>,
    /// The texts that the authors' code strips of outer whitespace.
    pub strips: &'static [Slot],
    /// The text that the authors' code uses for an empty query or document.
    pub empty: &'static str,
    /// The instruction for requests without one.
    pub default_instruction: Option<&'static str>,
    /// The tokens whose logits make the score; absent if the checkpoint has a head for it.
    pub answers: Option<Answers>,
    /// The rules of a family that reads many documents in one prompt.
    pub list: Option<ListRules>,
    /// The rule from the raw score to a score between 0 and 1.
    pub score: ScoreRule,
    /// The limits to which prompts and texts are cut.
    pub limits: Limits,
}

impl Family {
    /// The kind of its models.
    pub fn kind(&self) -> ModelType {
        if self.answers.is_some() || self.list.is_some() {
            ModelType::ListwiseReranker
        } else {
            ModelType::Reranker
        }
    }

    /// The first control token of the prompt that the tokenizer does not have.
    pub fn missing_token(&self, tokenizer: &Tokenizer) -> Option<&'static str> {
        let added = tokenizer.get_added_tokens_decoder();
        let mut tokens = self.control_tokens.iter().copied();
        tokens.find(|token| !added.values().any(|added| added.content == *token))
    }
}

/// The tokens with which a family answers, and the rule from their logits to the raw score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answers {
    /// The tokens; at least one, each once.
    pub tokens: &'static [FamilyAnswer],
    /// How weights and logits become the raw score.
    pub rule: AnswerRule,
}

/// A token with which a family answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FamilyAnswer {
    /// The token.
    pub token: AnswerName,
    /// Its part in the raw score; finite.
    pub weight: f32,
}

/// The name of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerName {
    /// The text of exactly one token.
    Text(&'static str),
    /// A token's id, whatever its text.
    Id(u32),
}

// All its weights are finite.
impl Eq for Answers {}

impl Answers {
    /// The logit of `yes` minus the logit of `no`.
    pub const YES_NO: Self =
        Self::weighted_logits(&[FamilyAnswer::text("yes", 1.0), FamilyAnswer::text("no", -1.0)]);

    /// The sum of the logits, each times its token's weight.
    const fn weighted_logits(tokens: &'static [FamilyAnswer]) -> Self {
        Self { tokens, rule: AnswerRule::WeightedLogits }
    }
}

impl FamilyAnswer {
    const fn text(text: &'static str, weight: f32) -> Self {
        Self { token: AnswerName::Text(text), weight }
    }
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.tokens.iter().map(|answer| match answer.token {
            AnswerName::Text(text) => format!("`{text}`"),
            AnswerName::Id(id) => format!("the token {id}"),
        });
        match names.collect::<Vec<_>>().as_slice() {
            [only] => write!(f, "{only} alone"),
            names => f.write_str(&names.join(" and ")),
        }
    }
}

/// The rules for many documents in one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListRules {
    /// The tokens of the prompt whose states become vectors: the one behind each document, then the one
    /// behind the query.
    pub marks: [&'static str; 2],
    /// Strings that the authors' code removes from the texts of requests, in this order.
    pub removes: &'static [&'static str],
    /// The most documents of a prompt.
    pub max_documents: usize,
}

/// The limits of a family on its prompt and texts, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The whole prompt, if `--max-input-length` is not given.
    pub prompt: usize,
    /// Everything between the fixed beginning and the fixed end of the prompt, if `--max-input-length` is not
    /// given.
    pub texts: Option<usize>,
    /// The query. It is cut to this length before the document is cut at all.
    pub query: Option<QueryLimit>,
    /// Each document, in a prompt with many.
    pub document: Option<usize>,
}

/// The limit on a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryLimit {
    /// A number of tokens.
    Tokens(usize),
    /// Three quarters of the tokens that remain after the fixed beginning and the fixed end of the prompt.
    ThreeQuarters,
}

impl Limits {
    /// For families whose authors do not recommend a limit. Some models have positions for five times as many
    /// tokens.
    pub const DEFAULT: Self = Self { prompt: 8192, texts: None, query: None, document: None };
}

/// An embedding model whose authors' code does more than its files say.
#[derive(Debug, PartialEq, Eq)]
pub struct Embedder {
    /// Its name in messages.
    pub name: &'static str,
    /// As in [`Family::names`].
    pub names: &'static [&'static str],
    /// As in [`Family::model_types`].
    pub model_types: &'static [&'static str],
    /// The token that the authors' code appends to each text.
    pub last_token: &'static str,
    /// The prompt for queries, for models whose files do not name one.
    pub query_prompt: &'static str,
}

/// Models that rank texts in another way than by one forward pass per pair, and are not supported.
#[derive(Debug, PartialEq, Eq)]
pub struct Unserved {
    /// As in [`Family::names`].
    pub names: &'static [&'static str],
    /// The model's way of ranking, and the remedy.
    pub reason: &'static str,
}

/// The hints in a model's files about its family.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// Its names in lower case: the last part of its Hub id or the folder's name, then the name in
    /// `_name_or_path`.
    pub names: Vec<String>,
    /// `architectures` of config.json.
    pub architectures: &'a [String],
    /// `model_type` of config.json.
    pub model_type: &'a str,
}

impl Evidence<'_> {
    /// The first of the model's names that contains one of `parts`.
    fn named(&self, parts: &[&str]) -> Option<&str> {
        self.names.iter().find(|name| parts.iter().any(|part| name.contains(part))).map(String::as_str)
    }

    /// The family whose architecture or name the model has, and which of the two it is.
    pub fn family(&self) -> Option<(&'static Family, String)> {
        let by_architecture = ALL.iter().find_map(|family| {
            let found =
                self.architectures.iter().find(|name| family.architectures.contains(&name.as_str()))?;
            Some((*family, format!("its architecture is {found}")))
        });
        by_architecture.or_else(|| {
            let mut fitting = ALL.iter().filter(|family| family.model_types.contains(&self.model_type));
            fitting.find_map(|family| {
                let name = self.named(family.names)?;
                Some((*family, format!("its name `{name}` says so")))
            })
        })
    }

    /// The family of a re-ranker whose name does not say anything, by its `model_type`. `None` if its name
    /// belongs to a family with other architectures.
    pub fn unnamed_family(&self) -> Option<&'static Family> {
        if ALL.iter().any(|family| self.named(family.names).is_some()) {
            return None;
        }
        ALL.iter()
            .find(|family| family.takes_unnamed && family.model_types.contains(&self.model_type))
            .copied()
    }

    /// The model's entry in [`EMBEDDERS`].
    pub fn embedder(&self) -> Option<&'static Embedder> {
        EMBEDDERS
            .iter()
            .find(|it| it.model_types.contains(&self.model_type) && self.named(it.names).is_some())
    }

    /// The reason why the model is not supported, if its name is a known one.
    pub fn unserved(&self) -> Option<&'static str> {
        UNSERVED.iter().find(|it| self.named(it.names).is_some()).map(|it| it.reason)
    }
}

/// The family with this name.
///
/// # Errors
///
/// A list of the names, if there is no such family.
pub fn by_name(name: &str) -> Result<&'static Family, String> {
    let name = if name == BUILTIN { QWEN3_RERANKER.name } else { name };
    ALL.iter().find(|family| family.name == name).copied().ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|family| family.name).collect();
        format!("there is no built-in template `{name}`: choose one of {BUILTIN}, {}", names.join(", "))
    })
}

/// The former name of Qwen3-Reranker's prompt.
pub const BUILTIN: &str = "builtin";
