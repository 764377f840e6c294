//! Families of re-rankers: each is one declaration in `table.rs` of the prompt, the answers and the score that its
//! authors use.
//!
//! Input: what a model's files say of it. Output: the [`Family`] that it belongs to, and why. What must hold: a family is
//! recognised only by what its authors publish (a name or an architecture), because another family's prompt gives wrong
//! scores without an error; all that sets a family apart is in its row, and nothing elsewhere asks for a family's name.

mod listwise;
mod score;
mod table;

pub use listwise::Listwise;
pub use score::ScoreRule;
pub use table::{ALL, EMBEDDERS, QWEN3_RERANKER, UNSERVED};

use crate::templates::Slot;
use text_embeddings_backend_core::ModelType;
use tokenizers::Tokenizer;

/// A family of re-rankers that read the same prompt and answer alike.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name in messages, in `GET /info` and as `--chat-template`.
    pub name: &'static str,
    /// Parts of the names of its models, in lower case: one of them is in the name of each.
    pub names: &'static [&'static str],
    /// Classes of `transformers` that no other family has.
    pub architectures: &'static [&'static str],
    /// The values of `model_type` in config.json.
    pub model_types: &'static [&'static str],
    /// Whether a re-ranker of these model types whose name says nothing belongs to it.
    pub takes_unnamed: bool,
    /// The prompt of a request without an instruction; of one with an instruction, too, if `instructed` is absent. Each
    /// string is encoded on its own, as the authors' code does. `{instruction}`, `{query}` and `{document}` are the slots.
    pub prompt: &'static [&'static str],
    /// The prompt of a request with an instruction, where the authors write another one.
    pub instructed: Option<&'static [&'static str]>,
    /// The control tokens of the prompt, which the tokenizer must have.
    pub control_tokens: &'static [&'static str],
    /// A token behind the prompt that no text stands for.
    pub last_token: Option<u32>,
    /// The texts whose outer whitespace the authors' code strips.
    pub strips: &'static [Slot],
    /// The text that the authors' code writes for an empty query or document.
    pub empty: &'static str,
    /// The instruction of a request that has none.
    pub default_instruction: Option<&'static str>,
    /// The tokens whose logits are the score; absent where the checkpoint has a head for it.
    pub answers: Option<Answers>,
    /// The prompt of a family that reads many documents in one; `prompt` is empty then.
    pub listwise: Option<&'static Listwise>,
    /// From the raw score to one between 0 and 1.
    pub score: ScoreRule,
    /// What is cut where a prompt is too long.
    pub limits: Limits,
}

impl Family {
    /// The kind of its models.
    #[must_use]
    pub fn kind(&self) -> ModelType {
        if self.answers.is_some() || self.listwise.is_some() {
            ModelType::ListwiseReranker
        } else {
            ModelType::Reranker
        }
    }

    /// The first control token of the prompt that the tokenizer does not have.
    #[must_use]
    pub fn missing_token(&self, tokenizer: &Tokenizer) -> Option<&'static str> {
        let added = tokenizer.get_added_tokens_decoder();
        let has = |token: &str| added.values().any(|added| added.content == token);
        self.control_tokens.iter().copied().find(|token| !has(token))
    }
}

/// How a family names the tokens whose logits are the score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// The logit of the first token less that of the second.
    Two(&'static str, &'static str),
    /// The logit of a token.
    One(&'static str),
    /// The logit of the token with this id, whatever its text.
    Id(u32),
}

/// The longest prompt of a family and of its texts, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The whole prompt, where `--max-input-length` is not given.
    pub prompt: usize,
    /// All that stands between the fixed beginning and the fixed end of the prompt, where `--max-input-length` is not
    /// given.
    pub texts: Option<usize>,
    /// The query, which is cut to this before the document is cut at all.
    pub query: Option<QueryLimit>,
    /// Each document of a prompt with many.
    pub document: Option<usize>,
}

