//! The texts that wait for the device, and the batches that they leave in.
//!
//! Input: encoded texts, each with the channel for its answer. Output: packed batches within a budget. What
//! must hold: every text whose receiver still waits leaves once, after the earlier texts of its request; an
//! abandoned text is never computed; when metrics are read, `te_queue_size` is the number of texts that still
//! have a receiver, including texts that a tokenizer has not encoded yet. A plain struct: no runtime, no
//! lock, and no clock except the count of tokens that have left.
//!
//! Texts leave in the order of their requests' [`Turn`]s. A small request need not wait for the end of a
//! large one that came just before it, and a large one is not put off for ever. Every batch begins with the
//! first text of the request whose turn it is. Once `PATIENCE · n` tokens have left the queue since a request
//! of `n` tokens arrived, no new arrival is put before that request.

use crate::error::Error;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{Batch, BatchBuilder, Output, Packing, Text};
use tokio::sync::oneshot;

/// Smaller new requests may overtake a request of `n` tokens until `PATIENCE · n` tokens have left the queue
/// since it arrived. With 1, every request waits behind the backlog as soon as there is one. With more than
/// 8, hardly any answer comes sooner, and large requests wait longer (simulated: short pairs among requests
/// of 32 and of 8 long texts, at half and four fifths of the load that the device can bear).
pub(crate) const PATIENCE: u64 = 8;

/// A request's place in the order in which texts are computed. Its texts share it.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The number of requests that came before it.
    pub(crate) number: u64,
    /// The number of tokens that had left the queue when it came.
    arrived: u64,
    /// The tokens of its submitted texts.
    tokens: AtomicU64,
    pub(crate) came: Instant,
    /// Whether one of its texts has left the queue.
    pub(crate) begun: AtomicBool,
    /// Whether the request has ended. Changes only while the queue is locked.
    pub(crate) withdrawn: AtomicBool,
}

impl Turn {
    /// Small requests that arrive before this many tokens have left the queue may overtake it.
    fn due(&self) -> u64 {
        self.arrived + PATIENCE * self.tokens.load(Ordering::Relaxed)
    }
}

/// The result of one text.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The outputs that were requested. No value is NaN.
    pub output: Output,
    /// The time from joining the queue to the start of the forward pass.
    pub queue: Duration,
    /// The time of the whole batch's forward pass.
    pub inference: Duration,
}

/// A text that waits.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) text: Text,
    /// The place of its request.
    pub(crate) turn: Arc<Turn>,
    /// The channel for the answer. If its receiver is gone, the text is skipped.
    pub(crate) reply: oneshot::Sender<Result<Outcome, Error>>,
    /// When it joined the queue.
    pub(crate) enqueued: Instant,
}

/// How texts are packed into a batch, and the batch's limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    /// Whether texts of a batch share prefixes, which the backend decides.
    pub(crate) packing: Packing,
    /// Unique tokens per batch. A shared prefix counts once; tokens that the backend has cached for the first
    /// text do not count. A text that is longer than this is only computed with texts that share its
    /// beginning, or alone.
    pub(crate) max_batch_tokens: usize,
    /// The longest input. No batch is made longer than this for the sake of a shared beginning.
    pub(crate) max_input_length: usize,
    /// Texts per batch; unlimited if absent.
    pub(crate) max_batch_requests: Option<usize>,
}

impl BatchLimits {
    /// The limits of a batch that begins with this text, whose first `known` tokens the backend has cached.
    ///
    /// Known tokens of the first text are free: otherwise a long query, which all of a request's texts share,
    /// would leave hardly any room for them. Only the first text's tokens are free, because known tokens take
    /// memory, too.
    ///
    /// If the text is longer than the budget even so, texts that share its beginning may double the work on
    /// that beginning. Otherwise each of them would be a batch of its own, which computes the beginning again
    /// if it is too long to be cached.
    fn limits_behind(self, first: &Text, known: usize) -> Self {
        let budget = self.max_batch_tokens;
        let mut tokens = budget.saturating_add(known);
        if self.packing.shares_prefixes && first.ids.len() > tokens {
            let unknown = first.reusable.saturating_sub(known);
            let own = unknown.max(budget);
            let with_others = known.saturating_add(unknown).saturating_add(own);
            tokens = tokens.max(with_others.min(self.max_input_length));
        }
        Self { max_batch_tokens: tokens, ..self }
    }
}

