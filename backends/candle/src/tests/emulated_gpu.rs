//! Tests of the code that drives a real GPU, with a GPU that is emulated below CUDA's driver
//! (`emulated/driver.cpp`).
//!
//! They are skipped on a real GPU, and run one after the other, because a process has one device.
//! `scripts/cuda-emulated.sh` builds the emulated one.
#![expect(unsafe_code, reason = "the emulated GPU's controls are C functions")]
#![expect(clippy::print_stderr, reason = "a test that is skipped should say so")]

mod counted_calls;

use super::*;
use candle_core::cuda_backend::cudarc::driver::{result, sys};
use libloading::os::unix::{Library, Symbol};
use serial_test::serial;
use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    thread,
};

/// The stream that each thread has of its own.
const STREAM: sys::CUstream = 2 as sys::CUstream;
/// Codes of the driver, of cuBLAS and of the CUDA runtime.
const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const ILLEGAL_ADDRESS: i32 = 700;
const UNKNOWN: i32 = 999;
const BLAS_ALLOC_FAILED: i32 = 3;
const BLAS_EXECUTION_FAILED: i32 = 13;
const BLAS_INTERNAL_ERROR: i32 = 14;
const RUNTIME_NO_KERNEL_IMAGE: i32 = 209;

/// The emulated GPU's controls.
struct EmulatedGpu {
    reset: Symbol<unsafe extern "C" fn(usize, c_int, c_int, c_int)>,
    fail: Symbol<unsafe extern "C" fn(*const c_char, c_uint, c_int, bool)>,
    calls: Symbol<unsafe extern "C" fn(*const c_char) -> c_uint>,
    finding: Symbol<unsafe extern "C" fn() -> *const c_char>,
    allocations: Symbol<unsafe extern "C" fn() -> c_uint>,
    bytes: Symbol<unsafe extern "C" fn(*const c_char) -> u64>,
    compute_nothing: Symbol<unsafe extern "C" fn()>,
}

/// Whether this process drives the emulated GPU.
pub(crate) fn is_emulated() -> bool {
    // SAFETY: the symbol is only looked up.
    unsafe { Library::this().get::<*const c_void>(b"emulated_reset\0") }.is_ok()
}

impl EmulatedGpu {
    /// A new device; `None`, with a message, if this process drives a real one.
    fn new() -> Option<Self> {
        let process = Library::this();
        // SAFETY: the functions have these types in `driver.cpp`, and the process keeps that library.
        let gpu = unsafe {
            let Ok(reset) = process.get(b"emulated_reset\0") else {
                eprintln!("SKIPPED: needs the emulated GPU of scripts/cuda-emulated.sh");
                return None;
            };
            Self {
                reset,
                fail: process.get(b"emulated_fail\0").unwrap(),
                calls: process.get(b"emulated_calls\0").unwrap(),
                finding: process.get(b"emulated_finding\0").unwrap(),
                allocations: process.get(b"emulated_allocations\0").unwrap(),
                bytes: process.get(b"emulated_bytes\0").unwrap(),
                compute_nothing: process.get(b"emulated_compute_nothing\0").unwrap(),
            }
        };
        gpu.reset(0);
        Some(gpu)
    }

    /// Forgets faults and counts, and gives the device `bytes` more than it has in use; 0: plenty.
    fn reset(&self, bytes: usize) {
        self.become_card(bytes, (8, 0), 13_000);
    }

    /// The same, for a card of this compute capability with a driver of this version.
    fn become_card(&self, bytes: usize, (major, minor): (i32, i32), driver: i32) {
        // SAFETY: the function takes any values.
        unsafe { (self.reset)(bytes, major, minor, driver) };
    }

    /// Lets the `count`-th next call of a function fail with a code.
    fn fail(&self, function: &str, count: u32, code: i32) {
        let function = CString::new(function).unwrap();
        // SAFETY: the name is a C string.
        unsafe { (self.fail)(function.as_ptr(), count, code, false) };
    }

    /// Lets the `count`-th next call of a function fail with a code, and all later calls of the driver.
    fn lose(&self, function: &str, count: u32, code: i32) {
        let function = CString::new(function).unwrap();
        // SAFETY: the name is a C string.
        unsafe { (self.fail)(function.as_ptr(), count, code, true) };
    }

