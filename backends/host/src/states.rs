//! The hidden states of a batch and the products of its head, where the backend computes them.
//!
//! Input: rows of the batch. Output: their states or means, in main memory. What must hold: padding cells are
//! never read.

use crate::Padded;
use std::collections::BTreeMap;
use text_embeddings_backend_core::{BackendError, Batch};

/// A device that has the last hidden states of a batch.
pub trait HeadDevice {
    /// A matrix with its bias, where products read it.
    type Matrix;

    /// For each list of rows, at least one, the mean of their states, one after the other.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the device fails.
    fn pool_states(&mut self, rows: &[Vec<usize>]) -> Result<Vec<f32>, BackendError>;

    /// The states of these rows, one after the other.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the device fails.
    fn read_states(&mut self, rows: &[usize]) -> Result<Vec<f32>, BackendError>;

    /// Passes `matrix · x + bias` of each vector `x` to `read`. The vectors have `inputs` values each and lie
    /// one after the other, as do the products.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`] if the device fails.
    fn multiply_matrix<R>(
        &mut self,
        matrix: &Self::Matrix,
        vectors: &[f32],
        inputs: usize,
        read: impl FnOnce(&[f32]) -> R,
    ) -> Result<R, BackendError>;
}

/// A matrix in main memory.
#[derive(Debug, Clone, PartialEq)]
pub struct HostMatrix {
    /// `[outputs, inputs]`, row after row.
    pub weight: Vec<f32>,
    /// Values per vector that it takes.
    pub inputs: usize,
    /// `[outputs]`
    pub bias: Option<Vec<f32>>,
}

/// Products that are summed side by side, so that the compiler can use vector instructions.
const LANES: usize = 16;

impl HostMatrix {
    /// `weight · x + bias` of each vector, one after the other.
    fn multiply_vectors(&self, vectors: &[f32]) -> Vec<f32> {
        let rows = self.weight.chunks_exact(self.inputs);
        let products = vectors.chunks_exact(self.inputs).flat_map(|vector| {
            rows.clone().enumerate().map(move |(row, weights)| {
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias[row]);
                dot_product(weights, vector) + bias
            })
        });
        products.collect()
    }
}

fn dot_product(left: &[f32], right: &[f32]) -> f32 {
    let (lefts, left_rest) = left.as_chunks::<LANES>();
    let (rights, right_rest) = right.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (left, right) in lefts.iter().zip(rights) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    sums.iter().sum::<f32>() + rest
}

/// States in main memory: the output of a padded group of texts.
#[derive(Debug)]
pub struct HostStates<'a> {
    values: &'a [f32],
    width: usize,
    /// For the first row of each of the group's texts, the cell of its first token.
    cells: BTreeMap<usize, usize>,
}

impl<'a> HostStates<'a> {
    /// The states of `group`, some texts of `batch`: `values` has `width` values for each cell. Texts must
    /// not share rows.
    pub fn new(batch: &Batch, group: &Padded, values: &'a [f32], width: usize) -> Self {
        let cells = group.texts.iter().enumerate().map(|(row, &text)| {
            let first = batch.rows_of(text).next().unwrap_or_default();
            (first, row * group.width)
        });
        Self { values, width, cells: cells.collect() }
    }

    fn row_state(&self, row: usize) -> &'a [f32] {
        let (first, cell) = self.cells.range(..=row).next_back().unwrap_or((&0, &0));
        &self.values[(cell + row - first) * self.width..][..self.width]
    }
}

impl HeadDevice for HostStates<'_> {
    type Matrix = HostMatrix;

    fn pool_states(&mut self, rows: &[Vec<usize>]) -> Result<Vec<f32>, BackendError> {
        Ok(rows
            .iter()
            .flat_map(|rows| mean_state(rows.iter().map(|&row| self.row_state(row)), self.width))
            .collect())
    }

    fn read_states(&mut self, rows: &[usize]) -> Result<Vec<f32>, BackendError> {
        Ok(rows.iter().flat_map(|&row| self.row_state(row)).copied().collect())
    }

    fn multiply_matrix<R>(
        &mut self,
        matrix: &HostMatrix,
        vectors: &[f32],
        _inputs: usize,
        read: impl FnOnce(&[f32]) -> R,
    ) -> Result<R, BackendError> {
        Ok(read(&matrix.multiply_vectors(vectors)))
    }
}

/// The mean of `states`: at least one slice, `hidden` values each. Summed in double precision, because a text
/// may have tens of thousands of tokens.
pub fn mean_state<'a>(states: impl IntoIterator<Item = &'a [f32]>, hidden: usize) -> Vec<f32> {
    let (mut sums, mut count) = (vec![0.0_f64; hidden], 0_u32);
    for state in states {
        count += 1;
        sums.iter_mut().zip(state).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    sums.into_iter().map(|sum| (sum / f64::from(count)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_their_definition() {
        for inputs in [1, 15, 16, 17, 40] {
            let value = |index: usize| (index * 7 % 13) as f32 - 6.0;
            let weight: Vec<f32> = (0..3 * inputs).map(value).collect();
            let vectors: Vec<f32> = (0..2 * inputs).map(|index| value(index + 5)).collect();
            for bias in [None, Some(vec![0.5, -1.0, 2.0])] {
                let matrix = HostMatrix { weight: weight.clone(), inputs, bias: bias.clone() };
                let products = matrix.multiply_vectors(&vectors);
                assert_eq!(products.len(), 6);
                for (index, product) in products.into_iter().enumerate() {
                    let (vector, row) = (index / 3, index % 3);
                    let mut expected = bias.as_ref().map_or(0.0, |bias| bias[row]);
                    for column in 0..inputs {
                        expected += weight[row * inputs + column] * vectors[vector * inputs + column];
                    }
                    assert_eq!(
                        product.to_bits(),
                        expected.to_bits(),
                        "{inputs} inputs, vector {vector}, row {row}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_mean_of_one_state_is_that_state_and_sums_do_not_drown() {
        assert_eq!(mean_state([&[0.1_f32, -3.0][..]], 2), [0.1, -3.0]);
        assert_eq!(mean_state([&[1.0_f32, 2.0][..], &[2.0, -2.0]], 2), [1.5, 0.0]);
        // In single precision, the sum would stop growing at 2^24.
        let states = [&[16_777_216.0_f32][..], &[1.0], &[1.0], &[1.0]];
        assert_eq!(mean_state(states, 1), [4_194_304.8_f32]);
    }
}
