//! An embedding model: its outputs, its prompts, and the token that its authors' code puts behind a text.
//!
//! Input: flags, files and the tokenizer. Output: an [`EmbeddingModel`] and its head. What must hold: a flag
//! takes precedence over the model's files; a prompt that the files lack is an error that lists those they
//! have.

use std::collections::BTreeMap;

use serde_json::Value;
use text_embeddings_backend_core::{BackendKind, Head, Pool, Pooling, Wanted};
use tokenizers::Tokenizer;

use super::{EmbedderRanking, ModelFlags, Refusal};
use crate::families::ScoreRule;
use crate::files::{FilesError, ModelFolder, StaticTokens, embedding_head};
use crate::tokenization::BareTokens;

/// XLM-RoBERTa's tokens that represent no part of a text, for a tokenizer that does not name its own.
const EMPTY_TOKENS: [&str; 4] = ["<s>", "</s>", "<pad>", "<unk>"];

/// The most lengths of vectors that are read from a file.
const MAX_TRAINED_LENGTHS: usize = 64;

/// An embedding model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingModel {
    /// How the states of a text's tokens become one vector.
    pub pool: Pool,
    /// The outputs that it has. SPLADE has sparse weights only, bge-m3 has all three.
    pub outputs: Wanted,
    /// The prompts that can precede a text.
    pub prompts: Prompts,
    /// The ids of tokens that do not stand for a part of a text. The sparse vectors of a model that has dense
    /// vectors, too, leave them out.
    pub empty_tokens: Vec<u32>,
    /// The token that the authors' code puts behind each text.
    pub last_token: Option<u32>,
    /// The tokens of a text in a model without layers.
    pub bare_tokens: Option<BareTokens>,
    /// The lengths to which its vectors were trained to be cut (`matryoshka_dimensions` in config.json, the
    /// field that vLLM reads); empty if the files do not say.
    pub trained_lengths: Vec<usize>,
    /// How it re-ranks. Absent without vectors of whole texts (SPLADE), and with `--no-cosine-rerank`.
    pub cosine_ranking: Option<CosineRanking>,
}

/// Re-ranking with an embedding model: the raw score compares the vectors of query and document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CosineRanking {
    /// The vectors that are compared.
    pub compared: ComparedVectors,
    /// The prompt before a query; may be empty.
    pub query_prompt: String,
    /// The prompt before a document; may be empty.
    pub document_prompt: String,
}

/// The vectors of query and document that re-ranking compares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ComparedVectors {
    /// Of whole texts. The raw score is their cosine.
    #[default]
    Whole,
    /// Of the tokens but the first of each text, as bge-m3's authors compare them. The raw score is the sum,
    /// over the query's vectors, of the largest cosine with a vector of the document (`MaxSim`).
    Tokens,
}

impl ComparedVectors {
    /// The raw score in one word.
    pub fn raw_score(self) -> &'static str {
        match self {
            Self::Whole => "cosine",
            Self::Tokens => "maxsim",
        }
    }
}

impl CosineRanking {
    /// The rule from a cosine, or the mean of the cosines of the query's vectors, to the default score.
    pub const SCORE: ScoreRule = ScoreRule::COSINE;

    fn from_flags(flags: &ModelFlags, outputs: Wanted, prompts: &Prompts) -> Option<Self> {
        let compared = match flags.embedder_ranking {
            _ if !outputs.whole => return None,
            EmbedderRanking::Refused => return None,
            EmbedderRanking::Cosine => ComparedVectors::Whole,
            EmbedderRanking::MaxSim => ComparedVectors::Tokens,
        };
        Some(Self {
            compared,
            query_prompt: prompts.for_input_type(InputType::Query).to_owned(),
            document_prompt: prompts.for_input_type(InputType::Document).to_owned(),
        })
    }
}

/// The prompts that can precede an embedded text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Prompts by name.
    pub named: BTreeMap<String, String>,
    /// The prompt for requests that do not name one; may be empty.
    pub default: String,
}

/// The use of a vector. Models may have a prompt for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputType {
    /// A text to search with.
    Query,
    /// A text to be found.
    Document,
    /// A text whose vector a classifier reads.
    Classification,
    /// A text to be grouped with others.
    Clustering,
}