    /// The number of calls of a function of the driver, or of launches of a kernel, since the last reset.
    fn calls(&self, name: &str) -> u32 {
        let name = CString::new(name).unwrap();
        // SAFETY: the name is a C string.
        unsafe { (self.calls)(name.as_ptr()) }
    }

    /// The bytes of all calls of an allocation or a copy since the last reset.
    fn total_bytes(&self, function: &str) -> u64 {
        let function = CString::new(function).unwrap();
        // SAFETY: the name is a C string.
        unsafe { (self.bytes)(function.as_ptr()) }
    }

    /// From now on the device computes nothing, and all values are zero, until the next reset.
    fn compute_nothing(&self) {
        // SAFETY: the function has no arguments.
        unsafe { (self.compute_nothing)() };
    }

    /// The last call that the device refused, and why. An empty text if it refused none.
    fn finding(&self) -> String {
        // SAFETY: the answer is a C string in memory of the library.
        unsafe { CStr::from_ptr((self.finding)()) }.to_str().unwrap().to_owned()
    }

    /// The number of allocations that were not freed.
    fn allocations(&self) -> u32 {
        // SAFETY: the function has no arguments.
        unsafe { (self.allocations)() }
    }
}

fn gpu_options(model: &str, dtype: DType) -> LoadOptions {
    LoadOptions { dtype: Some(dtype), prefix_cache_bytes: 1 << 20, flash_attention: true, ..options(model) }
}

fn scores(backend: &mut dyn Backend, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
    let mut builder = BatchBuilder::new(Packing::SHARED);
    for ids in texts {
        // The cache keeps the first half.
        builder.push(&Text { reusable: ids.len() / 2, ..Text::new(&ids[..], Wanted::WHOLE) });
    }
    Ok(backend.predict(&builder.build())?.texts.iter().map(|text| text.whole[0]).collect())
}

#[test]
#[serial]
fn a_pass_drives_the_device_as_its_driver_demands() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let cases = cases("tied-bf16");
    let texts: Vec<Vec<u32>> = cases.iter().map(|(_, ids, _)| ids.clone()).collect();
    let expected: Vec<f32> = cases.iter().map(|(_, _, score)| *score).collect();
    let allocations = gpu.allocations();
    for (dtype, tolerance) in [(DType::Float16, 0.1), (DType::BFloat16, 0.3)] {
        let mut loaded = load(&gpu_options("tied-bf16", dtype)).unwrap();
        assert_eq!(loaded.device, "cuda");
        let got = scores(loaded.backend.as_mut(), &texts).unwrap();
        assert_close(&got, &expected, tolerance, &dtype.to_string());
        for function in ["cuLaunchKernel", "cublasGemmEx", "run_mha", "cuMemcpyHtoDAsync_v2"] {
            assert!(gpu.calls(function) > 0, "{function} was not called");
        }
        drop(loaded);
        assert_eq!(gpu.allocations(), allocations, "memory that nothing refers to");
    }
    assert_eq!(gpu.finding(), "");
}

/// A launch of a kernel of `kernels.cu`, in the driver's terms.
struct RawLaunch {
    name: &'static str,
    blocks: u32,
    threads: u32,
    words: Vec<u64>,
}

impl RawLaunch {
    /// `add_bias_f32`: `rows` rows of `columns` values at `x`.
    fn add_bias(x: u64, bias: u64, rows: u64, columns: u64) -> Self {
        Self { name: "add_bias_f32", blocks: 1, threads: 32, words: vec![x, bias, rows, columns] }
    }

    fn start(mut self) -> std::result::Result<(), result::DriverError> {
        let ptx = CString::new(".version 9.0\n.target sm_80\n// kernels\n").unwrap();
        let mut words: Vec<*mut c_void> =
            self.words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        // SAFETY: the emulated device checks all addresses.
        unsafe {
            let module = result::module::load_data(ptx.as_ptr().cast())?;
            let function = result::module::get_function(module, CString::new(self.name).unwrap())?;
            let (blocks, threads) = ((self.blocks, 1, 1), (self.threads, 1, 1));
            result::launch_kernel(function, blocks, threads, 0, STREAM, &mut words)
        }
    }
}

/// Whether the device still works.
fn wait() -> std::result::Result<(), result::DriverError> {
    // SAFETY: it is this thread's own stream.
    unsafe { result::stream::synchronize(STREAM) }
}

