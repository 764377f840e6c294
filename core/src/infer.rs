//! The engine: permits, the queue behind its lock, and the one thread that owns the backend.
//!
//! Input: texts as token ids, each with a channel for the answer. Output: each text's values and timings on
//! that channel. What must hold: everything submitted is answered, even if the engine is dropped meanwhile; a
//! failed batch fails its own texts and no others; the backend is called from one thread only.

mod admission;
mod answers;
mod device;
mod request;
mod state;
mod watchdog;

pub use crate::queue::Outcome;
pub use admission::Permit;
pub use request::RequestInFlight;

use crate::{
    error::Error,
    metrics::{DEVICE_BUSY, ModelMetrics, QUEUE_OLDEST_AGE, QUEUE_SIZE, QUEUE_TOKENS, REQUESTS_IN_FLIGHT},
    queue::{BatchLimits, Entry, Turn},
};
use admission::Admission;
use answers::fail;
use state::Shared;
use std::{
    sync::{Arc, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{Backend, Text, Wanted};
use tokio::sync::oneshot;
use watchdog::Watchdog;

/// How long a health probe may take, including its time in the queue.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest delay that a refused client is told to wait before it retries, in seconds.
const MAX_RETRY_AFTER: f64 = 600.0;
/// The text of a health probe: every vocabulary has this id.
const PROBE: [u32; 1] = [0];

/// A text to compute, with the channel for its outcome.
#[derive(Debug)]
pub struct SubmittedText {
    /// The text.
    pub text: Text,
    /// The channel. If its receiver is gone, the text is skipped.
    pub reply: oneshot::Sender<Result<Outcome, Error>>,
}

/// The bounds on a batch, on the requests in flight and on the device's time.
#[derive(Debug, Clone, Copy)]
pub struct EngineLimits {
    /// Unique tokens per batch (`--max-batch-tokens`).
    pub max_batch_tokens: usize,
    /// The longest input in tokens (`--max-input-length`).
    pub max_input_length: usize,
    /// Texts per batch; unlimited if absent (`--max-batch-requests`).
    pub max_batch_requests: Option<usize>,
    /// Requests that may be in flight at once (`--max-concurrent-requests`).
    pub max_concurrent_requests: usize,
    /// Tokens of all requests in flight (`--max-queue-tokens`). A request with more tokens is accepted while
    /// no other request is in flight.
    pub max_queue_tokens: usize,
    /// How long a batch may take before the device counts as hung (`--device-timeout`); unlimited if absent.
    pub device_timeout: Option<Duration>,
}

/// The device thread, its queue and the permits. Dropping the engine waits until every submitted text is
/// answered.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    admission: Admission,
    device: Option<JoinHandle<()>>,
    /// The thread that sends answers while the device computes. It ends after the device thread.
    answers: Option<JoinHandle<()>>,
    /// Its thread ends when it is dropped.
    watchdog: Option<Watchdog>,
}

/// Texts of a request that will be submitted soon. An idle device thread waits for them for a moment.
#[derive(Debug)]
pub struct Announced {
    shared: Arc<Shared>,
    turn: Arc<Turn>,
    count: usize,
    /// The permit of its request, which a health probe does not have.
    _permit: Option<Arc<Permit>>,
}

/// The engine as the metrics see it. It does not keep the engine alive.
#[derive(Debug, Clone)]
pub struct EngineGauges {
    shared: Arc<Shared>,
    admission: Admission,
}

impl EngineGauges {
    /// Sets the metrics of the waiting texts and of the device's work so far. Call it just before the metrics
    /// are read.
    pub fn publish_gauges(&self) {
        let metrics = &self.shared.metrics;
        metrics.set_amount(REQUESTS_IN_FLIGHT, self.admission.requests_in_flight());
        let mut state = self.shared.lock();
        state.queue.drop_abandoned();
        metrics.set_amount(QUEUE_SIZE, state.queue.waiting_texts() + state.announced.count);
        metrics.set_amount(QUEUE_TOKENS, state.queue.tokens());
        let age = state.oldest().map_or(Duration::ZERO, |came| came.elapsed());
        metrics.set_seconds(QUEUE_OLDEST_AGE, age);
        metrics.set_seconds(DEVICE_BUSY, state.busy());
    }
}

impl Engine {
    /// Spawns the device thread, which owns `backend` and moves `metrics`.
    ///
    /// # Errors
    ///
    /// [`Error::Inference`] if the system cannot start a thread.
    pub fn start(
        mut backend: Box<dyn Backend>,
        limits: EngineLimits,
        metrics: ModelMetrics,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared { metrics, ..Shared::default() });
        let EngineLimits { max_batch_tokens, max_input_length, max_batch_requests, device_timeout, .. } =
            limits;
        let admission = Admission::new(limits.max_concurrent_requests, limits.max_queue_tokens);
        let watchdog = device_timeout.map(|timeout| Watchdog::start(&shared, timeout)).transpose()?;
        let (sender, answers) = answers::start()?;
        let device = thread::Builder::new()
            .name("device".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                let packing = backend.packing();
                let limits = BatchLimits { packing, max_batch_tokens, max_input_length, max_batch_requests };
                move || {
                    shared.run(backend.as_mut(), limits, &sender);
                    if shared.is_lost() {
                        // Freeing the memory of a lost device may fail or hang; the process ends anyway.
                        std::mem::forget(backend);
                    }
                }
            })
            .map_err(|error| Error::Inference(format!("the device thread did not start: {error}")))?;
        Ok(Self { shared, admission, device: Some(device), answers: Some(answers), watchdog })
    }

    /// A permit for a whole request of at most `tokens` tokens.
    pub(crate) fn try_acquire(&self, tokens: usize) -> Result<Permit, Error> {
        self.check_device()?;
        let retry_after = || self.retry_after();
        self.admission.try_acquire(tokens).ok_or_else(|| Error::Overloaded { retry_after: retry_after() })
    }

    /// Like [`Engine::try_acquire`], but waits while too much is in flight: first come, first served.
    pub(crate) async fn acquire(&self, tokens: usize) -> Result<Permit, Error> {
        self.check_device()?;
        self.admission.acquire(tokens).await.ok_or(Error::Unhealthy)
    }

    /// Adds room for `tokens` tokens to a permit, and waits for it.
    pub(crate) async fn add_tokens(&self, permit: Permit, tokens: usize) -> Result<Permit, Error> {
        self.check_device()?;
        self.admission.add_tokens(permit, tokens).await.ok_or(Error::Unhealthy)
    }

    /// How many seconds the device needs for everything that waits now, at the speed of the last batches.
    pub fn retry_after(&self) -> u64 {
        self.shared.lock().backlog().as_secs_f64().ceil().clamp(1.0, MAX_RETRY_AFTER) as u64
    }

    /// The tokens that the device computes within this time, after those that wait, at the speed of the last
    /// batches; absent before the first batch.
    pub fn tokens_within(&self, time: Duration) -> Option<usize> {
        let state = self.shared.lock();
        let (tokens, seconds) = state.recent;
        let left = time.saturating_sub(state.backlog()).as_secs_f64();
        (seconds > 0.0).then(|| (left * tokens / seconds) as usize)
    }

    /// Refuses requests while the device hangs, and after it is lost.
    fn check_device(&self) -> Result<(), Error> {
        if self.shared.is_lost() {
            Err(Error::DeviceLost)
        } else if self.watchdog.as_ref().is_some_and(|watchdog| watchdog.hung.load(Ordering::Acquire)) {
            Err(Error::Unhealthy)
        } else {
            Ok(())
        }
    }

    /// The metrics of the model.
    pub fn model_metrics(&self) -> &ModelMetrics {
        &self.shared.metrics
    }

    /// A handle on the engine for the metrics.
    pub fn gauges(&self) -> EngineGauges {
        EngineGauges { shared: Arc::clone(&self.shared), admission: self.admission.clone() }
    }

    /// The place in the queue's order of a request that arrives now.
    pub(crate) fn turn(&self) -> Arc<Turn> {
        self.shared.lock().queue.turn()
    }

    /// Announces a text that has no permit, before the text's tokens are known.
    pub(crate) fn announce(&self, turn: &Arc<Turn>) -> Announced {
        Announced::new(&self.shared, turn, None, 1)
    }

    /// Completes when the device is lost. Waiting texts are answered at the same time.
    pub async fn device_lost(&self) {
        // The sender lives as long as `self`, so this ends only when the device is lost.
        let _ = self.shared.lost.subscribe().wait_for(|lost| *lost).await;
    }

    /// Whether the device is lost. A lost device computes nothing any more.
    pub fn is_device_lost(&self) -> bool {
        self.shared.is_lost()
    }

    /// Whether the device thread runs, does not hang, and the last batch gave a number. If only the last
    /// condition fails, a probe of one token decides: it must give a number within a few seconds.
    pub async fn healthy(&self) -> bool {
        if self.device.as_ref().is_none_or(JoinHandle::is_finished) || self.check_device().is_err() {
            return false;
        }
        if !self.shared.unhealthy.load(Ordering::Acquire) {
            return true;
        }
        let (reply, answer) = oneshot::channel();
        self.announce(&self.turn()).submit(Text::new(PROBE, Wanted::WHOLE), reply);
        matches!(tokio::time::timeout(PROBE_TIMEOUT, answer).await, Ok(Ok(Ok(_))))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
        for thread in [self.device.take(), self.answers.take()].into_iter().flatten() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!("the thread `{name}` panicked");
            }
        }
    }
}