/// A batch that leaves the queue.
#[derive(Debug)]
pub(crate) struct NextBatch {
    /// The texts, packed.
    pub(crate) batch: Batch,
    /// The entries of the batch's texts, in its order.
    pub(crate) entries: Vec<Entry>,
}

impl NextBatch {
    /// A batch of texts that have already left the queue.
    pub(crate) fn again(entries: Vec<Entry>, packing: Packing) -> Self {
        let mut builder = BatchBuilder::new(packing);
        for entry in &entries {
            builder.push(&entry.text);
        }
        Self { batch: builder.build(), entries }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The waiting texts, by the number of their request. A request without a text has no entry.
    requests: BTreeMap<u64, VecDeque<Entry>>,
    /// The number of waiting texts. Abandoned texts count until they are thrown out.
    texts: usize,
    /// The waiting texts' tokens, without regard to shared prefixes.
    tokens: usize,
    /// The number of requests that ever came.
    arrivals: u64,
    /// The number of tokens that ever left.
    left: u64,
}

impl Queue {
    /// The place of a request that arrives now.
    pub(crate) fn turn(&mut self) -> Arc<Turn> {
        self.arrivals += 1;
        let (number, arrived) = (self.arrivals, self.left);
        Arc::new(Turn {
            number,
            arrived,
            tokens: AtomicU64::new(0),
            came: Instant::now(),
            begun: AtomicBool::new(false),
            withdrawn: AtomicBool::new(false),
        })
    }

    /// Appends a text to the texts of its request. `entry.text.ids` must not be empty.
    pub(crate) fn push(&mut self, entry: Entry) {
        let tokens = entry.text.ids.len();
        self.texts += 1;
        self.tokens += tokens;
        entry.turn.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        self.requests.entry(entry.turn.number).or_default().push_back(entry);
    }

    /// Takes out the texts of a request that has ended. Its caller frees them.
    pub(crate) fn withdraw(&mut self, turn: &Turn) -> VecDeque<Entry> {
        turn.withdrawn.store(true, Ordering::Relaxed);
        let texts = self.requests.remove(&turn.number).unwrap_or_default();
        self.texts -= texts.len();
        self.tokens -= texts.iter().map(|entry| entry.text.ids.len()).sum::<usize>();
        texts
    }

    /// Takes texts that fit into a batch, request by request in the order of their turns; `None` if no text
    /// has a receiver. If a request's next text does not fit, texts of later requests still may. `known`
    /// gives the number of a text's first tokens that the backend need not compute.
    pub(crate) fn next_batch(
        &mut self,
        mut limits: BatchLimits,
        known: impl Fn(&Text) -> usize,
    ) -> Option<NextBatch> {
        let mut builder = BatchBuilder::new(limits.packing);
        let mut entries = Vec::new();
        for number in self.turn_order() {
            let Some(waiting) = self.requests.get_mut(&number) else { continue };
            while let Some(entry) = waiting.pop_front_if(|entry| {
                entry.reply.is_closed() || fits_batch(&builder, &entry.text.ids, limits)
            }) {
                self.texts -= 1;
                self.tokens -= entry.text.ids.len();
                if !entry.reply.is_closed() {
                    if entries.is_empty() {
                        limits = limits.limits_behind(&entry.text, known(&entry.text));
                    }
                    builder.push(&entry.text);
                    entry.turn.begun.store(true, Ordering::Relaxed);
                    entries.push(entry);
                }
            }
        }
        self.requests.retain(|_, waiting| !waiting.is_empty());
        if entries.is_empty() {
            return None;
        }
        self.left += entries.iter().map(|entry| entry.text.ids.len()).sum::<usize>() as u64;
        Some(NextBatch { batch: builder.build(), entries })
    }

    /// The numbers of the waiting requests, in the order of their turns.
    fn turn_order(&self) -> Vec<u64> {
        let turns = self.requests.values().filter_map(|waiting| waiting.front());
        let mut order: Vec<(u64, u64)> = turns.map(|entry| (entry.turn.due(), entry.turn.number)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, number)| number).collect()
    }