fn allocate(bytes: usize) -> u64 {
    // SAFETY: the emulated device checks all uses.
    unsafe { result::malloc_async(STREAM, bytes) }.unwrap()
}

fn free(address: u64) -> std::result::Result<(), result::DriverError> {
    // SAFETY: the emulated device checks the address.
    unsafe { result::free_async(address, STREAM) }
}

/// Each mistake, with the emulated device's sentence about it. A device that let a mistake pass could not
/// show that our code makes none.
#[test]
#[serial]
fn the_emulated_device_refuses_what_cuda_forbids() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let _device = device();
    let free_twice = || {
        let address = allocate(64);
        free(address).unwrap();
        assert!(free(address).is_err());
    };
    let launch = |launch: RawLaunch| assert!(launch.start().is_err() || wait().is_err());
    let cases: [(&str, &dyn Fn()); 13] = [
        ("an allocation of no bytes", &|| {
            // SAFETY: nothing is allocated.
            assert!(unsafe { result::malloc_async(STREAM, 0) }.is_err());
        }),
        ("are not in an allocation", &free_twice),
        ("not the start of an allocation", &|| assert!(free(allocate(64) + 16).is_err())),
        ("blocks 0x1x1 of threads 32x1x1", &|| {
            launch(RawLaunch { blocks: 0, ..RawLaunch::add_bias(allocate(64), allocate(64), 1, 16) });
        }),
        ("blocks 1x1x1 of threads 1056x1x1", &|| {
            launch(RawLaunch { threads: 1056, ..RawLaunch::add_bias(allocate(64), allocate(64), 1, 16) });
        }),
        ("there is no kernel add_bias_f64", &|| {
            launch(RawLaunch {
                name: "add_bias_f64",
                ..RawLaunch::add_bias(allocate(64), allocate(64), 1, 16)
            });
        }),
        ("argument 0 is misaligned", &|| launch(RawLaunch::add_bias(allocate(64) + 2, allocate(64), 1, 8))),
        ("add_bias_f32: 0 bytes at ", &|| {
            let on_the_host = [0.0_f32; 16];
            launch(RawLaunch::add_bias(on_the_host.as_ptr() as u64, allocate(64), 1, 16));
        }),
        ("add_bias_f32: Segmentation fault", &|| {
            launch(RawLaunch::add_bias(allocate(64), allocate(64), 2, 16));
        }),
        ("bytes next to an allocation of 60 bytes were written", &|| {
            let (x, out) = (allocate(64), allocate(60));
            // SAFETY: the device checks the address.
            unsafe { result::memset_d8_async(x, 0, 64, STREAM) }.unwrap();
            let words = vec![x, 1, 64, 0, 0, x, out, 1, 64];
            RawLaunch { name: "gather_rows", blocks: 1, threads: 32, words }.start().unwrap();
            assert!(free(out).is_err() && wait().is_err());
        }),
        ("a copy to the device: 8 bytes", &|| {
            // SAFETY: the device checks the address.
            assert!(unsafe { result::memcpy_htod_async(allocate(4), &[0_u64], STREAM) }.is_err());
        }),
        ("memory that another stream may still use", &|| {
            let (address, context) = (allocate(64), result::ctx::get_current().unwrap().unwrap() as u64);
            let use_elsewhere = move || {
                // SAFETY: the context lives as long as the device, and the device checks the address.
                unsafe {
                    result::ctx::set_current(context as sys::CUcontext).unwrap();
                    result::memset_d8_async(address, 0, 64, STREAM)
                }
            };
            assert!(thread::spawn(use_elsewhere).join().unwrap().is_err());
            wait().unwrap();
            assert!(thread::spawn(use_elsewhere).join().unwrap().is_ok());
        }),
        ("in a thread without a context", &|| {
            assert!(thread::spawn(|| wait().is_err()).join().unwrap());
        }),
    ];
    for (sentence, forbidden) in cases {
        gpu.reset(0);
        forbidden();
        assert!(gpu.finding().contains(sentence), "{:?} is not {sentence:?}", gpu.finding());
    }
    gpu.reset(0);
}

