//! Scores and vectors that others published for models other than the generative re-rankers of `golden.json`.
//!
//! Input: the table in `published.json`, compiled in, and a running [`Service`]. Output: a [`Comparison`] for
//! each pair or text of the rows that are about a model. What must hold: a row is found by the last part of
//! the model's Hub id in any case; a score goes through the activation of its reference before it is
//! compared; the tolerance is the reference's, plus ours unless we compute in float32.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, anyhow, ensure};
use serde::Deserialize;
use text_embeddings_backend_core::{ModelType, Pool, amount};
use text_embeddings_core::{
    service::{EmbedEncoding, EmbedInput, EmbedInputs, EmbedRequest, RerankRequest, Service},
    sigmoid,
};

use super::golden;

const PUBLISHED: &str = include_str!("published.json");
/// A line shows at most this many values of a vector.
const SHOWN: usize = 4;
/// The sigmoid's greatest slope: raw scores that differ by `d` differ by at most `d / 4` as probabilities.
const STEEPEST: f64 = 0.25;

/// The table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// The sources of the numbers, by the names that rows use.
    sources: BTreeMap<String, String>,
    /// The query and documents that most re-rankers were measured with.
    planets: Planets,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Planets {
    query: String,
    documents: [String; 4],
}

/// The values that one source published for a model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Hub ids: one, or several of the same weights.
    models: Vec<String>,
    source: String,
    arithmetic: PublishedArithmetic,
    /// Replaces the tolerance that follows from the arithmetic.
    tolerance: Option<f64>,
    measured: PublishedValues,
}

/// The arithmetic of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PublishedArithmetic {
    Float32,
    /// float32 with the tanh approximation of GELU, as in text-embeddings-inference.
    Float32Tanh,
    Float16,
    Bfloat16,
}

/// The reference's activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PublishedActivation {
    Raw,
    Sigmoid,
}

/// The numbers of a row.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum PublishedValues {
    /// A re-ranker's scores of [`Table::planets`].
    Planets { activation: PublishedActivation, values: [f64; 4] },
    /// A re-ranker's scores of its own pairs: query, document, score.
    Pairs { activation: PublishedActivation, pairs: Vec<(String, String, f64)> },
    /// Texts with the first values of their vectors.
    Vectors { pool: String, normalized: bool, texts: Vec<(String, Vec<f64>)> },
    /// Texts with all weights of their vocabulary entries.
    Sparse(Vec<(String, Vec<(u32, f64)>)>),
}

/// The published numbers of one source about a model.
#[derive(Debug)]
pub(super) struct Published {
    /// Who published them.
    pub(super) source: String,
    /// The inputs to compare, a line each.
    pub(super) items: Vec<PublishedInput>,
    arithmetic: PublishedArithmetic,
    tolerance: Option<f64>,
}

/// An input with its published numbers.
#[derive(Debug)]
pub(super) enum PublishedInput {
    /// A pair with its score.
    Pair { query: String, document: String, score: f64, is_sigmoid: bool },
    /// A text with the first values of its vector.
    Vector { text: String, normalized: bool, starts: Vec<f64> },
    /// A text with its sparse vector.
    Sparse { text: String, entries: BTreeMap<u32, f64> },
}

/// Published numbers and ours.
#[derive(Debug, PartialEq)]
pub(super) struct Comparison {
    expected: Vec<f64>,
    got: Vec<f64>,
    allowed: f64,
}

fn table() -> anyhow::Result<Table> {
    serde_json::from_str(PUBLISHED).context("the table of published values")
}

/// The last part of a Hub id or path, by which models are told apart here.
pub(super) fn short(name: &str) -> &str {
    name.trim_end_matches('/').rsplit('/').next().unwrap_or(name)
}

/// Whether any row, of any kind, is about the model of this name.
pub(super) fn knows(name: &str) -> anyhow::Result<bool> {
    Ok(table()?.rows.iter().any(|row| is_about(row, name)))
}

