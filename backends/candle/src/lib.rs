//! The candle backend: it makes a [`Backend`] of model files.
//!
//! `models` describes architectures as data (`plan`). `transformer` loads and runs any of them in terms of
//! `operations`, which `cpu` computes with this crate's kernels and `plain` with candle. `heads` turns hidden
//! states into answers, `load` reads checkpoints, and `device` chooses the device.

mod attention;
#[cfg(feature = "benchmarks")]
pub mod benchmarks;
mod bias;
mod cpu;
#[cfg(any(all(test, target_os = "linux"), feature = "cuda"))]
mod cuda;
mod delta;
mod device;
#[cfg(any(test, feature = "tensors"))]
mod errors;
mod heads;
mod kept;
mod kernels;
mod load;
mod models;
mod operations;
mod pass;
#[cfg(any(test, feature = "tensors"))]
mod plain;
mod plan;
mod precision;
mod prefix_cache;
mod probe;
mod rope;
mod shape;
mod short_convolution;
mod similarity;
mod transformer;

#[cfg(feature = "cuda")]
use crate::cuda::CudaOperations;
#[cfg(any(test, feature = "tensors"))]
use crate::plain::TensorOperations;
use crate::{
    cpu::CpuOperations,
    device::Chosen,
    heads::{DeviceHead, DeviceStates, load_head, refuse_missing},
    kernels::threads::Threads,
    load::{Checkpoint, Scheme},
    operations::{Operations, Result},
    pass::{Pass, rows_to_compute},
    plan::{MixerPlan, Plan},
    prefix_cache::{Fresh, PrefixCache, TokenShape},
    shape::activation_bytes,
    similarity::CpuSimilarity,
    transformer::Transformer,
};
#[cfg(feature = "tensors")]
use candle_core::Device;
pub use device::{DEVICE, ON_CPU};
pub use kernels::InstructionSet;
pub use probe::{ArithmeticSpeed, PassSettings, measure_machine};
pub use shape::{ModelShape, PassWork, StoredValues, describe};
use std::{path::PathBuf, sync::Arc};
use text_embeddings_backend_core::{
    Backend, BackendError, BackendKind, Batch, DType, Head, LoadOptions, Loaded, NumberSupport, Numbers,
    Output, Packing, Predictions, Reused, SparseHead, Text, TokenHead, Wanted, first_answer_is_finite,
};
use text_embeddings_checkpoint::BF16;

/// A model with its head on a device.
struct CandleBackend<O: Operations> {
    operations: O,
    model: Transformer<O>,
    head: DeviceHead<O>,
    /// Values per hidden state.
    hidden: usize,
    cache: PrefixCache<O::Kept>,
    packing: Packing,
    values_per_token: usize,
    /// The bytes of the logits that a SPLADE head holds at a time, on all threads.
    logit_bytes: usize,
}

impl<O: Operations> CandleBackend<O> {
    fn compute_once(&mut self, batch: &Batch) -> Result<Predictions> {
        self.operations.bind_thread(false)?;
        let Self { operations, model, head, hidden: width, cache, packing, .. } = self;
        refuse_missing(head.outputs(), batch)?;
        model.extend_positions(batch);
        let whole_pass = WholePass { model, head, width: *width, cache };
        let parts = operations.run_parts(
            batch,
            || rows_to_compute(batch, &head.needed_rows(batch), cache),
            |operations, part| whole_pass.compute_batch(operations, part),
        );
        let parts: Result<Vec<_>> = parts.into_iter().map(|(part, result)| Ok((part, result?))).collect();
        let parts = parts?;
        let mut reused = Reused::default();
        if packing.shares_prefixes {
            // Parts may know the same rows.
            reused.tokens = match &parts[..] {
                [(_, (_, fresh))] => fresh.known.len(),
                _ => Pass::new(batch, &head.needed_rows(batch), cache).finish().known.len(),
            };
            for (_, (_, fresh)) in &parts {
                let Reused { texts, bytes, .. } = cache.keep(fresh);
                reused = Reused { texts: reused.texts + texts, bytes, ..reused };
            }
        }
        let mut texts = vec![Output::default(); batch.leaves().len()];
        for (part, (outputs, _)) in parts {
            part.into_iter().zip(outputs).for_each(|(text, output)| texts[text] = output);
        }
        Ok(Predictions { texts, reused, ..Predictions::default() })
    }
}

