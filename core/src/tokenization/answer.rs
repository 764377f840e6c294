//! The tokens with which a generative re-ranker answers.
//!
//! Input: the model's tokenizer, and the source of the answers: flags, `1_LogitScore/config.json` or a
//! family. Output: [`AnswerTokens`]. What must hold: each answer is one token of the vocabulary, and the two
//! differ, because a wrong guess gives nearly random scores.

use super::EncoderError;
use crate::{
    families::{AnswerName, Answers, FamilyAnswer},
    files::LogitScore,
};
use std::str::FromStr;
use text_embeddings_backend_core::{AnswerToken, AnswerTokens};
use tokenizers::Tokenizer;

/// An answer in the user's notation: its text, or `id:9454`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedAnswer {
    /// The text of exactly one token.
    Text(String),
    /// A token's id.
    Id(u32),
}

impl FromStr for NamedAnswer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("id:") {
            Some(id) => id
                .parse()
                .map(Self::Id)
                .map_err(|_| format!("`{text}` is not a token id: give a number after `id:`")),
            None if text.is_empty() => {
                Err("it is empty: give a token's text, or `id:` and its number".to_owned())
            }
            None => Ok(Self::Text(text.to_owned())),
        }
    }
}

/// The source of the answers.
#[derive(Debug, Clone, Copy)]
pub enum AnswerSource<'a> {
    /// `--rerank-true-token` and `--rerank-false-token`.
    Flags(&'a NamedAnswer, Option<&'a NamedAnswer>),
    /// `1_LogitScore/config.json`.
    LogitScore(LogitScore),
    /// The model's family.
    Family(Answers),
}

/// The fields of the file with the answers.
const FILE: [&str; 2] =
    ["`true_token_id` of 1_LogitScore/config.json", "`false_token_id` of 1_LogitScore/config.json"];

/// Finds the answers.
///
/// # Errors
///
/// [`EncoderError`] if an answer is not exactly one token of the vocabulary, or if both are the same.
pub fn answer_tokens(tokenizer: &Tokenizer, source: AnswerSource<'_>) -> Result<AnswerTokens, EncoderError> {
    let known = |field, id| match tokenizer.id_to_token(id) {
        Some(_) => Ok(id),
        None => Err(EncoderError::AnswerId { field, id }),
    };
    let named = |flag, answer: &NamedAnswer| match answer {
        NamedAnswer::Text(text) => single_token(tokenizer, text),
        NamedAnswer::Id(id) => known(flag, *id),
    };
    let answers = match source {
        AnswerSource::Flags(yes, no) => {
            let no = no.map(|no| named("`--rerank-false-token`", no)).transpose()?;
            AnswerTokens::difference(named("`--rerank-true-token`", yes)?, no)
        }
        AnswerSource::LogitScore(LogitScore { true_token_id, false_token_id }) => {
            let yes = known(FILE[0], true_token_id)?;
            AnswerTokens::difference(yes, false_token_id.map(|id| known(FILE[1], id)).transpose()?)
        }
        AnswerSource::Family(answers) => {
            let mut tokens = Vec::with_capacity(answers.tokens.len());
            for FamilyAnswer { token, weight } in answers.tokens {
                let id = match token {
                    AnswerName::Text(text) => single_token(tokenizer, text)?,
                    AnswerName::Id(id) => known("the answer of the model's family", *id)?,
                };
                tokens.push(AnswerToken { id, weight: *weight });
            }
            AnswerTokens { tokens, rule: answers.rule }
        }
    };
    for (index, answer) in answers.tokens.iter().enumerate() {
        if answers.tokens[..index].iter().any(|other| other.id == answer.id) {
            return Err(EncoderError::SameAnswers { id: answer.id });
        }
    }
    Ok(answers)
}

