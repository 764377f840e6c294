//! The resources of a computation on the CPU, which packing and products share.

use super::{simd::InstructionSet, threads::Threads};

/// The instruction set and the threads to compute with.
pub(crate) struct Compute {
    /// The vector instructions to use.
    pub(crate) set: InstructionSet,
    /// The threads to use.
    pub(crate) threads: Threads,
}
