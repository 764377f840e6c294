//! The rules by which byte-level vocabularies split a text into words.

/// The rule by which a byte-level vocabulary splits a text into words, from `tokenizer.ggml.pre`.
pub(super) struct WordRules {
    pub(super) names: &'static [&'static str],
    /// The rule as a regular expression; `None` for GPT-2's own rule.
    pub(super) pattern: Option<&'static str>,
    /// Whether the text is first normalised to Unicode's composed form.
    pub(super) is_composed: bool,
    /// Whether a word that is a token is taken whole, without merges.
    pub(super) ignore_merges: bool,
    /// Whether a special token comes first if the file says nothing.
    pub(super) has_first: bool,
}

pub(super) const WORDS: [WordRules; 4] = [
    WordRules {
        names: &["qwen2", "deepseek-r1-qwen", "f2llmv2"],
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        is_composed: true,
        ignore_merges: false,
        has_first: false,
    },
    WordRules {
        names: &["llama-bpe", "llama3", "llama-v3", "jina-v5-nano"],
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        is_composed: false,
        ignore_merges: true,
        has_first: true,
    },
    WordRules {
        names: &[
            "gpt-2",
            "roberta-bpe",
            "jina-v1-en",
            "jina-v2-code",
            "jina-v2-de",
            "jina-v2-es",
            "jina-de",
            "jina-es",
        ],
        pattern: None,
        is_composed: false,
        ignore_merges: false,
        has_first: false,
    },
    WordRules {
        names: &["modern-bert"],
        pattern: None,
        is_composed: true,
        ignore_merges: false,
        has_first: false,
    },
];