fn is_about(row: &Row, name: &str) -> bool {
    row.models.iter().any(|id| short(id).eq_ignore_ascii_case(short(name)))
}

/// The rows about the model with this name, as far as they are about this kind of model.
pub(super) fn published(name: &str, kind: ModelType) -> anyhow::Result<Vec<Published>> {
    let Table { sources, planets, rows } = table()?;
    let rows = rows.into_iter().filter(|row| is_about(row, name) && fits(&row.measured, kind));
    rows.map(|row| {
        let source = sources.get(&row.source).with_context(|| format!("no source `{}`", row.source))?;
        Ok(Published {
            source: source.clone(),
            items: items(row.measured, &planets),
            arithmetic: row.arithmetic,
            tolerance: row.tolerance,
        })
    })
    .collect()
}

fn fits(measured: &PublishedValues, kind: ModelType) -> bool {
    match (measured, kind) {
        (PublishedValues::Planets { .. } | PublishedValues::Pairs { .. }, kind) => {
            matches!(kind, ModelType::Reranker | ModelType::ListwiseReranker)
        }
        (PublishedValues::Vectors { pool, .. }, ModelType::Embedding(served)) => *pool == served.to_string(),
        (PublishedValues::Sparse(_), kind) => kind == ModelType::Embedding(Pool::Splade),
        _ => false,
    }
}

fn items(measured: PublishedValues, planets: &Planets) -> Vec<PublishedInput> {
    let pair = |query, document, score, activation| PublishedInput::Pair {
        query,
        document,
        score,
        is_sigmoid: activation == PublishedActivation::Sigmoid,
    };
    match measured {
        PublishedValues::Planets { activation, values } => {
            let documents = planets.documents.iter().cloned().zip(values);
            documents
                .map(|(document, score)| pair(planets.query.clone(), document, score, activation))
                .collect()
        }
        PublishedValues::Pairs { activation, pairs } => pairs
            .into_iter()
            .map(|(query, document, score)| pair(query, document, score, activation))
            .collect(),
        PublishedValues::Vectors { normalized, texts, .. } => texts
            .into_iter()
            .map(|(text, starts)| PublishedInput::Vector { text, normalized, starts })
            .collect(),
        PublishedValues::Sparse(texts) => texts
            .into_iter()
            .map(|(text, entries)| PublishedInput::Sparse { text, entries: entries.into_iter().collect() })
            .collect(),
    }
}

impl Published {
    /// Computes one of the inputs with a model served in the arithmetic `dtype`, and returns both numbers.
    /// Fails if the service refuses the input, or no tolerance is known for the arithmetic.
    pub(super) async fn compare(
        &self,
        item: &PublishedInput,
        service: &Service,
        dtype: &str,
    ) -> anyhow::Result<Comparison> {
        let allowed = self.allowed(item, dtype)?;
        let (expected, got) = match item {
            PublishedInput::Pair { query, document, score, is_sigmoid } => {
                let raw = raw_score(service, query, document, None).await?;
                let got = if *is_sigmoid { sigmoid(raw) } else { raw };
                (vec![*score], vec![f64::from(got)])
            }
            PublishedInput::Vector { text, normalized, starts } => {
                let vectors = service.embed_vectors(embed_request(text, *normalized)).await?.value;
                let vector = vectors.first().ok_or_else(|| anyhow!("no vector came back"))?;
                ensure!(
                    vector.len() >= starts.len(),
                    "the vector has only {}",
                    amount(vector.len(), "value")
                );
                (starts.clone(), vector.iter().take(starts.len()).map(|&value| value.into()).collect())
            }
            PublishedInput::Sparse { text, entries } => {
                let vectors = service.embed_sparse(embed_request(text, false)).await?.value;
                let vector = vectors.first().ok_or_else(|| anyhow!("no vector came back"))?;
                let got = vector.iter().map(|entry| (entry.index, f64::from(entry.value))).collect();
                align_entries(entries, &got)
            }
        };
        Ok(Comparison { expected, got, allowed })
    }

