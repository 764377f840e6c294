//! The rules by which byte-level vocabularies split a text into words.

/// The rule by which a byte-level vocabulary splits a text into words, from `tokenizer.ggml.pre`.
pub(super) struct WordRules {
    pub(super) names: &'static [&'static str],
    /// Regular expressions. Each splits the pieces that the one before left.
    pub(super) patterns: &'static [&'static str],
    /// Whether the text is first normalised to Unicode's composed form.
    pub(super) is_composed: bool,
    /// Whether a word that is a token is taken whole, without merges.
    pub(super) ignore_merges: bool,
    /// Whether a special token comes first if the file says nothing.
    pub(super) has_first: bool,
}

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The letters of `DeepSeek`'s first vocabulary: Latin, Greek, Cyrillic and their neighbours. Letters that
/// Unicode's composed form replaces are escaped, because editors may compose them.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const DEEPSEEK_EAST_ASIAN: &str = r"[一-龥ࠀ-一가-퟿]+";

/// GPT-2's rule, from which the others differ.
const PLAIN: WordRules = WordRules {
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
    patterns: &[GPT_2],
    is_composed: false,
    ignore_merges: false,
    has_first: false,
};

/// Qwen2's rule.
const QWEN: WordRules = WordRules {
    names: &["qwen2", "deepseek-r1-qwen", "f2llmv2"],
    patterns: &[QWEN_2],
    is_composed: true,
    ..PLAIN
};

/// Llama 3's rule, which llama.cpp also uses for LFM2.
const LLAMA: WordRules = WordRules {
    names: &["llama-bpe", "llama3", "llama-v3", "jina-v5-nano", "lfm2"],
    patterns: &[LLAMA_3],
    ignore_merges: true,
    has_first: true,
    ..PLAIN
};

/// The rules by name. A name has a row if its ids were compared with llama.cpp's ids, or with the ids of the
/// model's own tokenizer.
pub(super) const WORDS: [WordRules; 10] = [
    QWEN,
    WordRules { names: &["qwen35"], patterns: &[QWEN_3_5], ..PLAIN },
    LLAMA,
    PLAIN,
    WordRules { names: &["modern-bert", "mpt"], is_composed: true, ..PLAIN },
    WordRules { names: &["refact", "smollm", "starcoder"], patterns: &[DIGIT, GPT_2], ..PLAIN },
    WordRules { names: &["command-r"], patterns: &[DIGIT, GPT_2], is_composed: true, ..PLAIN },
    WordRules {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    WordRules {
        names: &["deepseek-llm"],
        patterns: &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", DEEPSEEK_EAST_ASIAN, r"\p{N}+"],
        ..PLAIN
    },
    WordRules {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_EAST_ASIAN, DIGIT],
        ..PLAIN
    },
];