#[test]
#[serial]
fn memory_without_values_holds_nan() {
    let Some(_gpu) = EmulatedGpu::new() else { return };
    let device = device();
    for dtype in [candle_core::DType::F32, candle_core::DType::F16, candle_core::DType::BF16] {
        // SAFETY: reading such values is what is tested.
        let empty = unsafe { Tensor::empty(100, dtype, &device) }.unwrap();
        let values: Vec<f32> = empty.to_dtype(candle_core::DType::F32).unwrap().to_vec1().unwrap();
        assert!(values.iter().all(|value| value.is_nan()), "{dtype:?}");
    }
}

/// A few short texts with a common beginning, so that a pass has all its steps and takes little time.
fn short_texts() -> Vec<Vec<u32>> {
    (0..4)
        .map(|text| (0..12).map(|token| if token < 6 { token } else { 20 + text * token }).collect())
        .collect()
}

fn start(dtype: DType) -> Box<dyn Backend> {
    load(&gpu_options("tied-bf16", dtype)).unwrap().backend
}

/// A model whose passes make each call themselves: the device refuses to make a graph.
fn start_without_graphs(gpu: &EmulatedGpu, dtype: DType) -> Box<dyn Backend> {
    let mut backend = start(dtype);
    gpu.fail("cuStreamBeginCapture_v2", 1, INVALID_VALUE);
    for _ in 0..4 {
        scores(backend.as_mut(), &short_texts()).unwrap();
    }
    backend
}

/// Whatever call fails, and whenever: the pass fails with an error of the right kind, and the next pass is
/// right.
#[test]
#[serial]
fn a_pass_outlives_each_failure_of_the_driver() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let texts = short_texts();
    let mut backend = start_without_graphs(&gpu, DType::Float16);
    let expected = scores(backend.as_mut(), &texts).unwrap();
    let is_right = |got: &[f32]| assert_close(got, &expected, 0.02, "a score");
    let is_lost: fn(&BackendError) -> bool = |error| matches!(error, BackendError::DeviceLost(_));
    let is_failed: fn(&BackendError) -> bool = |error| matches!(error, BackendError::Inference(_));
    // Without a kind of error, memory is freed, and the pass is computed once more.
    for (function, code, is_expected) in [
        ("cuMemAllocAsync", OUT_OF_MEMORY, None),
        ("cublasGemmEx", BLAS_ALLOC_FAILED, None),
        ("cublasGemmEx", BLAS_EXECUTION_FAILED, Some(is_lost)),
        ("cublasGemmEx", BLAS_INTERNAL_ERROR, Some(is_lost)),
        ("cuLaunchKernel", UNKNOWN, Some(is_lost)),
        ("cuLaunchKernel", INVALID_VALUE, Some(is_failed)),
        ("cuMemcpyHtoDAsync_v2", INVALID_VALUE, Some(is_failed)),
        ("cuMemcpyDtoHAsync_v2", INVALID_VALUE, Some(is_failed)),
        ("run_mha", RUNTIME_NO_KERNEL_IMAGE, Some(is_failed)),
    ] {
        let prepare = |backend: &mut Box<dyn Backend>| {
            // Only the first passes allocate memory.
            if function == "cuMemAllocAsync" {
                *backend = start(DType::Float16);
            }
            gpu.reset(0);
        };
        prepare(&mut backend);
        is_right(&scores(backend.as_mut(), &texts).unwrap());
        let calls = gpu.calls(function);
        assert!(calls > 0, "{function}");
        let mut failures = 0;
        for nth in (1..=calls).step_by(calls as usize / 30 + 1) {
            prepare(&mut backend);
            gpu.fail(function, nth, code);
            match scores(backend.as_mut(), &texts) {
                Ok(got) => is_right(&got),
                Err(error) => {
                    let is_right = is_expected.is_some_and(|is_expected| is_expected(&error));
                    assert!(is_right, "call {nth} of {function} fails with {code}: {error:?}");
                    failures += 1;
                }
            }
            is_right(&scores(backend.as_mut(), &texts).unwrap());
        }
        assert_eq!(failures > 0, is_expected.is_some(), "{function}: {failures}");
        assert_eq!(gpu.finding(), "", "{function}");
    }
    // A larger pass adds memory, which the next one frees and allocates in one piece. A part that is
    // not freed is lost, and nothing else.
    scores(backend.as_mut(), &(0..30).map(|text| vec![text; 50]).collect::<Vec<_>>()).unwrap();
    gpu.reset(0);
    gpu.fail("cuMemFreeAsync", 1, INVALID_VALUE);
    is_right(&scores(backend.as_mut(), &texts).unwrap());
    assert!(gpu.calls("cuMemFreeAsync") > 1);
    gpu.reset(0);
    is_right(&scores(backend.as_mut(), &texts).unwrap());
}

