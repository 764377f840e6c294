//! Calls to CUDA's driver that candle does not make.

use candle_core::{
    Device, Result,
    cuda_backend::{
        WrapErr,
        cudarc::driver::{result, sys::CUmemPool_attribute},
    },
};

/// Switches off two features that cost a forward pass time without a benefit: events that order several
/// streams, and the return of free memory to the system after each pass. The process keeps the memory of its
/// largest pass.
pub(crate) fn spare_the_driver(device: &Device) -> Result<()> {
    let device = device.as_cuda_device()?;
    // SAFETY: candle gives all tensors the same stream, within which it waits for no event. CUDA keeps a
    // queue of that stream for each thread. The work that the loading thread queued is done before another
    // thread computes, because the check that ends loading reads the result of a forward pass.
    unsafe { device.disable_event_tracking() };
    let mut all = u64::MAX;
    // SAFETY: the device is the driver's own, its default pool lives as long as it, and this attribute is a
    // `u64`.
    unsafe {
        let pool = result::device::get_default_mem_pool(result::device::get(0).w()?).w()?;
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, threshold, (&raw mut all).cast()).w()
    }
}
