//! The state that an engine's threads share: the queue behind its lock, and the state of the device.
//!
//! Input: announced and submitted texts. Output: the next step of the device thread. What must hold: every
//! waiting text is answered, even when the device hangs or is lost; once the device is lost, every new text
//! gets [`Error::DeviceLost`].

use super::{answers::fail, device::Work};
use crate::{
    error::Error,
    metrics::ModelMetrics,
    queue::{BatchLimits, Entry, NextBatch, Queue, Turn},
};
use std::{
    collections::{BTreeMap, VecDeque, btree_map},
    ops::RangeInclusive,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{Packing, Text};
use tokio::sync::watch;

/// How long a text waits at most, on an idle device, for texts that a tokenizer still encodes: a batch
/// without them would compute their shared prefix a second time. It is a tenth of the last batch's forward
/// pass, within these bounds.
pub(super) const ENCODING_GRACE: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(100);
/// The same if the shared prefix is longer than a batch may be. Computing that again takes many seconds.
const LONG_GRACE: Duration = Duration::from_secs(1);
/// Each new batch multiplies the weight of all earlier ones by this, in the speed of the last batches.
const FADING: f64 = 0.9;

/// The engine's state, shared by all of its threads and by the tasks that submit texts.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) metrics: ModelMetrics,
    pub(super) state: Mutex<State>,
    /// Notified when a text is submitted or withdrawn, and when the engine closes.
    pub(super) changed: Condvar,
    /// Whether the last batch failed, or gave no number.
    pub(super) unhealthy: AtomicBool,
    /// Whether the device is lost. Changes only while `state` is locked, so that every text is either drained
    /// or refused.
    pub(super) lost: watch::Sender<bool>,
}

/// The state behind the lock.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) announced: AnnouncedTexts,
    /// The halves of a batch that did not fit the device's memory. They are computed before the queue's
    /// texts.
    pub(super) halves: VecDeque<Vec<Entry>>,
    pub(super) closed: bool,
    pub(super) last_inference: Duration,
    /// The time that the device computed the finished batches.
    busy: Duration,
    /// The longest time that [`Self::busy`] gave.
    shown_busy: Duration,
    /// The batch on the device.
    pub(super) computing: Option<Computing>,
    /// Tokens of the last batches, and the seconds that they took. Older batches count less.
    pub(super) recent: (f64, f64),
}

/// A batch on the device.
#[derive(Debug)]
pub(super) struct Computing {
    start: Instant,
    /// The entries of its texts, in its order; empty once the device was found to hang.
    entries: Vec<Entry>,
}

/// The texts that are announced but not yet in the queue.
#[derive(Debug, Default)]
pub(super) struct AnnouncedTexts {
    pub(super) count: usize,
    /// By request number: how many of its texts are announced, and when it arrived. A request without
    /// announced texts has no entry.
    requests: BTreeMap<u64, (usize, Instant)>,
}

impl AnnouncedTexts {
    pub(super) fn add(&mut self, turn: &Turn, texts: usize) {
        self.count += texts;
        self.requests.entry(turn.number).or_insert((0, turn.came)).0 += texts;
    }

    pub(super) fn remove(&mut self, turn: &Turn, texts: usize) {
        self.count -= texts;
        if let btree_map::Entry::Occupied(mut request) = self.requests.entry(turn.number) {
            request.get_mut().0 -= texts;
            if request.get().0 == 0 {
                request.remove();
            }
        }
    }
}

/// The next step of the device thread.
pub(super) enum Next {
    Compute,
    Wait,
    WaitAtMost(Duration),
    End,
}

