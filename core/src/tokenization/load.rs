//! Reads `tokenizer.json`, which may come from anyone.
//!
//! Input: the file. Output: a tokenizer that neither pads nor truncates. What must hold: the rules of the
//! file neither expand a text much nor go through it very often, and none takes time that grows with the
//! square of a long word. Requests bound their texts, but not the tokenizer's output and work.

use super::EncoderError;
use crate::guard::{self, Bounds};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;
use std::time::Duration;
use text_embeddings_backend_core::ModelFile;
use tokenizers::{ModelWrapper, Tokenizer};

/// The limits for reading the file. The largest files in use take a second and some hundred megabytes.
const BOUNDS: Bounds = Bounds { time: Duration::from_mins(2), memory: 4 << 30, stack: 8 << 20 };
/// The most bytes that one byte of a text may become, in the worst case. Normalizers in use produce up to
/// 100.
const MAX_GROWTH: usize = 256;
/// The largest expansion by Unicode's compatibility forms: U+FDFA has 3 bytes and becomes 33.
const UNICODE_GROWTH: usize = 11;
/// The longest text that rules may put before each text, in bytes.
const MAX_PREFIX: usize = 64;
/// The most bytes that the rules may go through for each byte of a text, in the worst case: about 10 µs.
/// Rules in use go through up to 150.
const MAX_WORK: usize = 512;
/// The longest token, in bytes. Tokens in use have up to some hundred.
const MAX_TOKEN: usize = 4096;
/// The longest word that a `WordPiece` model may split, in characters. The time grows with its square. Models
/// use 100 to 200.
const MAX_WORD: usize = 1000;
/// The largest id of a token. The library goes through all ids up to it. Models have up to a million tokens.
const MAX_ID: u32 = 1 << 24;
/// Texts of all kinds of characters, which every tokenizer must survive.
const TRIAL_TEXTS: [&str; 4] = ["", " ", "Mars is red, and 7 is prime.\n", "e\u{301} ﷺ 火星\u{0}"];

/// Reads the tokenizer of a file.
///
/// # Errors
///
/// [`EncoderError::Tokenizer`] if the library does not understand the file, and [`EncoderError::Refused`] if
/// one of its rules is refused.
pub fn load_tokenizer(file: impl Into<ModelFile>) -> Result<Tokenizer, EncoderError> {
    let file = file.into();
    guard::run(BOUNDS, move || {
        let tokenizer = match file {
            ModelFile::Disk(path) => Tokenizer::from_file(path),
            ModelFile::Memory { bytes, .. } => Tokenizer::from_bytes(bytes),
        };
        let mut tokenizer = tokenizer.map_err(EncoderError::tokenizer)?;
        tokenizer.with_truncation(None).map_err(EncoderError::tokenizer)?;
        tokenizer.with_padding(None);
        check(&tokenizer)?;
        // Rules that make the library panic do so here, where it becomes an error.
        for text in TRIAL_TEXTS {
            let (_alone, _paired) = (tokenizer.encode(text, true), tokenizer.encode((text, text), true));
        }
        Ok(tokenizer)
    })
    .map_err(EncoderError::tokenizer)?
}

fn check(tokenizer: &Tokenizer) -> Result<(), EncoderError> {
    let parts = [
        ("normalizer", serde_json::to_value(tokenizer.get_normalizer())),
        ("pre_tokenizer", serde_json::to_value(tokenizer.get_pre_tokenizer())),
        ("decoder", serde_json::to_value(tokenizer.get_decoder())),
    ];
    for (part, rules) in parts {
        let effect = Effect::from_rules(&rules.map_err(EncoderError::tokenizer)?);
        effect.check_bounds().map_err(|reason| refuse_part(part, &reason))?;
    }
    if let ModelWrapper::WordPiece(model) = tokenizer.get_model()
        && model.max_input_chars_per_word > MAX_WORD
    {
        let given = model.max_input_chars_per_word;
        return Err(refuse_part(
            "model",
            &format!("`max_input_chars_per_word` is {given}, and at most {MAX_WORD} is supported"),
        ));
    }
    let vocabulary = tokenizer.get_vocab(true);
    let max_bytes = vocabulary.keys().map(String::len).max().unwrap_or_default();
    if max_bytes > MAX_TOKEN {
        let reason = format!("a token has {max_bytes} bytes, and at most {MAX_TOKEN} are supported");
        return Err(refuse_part("model", &reason));
    }
    if let Some(id) = vocabulary.values().find(|id| **id > MAX_ID) {
        let reason = format!("a token has the id {id}, and at most {MAX_ID} is supported");
        return Err(refuse_part("model", &reason));
    }
    Ok(())
}

