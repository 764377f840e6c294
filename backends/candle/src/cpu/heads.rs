//! Norms and rotations of the heads of keys, values and queries.

use super::{Activations, CpuOperations};
use crate::{
    attention::Heads,
    kernels::{InstructionSet, elementwise},
    operations::{Norm, Rows},
};

impl CpuOperations {
    /// See [`Operations::turn_keys`](crate::operations::Operations::turn_keys).
    pub(super) fn turn_key_heads(
        &self,
        keys_values: &mut Activations,
        norm: Option<&Norm<Vec<f32>>>,
        &Rows { heads, angles, .. }: &Rows<'_>,
    ) {
        if norm.is_none() && angles.is_none() {
            return;
        }
        timed!(self, turned(keys_values.rows() * heads.keys * heads.size, norm.is_some(), angles.is_some()));
        let columns = keys_values.columns;
        self.each_rows(keys_values, |from, rows| {
            for (index, row) in rows.chunks_exact_mut(columns).enumerate() {
                let angles = angles.map(|angles| angles[from + index]);
                turn_heads(self.compute.set, &mut row[..heads.keys * heads.size], heads.size, norm, angles);
            }
        });
    }

    /// See [`Operations::norm_values`](crate::operations::Operations::norm_values).
    pub(super) fn norm_value_heads(
        &self,
        keys_values: &mut Activations,
        norm: &Norm<Vec<f32>>,
        heads: Heads,
    ) {
        let (columns, width) = (keys_values.columns, heads.keys * heads.size);
        timed!(self, norm(keys_values.rows() * width));
        self.each_rows(keys_values, |_, rows| {
            for row in rows.chunks_exact_mut(columns) {
                turn_heads(self.compute.set, &mut row[width..], heads.size, Some(norm), None);
            }
        });
    }
}

/// Normalises the heads of a row if there is a norm, and rotates them if there are angles.
pub(super) fn turn_heads(
    set: InstructionSet,
    row: &mut [f32],
    size: usize,
    norm: Option<&Norm<Vec<f32>>>,
    angles: Option<(&[f32], &[f32])>,
) {
    match (norm, angles) {
        (Some(norm), Some((cosines, sines))) => {
            elementwise::norm_and_rotate(set, row, &norm.weight, norm.epsilon, cosines, sines);
        }
        (Some(norm), None) => {
            for head in row.chunks_exact_mut(size) {
                let values = head.to_vec();
                elementwise::rms_norm(set, &values, &norm.weight, norm.epsilon, head);
            }
        }
        (None, Some((cosines, sines))) => elementwise::rotate(set, row, size, cosines, sines),
        (None, None) => {}
    }
}
