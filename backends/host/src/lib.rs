//! The code in main memory that backends share.
//!
//! `head` makes outputs of hidden states, wherever a backend computes these: `steps` are its matrices and
//! norms, `sparse` its weights of vocabulary entries, and `states` the place where the states are. `padded`
//! makes matrices of texts, and `describe` reads `config.json`, for backends whose models bring their own
//! code.

mod describe;
mod head;
mod padded;
mod sparse;
mod states;
mod steps;

pub use describe::{describe_any, first_number};
pub use head::{Classes, LastStep, LoadedHead, SparseOutput, TOKENS_PER_STEP, WholeOutput};
pub use padded::{Padded, max_cells};
pub use states::{HeadDevice, HostMatrix, HostStates, mean_state};
pub use steps::{Step, Steps, apply_activation};
