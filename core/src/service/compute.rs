//! Computes the inputs of a request: through tokenizer, queue and device, and back.
//!
//! Input: a request that lists its [`Input`]s. Output: the outputs of its prompts, in the order of the
//! request, and their common cost. What must hold: one permit covers the whole request; when it ends early,
//! for whatever reason, nothing more of it is computed. If a text has no tokens, or too many, the tokenizer
//! still encodes the others, because each failed text is counted.

use super::{
    Cost, Service,
    request::{Admitted, Failed},
    score_cache::{ModelScores, ScoreKey},
    scoring::PromptInputs,
    sizes::Sizes,
};
use crate::{
    error::Error,
    infer::{Announced, Outcome},
    metrics::{
        EMBED, ModelMetrics, PREDICT, REQUEST_INPUT_LENGTH, SCORE_CACHE_HITS, SCORE_CACHE_TOKENS,
        TRUNCATED_INPUTS, TextMetrics,
    },
    model::RerankScoring,
    tokenization::{
        Encoded, EncodedPrompts, Input, Place, SharedQuery, TokenLimits, Truncation, TruncationDirection,
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{Output, Text, Wanted};
use tokio::sync::oneshot;

/// A request that is a list of inputs.
pub(super) trait Inputs: Send + Sync + 'static {
    /// The number of inputs.
    fn count(&self) -> usize;

    /// The input at an index below `count`.
    fn input(&self, index: usize) -> Input<'_>;

    /// Whether all inputs are pairs with one query and one instruction.
    fn have_one_query(&self) -> bool {
        false
    }
}

/// The data of a request that its encoding needs.
struct EncodingJob<I> {
    inputs: Arc<I>,
    task: ModelTask,
    truncation: Truncation,
    /// Present if all its inputs have the same query.
    shared: Option<Arc<SharedQuery>>,
    place: Place,
}

/// The model's task for each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelTask {
    /// Compute its raw scores.
    Score(RerankScoring),
    /// Compute the logits of a decider's labels, or of its marked tokens.
    Decide(Wanted),
    /// Compute one vector, or one for each of its tokens.
    Embed(Wanted),
}

/// The model's results for a request's inputs.
pub(super) struct Computed {
    /// The outputs of each prompt, in the order of the request.
    pub(super) outputs: Vec<Output>,
    /// The cost of all inputs together.
    pub(super) cost: Cost,
}

/// Prompts that are encoded and wait for the device.
struct Submitted {
    /// The number of inputs from which tokens were cut.
    truncated: usize,
    /// The time from the start of the request to the end of the encoding.
    tokenization: Duration,
    prompts: Vec<SubmittedPrompt>,
}

/// A prompt that waits for the device. Dropping it cancels the computation.
struct SubmittedPrompt {
    tokens: usize,
    outcome: oneshot::Receiver<Result<Outcome, Error>>,
    /// Whether its values were computed before.
    is_cached: bool,
    /// The key under which its values will be kept.
    key: Option<ScoreKey>,
}

impl Service {
    /// The rule for cutting a request's texts. The server's default applies if the request does not say
    /// whether to truncate.
    pub(super) fn truncation(&self, truncate: Option<bool>, direction: TruncationDirection) -> Truncation {
        Truncation {
            truncate: truncate.unwrap_or(self.config.auto_truncate),
            direction,
            limits: TokenLimits::NONE,
        }
    }

    /// Computes `task` for every input.
    pub(super) async fn compute<I: Inputs>(
        &self,
        inputs: &Arc<I>,
        task: ModelTask,
        truncation: Truncation,
    ) -> Result<Computed, Failed> {
        let admitted = self.admit_request(self.max_tokens(inputs.as_ref()), 0).await?;
        self.in_time(&admitted, self.compute_admitted(&admitted, inputs, task, truncation)).await
    }

    /// An upper bound on the tokens of all inputs of a request.
    pub(super) fn max_tokens(&self, inputs: &impl Inputs) -> usize {
        Sizes::from_inputs(inputs).max_tokens(self.tokenization.encoder().max_input_length())
    }

