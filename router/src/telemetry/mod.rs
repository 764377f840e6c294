//! The log, the metrics and the traces of the process.

pub(crate) mod logging;
pub(crate) mod metrics;
#[cfg(test)]
pub(crate) mod receiver;
pub(crate) mod requests;
pub(crate) mod traces;
mod writer;