/// The refusal of a part of the file whose rules exceed a bound on their work.
fn refuse_part(part: &str, reason: &str) -> EncoderError {
    EncoderError::Refused(format!(
        "the {part} of tokenizer.json is refused: {reason}; take the tokenizer from a source that you trust"
    ))
}

/// The worst-case effect of rules on a text.
struct Effect {
    /// The factor by which replacements expand it that are applied one after the other.
    times: usize,
    /// The factor by which Unicode's forms expand it. Several forms in sequence expand a text no more than
    /// the strongest one.
    unicode: usize,
    /// The bytes that are put before it.
    prefix: usize,
    /// The bytes that the rules go through for each byte of it.
    work: usize,
}

impl Effect {
    /// A rule that changes no length.
    const PASS: Self = Self { times: 1, unicode: 1, prefix: 0, work: 1 };

    /// The effect of a normalizer, pre-tokenizer or decoder, from its description in the file.
    fn from_rules(rules: &Value) -> Self {
        match rules["type"].as_str().unwrap_or_default() {
            "Sequence" => {
                let lists = ["normalizers", "pretokenizers", "decoders"].map(|name| rules[name].as_array());
                let none = Self { work: 0, ..Self::PASS };
                lists
                    .into_iter()
                    .flatten()
                    .flatten()
                    .fold(none, |before, rule| before.followed_by(&Self::from_rules(rule)))
            }
            "Replace" => {
                let content = rules["content"].as_str().map_or(0, str::len);
                let pattern = rules["pattern"]["String"].as_str().map_or(1, str::len).max(1);
                Self { times: content.div_ceil(pattern).max(1), ..Self::PASS }
            }
            "Prepend" => Self { prefix: rules["prepend"].as_str().map_or(0, str::len), ..Self::PASS },
            "NFKC" | "NFKD" | "NFC" | "NFD" => Self { unicode: UNICODE_GROWTH, ..Self::PASS },
            "Precompiled" => {
                let table = rules["precompiled_charsmap"].as_str().unwrap_or_default();
                Self { unicode: longest_replacement(table).max(UNICODE_GROWTH), ..Self::PASS }
            }
            _ => Self::PASS,
        }
    }

    /// The effect of these rules with `next` after them.
    fn followed_by(&self, next: &Self) -> Self {
        Self {
            times: self.times.saturating_mul(next.times),
            unicode: self.unicode.max(next.unicode),
            prefix: self.prefix.saturating_add(next.prefix),
            work: self.work.saturating_add(self.growth_factor().saturating_mul(next.work)),
        }
    }

    fn growth_factor(&self) -> usize {
        self.times.saturating_mul(self.unicode)
    }

    /// Refuses rules beyond the bounds, with a reason.
    fn check_bounds(&self) -> Result<(), String> {
        let Self { prefix, work, .. } = *self;
        let bytes = self.growth_factor();
        if prefix > MAX_PREFIX {
            Err(format!("it puts {prefix} bytes before each text, and at most {MAX_PREFIX} are supported"))
        } else if bytes > MAX_GROWTH {
            Err(format!("it makes up to {bytes} bytes of one, and at most {MAX_GROWTH} are supported"))
        } else if work > MAX_WORK {
            Err(format!(
                "its rules go through up to {work} bytes for each byte of a text, and at most {MAX_WORK} are \
                 supported"
            ))
        } else {
            Ok(())
        }
    }
}

