//! Scores pairs with an embedding model: the cosine of the query's vector and the document's, or `MaxSim` of
//! the vectors of their tokens.
//!
//! Input: a request that lists its pairs. Output: one raw score for each pair, in order. What must hold: the
//! vectors equal the ones of `/embed` and `/embed_all` with the model's prompts for queries and documents; a
//! query that all pairs share is embedded once; a pair's score does not depend on the other pairs.

use super::{
    Cost, Service,
    compute::Computed,
    max_sim::MaxSim,
    request::{Admitted, Failed},
    scoring::RawScore,
    task::{Inputs, ModelTask},
};
use crate::{
    error::Error,
    model::{ComparedVectors, CosineRanking},
    postprocess::cosine,
    tokenization::{Input, PairSide, PairText, TokenLimits, Truncation},
};
use std::sync::Arc;
use text_embeddings_backend_core::Wanted;

/// The sides of a request's pairs as inputs of their own, each query before its documents.
struct PairSides<I> {
    pairs: Arc<I>,
    ranking: CosineRanking,
    truncation: Truncation,
    has_one_query: bool,
}

impl<I: Inputs> Inputs for PairSides<I> {
    fn count(&self) -> usize {
        let pairs = self.pairs.count();
        if self.has_one_query { 1 + pairs } else { 2 * pairs }
    }

    fn input(&self, index: usize) -> Input<'_> {
        let input = self.pairs.input(self.pair_of(index));
        let Input::Pair(pair) = input else { return input };
        let limits = self.truncation.limits;
        Input::Side(if self.is_query(index) {
            self.ranking.query_side(pair, limits)
        } else {
            self.ranking.document_side(pair, limits)
        })
    }

    fn index_in_request(&self, index: usize) -> Option<usize> {
        if self.has_one_query && self.is_query(index) {
            return None;
        }
        self.pairs.index_in_request(self.pair_of(index))
    }
}

impl<I> PairSides<I> {
    fn is_query(&self, index: usize) -> bool {
        if self.has_one_query { index == 0 } else { index.is_multiple_of(2) }
    }

    fn pair_of(&self, index: usize) -> usize {
        if self.has_one_query { index.saturating_sub(1) } else { index / 2 }
    }
}

impl CosineRanking {
    fn query_side<'a>(&'a self, pair: PairText<'a>, limits: TokenLimits) -> PairSide<'a> {
        let PairText { instruction, query, .. } = pair;
        PairSide { instruction, prompt: &self.query_prompt, text: query, max_tokens: limits.query }
    }

    /// The document of a pair as an input of its own.
    pub(super) fn document_side<'a>(&'a self, pair: PairText<'a>, limits: TokenLimits) -> PairSide<'a> {
        let PairText { instruction, document, .. } = pair;
        PairSide { instruction, prompt: &self.document_prompt, text: document, max_tokens: limits.document }
    }
}

impl Service {
    /// The raw score of each pair, in the order of the request.
    pub(super) async fn compare_vectors<I: Inputs>(
        &self,
        admitted: &Admitted,
        pairs: &Arc<I>,
        ranking: &CosineRanking,
        truncation: Truncation,
    ) -> Result<(Vec<RawScore>, Cost), Failed> {
        let has_one_query = pairs.have_one_query();
        let (pairs, ranking) = (Arc::clone(pairs), ranking.clone());
        let compared = ranking.compared;
        let sides = Arc::new(PairSides { pairs, ranking, truncation, has_one_query });
        if compared == ComparedVectors::Tokens {
            let mut scores = MaxSim::from_similarity(Arc::clone(&self.similarity), has_one_query);
            let task = ModelTask::Compare;
            let cost = self.compute_into(admitted, &sides, task, truncation, &mut scores).await?;
            return Ok((scores.into_scores().await?, cost));
        }
        let task = ModelTask::Embed(Wanted::WHOLE);
        let Computed { outputs, cost } = self.compute_admitted(admitted, &sides, task, truncation).await?;
        if !outputs.iter().all(|output| output.is_finite()) {
            return Err(Error::MissingValues.into());
        }
        let cosines: Vec<f32> = match outputs.split_first() {
            Some((query, documents)) if has_one_query => {
                documents.iter().map(|document| cosine(&query.whole, &document.whole)).collect()
            }
            _ => outputs.chunks_exact(2).map(|pair| cosine(&pair[0].whole, &pair[1].whole)).collect(),
        };
        Ok((cosines.into_iter().map(RawScore::from_value).collect(), cost))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        service::{
            EmbedEncoding, RerankRequest, ScoreRequest, ServiceConfig, SimilarityRequest,
            testing::{Fixture, MAX_INPUT_LENGTH, embedder, embedding_fixture},
        },
        tokenization::TruncationDirection,
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};

