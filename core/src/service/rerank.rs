//! Re-ranking: one query, many texts, a score for each.
//!
//! Input: a [`RerankRequest`]. Output: a [`Rank`] per text, the best first. What must hold: a text's score
//! does not depend on the other texts of its request, except with a model that reads lists (`scoring.rs`);
//! texts are ordered by their raw scores, which may differ where probabilities round to the same value; equal
//! raw scores keep the order of the request; a least score is compared with the scores that the client sees.

use super::{
    Answer, Cost, Service,
    compute::Computed,
    max_sim::MaxSim,
    model::PairScoring,
    passages::PassageWork,
    ranking::{Rank, RerankRequest, SCORED_BY_SECOND, Score},
    request::{Admitted, Failed, check_length},
    scoring::RawScore,
    task::{Inputs, ModelTask},
};
use crate::{
    error::Error,
    metrics::RERANK_SCORE,
    model::RerankScoring,
    postprocess::order,
    tokenization::{Input, PairText, Truncation},
};
use std::sync::Arc;

impl Service {
    /// Ranks texts by their relevance to a query.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`] without texts; [`Error::ModelType`] if the model is not a re-ranker; [`Error::Empty`]
    /// without a query; [`Error::BatchTooLarge`] and [`Error::Validation`] for an invalid request;
    /// [`Error::TooLong`] for a text that must not be truncated; [`Error::Overloaded`] without a free permit;
    /// failures of tokenizer and model.
    pub async fn rerank(&self, request: RerankRequest) -> Result<Answer<Vec<Rank>>, Error> {
        self.model_metrics().refused(check_length("texts", request.texts.len(), usize::MAX))?;
        self.model_metrics().refused(self.pair_scoring().map(drop))?;
        let request = Arc::new(request);
        let answer = match &self.second_stage {
            Some(stage) => self.rerank_in_stages(&request, stage).await,
            None => self.rerank_alone(Arc::clone(&request), request.highlight).await,
        };
        Ok(self.select_ranks(&request, answer?))
    }

    /// The ranks that a request wants, with its texts if it wants them.
    fn select_ranks(&self, request: &RerankRequest, answer: Answer<Vec<Rank>>) -> Answer<Vec<Rank>> {
        let Answer { value: mut ranks, mut cost } = answer;
        // Each model of a cascade has a default for its own scores.
        let second = self.second_stage.as_ref().map_or(self, |stage| &stage.service);
        let (least_by_first, least_by_second) = (self.least_score(request), second.least_score(request));
        if least_by_first.is_some() || least_by_second.is_some() {
            let count = ranks.len();
            ranks.retain(|rank| {
                let is_second = rank.stage == Some(SCORED_BY_SECOND);
                let least = if is_second { least_by_second } else { least_by_first };
                least.is_none_or(|least| rank.score >= least)
            });
            cost.dropped = Some(count - ranks.len());
        }
        ranks.truncate(request.max_ranks());
        if request.return_text {
            for rank in &mut ranks {
                rank.text = Some(request.texts[rank.index].clone());
            }
        }
        Answer { value: ranks, cost }
    }

    /// The least score of a text that is returned, by the request or by this model's default.
    pub(super) fn least_score(&self, request: &RerankRequest) -> Option<f32> {
        request.min_score.or(self.config.min_score)
    }

    /// Ranks all texts with this model alone. The `highlight` best of those that are returned get highlights.
    pub(super) async fn rerank_alone(
        &self,
        request: Arc<RerankRequest>,
        highlight: usize,
    ) -> Result<Answer<Vec<Rank>>, Error> {
        self.model_metrics().measured("batch", self.rank_texts(request, highlight)).await
    }

    async fn rank_texts(
        &self,
        request: Arc<RerankRequest>,
        highlight: usize,
    ) -> Result<Answer<Vec<Rank>>, Failed> {
        self.check_rerank(&request)?;
        let truncation = Truncation {
            limits: request.limits,
            ..self.truncation(request.truncate, request.truncation_direction)
        };
        let work = PassageWork { request, truncation, highlight };
        let admitted = self
            .admit_request(self.max_tokens(work.request.as_ref()), self.max_passage_tokens(&work))
            .await?;
        // Its steps with parts of texts would make the future of every request large.
        self.in_time(&admitted, Box::pin(self.rank_admitted(&admitted, &work))).await
    }

