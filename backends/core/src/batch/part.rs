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
    /// The batch of some of the texts, in the order of `texts`.
    #[must_use]
    pub fn of_texts(&self, texts: &[usize]) -> Self {
        let mut part = Self::default();
        // For each segment, its index in the part.
        let mut places: Vec<Option<usize>> = vec![None; self.segments.len()];
        for &text in texts {
            for index in self.path(self.leaves[text]) {
                if places[index].is_some() {
                    continue;
                }
                let Segment { parent, ref rows, position, is_attended } = self.segments[index];
                let start = part.token_ids.len();
                part.token_ids.extend_from_slice(&self.token_ids[rows.clone()]);
                places[index] = Some(part.segments.len());
                part.segments.push(Segment {
                    parent: parent.and_then(|parent| places[parent]),
                    rows: start..part.token_ids.len(),
                    position,
                    is_attended,
                });
            }
            part.leaves.extend(places[self.leaves[text]]);
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
    use crate::{BatchBuilder, Packing, Text, Wanted};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn the_batch_of_some_texts_is_as_if_only_they_had_been_added() {
        let mut rng = StdRng::seed_from_u64(2);
        for _ in 0..200 {
            let texts: Vec<Text> = (0..rng.random_range(1..9))
                .map(|_| {
                    let ids: Vec<u32> = (0..rng.random_range(1..9)).map(|_| rng.random_range(0..3)).collect();
                    Text {
                        second: rng.random_bool(0.5).then_some(ids.len() / 2),
                        reusable: rng.random_range(0..=ids.len()),
                        marks: (0..ids.len()).filter(|_| rng.random_bool(0.3)).collect(),
                        unattended: rng.random_range(0..ids.len()),
                        kind: rng.random_range(0..3),
                        ..Text::new(ids, if rng.random_bool(0.5) { Wanted::WHOLE } else { Wanted::TOKENS })
                    }
                })
                .collect();
            let build = |indices: &[usize]| {
                let mut builder = BatchBuilder::new(Packing::SEPARATE);
                for &index in indices {
                    builder.push(&texts[index]);
                }
                builder.build()
            };
            let all: Vec<usize> = (0..texts.len()).collect();
            let some: Vec<usize> = all.iter().rev().copied().filter(|_| rng.random_bool(0.6)).collect();
            assert_eq!(format!("{:?}", build(&all).of_texts(&some)), format!("{:?}", build(&some)));
        }
    }
}
