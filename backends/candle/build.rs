//! Compiles `src/cuda/kernels.cu` to PTX under the feature `cuda`; does nothing without it.
//!
//! Input: `nvcc` and the card's compute capability. The crate `cudaforge` finds both, as in the build of
//! candle's own kernels. Output: `kernels.ptx` in `OUT_DIR`. What must hold: the server's kernels and
//! candle's are compiled for the same card.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cuda")]
    kernels::compile();
}

#[cfg(feature = "cuda")]
mod kernels {
    use cudaforge::{CudaToolkit, KernelBuilder, detect_compute_cap};

    const SOURCE: &str = "src/cuda/kernels.cu";

    pub(super) fn compile() {
        for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let toolkit = CudaToolkit::detect().unwrap_or_else(|_| {
            fail("the feature `cuda` needs nvcc of CUDA 13.0: set NVCC or CUDA_HOME, or run scripts/cuda-toolkit.sh")
        });
        let nvcc = toolkit.nvcc_path.display().to_string();
        if let Err(error) = detect_compute_cap() {
            fail(&format!("set CUDA_COMPUTE_CAP to the card's compute capability, such as 90: {error}"));
        }
        let built = KernelBuilder::new().source_files([SOURCE]).args(["-std=c++17", "-O3"]).build_ptx();
        if let Err(error) = built {
            fail(&format!("{nvcc} did not compile {SOURCE}: {error}"));
        }
    }

    fn fail(reason: &str) -> ! {
        println!("cargo::error={reason}");
        std::process::exit(1);
    }
}
