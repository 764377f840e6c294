//! Pairs to raw scores: the way of a request's texts through tokenizer, queue and device, and back.
//!
//! Input: something that knows its prompts. Output: each text's raw scores, in the order of the request, and what all
//! of them cost. What must hold: one permit covers the whole request; the first error ends it; when it ends early, for
//! whatever reason, what is left of its work is skipped.

use super::{Cost, Service};
use crate::{
    error::Error,
    infer::{Announced, Outcome},
    metrics::{
        PREDICT_COUNT, PREDICT_DURATION, PREDICT_INFERENCE_DURATION, PREDICT_QUEUE_DURATION, PREDICT_SUCCESS,
        PREDICT_TOKENIZATION_DURATION, REQUEST_INPUT_LENGTH, TRUNCATED_INPUTS, count, observe_amount,
        observe_duration,
    },
    tokenization::{PromptText, Truncation, TruncationDirection},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::Wanted;
use tokio::sync::oneshot;

/// A request that is a list of prompts.
pub(super) trait Prompts: Send + Sync + 'static {
    /// How many there are.
    fn count(&self) -> usize;

    /// The prompt at an index below `count`.
    fn prompt(&self, index: usize) -> PromptText<'_>;
}

/// What the model says of a request's texts.
pub(super) struct Scored {
    /// The raw scores of each text, in the order of the request.
    pub(super) raw_scores: Vec<Vec<f32>>,
    /// What they cost.
    pub(super) cost: Cost,
}

/// A text on its way.
struct Launched {
    encoded: oneshot::Receiver<Result<Measured, Error>>,
    outcome: oneshot::Receiver<Result<Outcome, Error>>,
}

/// What the tokenizer has to say of a text.
struct Measured {
    tokens: usize,
    truncated: bool,
    duration: Duration,
}

impl Service {
    /// How the texts of a request are cut that says so, or leaves it to the server's default.
    pub(super) fn truncation(&self, truncate: Option<bool>, direction: TruncationDirection) -> Truncation {
        Truncation { truncate: truncate.unwrap_or(self.config.auto_truncate), direction }
    }

    /// Scores every prompt of `prompts`.
    pub(super) async fn score<P: Prompts>(
        &self,
        prompts: &Arc<P>,
        truncation: Truncation,
    ) -> Result<Scored, Error> {
        let arrival = Instant::now();
        let _permit = self.permit().await?;
        // All are announced before the first is sent off: else an idle device could take the first ones for all.
        let announced: Vec<Announced> = (0..prompts.count()).map(|_| self.engine.announce()).collect();
        let texts = announced.into_iter().enumerate();
        let texts = texts.map(|(index, announced)| self.launch(prompts, (index, announced), truncation));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let mut cost =
            Cost { texts: texts.len(), characters: characters(prompts.as_ref()), ..Cost::default() };
        // All encodings before the first outcome: an input that is too long ends the request at once.
        let mut encoded = Vec::with_capacity(texts.len());
        for text in texts {
            let measured =
                text.encoded.await.map_err(|_| Error::Tokenizer("the tokenizer failed".to_owned()))??;
            observe_amount(REQUEST_INPUT_LENGTH, measured.tokens);
            cost.tokens += measured.tokens;
            if measured.truncated {
                cost.truncated += 1;
                count(TRUNCATED_INPUTS);
            }
            cost.tokenization = cost.tokenization.max(measured.duration);
            encoded.push((measured, text.outcome));
        }
        let mut raw_scores = Vec::with_capacity(encoded.len());
        for (measured, outcome) in encoded {
            let outcome = outcome.await.map_err(|_| Error::Unhealthy)??;
            observe(measured.duration, &outcome);
            cost.queue = cost.queue.max(outcome.queue);
            cost.inference = cost.inference.max(outcome.inference);
            raw_scores.push(outcome.values);
        }
        cost.total = arrival.elapsed();
        Ok(Scored { raw_scores, cost })
    }

    /// Sends one text off: a tokenizer encodes it and passes it on to the queue.
    fn launch<P: Prompts>(
        &self,
        prompts: &Arc<P>,
        (index, announced): (usize, Announced),
        truncation: Truncation,
    ) -> Result<Launched, Error> {
        let (encoding, encoded) = oneshot::channel();
        let (reply, outcome) = oneshot::channel();
        let prompts = Arc::clone(prompts);
        let start = Instant::now();
        count(PREDICT_COUNT);
        self.tokenization.run(move |encoder| {
            if reply.is_closed() {
                return;
            }
            let result = encoder.encode_prompt(&prompts.prompt(index), truncation);
            let duration = start.elapsed();
            let measured = result.map(|encoded| {
                let measured =
                    Measured { tokens: encoded.ids.len(), truncated: encoded.truncated > 0, duration };
                announced.submit(encoded.ids, Wanted::Whole, reply);
                measured
            });
            // A receiver that is gone wants no answer.
            let _ = encoding.send(measured);
        })?;
        Ok(Launched { encoded, outcome })
    }
}

/// Characters of all queries and documents.
fn characters(prompts: &impl Prompts) -> usize {
    let characters = |prompt: PromptText<'_>| prompt.query.chars().count() + prompt.document.chars().count();
    (0..prompts.count()).map(|index| characters(prompts.prompt(index))).sum()
}

/// Counts a text that was scored, and how long each step took.
fn observe(tokenization: Duration, outcome: &Outcome) {
    count(PREDICT_SUCCESS);
    observe_duration(PREDICT_TOKENIZATION_DURATION, tokenization);
    observe_duration(PREDICT_QUEUE_DURATION, outcome.queue);
    observe_duration(PREDICT_INFERENCE_DURATION, outcome.inference);
    observe_duration(PREDICT_DURATION, tokenization + outcome.queue + outcome.inference);
}
