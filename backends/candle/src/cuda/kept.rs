//! Keys and values of prefixes that stay on the device.

use super::{
    accelerator::Accelerator,
    launches::{Launches, list_addresses},
    memory::DeviceMemory,
    tensor::CudaTensor,
};
use crate::{errors::failed, kept::Kept, operations::Result};
use std::sync::Arc;

/// Rows of keys and values of one layer, `[rows, width]`.
pub(crate) struct DeviceValues<A> {
    values: CudaTensor,
    memory: Arc<DeviceMemory<A>>,
}

impl<A: Accelerator> DeviceValues<A> {
    pub(crate) fn new(values: CudaTensor, memory: &Arc<DeviceMemory<A>>) -> Self {
        Self { values, memory: Arc::clone(memory) }
    }

    fn address(&self) -> Result<u64> {
        self.memory.accelerator().address(&self.values).map_err(failed)
    }

    /// The address of the first layer's row, and the bytes from there to the next layer's: copies lie one
    /// after the other.
    pub(crate) fn place_of_row(layers: &[Self], row: usize, row_bytes: usize) -> Result<[u64; 2]> {
        let first = layers[0].address()?;
        let step = layers.get(1).map_or(Ok(first), Self::address)? - first;
        Ok([first + (row * row_bytes) as u64, step])
    }

    /// The addresses of the layers, on the device.
    fn place_addresses(&self, layers: &[Self]) -> Result<CudaTensor> {
        let addresses = layers.iter().map(Self::address).collect::<Result<Vec<_>>>()?;
        self.memory.place_list(list_addresses(addresses))
    }

    /// Whether all values of `layers` are finite: one kernel looks at all layers.
    fn find_finite(&self, layers: &[Self]) -> Result<bool> {
        let addresses = self.place_addresses(layers)?;
        let found = self.memory.place_list([0])?;
        Launches::new(&self.memory).not_finite(&addresses, &self.values, &found)?;
        Ok(self.memory.read_words(&found)? == [0])
    }
}

impl<A: Accelerator> Kept for DeviceValues<A> {
    /// One kernel copies all layers into one allocation: each call of the driver takes microseconds.
    fn copy_rows(layers: &[Self], rows: &[usize], width: usize) -> Result<Vec<Self>> {
        let Some(first) = layers.first() else { return Ok(Vec::new()) };
        let memory = &first.memory;
        let copies = memory.empty_apart(layers.len() * rows.len(), width, first.values.dtype())?;
        let addresses = first.place_addresses(layers)?;
        let places = memory.place_list(rows.iter().map(|&row| row as u32))?;
        Launches::new(memory).copy_layers(&addresses, &places, &copies)?;
        // Whoever computes next finds the copies.
        memory.accelerator().flush_calls().map_err(failed)?;
        let of_layers = (0..layers.len()).map(|index| {
            let values = copies.with_view(copies.narrow(0, index * rows.len(), rows.len()))?;
            Ok(Self::new(values, memory))
        });
        of_layers.collect()
    }

    /// If the device does not answer, the values count as spoilt.
    fn are_finite(layers: &[Self]) -> bool {
        layers.first().is_none_or(|first| first.find_finite(layers).unwrap_or(false))
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.values.elem_count() * self.values.dtype().size_in_bytes()
    }
}
