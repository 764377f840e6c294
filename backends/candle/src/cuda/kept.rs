//! Keys and values of prefixes that stay on the device.

use super::{
    accelerator::Accelerator,
    launches::{Launches, ScatteredRows, list_places},
    memory::DeviceMemory,
    tensor::CudaTensor,
};
use crate::{errors::failed, kept::Kept, operations::Result};
use std::sync::{Arc, OnceLock};

/// Rows of keys and values of one layer, `[rows, width]`.
pub(crate) struct DeviceValues<A> {
    values: CudaTensor,
    finite: Arc<Finite<A>>,
}

/// Whether all values that one forward pass keeps are finite: a number on the device, which is read only
/// once.
pub(crate) struct Finite<A> {
    memory: Arc<DeviceMemory<A>>,
    /// Zero until a value is not finite; absent if the answer is known.
    found: Option<CudaTensor>,
    answer: OnceLock<bool>,
}

impl<A: Accelerator> Finite<A> {
    pub(crate) fn new(memory: &Arc<DeviceMemory<A>>) -> Result<Self> {
        let found = Some(memory.place_list([0])?);
        Ok(Self { memory: Arc::clone(memory), found, answer: OnceLock::new() })
    }

    /// The same answer, for copies of the values.
    fn for_copies(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), found: None, answer: OnceLock::from(self.holds()) }
    }

    /// Includes these values in the check.
    pub(crate) fn look_at(&self, values: &CudaTensor) -> Result<()> {
        let Some(found) = &self.found else { return Ok(()) };
        Launches::new(&self.memory).not_finite(values, found)
    }

    fn holds(&self) -> bool {
        *self.answer.get_or_init(|| {
            // If the device does not answer, the values count as spoilt.
            let found = self.found.as_ref().and_then(|found| self.memory.read_words(found).ok());
            found.is_some_and(|found| found == [0])
        })
    }
}

impl<A: Accelerator> DeviceValues<A> {
    pub(crate) fn new(values: CudaTensor, finite: Arc<Finite<A>>) -> Self {
        Self { values, finite }
    }

    fn address(&self) -> Result<u64> {
        self.finite.memory.accelerator().address(&self.values).map_err(failed)
    }

    /// The address of the first layer's row, and the bytes from there to the next layer's: copies lie one
    /// after the other.
    pub(crate) fn place_of_row(layers: &[Self], row: usize, row_bytes: usize) -> Result<[u64; 2]> {
        let first = layers[0].address()?;
        let step = layers.get(1).map_or(Ok(first), Self::address)? - first;
        Ok([first + (row * row_bytes) as u64, step])
    }
}

impl<A: Accelerator> Kept for DeviceValues<A> {
    /// One kernel copies all layers into one allocation: each call of the driver takes microseconds.
    fn copy_rows(layers: &[Self], rows: &[usize], width: usize) -> Result<Vec<Self>> {
        let Some(Self { values, finite }) = layers.first() else { return Ok(Vec::new()) };
        let memory = &finite.memory;
        let row_bytes = width * values.dtype().size_in_bytes();
        let mut places = Vec::with_capacity(layers.len() * rows.len());
        for layer in layers {
            let first = layer.address()?;
            places.extend(rows.iter().map(|row| [first + (row * row_bytes) as u64, 0]));
        }
        let copies = memory.empty_apart(places.len(), width, values.dtype())?;
        let places = memory.place_list(list_places(places))?;
        let none = values.narrow(0, 0, 0).map_err(failed)?;
        let from = ScatteredRows { own: &none, others: Some(&places), layer: 0 };
        Launches::new(memory).gather_rows(&from, None, &copies)?;
        // Whoever computes next finds the copies.
        memory.accelerator().flush_calls().map_err(failed)?;
        let finite = Arc::new(finite.for_copies());
        let of_layers = (0..layers.len()).map(|index| {
            let values = copies.with_view(copies.narrow(0, index * rows.len(), rows.len()))?;
            Ok(Self { values, finite: Arc::clone(&finite) })
        });
        of_layers.collect()
    }

    fn is_finite(&self) -> bool {
        self.finite.holds()
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.values.elem_count() * self.values.dtype().size_in_bytes()
    }
}