/// The most tokens of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryLimit {
    /// A number of tokens.
    Tokens(usize),
    /// Three quarters of what the fixed beginning and the fixed end of the prompt leave.
    ThreeQuarters,
}

impl Limits {
    /// The longest prompt of families whose authors recommend none. The positions of some allow five times as much.
    pub const DEFAULT: Self = Self { prompt: 8192, texts: None, query: None, document: None };
}

/// An embedding model whose files do not say all that its authors' code does.
#[derive(Debug, PartialEq, Eq)]
pub struct Embedder {
    /// Its name in messages.
    pub name: &'static str,
    /// As [`Family::names`].
    pub names: &'static [&'static str],
    /// As [`Family::model_types`].
    pub model_types: &'static [&'static str],
    /// The token that the authors' code puts behind each text.
    pub last_token: &'static str,
    /// The prompt of queries, for models whose files name none.
    pub query_prompt: &'static str,
}

/// Models that rank texts in another way than by one forward pass for each pair.
#[derive(Debug, PartialEq, Eq)]
pub struct Unserved {
    /// As [`Family::names`].
    pub names: &'static [&'static str],
    /// What they do instead, and what to do about it.
    pub reason: &'static str,
}

/// What a model's files say about the family that it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Its names, in lower case: the last part of its Hub id or the folder's name, then that of `_name_or_path`.
    pub names: &'a [String],
    /// `architectures` of config.json.
    pub architectures: &'a [String],
    /// `model_type` of config.json.
    pub model_type: &'a str,
}

impl Evidence<'_> {
    /// The first of the model's names that has one of these parts.
    fn named(&self, parts: &[&str]) -> Option<&str> {
        let fits = |name: &&String| parts.iter().any(|part| name.contains(part));
        self.names.iter().find(fits).map(String::as_str)
    }

    /// The family whose own architecture or name the model has, and which of the two says so.
    #[must_use]
    pub fn family(&self) -> Option<(&'static Family, String)> {
        let by_architecture = ALL.iter().find_map(|family| {
            let found =
                self.architectures.iter().find(|name| family.architectures.contains(&name.as_str()))?;
            Some((*family, format!("its architecture is {found}")))
        });
        let by_name = || {
            let mut fitting = ALL.iter().filter(|family| family.model_types.contains(&self.model_type));
            fitting.find_map(|family| {
                let name = self.named(family.names)?;
                Some((*family, format!("its name `{name}` says so")))
            })
        };
        by_architecture.or_else(by_name)
    }

    /// The family of a re-ranker whose name says nothing, by its `model_type`. None where its name says something else: a
    /// family of other architectures.
    #[must_use]
    pub fn unnamed_family(&self) -> Option<&'static Family> {
        if ALL.iter().any(|family| self.named(family.names).is_some()) {
            return None;
        }
        ALL.iter()
            .find(|family| family.takes_unnamed && family.model_types.contains(&self.model_type))
            .copied()
    }

    /// The embedding model that it is, where its files do not say all.
    #[must_use]
    pub fn embedder(&self) -> Option<&'static Embedder> {
        EMBEDDERS
            .iter()
            .find(|it| it.model_types.contains(&self.model_type) && self.named(it.names).is_some())
    }

    /// Why it cannot be served, where its name says so.
    #[must_use]
    pub fn unserved(&self) -> Option<&'static str> {
        UNSERVED.iter().find(|it| self.named(it.names).is_some()).map(|it| it.reason)
    }
}

/// The family of this name.
///
/// # Errors
///
/// If there is none: which names there are.
pub fn by_name(name: &str) -> Result<&'static Family, String> {
    let name = if name == BUILTIN { QWEN3_RERANKER.name } else { name };
    ALL.iter().find(|family| family.name == name).copied().ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|family| family.name).collect();
        format!("there is no built-in template `{name}`: choose one of {BUILTIN}, {}", names.join(", "))
    })
}

/// The older name of Qwen3-Reranker's prompt.
pub const BUILTIN: &str = "builtin";