/// The longest replacement in `SentencePiece`'s table, in bytes. The table holds the length of its index
/// (four bytes), the index, then the texts, each with a zero at its end.
fn longest_replacement(table: &str) -> usize {
    let table = BASE64_STANDARD.decode(table).unwrap_or_default();
    let Some((length, rest)) = table.split_first_chunk::<4>() else { return 0 };
    let texts = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::tokenization::test_tokenizer::small_tokenizer_json;
    use serde_json::json;

    fn loaded(part: &str, value: Value) -> Result<Tokenizer, String> {
        let mut file = small_tokenizer_json(&[]);
        file[part] = value;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, file.to_string()).unwrap();
        load_tokenizer(path).map_err(|error| error.to_string())
    }

    fn replace(pattern: &Value, length: usize) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": "a".repeat(length)})
    }

    #[test]
    fn padding_and_truncation_of_the_file_are_left_out() {
        let padding = json!({"strategy": {"Fixed": 1_000_000_000_000_u64}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "x"});
        let truncation =
            json!({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0});
        for (part, value) in [("padding", padding), ("truncation", truncation)] {
            let tokenizer = loaded(part, value).unwrap();
            assert_eq!(tokenizer.encode("a b c", false).unwrap().len(), 5, "{part}");
        }
    }

    #[test]
    fn rules_that_make_much_more_of_a_text_are_refused() {
        let string = |text: &str| json!({"String": text});
        let normalizers = |rules: &[Value]| json!({"type": "Sequence", "normalizers": rules});
        let decoders = |rules: &[Value]| json!({"type": "Sequence", "decoders": rules});
        let twenty = replace(&string("a"), 20);
        let table = |longest: usize| {
            let texts = format!("ab\0{}\0", "x".repeat(longest));
            // An index of 256 empty places, which no text leaves.
            BASE64_STANDARD.encode([&1024_u32.to_le_bytes(), &[0; 1024][..], texts.as_bytes()].concat())
        };
        let precompiled = |longest| json!({"type": "Precompiled", "precompiled_charsmap": table(longest)});
        let cases = [
            ("normalizer", replace(&string("a"), 257), Some("up to 257 bytes of one")),
            ("normalizer", replace(&string("aaaa"), 257), None),
            ("normalizer", replace(&json!({"Regex": "a+"}), 300), Some("up to 300")),
            ("normalizer", normalizers(&[twenty.clone(), twenty.clone()]), Some("up to 400")),
            (
                "normalizer",
                normalizers(&[normalizers(std::slice::from_ref(&twenty)), twenty.clone()]),
                Some("up to 400"),
            ),
            ("decoder", decoders(&[twenty.clone(), twenty.clone()]), Some("the decoder")),
            ("decoder", replace(&string("\u{2581}"), 1), None),
            ("normalizer", json!({"type": "Prepend", "prepend": "a".repeat(65)}), Some("puts 65 bytes")),
            (
                "normalizer",
                normalizers(&vec![json!({"type": "Prepend", "prepend": "ab"}); 33]),
                Some("puts 66"),
            ),
            ("normalizer", normalizers(&vec![replace(&string("a"), 1); 513]), Some("go through up to 513")),
            ("normalizer", normalizers(&vec![replace(&string("a"), 1); 512]), None),
            (
                "normalizer",
                normalizers(&[vec![twenty.clone()], vec![replace(&string("a"), 1); 30]].concat()),
                Some("go through up to 601"),
            ),
            (
                "pre_tokenizer",
                json!({"type": "Sequence", "pretokenizers": vec![json!({"type": "WhitespaceSplit"}); 513]}),
                Some("the pre_tokenizer of"),
            ),
            ("normalizer", precompiled(300), Some("up to 300")),
            // The strongest rules in use: SentencePiece's own table, and spaces that become one character of
            // three bytes.
            (
                "normalizer",
                normalizers(&[
                    json!({"type": "NFKD"}),
                    precompiled(33),
                    replace(&json!({"Regex": " {2,}"}), 3),
                ]),
                None,
            ),
        ];
        for (part, value, expected) in cases {
            let found = loaded(part, value.clone()).err();
            assert_eq!(found.is_some(), expected.is_some(), "{value}: {found:?}");
            let (found, expected) = (found.unwrap_or_default(), expected.unwrap_or_default());
            assert!(
                found.contains(expected) && (found.is_empty() || found.contains("tokenizer.json")),
                "{found}"
            );
        }
    }

    #[test]
    fn models_of_long_words_and_tokens_are_refused() {
        let model = |longest: usize, token: &str, id: u32| {
            json!({"type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": longest, "vocab": {"x": 0, token: id}})
        };
        let long = "y".repeat(4097);
        let cases = [
            (1001, "y", 1, "is 1001"),
            (100, long.as_str(), 1, "4097 bytes"),
            (100, "y", u32::MAX, "the id 4294967295"),
        ];
        for (longest, token, id, part) in cases {
            let message = loaded("model", model(longest, token, id)).unwrap_err();
            assert!(message.contains(part) && message.contains("the model of tokenizer.json"), "{message}");
        }
    }

    #[test]
    fn a_file_that_is_no_tokenizer_or_makes_the_library_panic_is_an_error() {
        let template = |single: Value| {
            let pair =
                json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]);
            json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {}})
        };
        for (part, value) in [
            ("model", json!({"type": "none"})),
            ("post_processor", template(json!([{"Sequence": {"id": "B", "type_id": 0}}]))),
            ("post_processor", template(json!([{"SpecialToken": {"id": "x", "type_id": 0}}]))),
            ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            ("normalizer", replace(&json!({"String": ""}), 2)),
        ] {
            let message = loaded(part, value.clone()).unwrap_err();
            assert!(message.contains("tokenizer.json"), "{value}: {message}");
        }
    }
}
