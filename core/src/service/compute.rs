//! Computes the inputs of a request: through tokenizer, queue and device, and back.
//!
//! Input: a request that lists its inputs. Output: the outputs of its prompts, in the order of the request,
//! and their common cost. What must hold: one permit covers the whole request; when it ends early, for
//! whatever reason, nothing more of it is computed.

use super::{
    Cost, Service,
    prompts::{OutputSource, PromptRequest, SubmittedPrompt, SubmittedPrompts},
    request::{Admitted, Failed},
    score_cache::KeptOutput,
    sizes::Sizes,
    task::{Inputs, ModelTask},
};
use crate::{
    error::Error,
    infer::Outcome,
    metrics::{ModelMetrics, TextMetrics},
    model::RerankScoring,
    tokenization::{TokenLimits, Truncation, TruncationDirection},
};
use metrics::{Counter, Histogram};
use std::{cell::LazyCell, sync::Arc, time::Duration};
use text_embeddings_backend_core::Output;

/// The model's results for a request's inputs.
pub(super) struct Computed {
    /// The outputs of each prompt, in the order of the request. Kept outputs are shared, not copied.
    pub(super) outputs: Vec<Arc<Output>>,
    /// The cost of all inputs together.
    pub(super) cost: Cost,
}

/// Takes the outputs of a request's prompts, in the order of the request.
pub(super) trait OutputReceiver {
    /// Takes the next output.
    fn take_output(&mut self, output: Arc<Output>) -> impl Future<Output = Result<(), Error>> + Send;
}

impl OutputReceiver for Vec<Arc<Output>> {
    async fn take_output(&mut self, output: Arc<Output>) -> Result<(), Error> {
        self.push(output);
        Ok(())
    }
}

impl Computed {
    /// The outputs as the caller's own.
    pub(super) fn into_owned(self) -> (Vec<Output>, Cost) {
        (self.outputs.into_iter().map(Arc::unwrap_or_clone).collect(), self.cost)
    }
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
        let mut outputs = Vec::new();
        let cost = self.compute_into(admitted, inputs, task, truncation, &mut outputs).await?;
        Ok(Computed { outputs, cost })
    }

    /// Computes `task` for every input. `receiver` takes the outputs while the device computes the next ones.
    pub(super) async fn compute_into<I: Inputs>(
        &self,
        admitted: &Admitted,
        inputs: &Arc<I>,
        task: ModelTask,
        truncation: Truncation,
        receiver: &mut impl OutputReceiver,
    ) -> Result<Cost, Failed> {
        let Admitted { request, later_tokens } = admitted;
        let cached = self.scores.is_some().then_some(0);
        let mut cost = Cost { texts: inputs.count(), cached, ..Cost::default() };
        let prompts = PromptRequest { inputs: Arc::clone(inputs), task, truncation };
        let submitted = self.submit_prompts(request, prompts, &mut cost).await?;
        if task == ModelTask::Score(RerankScoring::Lists) {
            cost.lists = submitted.iter().map(|submitted| submitted.prompts.len()).sum();
        }
        let computed: usize = submitted.iter().map(SubmittedPrompts::computed_tokens).sum();
        request.permit().settle(computed + later_tokens);
        self.wait_for_outputs(task, submitted, &mut cost, receiver).await?;
        Ok(cost)
    }

    async fn wait_for_outputs(
        &self,
        task: ModelTask,
        submitted: Vec<SubmittedPrompts>,
        cost: &mut Cost,
        receiver: &mut impl OutputReceiver,
    ) -> Result<(), Failed> {
        let mut values = 0;
        // Only with the first answer: metrics that never moved are not shown.
        let metrics = LazyCell::new(|| TextHandles::find(task.text_metrics(), self.model_metrics()));
        let mut submitted = submitted.into_iter();
        while let Some(SubmittedPrompts { tokenization, prompts, .. }) = submitted.next() {
            let mut prompts = prompts.into_iter();
            while let Some(SubmittedPrompt { tokens, is_cut, source }) = prompts.next() {
                let (outcome, key) = match source {
                    OutputSource::Kept(output) => {
                        metrics.observe_text(Durations::default());
                        receiver.take_output(output).await?;
                        continue;
                    }
                    OutputSource::Device { outcome, key } => (outcome, key),
                };
                let finished = outcome.await.unwrap_or(Err(Error::Unhealthy)).and_then(|outcome| {
                    Ok(Outcome { output: task.finish_output(outcome.output)?, ..outcome })
                });
                let outcome = match finished {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        let others = prompts.chain(submitted.flat_map(|submitted| submitted.prompts));
                        let failed = others.filter_map(SubmittedPrompt::known_failure).count();
                        return Err(Failed::of_texts(error, 1 + failed));
                    }
                };
                let Outcome { output, queue, inference } = outcome;
                let output = Arc::new(output);
                if let (Some(scores), Some(key)) = (&self.scores, key) {
                    scores.keep_output(key, &KeptOutput { output: Arc::clone(&output), tokens, is_cut });
                }
                metrics.observe_text(Durations { tokenization, queue, inference });
                values += task.answer_values(&output);
                self.check_values(values)?;
                cost.queue = cost.queue.max(queue);
                cost.inference = cost.inference.max(inference);
                receiver.take_output(output).await?;
            }
        }
        if let Some(scores) = &self.scores {
            scores.publish_bytes();
        }
        Ok(())
    }
}

/// The durations of a text's steps.
#[derive(Debug, Clone, Copy, Default)]
struct Durations {
    tokenization: Duration,
    queue: Duration,
    inference: Duration,
}

/// The [`TextMetrics`] of a model, found once for all texts of a request.
struct TextHandles {
    success: Counter,
    tokenization: Histogram,
    queue: Histogram,
    inference: Histogram,
    duration: Histogram,
}

impl TextHandles {
    fn find(names: &TextMetrics, metrics: &ModelMetrics) -> Self {
        Self {
            success: metrics.find_counter(names.success),
            tokenization: metrics.find_histogram(names.tokenization_duration),
            queue: metrics.find_histogram(names.queue_duration),
            inference: metrics.find_histogram(names.inference_duration),
            duration: metrics.find_histogram(names.duration),
        }
    }

    /// Counts a computed text, and records the durations of its steps.
    fn observe_text(&self, Durations { tokenization, queue, inference }: Durations) {
        self.success.increment(1);
        self.tokenization.record(tokenization.as_secs_f64());
        self.queue.record(queue.as_secs_f64());
        self.inference.record(inference.as_secs_f64());
        self.duration.record((tokenization + queue + inference).as_secs_f64());
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
    use text_embeddings_backend_core::{Text, Wanted};
    use tokio::sync::oneshot;

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
