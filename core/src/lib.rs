//! What happens to a request: text becomes tokens, joins a packed batch, comes back as a score.
//!
//! Knows the backends' contract, but no transport and no backend. `service` is the way in; `infer` holds the queue's
//! two ends; `files` and `templates` are used at start-up.

pub mod error;
pub mod families;
pub mod files;
pub mod guard;
pub mod infer;
pub mod metrics;
mod postprocess;
pub mod queue;
pub mod service;
pub mod templates;
pub mod tokenization;

pub use postprocess::sigmoid;
