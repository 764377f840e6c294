//! What the CUDA path adds to candle: fused kernels, each with a twin in plain Rust.

#[cfg(all(test, target_os = "linux"))]
mod emulated;
#[cfg(all(test, target_os = "linux"))]
mod kernel_tests;
#[cfg(all(test, target_os = "linux"))]
mod twins;