impl InputType {
    /// The names that models give the prompt, the most usual first. For queries and documents the first names
    /// are those that `encode_query` and `encode_document` of sentence-transformers look for.
    fn prompt_names(self) -> &'static [&'static str] {
        match self {
            Self::Query => &["query", "search_query", "retrieval.query"],
            Self::Document => &["document", "passage", "corpus", "search_document", "retrieval.passage"],
            Self::Classification => &["classification", "Classification"],
            Self::Clustering => &["clustering", "Clustering", "separation"],
        }
    }
}

impl Prompts {
    /// The prompt for this use of the vector, else the default one; may be empty.
    pub fn for_input_type(&self, input_type: InputType) -> &str {
        let named = input_type.prompt_names().iter().find_map(|name| self.named.get(*name));
        named.unwrap_or(&self.default)
    }

    /// The prompts of a model without any.
    pub const NONE: &Self = &Self { named: BTreeMap::new(), default: String::new() };

    /// The prompt with this name.
    ///
    /// # Errors
    ///
    /// A message with the problem and the known names, if there is no such prompt.
    pub fn find(&self, name: &str) -> Result<&str, String> {
        self.named.get(name).map(String::as_str).ok_or_else(|| {
            let names: Vec<_> = self.named.keys().map(|name| format!("`{name}`")).collect();
            let known = if names.is_empty() { "no prompts".to_owned() } else { names.join(", ") };
            format!("`{name}` is unknown: this model has {known}")
        })
    }

    /// The prompts by flag, else by the model's files, else by its authors' code.
    fn resolve(files: &ModelFolder, flags: &ModelFlags) -> Result<Self, Refusal> {
        let mut prompts = Self { named: files.prompts.clone(), default: String::new() };
        if prompts.named.is_empty()
            && let Some(embedder) = files.evidence().embedder()
        {
            prompts.named.insert("query".to_owned(), embedder.query_prompt.to_owned());
        }
        let named = if let Some(name) = &flags.default_prompt_name {
            Some(("`--default-prompt-name`", name))
        } else {
            let name = files.default_prompt_name.as_ref();
            name.map(|name| ("`default_prompt_name` of config_sentence_transformers.json", name))
        };
        prompts.default = match (&flags.default_prompt, named) {
            (Some(prompt), _) => prompt.clone(),
            (None, Some((place, name))) => {
                let found = prompts.find(name);
                found.map_err(|reason| Refusal::Other(format!("{place} {reason}")))?.to_owned()
            }
            (None, None) => String::new(),
        };
        Ok(prompts)
    }

    /// Refuses a pooling that has to leave out the tokens of a prompt, if there is one.
    fn refuse_excluded(&self, files: &ModelFolder, pool: Pool) -> Result<(), FilesError> {
        let excludes = files.pooling.as_ref().is_some_and(|pooling| pooling.excludes_prompt);
        // Cls would be the first token behind the prompt. The last token, and SPLADE's maximum over tokens,
        // which no file restricts, are the same with and without it.
        let is_same = matches!(Pooling::from_flag(pool), None | Some(Pooling::Last));
        let has_prompt = self.named.values().chain([&self.default]).any(|prompt| !prompt.is_empty());
        if !excludes || !has_prompt || is_same {
            return Ok(());
        }
        let message = "1_Pooling/config.json leaves the prompt out of the pooling (`include_prompt` is false), which \
                       is not supported: choose another pooling with `--pooling`, if the model works with it";
        Err(FilesError::Refused(message.to_owned()))
    }
}

impl EmbeddingModel {
    /// Decides outputs, prompts and head.
    pub(super) fn resolve(
        files: &ModelFolder,
        tokenizer: &Tokenizer,
        flags: &ModelFlags,
        pool: Pool,
    ) -> Result<(Self, Head), Refusal> {
        let bare_tokens = bare_tokens(files, tokenizer);
        if bare_tokens.is_some() && pool != Pool::Mean {
            return Err(Refusal::Other(format!(
                "`--pooling {pool}` is not for static embeddings, which are the mean of their tokens' vectors: leave \
                 it out"
            )));
        }
        let head = match Pooling::from_flag(pool) {
            // sentence-transformers reads the modules, and has more of them.
            Some(pooling) if flags.backend == BackendKind::Python => Head::embedding(pooling, Vec::new()),
            _ => embedding_head(files, pool)?,
        };
        if flags.embedder_ranking == EmbedderRanking::MaxSim && files.bge_m3.token_vectors.is_none() {
            let message = "`--maxsim-rerank` is for embedding models with a layer for the vectors of tokens, a file \
                           `colbert_linear.pt` or `colbert_linear.safetensors` (bge-m3), which this one does not \
                           have: leave it out";
            return Err(Refusal::Other(message.to_owned()));
        }
        let (outputs, prompts) = (head.outputs(), Prompts::resolve(files, flags)?);
        if flags.backend != BackendKind::Python {
            prompts.refuse_excluded(files, pool)?;
        }
        let model = Self {
            pool,
            outputs,
            cosine_ranking: CosineRanking::from_flags(flags, outputs, &prompts),
            prompts,
            empty_tokens: empty_tokens(files, tokenizer),
            last_token: last_token(files, tokenizer)?,
            bare_tokens,
            trained_lengths: trained_lengths(&files.config.raw),
        };
        Ok((model, head))
    }
}

