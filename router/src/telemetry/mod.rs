//! What the process says about itself: the log, the metrics and the traces.

pub(crate) mod collector;
pub(crate) mod logging;
pub(crate) mod metrics;
#[cfg(test)]
pub(crate) mod receiver;
pub(crate) mod traces;
