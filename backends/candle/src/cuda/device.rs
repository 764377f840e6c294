//! An NVIDIA GPU: launches, products by cuBLAS, flash attention by `candle-flash-attn`.
//!
//! All work goes into one stream, so each step finds the results of the steps before it. Calls may wait in
//! the queue of `call_queue.rs` until [`Accelerator::flush_calls`].
#![expect(unsafe_code, reason = "memory without values and copies are outside of Rust's checks")]

#[cfg(test)]
use super::accelerator::Word;
use super::{
    accelerator::{Accelerator, Argument, FlashInput, Launch, int},
    call_queue::CallQueue,
    calls::{Caller, DeviceCall, KernelCall, KernelHandle, ProductCall},
    sequences::Sequences,
    target::{Card, Target},
};
use crate::errors::{failed, missing};
use candle_core::{
    CudaDevice, CudaStorage, DType, Device, Result, Storage, Tensor, bail,
    cuda_backend::{
        CudaDType, WrapErr,
        cudarc::driver::{DevicePtr, result, sys as driver},
    },
    op::BackpropOp,
};
use half::{bf16, f16};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use text_embeddings_backend_core::BackendError;

/// The kernels, compiled by the build script.
const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.ptx"));
/// The name under which candle keeps the kernels' module.
const MODULE: &str = "text-embeddings-kernels";

/// A GPU.
pub(crate) struct Gpu {
    device: Device,
    cuda: CudaDevice,
    functions: Mutex<HashMap<(&'static str, Option<DType>), KernelHandle>>,
    queue: Mutex<CallQueue<Caller>>,
    /// Whether to use flash attention 2.
    has_flash: bool,
}

/// The generation of GPUs from which on there are bfloat16 and flash attention 2.
const AMPERE: u32 = 8;

impl Gpu {
    /// The GPU behind a candle device, for operands of `dtype`. It uses flash attention if `flash_attention`
    /// is set, the build has it, and the card is Ampere or later.
    pub(crate) fn new(
        device: Device,
        dtype: DType,
        flash_attention: bool,
    ) -> std::result::Result<Self, BackendError> {
        let card = card().map_err(failed)?;
        let (major, minor) = card.capability;
        if dtype == DType::BF16 && major < AMPERE {
            return Err(BackendError::Load(format!(
                "`--dtype bfloat16` needs compute capability {AMPERE}.0, and this GPU has {major}.{minor}: give float16"
            )));
        }
        let has_flash = flash_attention && cfg!(feature = "flash-attn") && major >= AMPERE;
        if has_flash && let Some(refusal) = target().and_then(|target| target.flash_refusal(card)) {
            return Err(BackendError::Load(refusal));
        }
        let cuda = device.as_cuda_device().map_err(failed)?.clone();
        let queue = Mutex::new(CallQueue::new(Caller::new(&cuda).map_err(failed)?));
        Ok(Self { device, cuda, functions: Mutex::default(), queue, has_flash })
    }

    fn load_function(&self, launch: &Launch<'_>) -> Result<KernelHandle> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&(launch.kernel, launch.dtype)) {
            return Ok(*function);
        }
        let function = self.cuda.get_or_load_custom_func(&launch.name(), MODULE, PTX)?;
        let function = KernelHandle(function.cu_function());
        functions.insert((launch.kernel, launch.dtype), function);
        Ok(function)
    }

    /// Runs a kernel of this full name.
    #[cfg(test)]
    pub(crate) fn run_kernel_by_name(
        &self,
        name: &str,
        blocks: usize,
        threads: usize,
        words: &[Word],
    ) -> Result<()> {
        let function = self.cuda.get_or_load_custom_func(name, MODULE, PTX)?;
        let call = KernelCall {
            function: KernelHandle(function.cu_function()),
            blocks: int(blocks)?.unsigned_abs(),
            threads: int(threads)?.unsigned_abs(),
            words: words.to_vec(),
        };
        self.lock_queue().push_call(DeviceCall::Kernel(call), [])?;
        self.flush_calls()
    }

