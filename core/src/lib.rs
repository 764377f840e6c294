//! The way of a request: text becomes tokens, joins a packed batch and returns as a score.
//!
//! This crate knows the contract of backends, but no transport and no backend. `service` is the entry;
//! `infer` holds the two ends of the queue; `files` and `templates` are used at the start.

pub mod error;
pub mod families;
pub mod files;
pub mod guard;
pub mod infer;
pub mod metrics;
pub mod model;
mod passages;
mod postprocess;
mod queue;
pub mod secret;
pub mod service;
#[cfg(test)]
mod stopped_clock;
pub mod templates;
pub mod tokenization;

pub use postprocess::sigmoid;
