//! Arithmetic on slices with the CPU's own vector instructions: all unsafe code but one call in `router/src/memory.rs`.
//!
//! Each kernel has one generic body over [`simd::Simd`], compiled once for every [`InstructionSet`] and chosen at run
//! time, and is held to a plain loop by the tests at the foot of its file.
//!
//! What an unsafe block relies on is checked where safe code calls in, by assertions that release builds keep.
//!
//! | relied on | checked by |
//! |---|---|
//! | the CPU has the instructions | [`InstructionSet`] has no public constructor but `available` and its name, and each target feature of a function is asked for there: AVX-512 means F, BW, DQ, VL, AVX2 and FMA |
//! | packed operands are as long as a tile reads them | `tile::multiply` asserts lengths, rows, room for the sums, and the pair of formats; `Operand` and `Matrix` are made by `pack` only |
//! | threads write disjoint parts | `Threads::for_each` gives each item once and returns after the last; an item is a pair of rows and panel, `Operand::split` hands out consecutive ranges and asserts that they end within the rows |
//! | registers are loaded and stored within slices | whole registers come from `chunks_exact`, `as_chunks` or fixed arrays; that panels are whole registers is asserted at compile time |
//! | streams go to aligned memory | `copy_rows` looks at each place's address |
//! | memory is initialised | `Lines` and `Pages` are zeroed when they are made, and give slices no longer than that |

#![expect(
    unsafe_code,
    reason = "vector instructions, memory from the system, a GPU's driver; every block says why it is sound"
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
