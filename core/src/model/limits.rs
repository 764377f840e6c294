//! The longest input of a model and the token budget of a batch, and why they are what they are.
//!
//! Input: the flags and the [`LengthBounds`] in the model's files. Output: [`InputLimits`]. What must hold:
//! the longest input is never more than the model's positions allow; one sentence tells what bounds it and
//! which flag changes it; only a flag that the user gave is a reason for a warning.

use text_embeddings_backend_core::amount;

use super::Refusal;
use crate::families::Limits;
use crate::tokenization::TextLimits;

/// TEI's default, meant for GPUs. Without `--max-batch-tokens` and `--max-input-length`, it also bounds the
/// longest input.
pub const DEFAULT_MAX_BATCH_TOKENS: usize = 16_384;
/// The longest prompt with many documents on the CPU. With 0.6B parameters it takes two threads some
/// minutes, during which nothing else is computed. Its authors' own 131,072 would take longer than a batch
/// may (`--device-timeout`).
const DEFAULT_LIST_TOKENS: usize = 32_768;
/// The default on the CPU, for each computing thread, of a large model. New requests wait for the forward
/// pass that runs: at about 200 tokens per second and thread (0.6B parameters, bfloat16), a pass takes 1.3 s,
/// where 16,384 tokens on two threads would take 40 s. With twice as many tokens, others wait twice as long,
/// and a large request takes 8 to 18 % less time next to busy processes, on one machine, and no less on
/// another (readings in `docs/performance-details.md`).
const CPU_BATCH_TOKENS_PER_THREAD: usize = 256;
/// The multiplications with weights in a small model's batch on the CPU, for each computing thread: as many
/// as 128 tokens need in BERT-base. In smaller batches, operations take so little time that threads often
/// wait for one another, most of all next to busy neighbours (readings in `docs/performance-details.md`).
const CPU_BATCH_WORK_PER_THREAD: u64 = 128 * 84_934_656;

/// The flags about lengths, and the device, on which their defaults depend.
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "the other fields have the names of their flags")]
pub struct LengthFlags {
    pub max_input_length: Option<usize>,
    pub max_batch_tokens: Option<usize>,
    /// `--auto-truncate`: whether inputs that are too long are cut if the request does not say.
    pub auto_truncate: bool,
    /// Whether the CPU computes.
    pub on_cpu: bool,
}

/// The bounds on lengths in the model's files.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LengthBounds {
    /// `max_seq_length` of `sentence_bert_config.json`.
    pub(super) max_seq_length: Option<usize>,
    /// `model_max_length` of `tokenizer_config.json`, for a backend that it bounds.
    pub(super) model_max_length: Option<usize>,
    /// The tokens that the model's positions allow.
    pub(super) positions: Option<usize>,
    /// The limits that a re-ranker's family recommends; absent if the positions decide.
    pub(super) recommended: Option<Limits>,
    /// Whether a prompt holds many documents.
    pub(super) reads_lists: bool,
    /// Whether an input that is too long is refused, whatever the flags and the request say.
    pub(super) never_cuts: bool,
}

/// The limits on a model's inputs, and the sentences for the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputLimits {
    /// The most tokens of an input, prompt included.
    pub max_input_length: usize,
    /// The most tokens of the texts in a re-ranker's prompt.
    pub texts: TextLimits,
    /// The bound of the longest input, and the flag that changes it: a sentence.
    pub reason: String,
    /// Consequences of flags that the user may not have meant: a sentence each.
    pub warnings: Vec<String>,
}

