//! The angles by which rows are rotated, on the device.

use super::{accelerator::Accelerator, memory::DeviceMemory, tensor::CudaTensor};
use crate::{
    operations::{Norm, Result},
    rope::Angles,
};
use candle_core::Tensor;
use std::{collections::HashMap, sync::Arc};

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
    /// The angles of some rows.
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
    /// Their number.
    pub(super) count: usize,
    /// Values per head.
    pub(super) size: usize,
    /// The norm of each head.
    pub(super) norm: Option<Norm<Tensor>>,
    /// The rows' angles.
    pub(super) turns: Option<Arc<Turns>>,
}
