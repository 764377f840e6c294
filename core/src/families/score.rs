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
    /// `(x + 1) / 2`, for a raw score between -1 and 1.
    HalfAboveMinusOne,
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

    /// The score for a raw score.
    #[must_use]
    pub fn apply(self, raw: f32) -> f32 {
        match self {
            Self::Sigmoid { offset, divisor } => sigmoid((raw - offset) / divisor),
            Self::HalfAboveMinusOne => f32::midpoint(raw, 1.0),
            Self::Identity => raw,
        }
    }

    /// A score between 0 and 1 for any rule. For the identity it is the sigmoid.
    #[must_use]
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
            Self::HalfAboveMinusOne => f.write_str("(x+1)/2"),
            rule if rule == Self::SIGMOID => f.write_str("sigmoid"),
            Self::Sigmoid { offset: 0.0, divisor } => write!(f, "sigmoid(x/{divisor})"),
            Self::Sigmoid { offset, divisor } => {
                let minus = format!("x{}{}", if offset < 0.0 { '+' } else { '-' }, offset.abs());
                match divisor {
                    1.0 => write!(f, "sigmoid({minus})"),
                    _ => write!(f, "sigmoid(({minus})/{divisor})"),
                }
            }
        }
    }
}

impl FromStr for ScoreRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "`{text}` is not one of sigmoid, sigmoid(x/5), sigmoid(x-2.65), sigmoid((x-2.65)/5), with numbers of your own, (x+1)/2 and identity"
            )
        };
        match text {
            "sigmoid" => return Ok(Self::SIGMOID),
            "identity" => return Ok(Self::Identity),
            "(x+1)/2" => return Ok(Self::HalfAboveMinusOne),
            _ => {}
        }
        let inner =
            text.strip_prefix("sigmoid(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(refuse)?;
        let (moved, divisor) = inner.rsplit_once('/').unwrap_or((inner, "1"));
        let moved = moved.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(moved);
        let moved = moved.strip_prefix('x').ok_or_else(refuse)?;
        let number = |text: &str| text.parse::<f32>().ok().filter(|number| number.is_finite());
        // `-2.65` is added to x, while the offset is subtracted from it.
        let offset = if moved.is_empty() { Some(0.0) } else { number(moved).map(|added| 0.0 - added) };
        match (offset, number(divisor).filter(|divisor| *divisor > 0.0)) {
            (Some(offset), Some(divisor)) => Ok(Self::Sigmoid { offset, divisor }),
            _ => Err(refuse()),
        }
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
            (ScoreRule::HalfAboveMinusOne, "(x+1)/2"),
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
        for (raw, expected) in [(-1.0, 0.0), (0.0, 0.5), (0.294_921_88, 0.647_460_94), (1.0, 1.0)] {
            assert!((ScoreRule::HalfAboveMinusOne.apply(raw) - expected).abs() < 1e-6);
        }
        assert!((ScoreRule::Identity.apply(-7.25) - -7.25).abs() < f32::EPSILON);
    }
}
