//! Translates a GGUF file's vocabulary into the content of a `tokenizer.json`.
//!
//! Input: the metadata under `tokenizer.ggml`. Output: the tokenizer that the file was converted from, as far
//! as the file describes it. llama.cpp has four kinds of tokenizers (`gpt2`, `llama`, `bert`, `t5`), and
//! names the rules that split a text into words. What must hold: an unknown kind or rule is refused by name,
//! because wrong tokens silently give wrong scores.

mod merges;
mod words;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use text_embeddings_checkpoint::gguf::{self, File, Metadata, Separators};

use self::words::WORDS;

/// The kinds of tokens, by llama.cpp's numbers.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// The character that begins a word in vocabularies of llama.cpp.
const WORD: char = '\u{2581}';

/// The content of a `tokenizer.json`, or the reason why it cannot be built.
pub(super) fn build(file: &File) -> Result<Value, String> {
    let vocabulary = Vocabulary::read(file)?;
    let kind = file.metadata.text("tokenizer.ggml.model");
    if kind != Some("bert") && vocabulary.switch(LOWERCASE, false) {
        return Err(format!(
            "`tokenizer.ggml.{LOWERCASE}` is true, which is only supported for vocabularies of the kind \"bert\""
        ));
    }
    match kind {
        Some("gpt2") => vocabulary.byte_level(),
        Some("llama") => vocabulary.sentence_piece(),
        Some("bert") => vocabulary.word_piece(),
        Some("t5") => vocabulary.unigram(),
        other => Err(format!(
            "its vocabulary (`tokenizer.ggml.model`) is {}, which is not supported: only \"gpt2\", \"llama\", \"bert\" and \"t5\" are",
            other.map_or_else(|| "missing".to_owned(), |name| format!("{name:?}"))
        )),
    }
}

/// Whether texts are put into lower case.
const LOWERCASE: &str = "normalizer.lowercase";
/// Whether accents are removed.
const STRIP_ACCENTS: &str = "normalizer.strip_accents";
/// The value of `pooling_type` for the last token.
const LAST: usize = 3;

struct Vocabulary<'f> {
    architecture: &'f str,
    metadata: &'f Metadata,
    tokens: &'f [String],
    kinds: Vec<i64>,
    separators: Separators,
}

impl<'f> Vocabulary<'f> {
    fn read(file: &'f File) -> Result<Self, String> {
        let metadata = &file.metadata;
        let tokens = metadata
            .texts("tokenizer.ggml.tokens")
            .ok_or("it has no vocabulary (`tokenizer.ggml.tokens`)")?;
        let kinds = match metadata.get("tokenizer.ggml.token_type") {
            Some(kinds) => kinds.numbers().unwrap_or_default(),
            None => vec![1; tokens.len()],
        };
        if kinds.len() != tokens.len() || tokens.is_empty() {
            return Err("its vocabulary does not have one type (`tokenizer.ggml.token_type`) for each token"
                .to_owned());
        }
        let rows = file.shape("token_embd.weight").and_then(|shape| shape.first()).copied();
        if rows.is_some_and(|rows| rows < tokens.len()) {
            return Err(format!("it has {} tokens, more than its embedding has rows", tokens.len()));
        }
        let architecture = file.architecture();
        Ok(Self { architecture, metadata, tokens, kinds, separators: gguf::separators(file) })
    }

    /// The id and text of the token whose id is in the metadata `tokenizer.ggml.NAME_token_id`, otherwise of
    /// the token with the given text.
    fn special(&self, names: &[&str], text: &str) -> Result<(usize, &'f str), String> {
        let named =
            names.iter().find_map(|name| self.metadata.number(&format!("tokenizer.ggml.{name}_token_id")));
        let id = named.or_else(|| self.tokens.iter().position(|token| token == text));
        let found = id.and_then(|id| Some((id, self.tokens.get(id)?.as_str())));
        found.ok_or_else(|| {
            format!(
                "its vocabulary has no token {}, and `tokenizer.ggml.{}_token_id` does not name one either",
                text, names[0]
            )
        })
    }

