//! Arithmetic on slices with the CPU's own vector instructions: the only unsafe code of the project.
//!
//! Each kernel has one generic body over [`simd::Simd`], compiled once for every [`InstructionSet`] and chosen at run
//! time, and is held to a plain loop by the tests at the foot of its file.

#![expect(
    unsafe_code,
    reason = "vector instructions, memory mapping, a GPU's driver; every block says why it is sound"
)]
#![expect(
    clippy::inline_always,
    reason = "a kernel's generic body must be compiled inside each target-feature function"
)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod elementwise;
pub(crate) mod lines;
pub(crate) mod mapped;
pub(crate) mod matmul;
pub(crate) mod matrix;
pub(crate) mod operand;
pub(crate) mod pack;
pub(crate) mod pages;
#[cfg(feature = "benchmarks")]
pub(crate) mod peak;
pub(crate) mod simd;
pub(crate) mod softmax;
pub(crate) mod step;
pub(crate) mod threads;
pub(crate) mod tile;

pub use simd::InstructionSet;
