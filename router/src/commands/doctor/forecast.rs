//! Whether a model fits, in which arithmetic, and how fast it will be.
//!
//! Input: a model's `config.json`, and the measured speed of large products. Output: a [`Forecast`]. What
//! must hold: memory is planned by the server's own [`MemoryPlan`]; a time is work, counted from the sizes,
//! divided by speed, so that it changes with the machine and with the model, and with nothing else.

use std::{num::NonZeroUsize, time::Duration};

use serde::Serialize;
use serde_json::Value;
use text_embeddings_backend::{ArithmeticSpeed, InstructionSet, ModelShape, PassSettings, StoredValues};
use text_embeddings_backend_core::{DType, NumberSupport, Numbers};
use text_embeddings_core::{
    families::Limits,
    files::{DEMO_MODEL_ID, ModelSettings},
    model::{DEFAULT_MAX_BATCH_TOKENS, RequestedType},
};

use crate::{
    args::Args,
    available::Available,
    machine::Machine,
    startup::{flags::batch_tokens, memory::MemoryPlan},
};

/// The share of a large product's speed that a whole pass reaches, for float32, bfloat16 and int8, by the
/// width of hidden states: narrow products, norms, activations and the softmax cost relatively more. For
/// float32 it follows from `--measure` of the table's models, for the others from the readings in
/// `docs/performance-details.md`.
const REACHED: [(f64, [f64; 3]); 5] = [
    (256.0, [0.72, 0.60, 0.45]),
    (384.0, [0.83, 0.75, 0.65]),
    (768.0, [0.88, 0.85, 0.75]),
    (1024.0, [0.93, 0.90, 0.80]),
    (2048.0, [0.95, 0.93, 0.85]),
];
/// The part of a large product's speed at which attention runs, of the arithmetic that it is computed in.
const ATTENTION: f64 = 0.4;
/// The memory of the process without a model, in bytes.
const PROCESS_BYTES: u64 = 10_000_000;
/// The memory of a tokenizer for each entry of its vocabulary, in bytes.
const TOKENIZER_BYTES: u64 = 600;
/// The longest input where the default does not fit.
const SHORT_INPUT: usize = 512;
/// For how long a model is measured in each kind of arithmetic.
const TIME: Duration = Duration::from_millis(500);
/// The number of candidates whose time is told.
const CANDIDATES: f64 = 100.0;

/// The task of a model, as far as `config.json` and its name say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Task {
    Rerank,
    Embed,
}

impl Task {
    /// The task of a kind of model that the user names.
    pub(super) fn of_type(given: RequestedType) -> Self {
        match given {
            RequestedType::Reranker | RequestedType::ListwiseReranker | RequestedType::Decider => {
                Self::Rerank
            }
            RequestedType::Embedding | RequestedType::Classifier => Self::Embed,
        }
    }

    /// A classification head with a pair's score, or a name that says it: a generative re-ranker, such as the
    /// built-in one, has the `config.json` of any language model.
    pub(super) fn guess_task(name: &str, config: &Value) -> Self {
        let classes = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let has_head = classes.into_iter().any(|class| class.ends_with("ForSequenceClassification"));
        let is_named = name == DEMO_MODEL_ID || name.to_ascii_lowercase().contains("rerank");
        if has_head || is_named { Self::Rerank } else { Self::Embed }
    }

    /// The things whose number per second is told.
    pub(super) fn unit_name(self) -> &'static str {
        match self {
            Self::Rerank => "pairs",
            Self::Embed => "texts",
        }
    }
}

/// A model without its weights.
pub(super) struct ModelCandidate {
    pub(super) model: String,
    pub(super) task: Task,
    shape: ModelShape,
    stored: StoredValues,
    is_splade: bool,
    default: DType,
}

/// The circumstances of all forecasts.
pub(super) struct Circumstances<'a> {
    pub(super) args: &'a Args,
    pub(super) machine: &'a Machine,
    pub(super) speeds: &'a [ArithmeticSpeed],
    /// Tokens of a candidate.
    pub(super) tokens: usize,
    /// Whether forecasts are checked with random weights.
    pub(super) measures: bool,
}

/// The findings about a model.
#[derive(Debug, Serialize)]
pub(super) struct Forecast {
    pub(super) model: String,
    pub(super) task: Task,
    /// Values of its tables and matrices.
    pub(super) parameters: f64,
    /// Whether it fits in one of the kinds of arithmetic.
    pub(super) fits: bool,
    /// The flags to start it with, if it fits.
    pub(super) flags: Option<String>,
    /// The arithmetic of these flags; its place in `choices`.
    #[serde(skip)]
    pub(super) chosen: Option<usize>,
    pub(super) choices: Vec<Choice>,
}

/// A model in one kind of arithmetic.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Choice {
    pub(super) dtype: String,
    /// The memory of a server without requests.
    pub(super) memory_bytes: u64,
    pub(super) fits: bool,
    /// Absent for a model without layers.
    pub(super) per_second: Option<f64>,
    pub(super) ms_for_100: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured_per_second: Option<f64>,
    /// The flags for smaller limits, if it fits with these only.
    #[serde(skip)]
    pub(super) limits: String,
}

