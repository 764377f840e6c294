//! Golden scores: scores that others measured for a model, to compare with.
//!
//! Input: the table in `golden.json`, or a user's file. Output: [`Golden`]s with a raw score and the
//! tolerance for ours. What must hold: a score is compared in log-odds, where a difference means the same
//! near 0, near 1 and between; the tolerance is the sum of the arithmetic's, the source's uncertainty and the
//! source's rounding.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, anyhow, bail, ensure};
use serde::Deserialize;
use text_embeddings_core::families::QWEN3_RERANKER;

use crate::commands::input::read_text;

const PUBLISHED: &str = include_str!("golden.json");

/// A pair and its score.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Golden {
    /// The instruction; absent: the model's default.
    pub(super) instruction: Option<String>,
    pub(super) query: String,
    pub(super) document: String,
    /// Its score before the sigmoid.
    raw: Option<f64>,
    /// Its score as a probability, if not `raw`.
    score: Option<f64>,
    /// The most by which rounding changed `score`.
    #[serde(default)]
    rounding: f64,
    /// The tolerance of the raw score, instead of the arithmetic's.
    tolerance: Option<f64>,
}

/// The raw scores that pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Expected {
    /// The published score.
    pub(super) raw: f64,
    /// The smallest raw score that passes.
    pub(super) least: f64,
    /// The greatest raw score that passes.
    pub(super) greatest: f64,
}

/// Golden scores from one place.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Goldens {
    /// The names of the model in any case; none for a user's file.
    names: Vec<String>,
    /// Who measured them, and how.
    pub(super) source: String,
    /// The pairs.
    #[serde(rename = "goldens")]
    pub(super) pairs: Vec<Golden>,
    /// Whether they are one request, with one query: a listwise re-ranker's documents.
    #[serde(default)]
    pub(super) together: bool,
    #[serde(default)]
    uncertainty: f64,
}

/// The greatest differences of an arithmetic from exact numbers.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Tolerances {
    /// For a raw score.
    pub(super) score: f64,
    /// For a value of a vector, as a share of the vector's largest published value.
    pub(super) vector: f64,
}

#[derive(Deserialize)]
struct PublishedTable {
    tolerances: BTreeMap<String, Tolerances>,
    models: Vec<Goldens>,
}

fn table() -> anyhow::Result<PublishedTable> {
    serde_json::from_str(PUBLISHED).context("the table of published scores")
}

/// The tolerances of this arithmetic.
pub(super) fn tolerances(dtype: &str) -> anyhow::Result<Tolerances> {
    table()?.tolerances.get(dtype).copied().with_context(|| format!("no tolerance is known for {dtype}"))
}

/// The published scores of the model with this name.
pub(super) fn published(name: &str) -> anyhow::Result<Vec<Goldens>> {
    let mut found = table()?.models;
    found.retain(|model| model.names.iter().any(|known| known.eq_ignore_ascii_case(name)));
    let is_qwen = QWEN3_RERANKER.names.iter().any(|part| name.to_lowercase().contains(part));
    for golden in found.iter_mut().flat_map(|model| &mut model.pairs) {
        // Qwen's scores were measured with Qwen's own instruction, whatever the model's files or flags say.
        if golden.instruction.is_none() && is_qwen {
            golden.instruction = QWEN3_RERANKER.default_instruction.map(str::to_owned);
        }
    }
    Ok(found)
}

/// The pairs of a user's file, which is an array. Fails if it cannot be read or a pair has not one of `raw`
/// and `score`.
pub(super) fn read(path: &Path) -> anyhow::Result<Goldens> {
    let name = format!("`--golden {}`", path.display());
    let content = read_text(path).with_context(|| format!("{name} cannot be read"))?;
    let goldens: Vec<Golden> = serde_json::from_str(&content).map_err(|error| {
        anyhow!(
            "{name} is not an array of objects with query, document, and raw or score ({error}): correct it"
        )
    })?;
    ensure!(!goldens.is_empty(), "{name} has no pair: give at least one");
    for (number, golden) in goldens.iter().enumerate() {
        golden.bounds(0.0).with_context(|| format!("{name}, pair {}", number + 1))?;
    }
    let (names, source) = (Vec::new(), path.display().to_string());
    Ok(Goldens { names, source, pairs: goldens, together: false, uncertainty: 0.0 })
}

impl Goldens {
    /// The raw scores that pass for one of the pairs, with this tolerance of the arithmetic.
    pub(super) fn expected(&self, golden: &Golden, tolerance: f64) -> anyhow::Result<Expected> {
        golden.bounds(golden.tolerance.unwrap_or(tolerance) + self.uncertainty)
    }
}

