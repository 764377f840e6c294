//! A tensor on the device, with its hold on the memory.

use crate::{errors::failed, operations::Result};
use candle_core::Tensor;
use std::{ops::Deref, sync::Arc};

/// A tensor on the device.
#[derive(Clone)]
pub(crate) struct CudaTensor {
    values: Tensor,
    /// Keeps the tensor's part of a chunk; absent if the tensor has an allocation of its own.
    part: Option<Arc<dyn Send + Sync>>,
}

impl CudaTensor {
    /// A tensor in a part of a chunk.
    pub(super) fn in_chunk(values: Tensor, part: Arc<dyn Send + Sync>) -> Self {
        Self { values, part: Some(part) }
    }

    /// Another view of the same values.
    pub(super) fn with_view(&self, view: candle_core::Result<Tensor>) -> Result<Self> {
        Ok(Self { values: view.map_err(failed)?, part: self.part.clone() })
    }
}

impl Deref for CudaTensor {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.values
    }
}

/// A tensor with an allocation of its own.
impl From<Tensor> for CudaTensor {
    fn from(values: Tensor) -> Self {
        Self { values, part: None }
    }
}
