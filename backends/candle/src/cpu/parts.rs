//! How a batch is divided among threads that compute without each other.
//!
//! Input: a batch, the rows that its texts need, and the number of threads. Output: groups of its texts, from
//! long to short. What must hold: a text is in one group.
//!
//! An operation on all threads ends with the last of them, and next to other programs, one of them is often
//! put aside in the middle of an operation. A thread that computes whole texts waits only at the end of the
//! batch, where threads without a part help with the operations of the others' parts. The price: each thread
//! reads all weights for its own few tokens, so small batches are computed together.

use super::{
    CpuOperations,
    buffers::{free_buffers, give_back},
    packed_keys::PackedKeys,
};
use crate::operations::Operations;
use std::{
    cmp::Reverse,
    sync::{Arc, PoisonError},
};
use text_embeddings_backend_core::{Batch, RowsToCompute};

/// The fewest tokens for which a thread reads all weights, but for the last part.
pub(super) const PART_TOKENS: usize = 128;
/// A part is a thread's share of the remaining tokens, divided by this: the first parts are long, and the
/// threads end at about the same time.
const SHARE: usize = 2;
/// Parts may compute 1/`MOST_REPEATED` more rows than the whole batch, because texts share them: the first
/// words of documents. A prefix that is not known yet is computed once, with the whole batch.
const MOST_REPEATED: usize = 16;

impl CpuOperations {
    /// See [`Operations::run_parts`].
    pub(super) fn compute_parts<R: Send>(
        &mut self,
        batch: &Batch,
        rows: impl FnOnce() -> RowsToCompute,
        pass: impl Fn(&mut Self, &Batch) -> R + Send + Sync,
    ) -> Vec<(Vec<usize>, R)> {
        // AMX multiplies so fast that reading all weights for few tokens may take longer. Not measured there.
        let usable = if self.compute.set.has_amx() { 1 } else { self.compute.threads.count() };
        let tokens = batch.token_ids().len();
        let groups = group_texts(tokens, rows, usable, self.part_tokens);
        // A large batch that stays whole and a batch in parts never both keep memory. A small one needs
        // little, and leaves the parts theirs.
        let Some(groups) = groups.filter(|groups| groups.len() > 1) else {
            if tokens / usable >= self.part_tokens {
                free_buffers(&self.stores.branches);
            }
            let texts = (0..batch.leaves().len()).collect();
            return vec![(texts, self.enter(|operations| pass(operations, batch)))];
        };
        free_buffers(&self.stores.values);
        free_buffers(&self.stores.words);
        let parts: Vec<Batch> = groups.iter().map(|texts| batch.of_texts(texts)).collect();
        let mut results: Vec<Option<R>> = parts.iter().map(|_| None).collect();
        let (threads, this) = (&self.compute.threads, &*self);
        threads.enter(|| {
            threads.for_each_part(parts.iter().zip(&mut results), |(part, result)| {
                *result = Some(this.with_branch(|branch| pass(branch, part)));
            });
        });
        groups.into_iter().zip(results.into_iter().flatten()).collect()
    }

    /// Calls `pass` with operations for a part of a batch. They have memory of their own: what another thread
    /// wrote last is in the cache of its core.
    fn with_branch<R>(&self, pass: impl FnOnce(&mut Self) -> R) -> R {
        let branch = self.stores.branches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut branch = branch.unwrap_or_else(|| Self {
            compute: self.compute.clone(),
            stores: Arc::default(),
            packed_keys: PackedKeys::new(self.arithmetic.attention),
            #[cfg(any(test, feature = "benchmarks"))]
            log: self.log.clone(),
            #[cfg(any(test, feature = "benchmarks"))]
            sharers: self.compute.threads.count(),
            ..*self
        });
        let result = pass(&mut branch);
        give_back(&self.stores.branches, branch);
        result
    }
}