    async fn rank_admitted(
        &self,
        admitted: &Admitted,
        work: &PassageWork,
    ) -> Result<Answer<Vec<Rank>>, Failed> {
        let (scores, cost) = self.text_scores(admitted, work).await?;
        let request = &work.request;
        let raw: Vec<f32> = scores.iter().map(|scored| scored.score.raw).collect();
        let ranks: Vec<Rank> = order(&raw)
            .into_iter()
            .map(|index| Rank {
                index,
                score: scores[index].score.wanted_score(request.raw_scores),
                text: None,
                stage: None,
                best_passage: scores[index].bytes.clone().map(|bytes| request.find_passage(index, bytes)),
                highlights: None,
            })
            .collect();
        if work.highlight == 0 {
            return Ok(Answer { value: ranks, cost });
        }
        self.add_highlights(admitted, work, Answer { value: ranks, cost }).await
    }

    /// The score of each pair of a query and a text, in the order of the request.
    pub(super) async fn pair_scores<I: Inputs>(
        &self,
        admitted: &Admitted,
        pairs: &Arc<I>,
        truncation: Truncation,
    ) -> Result<(Vec<Score>, Cost), Failed> {
        let (scores, cost) = self.uncounted_scores(admitted, pairs, truncation).await?;
        self.count_scores(scores.iter().copied());
        Ok((scores, cost))
    }

    /// Like [`Service::pair_scores`], for pairs that are parts of other ones.
    pub(super) async fn uncounted_scores<I: Inputs>(
        &self,
        admitted: &Admitted,
        pairs: &Arc<I>,
        truncation: Truncation,
    ) -> Result<(Vec<Score>, Cost), Failed> {
        let scoring = self.pair_scoring()?;
        let (raw, cost) = match scoring {
            PairScoring::Reranker(_) => self.raw_scores(admitted, pairs, truncation).await?,
            PairScoring::Cosine(ranking) => {
                self.compare_vectors(admitted, pairs, ranking, truncation).await?
            }
        };
        let scores = raw.into_iter().map(|raw| Score {
            raw: raw.raw,
            default: scoring.default_score(raw),
            probability: scoring.score_probability(raw),
        });
        Ok((scores.collect(), cost))
    }

    pub(super) fn count_scores(&self, scores: impl IntoIterator<Item = Score>) {
        let probabilities = self.model_metrics().find_histogram(RERANK_SCORE);
        for score in scores {
            probabilities.record(f64::from(score.probability));
        }
    }

    /// The raw score of each input of a re-ranker, in the order of the request.
    pub(super) async fn raw_scores<I: Inputs>(
        &self,
        admitted: &Admitted,
        inputs: &Arc<I>,
        truncation: Truncation,
    ) -> Result<(Vec<RawScore>, Cost), Failed> {
        let scoring = self.reranker()?.scoring;
        let task = ModelTask::Score(scoring);
        if scoring == RerankScoring::MaxSim {
            let mut scores = MaxSim::from_similarity(Arc::clone(&self.similarity), inputs.have_one_query());
            let cost = self.compute_into(admitted, inputs, task, truncation, &mut scores).await?;
            return Ok((scores.into_scores().await?, cost));
        }
        let Computed { outputs, cost } = self.compute_admitted(admitted, inputs, task, truncation).await?;
        Ok((scoring.raw_scores(&scoring.prompt_inputs(inputs.as_ref()), &outputs)?, cost))
    }

    /// Refuses a request that this model, as the second one of a cascade, cannot answer.
    pub(super) fn check_stage(&self, request: &RerankRequest) -> Result<(), Error> {
        let reads_apart = matches!(self.pair_scoring()?, PairScoring::Cosine(_));
        self.tokenization.encoder().check_instruction(request.instruction.as_deref(), reads_apart)?;
        self.check_passages(request)
    }

