//! Tokenizers for tests: a small one with the structure of Qwen's, and Qwen's own if it is available.

#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use super::{EncoderOptions, PromptEncoder};
use crate::{families::QWEN3_RERANKER, templates::PromptTemplate};
use serde_json::{Map, Value, json};
use std::{env, path::PathBuf};
use tokenizers::{Tokenizer, pre_tokenizers::byte_level::ByteLevel};

/// Special and other added tokens, because Qwen has both.
pub(crate) const ADDED_TOKENS: [(&str, bool); 6] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("<think>", false),
    ("</think>", false),
];
const MERGES: &[&str] = &[
    "y e", "ye s", "n o", "t h", "th e", "Ġ the", "i n", "e r", "o n", "Ċ Ċ", "? Ċ", "< t", "Ġ Ġ", ": Ġ",
    "Ġ d", "Ã ©", "ì Ħ", "ìĦ ľ", "ð Ł", "Ġ <",
];

/// Byte-level BPE with a few merges. One of them joins the end of a question and the line break after it.
pub(crate) fn small_tokenizer() -> Tokenizer {
    small_tokenizer_with(MERGES)
}

pub(crate) fn small_tokenizer_with(merges: &[&str]) -> Tokenizer {
    tokenizer_from(&small_tokenizer_json(merges))
}

pub(crate) fn tokenizer_from(json: &Value) -> Tokenizer {
    Tokenizer::from_bytes(serde_json::to_vec(json).unwrap()).unwrap()
}

pub(crate) fn small_tokenizer_json(merges: &[&str]) -> Value {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let tokens =
        alphabet.into_iter().map(String::from).chain(merges.iter().map(|merge| merge.replace(' ', "")));
    let vocabulary: Map<String, Value> = tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
    let first_added = vocabulary.len();
    let added: Vec<Value> = ADDED_TOKENS
        .iter()
        .enumerate()
        .map(|(index, (content, special))| {
            json!({ "id": first_added + index, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special })
        })
        .collect();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let split =
        json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0 },
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, byte_level] },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": merges },
    })
}

pub(crate) const QWEN_TOKENIZER: &str = "tokenizer.json of QWEN3_TOKENIZER_DIR or ../shared/qwen3-tokenizer";

/// Qwen3's own tokenizer. If it is not available, prints a line that says so and returns `None`.
pub(crate) fn qwen_tokenizer() -> Option<Tokenizer> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/qwen3-tokenizer");
    let folder = env::var_os("QWEN3_TOKENIZER_DIR").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let file = folder.join("tokenizer.json");
    if file.is_file() {
        return Some(Tokenizer::from_file(file).unwrap());
    }
    #[expect(clippy::print_stderr, reason = "shows which test was skipped")]
    {
        eprintln!("SKIPPED: needs {QWEN_TOKENIZER}");
    }
    None
}

/// The built-in prompt with the small tokenizer.
pub(crate) fn small_encoder(max_input_length: usize) -> PromptEncoder {
    let template = PromptTemplate::builtin(&QWEN3_RERANKER);
    PromptEncoder::new(small_tokenizer(), &template, options(max_input_length)).unwrap()
}

pub(crate) fn options(max_input_length: usize) -> EncoderOptions {
    EncoderOptions {
        default_instruction: QWEN3_RERANKER.default_instruction.map(str::to_owned),
        max_input_length,
        ..EncoderOptions::default()
    }
}

/// The text before the instruction's label and the text after the document in Qwen3-Reranker's prompt.
pub(crate) fn official_frame() -> [&'static str; 2] {
    let prompt = QWEN3_RERANKER.prompt[0];
    let (prefix, rest) = prompt.split_at(prompt.find("<Instruct>").unwrap());
    [prefix, rest.split_once("{document}").unwrap().1]
}
