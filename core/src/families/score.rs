//! The rules from a raw score to the default score that a client gets.
//!
//! Input: a raw score. Output: a number, which is between 0 and 1 unless the rule is the identity. What must
//! hold: a rule is monotone, so that it keeps the order of the raw scores.

use crate::postprocess::sigmoid;
use std::{fmt, str::FromStr};

/// The rule from a raw score to the default score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScoreRule {
    /// `1 / (1 + e^-((x - offset) / divisor))`
    Sigmoid {
        /// The raw score that becomes one half.
        offset: f32,
        /// The divisor, above zero.
        divisor: f32,
    },
    /// `(x - offset) / divisor`, for a raw score in a range that is known: a cosine, a rating.
    Linear {
        /// The raw score that becomes 0.
        offset: f32,
        /// The divisor, above zero.
        divisor: f32,
    },
    /// The raw score, unchanged.
    Identity,
}

// All its numbers are finite.
impl Eq for ScoreRule {}

impl Default for ScoreRule {
    fn default() -> Self {
        Self::SIGMOID
    }
}

impl ScoreRule {
    /// The sigmoid of the raw score, as in TEI.
    pub const SIGMOID: Self = Self::Sigmoid { offset: 0.0, divisor: 1.0 };
    /// `(x + 1) / 2`, for a cosine.
    pub const COSINE: Self = Self::Linear { offset: -1.0, divisor: 2.0 };

    /// The score for a raw score.
    pub fn apply(self, raw: f32) -> f32 {
        match self {
            Self::Sigmoid { offset, divisor } => sigmoid((raw - offset) / divisor),
            Self::Linear { offset, divisor } => {
                ((f64::from(raw) - f64::from(offset)) / f64::from(divisor)) as f32
            }
            Self::Identity => raw,
        }
    }

    /// A score between 0 and 1 for any rule. For the identity it is the sigmoid.
    pub fn probability(self, raw: f32) -> f32 {
        if self == Self::Identity { sigmoid(raw) } else { self.apply(raw) }
    }
}

impl fmt::Display for ScoreRule {
    /// The notation of the command line: `sigmoid`, `sigmoid(x/5)`, `sigmoid(x-2.65)`, `sigmoid((x-2.65)/5)`,
    /// `(x+1)/2` or `identity`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Identity => f.write_str("identity"),
            Self::Linear { offset, divisor } => f.write_str(&linear_term(offset, divisor)),
            rule if rule == Self::SIGMOID => f.write_str("sigmoid"),
            Self::Sigmoid { offset, divisor } => write!(f, "sigmoid({})", linear_term(offset, divisor)),
        }
    }
}

/// `x`, `x/5`, `x-2.65` or `(x-2.65)/5`.
fn linear_term(offset: f32, divisor: f32) -> String {
    let sign = if offset < 0.0 { '+' } else { '-' };
    let moved = match offset {
        0.0 => "x".to_owned(),
        _ => format!("x{sign}{}", offset.abs()),
    };
    match (divisor, offset) {
        (1.0, _) => moved,
        (_, 0.0) => format!("{moved}/{divisor}"),
        _ => format!("({moved})/{divisor}"),
    }
}

/// Offset and divisor of a term that [`linear_term`] wrote.
fn parse_term(term: &str) -> Option<(f32, f32)> {
    let (moved, divisor) = term.rsplit_once('/').unwrap_or((term, "1"));
    let moved = moved.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(moved);
    let moved = moved.strip_prefix('x')?;
    // `-2.65` is added to x, while the offset is subtracted from it.
    let offset = if moved.is_empty() { 0.0 } else { 0.0 - finite_number(moved)? };
    let divisor = finite_number(divisor)?;
    if divisor > 0.0 { Some((offset, divisor)) } else { None }
}

fn finite_number(text: &str) -> Option<f32> {
    text.parse().ok().filter(|number: &f32| number.is_finite())
}

impl FromStr for ScoreRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = match text {
            "sigmoid" => Some(Self::SIGMOID),
            "identity" => Some(Self::Identity),
            // The name of this rule is `identity`.
            "x" => None,
            _ => match text.strip_prefix("sigmoid(").and_then(|rest| rest.strip_suffix(')')) {
                Some(term) => parse_term(term).map(|(offset, divisor)| Self::Sigmoid { offset, divisor }),
                None => parse_term(text).map(|(offset, divisor)| Self::Linear { offset, divisor }),
            },
        };
        rule.ok_or_else(|| {
            format!(
                "`{text}` is not one of sigmoid, sigmoid(x/5), sigmoid(x-2.65), sigmoid((x-2.65)/5), with numbers of your own, (x+1)/2 and identity"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn rules_are_read_back_as_they_are_written() {
        let table = [
            (ScoreRule::SIGMOID, "sigmoid"),
            (ScoreRule::Identity, "identity"),
            (ScoreRule::COSINE, "(x+1)/2"),
            (ScoreRule::Linear { offset: 0.0, divisor: 9.0 }, "x/9"),
            (ScoreRule::Sigmoid { offset: 0.0, divisor: 5.0 }, "sigmoid(x/5)"),
            (ScoreRule::Sigmoid { offset: 2.65, divisor: 1.0 }, "sigmoid(x-2.65)"),
            (ScoreRule::Sigmoid { offset: -0.5, divisor: 2.5 }, "sigmoid((x+0.5)/2.5)"),
        ];
        for (rule, text) in table {
            assert_eq!(rule.to_string(), text);
            assert_eq!(text.parse(), Ok(rule));
        }
        for wrong in [
            "",
            "Sigmoid",
            "tanh",
            "sigmoid(",
            "sigmoid(5)",
            "sigmoid(x/0)",
            "sigmoid(x/-1)",
            "sigmoid(x-nan)",
            "sigmoid(y/2)",
            "x",
            "x/0",
            "y/9",
            "(x+1/2",
        ] {
            let message = wrong.parse::<ScoreRule>().unwrap_err();
            assert!(message.starts_with(&format!("`{wrong}` is not one of")), "{message}");
        }
    }

    #[test]
    fn scores_are_those_that_the_authors_publish() {
        // The card of zerank-2: raw logits, and the scores that its older version printed for them in
        // bfloat16.
        let zerank = ScoreRule::Sigmoid { offset: 0.0, divisor: 5.0 };
        for (raw, expected) in [(5.4062, 0.7468), (-4.5, 0.2891)] {
            assert!((zerank.apply(raw) - expected).abs() < 1e-4);
        }
        let m0 = ScoreRule::Sigmoid { offset: 2.65, divisor: 1.0 };
        assert!((m0.apply(2.65) - 0.5).abs() < 1e-7 && m0.apply(3.0) > 0.5 && m0.apply(2.0) < 0.5);
        for step in -1000..=1000 {
            let raw = step as f32 / 997.0;
            assert_eq!(ScoreRule::COSINE.apply(raw).to_bits(), f32::midpoint(raw, 1.0).to_bits());
        }
        assert!((ScoreRule::Linear { offset: 0.0, divisor: 9.0 }.apply(4.5) - 0.5).abs() < 1e-7);
        for (raw, expected) in [(-1.0, 0.0), (0.0, 0.5), (0.294_921_88, 0.647_460_94), (1.0, 1.0)] {
            assert!((ScoreRule::COSINE.apply(raw) - expected).abs() < 1e-6);
        }
        assert!((ScoreRule::Identity.apply(-7.25) - -7.25).abs() < f32::EPSILON);
    }
}
