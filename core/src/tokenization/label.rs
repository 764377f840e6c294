//! The tokens with which a decider answers.
//!
//! Input: the model's tokenizer, and the text between a question and its answer. Output: [`LabelTokens`].
//! What must hold: each label is exactly one token behind the finished prompt, and no two labels of a
//! question are the same token. Otherwise a label's probability could not be read.

use std::ops::Range;

use tokenizers::Tokenizer;

use super::EncoderError;

/// The most options of a question.
pub const MAX_OPTIONS: usize = 255;
/// The most levels of a scale: its labels are digits.
pub const MAX_LEVELS: usize = 10;
/// The number of options up to which the labels are letters.
const LETTERS: usize = 26;

const YES_NO: [&str; 2] = ["yes", "no"];

/// The labels of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelKind {
    /// `A`, `B`, …; beyond 26 options `AA`, `AB`, ….
    Options(usize),
    /// `0`, `1`, ….
    Levels(usize),
    /// `yes` and `no`.
    YesNo,
}

/// The tokens of all labels: letters, digits, yes and no, then codes of two letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelTokens {
    ids: Vec<u32>,
    /// The codes of two letters that are one token each, in alphabetical order, at most [`MAX_OPTIONS`].
    codes: Vec<String>,
}

impl LabelTokens {
    /// Finds the tokens behind a prompt that ends with `tail`.
    pub(crate) fn find_behind(tokenizer: &Tokenizer, tail: &str) -> Result<Self, EncoderError> {
        let added = tokenizer.get_added_tokens_decoder();
        if !added.values().any(|token| !token.content.is_empty() && tail.contains(&token.content)) {
            let message = "the chat template writes no control token between a message and its answer, so that a text \
                           could merge with the answer: choose a model whose template does, or name such a template \
                           with `--chat-template`";
            return Err(EncoderError::Refused(message.to_owned()));
        }
        let prompt = LabelPrompt { tokenizer, tail, ids: encode_behind(tokenizer, tail, "")? };
        let digits = (0..MAX_LEVELS).map(|digit| digit.to_string());
        let mut ids = Vec::new();
        for label in all_letters().map(String::from).chain(digits).chain(YES_NO.map(str::to_owned)) {
            match prompt.added_token(&label)? {
                Some(id) if !ids.contains(&id) => ids.push(id),
                _ => {
                    return Err(EncoderError::Refused(format!(
                        "the label `{label}` is not one token of its own behind this model's prompt (tokenizer.json and \
                         the chat template), so its probability cannot be read, and the model cannot decide: choose \
                         another instruct model"
                    )));
                }
            }
        }
        let mut codes = Vec::new();
        let first = ids.len();
        for code in all_letters()
            .flat_map(|first| all_letters().map(move |second| String::from_iter([first, second])))
        {
            if codes.len() < MAX_OPTIONS
                && let Some(id) = prompt.added_token(&code)?
                && !ids[first..].contains(&id)
            {
                ids.push(id);
                codes.push(code);
            }
        }
        Ok(Self { ids, codes })
    }

    /// The ids of all labels.
    pub fn token_ids(&self) -> &[u32] {
        &self.ids
    }

    /// The most options of a question.
    pub fn max_options(&self) -> usize {
        self.codes.len().max(LETTERS)
    }

    /// The places of a question's labels among [`LabelTokens::token_ids`]. The question has at most
    /// [`LabelTokens::max_options`] options, or [`MAX_LEVELS`] levels.
    pub fn label_places(&self, kind: LabelKind) -> Range<usize> {
        let yes_no = LETTERS + MAX_LEVELS;
        let codes = yes_no + YES_NO.len();
        match kind {
            LabelKind::Options(count @ ..=LETTERS) => 0..count,
            LabelKind::Options(count) => codes..codes + count,
            LabelKind::Levels(count) => LETTERS..LETTERS + count,
            LabelKind::YesNo => yes_no..codes,
        }
    }

    /// The label of an option of a question with `count` options.
    pub fn option_label(&self, index: usize, count: usize) -> String {
        if count <= LETTERS {
            all_letters().nth(index).map(String::from).unwrap_or_default()
        } else {
            self.codes.get(index).cloned().unwrap_or_default()
        }
    }
}