    fn lock_queue(&self) -> MutexGuard<'_, CallQueue<Caller>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn storage<T: CudaDType + candle_core::cuda_backend::cudarc::driver::DeviceRepr>(
        &self,
        values: usize,
    ) -> Result<Storage> {
        // SAFETY: every caller writes all values before it reads any.
        let slice = unsafe { self.cuda.alloc::<T>(values)? };
        Ok(Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, self.cuda.clone())))
    }

    /// The device's stream.
    fn stream(&self) -> driver::CUstream {
        self.cuda.cuda_stream().cu_stream()
    }

    fn base_address<T: CudaDType>(&self, storage: &CudaStorage) -> Result<u64> {
        let stream = self.cuda.cuda_stream();
        let (address, _guard) = storage.as_cuda_slice::<T>()?.device_ptr(&stream);
        Ok(address)
    }
}

impl Accelerator for Gpu {
    fn device(&self) -> &Device {
        &self.device
    }

    fn allocate_tensor(&self, rows: usize, columns: usize, dtype: DType) -> Result<Tensor> {
        let storage = match dtype {
            DType::F32 => self.storage::<f32>(rows * columns)?,
            DType::F16 => self.storage::<f16>(rows * columns)?,
            DType::BF16 => self.storage::<bf16>(rows * columns)?,
            DType::U32 => self.storage::<u32>(rows * columns)?,
            other => bail!("this backend makes no GPU tensors of {other:?}"),
        };
        Ok(Tensor::from_storage(storage, (rows, columns), BackpropOp::none(), false))
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let call = KernelCall {
            function: self.load_function(launch)?,
            blocks: int(launch.blocks)?.unsigned_abs(),
            threads: int(launch.threads)?.unsigned_abs(),
            words: launch.words(self)?,
        };
        let tensors = launch.arguments.iter().filter_map(|argument| match argument {
            Argument::Tensor(tensor) | Argument::Rows(tensor) => Some(*tensor),
            _ => None,
        });
        self.lock_queue().push_call(DeviceCall::Kernel(call), tensors)
    }

    fn multiply(&self, x: &Tensor, weight: &Tensor, out: &Tensor, adds: bool) -> Result<()> {
        let ((rows, inputs), (outputs, columns)) = (x.dims2()?, weight.dims2()?);
        let is_contiguous = [x, weight, out].iter().all(|matrix| matrix.is_contiguous());
        if inputs != columns
            || out.dims2()? != (rows, outputs)
            || x.dtype() != weight.dtype()
            || !is_contiguous
        {
            bail!(
                "cannot multiply {:?} {:?} by the weight {:?} {:?} into {:?}",
                x.dtype(),
                x.shape(),
                weight.dtype(),
                weight.shape(),
                out.shape()
            );
        }
        let call = ProductCall {
            rows: int(rows)?,
            inputs: int(inputs)?,
            outputs: int(outputs)?,
            x: self.address(x)?,
            weight: self.address(weight)?,
            out: self.address(out)?,
            dtype: x.dtype(),
            out_dtype: out.dtype(),
            adds,
        };
        self.lock_queue().push_call(DeviceCall::Product(call), [x, weight, out])
    }

    fn has_flash(&self) -> bool {
        self.has_flash
    }

    #[cfg(feature = "flash-attn")]
    fn attend_sequences(&self, input: &FlashInput<'_>, sequences: &Sequences) -> Result<()> {
        let call = DeviceCall::Flash(super::flash::FlashCall::new(self, input, sequences)?);
        let FlashInput { queries, keys_values, context, sums, .. } = *input;
        let lists = [&*sequences.query_starts, &*sequences.key_starts];
        self.lock_queue().push_call(call, [queries, keys_values, context, sums].into_iter().chain(lists))
    }

    #[cfg(not(feature = "flash-attn"))]
    fn attend_sequences(&self, _: &FlashInput<'_>, _: &Sequences) -> Result<()> {
        bail!("this build has no flash attention")
    }

    fn write_list(&self, words: &[u32], list: &Tensor) -> Result<()> {
        if list.elem_count() != words.len() {
            bail!("{} words for a list of {}", words.len(), list.elem_count());
        }
        self.flush_calls()?;
        // SAFETY: the list has room for the words. They are not pinned: when the call returns, the driver has
        // read them.
        unsafe { result::memcpy_htod_async(self.address(list)?, words, self.stream()) }.w()
    }

    fn read_words(&self, values: &Tensor) -> Result<Vec<u32>> {
        if values.dtype().size_in_bytes() != size_of::<u32>() {
            bail!("{:?} does not have 32 bits", values.dtype());
        }
        self.flush_calls()?;
        let mut words = vec![0; values.elem_count()];
        // SAFETY: the tensor has as many words. They are not pinned: when the call returns, they are there.
        unsafe { result::memcpy_dtoh_async(&mut words, self.address(values)?, self.stream()) }.w()?;
        Ok(words)
    }