    fn switch(&self, name: &str, default: bool) -> bool {
        self.metadata.switch(&format!("tokenizer.ggml.{name}")).unwrap_or(default)
    }

    /// Whether texts end in a special token if the file says nothing. Early files of Qwen3-Embedding say
    /// nothing, and the model pools that token.
    fn has_last(&self) -> bool {
        let pooling = self.metadata.number(&format!("{}.pooling_type", self.architecture));
        self.architecture == "qwen3" && pooling == Some(LAST)
    }

    /// The tokens that are found in a text before it is split into words. `text` gives the tokenizer's
    /// spelling of a token.
    fn added(&self, text: impl Fn(i64, &str) -> String) -> Value {
        let added = self.kinds.iter().zip(self.tokens).enumerate();
        let added = added.filter(|(_, (kind, _))| [CONTROL, USER_DEFINED].contains(*kind));
        added
            .map(|(id, (kind, token))| {
                json!({
                    "id": id, "content": text(*kind, token), "special": *kind == CONTROL, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false,
                })
            })
            .collect()
    }

    /// The vocabulary by token. `text` gives the tokenizer's spelling of a token.
    fn ids(&self, text: impl Fn(i64, &str) -> String) -> Result<Value, String> {
        let mut ids = serde_json::Map::new();
        for (id, (kind, token)) in self.kinds.iter().zip(self.tokens).enumerate() {
            if *kind != UNUSED && ids.insert(text(*kind, token), id.into()).is_some() {
                return Err(format!("its vocabulary has the token {token:?} twice"));
            }
        }
        Ok(ids.into())
    }

