//! Padded batches, for backends whose models read texts as a matrix.
//!
//! Input: a [`Batch`] whose texts do not share rows. Output: its texts in groups of similar length, each a
//! matrix padded on the right. What must hold: every text is in exactly one group, and a group has at most
//! `MAX_PADDING` cells per token, however much the lengths differ.

use text_embeddings_backend_core::Batch;

/// The most cells of a group per token, as a fraction.
const MAX_PADDING: (usize, usize) = (5, 4);

/// Texts of similar length as a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Padded {
    /// The indices of its texts in the batch, in the order of the matrix's rows. The longest text is first.
    pub texts: Vec<usize>,
    /// The number of tokens of each text.
    pub lengths: Vec<usize>,
    /// Columns: the number of tokens of the longest text.
    pub width: usize,
    /// Token ids `[texts, width]`, row after row.
    pub ids: Vec<i64>,
    /// 1 where there is a token, 0 where there is padding; `[texts, width]`.
    pub mask: Vec<i64>,
    /// Token types, 0 or 1; padding has 0; `[texts, width]`.
    pub types: Vec<i64>,
}

/// The most cells of a batch with `tokens` tokens, over all its groups.
pub fn max_cells(tokens: usize) -> usize {
    tokens.saturating_mul(MAX_PADDING.0).div_ceil(MAX_PADDING.1)
}

impl Padded {
    /// The texts of `batch` in groups, padded with the token `padding`. With `alone`, each text is a group of
    /// its own, without padding.
    pub fn groups(batch: &Batch, padding: u32, alone: bool) -> Vec<Self> {
        let rows: Vec<Vec<usize>> =
            (0..batch.leaves().len()).map(|text| batch.rows_of(text).collect()).collect();
        let types = batch.token_types();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        // Longest first. Equal lengths keep the order of addition, so that the same batch is always computed
        // in the same way.
        order.sort_by_key(|&text| std::cmp::Reverse(rows[text].len()));
        let mut groups: Vec<Self> = Vec::new();
        for text in order {
            let length = rows[text].len();
            if groups.last().is_none_or(|group| alone || !group.has_place_for(length)) {
                groups.push(Self::new(length));
            }
            if let Some(group) = groups.last_mut() {
                let fill = |cells: &mut Vec<i64>, values: &mut dyn Iterator<Item = i64>, padding: i64| {
                    cells.extend(values);
                    cells.resize((group.texts.len() + 1) * group.width, padding);
                };
                let rows = &rows[text];
                fill(
                    &mut group.ids,
                    &mut rows.iter().map(|&row| batch.token_ids()[row].into()),
                    padding.into(),
                );
                fill(&mut group.types, &mut rows.iter().map(|&row| types[row].into()), 0);
                fill(&mut group.mask, &mut rows.iter().map(|_| 1), 0);
                group.texts.push(text);
                group.lengths.push(length);
            }
        }
        groups
    }

    fn new(width: usize) -> Self {
        let (texts, lengths) = (Vec::new(), Vec::new());
        Self { texts, lengths, width, ids: Vec::new(), mask: Vec::new(), types: Vec::new() }
    }

    /// Whether the group can take a text of `length` tokens and keep its bound on padding.
    fn has_place_for(&self, length: usize) -> bool {
        let cells = (self.texts.len() + 1) * self.width;
        let tokens = self.lengths.iter().sum::<usize>() + length;
        cells * MAX_PADDING.1 <= tokens * MAX_PADDING.0
    }

    /// The position of each cell's token in its text, `[texts, width]`. Padding cells continue the count.
    pub fn positions(&self) -> Vec<i64> {
        self.texts.iter().flat_map(|_| 0..self.width as i64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use text_embeddings_backend_core::{BatchBuilder, Packing, Text, Wanted};

    const PADDING: u32 = 77;

    fn batch(texts: &[(Vec<u32>, Option<usize>)]) -> Batch {
        let mut builder = BatchBuilder::new(Packing::SEPARATE);
        for (ids, second) in texts {
            builder.push(&Text { second: *second, ..Text::new(ids.clone(), Wanted::WHOLE) });
        }
        builder.build()
    }

    /// One text's row of a matrix, cell by cell: slow and obviously right.
    fn row(ids: &[u32], second: Option<usize>, width: usize) -> Vec<(i64, i64, i64)> {
        let cell = |column: usize| match ids.get(column) {
            Some(&id) => (i64::from(id), 1, i64::from(second.is_some_and(|second| column >= second))),
            None => (PADDING.into(), 0, 0),
        };
        (0..width).map(cell).collect()
    }

    #[test]
    fn random_batches_are_padded_as_cell_by_cell() {
        let mut random = StdRng::seed_from_u64(5);
        for round in 0..300 {
            let longest = [1, 3, 17, 200][round % 4];
            let texts: Vec<(Vec<u32>, Option<usize>)> = (0..random.random_range(0..40))
                .map(|_| {
                    let length = random.random_range(1..=longest);
                    let ids = (0..length).map(|_| random.random_range(0..100)).collect();
                    (ids, random.random_bool(0.5).then(|| random.random_range(0..=length)))
                })
                .collect();
            for alone in [false, true] {
                let groups = Padded::groups(&batch(&texts), PADDING, alone);
                let mut seen: Vec<usize> = groups.iter().flat_map(|group| group.texts.clone()).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..texts.len()).collect::<Vec<_>>());
                for group in &groups {
                    let cells = group.texts.len() * group.width;
                    assert!(!alone || group.texts.len() == 1 && cells == group.lengths[0]);
                    assert_eq!([group.ids.len(), group.mask.len(), group.types.len()], [cells; 3]);
                    assert_eq!(group.positions().len(), cells);
                    assert_eq!(group.lengths.iter().max(), Some(&group.width));
                    assert!(cells <= max_cells(group.lengths.iter().sum()), "{cells} cells");
                    for (index, &text) in group.texts.iter().enumerate() {
                        let (ids, second) = &texts[text];
                        assert_eq!(group.lengths[index], ids.len());
                        let place = index * group.width..(index + 1) * group.width;
                        let found: Vec<_> =
                            place.map(|at| (group.ids[at], group.mask[at], group.types[at])).collect();
                        assert_eq!(found, row(ids, *second, group.width));
                    }
                }
            }
        }
    }

    #[test]
    fn texts_of_one_length_are_one_group_and_a_far_shorter_one_is_not() {
        let lengths = |lengths: &[usize]| {
            let texts: Vec<_> = lengths.iter().map(|&length| (vec![1; length], None)).collect();
            let groups = Padded::groups(&batch(&texts), 0, false);
            groups.into_iter().map(|group| group.texts).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[9, 9, 9]), [vec![0, 1, 2]]);
        assert_eq!(lengths(&[2, 100, 1, 90]), [vec![1, 3], vec![0], vec![2]]);
        assert!(lengths(&[]).is_empty());
        assert_eq!([max_cells(0), max_cells(1), max_cells(8)], [0, 2, 10]);
    }
}