    #[cfg(test)]
    fn spoil_values(&self, values: &Tensor) {
        let bytes = values.elem_count() * values.dtype().size_in_bytes();
        let Ok(address) = self.address(values) else { return };
        let (call, mut queue) = (DeviceCall::Spoil { address, bytes }, self.lock_queue());
        // Between two sections it is not part of either. If it fails, the device is lost.
        let is_between = queue.is_empty();
        let _ = queue.push_call(call, [values]);
        if is_between {
            let _ = queue.end_section();
        }
    }

    fn flush_calls(&self) -> Result<()> {
        self.lock_queue().end_section()
    }

    fn forget_calls(&self) {
        self.lock_queue().forget_calls();
    }

    fn trim_memory(&self) -> Result<()> {
        self.device.synchronize()?;
        // SAFETY: the device is the driver's own, and its default pool lives as long as the device.
        unsafe { result::mem_pool::trim_to(default_pool()?, 0) }.w()
    }

    fn address(&self, tensor: &Tensor) -> Result<u64> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { bail!("the tensor is not on the GPU") };
        let base = match tensor.dtype() {
            DType::F32 => self.base_address::<f32>(storage)?,
            DType::F16 => self.base_address::<f16>(storage)?,
            DType::BF16 => self.base_address::<bf16>(storage)?,
            DType::U32 => self.base_address::<u32>(storage)?,
            DType::I64 => self.base_address::<i64>(storage)?,
            other => bail!("no kernel takes {other:?}"),
        };
        Ok(base + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
    }
}

/// The first GPU that the driver shows.
pub(crate) fn open() -> std::result::Result<Device, BackendError> {
    let no_device = |error: candle_core::Error| missing("CUDA", &error);
    let card = card().map_err(no_device)?;
    if let Some(refusal) = target().and_then(|target| target.refusal(card)) {
        return Err(BackendError::Load(refusal));
    }
    let device = Device::new_cuda(0).map_err(no_device)?;
    spare_the_driver(&device).map_err(no_device)?;
    Ok(device)
}

/// The target of this binary's kernels.
fn target() -> Option<Target> {
    Target::from_ptx(PTX)
}

/// Whether the first GPU multiplies bfloat16.
pub(crate) fn has_bfloat16() -> std::result::Result<bool, BackendError> {
    Ok(card().map_err(failed)?.capability.0 >= AMPERE)
}

/// Facts about the first GPU.
fn card() -> Result<Card> {
    use driver::CUdevice_attribute as Attribute;
    result::init().w()?;
    let device = result::device::get(0).w()?;
    // SAFETY: the device is the driver's own.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) }.w();
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let mut driver = 0;
    // SAFETY: the call writes one number.
    unsafe { driver::cuDriverGetVersion(&raw mut driver) }.result().w()?;
    Ok(Card { capability: (major.unsigned_abs(), minor.unsigned_abs()), driver: driver.unsigned_abs() })
}

/// The pool from which candle allocates memory.
fn default_pool() -> Result<driver::CUmemoryPool> {
    // SAFETY: the device is the driver's own.
    unsafe { result::device::get_default_mem_pool(result::device::get(0).w()?) }.w()
}

/// Switches off two features that cost a forward pass time and bring no benefit here: events that order
/// several streams, and the return of free memory to the system after each pass. The process keeps the memory
/// of its largest pass.
fn spare_the_driver(device: &Device) -> Result<()> {
    let device = device.as_cuda_device()?;
    // SAFETY: candle gives all tensors the same stream, and no event is needed within a stream. It is CUDA's
    // per-thread stream, so each thread has its own queue. The loading thread's queue is empty before another
    // thread computes: loading ends with a check that waits for the result of a forward pass.
    unsafe { device.disable_event_tracking() };
    if !device.cuda_stream().context().has_async_alloc() {
        // Some virtual GPUs have no pools of memory.
        return Ok(());
    }
    let mut all = u64::MAX;
    // SAFETY: the default pool lives as long as the device, and this attribute is a `u64`.
    unsafe {
        let pool = default_pool()?;
        let threshold = driver::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, threshold, (&raw mut all).cast()).w()
    }
}
