//! The modules of a head, for other backends, whose models compute only hidden states.

use crate::{
    cpu::CpuOperations,
    kernels::InstructionSet,
    modules::Steps,
    operations::{Operations, Result},
};
use text_embeddings_backend_core::{DType, HeadModule};

/// Modules on the CPU, in float32 and on one thread.
pub struct HostModules {
    operations: CpuOperations,
    steps: Steps<CpuOperations>,
}

impl HostModules {
    /// Loads modules that are applied in turn to vectors of `width` values.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`](text_embeddings_backend_core::BackendError::Load) naming the file if a module
    /// does not fit the one before it, or if its weights are missing or of another shape.
    pub fn load(modules: &[HeadModule], width: usize) -> Result<Self> {
        // Always float32: ONNX Runtime uses AMX on this thread, and `kernels/amx.rs` would not notice.
        let operations = CpuOperations::start(1, InstructionSet::best(), DType::Float32)?;
        let steps = Steps::of_modules(modules, width, &operations)?;
        Ok(Self { operations, steps })
    }

    /// Values of an input vector, and of an output vector.
    #[must_use]
    pub fn widths(&self) -> (usize, usize) {
        self.steps.widths
    }

    /// Runs vectors, one after the other, through the modules.
    ///
    /// # Errors
    ///
    /// [`BackendError::Inference`](text_embeddings_backend_core::BackendError::Inference) if a product fails.
    pub fn run(&mut self, vectors: Vec<f32>) -> Result<Vec<f32>> {
        let steps = &self.steps;
        self.operations.enter(|operations| steps.run(operations, vectors))
    }
}
