//! The parts of a pass that its layers share on a GPU: rows as all layers see them, lists that are on the
//! device, and notes from one operation of a layer for the next.

use super::{
    sequences::Sequences,
    tensor::CudaTensor,
    turns::{TurnedHeads, Turns},
};
use crate::{attention::Heads, operations::Norm, plain::padded::PaddedAttention};
use candle_core::Tensor;
use std::sync::Arc;

/// Lists and values that the layers of a pass share.
#[derive(Default)]
pub(super) struct SharedByLayers {
    /// Lists of rows that are on the device.
    pub(super) indices: Vec<Indices>,
    /// The rows that follow the keys and values of the next attention.
    pub(super) appended: Option<Appended>,
    /// How the keys of this layer are turned.
    pub(super) key_turn: Option<TurnedHeads>,
}

/// A list of rows, in main memory and on the device.
pub(super) struct Indices {
    pub(super) rows: Vec<usize>,
    pub(super) uploaded: CudaTensor,
}

/// Kept rows of all layers.
pub(super) struct Appended {
    /// The list that [`super::launches::list_places`] makes of them.
    pub(super) places: CudaTensor,
    pub(super) count: usize,
    /// The layer whose rows the next attention reads.
    pub(super) layer: usize,
}

/// Some rows of a batch on the device.
pub(crate) struct CudaRows {
    pub(super) heads: Heads,
    pub(super) turns: Option<Arc<Turns>>,
    pub(super) attention: Path,
}

/// How attention is computed.
pub(super) enum Path {
    /// Flash attention.
    Flash(Sequences),
    /// Padded groups in `f32`.
    General(PaddedAttention),
}

impl CudaRows {
    /// The first `count` heads of each row, normalised and rotated; `None` if they stay as they are.
    pub(super) fn turned_heads(&self, count: usize, norm: Option<&Norm<Tensor>>) -> Option<TurnedHeads> {
        let (size, turns) = (self.heads.size, self.turns.clone());
        (norm.is_some() || turns.is_some()).then(|| TurnedHeads { count, size, norm: norm.cloned(), turns })
    }
}
