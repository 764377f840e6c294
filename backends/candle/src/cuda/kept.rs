//! Keys and values of prefixes that stay on the device.

use super::{accelerator::Accelerator, launches::Launches};
use crate::{kept::Kept, operations::Result, plain::failed};
use candle_core::{DType, Tensor};
use std::sync::{Arc, OnceLock};

/// Rows of keys and values of one layer, `[rows, width]`.
pub(crate) struct DeviceValues<A> {
    values: Tensor,
    finite: Arc<Finite<A>>,
}

/// Whether all values that one forward pass keeps are finite: a number on the device, which is read only
/// once.
pub(crate) struct Finite<A> {
    accelerator: Arc<A>,
    /// Zero until a value is not finite.
    found: Tensor,
    answer: OnceLock<bool>,
}

impl<A: Accelerator> Finite<A> {
    pub(crate) fn new(accelerator: &Arc<A>) -> Result<Self> {
        let found = Tensor::zeros(1, DType::U32, accelerator.device()).map_err(failed)?;
        Ok(Self { accelerator: Arc::clone(accelerator), found, answer: OnceLock::new() })
    }

    /// Includes these values in the check.
    pub(crate) fn look_at(&self, values: &Tensor) -> Result<()> {
        Launches::new(&self.accelerator).not_finite(values, &self.found)
    }

    fn holds(&self) -> bool {
        // If the device does not answer, the values count as spoilt.
        *self.answer.get_or_init(|| self.found.to_vec1::<u32>().is_ok_and(|found| found == [0]))
    }
}

impl<A: Accelerator> DeviceValues<A> {
    pub(crate) fn new(values: Tensor, finite: Arc<Finite<A>>) -> Self {
        Self { values, finite }
    }

    /// The address of the first row.
    pub(crate) fn address(&self) -> Result<u64> {
        self.finite.accelerator.address(&self.values).map_err(failed)
    }
}

impl<A: Accelerator> Kept for DeviceValues<A> {
    /// One kernel copies all layers into one allocation: each call of the driver takes microseconds.
    fn copy_rows(layers: &[Self], rows: &[usize], width: usize) -> Result<Vec<Self>> {
        let Some(Self { values, finite }) = layers.first() else { return Ok(Vec::new()) };
        let mut addresses = Vec::with_capacity(layers.len() * rows.len());
        for layer in layers {
            let first = layer.address()?;
            let row_bytes = width * layer.values.dtype().size_in_bytes();
            addresses.extend(rows.iter().map(|row| (first + (row * row_bytes) as u64) as i64));
        }
        let addresses = Tensor::new(addresses, values.device()).map_err(failed)?;
        let none = values.narrow(0, 0, 0).map_err(failed)?;
        let copies = Launches::new(&finite.accelerator).gather_rows(&none, Some(&addresses), None)?;
        let of_layer = |(index, layer): (usize, &Self)| {
            let values = copies.narrow(0, index * rows.len(), rows.len()).map_err(failed)?;
            Ok(Self { values, finite: Arc::clone(&layer.finite) })
        };
        layers.iter().enumerate().map(of_layer).collect()
    }

    fn is_finite(&self) -> bool {
        self.finite.holds()
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.values.elem_count() * self.values.dtype().size_in_bytes()
    }
}
