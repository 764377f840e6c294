//! Scores pairs: one query with each of many documents, or each query with its own document.
//!
//! Input: a [`ScoreRequest`]. Output: a score for each pair, in order. What must hold: a pair's score equals
//! the score of re-ranking its document for its query; one permit covers all pairs.

use super::{
    Answer, Service,
    request::{Failed, check_length, method},
    task::Inputs,
};
use crate::{
    error::Error,
    tokenization::{Input, PairText, TokenLimits, Truncation, TruncationDirection},
};
use std::sync::Arc;

/// Pairs of a query and a document.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScoreRequest {
    /// One query for all documents, or one query per document. No query may be blank.
    pub queries: Vec<String>,
    /// The documents. The list must not be empty, but a document may be.
    pub documents: Vec<String>,
    /// The instruction, which defines relevance. If absent, the server's default applies.
    pub instruction: Option<String>,
    /// Whether too long inputs are truncated; the server's default if absent.
    pub truncate: Option<bool>,
    /// The end at which a text is cut.
    pub truncation_direction: TruncationDirection,
    /// Additional limits on the tokens of each text.
    pub limits: TokenLimits,
    /// Whether to return the authors' raw scores instead of the scores by the model's rule.
    pub raw_scores: bool,
}

impl Service {
    /// Scores pairs.
    ///
    /// # Errors
    ///
    /// [`Error::ModelType`] if the model is not a re-ranker; [`Error::Empty`], [`Error::BatchTooLarge`] and
    /// [`Error::Validation`] for an invalid request; [`Error::TooLong`] for a pair that must not be
    /// truncated; [`Error::Overloaded`] without a free permit; failures of tokenizer and model.
    pub async fn score(&self, request: ScoreRequest) -> Result<Answer<Vec<f32>>, Error> {
        self.model_metrics().measured(method(request.documents.len() != 1), self.score_pairs(request)).await
    }

    async fn score_pairs(&self, request: ScoreRequest) -> Result<Answer<Vec<f32>>, Failed> {
        self.pair_scoring()?;
        self.check_single_stage()?;
        check_length("queries", request.queries.len(), usize::MAX)?;
        check_length("documents", request.documents.len(), usize::MAX)?;
        if request.queries.iter().any(|query| query.trim().is_empty()) {
            return Err(Error::Empty { field: "queries" }.into());
        }
        let counts = (request.queries.len(), request.documents.len());
        if counts.0 != 1 && counts.0 != counts.1 {
            let (queries, documents) = counts;
            let message =
                format!("Input lengths must be either 1:1, 1:N or N:N. Given: {queries}:{documents}");
            return Err(Error::Validation(message).into());
        }
        check_length("documents", counts.1, self.config.max_rerank_texts)?;
        let truncation = Truncation {
            limits: request.limits,
            ..self.truncation(request.truncate, request.truncation_direction)
        };
        let request = Arc::new(request);
        let admitted = self.admit_request(self.max_tokens(request.as_ref()), 0).await?;
        let work = self.pair_scores(&admitted, &request, truncation);
        let (scores, cost) = self.in_time(&admitted, work).await?;
        Ok(Answer {
            value: scores.into_iter().map(|score| score.wanted_score(request.raw_scores)).collect(),
            cost,
        })
    }
}

/// One query for all documents, one document for all queries, or as many of both.
impl Inputs for ScoreRequest {
    fn count(&self) -> usize {
        self.queries.len().max(self.documents.len())
    }

