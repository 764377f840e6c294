//! The tokens between which a generative re-ranker chooses, and where they come from.

use text_embeddings_backend_core::{AnswerRule, AnswerTokens};
use tokenizers::Tokenizer;

use crate::families::{Answers, Family};
use crate::files::ModelFolder;
use crate::model::{ModelFlags, Refusal, Sourced};
use crate::tokenization::{AnswerSource, answer_tokens};

pub(super) fn family_answers(answers: Option<Answers>) -> String {
    match answers {
        Some(answers) => answers.to_string(),
        None => "a head of its own".to_owned(),
    }
}

/// Whether a family has the answers of `1_LogitScore/config.json`, if there is one.
pub(super) fn answers_agree(
    files: &ModelFolder,
    tokenizer: &Tokenizer,
    family: &Family,
) -> Result<bool, Refusal> {
    let Some(named) = files.logit_score else { return Ok(true) };
    let named = answer_tokens(tokenizer, AnswerSource::LogitScore(named))?;
    let own = family.answers.map(|answers| answer_tokens(tokenizer, AnswerSource::Family(answers)));
    Ok(own.is_some_and(|own| own == Ok(named)))
}

/// The answers of a generative re-ranker: by flags, `1_LogitScore/config.json`, family, else `yes` and `no`.
pub(super) fn find_answers(
    files: &ModelFolder,
    tokenizer: &Tokenizer,
    flags: &ModelFlags,
    family: Option<&Family>,
) -> Result<Sourced<AnswerTokens>, Refusal> {
    let (answers, source) = match (&flags.rerank_true_token, files.logit_score) {
        (Some(yes), _) => {
            let no = flags.rerank_false_token.as_ref();
            (AnswerSource::Flags(yes, no), "`--rerank-true-token`".to_owned())
        }
        (None, Some(named)) => (AnswerSource::LogitScore(named), "1_LogitScore/config.json".to_owned()),
        (None, None) => match family.and_then(|family| Some((family.answers?, family.name))) {
            Some((answers, name)) => (AnswerSource::Family(answers), format!("the family {name}")),
            None => (AnswerSource::Family(Answers::YES_NO), "the tokenizer".to_owned()),
        },
    };
    Ok(Sourced::new(answer_tokens(tokenizer, answers)?, source))
}

/// The answers as the log and `/info` show them, such as "`yes` (9693) less `no` (2152), by the family …".
pub(super) fn answer_words(answers: &Sourced<AnswerTokens>, tokenizer: &Tokenizer) -> String {
    format!("{}, by {}", score_words(&answers.value, tokenizer), answers.source)
}

/// The raw score of a generative re-ranker, such as "`yes` (9693) less `no` (2152)".
fn score_words(answers: &AnswerTokens, tokenizer: &Tokenizer) -> String {
    let token = |id: u32| format!("`{}` ({id})", tokenizer.id_to_token(id).unwrap_or_default());
    let weighted = || {
        let terms = answers.tokens.iter().map(|answer| format!("{} of {}", answer.weight, token(answer.id)));
        terms.collect::<Vec<_>>().join(", ")
    };
    match answers.tokens.as_slice() {
        [yes] if *answers == AnswerTokens::difference(yes.id, None) => token(yes.id),
        [yes, no] if *answers == AnswerTokens::difference(yes.id, Some(no.id)) => {
            format!("{} less {}", token(yes.id), token(no.id))
        }
        _ if answers.rule == AnswerRule::ExpectedWeight => format!("the mean of the weights {}", weighted()),
        _ => format!("the sum of logits with the weights {}", weighted()),
    }
}