fn trained_lengths(config: &Value) -> Vec<usize> {
    let lengths = config["matryoshka_dimensions"].as_array().into_iter().flatten();
    lengths.filter_map(|length| usize::try_from(length.as_u64()?).ok()).take(MAX_TRAINED_LENGTHS).collect()
}

/// How a model without layers makes tokens of a text; `None` for all other models.
pub fn bare_tokens(files: &ModelFolder, tokenizer: &Tokenizer) -> Option<BareTokens> {
    let StaticTokens { blank, model2vec } = files.static_tokens.as_ref()?;
    let mut tokens = BareTokens { blank: *blank, unknown: None, characters_per_token: None };
    if let Some(unknown) = model2vec {
        let by_text = unknown.unk_token.as_ref().and_then(|token| tokenizer.token_to_id(token));
        tokens.unknown = by_text.or(unknown.unk_id);
        tokens.characters_per_token = Some(median_length(tokenizer));
    }
    Some(tokens)
}

/// The median length of the vocabulary's tokens in characters, rounded down.
fn median_length(tokenizer: &Tokenizer) -> usize {
    let mut lengths: Vec<usize> =
        tokenizer.get_vocab(true).keys().map(|token| token.chars().count()).collect();
    lengths.sort_unstable();
    let middle = lengths.len() / 2;
    match lengths.get(middle) {
        Some(&upper) if lengths.len().is_multiple_of(2) => usize::midpoint(lengths[middle - 1], upper),
        Some(&upper) => upper,
        None => 0,
    }
}

fn empty_tokens(files: &ModelFolder, tokenizer: &Tokenizer) -> Vec<u32> {
    let names = ["cls_token", "eos_token", "pad_token", "unk_token"];
    let named = names.iter().filter_map(|name| files.special_tokens.get(*name));
    let named: Vec<&str> = named.map(String::as_str).collect();
    let tokens = if named.is_empty() { &EMPTY_TOKENS[..] } else { &named };
    tokens.iter().filter_map(|token| tokenizer.token_to_id(token)).collect()
}

