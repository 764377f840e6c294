//! The longest input and the token budget of a batch, and why they are what they are.
//!
//! Input: the flags and the [`ModelLimits`]. Output: [`Fitted`]. What must hold: the longest input is never
//! more than the model's positions allow; one sentence tells what bounds it and which flag changes it; only a
//! flag that the user gave is a reason for a warning.

use std::num::NonZeroUsize;

use text_embeddings_backend::ON_CPU;
use text_embeddings_backend_core::amount;

use super::{ConfigError, ModelLimits};
use crate::args::Args;

/// TEI's default, meant for GPUs. Without `--max-batch-tokens` and `--max-input-length`, it also bounds the
/// longest input.
pub(super) const DEFAULT_MAX_BATCH_TOKENS: usize = 16_384;
/// The longest prompt of a listwise re-ranker on the CPU. With 0.6B parameters it takes two threads some
/// minutes, during which nothing else is computed. Its authors' own 131,072 would take longer than a batch
/// may (`--device-timeout`).
const DEFAULT_LIST_TOKENS: usize = 32_768;
/// The default on the CPU, for each computing thread. New requests wait for the forward pass that runs: at
/// about 200 tokens per second and thread (0.6B parameters, bfloat16), a pass takes 1.3 s, where 16,384
/// tokens on two threads would take 40 s. Twice as many tokens are up to 4 % faster, half as many up to 6 %
/// slower (readings in `docs/performance-details.md`).
const CPU_BATCH_TOKENS_PER_THREAD: usize = 256;

/// The two limits, and the sentences for the log.
pub(super) struct Fitted {
    /// The longest input in tokens.
    pub(super) longest: usize,
    /// The tokens of a batch; a longer input is computed alone.
    pub(super) budget: usize,
    /// The bound of the longest input, and the flag that changes it: a sentence.
    pub(super) told: String,
    /// Consequences of flags that the user may not have meant: a sentence each.
    pub(super) warnings: Vec<String>,
}

/// Fits both limits to each other. `--max-batch-tokens` also bounds the inputs, unless `--max-input-length`
/// is given: then an input that is longer than a batch is computed alone. The prompts of a listwise re-ranker
/// may be longer, because the number of documents in a prompt affects their scores.
pub(super) fn fit(args: &Args, limits: &ModelLimits, threads: usize) -> Result<Fitted, ConfigError> {
    let mut warnings = Vec::new();
    let (taken, mut reason) = longest_input(args, limits, &mut warnings)?;
    let is_list = limits.recommended.is_some_and(|of| of.document.is_some());
    let explicit = args.model.max_batch_tokens.map(NonZeroUsize::get);
    let may_cut = args.model.auto_truncate;
    let most = match explicit {
        _ if args.model.max_input_length.is_some() => taken,
        Some(budget) if budget < taken && !may_cut => {
            return Err(ConfigError::BudgetTooSmall { budget, longest: taken });
        }
        Some(budget) => budget,
        None if is_list && ON_CPU => DEFAULT_LIST_TOKENS,
        None if may_cut => DEFAULT_MAX_BATCH_TOKENS,
        None => taken,
    };
    if most < taken {
        reason = match explicit {
            Some(_) => format!("by `--max-batch-tokens`, although the model takes {taken}"),
            None => format!("the default bound, although the model takes {taken}"),
        };
    }
    let longest = taken.min(most);
    let longer = match (is_list, may_cut) {
        (true, _) => "documents of a request that need more are read in several prompts",
        (false, true) => "longer ones are cut",
        (false, false) => "longer ones are refused",
    };
    if explicit.is_some() && most < taken {
        warnings.push(format!(
            "`--max-batch-tokens {most}` makes the longest input shorter than the {taken} tokens that the \
             model takes; {longer}: `--max-input-length` sets the longest input independently"
        ));
    }
    let remedy =
        if args.model.max_input_length.is_some() { "" } else { "; `--max-input-length` sets another length" };
    let told = format!("Longest input: {} ({reason}); {longer}{remedy}", amount(longest, "token"));
    let budget = explicit.unwrap_or(default_budget(ON_CPU, threads, args.model.prefix_cache_bytes));
    Ok(Fitted { longest, budget, told, warnings })
}

/// The longest input by flag, files or kind of model, at most the positions; with the reason.
fn longest_input(
    args: &Args,
    limits: &ModelLimits,
    warnings: &mut Vec<String>,
) -> Result<(usize, String), ConfigError> {
    let positions = limits.longest_input.unwrap_or(usize::MAX);
    if let Some(asked) = args.model.max_input_length.map(NonZeroUsize::get) {
        let reason = "by `--max-input-length`".to_owned();
        return if asked <= positions {
            Ok((asked, reason))
        } else {
            Err(ConfigError::BeyondPositions { asked, positions })
        };
    }
    let all = || "all that the model's positions allow".to_owned();
    let (longest, reason) = match (limits.max_seq_length, limits.recommended) {
        (Some(length), _) => (length, "max_seq_length in the model's files".to_owned()),
        (None, Some(recommended)) => {
            (recommended.prompt, "as recommended for this kind of re-ranker".to_owned())
        }
        (None, None) => return Ok((positions, all())),
    };
    if limits.max_seq_length.is_some() && longest > positions {
        warnings.push(format!(
            "max_seq_length {longest} in the model's files is more than the {positions} tokens that the \
             model's positions allow: the longest input is {positions}"
        ));
    }
    if longest > positions { Ok((positions, all())) } else { Ok((longest, reason)) }
}

/// The token budget if none is given. Without a prefix cache, each batch computes the shared beginning of its
/// texts again, so that small batches would cost more time than they save.
pub(super) fn default_budget(on_cpu: bool, threads: usize, prefix_cache_bytes: usize) -> usize {
    if on_cpu && prefix_cache_bytes > 0 {
        threads.saturating_mul(CPU_BATCH_TOKENS_PER_THREAD).min(DEFAULT_MAX_BATCH_TOKENS)
    } else {
        DEFAULT_MAX_BATCH_TOKENS
    }
}