/// The forward pass and the head, for a batch or a part of it.
struct WholePass<'a, O: Operations> {
    model: &'a Transformer<O>,
    head: &'a DeviceHead<O>,
    width: usize,
    cache: &'a PrefixCache<O::Kept>,
}

impl<O: Operations> WholePass<'_, O> {
    /// The outputs of the batch's texts, and the rows that later passes may use.
    fn compute_batch(&self, operations: &mut O, batch: &Batch) -> Result<(Vec<Output>, Fresh<O::Kept>)> {
        let rows = self.head.needed_rows(batch);
        let mut pass = Pass::new(batch, &rows, self.cache);
        let mut texts = vec![Output::default(); batch.leaves().len()];
        let hidden = &self.model.forward(operations, &mut pass, &rows)?;
        let mut states = DeviceStates { operations, hidden, rows: &rows, width: self.width };
        let all: Vec<usize> = (0..texts.len()).collect();
        self.head.read_outputs(&mut states, batch, &all, &mut texts)?;
        Ok((texts, pass.finish()))
    }
}

impl<O: Operations> Drop for CandleBackend<O> {
    fn drop(&mut self) {
        // Weights and kept values are freed next. The first call may fail with an earlier error.
        if self.operations.bind_thread(true).is_err() {
            let _ = self.operations.bind_thread(true);
        }
    }
}

impl<O: Operations> Backend for CandleBackend<O> {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions> {
        match self.compute_once(batch) {
            // Memory of earlier passes, in pieces of other sizes, may have been in the way.
            Err(BackendError::OutOfMemory(_)) if self.operations.trim_memory() => self.compute_once(batch),
            result => result,
        }
    }

    fn known_tokens(&self, text: &Text) -> usize {
        match text.ids.split_last() {
            // The last token is always computed.
            Some((_, before)) if text.wanted == Wanted::WHOLE => self.cache.known(before),
            // So is the first marked token.
            _ if text.wanted == Wanted::TOKENS => {
                text.marks.first().map_or(0, |&mark| self.cache.known(&text.ids[..mark]))
            }
            _ => 0,
        }
    }

    fn packing(&self) -> Packing {
        self.packing
    }

    fn batch_bytes(&self, tokens: usize) -> usize {
        activation_bytes(self.values_per_token, &self.cache, tokens) + self.logit_bytes
    }
}

/// Loads a model and runs it once.
///
/// # Errors
///
/// [`BackendError::Load`] if a file, setting or weight is missing, broken or not supported, or if the model's
/// first answer is not a number.
pub fn load(options: &LoadOptions) -> Result<Loaded> {
    let device = device::choose()?;
    let model = OpenModel::open(options)?;
    match device {
        Chosen::Cpu => load_on_cpu(model, options),
        #[cfg(feature = "tensors")]
        Chosen::Candle(device) => load_on_candle(device, model, options),
    }
}

fn load_on_cpu(model: OpenModel, options: &LoadOptions) -> Result<Loaded> {
    let set = options.instruction_set.as_deref().map(str::parse).transpose().map_err(BackendError::Load)?;
    let set = set.unwrap_or_else(InstructionSet::best);
    let support = NumberSupport::Cpu {
        fast_16_bits: set.has_fast_16_bits(),
        stored_rounded: model.is_stored_rounded(),
    };
    let numbers = choose_numbers(options.dtype, support)?;
    let Numbers { computed, reported } = numbers;
    if computed != reported {
        tracing::info!(
            "`--dtype {reported}`: the CPU ({set}) does not multiply {reported}, so it computes in {computed} \
             instead"
        );
    }
    if computed == DType::BFloat16 && set.takes_int16() {
        tracing::info!(
            "the CPU ({set}) does not multiply bfloat16, so 16-bit integers take its place, which round less"
        );
    }
    let threads = Threads::share_threads(options.threads, options.pin_threads)?;
    let similarity = Arc::new(CpuSimilarity::new(set, threads.clone())?);
    let pinned_threads = threads.are_pinned();
    let operations = CpuOperations::on(threads, set, computed)?;
    let backend = model.load_on(operations, options)?;
    Ok(Loaded {
        kind: BackendKind::Candle,
        library: None,
        device: "cpu",
        numbers,
        instruction_set: Some(set.to_string()),
        pinned_threads,
        prefix_cache_bytes: kept_bytes(backend.as_ref(), options),
        similarity,
        backend,
    })
}

