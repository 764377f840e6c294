//! Which device computes: the one place that knows the `cuda` and `metal` features.

use candle_core::Device;
use text_embeddings_backend_core::BackendError;

/// Whether this build computes on the CPU: a build for another device does not fall back to it.
pub const ON_CPU: bool = !cfg!(any(feature = "cuda", feature = "metal"));

/// What computes.
pub(crate) enum Chosen {
    /// The CPU, with this crate's kernels.
    Cpu,
    /// A device that candle drives.
    Candle(Device),
}

/// The device of this build: CUDA or Metal if compiled in, else the CPU.
///
/// # Errors
///
/// [`BackendError::Load`] if the build is for a device that this machine does not have: falling back to the
/// CPU would be a hundred times slower without a word.
pub(crate) fn choose() -> Result<Chosen, BackendError> {
    let missing = |name: &str, error: candle_core::Error| {
        BackendError::Load(format!(
            "this binary was built for {name}, but there is no such device here: {error}"
        ))
    };
    if cfg!(feature = "cuda") {
        let device = Device::new_cuda(0).map_err(|error| missing("CUDA", error))?;
        #[cfg(feature = "cuda")]
        crate::cuda::device::spare_the_driver(&device).map_err(|error| missing("CUDA", error))?;
        return Ok(Chosen::Candle(device));
    }
    if cfg!(feature = "metal") {
        return Device::new_metal(0).map(Chosen::Candle).map_err(|error| missing("Metal", error));
    }
    Ok(Chosen::Cpu)
}
