//! Parts of a batch.

use super::{Batch, Segment};

/// The numbers of rows that forward passes compute. Rows that earlier passes have kept do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsToCompute {
    /// For the whole batch.
    pub of_batch: usize,
    /// For each text alone.
    pub of_texts: Vec<usize>,
}

impl Batch {
    /// The batch of some of the texts, in the order of `texts`. Its segments keep their order, so that they
    /// are a forest like the whole batch's.
    #[must_use]
    pub fn of_texts(&self, texts: &[usize]) -> Self {
        let mut is_needed = vec![false; self.segments.len()];
        for &text in texts {
            self.path(self.leaves[text]).into_iter().for_each(|index| is_needed[index] = true);
        }
        let mut part = Self::default();
        // For each segment, its index in the part.
        let mut places = vec![0; self.segments.len()];
        for (index, segment) in self.segments.iter().enumerate().filter(|&(index, _)| is_needed[index]) {
            let Segment { parent, ref rows, position, is_attended } = *segment;
            let start = part.token_ids.len();
            part.token_ids.extend_from_slice(&self.token_ids[rows.clone()]);
            places[index] = part.segments.len();
            part.segments.push(Segment {
                parent: parent.map(|parent| places[parent]),
                rows: start..part.token_ids.len(),
                position,
                is_attended,
            });
        }
        for &text in texts {
            part.leaves.push(places[self.leaves[text]]);
            part.second.push(self.second[text]);
            part.wanted.push(self.wanted[text]);
            part.reusable.push(self.reusable[text]);
            part.marks.push(self.marks[text].clone());
            part.kinds.push(self.kinds[text]);
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, Packing, Text, Wanted};
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

    #[test]
    fn the_batch_of_some_texts_is_as_if_only_they_had_been_added() {
        let mut rng = StdRng::seed_from_u64(2);
        for round in 0..400 {
            let packing = [Packing::SEPARATE, Packing::SHARED][round % 2];
            let is_shared = packing.shares_prefixes;
            let texts: Vec<Text> = (0..rng.random_range(1..9))
                .map(|_| {
                    let ids: Vec<u32> = (0..rng.random_range(1..9)).map(|_| rng.random_range(0..3)).collect();
                    Text {
                        second: rng.random_bool(0.5).then_some(ids.len() / 2).filter(|_| !is_shared),
                        reusable: rng.random_range(0..=ids.len()),
                        marks: (0..ids.len()).filter(|_| rng.random_bool(0.3)).collect(),
                        unattended: if is_shared { 0 } else { rng.random_range(0..ids.len()) },
                        kind: if is_shared { 0 } else { rng.random_range(0..3) },
                        ..Text::new(ids, if rng.random_bool(0.5) { Wanted::WHOLE } else { Wanted::TOKENS })
                    }
                })
                .collect();
            let build = |indices: &[usize]| {
                let mut builder = BatchBuilder::new(packing);
                for &index in indices {
                    builder.push(&texts[index]);
                }
                builder.build()
            };
            let all: Vec<usize> = (0..texts.len()).collect();
            let some: Vec<usize> = all.iter().copied().filter(|_| rng.random_bool(0.6)).collect();
            // Texts come in any order.
            let mut shuffled = some.clone();
            shuffled.shuffle(&mut rng);
            let (whole, added) = (build(&all), build(&some));
            let part = whole.of_texts(&shuffled);
            for (index, &text) in shuffled.iter().enumerate() {
                let of = |batch: &Batch, index: usize| {
                    let (types, kinds, positions) =
                        (batch.token_types(), batch.row_kinds(), batch.positions().collect::<Vec<_>>());
                    let rows = batch.rows_of(index);
                    let rows =
                        rows.map(|row| (batch.token_ids()[row], types[row], kinds[row], positions[row]));
                    let marked = batch.marked_rows(index).into_iter().map(|row| positions[row]);
                    (
                        rows.collect::<Vec<_>>(),
                        marked.collect::<Vec<_>>(),
                        batch.attended_tokens(batch.leaves()[index]),
                        batch.second()[index],
                        batch.wanted()[index],
                        batch.reusable()[index],
                    )
                };
                assert_eq!(of(&part, index), of(&whole, text), "{texts:?}, {shuffled:?}");
            }
            // Shared rows stay shared. A segment that parts no more stays two segments.
            assert_eq!(part.token_ids().len(), added.token_ids().len(), "{texts:?}, {shuffled:?}");
            for (index, segment) in part.segments().iter().enumerate() {
                let before = if index > 0 { part.path(index - 1) } else { Vec::new() };
                let follows = segment.parent.is_none_or(|parent| before.contains(&parent));
                assert!(follows, "the descendants of a segment follow it: {texts:?}, {shuffled:?}");
            }
        }
    }
}
