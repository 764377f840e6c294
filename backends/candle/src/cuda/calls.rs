//! The calls that a pass makes: launches of kernels, products by cuBLAS, flash attention. They go into one
//! stream, one after the other or as a graph.
#![expect(unsafe_code, reason = "launches, cuBLAS and graphs are outside of Rust's checks")]

#[cfg(feature = "flash-attn")]
use super::flash::FlashCall;
use super::{accelerator::Word, call_queue::CallDevice};
use candle_core::{
    CudaDevice, DType, Result, bail,
    cuda_backend::{
        WrapErr,
        cudarc::{
            cublas::{result::gemm_ex, sys},
            driver::{CudaGraph, CudaSlice, CudaStream, DevicePtr, result, sys as driver},
        },
    },
};
use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

/// Memory that cuBLAS may use during a product, as its documentation recommends for Hopper. Without it,
/// cuBLAS would allocate in the middle of a graph.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A call with its arguments.
#[derive(Debug, PartialEq)]
pub(super) enum DeviceCall {
    Kernel(KernelCall),
    Product(ProductCall),
    #[cfg(feature = "flash-attn")]
    Flash(FlashCall),
    /// Makes memory NaN.
    #[cfg(test)]
    Spoil {
        address: u64,
        bytes: usize,
    },
}

#[derive(Debug, PartialEq)]
pub(super) struct KernelCall {
    pub(super) function: KernelHandle,
    pub(super) blocks: u32,
    pub(super) threads: u32,
    pub(super) words: Vec<Word>,
}

/// A kernel that is loaded as long as the device is open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct KernelHandle(pub(super) driver::CUfunction);

// SAFETY: the driver's functions may be used by any thread.
unsafe impl Send for KernelHandle {}

/// `out = x · weightᵀ` or `out += x · weightᵀ`: addresses of matrices `[rows, inputs]`, `[outputs, inputs]`
/// and `[rows, outputs]`.
#[derive(Debug, PartialEq)]
pub(super) struct ProductCall {
    pub(super) rows: c_int,
    pub(super) inputs: c_int,
    pub(super) outputs: c_int,
    pub(super) x: u64,
    pub(super) weight: u64,
    pub(super) out: u64,
    pub(super) dtype: DType,
    pub(super) out_dtype: DType,
    pub(super) adds: bool,
}

/// Makes the calls.
pub(super) struct Caller {
    cuda: CudaDevice,
    stream: Arc<CudaStream>,
    _workspace: CudaSlice<u8>,
}

/// A graph of calls.
pub(super) struct CallGraph(CudaGraph);

// SAFETY: a graph may be used by any thread, but by one at a time: it is in a queue behind a lock.
unsafe impl Send for CallGraph {}

impl Caller {
    pub(super) fn new(cuda: &CudaDevice) -> Result<Self> {
        let stream = cuda.cuda_stream();
        // SAFETY: cuBLAS writes before it reads.
        let workspace = unsafe { cuda.alloc::<u8>(WORKSPACE_BYTES)? };
        let handle = *cuda.cublas_handle().handle();
        let (address, guard) = workspace.device_ptr(&stream);
        // Keeps cuBLAS from adding up parts of a product in 16 bits.
        let mode = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle is candle's own and lives as long as the device, and the workspace as long as
        // this value, which makes all products.
        unsafe {
            sys::cublasSetMathMode(handle, mode).result().w()?;
            sys::cublasSetWorkspace_v2(handle, address as *mut c_void, WORKSPACE_BYTES).result().w()?;
        }
        drop(guard);
        Ok(Self { cuda: cuda.clone(), stream, _workspace: workspace })
    }

    fn start_kernel(&self, call: &KernelCall) -> Result<()> {
        let mut words: Vec<*mut c_void> = call.words.iter().map(Word::value_pointer).collect();
        let (blocks, threads) = ((call.blocks, 1, 1), (call.threads, 1, 1));
        self.stream.context().bind_to_thread().w()?;
        // SAFETY: the arguments match the kernel's parameters in type and order. Tests run the same launches
        // on the kernels compiled for the CPU. All tensors are alive during this call; memory that is freed
        // later is freed in the same stream, so after the kernel.
        unsafe {
            result::launch_kernel(call.function.0, blocks, threads, 0, self.stream.cu_stream(), &mut words)
        }
        .w()
    }

    fn start_product(&self, call: &ProductCall) -> Result<()> {
        let (one, beta) = (1.0_f32, if call.adds { 1.0_f32 } else { 0.0 });
        // cuBLAS is column-major: it sees the row-major `out` as `[outputs, rows]` and computes it as the
        // weight times `x`, so nothing is copied. SAFETY: whoever made the call checked sizes and types, the
        // matrices are contiguous, and the scalars outlive the call.
        unsafe {
            gemm_ex(
                *self.cuda.cublas_handle().handle(),
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                call.outputs,
                call.rows,
                call.inputs,
                (&raw const one).cast(),
                call.weight as *const _,
                cublas_type(call.dtype)?,
                call.inputs,
                call.x as *const _,
                cublas_type(call.dtype)?,
                call.inputs,
                (&raw const beta).cast(),
                call.out as *mut _,
                cublas_type(call.out_dtype)?,
                call.outputs,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .w()
    }
}

/// cuBLAS' name for a type.
fn cublas_type(dtype: DType) -> Result<sys::cudaDataType> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType::CUDA_R_32F),
        DType::F16 => Ok(sys::cudaDataType::CUDA_R_16F),
        DType::BF16 => Ok(sys::cudaDataType::CUDA_R_16BF),
        other => bail!("cuBLAS products here do not support {other:?}"),
    }
}

impl CallDevice for Caller {
    type Call = DeviceCall;
    type Graph = CallGraph;

    fn start_call(&self, call: &DeviceCall) -> Result<()> {
        match call {
            DeviceCall::Kernel(kernel) => self.start_kernel(kernel),
            DeviceCall::Product(product) => self.start_product(product),
            #[cfg(feature = "flash-attn")]
            DeviceCall::Flash(flash) => flash.start_kernel(&self.stream),
            // SAFETY: it is a tensor's memory. Bytes of 0xff are NaN in every type.
            #[cfg(test)]
            DeviceCall::Spoil { address, bytes } => {
                unsafe { result::memset_d8_async(*address, 0xff, *bytes, self.stream.cu_stream()) }.w()
            }
        }
    }

    /// If a call fails while its graph is made, it fails again, with the right error, when it is made.
    fn make_graph(&self, calls: &[DeviceCall]) -> Result<Option<CallGraph>> {
        let mode = driver::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let made = self.stream.begin_capture(mode).w().and_then(|()| {
            let recorded = calls.iter().try_for_each(|call| self.start_call(call));
            // A capture must end, also if it failed.
            let graph = self.stream.end_capture(driver::CUgraphInstantiate_flags(0)).w();
            recorded.and(graph)
        });
        match made {
            Ok(graph) => Ok(graph.map(CallGraph)),
            Err(error) => {
                tracing::warn!(%error, "the GPU makes no graph of a pass: short passes take longer");
                Ok(None)
            }
        }
    }

    fn start_graph(&self, graph: &CallGraph) -> Result<()> {
        graph.0.launch().w()
    }
}
