//! The parts of a pass that its layers share on a GPU: rows as all layers see them, with the angles by which
//! they are rotated; lists that are on the device; and notes from one operation of a layer for the next.

use super::{accelerator::Accelerator, memory::DeviceMemory, sequences::Sequences, tensor::CudaTensor};
use crate::{
    attention::Heads,
    operations::{Norm, Result},
    plain::padded::PaddedAttention,
    rope::Angles,
};
use candle_core::Tensor;
use std::{collections::HashMap, sync::Arc};

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

/// The angles by which rows are rotated.
pub(super) struct Turns {
    /// `[different angles, size / 2]`
    pub(super) cosines: CudaTensor,
    /// `[different angles, size / 2]`
    pub(super) sines: CudaTensor,
    /// For each row, the index of its angle.
    pub(super) of_rows: CudaTensor,
}

impl Turns {
    pub(super) fn new<A: Accelerator>(angles: &[Angles<'_>], memory: &DeviceMemory<A>) -> Result<Self> {
        let (different, of_rows) = unique_angles(angles);
        let cosines = different.iter().flat_map(|(cosines, _)| *cosines).map(|value| value.to_bits());
        let sines = different.iter().flat_map(|(_, sines)| *sines).map(|value| value.to_bits());
        Ok(Self {
            cosines: memory.place_list(cosines)?,
            sines: memory.place_list(sines)?,
            of_rows: memory.place_list(of_rows)?,
        })
    }
}

/// The different angles, and for each row the index of its angle. Rows at the same position share slices of a
/// table, so slices are compared by address.
fn unique_angles<'a>(angles: &[Angles<'a>]) -> (Vec<Angles<'a>>, Vec<u32>) {
    let mut different: Vec<Angles<'a>> = Vec::new();
    let mut known: HashMap<*const f32, usize> = HashMap::new();
    let mut next = 0;
    let of_rows = angles.iter().map(|angle| {
        let address = angle.0.as_ptr();
        // Most rows are one position behind the row before them, and need no look into the map.
        let is_next = different.get(next).is_some_and(|angle| angle.0.as_ptr() == address);
        let index = if is_next {
            next
        } else {
            *known.entry(address).or_insert_with(|| {
                different.push(*angle);
                different.len() - 1
            })
        };
        next = index + 1;
        index as u32
    });
    let of_rows = of_rows.collect();
    (different, of_rows)
}

/// The heads at the start of each row that a kernel normalises and rotates while it copies the row.
pub(super) struct TurnedHeads {
    pub(super) count: usize,
    pub(super) size: usize,
    pub(super) norm: Option<Norm<Tensor>>,
    pub(super) turns: Option<Arc<Turns>>,
}
