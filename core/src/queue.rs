//! The texts that wait for the device, first in, first out, and the batches they leave in.
//!
//! Input: encoded texts with the channel that awaits their answer. Output: packed batches within a budget. What must
//! hold: every text whose receiver still waits leaves once, in the order of arrival; a text that nobody waits for is
//! never computed; when metrics are read, `te_queue_size` is the number of texts that somebody waits for. A plain struct: no runtime, no lock, no clock.

use crate::{
    error::Error,
    infer::Outcome,
    metrics::{
        BATCH_NEXT_SIZE, BATCH_NEXT_TOKENS, PREFIX_SHARED_TOKENS, QUEUE_SIZE, QUEUE_TOKENS, count_many,
        observe_amount, set,
    },
};
use std::{collections::VecDeque, time::Instant};
use text_embeddings_backend_core::{Batch, BatchBuilder, Text};
use tokio::sync::oneshot;

/// A text that waits.
#[derive(Debug)]
pub struct Entry {
    /// The text.
    pub text: Text,
    /// Where the answer goes. If its receiver is gone, the text is skipped.
    pub reply: oneshot::Sender<Result<Outcome, Error>>,
    /// When it joined the queue.
    pub enqueued: Instant,
}

/// How much one batch may hold.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Tokens of a batch, a prefix that several of its texts share counted once. A text that is longer on its own
    /// is a batch of its own.
    pub max_batch_tokens: usize,
    /// Texts of a batch; any number if absent.
    pub max_batch_requests: Option<usize>,
}

/// A batch that leaves the queue.
#[derive(Debug)]
pub struct NextBatch {
    /// The texts, packed.
    pub batch: Batch,
    /// The entries of the batch's texts, in its order.
    pub entries: Vec<Entry>,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    entries: VecDeque<Entry>,
    tokens: usize,
}

impl Queue {
    /// Appends a text. `entry.ids` must not be empty.
    pub fn push(&mut self, entry: Entry) {
        self.tokens += entry.text.ids.len();
        self.entries.push_back(entry);
    }

    /// Takes as many texts from the front as fit into a batch; none if nobody waits.
    pub fn next_batch(&mut self, limits: BatchLimits) -> Option<NextBatch> {
        let mut builder = BatchBuilder::default();
        let mut entries = Vec::new();
        while let Some(entry) = self
            .entries
            .pop_front_if(|entry| entry.reply.is_closed() || fits(&builder, &entry.text.ids, limits))
        {
            self.tokens -= entry.text.ids.len();
            if !entry.reply.is_closed() {
                builder.push(&entry.text);
                entries.push(entry);
            }
        }
        if entries.is_empty() {
            return None;
        }
        let (tokens, unique) =
            (entries.iter().map(|entry| entry.text.ids.len()).sum::<usize>(), builder.unique_tokens());
        observe_amount(BATCH_NEXT_SIZE, builder.texts());
        observe_amount(BATCH_NEXT_TOKENS, unique);
        count_many(PREFIX_SHARED_TOKENS, tokens - unique);
        Some(NextBatch { batch: builder.build(), entries })
    }

    /// Texts that wait, those included that nobody waits for any more but that are not thrown out yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no text waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Tokens of the texts that wait, each counted in full.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// When the text at the front joined the queue.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.enqueued)
    }

    /// Throws out the texts that nobody waits for, and sets the gauges to what is left: for the moment at which they
    /// are read.
    pub fn publish(&mut self) {
        self.entries.retain(|entry| !entry.reply.is_closed());
        self.tokens = self.entries.iter().map(|entry| entry.text.ids.len()).sum();
        set(QUEUE_SIZE, self.len());
        set(QUEUE_TOKENS, self.tokens);
    }
}