/// Passes of one shape are graphs from the third one on, and give the bits that single calls give, whatever
/// comes between them.
#[test]
#[serial]
fn passes_that_come_again_are_graphs_with_the_same_scores() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let mut rng = StdRng::seed_from_u64(92);
    // Texts that share their first six tokens, which no other pass has, and nothing else.
    let mut shape = |pass: u32, texts: u32, own: u32| -> Vec<Vec<u32>> {
        let shared: Vec<u32> = (0..6).map(|token| pass + token).collect();
        (0..texts)
            .map(|text| {
                let own = (0..own).map(|_| rng.random_range(0..100));
                shared.iter().copied().chain([60 + text]).chain(own).collect()
            })
            .collect()
    };
    for dtype in [DType::Float16, DType::BFloat16] {
        let (mut backend, mut graphs) = (start(dtype), 0);
        let mut eager = start_without_graphs(&gpu, dtype);
        for pass in 0..24 {
            let is_rare = pass % 5 == 4;
            let texts = if is_rare { shape(pass, 9, 30) } else { shape(pass, 3, 5 + pass % 2) };
            let expected = scores(eager.as_mut(), &texts).unwrap();
            gpu.reset(0);
            let got = scores(backend.as_mut(), &texts).unwrap();
            assert_eq!(got, expected, "pass {pass}");
            graphs += gpu.calls("cuGraphLaunch");
            // The first rare pass needs more memory, which moves all tensors.
            let is_graph = if is_rare { pass > 14 } else { pass > 8 };
            assert_eq!(gpu.calls("run_mha") == 0, is_graph, "pass {pass}");
        }
        assert!(graphs > 10, "{graphs}");
    }
    assert_eq!(gpu.finding(), "");
}

/// A graph that cannot be made is not needed, and one that cannot be started is a pass that fails.
#[test]
#[serial]
fn a_pass_outlives_each_failure_of_a_graph() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let texts = short_texts();
    let expected = scores(start(DType::Float16).as_mut(), &texts).unwrap();
    for (function, nth, code, is_needed) in [
        ("cuStreamBeginCapture_v2", 1, INVALID_VALUE, false),
        ("cuStreamEndCapture", 1, INVALID_VALUE, false),
        ("cuGraphInstantiateWithFlags", 1, OUT_OF_MEMORY, false),
        ("cuGraphLaunch", 1, INVALID_VALUE, true),
        ("cuGraphLaunch", 2, INVALID_VALUE, true),
        ("cuGraphLaunch", 1, UNKNOWN, true),
    ] {
        let mut backend = start(DType::Float16);
        gpu.reset(0);
        gpu.fail(function, nth, code);
        let passes: Vec<_> = (0..8).map(|_| scores(backend.as_mut(), &texts)).collect();
        let failed = passes.iter().filter_map(|pass| pass.as_ref().err());
        let are_lost: Vec<bool> = failed.map(|error| matches!(error, BackendError::DeviceLost(_))).collect();
        let expected_failures: &[bool] = if is_needed { &[code == UNKNOWN] } else { &[] };
        assert_eq!(are_lost, expected_failures, "{function}");
        for got in passes.iter().flatten() {
            assert_close(got, &expected, 0.02, function);
        }
        assert_eq!(gpu.calls("cuGraphLaunch") > 0, is_needed, "{function}");
    }
    gpu.reset(0);
}

#[test]
#[serial]
fn a_fault_is_a_lost_device_wherever_it_shows() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let texts = short_texts();
    for function in ["cuLaunchKernel", "cuMemAllocAsync", "cuMemcpyDtoHAsync_v2", "run_mha"] {
        for nth in [1, 2, 5] {
            let mut backend = start(DType::Float16);
            gpu.lose(function, nth, ILLEGAL_ADDRESS);
            let mut results = (0..8).map(|_| scores(backend.as_mut(), &texts));
            let failed = results.find_map(std::result::Result::err).unwrap();
            assert!(matches!(failed, BackendError::DeviceLost(_)), "{function}: {failed:?}");
            let later = results.next().map(std::result::Result::unwrap_err);
            assert!(matches!(later, None | Some(BackendError::DeviceLost(_))), "{function}: {later:?}");
            drop(results);
            drop(backend);
            gpu.reset(0);
        }
    }
}

