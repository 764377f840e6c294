//! What the process says about itself: the log and the metrics.

pub(crate) mod logging;
pub(crate) mod metrics;