impl Golden {
    fn bounds(&self, tolerance: f64) -> anyhow::Result<Expected> {
        let (raw, below, above) = match (self.raw, self.score) {
            (Some(raw), None) => (raw, raw, raw),
            (None, Some(score)) if score > 0.0 && score < 1.0 => {
                let log_odds = |score: f64| {
                    let score = score.clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON);
                    (score / (1.0 - score)).ln()
                };
                (log_odds(score), log_odds(score - self.rounding), log_odds(score + self.rounding))
            }
            (None, Some(score)) => bail!("`score` is {score}: give one between 0 and 1, or `raw`"),
            _ => bail!("give `raw` or `score`, and not both"),
        };
        Ok(Expected { raw, least: below - tolerance, greatest: above + tolerance })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn the_table_is_well_formed_and_found_by_name() {
        for (name, sources, pairs) in [
            ("Qwen3-Reranker-0.6B", 2, 6),
            ("Qwen3-Reranker-8B", 1, 4),
            ("qwen3-reranker-8b", 1, 4),
            ("Qwen3-Reranker-4B", 0, 0),
            ("mxbai-rerank-base-v2", 1, 3),
            ("mxbai-rerank-large-v2", 1, 3),
            ("Qwen3-VL-Reranker-2B", 2, 2),
            ("jina-reranker-m0", 1, 3),
            ("x", 0, 0),
        ] {
            let found = published(name).unwrap();
            assert_eq!(found.len(), sources, "{name}");
            assert_eq!(found.iter().map(|goldens| goldens.pairs.len()).sum::<usize>(), pairs, "{name}");
            for goldens in &found {
                for golden in &goldens.pairs {
                    let Expected { raw, least, greatest } = goldens.expected(golden, 0.001).unwrap();
                    assert!(least < raw && raw < greatest && greatest - least < 1.0, "{golden:?}");
                }
            }
        }
        assert!(tolerances("float32").unwrap().score < tolerances("bfloat16").unwrap().score);
        assert!(tolerances("float8").is_err());
    }

    #[test]
    fn every_published_pair_is_whole() {
        for model in table().unwrap().models {
            assert!(!model.source.is_empty() && !model.pairs.is_empty(), "{:?}", model.names);
            for goldens in model.names.iter().flat_map(|name| published(name).unwrap()) {
                for golden in &goldens.pairs {
                    assert!(!golden.query.is_empty() && !golden.document.is_empty(), "{golden:?}");
                    let Expected { raw, least, greatest } = goldens.expected(golden, 0.001).unwrap();
                    assert!(least < raw && raw < greatest && greatest - least < 1.2, "{golden:?}");
                    // Qwen's repositories have changed their default instruction.
                    let is_qwen = model.names.iter().any(|name| name.starts_with("Qwen3"));
                    assert!(!is_qwen || golden.instruction.is_some(), "{golden:?}");
                }
            }
        }
    }

    #[test]
    fn what_passes_is_the_tolerance_around_the_published_score() {
        let golden = |json: &str| serde_json::from_str::<Golden>(json).unwrap();
        let bounds = |json: &str, tolerance| golden(json).bounds(tolerance);
        let expected = Expected { raw: 2.0, least: 1.5, greatest: 2.5 };
        assert_eq!(bounds(r#"{"query":"q","document":"d","raw":2.0}"#, 0.5).unwrap(), expected);
        // sigmoid(0) is 0.5; sigmoid(±ln 3) is 0.75 and 0.25.
        let rounded = bounds(r#"{"query":"q","document":"d","score":0.5,"rounding":0.25}"#, 0.5).unwrap();
        assert!(rounded.raw.abs() < 1e-12);
        assert!(
            (rounded.greatest - 3f64.ln() - 0.5).abs() < 1e-12
                && (rounded.least + rounded.greatest).abs() < 1e-12
        );
        for json in [
            r#"{"query":"q","document":"d"}"#,
            r#"{"query":"q","document":"d","raw":1,"score":0.5}"#,
            r#"{"query":"q","document":"d","score":1}"#,
        ] {
            assert!(bounds(json, 0.5).is_err(), "{json}");
        }
    }

    #[test]
    fn a_users_file_without_end_is_refused() {
        let error = format!("{:#}", read(Path::new("/dev/zero")).unwrap_err());
        assert_eq!(
            error,
            "`--golden /dev/zero` cannot be read: `/dev/zero` is longer than 16 MiB: give a shorter one"
        );
    }

    #[test]
    fn a_users_file_is_read_or_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("golden.json");
        for (content, expected) in [
            (r#"[{"query":"q","document":"d","raw":1.5,"tolerance":0.5}]"#, ""),
            ("[]", "has no pair"),
            ("{}", "not an array"),
            (r#"[{"query":"q","raw":1}]"#, "document"),
            (r#"[{"query":"q","document":"d","raw":1,"colour":"red"}]"#, "colour"),
            (r#"[{"query":"q","document":"d"}]"#, "pair 1"),
        ] {
            std::fs::write(&path, content).unwrap();
            match read(&path) {
                Ok(goldens) => {
                    let found = goldens.expected(&goldens.pairs[0], 9.0).unwrap();
                    assert_eq!((expected, found), ("", Expected { raw: 1.5, least: 1.0, greatest: 2.0 }));
                }
                Err(error) => {
                    let message = format!("{error:#}");
                    assert!(message.contains(expected) && !expected.is_empty(), "{message}");
                    assert!(message.contains("--golden"), "{message}");
                }
            }
        }
    }
}
