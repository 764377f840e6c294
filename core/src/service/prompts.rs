//! The prompts of a request on their way to the device: kept ones are found, the others encoded and queued.
//!
//! Input: a request that lists its inputs. Output: each prompt's tokens, and its output if that is kept, else
//! the channel for it. What must hold: prompts stay in the order of the request; a prompt whose output is
//! kept is neither encoded nor announced to the device; short texts share a tokenizer job, a lock of the
//! queue and a wake-up of the device thread. If a text has no tokens, or too many, the others are still
//! encoded, because each failed text is counted.

use super::{
    Cost, Service,
    request::Failed,
    score_cache::{KeptOutput, LongTexts, ModelScores, ScoreKey},
    sizes::Sizes,
    task::{Inputs, ModelTask, PromptInputs},
};
use crate::{
    error::Error,
    infer::{Announced, Outcome, RequestInFlight, SubmittedText},
    metrics::{ModelMetrics, REQUEST_INPUT_LENGTH, SCORE_CACHE_HITS, SCORE_CACHE_TOKENS, TRUNCATED_INPUTS},
    tokenization::{Encoded, EncodedPrompts, Encoder, SharedQuery, Truncation},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{Output, Text};
use tokio::sync::oneshot;

/// The most bytes that a tokenizer job encodes, unless a text alone has more: less than a millisecond.
const MAX_JOB_BYTES: usize = 2 << 10;
/// The keys of more bytes are computed on a thread of their own. A body of that size was parsed on one, too.
const MAX_INLINE: usize = 256 << 10;

/// The inputs of a request, and how they become prompts.
pub(super) struct PromptRequest<I> {
    pub(super) inputs: Arc<I>,
    pub(super) task: ModelTask,
    pub(super) truncation: Truncation,
}

struct Prompt {
    inputs: PromptInputs,
    /// The key under which its output is kept or will be kept.
    key: Option<ScoreKey>,
    kept: Option<KeptOutput>,
}

/// Consecutive prompts of a request that wait for the device, or have their outputs.
#[derive(Default)]
pub(super) struct SubmittedPrompts {
    /// The number of inputs from which tokens were cut.
    truncated: usize,
    /// The time from the start of the request to the end of the encoding.
    pub(super) tokenization: Duration,
    pub(super) prompts: Vec<SubmittedPrompt>,
}

/// A prompt that waits for the device, or has its output. Dropping it cancels the computation.
pub(super) struct SubmittedPrompt {
    pub(super) tokens: usize,
    pub(super) is_cut: bool,
    pub(super) source: OutputSource,
}

/// Where the output of a prompt comes from.
pub(super) enum OutputSource {
    /// It was computed before.
    Kept(Arc<Output>),
    /// The device computes it. It will be kept under the key.
    Device { outcome: oneshot::Receiver<Result<Outcome, Error>>, key: Option<ScoreKey> },
}

/// The end of some prompts' encoding.
enum LaunchedPrompts {
    Done(SubmittedPrompts),
    /// A tokenizer encodes this number of prompts.
    Running(usize, oneshot::Receiver<Result<SubmittedPrompts, Failed>>),
}

/// Prompts that one tokenizer job encodes.
struct EncodingJob<I> {
    request: Arc<PromptRequest<I>>,
    prompts: Vec<Prompt>,
    /// Present if all inputs of the request have the same query.
    shared: Option<Arc<SharedQuery>>,
    announced: Announced,
    metrics: ModelMetrics,
    start: Instant,
}

impl Service {
    /// Finds, encodes and submits the prompts of a request, and adds them to its cost.
    pub(super) async fn submit_prompts<I: Inputs>(
        &self,
        in_flight: &RequestInFlight,
        request: PromptRequest<I>,
        cost: &mut Cost,
    ) -> Result<Vec<SubmittedPrompts>, Failed> {
        let sizes = Sizes::from_inputs(request.inputs.as_ref());
        cost.characters = sizes.characters;
        let request = Arc::new(request);
        let prompts = self.find_prompts(&request, &sizes).await?;
        self.model_metrics().count_many(request.task.text_metrics().count, prompts.len());
        let groups = group_prompts(prompts, &sizes);
        // All prompts are announced before the first is sent. Otherwise an idle device could take the first
        // ones for the whole request.
        let new = groups.iter().filter(|group| !group.is_kept());
        let mut announced: Vec<_> = new.map(|group| in_flight.announce(group.prompts.len())).rev().collect();
        let place = self.tokenization.place(groups.iter().map(|group| group.bytes).sum());
        let shared = request.inputs.have_one_query().then(Arc::default);
        let mut encodings = Vec::with_capacity(groups.len());
        for group in groups {
            // Kept prompts come without an announcement.
            let announced = if group.is_kept() { None } else { announced.pop() };
            let Some(announced) = announced else {
                encodings.push(LaunchedPrompts::Done(SubmittedPrompts::from_kept(group.prompts)));
                continue;
            };
            let (reply, submitted) = oneshot::channel();
            encodings.push(LaunchedPrompts::Running(group.prompts.len(), submitted));
            let job = EncodingJob {
                request: Arc::clone(&request),
                prompts: group.prompts,
                shared: shared.clone(),
                announced,
                metrics: self.model_metrics().clone(),
                start: Instant::now(),
            };
            self.tokenization.run(place, group.bytes, move |encoder| job.encode_prompts(encoder, reply));
        }
        self.wait_for_encodings(encodings, cost).await
    }

    /// The prompts of a request, with the outputs that are kept.
    async fn find_prompts<I: Inputs>(
        &self,
        request: &Arc<PromptRequest<I>>,
        sizes: &Sizes,
    ) -> Result<Vec<Prompt>, Error> {
        let scores = self.scores.clone();
        if scores.is_none() || sizes.bytes.iter().sum::<usize>() <= MAX_INLINE {
            return Ok(request.find_kept(scores.as_ref()));
        }
        let request = Arc::clone(request);
        let found = tokio::task::spawn_blocking(move || request.find_kept(scores.as_ref()));
        found.await.map_err(|_| Error::Unhealthy)
    }

    /// Waits for the encodings of all prompts before their first outcome, because an input that is too long
    /// ends the request.
    async fn wait_for_encodings(
        &self,
        encodings: Vec<LaunchedPrompts>,
        cost: &mut Cost,
    ) -> Result<Vec<SubmittedPrompts>, Failed> {
        let mut all = Vec::with_capacity(encodings.len());
        let mut failed: Option<Failed> = None;
        for encoding in encodings {
            let submitted = match encoding {
                LaunchedPrompts::Done(submitted) => Ok(submitted),
                LaunchedPrompts::Running(count, submitted) => submitted.await.unwrap_or_else(|_| {
                    let error = Error::Tokenizer("the tokenizer failed".to_owned());
                    Err(Failed::on_the_way_to_tokens(error, count))
                }),
            };
            match submitted {
                Ok(submitted) => {
                    submitted.add_to(cost, self.model_metrics());
                    all.push(submitted);
                }
                Err(error) => error.add_to(&mut failed),
            }
            if failed.is_some() {
                // Dropping the prompts cancels their computation.
                all.clear();
            }
        }
        failed.map_or(Ok(all), Err)
    }
}

impl<I: Inputs> PromptRequest<I> {
    /// The prompts, with the outputs that `scores` has.
    fn find_kept(&self, scores: Option<&ModelScores>) -> Vec<Prompt> {
        let mut prompts = Vec::with_capacity(self.inputs.count() + 1);
        let mut long = LongTexts::default();
        for inputs in self.task.prompt_inputs(self.inputs.as_ref()) {
            let mut prompt = Prompt { inputs, key: None, kept: None };
            let input = prompt.inputs.single_input(self.inputs.as_ref());
            if let (Some(scores), Some(input)) = (scores, input) {
                prompt.key = scores.find_key(self.task, self.truncation, &input, &mut long);
                prompt.kept = prompt.key.and_then(|key| scores.find_output(key));
            }
            prompts.push(prompt);
        }
        prompts
    }
}

/// Consecutive prompts that are all kept, or that one tokenizer job encodes.
struct PromptGroup {
    prompts: Vec<Prompt>,
    bytes: usize,
}

impl PromptGroup {
    fn is_kept(&self) -> bool {
        self.prompts.first().is_some_and(|prompt| prompt.kept.is_some())
    }
}

fn group_prompts(prompts: Vec<Prompt>, sizes: &Sizes) -> Vec<PromptGroup> {
    let mut groups: Vec<PromptGroup> = Vec::new();
    for prompt in prompts {
        let is_kept = prompt.kept.is_some();
        let bytes = if is_kept { 0 } else { sizes.bytes[prompt.inputs.input_range()].iter().sum() };
        match groups.last_mut() {
            Some(group) if group.is_kept() == is_kept && group.bytes + bytes <= MAX_JOB_BYTES => {
                group.bytes += bytes;
                group.prompts.push(prompt);
            }
            _ => groups.push(PromptGroup { prompts: vec![prompt], bytes }),
        }
    }
    groups
}

impl<I: Inputs> EncodingJob<I> {
    /// Encodes the prompts one after the other, and submits them together.
    fn encode_prompts(self, encoder: &Encoder, reply: oneshot::Sender<Result<SubmittedPrompts, Failed>>) {
        let mut failed: Option<Failed> = None;
        let (mut submitted, mut texts) = (SubmittedPrompts::default(), Vec::new());
        for prompt in &self.prompts {
            // The request was abandoned.
            if reply.is_closed() {
                return;
            }
            match self.encode_prompt(prompt, encoder, &|| reply.is_closed()) {
                Ok(EncodedPrompts { prompts, truncated }) => {
                    submitted.truncated += truncated;
                    for encoded in prompts {
                        let (text, waiting) = self.prepare_text(encoded, prompt.key);
                        texts.push(text);
                        submitted.prompts.push(waiting);
                    }
                }
                Err(error) => Failed::on_the_way_to_tokens(error, 1).add_to(&mut failed),
            }
        }
        submitted.tokenization = self.start.elapsed();
        let result = if let Some(failed) = failed {
            Err(failed)
        } else {
            // A list may become several prompts.
            let more = texts.len().saturating_sub(self.prompts.len());
            self.metrics.count_many(self.request.task.text_metrics().count, more);
            self.announced.submit_texts(texts);
            Ok(submitted)
        };
        let _ = reply.send(result);
    }

    fn encode_prompt(
        &self,
        prompt: &Prompt,
        encoder: &Encoder,
        is_abandoned: &dyn Fn() -> bool,
    ) -> Result<EncodedPrompts, Error> {
        let PromptRequest { inputs, truncation, .. } = self.request.as_ref();
        let encoded = if let Some(input) = prompt.inputs.single_input(inputs.as_ref()) {
            encoder.encode(&input, *truncation, self.shared.as_deref()).map(EncodedPrompts::from)
        } else {
            let pairs: Vec<_> = prompt.inputs.input_range().map(|index| inputs.input(index)).collect();
            encoder.encode_list(&pairs, *truncation, is_abandoned)
        };
        encoded.map_err(|error| prompt.inputs.name_input(error, inputs.as_ref()))
    }

    /// A text for the device, and the prompt that waits for it.
    fn prepare_text(&self, encoded: Encoded, key: Option<ScoreKey>) -> (SubmittedText, SubmittedPrompt) {
        let (reply, outcome) = oneshot::channel();
        let (tokens, task) = (encoded.ids.len(), self.request.task);
        let Encoded { ids, second, marks, reusable, unattended, kind, truncated } = encoded;
        let text = Text { second, marks, reusable, unattended, kind, ..Text::new(ids, task.wanted_output()) };
        let key = if task.keeps_output(tokens) { key } else { None };
        let source = OutputSource::Device { outcome, key };
        (SubmittedText { text, reply }, SubmittedPrompt { tokens, is_cut: truncated > 0, source })
    }
}

impl SubmittedPrompts {
    fn from_kept(prompts: Vec<Prompt>) -> Self {
        let kept = prompts.into_iter().filter_map(|prompt| prompt.kept);
        let prompts: Vec<_> = kept
            .map(|KeptOutput { output, tokens, is_cut }| SubmittedPrompt {
                tokens,
                is_cut,
                source: OutputSource::Kept(output),
            })
            .collect();
        let truncated = prompts.iter().filter(|prompt| prompt.is_cut).count();
        Self { truncated, tokenization: Duration::ZERO, prompts }
    }

    /// The tokens of the prompts that the device computes.
    pub(super) fn computed_tokens(&self) -> usize {
        self.prompts.iter().filter(|prompt| !prompt.is_kept()).map(|prompt| prompt.tokens).sum()
    }

    /// Counts the prompts and adds them to the cost of their request.
    fn add_to(&self, cost: &mut Cost, metrics: &ModelMetrics) {
        let lengths = metrics.find_histogram(REQUEST_INPUT_LENGTH);
        for prompt in &self.prompts {
            lengths.record(prompt.tokens as f64);
            cost.tokens += prompt.tokens;
        }
        let kept = self.prompts.iter().filter(|prompt| prompt.is_kept());
        let (count, tokens) = kept.fold((0, 0), |sums, prompt| (sums.0 + 1, sums.1 + prompt.tokens));
        if count > 0 {
            cost.cached = cost.cached.map(|cached| cached + count);
            metrics.count_many(SCORE_CACHE_HITS, count);
            metrics.count_many(SCORE_CACHE_TOKENS, tokens);
        }
        cost.truncated += self.truncated;
        if self.truncated > 0 {
            metrics.count_many(TRUNCATED_INPUTS, self.truncated);
        }
        cost.tokenization = cost.tokenization.max(self.tokenization);
    }
}

impl SubmittedPrompt {
    fn is_kept(&self) -> bool {
        matches!(self.source, OutputSource::Kept(_))
    }

    /// The error of a prompt that is known to have failed, too. It was in the batch of a failed one, and the
    /// engine answers it first.
    pub(super) fn known_failure(self) -> Option<Error> {
        match self.source {
            OutputSource::Kept(_) => None,
            OutputSource::Device { mut outcome, .. } => outcome.try_recv().ok()?.err(),
        }
    }
}
