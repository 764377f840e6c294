//! `--calibration`: numbers that were fitted to judged answers of one model.
//!
//! Input: the file that `text-embeddings-router-calibrate` writes. Output: a [`Calibration`]. What must hold:
//! it is applied to the model, prompt and arithmetic that it was made for, and to no other.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Model, Refusal};
use crate::families::ScoreRule;

/// The largest divisor of logits, and one divided by the smallest.
const MAX_TEMPERATURE: f64 = 1000.0;
/// The largest offset of a raw score, in units of its temperature.
const MAX_OFFSET: f64 = 1000.0;

/// Numbers that were fitted to judged answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// Its file.
    pub path: PathBuf,
    /// The name of the judged questions.
    pub data: String,
    /// The rule from a re-ranker's raw score to a probability.
    pub score: Option<ScoreRule>,
    /// The divisors of the logits of decisions.
    pub decisions: Option<DecisionTemperatures>,
    made_for: MadeFor,
}

/// A divisor of logits for each type of question. A type that was not judged has 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecisionTemperatures {
    /// Of choices.
    pub choice: f64,
    /// Of scales.
    pub score: f64,
    /// Of yes-or-no questions.
    pub noul: f64,
}

/// A model as it is served. The file has these fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct MadeFor {
    /// Its Hub id or path.
    pub model_id: String,
    /// Its commit on the Hub.
    pub model_sha: Option<String>,
    /// Its arithmetic.
    pub arithmetic: String,
    /// The hash of a prompt.
    pub prompt_hash: Option<String>,
    /// The instruction of a re-ranker's scores.
    pub instruction: Option<String>,
}

#[derive(Deserialize)]
struct CalibrationFile {
    #[serde(flatten)]
    made_for: MadeFor,
    temperature: Option<f64>,
    offset: Option<f64>,
    decisions: Option<DecisionFits>,
    data: JudgedData,
}

#[derive(Deserialize)]
struct JudgedData {
    name: String,
}

#[derive(Deserialize)]
struct DecisionFits {
    choice: Option<DecisionFit>,
    score: Option<DecisionFit>,
    noul: Option<DecisionFit>,
}

#[derive(Deserialize)]
struct DecisionFit {
    temperature: f64,
}

impl Calibration {
    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// [`Refusal::Other`] if it is not such a file.
    pub fn from_text(path: &Path, text: &str) -> Result<Self, Refusal> {
        let file: Result<CalibrationFile, _> = serde_json::from_str(text);
        file.map_err(|error| format!("{error}: give a file that `text-embeddings-router-calibrate` wrote"))
            .and_then(|file| Self::from_file(path, file))
            .map_err(|problem| Refusal::calibration(path, &problem))
    }

    fn from_file(path: &Path, file: CalibrationFile) -> Result<Self, String> {
        let score = match (file.temperature, file.offset) {
            (Some(temperature), Some(offset)) if offset.abs() <= MAX_OFFSET => {
                let temperature = checked_temperature(temperature)?;
                // The file means sigmoid(raw / temperature + offset).
                let (offset, divisor) = ((0.0 - offset * temperature) as f32, temperature as f32);
                Some(ScoreRule::Sigmoid { offset, divisor })
            }
            (Some(_), Some(offset)) => {
                return Err(format!("the offset {offset} is not between -1000 and 1000"));
            }
            (None, None) => None,
            _ => return Err("it has one of `temperature` and `offset` without the other".to_owned()),
        };
        let decisions = match file.decisions {
            Some(DecisionFits { choice, score, noul }) => Some(DecisionTemperatures {
                choice: fitted_temperature(choice)?,
                score: fitted_temperature(score)?,
                noul: fitted_temperature(noul)?,
            }),
            None => None,
        };
        let CalibrationFile { made_for, data, .. } = file;
        Ok(Self { path: path.to_owned(), data: data.name, score, decisions, made_for })
    }

    /// Refuses a model that it was not made for, or that has no use for it.
    ///
    /// # Errors
    ///
    /// [`Refusal::Other`] that names the difference.
    pub fn check_model(&self, model: &Model, served: &MadeFor) -> Result<(), Refusal> {
        match self.find_difference(model, served) {
            Some(problem) => Err(Refusal::calibration(&self.path, &problem)),
            None => Ok(()),
        }
    }