impl Announced {
    fn new(shared: &Arc<Shared>, turn: &Arc<Turn>, permit: Option<Arc<Permit>>, count: usize) -> Self {
        shared.lock().announced.add(turn, count);
        Self { shared: Arc::clone(shared), turn: Arc::clone(turn), count, _permit: permit }
    }

    /// Puts the only text in the queue, as [`Announced::submit_texts`].
    pub fn submit(self, text: Text, reply: oneshot::Sender<Result<Outcome, Error>>) {
        self.submit_texts(vec![SubmittedText { text, reply }]);
    }

    /// Puts texts in the queue; each `reply` gets its outcome. If the receiver is gone by the time a
    /// batch is formed, or if the request has ended, a text is skipped. A text without tokens is answered
    /// with [`Error::EmptyInput`]. Once the device is lost, every text is answered with
    /// [`Error::DeviceLost`].
    pub fn submit_texts(self, texts: Vec<SubmittedText>) {
        let enqueued = Instant::now();
        let mut entries = Vec::with_capacity(texts.len());
        for SubmittedText { text, reply } in texts {
            if text.ids.is_empty() {
                // A receiver that is gone wants no answer.
                let _ = reply.send(Err(Error::EmptyInput { field: "inputs" }));
            } else {
                entries.push(Entry { text, turn: Arc::clone(&self.turn), reply, enqueued });
            }
        }
        let mut state = self.shared.lock();
        if self.shared.is_lost() {
            drop(state);
            fail(entries, &Error::DeviceLost);
        } else if !self.turn.withdrawn.load(Ordering::Relaxed) {
            // Dropping `self` on return wakes the device thread.
            for entry in entries {
                state.queue.push(entry);
            }
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.shared.lock().announced.remove(&self.turn, self.count);
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::testing::{BREAK, Control, FAIL, KNOWN, NAN, PANIC, score};
    use super::*;
    use crate::metrics::testing::recorded;
    use std::{
        pin::Pin,
        sync::mpsc,
        task::{Context, Wake, Waker},
    };
    use text_embeddings_backend_core::{Output, TokenVectors};

    type Reply = oneshot::Receiver<Result<Outcome, Error>>;

    fn limits(max_batch_tokens: usize) -> EngineLimits {
        EngineLimits {
            max_batch_tokens,
            max_input_length: max_batch_tokens,
            max_batch_requests: None,
            max_concurrent_requests: 2,
            max_queue_tokens: usize::MAX,
            device_timeout: None,
        }
    }

    fn submit(engine: &Engine, ids: &[u32]) -> Reply {
        submit_in(engine, &engine.turn(), ids)
    }

    fn submit_in(engine: &Engine, turn: &Arc<Turn>, ids: &[u32]) -> Reply {
        let (reply, answer) = oneshot::channel();
        engine.announce(turn).submit(Text::new(ids, Wanted::WHOLE), reply);
        answer
    }

    /// An engine whose backend holds a first batch, the text 9, so that texts submitted meanwhile wait
    /// together.
    fn busy(control: &Control, max_batch_tokens: usize) -> (Engine, Reply) {
        let engine =
            Engine::start(control.backend(), limits(max_batch_tokens), ModelMetrics::default()).unwrap();
        control.hold();
        let blocker = submit(&engine, &[9]);
        control.wait_for_batches(1);
        (engine, blocker)
    }

    fn raw(answer: Reply) -> Result<Vec<f32>, Error> {
        answer.blocking_recv().unwrap().map(|outcome| outcome.output.whole)
    }

    #[tokio::test]
    async fn without_a_permit_the_client_learns_when_the_backlog_is_computed() {
        let control = Control::default();
        let (engine, blocker) = busy(&control, 4);
        let permits = [engine.try_acquire(1).unwrap(), engine.acquire(1).await.unwrap()];
        assert_eq!(engine.try_acquire(1).unwrap_err(), Error::Overloaded { retry_after: 1 });
        let refused = |tokens, seconds, waiting| {
            engine.shared.lock().recent = (tokens, seconds);
            let answers: Vec<_> = (0..waiting).map(|_| submit(&engine, &[7; 100])).collect();
            let refused = engine.try_acquire(1).unwrap_err();
            drop(answers);
            engine.shared.lock().queue.drop_abandoned();
            refused
        };
        assert_eq!(refused(200.0, 1.0, 10), Error::Overloaded { retry_after: 5 });
        assert_eq!(refused(1.0, 1.0, 10), Error::Overloaded { retry_after: 600 });
        drop(permits);
        assert!(engine.try_acquire(1).is_ok());
        control.release();
        blocker.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_device_that_hangs_fails_what_waits_for_it_and_recovers() {
        let control = Control::default();
        let limits = EngineLimits { device_timeout: Some(Duration::from_millis(500)), ..limits(4) };
        let engine = Engine::start(control.backend(), limits, ModelMetrics::default()).unwrap();
        control.hold();
        let computed = submit(&engine, &[9]);
        control.wait_for_batches(1);
        let waiting = submit(&engine, &[10, 11, 12, 13]);
        for answer in [computed, waiting] {
            let error = answer.await.unwrap().unwrap_err();
            let Error::Inference(message) = &error else { unreachable!("{error}") };
            assert!(message.contains("the device has computed one batch for"), "{message}");
        }
        assert!(!engine.healthy().await);
        assert_eq!(engine.try_acquire(1).unwrap_err(), Error::Unhealthy);
        assert_eq!(engine.acquire(1).await.unwrap_err(), Error::Unhealthy);
        control.release();
        while engine.check_device().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(engine.healthy().await && engine.try_acquire(1).is_ok());
        assert_eq!(submit(&engine, &[7, 8]).await.unwrap().unwrap().output.whole, [score(&[7, 8])]);
    }

    #[test]
    fn a_failed_batch_fails_its_own_texts_and_no_others() {
        let control = Control::default();
        let (engine, blocker) = busy(&control, 4);
        // Batches of at most 4 unique tokens: [10 11 | 12], [FAIL 13 | 14 15], [16 17 18 19].
        let texts: [&[u32]; 5] = [&[10, 11], &[12], &[FAIL, 13], &[14, 15], &[16, 17, 18, 19]];
        let turn = engine.turn();
        let answers = texts.map(|ids| submit_in(&engine, &turn, ids));
        control.release();
        assert_eq!(raw(blocker), Ok(vec![score(&[9])]));
        let failure = Err(Error::Inference("inference failed: token 1".to_owned()));
        for (index, (answer, ids)) in answers.into_iter().zip(texts).enumerate() {
            let wanted = if (2..4).contains(&index) { failure.clone() } else { Ok(vec![score(ids)]) };
            assert_eq!(raw(answer), wanted, "text {index}");
        }
        assert_eq!(control.batch_sizes(), [1, 2, 2, 1]);
    }

    #[tokio::test]
    async fn after_a_batch_that_did_not_fit_health_is_that_of_its_halves() {
        let control = Control::default();
        let (engine, blocker) = busy(&control, 4);
        let answers = [[10, 11], [12, 13]].map(|ids| submit(&engine, &ids));
        control.leave_room_for(2);
        control.release();
        blocker.await.unwrap().unwrap();
        for (answer, ids) in answers.into_iter().zip([[10, 11], [12, 13]]) {
            assert_eq!(answer.await.unwrap().unwrap().output.whole, [score(&ids)]);
        }
        assert!(engine.healthy().await);
        assert_eq!(control.batch_sizes(), [1, 2, 1, 1], "no probe was needed");
        // After a text that does not fit on its own, the engine probes with one token, which fits.
        assert!(submit(&engine, &[10, 11, 12]).await.unwrap().is_err());
        assert!(engine.healthy().await);
        assert_eq!(control.batch_sizes(), [1, 2, 1, 1, 1, 1]);
    }

    #[tokio::test]
    async fn when_the_device_is_lost_whatever_waits_or_comes_is_refused() {
        let control = Control::default();
        let (engine, blocker) = busy(&control, 2);
        let announced = engine.announce(&engine.turn());
        let answers = [[10, 11], [12, 13], [14, 15]].map(|ids| submit(&engine, &ids));
        let _permit = engine.try_acquire(1).unwrap();
        assert!(!engine.is_device_lost() && engine.healthy().await);
        control.lose_device();
        control.release();
        engine.device_lost().await;
        assert!(engine.is_device_lost() && !engine.healthy().await);
        for answer in [blocker].into_iter().chain(answers) {
            assert_eq!(answer.await.unwrap(), Err(Error::DeviceLost));
        }
        let (reply, late) = oneshot::channel();
        announced.submit(Text::new([9], Wanted::WHOLE), reply);
        assert_eq!(late.await.unwrap(), Err(Error::DeviceLost));
        assert_eq!(engine.try_acquire(1).unwrap_err(), Error::DeviceLost);
        assert_eq!(engine.acquire(1).await.unwrap_err(), Error::DeviceLost);
        assert_eq!(control.batch_sizes(), [1], "nothing was given to a device that is lost");
        drop(engine);
    }

    #[test]
    fn answers_are_sent_beside_the_next_batch() {
        /// Notes the name of the thread that wakes it.
        struct Woken(mpsc::Sender<String>);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
            }
        }
        let control = Control::default();
        let (engine, blocker) = busy(&control, 4);
        let (sender, woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(Woken(sender)));
        let mut answers = [blocker, submit(&engine, &[10, 11, 12, 13])];
        for answer in &mut answers {
            assert!(Pin::new(answer).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        // The first answer comes while the second batch is held.
        control.hold_after(1);
        assert_eq!(woken.recv().unwrap(), "answers");
        control.release();
        assert_eq!(woken.recv().unwrap(), "device", "nothing else is to be done");
        for (answer, ids) in answers.into_iter().zip([&[9][..], &[10, 11, 12, 13]]) {
            assert_eq!(raw(answer), Ok(vec![score(ids)]));
        }
    }

    #[test]
    fn a_small_request_comes_before_the_rest_of_a_large_one() {
        let control = Control::default();
        let engine = Engine::start(control.backend(), limits(4), ModelMetrics::default()).unwrap();
        control.hold();
        let turn = engine.turn();
        let large: Vec<_> = (10..15).map(|id| submit_in(&engine, &turn, &[id, id, id])).collect();
        control.wait_for_batches(1);
        let small = submit(&engine, &[20]);
        control.release();
        for answer in large.into_iter().chain([small]) {
            raw(answer).unwrap();
        }
        // The small text shares a batch with the large request's next text. Without turns, it would have come
        // last.
        assert_eq!(control.batch_sizes(), [1, 2, 1, 1, 1]);
    }

    #[test]
    fn what_is_known_of_a_request_leaves_its_texts_all_the_room() {
        let control = Control::default();
        let (engine, blocker) = busy(&control, 4);
        // Texts of five tokens. The backend knows four tokens of each of the first eight texts, so their last
        // tokens fill two batches. It knows nothing of the other two texts, which come first because their
        // request is smaller; each of them is a batch of its own.
        let (known, unknown) = (engine.turn(), engine.turn());
        let texts = (10..18).map(|id| (&known, [KNOWN, KNOWN, KNOWN, KNOWN, id]));
        let texts = texts.chain((10..12).map(|id| (&unknown, [9, 9, 9, 9, id])));
        let answers: Vec<_> = texts.map(|(turn, ids)| (submit_in(&engine, turn, &ids), ids)).collect();
        control.release();
        raw(blocker).unwrap();
        for (answer, ids) in answers {
            assert_eq!(raw(answer), Ok(vec![score(&ids)]));
        }
        assert_eq!(control.batch_sizes(), [1, 1, 1, 4, 4]);
    }

    #[test]
    fn a_nan_fails_its_own_text_only() {
        let control = Control::default();
        let engine = Engine::start(control.backend(), limits(100), ModelMetrics::default()).unwrap();
        control.hold();
        let answers = [submit(&engine, &[9]), submit(&engine, &[10, NAN]), submit(&engine, &[10, 11])];
        control.release();
        let wanted = [Ok(vec![score(&[9])]), Err(Error::MissingValues), Ok(vec![score(&[10, 11])])];
        assert_eq!(answers.map(raw), wanted);
    }

    #[test]
    fn a_text_gets_the_outputs_that_are_wanted_of_it() {
        let engine =
            Engine::start(Control::default().backend(), limits(100), ModelMetrics::default()).unwrap();
        let both = Wanted { whole: true, tokens: true, sparse: false };
        let wanted = [Wanted::WHOLE, Wanted::TOKENS, both, Wanted::SPARSE];
        let answers = wanted.map(|wanted| {
            let (reply, answer) = oneshot::channel();
            engine.announce(&engine.turn()).submit(Text::new([10, 11, 12], wanted), reply);
            answer
        });
        let whole = vec![score(&[10, 11, 12])];
        let tokens =
            TokenVectors { values: vec![score(&[10]), score(&[10, 11]), score(&[10, 11, 12])], width: 1 };
        let sparse = testing::sparse(&[10, 11, 12]);
        let outputs = answers.map(|answer| answer.blocking_recv().unwrap().unwrap().output);
        let expected = [
            Output::whole(whole.clone()),
            Output { tokens: tokens.clone(), ..Output::default() },
            Output { tokens, ..Output::whole(whole) },
            Output { sparse, ..Output::default() },
        ];
        assert_eq!(outputs, expected);
    }

    #[test]
    fn a_backend_that_forgets_a_text_is_an_error() {
        let engine =
            Engine::start(Control::default().backend(), limits(100), ModelMetrics::default()).unwrap();
        let error = raw(submit(&engine, &[BREAK])).unwrap_err();
        assert_eq!(error, Error::Inference("the backend gave 0 answers for 1 text".to_owned()));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_a_probe_finds_the_recovery() {
        let control = Control::default();
        let engine = Engine::start(control.backend(), limits(100), ModelMetrics::default()).unwrap();
        assert!(engine.healthy().await);
        assert_eq!(control.batch_sizes().len(), 0, "a healthy engine needs no probe");
        let error = submit(&engine, &[PANIC]).await.unwrap().unwrap_err();
        assert_eq!(error, Error::Inference("the backend panicked: token 2".to_owned()));
        control.fail_all(true);
        assert!(!engine.healthy().await);
        control.fail_all(false);
        assert!(engine.healthy().await);
        let batches = control.batch_sizes().len();
        assert!(engine.healthy().await);
        assert_eq!(control.batch_sizes().len(), batches, "a recovered engine needs no probe");
        assert_eq!(submit(&engine, &[7, 8]).await.unwrap().unwrap().output.whole, [score(&[7, 8])]);
    }

    #[tokio::test]
    async fn a_batch_without_a_single_number_is_reason_for_a_probe() {
        let control = Control::default();
        let engine = Engine::start(control.backend(), limits(100), ModelMetrics::default()).unwrap();
        control.hold();
        let answers = [submit(&engine, &[9]), submit(&engine, &[10, NAN])];
        control.release();
        for answer in answers {
            let _ = answer.await.unwrap();
        }
        let batches = control.batch_sizes().len();
        assert_eq!(submit(&engine, &[NAN]).await.unwrap().unwrap_err(), Error::MissingValues);
        assert!(engine.healthy().await, "it was the text");
        assert_eq!(control.batch_sizes().len(), batches + 2, "a probe said so");
        control.answer_nan(true);
        assert_eq!(submit(&engine, &[9]).await.unwrap().unwrap_err(), Error::MissingValues);
        assert!(!engine.healthy().await, "so does the probe's answer");
        control.answer_nan(false);
        assert!(engine.healthy().await);
    }

    #[test]
    fn what_nobody_waits_for_is_not_computed() {
        let control = Control::default();
        let (engine, blocker) = busy(&control, 1);
        let answers: Vec<_> = (10..20).map(|id| submit(&engine, &[id])).collect();
        let kept: Vec<_> = answers.into_iter().enumerate().filter(|(index, _)| index % 2 == 0).collect();
        control.release();
        raw(blocker).unwrap();
        for (index, answer) in kept {
            assert_eq!(raw(answer), Ok(vec![score(&[10 + index as u32])]));
        }
        drop(engine);
        assert_eq!(control.batch_sizes(), [1; 6]);
    }

    #[test]
    fn what_was_submitted_is_answered_though_the_engine_is_dropped() {
        let control = Control::default();
        let engine = Engine::start(control.backend(), limits(3), ModelMetrics::default()).unwrap();
        control.hold();
        let mut answers: Vec<_> = (10..30).map(|id| (id, submit(&engine, &[id]))).collect();
        let late = engine.announce(&engine.turn());
        let closing = thread::spawn(move || drop(engine));
        control.release();
        let (reply, answer) = oneshot::channel();
        thread::sleep(Duration::from_millis(20));
        late.submit(Text::new([30], Wanted::WHOLE), reply);
        answers.push((30, answer));
        for (id, answer) in answers {
            assert_eq!(raw(answer), Ok(vec![score(&[id])]));
        }
        closing.join().unwrap();
    }

    #[test]
    fn what_waits_for_a_tokenizer_is_in_the_gauges_too() {
        let control = Control::default();
        let (engine, blocker) = busy(&control, 4);
        let gauges = || {
            let read = recorded(|| engine.gauges().publish_gauges());
            [QUEUE_SIZE, QUEUE_TOKENS, QUEUE_OLDEST_AGE, DEVICE_BUSY].map(|name| read[name][0])
        };
        let [size, tokens, age, busy] = gauges();
        assert!([size, tokens, age].iter().all(|gauge| *gauge == 0.0) && busy > 0.0, "{busy}");
        let (first, second) = (engine.turn(), engine.turn());
        thread::sleep(Duration::from_millis(2));
        let [early, late] = [engine.announce(&first), engine.announce(&second)];
        let (reply, answer) = oneshot::channel();
        late.submit(Text::new([7, 8], Wanted::WHOLE), reply);
        let [size, tokens, age, later] = gauges();
        assert!((size, tokens) == (2.0, 2.0) && age >= 0.002 && later > busy, "{age} {busy} {later}");
        drop(early);
        assert!((gauges()[0] - 1.0).abs() < f64::EPSILON);
        control.release();
        raw(blocker).unwrap();
        raw(answer).unwrap();
        assert!(gauges()[..3].iter().all(|gauge| *gauge == 0.0));
    }

    #[test]
    fn a_text_that_is_announced_and_never_comes_holds_nobody_up() {
        let engine =
            Engine::start(Control::default().backend(), limits(100), ModelMetrics::default()).unwrap();
        let never = engine.announce(&engine.turn());
        assert_eq!(raw(submit(&engine, &[9])), Ok(vec![score(&[9])]));
        drop(never);
    }

    #[test]
    fn a_text_without_tokens_is_refused() {
        let engine =
            Engine::start(Control::default().backend(), limits(100), ModelMetrics::default()).unwrap();
        assert_eq!(raw(submit(&engine, &[])), Err(Error::EmptyInput { field: "inputs" }));
        assert_eq!(raw(submit(&engine, &[9])), Ok(vec![score(&[9])]));
    }
}
