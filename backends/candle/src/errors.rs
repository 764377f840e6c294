//! Errors of a device: candle's, which hold errors of CUDA and cuBLAS, as the backend's.

use text_embeddings_backend_core::BackendError;

/// CUDA's names for a lack of memory, after which a smaller batch may fit.
const MEMORY_ERRORS: [&str; 2] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"];

/// CUDA's names for errors after which the device is gone, or a process can compute nothing more on it
/// (documentation of `cudaError_enum`: "the process must be terminated and relaunched"). cuBLAS has no names
/// for them: a fault of an earlier kernel that shows in a product is an execution that failed.
const FATAL_ERRORS: [&str; 19] = [
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_EXTERNAL_DEVICE",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    "CUDA_ERROR_UNKNOWN",
];

/// The error for a device that this machine does not have.
#[cfg(any(feature = "cuda", feature = "metal"))]
pub(crate) fn missing(name: &str, error: &dyn std::fmt::Display) -> BackendError {
    BackendError::Load(format!("this binary was built for {name}, but there is no such device here: {error}"))
}

/// Translates candle's errors into the backend's errors.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
pub(crate) fn failed(error: candle_core::Error) -> BackendError {
    let message = error.to_string();
    if MEMORY_ERRORS.iter().any(|name| message.contains(name)) {
        BackendError::OutOfMemory(message)
    } else if FATAL_ERRORS.iter().any(|name| message.contains(name)) {
        BackendError::DeviceLost(message)
    } else {
        BackendError::Inference(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are candle's errors, which wrap errors of the driver and of cuBLAS.
    #[test]
    fn cuda_s_errors_say_whether_a_smaller_batch_helps() {
        let error = |text: &str| failed(candle_core::Error::Msg(text.to_owned()));
        for text in [
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
            "CublasError(CUBLAS_STATUS_ALLOC_FAILED)",
        ] {
            assert!(matches!(error(text), BackendError::OutOfMemory(_)), "{text}");
        }
        for text in [
            "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")",
            "DriverError(CUDA_ERROR_UNKNOWN, \"unknown error\")",
            "CublasError(CUBLAS_STATUS_EXECUTION_FAILED)",
            "CublasError(CUBLAS_STATUS_INTERNAL_ERROR)",
        ] {
            assert!(matches!(error(text), BackendError::DeviceLost(_)), "{text}");
        }
        for text in ["DriverError(CUDA_ERROR_INVALID_VALUE, \"invalid argument\")", "shape mismatch"] {
            assert!(matches!(error(text), BackendError::Inference(_)), "{text}");
        }
    }
}