    /// Computes `task` for every input of a request that has its permit.
    pub(super) async fn compute_admitted<I: Inputs>(
        &self,
        admitted: &Admitted,
        inputs: &Arc<I>,
        task: ModelTask,
        truncation: Truncation,
    ) -> Result<Computed, Failed> {
        let Admitted { request, later_tokens } = admitted;
        let sizes = Sizes::from_inputs(inputs.as_ref());
        let prompts = task.prompt_inputs(inputs.as_ref());
        // All prompts are announced before the first is sent. Otherwise an idle device could take the first
        // ones for the whole request.
        let announced: Vec<Announced> = prompts.iter().map(|_| request.announce()).collect();
        let job = EncodingJob {
            inputs: Arc::clone(inputs),
            task,
            truncation,
            shared: inputs.have_one_query().then(Arc::default),
            place: self.tokenization.place(sizes.bytes.iter().sum()),
        };
        let encoded: Vec<_> = prompts
            .into_iter()
            .zip(announced)
            .map(|(prompt, announced)| {
                let bytes = sizes.bytes[prompt.input_range()].iter().sum();
                self.launch_encoding(&job, prompt, bytes, announced)
            })
            .collect();
        let cached = self.scores.is_some().then_some(0);
        let mut cost =
            Cost { texts: inputs.count(), characters: sizes.characters, cached, ..Cost::default() };
        let submitted = self.wait_for_encodings(encoded, &mut cost).await?;
        if task == ModelTask::Score(RerankScoring::Lists) {
            cost.lists = submitted.iter().map(|submitted| submitted.prompts.len()).sum();
        }
        let computed: usize = submitted.iter().map(Submitted::computed_tokens).sum();
        request.settle_tokens(computed + later_tokens);
        let outputs = self.wait_for_outputs(task, submitted, &mut cost).await?;
        Ok(Computed { outputs, cost })
    }

    /// Has a tokenizer encode the inputs of a prompt, which have `bytes` bytes, and put them in the queue.
    fn launch_encoding<I: Inputs>(
        &self,
        job: &EncodingJob<I>,
        prompt: PromptInputs,
        bytes: usize,
        announced: Announced,
    ) -> oneshot::Receiver<Result<Submitted, Error>> {
        let (answer, encoded) = oneshot::channel();
        let &EncodingJob { task, truncation, place, .. } = job;
        let (inputs, shared) = (Arc::clone(&job.inputs), job.shared.clone());
        let start = Instant::now();
        let (metrics, scores) = (self.model_metrics().clone(), self.scores.clone());
        metrics.count_one(task.metrics().count);
        self.tokenization.run(place, bytes, move |encoder| {
            // A closed receiver means that the request was abandoned.
            if answer.is_closed() {
                return;
            }
            let encoded = match prompt {
                PromptInputs::One(index) => {
                    let encoded = encoder.encode(&inputs.input(index), truncation, shared.as_deref());
                    encoded.map(EncodedPrompts::from)
                }
                PromptInputs::Side(side, index) => {
                    encoder.encode_one_side(side, &inputs.input(index), truncation).map(EncodedPrompts::from)
                }
                PromptInputs::List(range) => {
                    let pairs: Vec<_> = range.map(|index| inputs.input(index)).collect();
                    encoder.encode_list(&pairs, truncation, &|| answer.is_closed())
                }
            };
            let submitted = encoded.map(|EncodedPrompts { prompts, truncated }| Submitted {
                truncated,
                tokenization: start.elapsed(),
                prompts: submit_prompts(task, announced, prompts, scores.as_ref(), &metrics),
            });
            let _ = answer.send(submitted);
        });
        encoded
    }

    /// Waits for the encodings of all prompts before their first outcome, because an input that is too long
    /// ends the request.
    async fn wait_for_encodings(
        &self,
        encodings: Vec<oneshot::Receiver<Result<Submitted, Error>>>,
        cost: &mut Cost,
    ) -> Result<Vec<Submitted>, Failed> {
        let mut all = Vec::with_capacity(encodings.len());
        let mut failed: Option<Failed> = None;
        for encoding in encodings {
            let failure = Error::Tokenizer("the tokenizer failed".to_owned());
            match encoding.await.unwrap_or(Err(failure)) {
                Ok(submitted) => {
                    submitted.add_to(cost, self.model_metrics());
                    all.push(submitted);
                }
                Err(error) => match &mut failed {
                    None => failed = Some(Failed::on_the_way_to_tokens(error, 1)),
                    Some(failed) => failed.add(),
                },
            }
            if failed.is_some() {
                // Dropping the prompts cancels their computation.
                all.clear();
            }
        }
        failed.map_or(Ok(all), Err)
    }

