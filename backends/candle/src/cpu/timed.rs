//! The clock of [`CpuOperations`](super::CpuOperations), for `benchmarks::roofline`.
//!
//! Input: a [`Call`] at the start of an operation. Output: its kind and cost in the [`Log`] when the
//! operation ends. What must hold: only tests and builds with the feature `benchmarks` contain this.

mod work;

use crate::kernels::pack::OperandFormat;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// The name of attention.
pub(crate) const ATTENTION: &str = "attention";

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
}

/// All calls so far.
pub(crate) type Log = Arc<Mutex<Vec<(CallKind, CallCost)>>>;

/// A call that runs. Dropping it logs its time.
pub(super) struct Timing(Log, Call, Instant);

/// The kind and the work of a call.
pub(super) struct Call(CallKind, CallCost);

impl Timing {
    /// Starts the clock of a call.
    pub(super) fn start(log: &Log, call: Call) -> Self {
        Self(log.clone(), call, Instant::now())
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        let Self(log, Call(kind, cost), start) = self;
        let call = (kind.clone(), CallCost { seconds: start.elapsed().as_secs_f64(), ..*cost });
        log.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}