/// Whether a batch that is being built takes one more text. An empty one takes any, or a long text would block the
/// queue for ever.
fn fits(builder: &BatchBuilder, ids: &[u32], limits: BatchLimits) -> bool {
    builder.texts() == 0
        || (limits.max_batch_requests.is_none_or(|most| builder.texts() < most)
            && builder.unique_tokens() + builder.cost(ids) <= limits.max_batch_tokens)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::metrics::testing::recorded;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::time::Duration;
    use text_embeddings_backend_core::Wanted;

    type Receiver = oneshot::Receiver<Result<Outcome, Error>>;

    fn entry(ids: &[u32], enqueued: Instant) -> (Entry, Receiver) {
        let (reply, receiver) = oneshot::channel();
        (Entry { text: Text::new(ids, wanted(ids)), reply, enqueued }, receiver)
    }

    /// Something that differs between texts.
    fn wanted(ids: &[u32]) -> Wanted {
        if ids.len().is_multiple_of(2) { Wanted::Tokens } else { Wanted::Whole }
    }

    fn limits(max_batch_tokens: usize, max_batch_requests: Option<usize>) -> BatchLimits {
        BatchLimits { max_batch_tokens, max_batch_requests }
    }

    /// The ids of a batch's text, read back from its forest.
    fn text(batch: &Batch, index: usize) -> Vec<u32> {
        batch.rows_of(index).map(|row| batch.token_ids()[row]).collect()
    }

    #[test]
    fn a_batch_ends_where_the_next_text_does_not_fit() {
        // Sizes of the batches for the texts 1 2 3 | 1 2 4 | 5 6 | 1 2 3 7 8 9.
        let texts: [&[u32]; 4] = [&[1, 2, 3], &[1, 2, 4], &[5, 6], &[1, 2, 3, 7, 8, 9]];
        for (budget, most, wanted) in [
            (100, None, vec![4]),
            (9, None, vec![4]),
            (8, None, vec![3, 1]),
            (4, None, vec![2, 1, 1]),
            (1, None, vec![1, 1, 1, 1]),
            (100, Some(3), vec![3, 1]),
            (100, Some(0), vec![1, 1, 1, 1]),
        ] {
            let mut queue = Queue::default();
            let _receivers: Vec<_> = texts
                .iter()
                .map(|ids| {
                    let (entry, receiver) = entry(ids, Instant::now());
                    queue.push(entry);
                    receiver
                })
                .collect();
            assert_eq!((queue.len(), queue.tokens()), (4, 14));
            let sizes: Vec<_> =
                std::iter::from_fn(|| queue.next_batch(limits(budget, most)).map(|next| next.entries.len()))
                    .collect();
            assert_eq!(sizes, wanted, "budget {budget}, at most {most:?}");
            assert!(queue.is_empty() && queue.tokens() == 0 && queue.oldest().is_none());
        }
    }

    #[test]
    fn every_awaited_text_leaves_once_in_order_within_the_budget() {
        let start = Instant::now();
        let mut rng = StdRng::seed_from_u64(2);
        for _ in 0..300 {
            let limits =
                limits(rng.random_range(1..30), rng.random_bool(0.5).then(|| rng.random_range(1..6)));
            let mut queue = Queue::default();
            let (mut waiting, mut receivers) = (VecDeque::new(), Vec::new());
            for number in 0..rng.random_range(1..60) {
                let ids: Vec<u32> = (0..rng.random_range(1..12)).map(|_| rng.random_range(0..3)).collect();
                let (entry, receiver) = entry(&ids, start + Duration::from_nanos(number));
                queue.push(entry);
                if rng.random_bool(0.2) {
                    drop(receiver);
                } else {
                    waiting.push_back((ids, start + Duration::from_nanos(number)));
                    receivers.push(receiver);
                }
                if rng.random_bool(0.3) {
                    check_next(&mut queue, &mut waiting, limits);
                }
            }
            while check_next(&mut queue, &mut waiting, limits) {}
            assert!(waiting.is_empty() && queue.is_empty() && queue.tokens() == 0);
        }
    }

    /// Takes a batch and holds it to what `waiting` says must come; false if none came.
    fn check_next(
        queue: &mut Queue,
        waiting: &mut VecDeque<(Vec<u32>, Instant)>,
        limits: BatchLimits,
    ) -> bool {
        let Some(next) = queue.next_batch(limits) else {
            assert!(waiting.is_empty());
            return false;
        };
        let mut builder = BatchBuilder::default();
        for (index, entry) in next.entries.iter().enumerate() {
            let (ids, enqueued) = waiting.pop_front().unwrap();
            assert_eq!((&entry.text.ids, entry.enqueued), (&ids, enqueued));
            assert_eq!((text(&next.batch, index), next.batch.wanted()[index]), (ids.clone(), wanted(&ids)));
            builder.push(&Text::new(ids, Wanted::Whole));
        }
        let (size, tokens) = (next.entries.len(), next.batch.token_ids().len());
        let most = limits.max_batch_requests.unwrap_or(usize::MAX);
        assert_eq!(next.batch.leaves().len(), size);
        assert!(size == 1 || (tokens <= limits.max_batch_tokens && size <= most));
        if let Some((ids, _)) = waiting.front() {
            assert!(size >= most || tokens + builder.cost(ids) > limits.max_batch_tokens, "ended too early");
        }
        true
    }

    /// Sets the gauges and gives their values.
    fn scrape(queue: &mut Queue) -> [usize; 2] {
        let read = recorded(|| queue.publish());
        [QUEUE_SIZE, QUEUE_TOKENS].map(|name| read[name][0] as usize)
    }

    #[test]
    fn at_every_scrape_the_gauges_are_what_waits() {
        let mut rng = StdRng::seed_from_u64(4);
        let (mut queue, mut waiting) = (Queue::default(), VecDeque::<(usize, Receiver)>::new());
        for _ in 0..2000 {
            match rng.random_range(0..4) {
                0 | 1 => {
                    let (entry, receiver) = entry(&vec![7; rng.random_range(1..9)], Instant::now());
                    waiting.push_back((entry.text.ids.len(), receiver));
                    queue.push(entry);
                }
                // A client goes away, from any place in the queue.
                2 if !waiting.is_empty() => drop(waiting.remove(rng.random_range(0..waiting.len()))),
                _ => {
                    let taken = queue.next_batch(limits(100, Some(2))).map_or(0, |next| next.entries.len());
                    assert_eq!(taken, waiting.len().min(2));
                    waiting.drain(..taken);
                }
            }
            let wanted = [waiting.len(), waiting.iter().map(|(tokens, _)| tokens).sum()];
            assert_eq!(scrape(&mut queue), wanted);
            assert_eq!([queue.len(), queue.tokens()], wanted);
        }
    }

    #[test]
    fn a_batch_is_observed_once_with_what_it_computes_and_what_it_shares() {
        let (first, first_receiver) = entry(&[1, 2, 3], Instant::now());
        let (second, _second_receiver) = entry(&[1, 2, 4], Instant::now());
        let (third, _third_receiver) = entry(&[1, 2, 4, 5, 6], Instant::now());
        let (fourth, _fourth_receiver) = entry(&[9], Instant::now());
        let mut queue = Queue::default();
        for entry in [first, second, third, fourth] {
            queue.push(entry);
        }
        drop(first_receiver);
        let taken = recorded(|| {
            assert!(queue.next_batch(limits(5, None)).is_some());
        });
        for (name, wanted) in [(BATCH_NEXT_SIZE, 2.0), (BATCH_NEXT_TOKENS, 5.0), (PREFIX_SHARED_TOKENS, 3.0)]
        {
            assert_eq!(taken[name], [wanted], "{name}");
        }
        let nothing = recorded(|| {
            assert!(queue.next_batch(limits(5, None)).is_some());
            assert!(queue.next_batch(limits(5, None)).is_none());
        });
        assert_eq!((&nothing[BATCH_NEXT_SIZE], &nothing[PREFIX_SHARED_TOKENS]), (&vec![1.0], &vec![0.0]));
    }
}
