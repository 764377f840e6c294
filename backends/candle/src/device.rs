//! Which device computes: the one place that knows the `cuda` and `metal` features.

#[cfg(feature = "tensors")]
use candle_core::Device;
use text_embeddings_backend_core::BackendError;
#[cfg(feature = "tensors")]
use text_embeddings_backend_core::NumberSupport;

/// Whether this build computes on the CPU. A build for another device does not fall back to it.
pub const ON_CPU: bool = !cfg!(any(feature = "cuda", feature = "metal"));

/// The name of the device that this build computes on.
pub const DEVICE: &str = if cfg!(feature = "cuda") {
    "cuda"
} else if cfg!(feature = "metal") {
    "metal"
} else {
    "cpu"
};

pub(crate) enum Chosen {
    /// The CPU, with this crate's kernels.
    Cpu,
    /// A device that candle drives.
    #[cfg(feature = "tensors")]
    Candle(Device),
}

/// Prepares this thread for calls of the device, above all for those that free memory: without, they fail.
/// With `waits`, all threads' work is done afterwards.
/// The error may be an earlier call's that had nowhere to report it.
#[cfg(feature = "cuda")]
pub(crate) fn bind_thread(device: &Device, waits: bool) -> candle_core::Result<()> {
    let Device::Cuda(cuda) = device else { return Ok(()) };
    let stream = cuda.cuda_stream();
    let context = stream.context();
    let result = if waits { context.synchronize() } else { context.bind_to_thread() };
    result.map_err(candle_core::Error::wrap)
}

/// The types that a device which candle drives computes in. With `needs_range`, values may be too large for
/// float16.
#[cfg(feature = "tensors")]
#[cfg_attr(
    not(feature = "cuda"),
    expect(clippy::unnecessary_wraps, unused_variables, reason = "only NVIDIA's GPUs have 16 bits")
)]
pub(crate) fn number_support(needs_range: bool) -> Result<NumberSupport, BackendError> {
    #[cfg(feature = "cuda")]
    return Ok(NumberSupport::Gpu { has_bfloat16: crate::cuda::device::has_bfloat16()?, needs_range });
    #[cfg(not(feature = "cuda"))]
    Ok(NumberSupport::Float32)
}

/// The device of this build: CUDA or Metal if compiled in, else the CPU.
/// There is no fallback to the CPU, which would be a hundred times slower.
#[cfg_attr(not(feature = "tensors"), expect(clippy::unnecessary_wraps, reason = "there is always a CPU"))]
pub(crate) fn choose() -> Result<Chosen, BackendError> {
    if cfg!(feature = "cuda") {
        #[cfg(feature = "cuda")]
        return crate::cuda::device::open().map(Chosen::Candle);
    }
    if cfg!(feature = "metal") {
        #[cfg(feature = "metal")]
        return Device::new_metal(0)
            .map(Chosen::Candle)
            .map_err(|error| crate::errors::missing("Metal", &error));
    }
    Ok(Chosen::Cpu)
}