impl InputLimits {
    /// Fits the longest input to the flags. `--max-batch-tokens` also bounds the inputs, unless
    /// `--max-input-length` is given: then an input that is longer than a batch is computed alone. Prompts
    /// with many documents may be longer, because the number of documents in a prompt affects their scores.
    pub(super) fn resolve(flags: LengthFlags, bounds: &LengthBounds) -> Result<Self, Refusal> {
        let mut warnings = Vec::new();
        let (taken, mut reason) = choose_max_length(flags, bounds, &mut warnings)?;
        let LengthFlags { max_batch_tokens: explicit, auto_truncate, .. } = flags;
        let may_cut = auto_truncate && !bounds.never_cuts;
        let max = match explicit {
            _ if flags.max_input_length.is_some() => taken,
            Some(budget) if budget < taken && !auto_truncate => {
                return Err(Refusal::Kind(format!(
                    "with `--auto-truncate false`, `--max-batch-tokens {budget}` must hold the longest input of \
                     {}: raise it, or give `--max-input-length`",
                    amount(taken, "token")
                )));
            }
            Some(budget) => budget,
            None if bounds.reads_lists && flags.on_cpu => DEFAULT_LIST_TOKENS,
            None if auto_truncate => DEFAULT_MAX_BATCH_TOKENS,
            None => taken,
        };
        if max < taken {
            reason = match explicit {
                Some(_) => format!("by `--max-batch-tokens`, although the model takes {taken}"),
                None => format!("the default bound, although the model takes {taken}"),
            };
        }
        let max_input_length = taken.min(max);
        let longer = match (bounds.reads_lists, may_cut) {
            (true, _) => "documents of a request that need more are read in several prompts",
            (false, true) => "longer ones are cut",
            (false, false) => "longer ones are refused",
        };
        if explicit.is_some() && max < taken {
            warnings.push(format!(
                "`--max-batch-tokens {max}` makes the longest input shorter than the {taken} tokens that the \
                 model takes; {longer}: `--max-input-length` sets the longest input independently"
            ));
        }
        let remedy = match flags.max_input_length {
            Some(_) => "",
            None => "; `--max-input-length` sets another length",
        };
        let reason =
            format!("Longest input: {} ({reason}); {longer}{remedy}", amount(max_input_length, "token"));
        let recommended = bounds.recommended;
        let texts = TextLimits {
            // The flag bounds the whole prompt, so the family's bound on its texts does not apply.
            texts: if flags.max_input_length.is_none() { recommended.and_then(|it| it.texts) } else { None },
            query: recommended.and_then(|it| it.query),
            document: recommended.and_then(|it| it.document),
        };
        Ok(Self { max_input_length, texts, reason, warnings })
    }
}

/// The longest input by flag, files or kind of model, at most the positions; with the reason.
fn choose_max_length(
    flags: LengthFlags,
    bounds: &LengthBounds,
    warnings: &mut Vec<String>,
) -> Result<(usize, String), Refusal> {
    let positions = bounds.positions.unwrap_or(usize::MAX);
    if let Some(asked) = flags.max_input_length {
        if asked <= positions {
            return Ok((asked, "by `--max-input-length`".to_owned()));
        }
        return Err(Refusal::Kind(format!(
            "`--max-input-length {asked}` is more than the {positions} tokens that the model's positions allow: \
             give at most that"
        )));
    }
    // Tokenizers of generative models often name a length that no re-ranker was trained with.
    let recommended = bounds.recommended.map_or(usize::MAX, |recommended| recommended.prompt);
    let (max_length, reason) = if let Some(length) = bounds.max_seq_length {
        (length, "max_seq_length in the model's files")
    } else if let Some(length) = bounds.model_max_length.filter(|length| *length <= recommended) {
        (length, "model_max_length in tokenizer_config.json")
    } else if bounds.recommended.is_some() {
        (recommended, "as recommended for this kind of re-ranker")
    } else {
        (usize::MAX, "")
    };
    if bounds.max_seq_length.is_some() && max_length > positions {
        warnings.push(format!(
            "max_seq_length {max_length} in the model's files is more than the {positions} tokens that the \
             model's positions allow: the longest input is {positions}"
        ));
    }
    if max_length > positions || reason.is_empty() {
        return Ok((positions, "all that the model's positions allow".to_owned()));
    }
    Ok((max_length, reason.to_owned()))
}

/// The conditions that decide the token budget of a batch, if none is given.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the other fields have the names of their flags")]
pub struct BatchConditions {
    /// Whether the device is a CPU.
    pub on_cpu: bool,
    pub threads: usize,
    pub prefix_cache_bytes: usize,
    /// Multiplications of a token with the model's weights, if they are known.
    pub token_work: Option<u64>,
}