/// Divides a batch of `tokens` rows into parts of at least about `part_tokens` rows to compute. It stays
/// whole if there are too few, if its texts repeat too many, if a text has more than a thread's share, or if
/// more than that are known, because each part has a copy of their keys.
fn group_texts(
    tokens: usize,
    rows: impl FnOnce() -> RowsToCompute,
    threads: usize,
    part_tokens: usize,
) -> Option<Vec<Vec<usize>>> {
    // Before the rows are counted.
    if threads == 1 || tokens / threads < part_tokens {
        return None;
    }
    let RowsToCompute { of_batch, of_texts } = rows();
    let mut left = of_texts.iter().sum::<usize>();
    let (share, known) = (left / threads, tokens - of_batch);
    let mut texts: Vec<(usize, usize)> = of_texts.into_iter().enumerate().collect();
    if share < part_tokens
        || left > of_batch + of_batch / MOST_REPEATED
        || known > share
        || texts.iter().any(|&(_, length)| length > share)
    {
        return None;
    }
    texts.sort_by_key(|&(_, length)| Reverse(length));
    let mut groups = Vec::new();
    let (mut group, mut tokens) = (Vec::new(), 0);
    for (text, length) in texts {
        let wanted = (left / threads / SHARE).max(part_tokens);
        if !group.is_empty() && tokens + length / 2 > wanted {
            groups.push(std::mem::take(&mut group));
            left -= tokens;
            tokens = 0;
        }
        group.push(text);
        tokens += length;
    }
    groups.push(group);
    Some(groups)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::{super::buffers::Stores, *};
    use crate::kernels::InstructionSet;
    use text_embeddings_backend_core::{BatchBuilder, DType, Packing, Text, Wanted};

    #[test]
    fn only_one_of_a_large_whole_batch_and_parts_keeps_memory() {
        let operations = CpuOperations::start(2, InstructionSet::best(), DType::Float32).unwrap();
        let mut operations = operations.with_parts_of(2);
        // The lengths of texts, and whether a whole batch and parts keep memory afterwards.
        for (lengths, expected) in [
            (vec![3], [true, false]),
            (vec![3; 4], [false, true]),
            (vec![3], [true, true]),
            (vec![9, 1, 1, 1], [true, false]),
            (vec![3; 4], [false, true]),
        ] {
            let mut builder = BatchBuilder::new(Packing::SEPARATE);
            for &length in &lengths {
                builder.push(&Text::new(vec![1; length], Wanted::WHOLE));
            }
            let rows = || RowsToCompute { of_batch: lengths.iter().sum(), of_texts: lengths.clone() };
            operations.compute_parts(&builder.build(), rows, |operations, batch| {
                drop(operations.activations(batch.token_ids().len(), 8));
            });
            let Stores { values, branches, .. } = &*operations.stores;
            let kept = [!values.lock().unwrap().is_empty(), !branches.lock().unwrap().is_empty()];
            assert_eq!(kept, expected, "{lengths:?}");
        }
    }

    #[test]
    fn a_batch_of_enough_tokens_becomes_parts_from_long_to_short() {
        // Lengths of texts, threads, the fewest tokens of a part, and the expected numbers of tokens of
        // parts.
        for (lengths, threads, part_tokens, expected) in [
            (vec![64; 16], 2, 128, vec![256, 192, 128, 128, 128, 128, 64]),
            (vec![64; 16], 2, 64, vec![256, 192, 128, 128, 64, 64, 64, 64, 64]),
            (vec![64; 16], 1, 128, vec![1024]),
            (vec![64; 24], 3, 128, vec![256, 192, 192, 128, 128, 128, 128, 128, 128, 128]),
            // Enough tokens for each thread.
            (vec![64; 4], 2, 128, vec![128, 128]),
            (vec![63, 64, 64, 64], 2, 128, vec![255]),
            // The longest first, and none longer than a thread's share.
            (vec![100, 250, 50, 200, 256, 50, 100, 100], 2, 128, vec![256, 250, 200, 100, 100, 150, 50]),
            (vec![200, 300, 100], 2, 128, vec![300, 200, 100]),
            (vec![200, 301, 99], 2, 128, vec![600]),
            (vec![1], 2, 1, vec![1]),
        ] {
            let tokens = lengths.iter().sum();
            let rows = || RowsToCompute { of_batch: tokens, of_texts: lengths.clone() };
            let groups = group_texts(tokens, rows, threads, part_tokens);
            let groups = groups.unwrap_or_else(|| vec![(0..lengths.len()).collect()]);
            let tokens: Vec<usize> =
                groups.iter().map(|texts| texts.iter().map(|&text| lengths[text]).sum()).collect();
            assert_eq!(tokens, expected, "{lengths:?}, {threads} threads, {part_tokens} tokens");
            let mut texts: Vec<usize> = groups.into_iter().flatten().collect();
            texts.sort_unstable();
            assert_eq!(texts, (0..lengths.len()).collect::<Vec<_>>());
        }
        // The rows that the batch knows, those that its texts repeat, and the number of parts.
        for (known, repeated, parts) in [(160, 0, 2), (161, 0, 0), (0, 18, 2), (0, 19, 0)] {
            let of_batch = 320 - repeated;
            let rows = || RowsToCompute { of_batch, of_texts: vec![80; 4] };
            let groups = group_texts(known + of_batch, rows, 2, 128);
            assert_eq!(groups.map_or(0, |groups| groups.len()), parts, "{known} known, {repeated} repeated");
        }
    }
}