    /// Whether the waiting texts fill a batch. The tokens that a text may share with others of its request do
    /// not count, since most of these texts find them cached. At worst, a full batch is called one with room.
    pub(crate) fn fills(&self, limits: BatchLimits) -> bool {
        // As in `BatchLimits::limits_behind`, if nothing is known.
        let room = self.long_beginning(limits).max(limits.max_batch_tokens);
        let mut tokens = 0;
        limits.max_batch_requests.is_some_and(|max| self.texts >= max)
            || self.requests.values().flatten().any(|entry| {
                let shared = if limits.packing.shares_prefixes { entry.text.reusable } else { 0 };
                tokens += entry.text.ids.len().saturating_sub(shared).max(1);
                tokens >= room
            })
    }

    /// The own tokens for which a batch has room behind the beginning of the earliest text, if that text is
    /// longer than a batch may be; else 0.
    pub(crate) fn long_beginning(&self, limits: BatchLimits) -> usize {
        let first = self.requests.values().find_map(VecDeque::front);
        match first {
            Some(Entry { text, .. })
                if limits.packing.shares_prefixes && text.ids.len() > limits.max_batch_tokens =>
            {
                text.reusable.min(limits.max_input_length.saturating_sub(text.reusable))
            }
            _ => 0,
        }
    }

    /// When the longest-waiting text joined the queue.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.requests.values().filter_map(|waiting| Some(waiting.front()?.enqueued)).min()
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Takes out all texts. They will not be computed.
    pub(crate) fn drain(&mut self) -> Vec<Entry> {
        (self.texts, self.tokens) = (0, 0);
        std::mem::take(&mut self.requests).into_values().flatten().collect()
    }

    /// The earliest request that has a waiting text.
    pub(crate) fn first_turn(&self) -> Option<&Turn> {
        let (_, waiting) = self.requests.first_key_value()?;
        waiting.front().map(|entry| &*entry.turn)
    }

    /// The number of waiting texts, as last counted.
    pub(crate) fn waiting_texts(&self) -> usize {
        self.texts
    }

    /// Throws out abandoned texts and counts the others again. Called just before the metrics are read.
    pub(crate) fn drop_abandoned(&mut self) {
        self.requests.retain(|_, waiting| {
            waiting.retain(|entry| !entry.reply.is_closed());
            !waiting.is_empty()
        });
        self.texts = self.requests.values().map(VecDeque::len).sum();
        let waiting = self.requests.values().flatten();
        self.tokens = waiting.map(|entry| entry.text.ids.len()).sum();
    }
}