/// A free block of the pool is in the way of a pass that needs many smaller ones, until it is given back.
#[test]
#[serial]
fn free_memory_is_given_back_before_a_pass_fails() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let texts =
        |count: u32| -> Vec<Vec<u32>> { (0..count).map(|text| (text..text + 60).collect()).collect() };
    let mut backend = start(DType::Float16);
    free(allocate(64 << 20)).unwrap();
    gpu.reset(1 << 12);
    let few = scores(backend.as_mut(), &texts(10)).unwrap();
    assert_eq!(gpu.calls("cuMemPoolTrimTo"), 1);
    // Without free memory, the pass fails, and a smaller one still fits.
    gpu.reset(1 << 12);
    let failed = scores(backend.as_mut(), &texts(1000)).unwrap_err();
    assert!(matches!(failed, BackendError::OutOfMemory(_)), "{failed:?}");
    assert_close(&scores(backend.as_mut(), &texts(10)).unwrap(), &few, 0.02, "a score");
    gpu.reset(0);
}

#[test]
#[serial]
fn cards_and_drivers_that_cannot_run_the_kernels_are_refused() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    for (capability, driver, flash_attention, refusal) in [
        ((0, 0), 13_000, true, "this binary was built for CUDA, but there is no such device here"),
        (
            (7, 5),
            13_000,
            true,
            "for compute capability 8.0, and this GPU has 7.5: build it with CUDA_COMPUTE_CAP=75",
        ),
        (
            (8, 0),
            12_040,
            true,
            "the GPU's driver supports CUDA 12.4, but this binary was compiled with CUDA 13.0",
        ),
        ((9, 0), 13_000, true, "cannot run its flash attention"),
        ((9, 0), 13_000, false, ""),
        ((8, 9), 13_000, true, ""),
    ] {
        gpu.become_card(0, capability, driver);
        let options = LoadOptions { flash_attention, ..gpu_options("tied-bf16", DType::BFloat16) };
        let error = load(&options).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(refusal) && error.is_empty() == refusal.is_empty(), "{capability:?}: {error}");
    }
    gpu.reset(0);
}

/// As in TEI, float16 without `--dtype`; but a checkpoint in bfloat16 stays in its range.
#[test]
#[serial]
fn the_default_arithmetic_has_16_bits() {
    let Some(_gpu) = EmulatedGpu::new() else { return };
    for (model, expected) in
        [("tied-bf16", DType::BFloat16), ("untied-f16", DType::Float16), ("tied-f32-bare", DType::Float16)]
    {
        let loaded = load(&LoadOptions { dtype: None, ..gpu_options(model, DType::Float32) }).unwrap();
        assert_eq!([loaded.numbers.computed, loaded.numbers.reported], [expected; 2], "{model}");
    }
}

/// One thread loads the model, others compute, and another one drops it. Each has a stream of its own.
#[test]
#[serial]
fn a_model_is_loaded_run_and_dropped_by_different_threads() {
    let Some(gpu) = EmulatedGpu::new() else { return };
    let allocations = gpu.allocations();
    let texts = short_texts();
    let mut first = start(DType::Float16);
    let expected = scores(first.as_mut(), &texts).unwrap();
    drop(first);
    for _ in 0..3 {
        let mut backend = thread::spawn(|| start(DType::Float16)).join().unwrap();
        for _ in 0..2 {
            let texts = texts.clone();
            let computed = thread::spawn(move || {
                let scores = scores(backend.as_mut(), &texts);
                (backend, scores)
            });
            let got;
            (backend, got) = computed.join().unwrap();
            assert_close(&got.unwrap(), &expected, 0.02, "a score");
        }
        thread::spawn(move || drop(backend)).join().unwrap();
        assert_eq!((gpu.finding(), gpu.allocations()), (String::new(), allocations));
    }
    // A thread that has never computed frees the memory, too.
    let (loaded, [one, other]) = (start(DType::Float32), [(); 2].map(|()| start(DType::Float16)));
    thread::spawn(move || drop((loaded, one, other))).join().unwrap();
    assert_eq!((gpu.finding(), gpu.allocations()), (String::new(), allocations));
}
