//! The device thread: takes batch after batch, has the backend compute it, and has each text answered.
//!
//! Input: the shared state and the backend. Output: each text's outcome or error. What must hold: each text
//! that leaves the queue is answered exactly once; a failed batch fails its own texts and no others. If a
//! batch of several texts does not fit the device's memory, it is computed again in two halves, each of them
//! once. When the device is lost, the thread ends.

use super::{
    answers::{BatchAnswers, Sender},
    state::{Next, Shared},
};
use crate::{
    error::Error,
    guard::panic_message,
    metrics::{
        BATCH_NEXT_SIZE, BATCH_NEXT_TOKENS, BATCH_OUT_OF_MEMORY, BATCH_TOKENS_COMPUTED, ModelMetrics,
        PREFIX_CACHE_BYTES, PREFIX_CACHE_HITS, PREFIX_CACHE_TOKENS, PREFIX_SHARED_TOKENS,
    },
    queue::{BatchLimits, Entry, NextBatch},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{Backend, BackendError, Batch, Output, Predictions, Reused, amount};

#[derive(Debug)]
pub(super) struct Work {
    pub(super) batch: NextBatch,
    /// Whether it is half of a batch that did not fit the device's memory. It is not halved again.
    pub(super) is_half: bool,
}

/// Why a batch has no predictions.
#[derive(Debug)]
enum BatchFailure {
    /// The device has too little memory for the batch. Holds the device's own message.
    OutOfMemory(String),
    /// The device computes nothing any more. Holds the device's own message.
    Lost(String),
    Other(Error),
}

impl Shared {
    /// Computes batch after batch, until the engine is dropped and nothing waits, or the device is lost.
    pub(super) fn run(&self, backend: &mut dyn Backend, limits: BatchLimits, sender: &Sender) {
        while !self.is_lost()
            && let Some(work) = self.wait_for_work(limits, |text| backend.known_tokens(text))
        {
            self.compute(backend, limits, work, sender);
        }
    }

    fn compute(&self, backend: &mut dyn Backend, limits: BatchLimits, work: Work, sender: &Sender) {
        let Work { batch: NextBatch { batch, entries }, is_half } = work;
        let start = Instant::now();
        let (texts, unique_tokens) = (entries.len(), batch.token_ids().len());
        let tokens = entries.iter().map(|entry| entry.text.ids.len()).sum();
        if !is_half {
            self.metrics.observe_amount(BATCH_NEXT_SIZE, texts);
            self.metrics.observe_amount(BATCH_NEXT_TOKENS, unique_tokens);
            self.metrics.count_many(PREFIX_SHARED_TOKENS, tokens - unique_tokens);
        }
        self.lock().begin(start, entries);
        let result = predict(backend, &batch);
        let inference = start.elapsed();
        let waited = result.as_ref().map_or(Duration::ZERO, |found| found.waited);
        let is_halved = texts > 1 && !is_half && matches!(result, Err(BatchFailure::OutOfMemory(_)));
        if !is_halved {
            // Broken weights give answers, but no answer is a number. The probe finds out whether the text
            // was to blame.
            let is_useless = result.as_ref().is_ok_and(|found| found.texts.iter().all(Output::has_nan));
            self.unhealthy.store(result.is_err() || is_useless, Ordering::Release);
        }
        let (entries, has_work, is_next_due) = {
            let mut state = self.lock();
            let entries = state.end(inference, waited, tokens);
            (entries, state.has_work(), matches!(state.next(limits), Next::Compute))
        };
        if !is_next_due && !is_halved {
            backend.begin_rest();
        }
        let outputs = match result {
            Ok(predictions) => {
                observe(&batch, predictions.reused, &self.metrics);
                Ok(predictions.texts)
            }
            Err(BatchFailure::OutOfMemory(reason)) => {
                self.metrics.count_many(BATCH_OUT_OF_MEMORY, 1);
                if is_halved {
                    tracing::warn!(
                        texts,
                        tokens = unique_tokens,
                        %reason,
                        "the device ran out of memory: the batch is computed again in two halves"
                    );
                    self.lock().halves.extend(half_batches(entries));
                    return;
                }
                tracing::error!(texts, tokens = unique_tokens, %reason, "a batch failed: out of memory");
                Err(Error::Inference(format!(
                    "out of memory on the device: lower `--max-batch-tokens`, or `--max-input-length` if one text \
                     alone is too long (texts: {texts}, tokens: {unique_tokens})"
                )))
            }
            Err(BatchFailure::Lost(reason)) => {
                tracing::error!(
                    "the device is lost: {reason}: requests are refused from now on, and the process ends"
                );
                self.lose();
                Err(Error::DeviceLost)
            }
            Err(BatchFailure::Other(error)) => {
                tracing::error!(texts, %error, "a batch failed");
                Err(error)
            }
        };
        let (start, inference) = (start + waited, inference.saturating_sub(waited));
        let answers = BatchAnswers { entries, outputs, start, inference };
        // Waking the waiting tasks takes as long as forming a batch. If no batch comes next, another thread
        // would only delay the answers.
        if has_work { sender.send(answers) } else { answers.send() }
    }
}

/// Counts the tokens that a batch computed, and those that it found in the cache.
fn observe(batch: &Batch, reused: Reused, metrics: &ModelMetrics) {
    metrics.count_many(BATCH_TOKENS_COMPUTED, batch.token_ids().len() - reused.tokens);
    metrics.count_many(PREFIX_CACHE_HITS, reused.texts);
    metrics.count_many(PREFIX_CACHE_TOKENS, reused.tokens);
    metrics.set_amount(PREFIX_CACHE_BYTES, reused.bytes);
}

/// Runs the forward pass. Every other failure in it, panics included, becomes an [`Error::Inference`].
fn predict(backend: &mut dyn Backend, batch: &Batch) -> Result<Predictions, BatchFailure> {
    let texts = batch.leaves().len();
    let failed = |reason| Err(BatchFailure::Other(Error::Inference(reason)));
    match catch_unwind(AssertUnwindSafe(|| backend.predict(batch))) {
        Ok(Ok(predictions)) if predictions.texts.len() == texts => Ok(predictions),
        Ok(Ok(predictions)) => {
            let answers = amount(predictions.texts.len(), "answer");
            failed(format!("the backend gave {answers} for {}", amount(texts, "text")))
        }
        Ok(Err(BackendError::OutOfMemory(reason))) => Err(BatchFailure::OutOfMemory(reason)),
        Ok(Err(BackendError::DeviceLost(reason))) => Err(BatchFailure::Lost(reason)),
        Ok(Err(error)) => failed(error.to_string()),
        Err(panic) => failed(format!("the backend panicked: {}", panic_message(panic.as_ref()))),
    }
}

/// Cuts a batch of at least two texts so that each side has about half of its tokens. The order stays.
fn half_batches(mut entries: Vec<Entry>) -> [Vec<Entry>; 2] {
    let lengths: Vec<usize> = entries.iter().map(|entry| entry.text.ids.len()).collect();
    let second = entries.split_off(middle_text(&lengths).min(entries.len()));
    [entries, second]
}

/// The number of texts in the first half of a batch whose texts have these lengths.
fn middle_text(lengths: &[usize]) -> usize {
    let total: usize = lengths.iter().sum();
    let mut before = 0;
    let distances = lengths.iter().map(|length| {
        before += length;
        (2 * before).abs_diff(total)
    });
    // Each half has a text.
    let cuts = (1..lengths.len()).zip(distances);
    cuts.min_by_key(|(_, distance)| *distance).map_or(0, |(texts, _)| texts)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::{
        infer::testing::{Control, FAIL, score},
        metrics::testing::recorded,
        queue::Outcome,
    };
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::{BatchBuilder, Packing, Text, Wanted};
    use tokio::sync::oneshot;

    type Reply = oneshot::Receiver<Result<Outcome, Error>>;

    /// An engine's state in which these texts of one request wait; nothing more will come.
    fn waiting(texts: &[Vec<u32>]) -> (Shared, Vec<Reply>) {
        let shared = Shared::default();
        let turn = shared.lock().queue.turn();
        let answers = texts.iter().map(|ids| {
            let (reply, answer) = oneshot::channel();
            let (text, turn) = (Text::new(&ids[..], Wanted::WHOLE), turn.clone());
            shared.lock().queue.push(Entry { text, turn, reply, enqueued: Instant::now() });
            answer
        });
        let answers = answers.collect();
        shared.lock().closed = true;
        (shared, answers)
    }

    /// Computes all waiting texts in this thread, so that a test sees the metrics.
    fn run(shared: &Shared, control: &Control, max_batch_tokens: usize) {
        let limits = BatchLimits {
            packing: Packing::SHARED,
            max_batch_tokens,
            max_input_length: max_batch_tokens,
            max_batch_requests: None,
        };
        shared.run(control.backend().as_mut(), limits, &Sender::without_thread());
    }

    fn raw(mut answer: Reply) -> Result<Vec<f32>, Error> {
        answer.try_recv().unwrap().map(|outcome| outcome.output.whole)
    }

    fn is_out_of_memory(answer: &Result<Vec<f32>, Error>, what: &str) -> bool {
        let advice = "out of memory on the device: lower `--max-batch-tokens`, or `--max-input-length` if one text alone";
        matches!(answer, Err(Error::Inference(message)) if message.starts_with(advice) && message.contains(what))
    }

    #[test]
    fn a_batch_that_does_not_fit_is_computed_in_two_halves() {
        let control = Control::default();
        control.leave_room_for(6);
        let texts = [vec![10, 11], vec![12, 13], vec![14, 15, 16, 17], vec![18, 19]];
        let (shared, answers) = waiting(&texts);
        let counted = recorded(|| run(&shared, &control, 10));
        assert_eq!(counted[BATCH_OUT_OF_MEMORY], [1.0]);
        assert_eq!(counted[BATCH_TOKENS_COMPUTED], [10.0]);
        assert_eq!((&counted[BATCH_NEXT_SIZE], &counted[BATCH_NEXT_TOKENS]), (&vec![4.0], &vec![10.0]));
        for (answer, ids) in answers.into_iter().zip(&texts) {
            assert_eq!(raw(answer), Ok(vec![score(ids)]));
        }
        assert_eq!(control.batch_sizes(), [4, 2, 2]);
        assert!(!shared.unhealthy.load(Ordering::Acquire), "all texts were computed");
    }

    #[test]
    fn a_batch_is_measured_with_its_shared_tokens() {
        let (shared, answers) = waiting(&[vec![1, 2, 3], vec![1, 2, 4], vec![9]]);
        let counted = recorded(|| run(&shared, &Control::default(), 5));
        drop(answers);
        for (name, expected) in
            [(BATCH_NEXT_SIZE, 3.0), (BATCH_NEXT_TOKENS, 5.0), (PREFIX_SHARED_TOKENS, 2.0)]
        {
            assert_eq!(counted[name], [expected], "{name}");
        }
    }

    #[test]
    fn the_backend_rests_when_nothing_waits_and_a_wait_is_no_inference() {
        let waited = Duration::from_secs(5);
        for (room, batches) in [(10, 3), (2, 7)] {
            let control = Control::default();
            control.leave_room_for(room);
            control.claim_wait(waited);
            let texts: Vec<Vec<u32>> = (10..16).map(|id| vec![id, id]).collect();
            let (shared, answers) = waiting(&texts[..5]);
            run(&shared, &control, 4);
            assert_eq!((control.batch_sizes().len(), control.count_rests()), (batches, 1));
            assert!(shared.lock().busy() < waited, "waits do not count, failed passes do");
            for mut answer in answers {
                let Outcome { queue, inference, .. } = answer.try_recv().unwrap().unwrap();
                assert!(queue >= waited && inference.is_zero(), "{queue:?} {inference:?}");
            }
        }
    }

    #[test]
    fn a_half_that_does_not_fit_fails_and_is_not_cut_again() {
        let control = Control::default();
        control.leave_room_for(4);
        // Halves of six and of four tokens.
        let texts = [vec![10, 11, 12], vec![13, 14, 15], vec![16, 17], vec![18, 19]];
        let (shared, answers) = waiting(&texts);
        let counted = recorded(|| run(&shared, &control, 10));
        assert_eq!(counted[BATCH_OUT_OF_MEMORY], [2.0]);
        let answers: Vec<_> = answers.into_iter().map(raw).collect();
        for answer in &answers[..2] {
            assert!(is_out_of_memory(answer, "texts: 2, tokens: 6"), "{answer:?}");
        }
        assert_eq!(answers[2..], [Ok(vec![score(&[16, 17])]), Ok(vec![score(&[18, 19])])]);
        assert_eq!(control.batch_sizes(), [4, 2, 2]);
        assert!(!shared.unhealthy.load(Ordering::Acquire), "the last batch gave answers");
        // In the other order, the last batch would fail, and a health probe would decide.
        let (shared, answers) = waiting(&[vec![16, 17], vec![18, 19], vec![10, 11, 12], vec![13, 14, 15]]);
        run(&shared, &control, 10);
        assert_eq!(
            answers.into_iter().map(|answer| raw(answer).is_ok()).collect::<Vec<_>>(),
            [true, true, false, false]
        );
        assert!(shared.unhealthy.load(Ordering::Acquire));
    }

    #[test]
    fn a_single_text_that_does_not_fit_is_computed_once() {
        let control = Control::default();
        control.leave_room_for(4);
        let (shared, mut answers) = waiting(&[vec![10, 11, 12, 13, 14]]);
        let counted = recorded(|| run(&shared, &control, 10));
        assert_eq!(counted[BATCH_OUT_OF_MEMORY], [1.0]);
        let answer = raw(answers.remove(0));
        assert!(is_out_of_memory(&answer, "texts: 1, tokens: 5"), "{answer:?}");
        assert_eq!(control.batch_sizes(), [1]);
    }

    #[test]
    fn a_half_may_fail_otherwise_and_what_nobody_waits_for_is_not_computed_again() {
        let control = Control::default();
        control.leave_room_for(4);
        let (shared, mut answers) = waiting(&[vec![10, 11], vec![FAIL, 12], vec![13, 14], vec![15, 16]]);
        let gone = control.clone();
        control.hold();
        std::thread::scope(|scope| {
            scope.spawn(|| run(&shared, &control, 10));
            gone.wait_for_batches(1);
            // Two clients go away while the device finds out that the batch is too large.
            drop(answers.remove(2));
            drop(answers.remove(0));
            gone.release();
        });
        let failure = Error::Inference("inference failed: token 1".to_owned());
        assert_eq!(raw(answers.remove(0)), Err(failure));
        assert_eq!(raw(answers.remove(0)), Ok(vec![score(&[15, 16])]));
        assert_eq!(control.batch_sizes(), [4, 1, 1]);
    }

    #[test]
    fn when_a_half_is_given_up_so_is_the_other() {
        let control = Control::default();
        control.leave_room_for(2);
        control.hold_after(1);
        let (shared, answers) = waiting(&[vec![10, 11], vec![12, 13]]);
        let hung = Error::Inference("the device hangs".to_owned());
        std::thread::scope(|scope| {
            scope.spawn(|| run(&shared, &control, 10));
            control.wait_for_batches(2);
            shared.give_up(&hung);
            control.release();
        });
        assert!(answers.into_iter().all(|answer| raw(answer) == Err(hung.clone())));
        assert_eq!(control.batch_sizes(), [2, 1], "the second half was not computed");
    }

    #[test]
    fn whatever_fits_every_text_is_answered_once_with_its_own_score() {
        let mut rng = StdRng::seed_from_u64(8);
        for _ in 0..200 {
            let control = Control::default();
            let room = rng.random_range(1..30);
            control.leave_room_for(room);
            let texts: Vec<Vec<u32>> = (0..rng.random_range(1..20))
                .map(|_| (0..rng.random_range(1..12)).map(|_| rng.random_range(10..13)).collect())
                .collect();
            let (shared, answers) = waiting(&texts);
            run(&shared, &control, rng.random_range(1..60));
            for (answer, ids) in answers.into_iter().zip(&texts) {
                let answer = raw(answer);
                assert!(answer == Ok(vec![score(ids)]) || is_out_of_memory(&answer, ""), "{answer:?}");
                assert!(answer.is_ok() || ids.len() > room || texts.len() > 1, "it fits alone");
            }
            assert!(shared.lock().halves.is_empty());
        }
    }

    #[test]
    fn a_batch_is_cut_where_half_of_its_tokens_are_on_each_side() {
        for (lengths, first) in [
            (&[1, 1][..], 1),
            (&[1, 1, 1], 1),
            (&[1, 1, 1, 1], 2),
            (&[100, 1, 1], 1),
            (&[1, 1, 100], 2),
            (&[3, 3, 4, 10], 3),
            (&[4, 3, 3, 4], 2),
        ] {
            assert_eq!(middle_text(lengths), first, "{lengths:?}");
        }
        assert!(half_batches(Vec::new()).iter().all(Vec::is_empty), "of a batch that was given up");
    }

    #[test]
    fn what_was_not_computed_does_not_count_as_computed() {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for ids in [&[1, 2, 3][..], &[1, 2, 4, 5]] {
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        let counted = recorded(|| {
            observe(&builder.build(), Reused { texts: 2, tokens: 2, bytes: 77 }, &ModelMetrics::default());
        });
        for (name, wanted) in [
            (BATCH_TOKENS_COMPUTED, 3.0),
            (PREFIX_CACHE_HITS, 2.0),
            (PREFIX_CACHE_TOKENS, 2.0),
            (PREFIX_CACHE_BYTES, 77.0),
        ] {
            assert_eq!(counted[name], [wanted], "{name}");
        }
    }
}