fn last_token(files: &ModelFolder, tokenizer: &Tokenizer) -> Result<Option<u32>, Refusal> {
    let Some(embedder) = files.evidence().embedder() else { return Ok(None) };
    let (model, token) = (embedder.name, embedder.last_token);
    tokenizer.token_to_id(token).map(Some).ok_or_else(|| {
        Refusal::Other(format!(
            "{model} puts `{token}` behind each text, which the tokenizer (tokenizer.json) does not have: check that \
             it belongs to the model"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::PoolingConfig;

    #[test]
    fn trained_lengths_are_those_of_the_configuration() {
        use serde_json::json;
        for (config, expected) in [
            (json!({}), vec![]),
            (json!({"matryoshka_dimensions": null}), vec![]),
            (json!({"matryoshka_dimensions": "all"}), vec![]),
            (json!({"matryoshka_dimensions": [32, 64.5, -1, "x", 128]}), vec![32, 128]),
            (json!({"matryoshka_dimensions": vec![7; 9999]}), vec![7; MAX_TRAINED_LENGTHS]),
        ] {
            assert_eq!(trained_lengths(&config), expected);
        }
    }

    #[test]
    fn an_input_type_has_the_first_prompt_that_the_model_has_for_it() {
        use InputType::{Classification, Clustering, Document, Query};
        for (named, default, expected) in [
            (&[][..], "", ["", "", "", ""]),
            (&[], "D: ", ["D: ", "D: ", "D: ", "D: "]),
            (&[("query", "Q: ")], "", ["Q: ", "", "", ""]),
            (&[("query", "Q: "), ("document", "")], "Q: ", ["Q: ", "", "Q: ", "Q: "]),
            (&[("passage", "P: "), ("corpus", "C: ")], "", ["", "P: ", "", ""]),
            (
                &[("search_query", "q "), ("search_document", "d "), ("classification", "c ")],
                "",
                ["q ", "d ", "c ", ""],
            ),
            (
                &[("retrieval.query", "q "), ("retrieval.passage", "p "), ("separation", "s ")],
                "",
                ["q ", "p ", "", "s "],
            ),
            (&[("Classification", "c "), ("Clustering", "g "), ("STS", "s ")], "", ["", "", "c ", "g "]),
        ] {
            let named = named.iter().map(|(name, prompt)| ((*name).to_owned(), (*prompt).to_owned()));
            let prompts = Prompts { named: named.collect(), default: default.to_owned() };
            let found =
                [Query, Document, Classification, Clustering].map(|kind| prompts.for_input_type(kind));
            assert_eq!(found, expected, "{prompts:?}");
        }
    }

    #[test]
    fn a_pooling_without_the_prompt_is_refused_unless_it_takes_the_last_token() {
        let pooling = PoolingConfig { excludes_prompt: true, ..PoolingConfig::default() };
        let files = ModelFolder { pooling: Some(pooling), ..ModelFolder::default() };
        for (named, default, has_prompt) in
            [("", "", false), ("Find it", "", true), ("", "Find it", true), ("Find it", "Find it", true)]
        {
            let named = [("query".to_owned(), named.to_owned())].into();
            let prompts = Prompts { named, default: default.to_owned() };
            for (pool, needs_prompt) in [(Pool::Mean, true), (Pool::Cls, true), (Pool::LastToken, false)] {
                let refused = prompts.refuse_excluded(&files, pool).is_err();
                assert_eq!(refused, has_prompt && needs_prompt, "{prompts:?} {pool}");
                assert!(prompts.refuse_excluded(&ModelFolder::default(), pool).is_ok());
            }
        }
    }

    #[test]
    fn an_embedding_model_re_ranks_unless_it_has_no_vector_of_the_text_or_a_flag_forbids_it() {
        let prompts =
            Prompts { named: [("query".to_owned(), "Q: ".to_owned())].into(), ..Prompts::default() };
        let ranking = |compared| {
            Some(CosineRanking { compared, query_prompt: "Q: ".to_owned(), document_prompt: String::new() })
        };
        for (outputs, embedder_ranking, expected) in [
            (Wanted::WHOLE, EmbedderRanking::Cosine, ranking(ComparedVectors::Whole)),
            (Wanted::WHOLE, EmbedderRanking::MaxSim, ranking(ComparedVectors::Tokens)),
            (Wanted::WHOLE, EmbedderRanking::Refused, None),
            (Wanted::SPARSE, EmbedderRanking::Cosine, None),
        ] {
            let flags = ModelFlags { embedder_ranking, ..ModelFlags::default() };
            assert_eq!(CosineRanking::from_flags(&flags, outputs, &prompts), expected, "{outputs:?}");
        }
    }

    #[test]
    fn the_default_prompt_is_the_flags_else_the_files() {
        let prompts = [("query".to_owned(), "Q: ".to_owned()), ("passage".to_owned(), "P: ".to_owned())];
        let files = |default: Option<&str>| ModelFolder {
            prompts: prompts.clone().into(),
            default_prompt_name: default.map(str::to_owned),
            ..ModelFolder::default()
        };
        let flags = |prompt: Option<&str>, name: Option<&str>| ModelFlags {
            default_prompt: prompt.map(str::to_owned),
            default_prompt_name: name.map(str::to_owned),
            ..ModelFlags::default()
        };
        for (default, prompt, name, expected) in [
            (None, None, None, Ok("")),
            (Some("query"), None, None, Ok("Q: ")),
            (Some("query"), Some(""), None, Ok("")),
            (Some("query"), Some("x"), None, Ok("x")),
            (Some("query"), None, Some("passage"), Ok("P: ")),
            (Some("x"), None, Some("passage"), Ok("P: ")),
            (
                Some("x"),
                None,
                None,
                Err("`default_prompt_name` of config_sentence_transformers.json `x` is unknown"),
            ),
            (
                None,
                None,
                Some("y"),
                Err("`--default-prompt-name` `y` is unknown: this model has `passage`, `query`"),
            ),
        ] {
            match (Prompts::resolve(&files(default), &flags(prompt, name)), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.default, expected),
                (Err(error), Err(part)) => assert!(error.to_string().starts_with(part), "{error}"),
                (found, _) => unreachable!("{found:?}"),
            }
        }
    }
}