fn single_token(tokenizer: &Tokenizer, answer: &str) -> Result<u32, EncoderError> {
    let encoding = tokenizer.encode_fast(answer, false).map_err(EncoderError::tokenizer)?;
    match (tokenizer.token_to_id(answer), encoding.get_ids()) {
        (Some(id), [only]) if *only == id => Ok(id),
        _ => Err(EncoderError::AnswerToken { answer: answer.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::test_tokenizer::{
        QWEN_TOKENIZER, qwen_tokenizer, small_tokenizer, small_tokenizer_with,
    };

    const YES_NO: AnswerSource<'_> = AnswerSource::Family(Answers::YES_NO);

    fn file(true_token_id: u32, false_token_id: Option<u32>) -> AnswerSource<'static> {
        AnswerSource::LogitScore(LogitScore { true_token_id, false_token_id })
    }

    #[test]
    fn answers_are_named_by_text_or_id() {
        let tokenizer = small_tokenizer();
        let [yes, no] = ["yes", "no"].map(|token| tokenizer.token_to_id(token).unwrap());
        let named = |text: &str| text.parse::<NamedAnswer>();
        let (one, other) = (named("no").unwrap(), named(&format!("id:{yes}")).unwrap());
        let table = [
            (AnswerSource::Flags(&one, Some(&other)), (no, Some(yes))),
            (AnswerSource::Flags(&other, None), (yes, None)),
        ];
        for (source, (true_id, false_id)) in table {
            assert_eq!(answer_tokens(&tokenizer, source), Ok(AnswerTokens::difference(true_id, false_id)));
        }
        for wrong in ["", "id:", "id:-1", "id:yes"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn yes_and_no_are_looked_up() {
        let tokenizer = small_tokenizer();
        let (yes, no) = (tokenizer.token_to_id("yes"), tokenizer.token_to_id("no"));
        let expected = AnswerTokens::difference(yes.unwrap(), no);
        assert!(no.is_some());
        assert_eq!(answer_tokens(&tokenizer, YES_NO), Ok(expected));
    }

    #[test]
    fn qwen_says_yes_with_9693_and_no_with_2152() {
        let Some(tokenizer) = qwen_tokenizer() else { return };
        let expected = Ok(AnswerTokens::difference(9693, Some(2152)));
        assert_eq!(answer_tokens(&tokenizer, YES_NO), expected, "{QWEN_TOKENIZER}");
        assert_eq!(answer_tokens(&tokenizer, file(9693, Some(2152))), expected);
    }

    #[test]
    fn answers_that_are_not_two_tokens_are_refused() {
        let tokenizer = small_tokenizer();
        let (yes, no) = (tokenizer.token_to_id("yes").unwrap(), tokenizer.token_to_id("no").unwrap());
        let alone = AnswerTokens::difference(yes, None);
        assert_eq!(answer_tokens(&tokenizer, file(yes, None)), Ok(alone));
        let swapped = AnswerTokens::difference(no, Some(yes));
        assert_eq!(answer_tokens(&tokenizer, file(no, Some(yes))), Ok(swapped));
        let cases = [
            (file(yes, Some(yes)), EncoderError::SameAnswers { id: yes }),
            (
                file(99_999, Some(no)),
                EncoderError::AnswerId { field: "`true_token_id` of 1_LogitScore/config.json", id: 99_999 },
            ),
            (
                file(yes, Some(99_999)),
                EncoderError::AnswerId { field: "`false_token_id` of 1_LogitScore/config.json", id: 99_999 },
            ),
            (
                AnswerSource::Flags(&NamedAnswer::Id(99_999), None),
                EncoderError::AnswerId { field: "`--rerank-true-token`", id: 99_999 },
            ),
            (
                AnswerSource::Flags(&NamedAnswer::Text("yes no".to_owned()), None),
                EncoderError::AnswerToken { answer: "yes no".to_owned() },
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(answer_tokens(&tokenizer, source), Err(expected));
        }
        for (merges, answer) in [(&["n o"][..], "yes"), (&["y e", "ye s"][..], "no")] {
            let tokenizer = small_tokenizer_with(merges);
            assert_eq!(
                answer_tokens(&tokenizer, YES_NO),
                Err(EncoderError::AnswerToken { answer: answer.to_owned() })
            );
        }
    }
}