    async fn wait_for_outputs(
        &self,
        task: ModelTask,
        submitted: Vec<Submitted>,
        cost: &mut Cost,
    ) -> Result<Vec<Output>, Failed> {
        let mut outputs = Vec::with_capacity(submitted.len());
        let mut values = 0;
        let mut submitted = submitted.into_iter();
        while let Some(Submitted { tokenization, prompts, .. }) = submitted.next() {
            let mut prompts = prompts.into_iter();
            while let Some(SubmittedPrompt { outcome, key, .. }) = prompts.next() {
                let outcome = match outcome.await.unwrap_or(Err(Error::Unhealthy)) {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        let others = prompts.chain(submitted.flat_map(|submitted| submitted.prompts));
                        return Err(Failed::of_texts(error, 1 + others.filter_map(known_failure).count()));
                    }
                };
                if let (Some(scores), Some(key)) = (&self.scores, key) {
                    scores.keep_output(key, &outcome.output);
                }
                task.metrics().observe(tokenization, &outcome, self.model_metrics());
                values += task.answer_values(&outcome.output);
                self.check_values(values)?;
                cost.queue = cost.queue.max(outcome.queue);
                cost.inference = cost.inference.max(outcome.inference);
                outputs.push(outcome.output);
            }
        }
        if let Some(scores) = &self.scores {
            scores.publish_bytes();
        }
        Ok(outputs)
    }
}

/// Puts prompts in the queue, except those whose values are known. All are announced before the first is
/// sent.
fn submit_prompts(
    task: ModelTask,
    first: Announced,
    prompts: Vec<Encoded>,
    scores: Option<&ModelScores>,
    metrics: &ModelMetrics,
) -> Vec<SubmittedPrompt> {
    let others: Vec<Announced> = prompts.iter().skip(1).map(|_| first.announce_another()).collect();
    metrics.count_many(task.metrics().count, others.len());
    let announced = std::iter::once(first).chain(others);
    prompts
        .into_iter()
        .zip(announced)
        .map(|(encoded, announced)| {
            let (reply, outcome) = oneshot::channel();
            let tokens = encoded.ids.len();
            let mut key = scores.and_then(|scores| scores.find_key(task, &encoded));
            let known = scores.zip(key).and_then(|(scores, key)| scores.find_output(key));
            let is_cached = known.is_some();
            if let Some(output) = known {
                key = None;
                let none = Duration::ZERO;
                // A receiver that is gone wants no answer.
                let _ = reply.send(Ok(Outcome { output, queue: none, inference: none }));
            } else {
                let Encoded { ids, second, marks, reusable, unattended, kind, .. } = encoded;
                let text =
                    Text { second, marks, reusable, unattended, kind, ..Text::new(ids, task.wanted()) };
                announced.submit(text, reply);
            }
            SubmittedPrompt { tokens, outcome, is_cached, key }
        })
        .collect()
}

/// The error of a prompt that is known to have failed, too. It was in the batch of a failed one, and the
/// engine answers it first.
fn known_failure(mut prompt: SubmittedPrompt) -> Option<Error> {
    prompt.outcome.try_recv().ok()?.err()
}

impl Submitted {
    /// The tokens of the prompts that the device computes.
    fn computed_tokens(&self) -> usize {
        self.prompts.iter().filter(|prompt| !prompt.is_cached).map(|prompt| prompt.tokens).sum()
    }

    /// Counts the prompts and adds them to the cost of their request.
    fn add_to(&self, cost: &mut Cost, metrics: &ModelMetrics) {
        for prompt in &self.prompts {
            metrics.observe_amount(REQUEST_INPUT_LENGTH, prompt.tokens);
            cost.tokens += prompt.tokens;
        }
        let cached = self.prompts.iter().filter(|prompt| prompt.is_cached).count();
        if cached > 0 {
            cost.cached = cost.cached.map(|count| count + cached);
            metrics.count_many(SCORE_CACHE_HITS, cached);
            let all: usize = self.prompts.iter().map(|prompt| prompt.tokens).sum();
            metrics.count_many(SCORE_CACHE_TOKENS, all - self.computed_tokens());
        }
        cost.truncated += self.truncated;
        if self.truncated > 0 {
            metrics.count_many(TRUNCATED_INPUTS, self.truncated);
        }
        cost.tokenization = cost.tokenization.max(self.tokenization);
    }
}

impl ModelTask {
    /// The prompts of a request. A decider and an embedding model read each input alone.
    fn prompt_inputs(self, inputs: &impl Inputs) -> Vec<PromptInputs> {
        match self {
            Self::Score(scoring) => scoring.prompt_inputs(inputs),
            Self::Decide(_) | Self::Embed(_) => (0..inputs.count()).map(PromptInputs::One).collect(),
        }
    }