impl BatchConditions {
    /// The token budget. Without a prefix cache, each batch computes the shared beginning of its texts again,
    /// so that small batches would cost more time than they save.
    pub fn default_tokens(self) -> usize {
        if !self.on_cpu || self.prefix_cache_bytes == 0 {
            return DEFAULT_MAX_BATCH_TOKENS;
        }
        let per_thread = self.token_work.map_or(0, |work| CPU_BATCH_WORK_PER_THREAD / work.max(1));
        let per_thread = usize::try_from(per_thread).unwrap_or(usize::MAX).max(CPU_BATCH_TOKENS_PER_THREAD);
        self.threads.saturating_mul(per_thread).min(DEFAULT_MAX_BATCH_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    const QWEN: LengthBounds = LengthBounds {
        max_seq_length: None,
        model_max_length: None,
        positions: Some(40_960),
        recommended: Some(Limits::DEFAULT),
        reads_lists: false,
        never_cuts: false,
    };

    const FLAGS: LengthFlags =
        LengthFlags { max_input_length: None, max_batch_tokens: None, auto_truncate: true, on_cpu: true };

    fn max_length(max_input_length: usize) -> LengthFlags {
        LengthFlags { max_input_length: Some(max_input_length), ..FLAGS }
    }

    fn budget(max_batch_tokens: usize) -> LengthFlags {
        LengthFlags { max_batch_tokens: Some(max_batch_tokens), ..FLAGS }
    }

    fn strict(flags: LengthFlags) -> LengthFlags {
        LengthFlags { auto_truncate: false, ..flags }
    }

    #[test]
    fn prompts_with_many_documents_have_a_longest_length_of_their_own() {
        let recommended = Limits { prompt: 131_072, document: Some(2048), ..Limits::DEFAULT };
        let bounds = LengthBounds {
            positions: Some(131_072),
            recommended: Some(recommended),
            reads_lists: true,
            ..QWEN
        };
        for (flags, expected, warnings) in [
            (FLAGS, 32_768, 0),
            (LengthFlags { on_cpu: false, ..FLAGS }, 16_384, 0),
            (max_length(131_072), 131_072, 0),
            (max_length(999), 999, 0),
            (budget(4096), 4096, 1),
        ] {
            let limits = InputLimits::resolve(flags, &bounds).unwrap();
            assert_eq!((limits.max_input_length, limits.warnings.len()), (expected, warnings), "{flags:?}");
            assert_eq!(limits.texts.document, Some(2048));
            assert!(limits.reason.contains("read in several prompts"), "{}", limits.reason);
        }
    }

    #[test]
    fn the_longest_input_and_the_budget_fit_each_other() {
        let both = LengthFlags { max_batch_tokens: Some(4096), ..max_length(30_000) };
        let small = LengthFlags { max_batch_tokens: Some(99), ..max_length(100) };
        // flags, max_seq_length, positions, longest, warnings
        let table = [
            (FLAGS, None, Some(40_960), 8192, 0),
            (FLAGS, None, Some(512), 512, 0),
            (FLAGS, None, None, 8192, 0),
            (FLAGS, Some(1000), Some(40_960), 1000, 0),
            (FLAGS, Some(1000), Some(512), 512, 1),
            (FLAGS, Some(30_000), Some(40_960), 16_384, 0),
            (strict(FLAGS), Some(30_000), Some(40_960), 30_000, 0),
            (max_length(40_960), None, Some(40_960), 40_960, 0),
            (max_length(300), Some(1000), Some(512), 300, 0),
            (strict(max_length(20_000)), None, Some(40_960), 20_000, 0),
            (budget(4096), None, Some(40_960), 4096, 1),
            (budget(8192), None, Some(40_960), 8192, 0),
            (budget(16_384), None, Some(40_960), 8192, 0),
            (both, None, Some(40_960), 30_000, 0),
            (strict(small), None, Some(40_960), 100, 0),
            (strict(budget(20_000)), None, Some(40_960), 8192, 0),
        ];
        for (flags, max_seq_length, positions, expected, warnings) in table {
            let bounds = LengthBounds { max_seq_length, positions, ..QWEN };
            let limits = InputLimits::resolve(flags, &bounds).unwrap();
            assert_eq!(limits.max_input_length, expected, "{flags:?} {bounds:?}");
            assert_eq!(limits.warnings.len(), warnings, "{:?}", limits.warnings);
        }
    }

    #[test]
    fn one_sentence_tells_what_bounds_the_longest_input() {
        let embedding = LengthBounds { recommended: None, ..QWEN };
        let with = |max_seq_length, model_max_length| LengthBounds {
            max_seq_length,
            model_max_length,
            positions: Some(512),
            ..embedding
        };
        for (flags, bounds, expected) in [
            (FLAGS, QWEN, "8192 tokens (as recommended for this kind of re-ranker); longer ones are cut"),
            (FLAGS, embedding, "16384 tokens (the default bound, although the model takes 40960)"),
            (FLAGS, with(Some(300), Some(256)), "300 tokens (max_seq_length in the model's files)"),
            (FLAGS, with(None, Some(256)), "256 tokens (model_max_length in tokenizer_config.json)"),
            (
                FLAGS,
                LengthBounds { model_max_length: Some(256), ..QWEN },
                "256 tokens (model_max_length in tokenizer_config.json)",
            ),
            (
                FLAGS,
                LengthBounds { model_max_length: Some(131_072), ..QWEN },
                "8192 tokens (as recommended for this kind of re-ranker)",
            ),
            (FLAGS, with(None, Some(usize::MAX)), "512 tokens (all that the model's positions allow)"),
            (
                FLAGS,
                LengthBounds { max_seq_length: Some(50_000), ..embedding },
                "16384 tokens (the default bound, although the model takes 40960)",
            ),
            (
                strict(FLAGS),
                embedding,
                "40960 tokens (all that the model's positions allow); longer ones are refused",
            ),
            (max_length(7), QWEN, "7 tokens (by `--max-input-length`); longer ones are cut"),
            (budget(99), embedding, "99 tokens (by `--max-batch-tokens`, although the model takes"),
        ] {
            let limits = InputLimits::resolve(flags, &bounds).unwrap();
            let reason = &limits.reason;
            assert!(reason.starts_with(&format!("Longest input: {expected}")), "{flags:?}: {reason}");
            let is_open = reason.ends_with("; `--max-input-length` sets another length");
            assert_eq!(is_open, flags.max_input_length.is_none(), "{reason}");
            // Only a flag that was given is a reason to warn.
            let is_warned = limits.warnings.iter().any(|warning| warning.contains("--max-batch-tokens"));
            assert_eq!(is_warned, flags.max_batch_tokens.is_some(), "{:?}", limits.warnings);
        }
    }

    #[test]
    fn contradicting_limits_are_refused() {
        for (flags, expected) in [
            (max_length(40_961), "`--max-input-length 40961` is more than the 40960 tokens"),
            (strict(budget(4096)), "`--max-batch-tokens 4096` must hold the longest input of 8192 tokens"),
        ] {
            let message = InputLimits::resolve(flags, &QWEN).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_cpu_has_a_budget_by_its_threads_and_the_models_size() {
        let base =
            BatchConditions { on_cpu: true, threads: 2, prefix_cache_bytes: 1 << 28, token_work: None };
        let of_threads = |threads| BatchConditions { threads, ..base };
        let of_work = |token_work| BatchConditions { token_work: Some(token_work), ..base };
        let table = [
            (BatchConditions { prefix_cache_bytes: 1, ..of_threads(1) }, 256),
            (base, 512),
            (of_threads(63), 16_128),
            (of_threads(64), 16_384),
            (of_threads(65), 16_384),
            (of_threads(usize::MAX), 16_384),
            (BatchConditions { prefix_cache_bytes: 0, ..base }, 16_384),
            (BatchConditions { on_cpu: false, ..base }, 16_384),
            // 0.6B, BERT-base, and MiniLM with twelve and with six layers.
            (of_work(440_401_920), 512),
            (of_work(84_934_656), 512),
            (of_work(21_233_664), 1024),
            (of_work(10_616_832), 2048),
            (of_work(1), 16_384),
            (of_work(0), 16_384),
            (of_work(u64::MAX), 512),
        ];
        for (conditions, expected) in table {
            assert_eq!(conditions.default_tokens(), expected, "{conditions:?}");
        }
    }

    #[test]
    fn a_family_s_bound_on_its_texts_gives_way_to_the_users_bound_on_the_prompt() {
        let recommended = Limits { texts: Some(1024), ..Limits::DEFAULT };
        let bounds = LengthBounds { recommended: Some(recommended), ..QWEN };
        for (flags, texts) in [(FLAGS, Some(1024)), (max_length(300), None), (budget(300), Some(1024))] {
            assert_eq!(InputLimits::resolve(flags, &bounds).unwrap().texts.texts, texts, "{flags:?}");
        }
    }
}