impl State {
    /// The arrival of the earliest request that has a text waiting for a tokenizer or a batch.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let announced = self.announced.requests.values().next().map(|(_, came)| *came);
        announced.into_iter().chain(self.queue.first_turn().map(|turn| turn.came)).min()
    }

    /// The time that the device has computed, including the current batch. It never falls: a batch that turns
    /// out to have waited for other models was counted too long, and the next ones make up for it.
    pub(super) fn busy(&mut self) -> Duration {
        let current = self.computing.as_ref().map_or(Duration::ZERO, |now| now.start.elapsed());
        self.shown_busy = self.shown_busy.max(self.busy + current);
        self.shown_busy
    }

    /// How long the waiting texts will take, at the speed of the last batches.
    pub(super) fn backlog(&self) -> Duration {
        let (tokens, seconds) = self.recent;
        if tokens > 0.0 {
            Duration::from_secs_f64(self.queue.tokens() as f64 * seconds / tokens)
        } else {
            Duration::ZERO
        }
    }

    /// The next step of the device thread, unless the device is lost.
    pub(super) fn next(&self, limits: BatchLimits) -> Next {
        if !self.halves.is_empty() {
            return Next::Compute;
        }
        let Some(oldest) = self.queue.oldest() else {
            return if self.closed && self.announced.count == 0 { Next::End } else { Next::Wait };
        };
        let grace = if self.queue.long_beginning(limits) > 0 {
            LONG_GRACE
        } else {
            (self.last_inference / 10).clamp(*ENCODING_GRACE.start(), *ENCODING_GRACE.end())
        };
        let grace = grace.saturating_sub(oldest.elapsed());
        if self.announced.count == 0 || grace.is_zero() || self.queue.fills(limits) {
            Next::Compute
        } else {
            Next::WaitAtMost(grace)
        }
    }

    /// The next texts to compute; `None` if every waiting text was abandoned.
    fn take_work(&mut self, limits: BatchLimits, known: impl Fn(&Text) -> usize) -> Option<Work> {
        while let Some(entries) = self.halves.pop_front() {
            if let Some(batch) = awaited(entries, limits.packing) {
                return Some(Work { batch, is_half: true });
            }
        }
        let batch = self.queue.next_batch(limits, known)?;
        Some(Work { batch, is_half: false })
    }

    /// Records that the device begins to compute a batch.
    pub(super) fn begin(&mut self, start: Instant, entries: Vec<Entry>) {
        self.computing = Some(Computing { start, entries });
    }

    /// Whether texts wait to be computed.
    pub(super) fn has_work(&self) -> bool {
        !self.halves.is_empty() || self.queue.oldest().is_some()
    }

    /// Records that the device has computed a batch of `tokens` tokens, for `inference` with the time that it
    /// `waited` for other models, and returns the entries to answer.
    pub(super) fn end(&mut self, inference: Duration, waited: Duration, tokens: usize) -> Vec<Entry> {
        self.last_inference = inference;
        self.busy += inference.saturating_sub(waited);
        let (before, seconds) = self.recent;
        self.recent = (before * FADING + tokens as f64, seconds * FADING + inference.as_secs_f64());
        self.computing.take().map(|computing| computing.entries).unwrap_or_default()
    }

    /// Takes out all texts that will not be computed. The texts on the device come first.
    fn drain(&mut self) -> Vec<Entry> {
        let computing = self.computing.as_mut().map(|computing| std::mem::take(&mut computing.entries));
        let mut entries = computing.unwrap_or_default();
        entries.extend(self.halves.drain(..).flatten());
        entries.extend(self.queue.drain());
        entries
    }
}

