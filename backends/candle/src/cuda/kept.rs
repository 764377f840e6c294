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
    fn rows(&self, rows: &[usize], _: usize) -> Result<Self> {
        let is_run = rows.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let values = match rows.first() {
            Some(&first) if is_run => {
                self.values.narrow(0, first, rows.len()).and_then(|run| run.force_contiguous())
            }
            _ => {
                let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
                Tensor::new(rows, self.values.device()).and_then(|rows| self.values.index_select(&rows, 0))
            }
        };
        Ok(Self { values: values.map_err(failed)?, finite: Arc::clone(&self.finite) })
    }

    fn is_finite(&self) -> bool {
        self.finite.holds()
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.values.elem_count() * self.values.dtype().size_in_bytes()
    }
}
