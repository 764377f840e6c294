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
mod device;
mod heads;
mod kept;
mod kernels;
mod load;
mod models;
mod operations;
mod pass;
mod plain;
mod plan;
mod prefix_cache;
mod rope;
mod transformer;

#[cfg(feature = "cuda")]
use crate::cuda::CudaOperations;
use crate::{
    cpu::CpuOperations,
    device::Chosen,
    heads::{DeviceHead, DeviceStates, load_head, refuse_missing},
    kernels::threads::Threads,
    load::{Checkpoint, Scheme},
    operations::{Operations, Result},
    pass::Pass,
    plain::TensorOperations,
    prefix_cache::{PrefixCache, TokenShape},
    transformer::Transformer,
};
use candle_core::Device;
pub use device::{DEVICE, ON_CPU};
pub use kernels::InstructionSet;
pub use models::{CUTOFF_LAYERS, LORA_TASK, describe};
use std::path::PathBuf;
use text_embeddings_backend_core::{
    Backend, BackendError, BackendKind, Batch, DType, LoadOptions, Loaded, Output, Packing, Predictions,
    Text, Wanted, first_answer_is_finite,
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
}

impl<O: Operations> Backend for CandleBackend<O> {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions> {
        let Self { operations, model, head, hidden: width, cache, .. } = self;
        refuse_missing(head.outputs(), batch)?;
        let rows = head.needed_rows(batch);
        let mut pass = Pass::new(batch, &rows, cache);
        let mut texts = vec![Output::default(); batch.leaves().len()];
        operations.enter(|operations| {
            let hidden = &model.forward(operations, &mut pass, &rows)?;
            let mut states = DeviceStates { operations, hidden, rows: &rows, width: *width };
            let all: Vec<usize> = (0..texts.len()).collect();
            head.read_outputs(&mut states, batch, &all, &mut texts)
        })?;
        let fresh = pass.finish();
        Ok(Predictions { texts, reused: cache.keep(batch, &fresh) })
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
        // Each layer copies at most as many of the tokens to keep as the cache has room for.
        let kept = self.cache.most_tokens().min(tokens) * self.cache.token_bytes();
        tokens * self.values_per_token * size_of::<f32>() + kept
    }
}

/// Loads a model and runs it once.
///
/// # Errors
///
/// [`BackendError::Load`] if a file, setting or weight is missing, broken or not supported, or if the model's
/// first answer is not a number.
pub fn load(options: &LoadOptions) -> Result<Loaded> {
    match device::choose()? {
        Chosen::Cpu => {
            let set =
                options.instruction_set.as_deref().map(str::parse).transpose().map_err(BackendError::Load)?;
            let set = set.unwrap_or_else(InstructionSet::best);
            let dtype = match options.dtype {
                Some(DType::Float16) => instead_of_float16(set),
                Some(dtype) => dtype,
                None => default_dtype(set, options)?,
            };
            let operations = if options.pin_threads {
                CpuOperations::on(Threads::start_pinned(options.threads)?, set, dtype)?
            } else {
                CpuOperations::start(options.threads, set, dtype)?
            };
            let backend = load_on(operations, options)?;
            // Without shared prefixes, nothing is kept.
            let keeps = backend.packing().shares_prefixes;
            Ok(Loaded {
                backend,
                kind: BackendKind::Candle,
                library: None,
                device: "cpu",
                dtype,
                instruction_set: Some(set.to_string()),
                prefix_cache_bytes: if keeps { options.prefix_cache_bytes } else { 0 },
            })
        }
        Chosen::Candle(device) => load_on_candle(device, options),
    }
}