/// Loads a model onto a device that candle drives.
#[cfg(feature = "tensors")]
fn load_on_candle(device: Device, model: OpenModel, options: &LoadOptions) -> Result<Loaded> {
    let needs_range = model.is_stored_rounded() || model.plan.exceeds_float16;
    let numbers = choose_numbers(options.dtype, device::number_support(needs_range)?)?;
    let (backend, prefix_cache_bytes) = match numbers.computed {
        #[cfg(feature = "cuda")]
        dtype @ (DType::BFloat16 | DType::Float16) => {
            let operands =
                if dtype == DType::Float16 { candle_core::DType::F16 } else { candle_core::DType::BF16 };
            let gpu = cuda::device::Gpu::new(device, operands, options.flash_attention)?;
            let backend = model.load_on(CudaOperations::new(gpu, operands), options)?;
            let bytes = kept_bytes(backend.as_ref(), options);
            (backend, bytes)
        }
        _ => {
            // Keys and values would be copied to main memory and back.
            let options = LoadOptions { prefix_cache_bytes: 0, ..options.clone() };
            (model.load_on(TensorOperations::new(device, candle_core::DType::F32), &options)?, 0)
        }
    };
    Ok(Loaded {
        backend,
        kind: BackendKind::Candle,
        library: None,
        device: DEVICE,
        numbers,
        instruction_set: None,
        pinned_threads: false,
        prefix_cache_bytes,
        similarity: Arc::new(CpuSimilarity::new(InstructionSet::best(), Threads::start(1)?)?),
    })
}

fn choose_numbers(requested: Option<DType>, support: NumberSupport) -> Result<Numbers> {
    Numbers::choose(requested, support).map_err(|dtype| {
        BackendError::Load(format!("`--dtype {dtype}` is not supported on {DEVICE}: leave it out"))
    })
}

/// The size of the cache of keys and values: without shared prefixes, nothing is kept.
fn kept_bytes(backend: &dyn Backend, options: &LoadOptions) -> usize {
    if backend.packing().shares_prefixes { options.prefix_cache_bytes } else { 0 }
}

/// A model before its weights are loaded: its plan, and its open files.
struct OpenModel {
    plan: Plan,
    checkpoint: Checkpoint,
    scheme: Option<Scheme>,
}

impl OpenModel {
    fn open(options: &LoadOptions) -> Result<Self> {
        let plan = models::plan(&options.config, &options.choices)?;
        let checkpoint = Checkpoint::open(&options.weights)?.renamed_for(&plan)?;
        let scheme = Scheme::from_config(&options.config)?;
        // A copy in plain numbers may still have the original's config.json.
        let scheme = if checkpoint.has_scaled_matrix() { scheme } else { None };
        Ok(Self { plan, checkpoint, scheme })
    }

    /// Whether all matrices are stored in bfloat16 or quantised. Quantisation has rounded the values by more
    /// than bfloat16 rounds the widened ones.
    fn is_stored_rounded(&self) -> bool {
        self.scheme.is_some() || self.checkpoint.is_stored_as(&BF16)
    }