    /// The special tokens around a text, and around a pair of texts.
    fn frame(frame: &Frame<'_>) -> Value {
        let Frame { before, after, between, second } = frame;
        let single = [special_step(*before, 0), Some(text_step("A", 0)), special_step(*after, 0)];
        let rest =
            [special_step(*between, *second), Some(text_step("B", *second)), special_step(*after, *second)];
        let tokens: serde_json::Map<String, Value> = [*before, *after]
            .into_iter()
            .flatten()
            .map(|(id, text)| (text.to_owned(), json!({ "id": text, "ids": [id], "tokens": [text] })))
            .collect();
        let pair: Vec<Value> = single.iter().chain(&rest).flatten().cloned().collect();
        let single: Vec<Value> = single.into_iter().flatten().collect();
        json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens })
    }

    /// RoBERTa's special tokens, with two separators between the texts of a pair.
    fn roberta(&self) -> Result<Value, String> {
        let (before, after) =
            (self.special(&["bos", "cls"], "<s>")?, self.special(&["eos", "seperator"], "</s>")?);
        Ok(Self::frame(&Frame { before: Some(before), after: Some(after), between: Some(after), second: 0 }))
    }

    /// BERT's special tokens, with one separator after each text. The second text's tokens have the type
    /// `second`.
    fn bert(&self, second: usize) -> Result<Value, String> {
        let (before, after) =
            (self.special(&["cls", "bos"], "[CLS]")?, self.special(&["seperator", "eos"], "[SEP]")?);
        Ok(Self::frame(&Frame { before: Some(before), after: Some(after), between: None, second }))
    }

    /// The special tokens of a causal model: one before and one after each text, if the file switches them
    /// on. `has_first` says whether there is one before if the file says nothing.
    fn causal(&self, has_first: bool) -> Result<Value, String> {
        let token = |name: &str, default: bool| {
            let is_on = self.switch(&format!("add_{name}_token"), default);
            is_on.then(|| self.special(&[name], &format!("({name})"))).transpose()
        };
        let (before, after) = (token("bos", has_first)?, token("eos", self.has_last())?);
        Ok(Self::frame(&Frame { before, after, between: before, second: 0 }))
    }

    /// `gpt2`: byte-pair encoding with merges.
    fn byte_level(&self) -> Result<Value, String> {
        let name = self.metadata.text("tokenizer.ggml.pre").unwrap_or("(missing)");
        let Some(words) = WORDS.iter().find(|words| words.names.contains(&name)) else {
            let known: Vec<_> = WORDS.iter().flat_map(|words| words.names).copied().collect();
            return Err(format!(
                "its vocabulary's rule for words (`tokenizer.ggml.pre`) is {name:?}, which is not supported: only {} are",
                known.join(", ")
            ));
        };
        let merges =
            self.metadata.texts("tokenizer.ggml.merges").ok_or("it has no `tokenizer.ggml.merges`")?;
        let merges: Option<Vec<Value>> = merges
            .iter()
            .map(|merge| {
                // No token begins with a space, because byte-level vocabularies spell bytes as letters.
                let (left, right) =
                    merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())?;
                Some(json!([left, right]))
            })
            .collect();
        let merges = merges.ok_or("its `tokenizer.ggml.merges` are not pairs")?;
        let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
        let splits = words.patterns.iter().map(|pattern| {
            json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
        });
        let pieces: Vec<Value> = splits.chain([level.clone()]).collect();
        let frame = match self.separators {
            Separators::Switched => self.causal(words.has_first)?,
            Separators::Double => self.roberta()?,
            Separators::Single => self.bert(0)?,
        };
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added(unchanged),
            "normalizer": words.is_composed.then(|| json!({ "type": "NFC" })),
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": pieces },
            "post_processor": { "type": "Sequence", "processors": [level, frame] },
            "decoder": level,
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": words.ignore_merges,
                "vocab": self.ids(unchanged)?, "merges": merges,
            },
        }))
    }

    /// `llama`: byte-pair encoding of whole texts (`SentencePiece`'s). The file has scores instead of merges.
    fn sentence_piece(&self) -> Result<Value, String> {
        if self.separators != Separators::Switched {
            return Err("its vocabulary is \"llama\", which is only supported for decoders".to_owned());
        }
        let scores = self.scores()?;
        let normal = self.kinds.iter().zip(self.tokens).zip(scores).enumerate();
        let normal = normal.filter(|(_, ((kind, _), _))| **kind == NORMAL);
        let merges = merges::of_scores(normal.map(|(id, ((_, token), score))| (token.as_str(), id, score)))?;
        let prefix =
            self.switch("add_space_prefix", true).then(|| json!({ "type": "Prepend", "prepend": WORD }));
        let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": WORD });
        let rules: Vec<Value> = prefix.into_iter().chain([spaces]).collect();
        let unknown = self.special(&["unknown"], "<unk>")?;
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added(unchanged),
            "normalizer": { "type": "Sequence", "normalizers": rules },
            "pre_tokenizer": null,
            "post_processor": self.causal(true)?,
            "decoder": { "type": "Sequence", "decoders": [
                { "type": "Replace", "pattern": { "String": WORD }, "content": " " },
                { "type": "ByteFallback" },
                { "type": "Fuse" },
            ] },
            "model": {
                "type": "BPE", "dropout": null, "unk_token": unknown.1, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": self.ids(unchanged)?, "merges": merges,
            },
        }))
    }

    /// One score for each token.
    fn scores(&self) -> Result<Vec<f64>, String> {
        let scores = self.metadata.reals("tokenizer.ggml.scores").unwrap_or_default();
        if scores.len() == self.tokens.len() {
            return Ok(scores);
        }
        Err("its vocabulary does not have one score (`tokenizer.ggml.scores`) for each token".to_owned())
    }

    /// Whether ordinary tokens of `bert`'s vocabulary have capitals.
    fn has_capitals(&self) -> bool {
        self.kinds.iter().zip(self.tokens).any(|(kind, token)| {
            *kind == NORMAL
                && !is_name(token.strip_prefix(WORD).unwrap_or(token))
                && token.contains(|letter: char| letter.is_ascii_uppercase())
        })
    }

    /// `bert`: the longest pieces of a word. llama.cpp marks the pieces that begin a word, while BERT marks
    /// the others. Names in brackets stay unchanged.
    fn word_piece(&self) -> Result<Value, String> {
        let spelled = |kind: i64, token: &str| match token.strip_prefix(WORD) {
            Some(word) => word.to_owned(),
            None if kind == CONTROL || is_name(token) => token.to_owned(),
            None => format!("##{token}"),
        };
        let frame = self.bert(1)?;
        let unknown = self.special(&["unknown"], "[UNK]")?;
        // Files of former converters do not say whether texts are lower-cased. A vocabulary for other texts
        // has capitals. Letters such as ℝ and Cherokee's say nothing, because BERT leaves them as they are.
        let said = |name: &str| self.metadata.switch(&format!("tokenizer.ggml.{name}"));
        let lowercase = said(LOWERCASE).unwrap_or_else(|| !self.has_capitals());
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added(spelled),
            "normalizer": {
                "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": said(STRIP_ACCENTS),
                "lowercase": lowercase,
            },
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "post_processor": frame,
            "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
            "model": {
                "type": "WordPiece", "unk_token": unknown.1, "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": self.ids(spelled)?,
            },
        }))
    }

    /// `t5`: the most likely pieces (`SentencePiece`'s unigram model).
    fn unigram(&self) -> Result<Value, String> {
        if self.separators != Separators::Double {
            return Err("its vocabulary is \"t5\", which is only supported for kinds of BERT".to_owned());
        }
        let scores = self.scores()?;
        let unknown = self.special(&["unknown"], "<unk>")?;
        let vocabulary: Vec<Value> =
            self.tokens.iter().zip(&scores).map(|(token, score)| json!([token, score])).collect();
        let table: Option<Vec<u8>> = self
            .metadata
            .numbers("tokenizer.ggml.precompiled_charsmap")
            .map(|bytes| bytes.into_iter().map(|byte| byte as u8).collect());
        let table = table.filter(|table| !table.is_empty()).map(
            |table| json!({ "type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(table) }),
        );
        let spaces = self.switch("remove_extra_whitespaces", true);
        let spaces =
            spaces.then(|| json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
        let rules: Vec<Value> = table.into_iter().chain(spaces).collect();
        let prepend = if self.switch("add_space_prefix", true) { "always" } else { "never" };
        let words =
            json!({ "type": "Metaspace", "replacement": WORD, "prepend_scheme": prepend, "split": true });
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added(unchanged),
            "normalizer": { "type": "Sequence", "normalizers": rules },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [{ "type": "WhitespaceSplit" }, words] },
            "post_processor": self.roberta()?,
            "decoder": words,
            "model": { "type": "Unigram", "unk_id": unknown.0, "byte_fallback": false, "vocab": vocabulary },
        }))
    }
}

/// A token as the file spells it.
fn unchanged(_: i64, token: &str) -> String {
    token.to_owned()
}

/// The special tokens around texts.
struct Frame<'t> {
    before: Option<(usize, &'t str)>,
    after: Option<(usize, &'t str)>,
    /// The token before the second text of a pair.
    between: Option<(usize, &'t str)>,
    /// The token type of the second text.
    second: usize,
}
/// Whether a token is one of BERT's names, such as `[CLS]`.
fn is_name(token: &str) -> bool {
    token.starts_with('[') && token.ends_with(']')
}

/// A special token in a template; absent without one.
fn special_step(token: Option<(usize, &str)>, kind: usize) -> Option<Value> {
    token.map(|(_, text)| json!({ "SpecialToken": { "id": text, "type_id": kind } }))
}

fn text_step(name: &str, kind: usize) -> Value {
    json!({ "Sequence": { "id": name, "type_id": kind } })
}
