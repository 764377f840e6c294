//! Re-ranking in two stages: a fast model scores all texts, and a strong one the best of them again.
//!
//! Input: a [`RerankRequest`]. Output: the texts that the strong model scored, in its order, then the others
//! in the order of the fast one. What must hold: scores of the two models are never compared; if the strong
//! model may score all texts, the fast one computes nothing.

use super::{
    Answer, Cost, Service,
    ranking::{Rank, RerankRequest, SCORED_BY_FIRST, SCORED_BY_SECOND},
};
use crate::error::Error;
use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

/// The second stage of a cascade.
#[derive(Clone)]
pub struct SecondStage {
    /// The service of the strong model.
    pub service: Service,
    /// The most texts that it scores.
    pub keep: NonZeroUsize,
    /// The time in which an answer is wanted. The strong model scores as many texts as its recent speed
    /// allows, but at least one.
    pub budget: Option<Duration>,
}

impl Service {
    /// The same service, whose re-ranking has a second stage. It has no other task.
    #[must_use]
    pub fn followed_by(&self, stage: SecondStage) -> Self {
        Self { second_stage: Some(Arc::new(stage)), ..self.clone() }
    }

    /// Refuses a cascade.
    pub(super) fn check_single_stage(&self) -> Result<(), Error> {
        match self.second_stage {
            Some(_) => {
                let message = "this model is a cascade, which only ranks: name one of its two models";
                Err(Error::Validation(message.to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Ranks all texts with both models.
    pub(super) async fn rerank_in_stages(
        &self,
        request: &Arc<RerankRequest>,
        stage: &SecondStage,
    ) -> Result<Answer<Vec<Rank>>, Error> {
        let arrival = Instant::now();
        if request.texts.len() <= stage.keep.get() && stage.budget.is_none() {
            let answer = stage.service.rerank_alone(Arc::clone(request), request.highlight).await?;
            return Ok(answer.map(|ranks| mark_stage(ranks, SCORED_BY_SECOND)));
        }
        let second = &stage.service;
        second.model_metrics().refused(second.check_stage(request))?;
        // Only texts that the strong model scores have highlights.
        let Answer { value: ranks, cost } = self.rerank_alone(Arc::clone(request), 0).await?;
        let mut ranks = mark_stage(ranks, SCORED_BY_FIRST);
        let kept = stage.keep.get().min(ranks.len());
        let kept = stage.budget.map_or(kept, |budget| {
            let time = budget.saturating_sub(arrival.elapsed());
            let tokens_each = cost.tokens / ranks.len().max(1);
            let texts = stage.service.engine.tokens_within(time).map(|tokens| tokens / tokens_each.max(1));
            texts.map_or(kept, |texts| texts.clamp(1, kept))
        });
        let texts = ranks[..kept].iter().map(|rank| request.texts[rank.index].clone()).collect();
        let (query, instruction) = (request.query.clone(), request.instruction.clone());
        let best = RerankRequest { query, texts, instruction, ..**request };
        let second = stage.service.rerank_alone(Arc::new(best), request.highlight).await?;
        let mut best = mark_stage(second.value, SCORED_BY_SECOND);
        for rank in &mut best {
            rank.index = ranks[rank.index].index;
        }
        ranks.splice(..kept, best);
        let cost = Cost { total: arrival.elapsed(), ..cost.add_step(second.cost) };
        Ok(Answer { value: ranks, cost })
    }
}

fn mark_stage(ranks: Vec<Rank>, stage: u8) -> Vec<Rank> {
    ranks.into_iter().map(|rank| Rank { stage: Some(stage), ..rank }).collect()
}

impl Cost {
    /// The sum of two counts; absent if both are.
    pub fn sum_counts(first: Option<usize>, second: Option<usize>) -> Option<usize> {
        first.zip(second).map(|(first, second)| first + second).or(first).or(second)
    }

    /// The cost of two steps, one after the other, of one request: its characters count once.
    #[must_use]
    pub fn add_step(self, second: Self) -> Self {
        Self {
            texts: self.texts + second.texts,
            characters: self.characters,
            tokens: self.tokens + second.tokens,
            truncated: self.truncated + second.truncated,
            lists: self.lists + second.lists,
            // Counted in the whole ranking.
            dropped: None,
            untrained_dimensions: self.untrained_dimensions.or(second.untrained_dimensions),
            cached: Self::sum_counts(self.cached, second.cached),
            total: self.total + second.total,
            tokenization: self.tokenization + second.tokenization,
            queue: self.queue + second.queue,
            inference: self.inference + second.inference,
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::tokenization::TruncationDirection;
    use crate::{
        model::{CosineRanking, RerankScoring},
        service::{
            PredictInput, PredictRequest, ScoreRequest,
            testing::{Fixture, embedder, embedding_fixture, fixture, fixture_with, reranker},
        },
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// Two models that score differently.
    fn two_models() -> (Fixture, Fixture) {
        let scoring = RerankScoring::Logits { positive: Some(1) };
        (fixture(1000), fixture_with(1000, |config| reranker(config).scoring = scoring))
    }

    fn cascade(first: &Fixture, second: &Fixture, keep: usize, budget: Option<Duration>) -> Service {
        let (service, keep) = (second.service.clone(), NonZeroUsize::new(keep).unwrap());
        first.service.followed_by(SecondStage { service, keep, budget })
    }

    fn random_request(random: &mut StdRng, texts: usize) -> RerankRequest {
        let words: Vec<String> =
            (0..5 * texts).map(|_| format!("w{}", random.random_range(0..900))).collect();
        RerankRequest {
            query: "w200 w201".to_owned(),
            texts: words.chunks(5).map(|words| words[..random.random_range(0..5)].join(" ")).collect(),
            ..RerankRequest::default()
        }
    }

    /// The index and score of each text by one model, best first.
    async fn order(model: &Fixture, request: &RerankRequest) -> Vec<(usize, f32)> {
        let request = RerankRequest { top_n: None, ..request.clone() };
        let answer = model.service.rerank(request).await.unwrap();
        answer.value.into_iter().map(|rank| (rank.index, rank.score)).collect()
    }

    #[tokio::test]
    async fn the_best_of_the_first_stand_in_the_order_of_the_second_before_the_others() {
        let random = &mut StdRng::seed_from_u64(36);
        let (first, second) = two_models();
        let mut reordered = 0;
        for keep in [1, 2, 5, 15] {
            let service = cascade(&first, &second, keep, None);
            for top_n in [None, Some(0), Some(1), Some(4), Some(99)] {
                let request = RerankRequest {
                    top_n,
                    raw_scores: keep == 2,
                    return_text: keep == 5,
                    ..random_request(random, 16)
                };
                let (by_first, by_second) = (order(&first, &request).await, order(&second, &request).await);
                let best = by_first[..keep].iter().map(|(index, _)| *index).collect::<Vec<_>>();
                let of_second = by_second.into_iter().filter(|(index, _)| best.contains(index));
                let of_second: Vec<_> = of_second.map(|(index, score)| (index, score, 2)).collect();
                reordered += usize::from(of_second.iter().map(|(index, ..)| *index).ne(best));
                let of_first = by_first[keep..].iter().map(|(index, score)| (*index, *score, 1));
                let mut expected: Vec<_> = of_second.into_iter().chain(of_first).collect();
                expected.truncate(top_n.filter(|top_n| *top_n > 0).unwrap_or(99));
                let answer = service.rerank(request.clone()).await.unwrap();
                for rank in &answer.value {
                    let text = request.return_text.then(|| request.texts[rank.index].clone());
                    assert_eq!(rank.text, text);
                }
                let found =
                    answer.value.into_iter().map(|rank| (rank.index, rank.score, rank.stage.unwrap()));
                assert_eq!(found.collect::<Vec<_>>(), expected, "keep {keep}, top_n {top_n:?}");
                assert_eq!(answer.cost.texts, 16 + keep);
            }
        }
        assert!(reordered > 5, "the models must differ: {reordered}");
    }

    #[tokio::test]
    async fn the_least_score_of_each_model_is_for_its_own_scores() {
        let random = &mut StdRng::seed_from_u64(41);
        let scoring = RerankScoring::Logits { positive: Some(1) };
        let least = Some(0.5);
        for (of_first, of_second, asked) in
            [(least, None, None), (None, least, None), (None, None, least), (Some(1e9), Some(-1e9), least)]
        {
            let first = fixture_with(1000, |config| config.min_score = of_first);
            let second = fixture_with(1000, |config| {
                reranker(config).scoring = scoring;
                config.min_score = of_second;
            });
            let request = random_request(random, 16);
            let (plain_first, plain_second) = two_models();
            let all =
                cascade(&plain_first, &plain_second, 6, None).rerank(request.clone()).await.unwrap().value;
            let expected: Vec<Rank> = all
                .into_iter()
                .filter(|rank| {
                    let default = if rank.stage == Some(2) { of_second } else { of_first };
                    asked.or(default).is_none_or(|least| rank.score >= least)
                })
                .collect();
            assert!((1..16).contains(&expected.len()), "{expected:?}");
            let request = RerankRequest { min_score: asked, ..request };
            let answer = cascade(&first, &second, 6, None).rerank(request).await.unwrap();
            assert_eq!(answer.cost.dropped, Some(16 - expected.len()));
            assert_eq!(answer.value, expected);
        }
    }

    #[tokio::test]
    async fn texts_that_the_second_model_may_all_score_need_no_first_one() {
        let random = &mut StdRng::seed_from_u64(37);
        let (first, second) = two_models();
        let request = random_request(random, 5);
        let expected = order(&second, &request).await;
        let answer = cascade(&first, &second, 5, None).rerank(request).await.unwrap();
        let found = answer.value.iter().map(|rank| (rank.index, rank.score));
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert!(answer.value.iter().all(|rank| rank.stage == Some(2)));
        assert!(first.control.batch_sizes().is_empty());
    }

    #[tokio::test]
    async fn a_request_that_the_second_model_refuses_is_refused_before_the_first_computes() {
        let (random, first) = (&mut StdRng::seed_from_u64(40), fixture(1000));
        let second = embedding_fixture(1000, |config| {
            embedder(config).cosine_ranking = Some(CosineRanking::default());
        });
        let service = cascade(&first, &second, 2, None);
        let request = RerankRequest { instruction: Some("w7".to_owned()), ..random_request(random, 9) };
        let refused = service.rerank(request.clone()).await.unwrap_err().to_string();
        assert!(refused.contains("`instruction` cannot be given: this is an embedding model"), "{refused}");
        assert!(first.control.batch_sizes().is_empty());
        let answer = service.rerank(RerankRequest { instruction: None, ..request }).await.unwrap();
        assert_eq!(answer.value.len(), 9);
    }

    #[tokio::test]
    async fn in_a_short_time_the_second_model_scores_one_text() {
        let random = &mut StdRng::seed_from_u64(38);
        let (first, second) = two_models();
        for (budget, speed_is_known, scored) in [
            (Duration::from_nanos(1), false, 4),
            (Duration::from_nanos(1), true, 1),
            (Duration::from_hours(1), true, 4),
        ] {
            if speed_is_known {
                second.service.rerank(random_request(random, 3)).await.unwrap();
            }
            let service = cascade(&first, &second, 4, Some(budget));
            let answer = service.rerank(random_request(random, 9)).await.unwrap();
            let stages: Vec<_> = answer.value.iter().map(|rank| rank.stage).collect();
            let expected: Vec<_> = (0..9).map(|place| Some(if place < scored { 2 } else { 1 })).collect();
            assert_eq!(stages, expected, "{budget:?}");
        }
    }

    #[tokio::test]
    async fn a_cascade_has_no_other_task_and_fails_as_its_models_do() {
        let random = &mut StdRng::seed_from_u64(39);
        let (first, second) = two_models();
        let service = cascade(&first, &second, 2, None);
        let texts = || vec!["w1".to_owned()];
        let score = ScoreRequest { queries: texts(), documents: texts(), ..ScoreRequest::default() };
        let pair = PredictInput::Pair("w1".to_owned(), "w2".to_owned());
        let predict = PredictRequest {
            inputs: vec![pair],
            is_batch: false,
            truncate: None,
            truncation_direction: TruncationDirection::Right,
            raw_scores: false,
        };
        for error in [service.score(score).await.unwrap_err(), service.predict(predict).await.unwrap_err()] {
            assert!(error.to_string().contains("a cascade, which only ranks"), "{error}");
        }
        // The first model finds nothing wrong with an answer of the second one.
        let mut request = random_request(random, 6);
        request.texts[3] = "fail".to_owned();
        assert!(matches!(service.rerank(request.clone()).await, Err(Error::Inference(_))));
        let empty = RerankRequest { query: String::new(), ..request };
        assert_eq!(service.rerank(empty).await.unwrap_err(), Error::Empty { field: "query" });
    }
}