/// A batch of the entries that still have a receiver; `None` if no entry has one.
fn awaited(mut entries: Vec<Entry>, packing: Packing) -> Option<NextBatch> {
    entries.retain(|entry| !entry.reply.is_closed());
    (!entries.is_empty()).then(|| NextBatch::again(entries, packing))
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Code under the lock never leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Waits for the next texts to compute; `None` if the engine is dropped and nothing waits any more.
    pub(super) fn wait_for_work(&self, limits: BatchLimits, known: impl Fn(&Text) -> usize) -> Option<Work> {
        let mut state = self.lock();
        loop {
            state = match state.next(limits) {
                Next::End => return None,
                Next::Compute => match state.take_work(limits, &known) {
                    // All waiting texts were abandoned.
                    None => state,
                    work => return work,
                },
                Next::Wait => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Next::WaitAtMost(time) => {
                    self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Answers every text of a batch that does not end, and every text that waits behind it, with `error`.
    pub(super) fn give_up(&self, error: &Error) {
        let waiting = self.lock().drain();
        fail(waiting, error);
    }

    /// Records that the device is lost, and answers all waiting texts. Later texts are refused.
    pub(super) fn lose(&self) {
        let waiting = {
            let mut state = self.lock();
            self.lost.send_replace(true);
            state.drain()
        };
        fail(waiting, &Error::DeviceLost);
    }

    /// How long the device has computed the current batch.
    pub(super) fn computes_for(&self) -> Option<Duration> {
        self.lock().computing.as_ref().map(|computing| computing.start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use text_embeddings_backend_core::Wanted;
    use tokio::sync::oneshot;

    fn announced_texts(count: usize) -> AnnouncedTexts {
        AnnouncedTexts { count, ..AnnouncedTexts::default() }
    }

    #[test]
    fn the_busy_time_never_falls_and_has_no_wait_for_other_models_in_the_end() {
        let mut state = State::default();
        let start = Instant::now().checked_sub(Duration::from_secs(9)).unwrap();
        state.begin(start, Vec::new());
        let while_it_waited = state.busy();
        assert!(while_it_waited >= Duration::from_secs(9));
        state.end(Duration::from_secs(9), Duration::from_secs(8), 1);
        assert_eq!(state.busy(), while_it_waited);
        state.end(Duration::from_secs(20), Duration::ZERO, 1);
        assert_eq!(state.busy(), Duration::from_secs(21));
    }

    #[test]
    fn a_batch_waits_for_announced_texts_unless_it_is_full_or_waited_enough() {
        let limits = BatchLimits {
            packing: Packing::SHARED,
            max_batch_tokens: 4,
            max_input_length: 0,
            max_batch_requests: Some(2),
        };
        let now = Instant::now() + Duration::from_secs(5);
        let long_ago = Instant::now().checked_sub(*ENCODING_GRACE.end()).unwrap();
        for (texts, reusable, enqueued, announced, waits) in [
            (vec![vec![1]], 0, now, 0, false),
            (vec![vec![1]], 0, now, 1, true),
            (vec![vec![1]], 0, long_ago, 1, false),
            (vec![vec![1, 2, 3, 4]], 0, now, 1, false),
            // A text's reusable tokens do not count towards a full batch.
            (vec![vec![1, 2, 3, 4, 5]], 2, now, 1, true),
            (vec![vec![1, 2, 3, 4, 5]], 5, now, 1, true),
            (vec![vec![1], vec![2]], 1, now, 1, false),
        ] {
            let mut state = State { announced: announced_texts(announced), ..State::default() };
            for ids in &texts {
                let (turn, (reply, _)) = (state.queue.turn(), oneshot::channel());
                let text = Text { reusable, ..Text::new(&ids[..], Wanted::WHOLE) };
                state.queue.push(Entry { text, turn, reply, enqueued });
            }
            match state.next(limits) {
                Next::Compute => assert!(!waits, "{texts:?}"),
                Next::WaitAtMost(time) => assert!(waits && time <= *ENCODING_GRACE.start(), "{texts:?}"),
                Next::Wait | Next::End => unreachable!("texts wait"),
            }
        }
        // For a beginning that is longer than a batch, if the longest input leaves room behind it.
        let mut state = State { announced: announced_texts(1), ..State::default() };
        let (turn, (reply, _)) = (state.queue.turn(), oneshot::channel());
        let text = Text { reusable: 4, ..Text::new([1, 2, 3, 4, 5], Wanted::WHOLE) };
        state.queue.push(Entry { text, turn, reply, enqueued: now });
        let roomy = BatchLimits { max_input_length: 10, ..limits };
        assert!(matches!(state.next(roomy), Next::WaitAtMost(time) if time == LONG_GRACE));
        for (closed, announced, ends) in [(false, 0, false), (true, 1, false), (true, 0, true)] {
            let state = State { announced: announced_texts(announced), closed, ..State::default() };
            assert_eq!(matches!(state.next(limits), Next::End), ends);
        }
    }
}
