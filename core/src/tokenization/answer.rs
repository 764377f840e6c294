//! The two tokens between which a generative re-ranker decides.
//!
//! Input: the model's tokenizer, and the ids of `1_LogitScore/config.json` if there is one. Output: [`AnswerTokens`].
//! What must hold: each is one token of the vocabulary, and they differ; a wrong guess gives near-random scores.

use super::EncoderError;
use text_embeddings_backend_core::AnswerTokens;
use tokenizers::Tokenizer;

/// Finds the answers: the ids of `logit_score` (true, false), else the tokens `yes` and `no`.
///
/// # Errors
///
/// [`EncoderError`] if an answer is not exactly one token of the vocabulary, or if both are the same.
pub fn answer_tokens(
    tokenizer: &Tokenizer,
    logit_score: Option<(u32, Option<u32>)>,
) -> Result<AnswerTokens, EncoderError> {
    let known = |field, id| match tokenizer.id_to_token(id) {
        Some(_) => Ok(id),
        None => Err(EncoderError::AnswerId { field, id }),
    };
    let answers = match logit_score {
        Some((true_id, false_id)) => AnswerTokens {
            true_id: known("true_token_id", true_id)?,
            false_id: false_id.map(|id| known("false_token_id", id)).transpose()?,
        },
        None => AnswerTokens {
            true_id: single_token(tokenizer, "yes")?,
            false_id: Some(single_token(tokenizer, "no")?),
        },
    };
    match answers.false_id {
        Some(id) if id == answers.true_id => Err(EncoderError::SameAnswers { id }),
        _ => Ok(answers),
    }
}

fn single_token(tokenizer: &Tokenizer, answer: &'static str) -> Result<u32, EncoderError> {
    let encoding = tokenizer.encode_fast(answer, false).map_err(EncoderError::tokenizer)?;
    match (tokenizer.token_to_id(answer), encoding.get_ids()) {
        (Some(id), [only]) if *only == id => Ok(id),
        _ => Err(EncoderError::AnswerToken { answer }),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

    use super::*;
    use crate::tokenization::test_tokenizer::{
        QWEN_TOKENIZER, qwen_tokenizer, small_tokenizer, small_tokenizer_with,
    };

    #[test]
    fn yes_and_no_are_looked_up() {
        let tokenizer = small_tokenizer();
        let (yes, no) = (tokenizer.token_to_id("yes"), tokenizer.token_to_id("no"));
        let expected = AnswerTokens { true_id: yes.unwrap(), false_id: no };
        assert!(no.is_some());
        assert_eq!(answer_tokens(&tokenizer, None), Ok(expected));
    }

    #[test]
    fn qwen_says_yes_with_9693_and_no_with_2152() {
        let Some(tokenizer) = qwen_tokenizer() else { return };
        let expected = Ok(AnswerTokens { true_id: 9693, false_id: Some(2152) });
        assert_eq!(answer_tokens(&tokenizer, None), expected, "{QWEN_TOKENIZER}");
        assert_eq!(answer_tokens(&tokenizer, Some((9693, Some(2152)))), expected);
    }

    #[test]
    fn answers_that_are_not_two_tokens_are_refused() {
        let tokenizer = small_tokenizer();
        let (yes, no) = (tokenizer.token_to_id("yes").unwrap(), tokenizer.token_to_id("no").unwrap());
        let alone = AnswerTokens { true_id: yes, false_id: None };
        assert_eq!(answer_tokens(&tokenizer, Some((yes, None))), Ok(alone));
        let swapped = AnswerTokens { true_id: no, false_id: Some(yes) };
        assert_eq!(answer_tokens(&tokenizer, Some((no, Some(yes)))), Ok(swapped));
        let cases = [
            (Some((yes, Some(yes))), EncoderError::SameAnswers { id: yes }),
            (Some((99_999, Some(no))), EncoderError::AnswerId { field: "true_token_id", id: 99_999 }),
            (Some((yes, Some(99_999))), EncoderError::AnswerId { field: "false_token_id", id: 99_999 }),
        ];
        for (ids, expected) in cases {
            assert_eq!(answer_tokens(&tokenizer, ids), Err(expected));
        }
        for (merges, answer) in [(&["n o"][..], "yes"), (&["y e", "ye s"][..], "no")] {
            let tokenizer = small_tokenizer_with(merges);
            assert_eq!(answer_tokens(&tokenizer, None), Err(EncoderError::AnswerToken { answer }));
        }
    }
}
