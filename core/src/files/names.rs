//! The names of a model's files, and checks of names that others send.
//!
//! Input: names from a listing of files, from answers and files of the Hub, and from the user. Output: what
//! each is by its name, and whether it may be a path below a folder. What must hold: no name that passes a
//! check leads out of the folder to which it is joined. This file knows no other of this folder.

use std::path::{Component, Path};

pub(super) const CONFIG: &str = "config.json";
/// The settings of an adapter (PEFT) that is added to the model, or to the base that it names.
pub(super) const ADAPTER: &str = "adapter_config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The special tokens of a tokenizer that an older version of transformers saved.
pub(super) const SPECIAL_TOKENS: &str = "special_tokens_map.json";
pub(super) const MODULES: &str = "modules.json";
pub(super) const LOGIT_SCORE: &str = "1_LogitScore/config.json";
pub(super) const POOLING: &str = "1_Pooling/config.json";
pub(super) const PROMPTS: &str = "config_sentence_transformers.json";
pub(super) const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The file with `max_seq_length`, and its names in older versions of sentence-transformers.
pub(super) const SENTENCE_BERT: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The file that only Laya has.
pub(super) const LAYA: &str = "rl_agent_config.json";
/// The file that only any2jev's adapters have.
pub(super) const POINTER: &str = "any2jev.json";
/// The families of trained deciders, each with a file that only its models have. Only the heads of Laya and
/// any2jev are computed, by the native code.
pub(super) const TRAINED_DECIDERS: [(&str, &str); 7] = [
    (LAYA, "Laya"),
    (POINTER, "any2jev"),
    ("head.pt", "Kev"),
    ("nanojev_config.json", "Nano-Jev"),
    ("decision_config.json", "pplx-decider"),
    ("joint_head_config.json", "Clef"),
    ("strands_decider_config.json", "strands-decider"),
];

/// The names of weight files in a repository of `transformers`.
pub(super) struct Layout {
    /// The name of a single weight file.
    pub(super) single: &'static str,
    /// The name of the index of a model with several weight files.
    pub(super) index: &'static str,
    /// The ending of the names of several weight files.
    pub(super) ending: &'static str,
}

/// The layouts, the preferred one first.
pub(super) const LAYOUTS: [Layout; 2] = [
    Layout { single: "model.safetensors", index: "model.safetensors.index.json", ending: ".safetensors" },
    Layout { single: "pytorch_model.bin", index: "pytorch_model.bin.index.json", ending: ".bin" },
];

const GGUF: &str = ".gguf";
/// The folder of exported models.
pub(super) const ONNX_FOLDER: &str = "onnx/";
const ONNX: &str = ".onnx";

const MIB: u64 = 1 << 20;
/// The longest `tokenizer.json`, in bytes. The largest in use have 35 MB.
const MAX_TOKENIZER: u64 = 256 * MIB;
/// The longest index of shards, in bytes. An index has about 100 bytes per tensor.
const MAX_INDEX: u64 = 64 * MIB;
/// The longest other file that is not a weight file: configurations and templates. The largest list many
/// labels.
const MAX_OTHER: u64 = 16 * MIB;

/// The longest part of a path, in bytes, on the file systems of Linux and macOS.
const MAX_PART: usize = 255;
/// The longest file name in a repository, in bytes.
const MAX_NAME: usize = 1024;

/// The largest size of a file on the Hub.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bound {
    /// Weights: the bytes that the Hub announces, at most this number.
    Weights(u64),
    /// Any other file: [`max_bytes`] by its name.
    Small,
}

impl Bound {
    /// Weights of any size.
    pub(super) const ANY: Self = Self::Weights(u64::MAX);
}

/// The most bytes of a file that is not a weight file, by its name.
pub(super) fn max_bytes(file: &str) -> u64 {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name {
        TOKENIZER => MAX_TOKENIZER,
        index if LAYOUTS.iter().any(|layout| layout.index == index) => MAX_INDEX,
        _ => MAX_OTHER,
    }
}

/// Whether a name belongs to a GGUF file.
pub(super) fn is_gguf(name: &str) -> bool {
    name.to_lowercase().ends_with(GGUF)
}

/// The path of a module's single weight file. `path` turns a file name into a path, and `has` says whether a
/// path exists.
pub(super) fn single_file(path: impl Fn(&str) -> String, has: impl Fn(&str) -> bool) -> String {
    let found = LAYOUTS.iter().map(|layout| path(layout.single)).find(|path| has(path));
    found.unwrap_or_else(|| path(LAYOUTS[0].single))
}

/// Whether a folder has safetensors, in one file or in several. `has` says whether a name exists.
pub(super) fn has_safetensors(has: impl Fn(&str) -> bool) -> bool {
    has(LAYOUTS[0].single) || has(LAYOUTS[0].index)
}

/// Whether a name belongs to a weight file.
pub(super) fn is_weights(name: &str) -> bool {
    is_gguf(name) || LAYOUTS.iter().any(|layout| name.ends_with(layout.ending))
}

/// Whether a file is a graph in one of the two folders where models have them.
pub(super) fn is_graph(name: &str) -> bool {
    name.ends_with(ONNX) && !name.strip_prefix(ONNX_FOLDER).unwrap_or(name).contains('/')
}

/// The files of a module in its folder `path`: its configuration and its weights. `has` says whether a file
/// exists.
pub(super) fn module_files(path: &str, has: impl Fn(&str) -> bool) -> [String; 2] {
    let path = path.trim_end_matches('/');
    [module_config(path), single_file(|name| format!("{path}/{name}"), has)]
}

/// The configuration file of a module in its folder `path`.
pub(super) fn module_config(path: &str) -> String {
    format!("{}/{CONFIG}", path.trim_end_matches('/'))
}

/// Whether a path names a folder inside the model's.
pub(super) fn is_inside(path: &str) -> bool {
    let mut components = Path::new(path).components();
    components.clone().next().is_some() && components.all(|part| matches!(part, Component::Normal(_)))
}

/// Whether this is the whole id of a commit: 40 hexadecimal digits.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a file name or a revision stays below the folder to which it is joined: its parts between `/` are
/// not empty, `.` or `..`, and have no control characters and backslashes.
pub(super) fn stays_below(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.split('/').all(|part| {
            !matches!(part, "" | "." | "..")
                && part.len() <= MAX_PART
                && !part.chars().any(|character| character.is_control() || character == '\\')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_its_folder() {
        let fine = ["config.json", "1_Pooling/config.json", "a b.safetensors", "refs/pr/3", "...", "정.json"];
        assert!(fine.into_iter().all(stays_below));
        let (long, deep) = ("a".repeat(256), "a/".repeat(600));
        let bad = [
            "",
            "/",
            "/etc/passwd",
            "a/",
            "a//b",
            "..",
            "../a",
            "a/../b",
            ".",
            "./a",
            "a\0",
            "a\nb",
            "..\\a",
            &long,
            &deep,
        ];
        assert!(!bad.into_iter().any(stays_below));
        assert!(is_commit(&"0a".repeat(20)) && is_commit(&"AF".repeat(20)));
        assert!(!is_commit(&"0g".repeat(20)) && !is_commit("main") && !is_commit(&"0".repeat(41)));
    }
}