    fn wanted(self) -> Wanted {
        match self {
            Self::Score(scoring) => scoring.wanted_output(),
            Self::Decide(wanted) | Self::Embed(wanted) => wanted,
        }
    }

    /// The values that an answer has because of this output, if their number follows from the text's tokens.
    fn answer_values(self, output: &Output) -> usize {
        match self {
            Self::Embed(wanted) if wanted.tokens || wanted.sparse => {
                output.tokens.values.len() + 2 * output.sparse.len()
            }
            Self::Score(_) | Self::Decide(_) | Self::Embed(_) => 0,
        }
    }

    fn metrics(self) -> &'static TextMetrics {
        match self {
            Self::Score(_) | Self::Decide(_) => &PREDICT,
            Self::Embed(_) => &EMBED,
        }
    }
}

impl TextMetrics {
    /// Counts a computed text, and records the durations of its steps.
    fn observe(&self, tokenization: Duration, outcome: &Outcome, metrics: &ModelMetrics) {
        metrics.count_one(self.success);
        metrics.observe_duration(self.tokenization_duration, tokenization);
        metrics.observe_duration(self.queue_duration, outcome.queue);
        metrics.observe_duration(self.inference_duration, outcome.inference);
        metrics.observe_duration(self.duration, tokenization + outcome.queue + outcome.inference);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        infer::EngineLimits,
        service::{
            RerankRequest,
            testing::{MAX_INPUT_LENGTH, fixture_of_limits, fixture_with, limits},
        },
        stopped_clock::StoppedClock,
    };

    fn request(texts: &[&str]) -> RerankRequest {
        RerankRequest {
            query: "w200".to_owned(),
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
            ..RerankRequest::default()
        }
    }

    #[tokio::test]
    async fn a_request_of_which_nothing_is_begun_in_time_is_refused_and_not_computed() {
        let patience = Duration::from_millis(1);
        let fixture = fixture_with(1, |config| config.queue_timeout = Some(patience));
        // Texts that keep the device busy. They have no time limit.
        let submit = || {
            let (reply, answer) = oneshot::channel();
            let engine = &fixture.service.engine;
            engine.announce(&engine.turn()).submit(Text::new([9], Wanted::WHOLE), reply);
            answer
        };
        fixture.control.hold();
        let first = submit();
        fixture.control.wait_for_batches(1);
        let error = fixture.service.rerank(request(&["w102"; 3])).await.unwrap_err();
        let Error::QueueTimeout { waited, retry_after: 1 } = error else { unreachable!("{error:?}") };
        assert!(waited >= patience);
        let last = submit();
        fixture.control.release();
        first.await.unwrap().unwrap();
        last.await.unwrap().unwrap();
        assert_eq!(fixture.control.batch_sizes(), [1; 2]);
    }

    #[tokio::test]
    async fn a_request_that_has_begun_is_computed_though_its_time_is_up() {
        let patience = Duration::from_hours(1);
        let fixture = fixture_with(1, |config| config.queue_timeout = Some(patience));
        let clock = StoppedClock::new();
        fixture.control.hold();
        let hours = async {
            clock.until(|| !fixture.control.batch_sizes().is_empty()).await;
            tokio::time::advance(patience * 2).await;
            fixture.control.release();
        };
        let answer = clock.run(fixture.service.rerank(request(&["w100", "w101"])), hours).await;
        assert_eq!(answer.unwrap().value.len(), 2);
        assert_eq!(fixture.control.batch_sizes(), [1; 2]);
    }

    #[tokio::test]
    async fn requests_are_admitted_by_their_tokens() {
        let most = 2 * MAX_INPUT_LENGTH;
        let fixture = fixture_of_limits(EngineLimits { max_queue_tokens: most, ..limits(1, 512) });
        let long = "w300 ".repeat(MAX_INPUT_LENGTH);
        fixture.control.hold();
        let rerank = |texts: Vec<&str>| {
            let (service, request) = (fixture.service.clone(), request(&texts));
            tokio::spawn(async move { service.rerank(request).await })
        };
        // The large request exceeds the limit and is admitted because it is alone. Others are refused until
        // it ends.
        let large = rerank(vec![&long, &long, &long]);
        while fixture.control.batch_sizes().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = rerank(vec!["w100"]).await.unwrap().unwrap_err();
        assert!(matches!(refused, Error::Overloaded { .. }), "{refused:?}");
        fixture.control.release();
        assert_eq!(large.await.unwrap().unwrap().value.len(), 3);
        assert_eq!(rerank(vec!["w100"]).await.unwrap().unwrap().value.len(), 1);
    }
}