    /// The greatest difference of our numbers from the published ones.
    fn allowed(&self, item: &PublishedInput, dtype: &str) -> anyhow::Result<f64> {
        let ours = golden::tolerances(dtype)?;
        let reference = self.tolerance.unwrap_or_else(|| self.arithmetic.tolerance(item));
        let is_exact = dtype == "float32";
        let own = match item {
            _ if is_exact => 0.0,
            PublishedInput::Pair { is_sigmoid: true, .. } => ours.score * STEEPEST,
            PublishedInput::Pair { .. } => ours.score,
            PublishedInput::Vector { .. } | PublishedInput::Sparse { .. } => ours.vector * item.largest(),
        };
        Ok(reference + own)
    }
}

impl PublishedArithmetic {
    /// How far a float32 server may be from numbers in this arithmetic.
    fn tolerance(self, item: &PublishedInput) -> f64 {
        let is_sigmoid = matches!(item, PublishedInput::Pair { is_sigmoid: true, .. });
        match (self, is_sigmoid) {
            (Self::Float32, _) => 1e-3,
            (Self::Float32Tanh, _) => 5e-3 * item.largest(),
            (Self::Float16, true) => 0.005,
            (Self::Float16, false) => 0.05,
            (Self::Bfloat16, true) => 0.02,
            (Self::Bfloat16, false) => 0.15,
        }
    }
}

impl PublishedInput {
    /// The largest published value, without its sign.
    fn largest(&self) -> f64 {
        let largest =
            |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, |max: f64, value| max.max(value.abs()));
        match self {
            Self::Pair { score, .. } => score.abs(),
            Self::Vector { starts, .. } => largest(&mut starts.iter().copied()),
            Self::Sparse { entries, .. } => largest(&mut entries.values().copied()),
        }
    }

    /// The texts, for a line about them.
    pub(super) fn label(&self) -> String {
        match self {
            Self::Pair { query, document, .. } => {
                format!("{} / {}", super::shortened(query), super::shortened(document))
            }
            Self::Vector { text, .. } => super::shortened(text).to_string(),
            Self::Sparse { text, entries } => {
                format!("{} ({})", super::shortened(text), amount(entries.len(), "entry"))
            }
        }
    }
}

impl Comparison {
    /// Whether the numbers are close enough, with a line that shows them; `label` names their input.
    pub(super) fn judge(&self, label: &str) -> anyhow::Result<((), String)> {
        let differences = self.expected.iter().zip(&self.got).map(|(a, b)| (a - b).abs());
        // NaN is not within any tolerance: `max` would drop it.
        let is_close = differences.clone().all(|difference| difference <= self.allowed);
        let largest = differences.fold(0.0, f64::max);
        let text = format!(
            "got {}, expected {}, difference {largest:.6} of at most {:.6}: {label}",
            shown(&self.got),
            shown(&self.expected),
            self.allowed
        );
        ensure!(is_close, "{text}");
        Ok(((), text))
    }
}

/// Two sparse vectors as dense ones over the entries that either has.
fn align_entries(expected: &BTreeMap<u32, f64>, got: &BTreeMap<u32, f64>) -> (Vec<f64>, Vec<f64>) {
    let ids: BTreeSet<u32> = expected.keys().chain(got.keys()).copied().collect();
    ids.iter()
        .map(|id| (expected.get(id).copied().unwrap_or(0.0), got.get(id).copied().unwrap_or(0.0)))
        .unzip()
}

fn shown(values: &[f64]) -> String {
    let first: Vec<String> = values.iter().take(SHOWN).map(|value| format!("{value:.4}")).collect();
    let more = if values.len() > SHOWN { " …" } else { "" };
    format!("{}{more}", first.join(" "))
}