/// Whether a batch that is being built takes one more text. An empty batch takes any text; otherwise a long
/// text would block the queue for ever.
fn fits_batch(builder: &BatchBuilder, ids: &[u32], limits: BatchLimits) -> bool {
    builder.texts() == 0
        || (limits.max_batch_requests.is_none_or(|max| builder.texts() < max)
            && builder.unique_tokens() + builder.cost(ids) <= limits.max_batch_tokens)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::Wanted;

    type Receiver = oneshot::Receiver<Result<Outcome, Error>>;

    /// A text of the request with this place.
    fn entry(turn: &Arc<Turn>, ids: &[u32], enqueued: Instant) -> (Entry, Receiver) {
        let (reply, receiver) = oneshot::channel();
        (Entry { text: Text::new(ids, wanted(ids)), turn: turn.clone(), reply, enqueued }, receiver)
    }

    /// An output that differs between texts.
    fn wanted(ids: &[u32]) -> Wanted {
        if ids.len().is_multiple_of(2) { Wanted::TOKENS } else { Wanted::WHOLE }
    }

    /// A backend that knows no tokens.
    fn nothing(_text: &Text) -> usize {
        0
    }

    /// A backend that knows the first token of some texts, or the first two.
    fn known(text: &Text) -> usize {
        (text.ids[0] as usize).min(text.ids.len() - 1)
    }

    /// A long beginning is computed once for as many own tokens as it has, within the longest input.
    #[test]
    fn texts_that_share_a_beginning_longer_than_a_batch_leave_together() {
        let text = |own: u32, shared: u32| Text {
            reusable: shared as usize,
            ..Text::new((0..shared).chain([1000 + own, 2000]).collect::<Vec<_>>(), Wanted::WHOLE)
        };
        // The longest input, the known tokens, and the texts of each batch of ten.
        let cases: [(usize, usize, &[usize]); 4] = [
            (1000, 0, &[10]),
            (34, 0, &[7, 3]),
            (1000, 30, &[5, 5]),
            (20, 0, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ];
        for (max_input_length, known, expected) in cases {
            let mut queue = Queue::default();
            let turn = queue.turn();
            let mut receivers = Vec::new();
            for own in 0..10 {
                let (reply, receiver) = oneshot::channel();
                receivers.push(receiver);
                let turn = Arc::clone(&turn);
                queue.push(Entry { text: text(own, 20), turn, reply, enqueued: Instant::now() });
            }
            let limits = BatchLimits { max_input_length, ..limits(10, None) };
            assert!(queue.fills(limits));
            let batches: Vec<usize> =
                std::iter::from_fn(|| Some(queue.next_batch(limits, |_| known.min(20))?.entries.len()))
                    .collect();
            assert_eq!(batches, expected, "{max_input_length} {known}");
        }
    }

    fn limits(max_batch_tokens: usize, max_batch_requests: Option<usize>) -> BatchLimits {
        BatchLimits {
            packing: Packing::SHARED,
            max_batch_tokens,
            max_input_length: max_batch_tokens,
            max_batch_requests,
        }
    }

    /// The ids of a batch's text, read back from its forest.
    fn text(batch: &Batch, index: usize) -> Vec<u32> {
        batch.rows_of(index).map(|row| batch.token_ids()[row]).collect()
    }

    #[test]
    fn a_batch_ends_where_the_next_text_does_not_fit() {
        // Sizes of the batches for the texts 1 2 3 | 1 2 4 | 5 6 | 1 2 3 7 8 9.
        let texts: [&[u32]; 4] = [&[1, 2, 3], &[1, 2, 4], &[5, 6], &[1, 2, 3, 7, 8, 9]];
        for (budget, max, wanted) in [
            (100, None, vec![4]),
            (9, None, vec![4]),
            (8, None, vec![3, 1]),
            (4, None, vec![2, 1, 1]),
            (1, None, vec![1, 1, 1, 1]),
            (100, Some(3), vec![3, 1]),
            (100, Some(0), vec![1, 1, 1, 1]),
        ] {
            let mut queue = Queue::default();
            let turn = queue.turn();
            let _receivers: Vec<_> = texts
                .iter()
                .map(|ids| {
                    let (entry, receiver) = entry(&turn, ids, Instant::now());
                    queue.push(entry);
                    receiver
                })
                .collect();
            assert_eq!((queue.texts, queue.tokens), (4, 14));
            let sizes: Vec<_> = std::iter::from_fn(|| {
                queue.next_batch(limits(budget, max), nothing).map(|next| next.entries.len())
            })
            .collect();
            assert_eq!(sizes, wanted, "budget {budget}, at most {max:?}");
            assert!(queue.texts == 0 && queue.tokens == 0 && queue.oldest().is_none());
        }
    }

    #[test]
    fn every_awaited_text_of_a_request_leaves_once_in_order_within_the_budget() {
        let start = Instant::now();
        let mut rng = StdRng::seed_from_u64(2);
        for _ in 0..300 {
            let limits =
                limits(rng.random_range(1..30), rng.random_bool(0.5).then(|| rng.random_range(1..6)));
            let mut queue = Queue::default();
            let turn = queue.turn();
            let (mut waiting, mut receivers) = (VecDeque::new(), Vec::new());
            for number in 0..rng.random_range(1..60) {
                let ids: Vec<u32> = (0..rng.random_range(1..12)).map(|_| rng.random_range(0..3)).collect();
                let (entry, receiver) = entry(&turn, &ids, start + Duration::from_nanos(number));
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
            assert!(waiting.is_empty() && queue.texts == 0 && queue.tokens == 0);
        }
    }

    /// Takes a batch and checks it against `waiting`; false if no batch came.
    fn check_next(
        queue: &mut Queue,
        waiting: &mut VecDeque<(Vec<u32>, Instant)>,
        limits: BatchLimits,
    ) -> bool {
        let Some(next) = queue.next_batch(limits, known) else {
            assert!(waiting.is_empty());
            return false;
        };
        let mut builder = BatchBuilder::new(limits.packing);
        for (index, entry) in next.entries.iter().enumerate() {
            let (ids, enqueued) = waiting.pop_front().unwrap();
            assert_eq!((&entry.text.ids, entry.enqueued), (&ids, enqueued));
            assert_eq!((text(&next.batch, index), next.batch.wanted()[index]), (ids.clone(), wanted(&ids)));
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        let (size, tokens) = (next.entries.len(), next.batch.token_ids().len());
        let max = limits.max_batch_requests.unwrap_or(usize::MAX);
        let budget = limits.max_batch_tokens + known(&next.entries[0].text);
        assert_eq!(next.batch.leaves().len(), size);
        assert!(size == 1 || (tokens <= budget && size <= max));
        if let Some((ids, _)) = waiting.front() {
            assert!(size >= max || tokens + builder.cost(ids) > budget, "ended too early");
        }
        true
    }

    /// The counts of texts and tokens as the metrics read them.
    fn scrape(queue: &mut Queue) -> [usize; 2] {
        queue.drop_abandoned();
        [queue.waiting_texts(), queue.tokens()]
    }

    #[test]
    fn at_every_scrape_the_gauges_are_what_waits() {
        let mut rng = StdRng::seed_from_u64(4);
        let (mut queue, mut waiting) = (Queue::default(), VecDeque::<(usize, Receiver)>::new());
        let turn = queue.turn();
        for _ in 0..2000 {
            match rng.random_range(0..4) {
                0 | 1 => {
                    let (entry, receiver) = entry(&turn, &vec![7; rng.random_range(1..9)], Instant::now());
                    waiting.push_back((entry.text.ids.len(), receiver));
                    queue.push(entry);
                }
                // A client goes away, from any place in the queue.
                2 if !waiting.is_empty() => drop(waiting.remove(rng.random_range(0..waiting.len()))),
                _ => {
                    let taken =
                        queue.next_batch(limits(100, Some(2)), nothing).map_or(0, |next| next.entries.len());
                    assert_eq!(taken, waiting.len().min(2));
                    waiting.drain(..taken);
                }
            }
            let wanted = [waiting.len(), waiting.iter().map(|(tokens, _)| tokens).sum()];
            assert_eq!(scrape(&mut queue), wanted);
            assert_eq!([queue.texts, queue.tokens], wanted);
        }
    }

    #[test]
    fn a_batch_is_observed_once_with_what_it_computes_and_what_it_shares() {
        let mut queue = Queue::default();
        let turn = queue.turn();
        let (first, first_receiver) = entry(&turn, &[1, 2, 3], Instant::now());
        let (second, _second_receiver) = entry(&turn, &[1, 2, 4], Instant::now());
        let (third, _third_receiver) = entry(&turn, &[1, 2, 4, 5, 6], Instant::now());
        let (fourth, _fourth_receiver) = entry(&turn, &[9], Instant::now());
        for entry in [first, second, third, fourth] {
            queue.push(entry);
        }
        drop(first_receiver);
        let mut sizes = Vec::new();
        while let Some(NextBatch { batch, entries }) = queue.next_batch(limits(5, None), nothing) {
            sizes.push((entries.len(), batch.token_ids().len()));
        }
        assert_eq!(sizes, [(2, 5), (1, 1)], "texts and unique tokens");
    }

    /// A request of a test.
    struct Request {
        turn: Arc<Turn>,
        /// The token counts of its texts that have not left and still have a receiver, first to last.
        waiting: VecDeque<usize>,
        /// `None` if the client went away.
        receivers: Option<Vec<Receiver>>,
    }

    impl Request {
        /// A request of texts with these lengths. None of them shares a token with any other text.
        fn join(queue: &mut Queue, lengths: &[usize]) -> Self {
            let turn = queue.turn();
            let first = turn.number as u32 * 1000;
            let receivers = (first..).zip(lengths).map(|(token, &length)| {
                let (entry, receiver) = entry(&turn, &vec![token; length], Instant::now());
                queue.push(entry);
                receiver
            });
            let receivers = receivers.collect();
            Self { turn, waiting: lengths.iter().copied().collect(), receivers: Some(receivers) }
        }
    }

    /// Takes a batch and records which texts left; returns the request number of each of its texts, in its
    /// order.
    fn take(queue: &mut Queue, requests: &mut [Request], limits: BatchLimits) -> Vec<u64> {
        let Some(next) = queue.next_batch(limits, nothing) else { return Vec::new() };
        let numbers: Vec<u64> = next.entries.iter().map(|entry| entry.turn.number).collect();
        for (entry, &number) in next.entries.iter().zip(&numbers) {
            let request = &mut requests[number as usize - 1];
            assert!(request.receivers.is_some(), "nobody waits for this text");
            assert_eq!(request.waiting.pop_front(), Some(entry.text.ids.len()), "out of order");
        }
        let tokens = next.batch.token_ids().len();
        assert!(numbers.len() == 1 || tokens <= limits.max_batch_tokens);
        assert!(limits.max_batch_requests.is_none_or(|max| numbers.len() <= max.max(1)));
        numbers
    }

    /// The number of the waiting request whose turn it is.
    fn first_in_turn(requests: &[Request]) -> Option<u64> {
        let waiting = requests.iter().filter(|request| !request.waiting.is_empty());
        waiting.map(|request| (request.turn.due(), request.turn.number)).min().map(|(_, number)| number)
    }

    #[test]
    fn whatever_arrives_nothing_is_lost_or_starved() {
        let mut rng = StdRng::seed_from_u64(6);
        for _ in 0..30 {
            let limits =
                limits(rng.random_range(1..40), rng.random_bool(0.3).then(|| rng.random_range(1..6)));
            let (mut queue, mut requests) = (Queue::default(), Vec::<Request>::new());
            // By request, once its patience has ended: the number of batches within which it must have left.
            let mut promised: BTreeMap<u64, usize> = BTreeMap::new();
            // In the first 100 steps, more may arrive than leaves.
            for step in 0..150 {
                for _ in 0..if step < 100 { rng.random_range(0..4) } else { 0 } {
                    let texts = if rng.random_bool(0.1) { rng.random_range(1..20) } else { 1 };
                    let lengths: Vec<usize> = (0..texts).map(|_| rng.random_range(1..12)).collect();
                    requests.push(Request::join(&mut queue, &lengths));
                }
                if rng.random_bool(0.1) && !requests.is_empty() {
                    // A client goes away.
                    let gone = rng.random_range(0..requests.len());
                    requests[gone].receivers = None;
                    requests[gone].waiting.clear();
                }
                let first = first_in_turn(&requests);
                let batch = take(&mut queue, &mut requests, limits);
                assert_eq!(batch.first().copied(), first, "a batch begins with the request whose turn it is");
                for request in requests.iter().filter(|request| !request.waiting.is_empty()) {
                    let place = (request.turn.due(), request.turn.number);
                    if let Some(left) = promised.get_mut(&place.1) {
                        assert!(*left > 1, "starved");
                        *left -= 1;
                    } else if queue.left >= place.0 {
                        let before = requests.iter().filter(|it| (it.turn.due(), it.turn.number) <= place);
                        promised.insert(place.1, before.map(|request| request.waiting.len()).sum());
                    }
                }
            }
            while !take(&mut queue, &mut requests, limits).is_empty() {}
            assert!(requests.iter().all(|request| request.waiting.is_empty()), "lost");
            assert!(queue.texts == 0 && queue.tokens == 0 && queue.requests.is_empty());
        }
    }

    #[test]
    fn a_small_request_does_not_wait_for_a_large_one_that_does_not_wait_for_ever() {
        let (mut queue, limits) = (Queue::default(), limits(100, None));
        let mut requests = vec![Request::join(&mut queue, &[90; 10])];
        assert_eq!(take(&mut queue, &mut requests, limits), [1]);
        // The small request comes first. The large one's next text does not fit next to it and waits.
        requests.push(Request::join(&mut queue, &[20]));
        assert_eq!(take(&mut queue, &mut requests, limits), [2]);
        requests.push(Request::join(&mut queue, &[5]));
        assert_eq!(take(&mut queue, &mut requests, limits), [3, 1]);
        // A larger request gets the room that is left.
        requests.push(Request::join(&mut queue, &[9; 200]));
        assert_eq!(take(&mut queue, &mut requests, limits), [1, 4]);
        // An endless series of small requests, none of which leaves room for a text of the large one, comes
        // first until `PATIENCE` times the large request's tokens have left the queue.
        let mut left = 0;
        while requests[0].waiting.len() == 7 {
            left = queue.left;
            requests.push(Request::join(&mut queue, &[60]));
            take(&mut queue, &mut requests, limits);
        }
        let patience = PATIENCE * 900;
        assert!((patience - 600..=patience).contains(&left), "{left}");
    }

    #[test]
    fn requests_of_one_size_leave_as_they_came() {
        let (mut queue, limits) = (Queue::default(), limits(50, None));
        let mut requests: Vec<Request> = (0..4).map(|_| Request::join(&mut queue, &[20; 3])).collect();
        let mut order = Vec::new();
        while queue.texts > 0 {
            order.extend(take(&mut queue, &mut requests, limits));
        }
        assert_eq!(order, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]);
    }
}
