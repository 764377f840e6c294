//! What the CUDA path adds to candle: fused kernels, each with a twin in plain Rust.

mod twins;