/// The raw score of a pair.
pub(super) async fn raw_score(
    service: &Service,
    query: &str,
    document: &str,
    instruction: Option<&str>,
) -> anyhow::Result<f32> {
    let request = RerankRequest {
        query: query.to_owned(),
        texts: vec![document.to_owned()],
        instruction: instruction.map(str::to_owned),
        raw_scores: true,
        ..RerankRequest::default()
    };
    let ranks = service.rerank(request).await?.value;
    ranks.first().map(|rank| rank.score).ok_or_else(|| anyhow!("no score came back"))
}

fn embed_request(text: &str, normalize: bool) -> EmbedRequest {
    let inputs = EmbedInputs::single(EmbedInput::Text(text.to_owned()));
    EmbedRequest { inputs, encoding: EmbedEncoding::default(), normalize, dimensions: None }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    const POOLS: [Pool; 4] = [Pool::Cls, Pool::Mean, Pool::LastToken, Pool::Splade];

    #[test]
    fn every_row_is_well_formed_and_found() {
        let Table { sources, rows, .. } = table().unwrap();
        let used: BTreeSet<_> = rows.iter().map(|row| row.source.clone()).collect();
        assert_eq!(used, sources.into_keys().collect());
        let mut kinds: Vec<_> = POOLS.map(ModelType::Embedding).to_vec();
        kinds.push(ModelType::Reranker);
        let different: BTreeSet<_> =
            rows.iter().map(|row| format!("{} {:?} {:?}", row.source, row.models, row.measured)).collect();
        assert_eq!(different.len(), rows.len(), "each row stands once");
        for row in &rows {
            if let PublishedValues::Sparse(texts) = &row.measured {
                let is_sorted = texts.iter().all(|(_, entries)| entries.is_sorted_by(|a, b| a.0 < b.0));
                assert!(is_sorted, "{:?}", row.models);
            }
            let fitting: Vec<_> = kinds.iter().filter(|kind| fits(&row.measured, **kind)).collect();
            assert!(fitting.len() == 1 && !row.models.is_empty(), "{:?}: {fitting:?}", row.models);
            for id in &row.models {
                assert_eq!(id.split('/').count(), 2, "{id} is not a Hub id");
                assert!(knows(id).unwrap() && !published(id, *fitting[0]).unwrap().is_empty(), "{id}");
            }
            assert!(row.tolerance.is_none_or(|tolerance| tolerance > 0.0), "{:?}", row.models);
        }
        for kind in kinds {
            let names = rows.iter().flat_map(|row| &row.models);
            for published in names.flat_map(|name| published(name, kind).unwrap()) {
                assert!(!published.items.is_empty(), "{}", published.source);
                for item in &published.items {
                    check(item);
                    let [exact, rounded, bytes] =
                        ["float32", "bfloat16", "int8"].map(|dtype| published.allowed(item, dtype).unwrap());
                    assert!(0.0 < exact && exact < rounded && rounded < bytes, "{item:?}");
                }
            }
        }
    }

    /// Numbers that a model of this kind can give.
    fn check(item: &PublishedInput) {
        match item {
            PublishedInput::Pair { query, score, is_sigmoid, .. } => {
                assert!(!query.is_empty() && (!is_sigmoid || (0.0..=1.0).contains(score)), "{item:?}");
            }
            PublishedInput::Vector { text, normalized, starts } => {
                let square: f64 = starts.iter().map(|value| value * value).sum();
                assert!(!text.is_empty() && starts.len() >= 2 && square > 0.0, "{item:?}");
                assert!(!normalized || square < 1.0, "{item:?}");
            }
            PublishedInput::Sparse { text, entries } => {
                assert!(!text.is_empty() && entries.values().all(|weight| *weight > 0.0), "{item:?}");
                assert!(!entries.is_empty(), "{item:?}");
            }
        }
    }

    #[test]
    fn a_model_is_found_by_the_last_part_of_its_name_and_by_its_kind() {
        let mean = ModelType::Embedding(Pool::Mean);
        // name, kind, sources, items
        let table = [
            ("sentence-transformers/all-MiniLM-L6-v2", mean, 2, 4),
            ("somewhere/else/ALL-minilm-l6-V2/", mean, 2, 4),
            ("all-MiniLM-L6-v2", ModelType::Embedding(Pool::Cls), 0, 0),
            ("all-MiniLM-L6-v2", ModelType::Reranker, 0, 0),
            ("ms-marco-MiniLM-L-6-v2", ModelType::Reranker, 3, 12),
            ("ms-marco-MiniLM-L6-v2", ModelType::Reranker, 3, 12),
            ("ModernBERT-base", mean, 1, 1),
            ("splade-cocondenser-ensembledistil", ModelType::Embedding(Pool::Splade), 1, 4),
            ("bge-reranker-v2-m3", ModelType::Reranker, 3, 9),
            ("bge-reranker-v2-m3", ModelType::Classifier, 0, 0),
            ("model", mean, 0, 0),
        ];
        for (name, kind, sources, items) in table {
            let found = published(name, kind).unwrap();
            let lines: usize = found.iter().map(|published| published.items.len()).sum();
            assert_eq!((found.len(), lines), (sources, items), "{name} as {kind}");
        }
        assert!(knows("bge-m3").unwrap() && !knows("model").unwrap());
    }

    #[test]
    fn numbers_pass_up_to_the_tolerance_and_no_number_never_does() {
        let comparison =
            |got: &[f64]| Comparison { expected: vec![1.0, 2.0], got: got.to_vec(), allowed: 0.5 };
        let table = [
            (
                &[1.5, 1.5],
                Ok("got 1.5000 1.5000, expected 1.0000 2.0000, difference 0.500000 of at most 0.500000: x"),
            ),
            (&[1.0, 2.51], Err("difference 0.510000")),
            (&[f64::NAN, 2.0], Err("got NaN")),
        ];
        for (got, expected) in table {
            match (comparison(got).judge("x"), expected) {
                (Ok(((), text)), Ok(expected)) => assert_eq!(text, expected),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (result, _) => unreachable!("{got:?}: {result:?}"),
            }
        }
    }

    #[test]
    fn an_entry_that_one_of_two_sparse_vectors_lacks_is_zero_there() {
        let (expected, got) =
            align_entries(&BTreeMap::from([(1, 0.5), (7, 2.0)]), &BTreeMap::from([(7, 1.5), (9, 0.25)]));
        assert_eq!((expected, got), (vec![0.5, 2.0, 0.0], vec![0.0, 1.5, 0.25]));
    }

    #[test]
    fn the_reference_and_our_own_arithmetic_both_count() {
        let pair = |is_sigmoid| PublishedInput::Pair {
            query: "q".into(),
            document: "d".into(),
            score: 0.5,
            is_sigmoid,
        };
        let vector = PublishedInput::Vector { text: "t".into(), normalized: false, starts: vec![-4.0, 1.0] };
        let allowed = |arithmetic, tolerance, item: &PublishedInput, dtype| {
            let published = Published { source: String::new(), items: Vec::new(), arithmetic, tolerance };
            published.allowed(item, dtype).unwrap()
        };
        for (arithmetic, tolerance, item, dtype, expected) in [
            (PublishedArithmetic::Float32, None, pair(false), "float32", 1e-3),
            (PublishedArithmetic::Float32, None, pair(false), "bfloat16", 0.251),
            (PublishedArithmetic::Float32, None, pair(true), "int8", 0.251),
            (PublishedArithmetic::Bfloat16, None, pair(false), "float32", 0.15),
            (PublishedArithmetic::Bfloat16, None, pair(true), "float32", 0.02),
            (PublishedArithmetic::Float32, Some(0.01), pair(true), "float32", 0.01),
            (PublishedArithmetic::Float32Tanh, None, vector, "float32", 0.02),
        ] {
            let found = allowed(arithmetic, tolerance, &item, dtype);
            assert!((found - expected).abs() < 1e-12, "{item:?} in {dtype}: {found}");
        }
    }
}