/// Loads a model onto a device that candle drives.
fn load_on_candle(device: Device, options: &LoadOptions) -> Result<Loaded> {
    let name = DEVICE;
    let dtype = options.dtype.unwrap_or(DType::Float32);
    let (backend, prefix_cache_bytes) = match dtype {
        DType::Float32 => {
            // Keys and values would be copied to main memory and back.
            let options = LoadOptions { prefix_cache_bytes: 0, ..options.clone() };
            (load_on(TensorOperations::new(device, candle_core::DType::F32), &options)?, 0)
        }
        #[cfg(feature = "cuda")]
        DType::BFloat16 | DType::Float16 => {
            let operands =
                if dtype == DType::Float16 { candle_core::DType::F16 } else { candle_core::DType::BF16 };
            let gpu = cuda::device::Gpu::new(device, operands, options.flash_attention)?;
            let backend = load_on(CudaOperations::new(gpu, operands), options)?;
            let keeps = backend.packing().shares_prefixes;
            (backend, if keeps { options.prefix_cache_bytes } else { 0 })
        }
        _ => {
            return Err(BackendError::Load(format!(
                "`--dtype {dtype}` is not supported on {name}: leave it out"
            )));
        }
    };
    Ok(Loaded {
        backend,
        kind: BackendKind::Candle,
        library: None,
        device: name,
        dtype,
        instruction_set: None,
        prefix_cache_bytes,
    })
}

/// bfloat16 if all matrices are stored as bfloat16 or quantised, and the CPU multiplies bfloat16; else
/// float32.
fn default_dtype(set: InstructionSet, options: &LoadOptions) -> Result<DType> {
    // Quantisation has rounded the values by more than bfloat16 rounds the widened ones.
    let is_rounded = || Ok::<_, BackendError>(Checkpoint::open(&options.weights)?.is_stored_as(&BF16));
    let native = set.has_bf16() && (Scheme::of(&options.config)?.is_some() || is_rounded()?);
    Ok(if native { DType::BFloat16 } else { DType::Float32 })
}

/// The type that a CPU computes in if float16 is requested: bfloat16 if the CPU multiplies it, else float32.
/// The log says so.
fn instead_of_float16(set: InstructionSet) -> DType {
    let dtype = if set.has_bf16() { DType::BFloat16 } else { DType::Float32 };
    tracing::info!(
        "`--dtype float16`: the CPU ({set}) does not multiply float16, so it computes in {dtype} instead"
    );
    dtype
}

fn load_on<O: Operations + 'static>(mut operations: O, options: &LoadOptions) -> Result<Box<dyn Backend>> {
    let plan = models::plan(&options.config)?;
    let checkpoint = Checkpoint::open(&options.weights)?.without_prefixes(plan.prefixes)?;
    let scheme = Scheme::of(&options.config)?;
    if let Some(scheme) = scheme {
        let used = if options.dtype == Some(DType::Int8) && scheme.is_bytes() {
            "its bytes are used as they are"
        } else {
            "its matrices are widened, and products use the type of `--dtype`"
        };
        tracing::info!("The checkpoint is quantised ({scheme}): {used}");
    }
    let checkpoint = checkpoint.with_adapters(plan.adapters.clone()).quantised_as(scheme);
    let model = Transformer::load(&plan, &checkpoint, &mut operations)?;
    let head = load_head(&options.head, &plan, &checkpoint, &mut operations)?;
    checkpoint.finish(&plan.ignored)?;
    let packing = plan.packing();
    let shape = TokenShape {
        layers: plan.layers.len(),
        values: 2 * plan.heads.keys * plan.heads.size,
        value_bytes: operations.kept_bytes(),
    };
    let budget = if packing.shares_prefixes { options.prefix_cache_bytes } else { 0 };
    let cache = PrefixCache::new(budget, shape);
    let mut backend = CandleBackend {
        operations,
        model,
        head,
        hidden: plan.hidden,
        cache,
        packing,
        values_per_token: plan.values_per_token(),
    };
    refuse_nan(&mut backend, options)?;
    Ok(Box::new(backend))
}

/// Refuses a model whose first answer is not finite. Computing that answer also waits for the work that
/// loading has queued on a GPU; another thread's work would not wait for it (`cuda/device.rs`).
fn refuse_nan(backend: &mut impl Backend, options: &LoadOptions) -> Result<()> {
    if first_answer_is_finite(backend, &options.head)? {
        return Ok(());
    }
    let cause = find_broken(options)?.map_or_else(
        || "the weights are finite, so they are too large for this arithmetic".to_owned(),
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
