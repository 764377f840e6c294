//! Keys and values that outlive their batch: the interface to each device's memory for them, and its
//! implementation for main memory.

use crate::{kernels::pack::round_to_bf16, operations::Result};

/// Rows of keys and values of one layer.
pub(crate) trait Kept: Send + Sync + Sized {
    /// Copies of the rows at these indices in each layer, `width` values each, without spare capacity.
    fn copy_rows(layers: &[Self], rows: &[usize], width: usize) -> Result<Vec<Self>>;

    /// Whether no value of these layers is NaN or infinite. All have the same number of rows.
    fn are_finite(layers: &[Self]) -> bool;

    /// The size of all rows in bytes.
    #[cfg(test)]
    fn bytes(&self) -> usize;
}

/// A row of kept keys and values.
#[derive(Debug)]
pub(crate) struct KeptRow<'a, K> {
    /// For each layer with keys, the rows among which it is.
    pub(crate) layers: &'a [K],
    /// Its index there.
    pub(crate) row: usize,
}

/// Values in main memory, in the precision in which attention reads them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum HostValues {
    /// Unrounded.
    F32(Vec<f32>),
    /// Rounded to bfloat16.
    Bf16(Vec<u16>),
}

impl HostValues {
    /// Appends values, rounded if need be.
    pub(crate) fn extend(&mut self, values: &[f32]) {
        match self {
            Self::F32(kept) => kept.extend_from_slice(values),
            Self::Bf16(kept) => kept.extend(values.iter().map(|&value| round_to_bf16(value))),
        }
    }

    /// Writes row `row`, of `out.len()` values, to `out`.
    pub(crate) fn read(&self, row: usize, out: &mut [f32]) {
        let range = row * out.len()..(row + 1) * out.len();
        match self {
            Self::F32(kept) => out.copy_from_slice(&kept[range]),
            Self::Bf16(kept) => {
                for (out, &value) in out.iter_mut().zip(&kept[range]) {
                    *out = widen(value);
                }
            }
        }
    }
}

impl Kept for HostValues {
    fn copy_rows(layers: &[Self], rows: &[usize], width: usize) -> Result<Vec<Self>> {
        fn pick<T: Copy>(kept: &[T], rows: &[usize], width: usize) -> Vec<T> {
            let mut out = Vec::with_capacity(rows.len() * width);
            for row in rows {
                out.extend_from_slice(&kept[row * width..][..width]);
            }
            out
        }
        let copies = layers.iter().map(|layer| match layer {
            Self::F32(kept) => Self::F32(pick(kept, rows, width)),
            Self::Bf16(kept) => Self::Bf16(pick(kept, rows, width)),
        });
        Ok(copies.collect())
    }

    fn are_finite(layers: &[Self]) -> bool {
        layers.iter().all(|layer| match layer {
            Self::F32(kept) => kept.iter().all(|value| value.is_finite()),
            Self::Bf16(kept) => kept.iter().all(|&value| widen(value).is_finite()),
        })
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        match self {
            Self::F32(kept) => kept.capacity() * size_of::<f32>(),
            Self::Bf16(kept) => kept.capacity() * size_of::<u16>(),
        }
    }
}

fn widen(value: u16) -> f32 {
    f32::from_bits(u32::from(value) << 16)
}