    fn check_rerank(&self, request: &RerankRequest) -> Result<(), Error> {
        if request.query.trim().is_empty() {
            return Err(Error::Empty { field: "query" });
        }
        check_length("texts", request.texts.len(), self.config.max_rerank_texts)?;
        self.check_passages(request)?;
        match request.min_score {
            Some(least) if !least.is_finite() => {
                Err(Error::Validation(format!("`min_score` must be a finite number. Given: {least}")))
            }
            _ => Ok(()),
        }
    }
}

impl Inputs for RerankRequest {
    fn count(&self) -> usize {
        self.texts.len()
    }

    fn input(&self, index: usize) -> Input<'_> {
        Input::Pair(self.pair_with(&self.texts[index]))
    }

    fn have_one_query(&self) -> bool {
        true
    }
}

impl RerankRequest {
    pub(super) fn pair_with<'a>(&'a self, document: &'a str) -> PairText<'a> {
        PairText { instruction: self.instruction.as_deref(), query: &self.query, document }
    }

    /// The most texts that are returned. 0 means all, as in vLLM, whose clients send it by default.
    pub(super) fn max_ranks(&self) -> usize {
        self.top_n.filter(|top_n| *top_n > 0).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        metrics::{self, testing::recorded},
        postprocess::sigmoid,
        service::{
            DecodeRequest, EmbedEncoding, EmbedInput, EmbedInputs, EmbedRequest, ScoreCache,
            testing::{
                Fixture, MAX_INPUT_LENGTH, block_on, classifier_fixture, embedding_fixture, fixture,
                fixture_with, fixture_with_permits,
            },
        },
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::{collections::BTreeSet, time::Duration};

    fn request(query: &str, texts: &[&str]) -> RerankRequest {
        RerankRequest {
            query: query.to_owned(),
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
            ..RerankRequest::default()
        }
    }

    /// The expected answer to a request, computed one text at a time.
    fn expected(fixture: &Fixture, request: &RerankRequest) -> Vec<Rank> {
        let raw = |text: &String| fixture.raw_score(request.instruction.as_deref(), &request.query, text).0;
        let mut ranks: Vec<_> = request.texts.iter().map(raw).enumerate().collect();
        ranks.sort_by(|a, b| b.1.total_cmp(&a.1));
        if let Some(count @ 1..) = request.top_n {
            ranks.truncate(count);
        }
        let score = |raw: f32| if request.raw_scores { raw } else { sigmoid(raw) };
        let text = |index: usize| request.return_text.then(|| request.texts[index].clone());
        ranks
            .into_iter()
            .map(|(index, raw)| Rank { index, score: score(raw), text: text(index), ..Rank::default() })
            .collect()
    }

    #[tokio::test]
    async fn the_answer_does_not_depend_on_batches_and_keeps_ties_in_order() {
        let texts = ["w100", "w101 w102", "", "w100", "w103 w104 w105", "w101 w102", "w106"];
        for budget in [1, 150, 100_000] {
            let fixture = fixture(budget);
            for (top_n, raw_scores, instruction) in [
                (None, false, None),
                (Some(0), false, None),
                (Some(3), true, None),
                (Some(100), false, Some("w500 w501")),
                (Some(1), true, Some("w502")),
            ] {
                let instruction = instruction.map(str::to_owned);
                let return_text = raw_scores;
                let request = RerankRequest {
                    instruction,
                    raw_scores,
                    return_text,
                    top_n,
                    ..request("w200 w201", &texts)
                };
                let answer = fixture.service.rerank(request.clone()).await.unwrap();
                assert_eq!(answer.value, expected(&fixture, &request), "budget {budget}");
            }
        }
        let fixture = fixture(1);
        fixture.service.rerank(request("w200", &texts)).await.unwrap();
        assert_eq!(fixture.control.batch_sizes(), [1; 7]);
    }

    #[tokio::test]
    async fn texts_below_the_least_score_are_dropped_and_counted() {
        let texts: Vec<String> = (0..16).map(|number| format!("w{}", 100 + number)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let plain = fixture(1000);
        for raw_scores in [false, true] {
            let request = RerankRequest { raw_scores, ..request("w200", &texts) };
            let all = plain.service.rerank(request.clone()).await.unwrap();
            assert_eq!(all.cost.dropped, None);
            let scores: Vec<f32> = all.value.iter().map(|rank| rank.score).collect();
            // A score that is just the least one stays; the next larger number drops it.
            for least in [scores[0], scores[7], scores[7].next_up(), scores[15], -f32::MAX, f32::MAX] {
                let by_default = fixture_with(1000, |config| config.min_score = Some(least));
                let kept: Vec<Rank> = all.value.iter().filter(|rank| rank.score >= least).cloned().collect();
                for top_n in [None, Some(0), Some(3), Some(99)] {
                    let asked = RerankRequest { min_score: Some(least), top_n, ..request.clone() };
                    let unasked = RerankRequest { top_n, ..request.clone() };
                    for answer in [
                        plain.service.rerank(asked.clone()).await.unwrap(),
                        by_default.service.rerank(unasked).await.unwrap(),
                    ] {
                        let shown = top_n.filter(|top_n| *top_n > 0).unwrap_or(99).min(kept.len());
                        assert_eq!(answer.value, kept[..shown], "{least} {top_n:?}");
                        assert_eq!(answer.cost.dropped, Some(16 - kept.len()), "{least} {top_n:?}");
                    }
                }
            }
        }
        // A request's own least score takes the place of the server's.
        let strict = fixture_with(1000, |config| config.min_score = Some(f32::MAX));
        let asked = RerankRequest { min_score: Some(-1e30), ..request("w200", &texts) };
        assert_eq!(strict.service.rerank(asked).await.unwrap().value.len(), 16);
        for least in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let asked = RerankRequest { min_score: Some(least), ..request("w200", &texts) };
            let error = plain.service.rerank(asked).await.unwrap_err();
            let expected = format!("`min_score` must be a finite number. Given: {least}");
            assert_eq!(error, Error::Validation(expected));
        }
    }

    #[tokio::test]
    async fn the_cost_is_that_of_all_texts() {
        let fixture = fixture(100);
        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        let texts = ["행성", "", &long];
        let cost = fixture.service.rerank(request("w200", &texts)).await.unwrap().cost;
        assert_eq!((cost.texts, cost.characters), (3, 3 * 4 + 2 + long.len()));
        assert_eq!(
            cost.tokens,
            texts.map(|text| fixture.raw_score(None, "w200", text).1).iter().sum::<usize>()
        );
        assert_eq!(cost.truncated, 1);
        assert!(cost.total >= cost.tokenization && cost.total >= cost.queue.max(cost.inference));
        assert!(cost.tokenization > Duration::ZERO);
    }

    #[tokio::test]
    async fn what_cannot_be_ranked_is_refused_in_a_fixed_order() {
        let service = fixture(100).service;
        let many = vec!["w100"; 17];
        for (query, texts, top_n, wanted) in [
            ("", &many[..0], Some(0), Error::Empty { field: "texts" }),
            ("", &many[..], Some(0), Error::Empty { field: "query" }),
            (" \n\u{3000}", &many[..1], None, Error::Empty { field: "query" }),
            ("w100", &many[..], Some(0), Error::BatchTooLarge { got: 17, max: 16 }),
        ] {
            let request = RerankRequest { top_n, ..request(query, texts) };
            assert_eq!(service.rerank(request).await.unwrap_err(), wanted);
        }
        assert!(service.rerank(request("w100", &many[..16])).await.is_ok());
        for (Fixture { service, .. }, advice) in [
            (embedding_fixture(100, |_| ()), "it is an embedding model: POST /embed"),
            (classifier_fixture(&["a"]), "it is a classifier: POST /predict"),
        ] {
            let error = service.rerank(request("", &[])).await.unwrap_err();
            assert_eq!(error, Error::Empty { field: "texts" });
            let error = service.rerank(request("", &many)).await.unwrap_err();
            assert_eq!(error.to_string(), format!("Backend error: model is not a re-ranker model; {advice}"));
        }
    }

    #[tokio::test]
    async fn a_text_that_is_too_long_is_cut_only_if_it_may_be() {
        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        for (auto_truncate, truncate, is_cut) in
            [(true, None, true), (true, Some(false), false), (false, None, false), (false, Some(true), true)]
        {
            let service = fixture_with(100, |config| config.auto_truncate = auto_truncate).service;
            let request = RerankRequest { truncate, ..request("w200", &["w100", &long]) };
            match service.rerank(request).await {
                Ok(answer) => assert!(is_cut && answer.cost.truncated == 1),
                Err(error) => {
                    assert!(!is_cut && matches!(error, Error::OfInput { index: 1, .. }), "{error:?}");
                }
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_goes_wrong_harms_no_other() {
        let fixture = fixture(1);
        let good = request("w200", &["w100", "w101", "w102"]);
        let bad = |text| fixture.service.rerank(request("w200", &["w100", text, "w102"]));
        for (text, wanted) in [
            ("nan", Error::MissingValues),
            ("fail", Error::Inference("inference failed: token 1".to_owned())),
            ("panic", Error::Inference("the backend panicked: token 2".to_owned())),
        ] {
            let (bad, answer) = tokio::join!(bad(text), fixture.service.rerank(good.clone()));
            assert_eq!(bad.unwrap_err(), wanted);
            assert_eq!(answer.unwrap().value, expected(&fixture, &good));
        }
        assert!(fixture.service.engine().healthy().await);
    }

    #[tokio::test]
    async fn a_client_that_disconnects_frees_its_permit_and_its_work_is_dropped() {
        let fixture = fixture_with_permits(1, 2);
        let spawn = |request: &RerankRequest| {
            let (service, request) = (fixture.service.clone(), request.clone());
            tokio::spawn(async move { service.rerank(request).await })
        };
        // On this runtime of one thread, a yield runs a spawned request until it waits for its texts.
        let begin = tokio::task::yield_now;
        fixture.control.hold();
        let leaver = spawn(&request("w200", &["w100"; 16]));
        begin().await;
        fixture.control.wait_for_batches(1);
        let kept = request("w201", &["w101", "w102"]);
        let stayer = spawn(&kept);
        begin().await;
        assert_eq!(
            fixture.service.rerank(kept.clone()).await.unwrap_err(),
            Error::Overloaded { retry_after: 1 }
        );
        leaver.abort();
        assert!(leaver.await.unwrap_err().is_cancelled());
        // Its permit is free when its last text has left the tokenizer's line.
        while fixture.service.permit(0).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let third = spawn(&kept);
        begin().await;
        fixture.control.release();
        for answer in [stayer, third] {
            assert_eq!(answer.await.unwrap().unwrap().value, expected(&fixture, &kept));
        }
        assert_eq!(fixture.control.batch_sizes(), [1; 1 + 2 + 2]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_hundred_requests_at_once_each_get_their_own_answer() {
        let fixture = fixture(150);
        let mut rng = StdRng::seed_from_u64(3);
        let mut words = |most: usize| -> String {
            let words: Vec<_> =
                (0..rng.random_range(1..=most)).map(|_| format!("w{}", rng.random_range(6..1000))).collect();
            words.join(" ")
        };
        let requests: Vec<RerankRequest> = (0..200)
            .map(|number| {
                let texts: Vec<String> = (0..=number % 16).map(|_| words(12)).collect();
                RerankRequest { query: words(4), texts, raw_scores: true, ..RerankRequest::default() }
            })
            .collect();
        let answers: Vec<_> = requests
            .iter()
            .map(|request| {
                let (service, request) = (fixture.service.clone(), request.clone());
                tokio::spawn(async move { service.rerank(request).await })
            })
            .collect();
        for (answer, request) in answers.into_iter().zip(&requests) {
            assert_eq!(answer.await.unwrap().unwrap().value, expected(&fixture, request));
        }
        let texts: usize = requests.iter().map(|request| request.texts.len()).sum();
        assert_eq!(fixture.control.batch_sizes().iter().sum::<usize>(), texts);
    }

    fn rank_again_from_cache(fixture: &Fixture) {
        let cached = fixture.service.clone().with_score_cache(&Arc::new(ScoreCache::with_limit(10_000)));
        for hits in [0, 1] {
            let answer = block_on(cached.rerank(request("w200", &["w100"]))).unwrap();
            assert_eq!(answer.cost.cached, Some(hits));
        }
    }

    #[test]
    fn every_metric_moves_exactly_once() {
        let fixture = fixture(10_000);
        let answered = recorded(|| {
            let answer = block_on(fixture.service.rerank(request("w200", &["w100", "w101", "w102"])));
            assert_eq!(answer.unwrap().value.len(), 3);
        });
        assert_eq!(answered[metrics::REQUEST_INPUT_LENGTH].len(), 3);
        assert!(!answered.contains_key(metrics::TRUNCATED_INPUTS));

        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        let request_of_raw_scores =
            RerankRequest { raw_scores: true, top_n: Some(1), ..request("w200", &["w100", &long, &long]) };
        let cut = recorded(|| {
            block_on(fixture.service.rerank(request_of_raw_scores)).unwrap();
        });
        assert_eq!(cut[metrics::TRUNCATED_INPUTS], [2.0]);
        let scores = ["w100", &long, &long].map(|text| sigmoid(fixture.raw_score(None, "w200", text).0));
        assert_eq!(cut[RERANK_SCORE], scores.map(f64::from));

        let failed = recorded(|| {
            block_on(fixture.service.rerank(request("w200", &["nan", "w101"]))).unwrap_err();
        });
        assert_eq!(failed["te_request_failure{err=\"missing_values\"}"], [1.0]);
        assert!(!failed.contains_key("te_request_duration") && !failed.contains_key("te_predict_success"));

        let inputs = EmbedInputs::batch(vec![EmbedInput::Ids(vec![5])]);
        let embed =
            EmbedRequest { inputs, encoding: EmbedEncoding::default(), normalize: false, dimensions: None };
        let embedded = recorded(|| {
            block_on(embedding_fixture(100, |_| ()).service.embed_vectors(embed)).unwrap();
        });

        let decode = DecodeRequest { ids: vec![vec![100]], is_batch: false, skip_special_tokens: true };
        let decoded = recorded(|| {
            block_on(fixture.service.decode(decode)).unwrap();
        });

        // A request that is refused before it is counted still counts as a failure.
        for request in [request("w200", &[]), request("w200", &["w100"; 17])] {
            let is_counted = !request.texts.is_empty();
            let refused = recorded(|| {
                block_on(fixture.service.rerank(request)).unwrap_err();
            });
            assert_eq!(refused.contains_key("te_request_count{method=\"batch\"}"), is_counted);
            assert_eq!(refused.keys().filter(|name| name.starts_with("te_request_failure")).count(), 1);
        }

        let again = recorded(|| rank_again_from_cache(&fixture));

        let moved = [&answered, &decoded, &embedded, &cut, &failed, &again]
            .into_iter()
            .flat_map(|recorded| recorded.keys())
            .map(|key| key.split('{').next().unwrap_or(key));
        let elsewhere = [
            metrics::REQUESTS_IN_FLIGHT,
            metrics::MODEL_LOADED,
            metrics::MODEL_LOADS,
            metrics::QUEUE_SIZE,
            metrics::QUEUE_TOKENS,
            metrics::QUEUE_OLDEST_AGE,
            metrics::DEVICE_BUSY,
            metrics::BATCH_NEXT_SIZE,
            metrics::BATCH_NEXT_TOKENS,
            metrics::BATCH_OUT_OF_MEMORY,
            metrics::BATCH_TOKENS_COMPUTED,
            metrics::PREFIX_SHARED_TOKENS,
            metrics::PREFIX_CACHE_HITS,
            metrics::PREFIX_CACHE_TOKENS,
            metrics::PREFIX_CACHE_BYTES,
        ];
        let listed: BTreeSet<_> = metrics::ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(moved.chain(elsewhere).chain(metrics::OF_PROCESS).collect::<BTreeSet<_>>(), listed);
    }
}
