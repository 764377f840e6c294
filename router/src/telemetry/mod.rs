//! The log, the metrics and the traces of the process.

pub(crate) mod logging;
pub(crate) mod metrics;
#[cfg(test)]
pub(crate) mod receiver;
pub(crate) mod requests;
#[cfg_attr(not(feature = "traces"), path = "no_traces.rs")]
pub(crate) mod traces;
pub(crate) mod writer;