    const QUERY: &str = "w700 w701 ";
    const DOCUMENT: &str = "w800 ";

    fn fixture(max_batch_tokens: usize) -> Fixture {
        embedding_fixture(max_batch_tokens, |config: &mut ServiceConfig| {
            let (query_prompt, document_prompt) = (QUERY.to_owned(), DOCUMENT.to_owned());
            embedder(config).cosine_ranking =
                Some(CosineRanking { query_prompt, document_prompt, ..CosineRanking::default() });
        })
    }

    fn request(query: &str, texts: &[&str]) -> RerankRequest {
        let texts = texts.iter().map(|&text| text.to_owned()).collect();
        RerankRequest { query: query.to_owned(), texts, raw_scores: true, ..RerankRequest::default() }
    }

    /// The cosine of a pair in double precision, without any code under test.
    fn expected(fixture: &Fixture, query: &str, document: &str) -> f64 {
        let vector = |prompt, text| -> Vec<f64> {
            fixture.values(&Input::Text { prompt, text }).into_iter().map(f64::from).collect()
        };
        let (query, document) = (vector(QUERY, query), vector(DOCUMENT, document));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(&query, &document) / (dot(&query, &query) * dot(&document, &document)).sqrt()
    }

    #[tokio::test]
    async fn a_pairs_cosine_is_that_of_its_vectors_in_any_request() {
        let mut rng = StdRng::seed_from_u64(4);
        let mut words = |most: usize| -> String {
            let words: Vec<_> =
                (0..rng.random_range(1..=most)).map(|_| format!("w{}", rng.random_range(6..1000))).collect();
            words.join(" ")
        };
        for budget in [1, 30, 100_000] {
            let fixture = fixture(budget);
            for count in [1, 2, 15, 16] {
                let (query, texts) = (words(5), (0..count).map(|_| words(20)).collect::<Vec<_>>());
                let texts_as_written: Vec<&str> = texts.iter().map(String::as_str).collect();
                let wanted: Vec<f64> = texts.iter().map(|text| expected(&fixture, &query, text)).collect();
                let before = fixture.control.batch_sizes().iter().sum::<usize>();
                let raw = fixture.service.rerank(request(&query, &texts_as_written)).await.unwrap();
                let computed = fixture.control.batch_sizes().iter().sum::<usize>() - before;
                assert_eq!(computed, count + 1, "a common query is computed once");
                assert!(raw.value.is_sorted_by(|a, b| a.score >= b.score));
                let plain = RerankRequest { raw_scores: false, ..request(&query, &texts_as_written) };
                let plain = fixture.service.rerank(plain).await.unwrap();
                for (raw, plain) in raw.value.iter().zip(&plain.value) {
                    let wanted = wanted[raw.index];
                    assert!((f64::from(raw.score) - wanted).abs() < 1e-6, "{} {wanted}", raw.score);
                    assert_eq!(raw.index, plain.index);
                    assert!((f64::from(plain.score) - f64::midpoint(wanted, 1.0)).abs() < 1e-6);
                }
                let queries = vec![query.clone(); count];
                for queries in [vec![query.clone()], queries] {
                    let pairs = ScoreRequest {
                        queries,
                        documents: texts.clone(),
                        raw_scores: true,
                        ..ScoreRequest::default()
                    };
                    let scores = fixture.service.score(pairs).await.unwrap().value;
                    assert!(
                        raw.value.iter().all(|rank| scores[rank.index].to_bits() == rank.score.to_bits())
                    );
                }
            }
        }
    }

