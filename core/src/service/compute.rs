//! Computes the inputs of a request: through tokenizer, queue and device, and back.
//!
//! Input: a request that lists its [`Input`]s. Output: the raw scores or vectors of each input, in the order
//! of the request, and their common cost. What must hold: one permit covers the whole request; when it ends
//! early, for whatever reason, nothing more of it is computed. If a text has no tokens, or too many, the
//! tokenizer still encodes the others, because each failed text is counted.

use super::{Cost, Service, request::Failed};
use crate::{
    error::Error,
    infer::{Announced, Outcome, Permit},
    metrics::{
        EMBED, PREDICT, REQUEST_INPUT_LENGTH, TRUNCATED_INPUTS, TextMetrics, count, observe_amount,
        observe_duration,
    },
    queue::Turn,
    tokenization::{
        Encoded, Encoder, Input, Place, SharedQuery, TokenLimits, Truncation, TruncationDirection,
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
    Score,
    /// Compute one vector, or one for each of its tokens.
    Embed(Wanted),
}

/// The model's results for a request's inputs.
pub(super) struct Computed {
    /// The results of each input, in the order of the request.
    pub(super) outputs: Vec<Output>,
    /// The cost of all inputs together.
    pub(super) cost: Cost,
}

/// A text that is being encoded or computed.
struct Launched {
    encoded: oneshot::Receiver<Result<Measured, Error>>,
    outcome: oneshot::Receiver<Result<Outcome, Error>>,
}

/// The tokenizer's report on a text.
struct Measured {
    tokens: usize,
    truncated: bool,
    duration: Duration,
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
        let arrival = Instant::now();
        let sizes = Sizes::of(inputs.as_ref());
        let permit = self.permit(sizes.most_tokens(self.tokenization.encoder().max_input_length())).await?;
        let turn = self.engine.turn();
        let work = async {
            let permitted = (permit, &turn);
            match self.tokenization.encoder() {
                Encoder::Listwise(_) => self.compute_lists(inputs, sizes, truncation, permitted).await,
                _ => self.compute_permitted(inputs, sizes, task, truncation, permitted).await,
            }
        };
        let Some(patience) = self.config.queue_timeout else { return with_total(work.await, arrival) };
        tokio::select! {
            computed = work => with_total(computed, arrival),
            // Dropping the work cancels it.
            () = waited_in_vain(&turn, patience) => {
                let (waited, retry_after) = (turn.came().elapsed(), self.engine.retry_after());
                Err(Error::QueueTimeout { waited, retry_after }.into())
            }
        }
    }

    async fn compute_permitted<I: Inputs>(
        &self,
        inputs: &Arc<I>,
        sizes: Sizes,
        task: ModelTask,
        truncation: Truncation,
        (mut permit, turn): (Permit, &Arc<Turn>),
    ) -> Result<Computed, Failed> {
        // All texts are announced before the first is sent. Otherwise an idle device could take the first
        // ones for the whole request.
        let announced: Vec<Announced> = (0..inputs.count()).map(|_| self.engine.announce(turn)).collect();
        let Sizes { characters, bytes, .. } = sizes;
        let shared = inputs.have_one_query().then(Arc::default);
        let place = self.tokenization.place(bytes.iter().sum());
        let encoding = EncodingJob { inputs: Arc::clone(inputs), task, truncation, shared, place };
        let texts = announced.into_iter().zip(bytes).enumerate();
        let texts = texts.map(|(index, (announced, bytes))| self.launch(&encoding, index, announced, bytes));
        let (encoded, mut outcomes): (Vec<_>, Vec<_>) =
            texts.map(|text| (text.encoded, text.outcome)).unzip();
        let mut cost = Cost { texts: inputs.count(), characters, ..Cost::default() };
        let mut failed: Option<Failed> = None;
        let mut durations = Vec::with_capacity(encoded.len());
        // All encodings come before the first outcome, because an input that is too long ends the request.
        for encoded in encoded {
            let failure = Error::Tokenizer("the tokenizer failed".to_owned());
            match encoded.await.unwrap_or(Err(failure)) {
                Ok(measured) => {
                    measured.add_to(&mut cost);
                    durations.push(measured.duration);
                }
                Err(error) => {
                    // Dropping the receivers cancels the computation of these texts.
                    outcomes.clear();
                    match &mut failed {
                        None => failed = Some(Failed::on_the_way_to_tokens(error, 1)),
                        Some(failed) => failed.add(),
                    }
                }
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        permit.settle(cost.tokens);
        let mut outputs = Vec::with_capacity(outcomes.len());
        let mut outcomes = outcomes.into_iter();
        for tokenization in durations {
            let Some(outcome) = outcomes.next() else { break };
            let outcome = match outcome.await.unwrap_or(Err(Error::Unhealthy)) {
                Ok(outcome) => outcome,
                Err(error) => return Err(Failed::of_texts(error, 1 + failures(outcomes))),
            };
            task.metrics().observe(tokenization, &outcome);
            cost.queue = cost.queue.max(outcome.queue);
            cost.inference = cost.inference.max(outcome.inference);
            outputs.push(outcome.output);
        }
        Ok(Computed { outputs, cost })
    }

    /// Sends off one text: a tokenizer encodes its bytes and passes it to the queue.
    fn launch<I: Inputs>(
        &self,
        encoding: &EncodingJob<I>,
        index: usize,
        announced: Announced,
        bytes: usize,
    ) -> Launched {
        let (answer, encoded) = oneshot::channel();
        let (reply, outcome) = oneshot::channel();
        let &EncodingJob { task, truncation, place, .. } = encoding;
        let (inputs, shared) = (Arc::clone(&encoding.inputs), encoding.shared.clone());
        let start = Instant::now();
        count(task.metrics().count);
        self.tokenization.run(place, bytes, move |encoder| {
            if answer.is_closed() {
                return;
            }
            let result = encoder.encode(&inputs.input(index), truncation, shared.as_deref());
            let duration = start.elapsed();
            let measured = result.map(|encoded| {
                let measured =
                    Measured { tokens: encoded.ids.len(), truncated: encoded.truncated > 0, duration };
                let Encoded { ids, second, reusable, .. } = encoded;
                let text = Text { second, reusable, ..Text::new(ids, task.wanted()) };
                announced.submit(text, reply);
                measured
            });
            // A closed receiver means that the request was abandoned.
            let _ = answer.send(measured);
        });
        Launched { encoded, outcome }
    }
}

impl Measured {
    /// Counts the text and adds it to the cost of its request.
    fn add_to(&self, cost: &mut Cost) {
        observe_amount(REQUEST_INPUT_LENGTH, self.tokens);
        cost.tokens += self.tokens;
        if self.truncated {
            cost.truncated += 1;
            count(TRUNCATED_INPUTS);
        }
        cost.tokenization = cost.tokenization.max(self.duration);
    }
}

/// Adds the total time to the cost.
fn with_total(computed: Result<Computed, Failed>, arrival: Instant) -> Result<Computed, Failed> {
    computed.map(|Computed { outputs, cost }| Computed {
        outputs,
        cost: Cost { total: arrival.elapsed(), ..cost },
    })
}

/// Ends when a request has waited for `patience` and none of its texts has been computed.
async fn waited_in_vain(turn: &Turn, patience: Duration) {
    tokio::time::sleep_until((turn.came() + patience).into()).await;
    if turn.has_begun() {
        std::future::pending::<()>().await;
    }
}

/// The number of texts after a failed one that are known to have failed, too. They were in its batch, and the
/// engine answers them first.
pub(super) fn failures(outcomes: impl Iterator<Item = oneshot::Receiver<Result<Outcome, Error>>>) -> usize {
    outcomes.map(|mut outcome| usize::from(matches!(outcome.try_recv(), Ok(Err(_))))).sum()
}

impl ModelTask {
    fn wanted(self) -> Wanted {
        match self {
            Self::Score => Wanted::WHOLE,
            Self::Embed(wanted) => wanted,
        }
    }

    fn metrics(self) -> &'static TextMetrics {
        match self {
            Self::Score => &PREDICT,
            Self::Embed(_) => &EMBED,
        }
    }
}

impl TextMetrics {
    /// Counts a computed text, and records the durations of its steps.
    pub(super) fn observe(&self, tokenization: Duration, outcome: &Outcome) {
        count(self.success);
        observe_duration(self.tokenization_duration, tokenization);
        observe_duration(self.queue_duration, outcome.queue);
        observe_duration(self.inference_duration, outcome.inference);
        observe_duration(self.duration, tokenization + outcome.queue + outcome.inference);
    }
}

/// The lengths of a request's texts.
pub(super) struct Sizes {
    /// The characters of all inputs. A query counts with each input.
    pub(super) characters: usize,
    /// The bytes to encode for each input. The bytes of a common query count with the first input.
    pub(super) bytes: Vec<usize>,
    /// The bytes of the common query.
    query: usize,
}

impl Sizes {
    pub(super) fn of(inputs: &impl Inputs) -> Self {
        let count = inputs.count();
        let query = match inputs.have_one_query().then(|| inputs.input(0)) {
            Some(Input::Pair(pair)) => pair.query,
            _ => "",
        };
        let of_query = Input::Text { prompt: "", text: query }.characters();
        let mut sizes =
            Self { characters: of_query * count, bytes: Vec::with_capacity(count), query: query.len() };
        for index in 0..count {
            let input = match inputs.input(index) {
                // A common query is not counted again for each of a thousand documents.
                Input::Pair(pair) if !query.is_empty() => Input::Text { prompt: "", text: pair.document },
                input => input,
            };
            sizes.characters += input.characters();
            sizes.bytes.push(input.bytes() + if index == 0 { query.len() } else { 0 });
        }
        sizes
    }

    /// An upper bound on the tokens of all inputs, if none has more than `longest`. A token is hardly ever
    /// shorter than a byte.
    fn most_tokens(&self, longest: usize) -> usize {
        self.bytes.iter().map(|bytes| (bytes + self.query).min(longest)).sum()
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
        let patience = Duration::from_millis(50);
        let fixture = fixture_with(1, |config| config.queue_timeout = Some(patience));
        fixture.control.hold();
        let begun = tokio::spawn({
            let service = fixture.service.clone();
            async move { service.rerank(request(&["w100", "w101"])).await }
        });
        while fixture.control.batch_sizes().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let error = fixture.service.rerank(request(&["w102"; 3])).await.unwrap_err();
        let Error::QueueTimeout { waited, retry_after: 1 } = error else { unreachable!("{error:?}") };
        assert!(waited >= patience);
        tokio::time::sleep(patience).await;
        fixture.control.release();
        assert_eq!(begun.await.unwrap().unwrap().value.len(), 2, "it had begun");
        assert_eq!(fixture.service.rerank(request(&["w103"])).await.unwrap().value.len(), 1);
        assert_eq!(fixture.control.batch_sizes(), [1; 3]);
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