    fn load_on<O: Operations + 'static>(
        self,
        mut operations: O,
        options: &LoadOptions,
    ) -> Result<Box<dyn Backend>> {
        let Self { plan, checkpoint, scheme } = self;
        if let Some(scheme) = scheme {
            let used = if options.dtype == Some(DType::Int8) && scheme.is_bytes() {
                "its bytes are used as they are"
            } else {
                "its matrices are widened, and products use the type of `--dtype`"
            };
            tracing::info!("The checkpoint is quantised ({scheme}): {used}");
        }
        let checkpoint = checkpoint.with_adapters(plan.adapters.clone()).quantised_as(scheme);
        let checkpoint = checkpoint.with_unscaled_bytes(plan.unscaled_bytes);
        let model = Transformer::load(&plan, &checkpoint, &mut operations)?;
        let head = load_head(&options.head, &plan, &checkpoint, &mut operations)?;
        checkpoint.finish(&plan.ignored)?;
        // Fillers of queries of late-interaction models are a segment of their own.
        let gives_tokens_only =
            matches!(options.head, Head { whole: None, tokens: Some(TokenHead::Modules(_)), sparse: None });
        let packing = if gives_tokens_only { Packing::SEPARATE } else { plan.packing() };
        let budget = if packing.shares_prefixes { options.prefix_cache_bytes } else { 0 };
        let shape = token_shape(&plan, &operations);
        let cache = PrefixCache::new(budget, shape);
        let is_splade = matches!(options.head.sparse, Some(SparseHead::MaskedLm));
        let mut backend = CandleBackend {
            operations,
            model,
            head,
            hidden: plan.hidden,
            cache,
            packing,
            values_per_token: plan.values_per_token(),
            logit_bytes: if is_splade { plan.logit_bytes(options.threads) } else { 0 },
        };
        refuse_nan(&mut backend, options)?;
        Ok(Box::new(backend))
    }
}

/// The size of the values that the prefix cache keeps for a token.
fn token_shape<O: Operations>(plan: &Plan, operations: &O) -> TokenShape {
    let states = plan.layers.iter().filter_map(|layer| match &layer.mixer {
        MixerPlan::Delta(delta) => Some(operations.delta_state_values(delta.sizes)),
        MixerPlan::Convolution(convolution) => Some(convolution.state_values()),
        MixerPlan::Attention(_) => None,
    });
    let states: Vec<usize> = states.collect();
    TokenShape {
        layers: plan.layers.len() - states.len(),
        // Models with shared prefixes have the same heads in all layers.
        values: plan.views.iter().map(|view| 2 * view.heads.keys * view.heads.size).max().unwrap_or(0),
        value_bytes: operations.kept_bytes(),
        state_layers: states.len(),
        // All recurrent layers of a model have the same sizes.
        state_values: states.first().copied().unwrap_or(0),
    }
}

/// Loads a model with operations that already run.
#[cfg(any(test, feature = "benchmarks"))]
fn load_on<O: Operations + 'static>(operations: O, options: &LoadOptions) -> Result<Box<dyn Backend>> {
    OpenModel::open(options)?.load_on(operations, options)
}

/// Refuses a model whose first answer is not finite. Computing that answer also waits for the work that
/// loading has queued on a GPU; another thread's work would not wait for it (`cuda/device.rs`).
fn refuse_nan(backend: &mut impl Backend, options: &LoadOptions) -> Result<()> {
    if first_answer_is_finite(backend, &options.head)? {
        return Ok(());
    }
    let cause = find_broken(options)?.map_or_else(
        || {
            "the weights are finite, so a value is too large for `--dtype` (float16 ends at 65,504)"
                .to_owned()
        },
        |(path, name)| {
            format!("tensor `{name}` in {} holds a NaN or an infinity: download it again", path.display())
        },
    );
    Err(BackendError::Load(format!("the model's first answer is not a number: {cause}")))
}

/// The file and the name of a tensor that holds a NaN or an infinite value.
fn find_broken(options: &LoadOptions) -> Result<Option<(PathBuf, String)>> {
    for file in options.weights.iter().chain(options.head.files()) {
        if let Some(found) = Checkpoint::open(std::slice::from_ref(file))?.find_broken() {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
