//! The part of the machine that this process uses, whatever models it serves.
//!
//! Input: the flags. Output: a [`Machine`], which is read once and lent to each model. What must hold: the
//! same flags give the same numbers on the same machine.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use text_embeddings_backend::{InstructionSet, ON_CPU};
use text_embeddings_backend_core::amount;
use text_embeddings_core::{
    error::Error, metrics::ModelMetrics, service::ScoreCache, tokenization::TokenizerThreads,
};

use crate::{
    args::Args, available::Available, config::ConfigError, control_groups::Cores, device_turn::DeviceTurns,
    residency::Residency,
};

/// With more compute threads for each core the machine would hardly do anything else.
const MAX_THREADS_PER_CORE: usize = 4;

/// Threads, instructions and memory.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// Threads that compute.
    pub(crate) threads: usize,
    /// The threads that can use all CPU time that this process has.
    pub(crate) cores: usize,
    /// The CPU's vector instructions; absent: the best.
    pub(crate) instruction_set: Option<InstructionSet>,
    /// Threads that tokenize.
    pub(crate) tokenization_workers: usize,
    /// The number of CPUs that the container may use at a time, if it is limited.
    pub(crate) cpu_quota: Option<f64>,
    /// The memory that this process may use; absent if it cannot be read.
    pub(crate) memory: Option<Available>,
    /// The models that are in memory.
    pub(crate) residency: Residency,
    /// Scores and vectors that were computed before, by all models; absent if none are kept.
    pub(crate) scores: Option<Arc<ScoreCache>>,
    /// The turns of the models on the device; absent if there is one model.
    pub(crate) turns: Option<DeviceTurns>,
    /// The threads that tokenize, while a model uses them.
    tokenizers: Arc<Mutex<Weak<TokenizerThreads>>>,
}

impl Machine {
    /// The machine as the flags share it out: by default all cores compute, and all but one tokenize. Fails
    /// if `--threads` is so far above the cores that the threads would only wait for each other.
    pub(crate) fn from_args(args: &Args) -> Result<Self, ConfigError> {
        let Cores { threads: cores, quota: cpu_quota } = Cores::read_limits();
        let model = &args.model;
        let threads = model.threads.map_or(cores, NonZeroUsize::get);
        if threads > cores.saturating_mul(MAX_THREADS_PER_CORE) {
            return Err(ConfigError(format!(
                "`--threads {threads}` is more than {MAX_THREADS_PER_CORE} times what this process may use, {}: leave \
                 the flag out",
                amount(cores, "core")
            )));
        }
        let workers = model.tokenization_workers.map(NonZeroUsize::get);
        let memory = Available::read();
        Ok(Self {
            threads,
            cores,
            instruction_set: model.instruction_set,
            tokenization_workers: workers.unwrap_or(cores.saturating_sub(1).clamp(2, 64)),
            cpu_quota,
            residency: Residency::with_limit(if ON_CPU { memory } else { None }),
            memory,
            scores: (args.score_cache_bytes > 0)
                .then(|| Arc::new(ScoreCache::with_limit(args.score_cache_bytes))),
            turns: None,
            tokenizers: Arc::default(),
        })
    }

    /// The vector instructions that compute: the chosen ones, else the best of this CPU.
    pub(crate) fn computing_instructions(&self) -> InstructionSet {
        self.instruction_set.unwrap_or_else(InstructionSet::best)
    }

    /// The most bytes of scores and vectors that are kept, of all models together.
    pub(crate) fn score_cache_bytes(&self) -> usize {
        self.scores.as_ref().map_or(0, |cache| cache.max_bytes)
    }

    /// The threads that tokenize for all models.
    pub(crate) fn tokenizer_threads(&self) -> Result<Arc<TokenizerThreads>, Error> {
        let mut shared = self.tokenizers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = shared.upgrade() {
            return Ok(threads);
        }
        let threads = Arc::new(TokenizerThreads::start_threads(self.tokenization_workers)?);
        *shared = Arc::downgrade(&threads);
        Ok(threads)
    }

    /// The metrics of a model that is served by this name.
    pub(crate) fn metrics_of(&self, name: &str) -> ModelMetrics {
        if self.turns.is_some() { ModelMetrics::with_name(name) } else { ModelMetrics::default() }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn the_flags_set_the_threads() {
        let machine = |flags: &str| Machine::from_args(&Args::with_flags(flags).unwrap());
        let default = machine("").unwrap();
        assert!((2..=64).contains(&default.tokenization_workers) && default.threads > 0);
        let given = machine("--tokenization-workers 99 --threads 3").unwrap();
        assert_eq!((given.tokenization_workers, given.threads), (99, 3));
        let most = default.cores * MAX_THREADS_PER_CORE;
        assert_eq!(machine(&format!("--threads {most}")).unwrap().threads, most);
        let more = most + 1;
        let error = machine(&format!("--threads {more}")).unwrap_err().to_string();
        let expected = format!("`--threads {more}` is more than 4 times what this process may use, ");
        assert!(error.starts_with(&expected) && error.ends_with(": leave the flag out"), "{error}");
    }
}
