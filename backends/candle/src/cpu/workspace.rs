//! Scratch memory of attention.

use crate::kernels::{pack::Words, tile::Sums};
use std::{cell::RefCell, ops::Range};

/// Scratch memory of one thread.
#[derive(Default)]
pub(super) struct Workspace {
    /// The heads of a query, normalised and rotated.
    pub(super) values: Vec<f32>,
    /// The packed queries of all key heads, `[block]` for each head.
    pub(super) queries: Words,
    /// The scales of the queries of all key heads, for integers.
    pub(super) query_scales: Vec<f32>,
    /// The scales of a step's keys, and of its values, for integers.
    pub(super) key_scales: Vec<f32>,
    pub(super) value_scales: Vec<f32>,
    /// The words of rows before they are placed in a block.
    pub(super) words: Vec<u32>,
    /// The scales of these rows, for integers.
    pub(super) scales: Vec<f32>,
    /// The scores of a block's rows: `[panel][row]`.
    pub(super) scores: Sums,
    /// The weights of the scores, which are packed as a block.
    pub(super) weights: Words,
    pub(super) tile: Sums,
    /// Weighted sums of the values, `[panel of the head][row]` for each block.
    pub(super) totals: Sums,
    pub(super) max: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(super) correction: Vec<f32>,
    /// For integers: the sum of a step's scaled weights of each row, then the scale of their products.
    pub(super) step_sum: Vec<f32>,
    /// The biases of a step's keys, one row of a block after the other, if they are computed for the step.
    pub(super) biases: Vec<f32>,
    /// The range of a step's keys that each row of a block sees.
    pub(super) visible: Vec<Range<usize>>,
    /// The result, `[query, heads · size]`. A row has all its heads before it is packed.
    pub(super) out: Vec<f32>,
}

thread_local! {
    pub(super) static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::default());
}