/// A prompt without its answer.
struct LabelPrompt<'a> {
    tokenizer: &'a Tokenizer,
    tail: &'a str,
    ids: Vec<u32>,
}

impl LabelPrompt<'_> {
    /// The token that a label adds to the prompt; absent if it adds several, or changes the prompt.
    fn added_token(&self, label: &str) -> Result<Option<u32>, EncoderError> {
        let ids = encode_behind(self.tokenizer, self.tail, label)?;
        Ok(match ids.strip_prefix(self.ids.as_slice()) {
            Some([id]) => Some(*id),
            _ => None,
        })
    }
}

/// The ids of a text, the end of a prompt and a label.
fn encode_behind(tokenizer: &Tokenizer, tail: &str, label: &str) -> Result<Vec<u32>, EncoderError> {
    let encoding = tokenizer.encode_fast(["x", tail, label].concat(), false);
    Ok(encoding.map_err(EncoderError::tokenizer)?.get_ids().to_vec())
}

fn all_letters() -> impl Iterator<Item = char> + Clone {
    'A'..='Z'
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::test_tokenizer::{small_tokenizer, small_tokenizer_with, tokenizer_from};

    const TAIL: &str = "<|im_end|>\n<|im_start|>\n";

    #[test]
    fn each_label_is_one_token_behind_the_prompt() {
        let tokenizer = small_tokenizer();
        let labels = LabelTokens::find_behind(&tokenizer, TAIL).unwrap();
        let id = |text: &str| tokenizer.token_to_id(text).unwrap();
        let found = |kind| labels.token_ids()[labels.label_places(kind)].to_vec();
        assert_eq!(found(LabelKind::Options(3)), [id("A"), id("B"), id("C")]);
        assert_eq!(found(LabelKind::Levels(2)), [id("0"), id("1")]);
        assert_eq!(found(LabelKind::YesNo), [id("yes"), id("no")]);
        assert_eq!((labels.max_options(), labels.option_label(25, 26).as_str()), (26, "Z"));
        assert_eq!(found(LabelKind::Options(26)).len(), 26);
        assert_eq!(found(LabelKind::Levels(10)).last(), Some(&id("9")));
    }

    #[test]
    fn beyond_26_options_all_labels_are_codes_of_two_letters() {
        let codes: Vec<String> =
            ('A'..='C').flat_map(|a| ('A'..='Z').map(move |b| format!("{a} {b}"))).collect();
        let mut merges: Vec<&str> = codes.iter().map(String::as_str).filter(|code| *code != "A C").collect();
        merges.extend(["y e", "ye s", "n o"]);
        let tokenizer = small_tokenizer_with(&merges);
        let labels = LabelTokens::find_behind(&tokenizer, TAIL).unwrap();
        assert_eq!(labels.max_options(), 77);
        let shown: Vec<String> = (0..4).map(|index| labels.option_label(index, 27)).collect();
        assert_eq!(shown, ["AA", "AB", "AD", "AE"]);
        let places = labels.label_places(LabelKind::Options(27));
        assert_eq!(labels.token_ids()[places.start + 2], tokenizer.token_to_id("AD").unwrap());
        assert_eq!(places.len(), 27);
        assert_eq!(labels.option_label(1, 26), "B");
    }

    #[test]
    fn a_label_that_is_no_token_of_its_own_is_refused() {
        // The line break merges with the letter, "yes" is two tokens, and no control token is behind a text.
        let cases = [
            (small_tokenizer_with(&["Ċ A", "y e", "ye s", "n o"]), "x<|im_end|>\n", "`A`"),
            (small_tokenizer_with(&["y e", "n o"]), TAIL, "`yes`"),
            (small_tokenizer(), "\nAnswer:\n", "no control token"),
        ];
        for (tokenizer, tail, expected) in cases {
            // Qwen's pattern keeps line breaks and letters apart, another one does not.
            let mut json: serde_json::Value =
                serde_json::from_str(&tokenizer.to_string(false).unwrap()).unwrap();
            json["pre_tokenizer"] = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false,
                "trim_offsets": false, "use_regex": false });
            let message = LabelTokens::find_behind(&tokenizer_from(&json), tail).unwrap_err().to_string();
            assert!(message.contains(expected), "{tail:?}: {message}");
        }
    }
}
