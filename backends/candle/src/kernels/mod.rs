//! Arithmetic on slices with the CPU's vector instructions. Except for one call in `router/src/memory.rs`,
//! all unsafe code of the project is here.
//!
//! Each kernel has one generic body over [`simd::Simd`]. It is compiled for every [`InstructionSet`] and
//! chosen at run time. Tests in the kernel's file compare it with a plain loop.
//!
//! Assertions that release builds keep check the assumptions of unsafe blocks where safe code calls in.
//!
//! | assumption | checked by |
//! |---|---|
//! | the CPU has the instructions | [`InstructionSet`] has no public constructors except `available` and the
//! one by name, and `available` asks the CPU for each target feature of a function: AVX-512 means F, BW, DQ,
//! VL, AVX2 and FMA |
//! | packed operands are as long as a tile reads them | `tile::multiply` asserts lengths, rows, memory for
//! the sums, and the pair of formats; only `pack` makes `Operand` and `Matrix` |
//! | threads write disjoint parts | `Threads::for_each` hands out each item once and returns after the last
//! one; an item is a pair of rows and panel; `Operand::split` hands out consecutive ranges and asserts that
//! they end within the rows |
//! | registers are loaded and stored within slices | whole registers come from `chunks_exact`, `as_chunks` or
//! fixed arrays; a compile-time assertion checks that panels consist of whole registers |
//! | streams go to aligned memory | `copy_rows` checks the address of each place |
//! | memory is initialised | `Lines` and `Pages` are zeroed when they are made, and only hand out slices of
//! that memory |

#![expect(
    unsafe_code,
    reason = "vector instructions, memory from the system; every block says why it is sound"
)]
#![expect(
    clippy::inline_always,
    reason = "a kernel's generic body must be compiled inside each target-feature function"
)]

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod compute;
pub(crate) mod elementwise;
pub(crate) mod lines;
pub(crate) mod matmul;
pub(crate) mod matrix;
pub(crate) mod nibbles;
pub(crate) mod operand;
pub(crate) mod pack;
pub(crate) mod pages;
#[cfg(feature = "benchmarks")]
pub(crate) mod peak;
pub(crate) mod simd;
pub(crate) mod softmax;
pub(crate) mod step;
pub(crate) mod stored;
pub(crate) mod threads;
pub(crate) mod tile;

pub use simd::InstructionSet;