    fn input(&self, index: usize) -> Input<'_> {
        let place = |texts: &[String]| if texts.len() == 1 { 0 } else { index };
        Input::Pair(PairText {
            instruction: self.instruction.as_deref(),
            query: &self.queries[place(&self.queries)],
            document: &self.documents[place(&self.documents)],
        })
    }

    fn have_one_query(&self) -> bool {
        self.queries.len() == 1
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        metrics::testing::recorded,
        postprocess::sigmoid,
        service::{
            RerankRequest,
            testing::{
                Fixture, MAX_INPUT_LENGTH, block_on, embedding_fixture, fixture, fixture_with,
                fixture_with_permits,
            },
        },
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn request(queries: &[&str], documents: &[&str]) -> ScoreRequest {
        ScoreRequest { queries: owned(queries), documents: owned(documents), ..ScoreRequest::default() }
    }

    /// The expected score of each pair, computed alone.
    fn expected(fixture: &Fixture, request: &ScoreRequest) -> Vec<f32> {
        let queries = request.queries.iter().cycle();
        let raw = queries
            .zip(&request.documents)
            .map(|(query, document)| fixture.raw_score(request.instruction.as_deref(), query, document).0);
        raw.map(|raw| if request.raw_scores { raw } else { sigmoid(raw) }).collect()
    }

    #[tokio::test]
    async fn each_pair_gets_its_own_score_in_the_order_of_the_request() {
        let mut rng = StdRng::from_os_rng();
        let mut words = |most: usize| -> String {
            let words: Vec<_> =
                (0..rng.random_range(1..=most)).map(|_| format!("w{}", rng.random_range(6..1000))).collect();
            words.join(" ")
        };
        for budget in [1, 150, 100_000] {
            let fixture = fixture(budget);
            for count in [1, 2, 5, 16] {
                for (of_queries, raw_scores) in [(1, false), (count, true)] {
                    let request = ScoreRequest {
                        queries: (0..of_queries).map(|_| words(4)).collect(),
                        documents: (0..count).map(|_| words(9)).collect(),
                        instruction: raw_scores.then(|| words(3)),
                        raw_scores,
                        ..ScoreRequest::default()
                    };
                    let answer = fixture.service.score(request.clone()).await.unwrap();
                    assert_eq!(answer.value, expected(&fixture, &request), "{request:?}");
                    assert_eq!(answer.cost.texts, count);
                }
            }
        }
    }

    #[tokio::test]
    async fn a_pairs_score_is_that_of_its_reranking_limits_and_all() {
        let fixture = fixture(10_000);
        let long = "w300 w301 ".repeat(MAX_INPUT_LENGTH);
        let texts = ["w100", &long, ""];
        for limits in [
            TokenLimits::NONE,
            TokenLimits { document: Some(3), ..TokenLimits::NONE },
            TokenLimits { query: Some(1), prompt: Some(80), document: None },
        ] {
            for truncation_direction in [TruncationDirection::Left, TruncationDirection::Right] {
                let score = ScoreRequest { truncation_direction, limits, ..request(&["w200 w201"], &texts) };
                let rerank = RerankRequest {
                    query: "w200 w201".to_owned(),
                    texts: owned(&texts),
                    limits,
                    truncation_direction,
                    ..RerankRequest::default()
                };
                let scores = fixture.service.score(score).await.unwrap();
                let ranks = fixture.service.rerank(rerank).await.unwrap();
                for rank in ranks.value {
                    assert_eq!(rank.score.to_bits(), scores.value[rank.index].to_bits(), "{limits:?}");
                }
                assert_eq!(ranks.cost.tokens, scores.cost.tokens);
                assert_eq!(ranks.cost.truncated, scores.cost.truncated);
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_scored_is_refused() {
        let service = fixture(100).service;
        let many = vec!["w100"; 17];
        let lengths = |given: &str| {
            Error::Validation(format!("Input lengths must be either 1:1, 1:N or N:N. Given: {given}"))
        };
        for (queries, documents, wanted) in [
            (&many[..0], &many[..0], Error::Empty { field: "queries" }),
            (&many[..1], &many[..0], Error::Empty { field: "documents" }),
            (&["w1", " \n"], &many[..2], Error::Empty { field: "queries" }),
            (&many[..2], &many[..1], lengths("2:1")),
            (&many[..2], &many[..3], lengths("2:3")),
            (&many[..1], &many[..], Error::BatchTooLarge { got: 17, max: 16 }),
            (&many[..], &many[..], Error::BatchTooLarge { got: 17, max: 16 }),
        ] {
            assert_eq!(service.score(request(queries, documents)).await.unwrap_err(), wanted);
        }
        assert!(service.score(request(&many[..16], &many[..16])).await.is_ok());
        let error = service.score(request(&["w1"], &["nan"])).await.unwrap_err();
        assert_eq!(error, Error::MissingValues);
        let strict = fixture_with(100, |config| config.auto_truncate = false).service;
        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        assert!(matches!(strict.score(request(&["w1"], &[&long])).await, Err(Error::TooLong { .. })));
        let embedder = embedding_fixture(100, |_| ()).service;
        let error = embedder.score(request(&[], &[])).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "Backend error: model is not a re-ranker model; it is an embedding model: POST /embed"
        );
    }

    #[tokio::test]
    async fn all_pairs_together_take_one_permit() {
        let fixture = fixture_with_permits(1, 1);
        let pairs = request(&["w1", "w2", "w3"], &["w4", "w5", "w6"]);
        assert_eq!(fixture.service.score(pairs.clone()).await.unwrap().value, expected(&fixture, &pairs));
    }

    #[test]
    fn a_request_is_counted_once_and_each_pair_once() {
        let fixture = fixture(10_000);
        for (pairs, method) in [(1, "single"), (3, "batch")] {
            let texts = vec!["w100"; pairs];
            let counted = recorded(|| {
                block_on(fixture.service.score(request(&texts, &texts))).unwrap();
            });
            assert_eq!(counted[&format!("te_request_count{{method=\"{method}\"}}")], [1.0]);
            assert_eq!(counted[&format!("te_request_success{{method=\"{method}\"}}")], [1.0]);
            assert_eq!(counted["te_predict_count"], [pairs as f64]);
            assert_eq!(counted["te_request_duration"].len(), 1);
            assert_eq!(counted[crate::metrics::RERANK_SCORE].len(), pairs);
        }
    }
}