    fn find_difference(&self, model: &Model, served: &MadeFor) -> Option<String> {
        let decides = self.decisions.is_some() && model.how_it_decides().is_some();
        let scores = self.score.is_some() && model.reranker().is_some();
        if !(decides || scores) {
            return Some("it has nothing for a model of this kind".to_owned());
        }
        let made = &self.made_for;
        let is_same = match (&made.model_sha, &served.model_sha) {
            (Some(one), Some(other)) => one == other,
            _ => own_name(&made.model_id) == own_name(&served.model_id),
        };
        let (part, made, served) = if !is_same {
            ("model", made.model_words(), served.model_words())
        } else if made.arithmetic != served.arithmetic {
            ("arithmetic", made.arithmetic.clone(), served.arithmetic.clone())
        } else if made.prompt_hash != served.prompt_hash {
            ("prompt", quoted_text(made.prompt_hash.as_ref()), quoted_text(served.prompt_hash.as_ref()))
        } else if scores && made.instruction != served.instruction {
            ("instruction", quoted_text(made.instruction.as_ref()), quoted_text(served.instruction.as_ref()))
        } else {
            return None;
        };
        Some(format!(
            "it was made for the {part} {made}, and this server has {served}: calibrate again, or leave it out"
        ))
    }
}

impl MadeFor {
    fn model_words(&self) -> String {
        match &self.model_sha {
            Some(sha) => format!("{} at {sha}", self.model_id),
            None => self.model_id.clone(),
        }
    }
}

fn quoted_text(text: Option<&String>) -> String {
    text.map_or_else(|| "none".to_owned(), |text| format!("{text:?}"))
}

fn fitted_temperature(fit: Option<DecisionFit>) -> Result<f64, String> {
    fit.map_or(Ok(1.0), |fit| checked_temperature(fit.temperature))
}

fn checked_temperature(temperature: f64) -> Result<f64, String> {
    if (1.0 / MAX_TEMPERATURE..=MAX_TEMPERATURE).contains(&temperature) {
        Ok(temperature)
    } else {
        Err(format!("the temperature {temperature} is not between 0.001 and 1000"))
    }
}

/// The last part of a Hub id or a path: the folders above it may differ between machines.
fn own_name(model_id: &str) -> &str {
    model_id.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    const SCORES: &str = r#"{"model_id":"a/m","arithmetic":"float32","prompt_hash":"1","data":{"name":"d"},"temperature":2.0,"offset":-1.5}"#;
    const DECISIONS: &str = r#"{"model_id":"a/m","arithmetic":"float32","prompt_hash":"1","data":{"name":"d"},"decisions":{"choice":{"temperature":3}}}"#;

    fn read(text: &str) -> Result<Calibration, String> {
        Calibration::from_text(Path::new("c.json"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_are_read_in_the_form_in_which_they_are_applied() {
        let found = read(SCORES).unwrap();
        assert_eq!(
            (found.score, found.decisions),
            (Some(ScoreRule::Sigmoid { offset: 3.0, divisor: 2.0 }), None)
        );
        // sigmoid(5 / 2 - 1.5)
        assert!((found.score.unwrap().apply(5.0) - 0.731_058_6).abs() < 1e-6);
        let found = read(DECISIONS).unwrap();
        let expected = DecisionTemperatures { choice: 3.0, score: 1.0, noul: 1.0 };
        assert_eq!((found.score, found.decisions), (None, Some(expected)));
    }

    #[test]
    fn a_file_that_cannot_be_applied_is_refused_with_the_reason() {
        for (text, part) in [
            ("[]".to_owned(), "text-embeddings-router-calibrate"),
            (SCORES.replace("\"arithmetic\":\"float32\",", ""), "arithmetic"),
            (SCORES.replace("2.0", "0"), "the temperature 0 is not between"),
            (SCORES.replace("2.0", "-1"), "the temperature -1 is not between"),
            (SCORES.replace("-1.5", "1e9"), "the offset 1000000000 is not between"),
            (SCORES.replace(",\"offset\":-1.5", ""), "without the other"),
            (DECISIONS.replace(":3}", ":1e9}"), "is not between"),
        ] {
            let message = read(&text).unwrap_err();
            assert!(message.starts_with("`--calibration c.json`: ") && message.contains(part), "{message}");
        }
    }
}
