//! Arithmetic on slices with the CPU's vector instructions. The only unsafe code outside this module is one
//! call in `router/src/memory.rs` and the CUDA code in `crate::cuda`.
//!
//! Each kernel has one generic body over [`simd::Simd`]. It is compiled for every [`InstructionSet`] and
//! chosen at run time. Tests in the kernel's file compare it with a plain loop.
//!
//! Where safe code calls an unsafe block, assertions check the block's assumptions, in release builds too:
//!
//! - The CPU has the instructions: an [`InstructionSet`] comes only from `available` or from its name, which
//!   must be among those available. `available` asks the CPU for each target feature that a function needs:
//!   AVX-512 means F, BW, DQ, VL, AVX2 and FMA.
//! - A tile reads only inside its packed operands: `TileKernel` asserts the pair of formats, the lengths, the
//!   rows and the memory for the sums. Only `pack` makes an `Operand` or a `Matrix`.
//! - Threads write disjoint parts: `Threads::for_each` gives each item to one thread and returns after the
//!   last item. In a product, an item is a range of (chunk of rows, panel of columns) pairs. `Operand::split`
//!   makes consecutive ranges and asserts that they end within the rows.
//! - Registers are loaded and stored within slices: whole registers come from `chunks_exact`, `as_chunks` or
//!   fixed arrays. A compile-time assertion checks that panels consist of whole registers.
//! - Non-temporal stores go to aligned memory: `results::place_rows` checks the destination's address. A
//!   thread orders them before it ends its share of a product.
//! - Memory is initialised: `CacheLines` and `Pages` are zeroed when they are made, and only hand out slices
//!   of that memory.

#![expect(
    unsafe_code,
    reason = "vector instructions, memory from the system; every block says why it is sound"
)]
#![expect(
    clippy::inline_always,
    reason = "a kernel's generic body must be compiled inside each target-feature function"
)]

pub(crate) mod activation;
pub(crate) mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod compute;
pub(crate) mod delta;
pub(crate) mod elementwise;
pub(crate) mod epilogue;
mod instruction_set;
pub(crate) mod layout;
pub(crate) mod lines;
pub(crate) mod matmul;
pub(crate) mod matrix;
pub(crate) mod nibbles;
pub(crate) mod operand;
pub(crate) mod pack;
pub(crate) mod pages;
pub(crate) mod peak;
mod places;
pub(crate) mod results;
pub(crate) mod simd;
pub(crate) mod softmax;
pub(crate) mod stored;
mod team;
pub(crate) mod threads;
pub(crate) mod tile;
mod tile_order;

pub use instruction_set::InstructionSet;