impl Choice {
    fn known_rate(&self) -> f64 {
        self.measured_per_second.or(self.per_second).unwrap_or(0.0)
    }
}

impl ModelCandidate {
    /// The model with these settings. The error is a sentence that names the setting that is not supported,
    /// or is missing.
    pub(super) fn from_settings(
        model: String,
        task: Task,
        &ModelSettings { ref config, is_gguf, is_splade }: &ModelSettings,
        set: InstructionSet,
    ) -> anyhow::Result<Self> {
        let shape = ModelShape::from_config(config)?;
        let quantised = is_gguf || config["quantization_config"].is_object();
        let dtype = ["dtype", "torch_dtype"].iter().find_map(|name| config[*name].as_str());
        let (bits, are_bfloat16) = match (quantised, dtype) {
            (true, _) => (8, false),
            (false, Some("bfloat16")) => (16, true),
            (false, Some("float16")) => (16, false),
            (false, _) => (32, false),
        };
        let stored_rounded = are_bfloat16 || quantised && !is_gguf;
        let support = NumberSupport::Cpu { fast_16_bits: set.has_fast_16_bits(), stored_rounded };
        let default = Numbers::choose(None, support).map_or(DType::Float32, |numbers| numbers.computed);
        Ok(Self { model, task, shape, stored: StoredValues { bits, are_bfloat16 }, is_splade, default })
    }

    /// The memory and the speed to be expected.
    pub(super) fn make_forecast(&self, it: &Circumstances<'_>) -> anyhow::Result<Forecast> {
        let set = it.machine.computing_instructions();
        let mut dtypes = match it.args.model.dtype {
            Some(DType::Float16) if set.has_fast_16_bits() => vec![DType::BFloat16],
            Some(DType::Float16) => vec![DType::Float32],
            Some(dtype) => vec![dtype],
            None if set.has_fast_16_bits() => vec![DType::Float32, DType::BFloat16, DType::Int8],
            None => vec![DType::Float32, DType::Int8],
        };
        let mut choices = self.make_choices(&dtypes, it)?;
        if it.args.model.dtype.is_none() && !choices.iter().any(|choice| choice.fits) {
            choices.extend(self.make_choices(&[DType::Int4], it)?);
            dtypes.push(DType::Int4);
        }
        if it.measures {
            for (choice, &dtype) in choices.iter_mut().zip(&dtypes).filter(|(choice, _)| choice.fits) {
                choice.measured_per_second = self.measure_rate(dtype, it)?;
            }
        }
        let chosen = self.best_choice(&choices, &dtypes);
        let flags = chosen.map(|index| {
            let is_default = dtypes[index] == self.default;
            let dtype = if is_default { String::new() } else { format!("--dtype {}", dtypes[index]) };
            format!("{dtype} {}", choices[index].limits).trim().to_owned()
        });
        Ok(Forecast {
            model: self.model.clone(),
            task: self.task,
            parameters: self.shape.parameter_count(),
            fits: chosen.is_some(),
            flags,
            chosen,
            choices,
        })
    }

    /// The arithmetic to start with. Re-rankers rank as well in int8 (`docs/performance.md`), so the fastest
    /// one that fits; vectors lose more, so the default if it fits.
    fn best_choice(&self, choices: &[Choice], dtypes: &[DType]) -> Option<usize> {
        let mut fitting: Vec<usize> = (0..choices.len()).filter(|&index| choices[index].fits).collect();
        let default = fitting.iter().copied().find(|&index| dtypes[index] == self.default);
        fitting.sort_by(|&a, &b| choices[a].known_rate().total_cmp(&choices[b].known_rate()));
        let fastest = fitting.pop();
        match self.task {
            Task::Embed => default.or(fastest),
            Task::Rerank => fastest,
        }
    }

    fn make_choices(&self, dtypes: &[DType], it: &Circumstances<'_>) -> anyhow::Result<Vec<Choice>> {
        dtypes.iter().map(|&dtype| self.make_choice(dtype, it)).collect()
    }

    /// The model in this arithmetic, with the given limits; if it does not fit with them, with short inputs
    /// and without a prefix cache.
    fn make_choice(&self, dtype: DType, it: &Circumstances<'_>) -> anyhow::Result<Choice> {
        let seconds = self.text_seconds(dtype, it);
        let plan = self.plan_memory(it.args, dtype, it.machine)?;
        let mut choice = Choice {
            dtype: dtype.to_string(),
            memory_bytes: plan.certain_bytes(),
            fits: it.machine.memory.is_none_or(|available| plan.fits_into(available)),
            per_second: seconds.map(|seconds| 1.0 / seconds),
            ms_for_100: seconds.map(|seconds| CANDIDATES * seconds * 1e3),
            measured_per_second: None,
            limits: String::new(),
        };
        if !choice.fits {
            let mut short = it.args.clone();
            short.model.prefix_cache_bytes = 0;
            short.model.max_batch_tokens = NonZeroUsize::new(SHORT_INPUT);
            short.model.max_input_length = NonZeroUsize::new(self.max_length(it.args).min(SHORT_INPUT));
            let plan = self.plan_memory(&short, dtype, it.machine)?;
            if it.machine.memory.is_some_and(|available| plan.fits_into(available)) {
                choice.fits = true;
                choice.memory_bytes = plan.certain_bytes();
                choice.limits = format!(
                    "--max-input-length {SHORT_INPUT} --max-batch-tokens {SHORT_INPUT} --prefix-cache-bytes 0"
                );
            }
        }
        Ok(choice)
    }