    #[tokio::test]
    async fn without_prompts_the_cosine_is_that_of_similarity() {
        let fixture = embedding_fixture(100, |config: &mut ServiceConfig| {
            embedder(config).cosine_ranking = Some(CosineRanking::default());
        });
        let texts = ["w100 w7", "w20"];
        let similarity = SimilarityRequest {
            source_sentence: "w9 w10".to_owned(),
            sentences: texts.map(str::to_owned).into(),
            encoding: EmbedEncoding::default(),
        };
        let similarity = fixture.service.similarity(similarity).await.unwrap().value;
        let ranks = fixture.service.rerank(request("w9 w10", &texts)).await.unwrap().value;
        assert!(ranks.iter().all(|rank| similarity[rank.index].to_bits() == rank.score.to_bits()));
    }

    #[tokio::test]
    async fn each_text_is_cut_to_its_own_limit() {
        let fixture = fixture(10_000);
        let score = async |request: RerankRequest| fixture.service.rerank(request).await.unwrap();
        let cut = score(request("w9 w10", &["w11"])).await.value[0].score;
        for (limits, query, text, direction) in [
            (
                TokenLimits { query: Some(2), document: Some(1), prompt: None },
                "w9 w10 w12",
                "w11 w13",
                TruncationDirection::Right,
            ),
            (
                TokenLimits { query: Some(2), document: Some(1), prompt: None },
                "w12 w9 w10",
                "w13 w11",
                TruncationDirection::Left,
            ),
            // With `[CLS]` and the prompt of two tokens.
            (
                TokenLimits { query: None, document: Some(1), prompt: Some(5) },
                "w9 w10 w12",
                "w11 w13",
                TruncationDirection::Right,
            ),
        ] {
            let limited = RerankRequest {
                limits,
                truncation_direction: direction,
                truncate: Some(false),
                ..request(query, &[text])
            };
            let answer = score(limited).await;
            assert_eq!(
                (answer.value[0].score.to_bits(), answer.cost.truncated),
                (cut.to_bits(), 2),
                "{limits:?}"
            );
        }
        let long = "w11 ".repeat(MAX_INPUT_LENGTH);
        for truncate in [true, false] {
            let request = RerankRequest { truncate: Some(truncate), ..request("w9", &["w12", &long]) };
            match fixture.service.rerank(request).await {
                Ok(answer) => assert!(truncate && answer.cost.truncated == 1),
                Err(error) => {
                    let expected = Error::TooLong { got: MAX_INPUT_LENGTH + 2, max: MAX_INPUT_LENGTH };
                    assert_eq!((truncate, error), (false, expected.of_input(1)));
                }
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_ranked_is_refused() {
        let fixture = fixture(100);
        let instruction = RerankRequest { instruction: Some("w5".to_owned()), ..request("w9", &["w8"]) };
        let small = TokenLimits { query: None, document: None, prompt: Some(2) };
        for (request, part) in [
            (instruction, "`instruction` cannot be given: this is an embedding model"),
            (
                RerankRequest { limits: small, ..request("w9", &["w8"]) },
                "`truncate_prompt_tokens` is too small",
            ),
            (request(" ", &["w8"]), "`query` cannot be empty"),
            (request("w9", &["nan"]), "NaN or infinite"),
            (request("w9", &["fail"]), "inference failed"),
            (request("w9", &["w8"; 17]), "batch size 17"),
        ] {
            let error = fixture.service.rerank(request).await.unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        // An empty document has a score, as with a re-ranker.
        let answer = fixture.service.rerank(request("w9", &["", "w8"])).await.unwrap();
        assert_eq!(answer.value.len(), 2);
    }
}
