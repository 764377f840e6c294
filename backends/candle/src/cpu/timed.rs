//! The clock of [`CpuOperations`](super::CpuOperations), for `benchmarks::roofline`.
//!
//! Input: a [`Call`] at the start of an operation. Output: its kind and cost in the [`Log`] when the
//! operation ends. What must hold: only tests and builds with the feature `benchmarks` contain this.

mod work;

use crate::kernels::pack::OperandFormat;
#[cfg(test)]
use crate::kernels::tile::MULTIPLICATIONS;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// The name of attention.
pub(crate) const ATTENTION: &str = "attention";
/// The name of a gated delta rule.
pub(crate) const DELTA_RULE: &str = "delta rule";
/// The name of a gated convolution.
pub(crate) const CONVOLUTION: &str = "gated convolution";

/// The kind of a call. The costs of all calls of a kind are added up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallKind {
    /// The operation.
    pub(crate) name: &'static str,
    /// For a product, its inputs and outputs. For attention, the heads and their size.
    pub(crate) sizes: Option<(usize, usize)>,
    /// The format of the operands. It decides the peak with which the call is compared.
    pub(crate) format: OperandFormat,
}

/// The cost of one call, or of several calls of a kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallCost {
    /// The number of calls.
    pub(crate) calls: usize,
    /// The time.
    pub(crate) seconds: f64,
    /// Multiplications and additions.
    pub(crate) operations: usize,
    /// The bytes that are read and written if each operand is read once and each result written once.
    pub(crate) bytes: usize,
    /// The multiplications that the calling thread's tiles really did, padding included. With one thread,
    /// this is the call's whole work in tiles. The other numbers follow from shapes.
    #[cfg(test)]
    pub(crate) multiplications: usize,
}

/// All calls so far.
pub(crate) type Log = Arc<Mutex<Vec<(CallKind, CallCost)>>>;

/// A call that runs. Dropping it logs its time.
pub(super) struct Timing {
    log: Log,
    /// See [`CpuOperations::timed`](super::CpuOperations::timed).
    sharers: usize,
    call: Call,
    start: Instant,
    /// The thread's multiplications before the call.
    #[cfg(test)]
    before: usize,
}

/// The kind and the work of a call.
pub(super) struct Call(CallKind, CallCost);

impl Timing {
    /// Starts the clock of a call.
    pub(super) fn start(log: &Log, sharers: usize, call: Call) -> Self {
        Self {
            log: log.clone(),
            sharers,
            call,
            start: Instant::now(),
            #[cfg(test)]
            before: MULTIPLICATIONS.get(),
        }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        let Call(kind, cost) = &self.call;
        let cost = CallCost {
            seconds: self.start.elapsed().as_secs_f64() / self.sharers as f64,
            #[cfg(test)]
            multiplications: MULTIPLICATIONS.get() - self.before,
            ..*cost
        };
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push((kind.clone(), cost));
    }
}