    /// The longest input, as the server chooses it without the other files of the model.
    fn max_length(&self, args: &Args) -> usize {
        let positions = self.shape.max_length().unwrap_or(usize::MAX);
        if let Some(given) = args.model.max_input_length {
            return given.get().min(positions);
        }
        let is_generative = self.task == Task::Rerank && self.shape.shares_prefixes();
        let kind = if is_generative { Limits::DEFAULT.prompt } else { usize::MAX };
        let batch = args.model.max_batch_tokens.map(NonZeroUsize::get);
        positions.min(kind).min(batch.unwrap_or(DEFAULT_MAX_BATCH_TOKENS))
    }

    fn plan_memory(&self, args: &Args, dtype: DType, machine: &Machine) -> anyhow::Result<MemoryPlan> {
        let set = machine.computing_instructions();
        let (model, max_length) = (&args.model, self.max_length(args));
        let batch = batch_tokens(args, machine, Some(self.shape.token_work()));
        let prefixes = if self.shape.shares_prefixes() { model.prefix_cache_bytes } else { 0 };
        let tokenizer = TOKENIZER_BYTES.saturating_mul(self.shape.vocabulary_size() as u64);
        let weights = self.shape.weight_bytes(dtype, self.stored, set);
        let logits = if self.is_splade { self.shape.logit_bytes(machine.threads) } else { 0 };
        let activations = self.shape.batch_bytes(batch.max(max_length), dtype, prefixes, set)?;
        let plan = MemoryPlan {
            loaded: weights.saturating_add(tokenizer).saturating_add(PROCESS_BYTES),
            batch: activations.saturating_add(logits),
            prefixes: prefixes as u64,
            ..MemoryPlan::default()
        };
        let unknown = Available { bytes: u64::MAX, source: "" };
        let available = machine.memory.unwrap_or(unknown);
        Ok(plan.with_requests(available, args, machine.tokenization_workers, max_length))
    }

    /// The seconds of a candidate, predicted; absent for a model without layers.
    fn text_seconds(&self, dtype: DType, it: &Circumstances<'_>) -> Option<f64> {
        let place = match dtype {
            DType::Float32 => 0,
            DType::BFloat16 | DType::Float16 => 1,
            DType::Int8 | DType::Int4 => 2,
        };
        let speed = it.speeds.get(place)?.product;
        // In int8, some products and attention are in 16 bits, or in float32 where the CPU does not multiply
        // these.
        let wide_place =
            if place == 2 { usize::from(it.speeds[1].product > it.speeds[0].product) } else { place };
        let wide = it.speeds[wide_place].product;
        let work = self.shape.text_work(it.tokens, self.answer_rows(it.tokens));
        let hidden = self.shape.hidden_size() as f64;
        let precise = work.precise / (wide * reached_share(hidden, wide_place));
        let products = (work.products - work.precise) / (speed * reached_share(hidden, place));
        let seconds = 2.0 * (precise + products + work.attention / (wide * ATTENTION));
        (self.shape.layer_count() > 0).then_some(seconds)
    }

    /// The number of tokens whose last states are needed: one for a score or a causal model's vector; all for
    /// a mean, as if all other vectors were means.
    fn answer_rows(&self, tokens: usize) -> usize {
        if self.task == Task::Rerank || self.shape.shares_prefixes() { 1 } else { tokens }
    }

    fn measure_rate(&self, dtype: DType, it: &Circumstances<'_>) -> anyhow::Result<Option<f64>> {
        if self.shape.layer_count() == 0 {
            return Ok(None);
        }
        let settings = PassSettings {
            set: it.machine.computing_instructions(),
            threads: it.machine.threads,
            dtype,
            stored: self.stored,
            tokens: it.tokens,
            answer_rows: self.answer_rows(it.tokens),
            time: TIME,
        };
        Ok(Some(1.0 / self.shape.measure_text(&settings)?))
    }
}

/// The share of [`REACHED`] for a width, between its rows in proportion to the logarithm.
fn reached_share(hidden: f64, place: usize) -> f64 {
    let behind = REACHED.iter().position(|(width, _)| *width > hidden).unwrap_or(REACHED.len());
    let (Some((low, below)), Some((high, above))) =
        (REACHED.get(behind.wrapping_sub(1)), REACHED.get(behind))
    else {
        return REACHED[behind.saturating_sub(1).min(REACHED.len() - 1)].1[place];
    };
    let part = (hidden / low).ln() / (high / low).ln();
    below[place] + part * (above[place] - below[place])
}
