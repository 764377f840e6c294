//! The most memory that the server takes, and the memory that it may use.
//!
//! Input: the loaded model and the limits on requests. Output: a [`MemoryPlan`], for the log, or an error.
//! What must hold: a model whose largest batch cannot fit is refused at the start instead of being killed
//! under load. The memory that requests can take is only a reason for a warning, because hardly any server
//! reaches all its limits at once.

use std::fmt;

use anyhow::{anyhow, ensure};
use text_embeddings_backend::Loaded;
use text_embeddings_backend_core::{BackendKind, DType};
use text_embeddings_core::files::ModelFolder;

use crate::{
    args::Args,
    available::{Available, megabytes},
    machine::Machine,
    memory,
};

/// The most memory that the server takes, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// The memory of the process once the model is loaded.
    pub(crate) loaded: u64,
    /// The batches and prefixes of the models that were loaded before it.
    pub(crate) others: u64,
    /// The activations of the largest batch.
    pub(crate) batch: u64,
    /// The prefix cache.
    pub(crate) prefixes: u64,
    /// Bodies, texts, tokens and answers of clients if every limit on them is reached.
    pub(crate) requests: u64,
    /// The largest body that fits while it is the only one; absent if none does.
    pub(crate) payload: Option<usize>,
}

impl Available {
    /// Refuses weights that cannot fit even alone, before they are read. `stored` is their size in bytes as
    /// they are read.
    pub(super) fn check_weights(
        self,
        stored: u64,
        dtype: Option<DType>,
        backend: BackendKind,
    ) -> anyhow::Result<()> {
        let least = least_weights(stored, dtype);
        ensure!(
            least <= self.bytes,
            "the model's weights take at least {} and {}: choose a smaller model{}",
            megabytes(least),
            self,
            match (backend, dtype) {
                (BackendKind::Ort, _) => ", or another file by `--onnx-file`",
                (BackendKind::Python, _) | (BackendKind::Candle, Some(DType::Int4)) => "",
                (BackendKind::Candle, Some(DType::Int8)) => ", or `--dtype int4`",
                (BackendKind::Candle, _) => ", or `--dtype int8` or `int4`",
            }
        );
        Ok(())
    }
}

/// The fewest bytes of weights that are `stored` bytes as they are read: 32 or 16 bits for each, or less.
fn least_weights(stored: u64, dtype: Option<DType>) -> u64 {
    match dtype {
        Some(DType::Int8) => stored / 4,
        Some(DType::Int4) => stored / 8,
        Some(DType::Float32) => stored,
        _ => stored / 2,
    }
}

/// Makes room for the weights of a model. Fails if it cannot fit next to the other models. A model alone is
/// loaded, and its plan is checked.
pub(super) fn make_room(machine: &Machine, args: &Args, folder: &ModelFolder) -> anyhow::Result<()> {
    let stored = weight_bytes(folder);
    let room = machine.residency.make_room(stored);
    if machine.turns.is_none() || room.is_ok() {
        return Ok(());
    }
    let least = machine.residency.make_room(least_weights(stored, args.model.dtype));
    least.map_err(|problem| anyhow!("there is too little memory: {problem}"))
}

impl MemoryPlan {
    /// The plan with the requests that the limits in `args` allow, for inputs of up to `max_length` tokens.
    pub(crate) fn with_requests(
        self,
        available: Available,
        args: &Args,
        workers: usize,
        max_length: usize,
    ) -> Self {
        // The last free tokenizer thread takes no long text.
        let requests = args.max_request_bytes(workers.saturating_sub(1).max(1), max_length);
        let room = available.bytes.saturating_sub(self.certain_bytes());
        Self { requests, payload: args.fitting_payload(room, max_length), ..self }
    }

    /// The memory that it takes without requests.
    pub(crate) fn certain_bytes(&self) -> u64 {
        [self.others, self.batch, self.prefixes].into_iter().fold(self.loaded, u64::saturating_add)
    }

    /// Whether it fits, with one request.
    pub(crate) fn fits_into(&self, available: Available) -> bool {
        self.certain_bytes() <= available.bytes && self.payload.is_some()
    }

    /// Refuses a plan that cannot fit. The error is a sentence with the sizes and the flags that make them
    /// smaller.
    pub(super) fn check_fit(&self, available: Available, backend: BackendKind) -> anyhow::Result<()> {
        let advice = match backend {
            BackendKind::Candle => {
                "`--max-batch-tokens`, `--max-input-length` or `--prefix-cache-bytes`, choose `--dtype int8` \
                 or `int4`"
            }
            BackendKind::Ort => {
                "`--max-batch-tokens` or `--max-input-length`, name a smaller file by `--onnx-file`"
            }
            BackendKind::Python => "`--max-batch-tokens` or `--max-input-length`",
        };
        let certain = self.certain_bytes();
        ensure!(
            certain <= available.bytes,
            "there is too little memory ({self}; {available}): lower {advice}, or give it more memory"
        );
        ensure!(
            self.payload.is_some(),
            "there is too little memory for a single request ({self}; {available}): lower {advice}, or give it \
             more memory"
        );
        if certain + self.requests > available.bytes {
            tracing::warn!(
                "Clients can send enough at once to use up the memory: with {} for their requests the server \
                 takes {}, but {available}; lower `--max-concurrent-requests`, `--payload-limit`, \
                 `--max-queue-tokens`, `--score-cache-bytes` or `--tokenization-workers`",
                megabytes(self.requests),
                megabytes(certain + self.requests)
            );
        }
        Ok(())
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loaded, batch, prefixes, .. } = self;
        let [loaded, batch, prefixes] = [*loaded, *batch, *prefixes].map(megabytes);
        write!(f, "{loaded} loaded, at most {batch} for a batch and {prefixes} of prefixes")?;
        match self.others {
            0 => Ok(()),
            others => write!(f, ", {} for other models", megabytes(others)),
        }
    }
}

/// Plans the memory of a loaded model on the CPU, whose largest batch has `max_batch` tokens and whose
/// longest input `max_length`, and logs the plan; absent on other devices, and if the memory in use cannot be
/// read.
pub(super) fn plan_memory(
    machine: &Machine,
    args: &Args,
    max_batch: usize,
    max_length: usize,
    loaded: &Loaded,
) -> anyhow::Result<Option<MemoryPlan>> {
    let batch = loaded.backend.batch_bytes(max_batch) as u64;
    let prefixes = loaded.prefix_cache_bytes as u64;
    // The plan's check has the sentence for a user.
    let _ = machine.residency.make_room(batch + prefixes);
    let (Some(available), Some(held), "cpu") = (machine.memory, memory::held_bytes(), loaded.device) else {
        return Ok(None);
    };
    let others = machine.residency.promised_bytes();
    let plan = MemoryPlan { loaded: held, others, batch, prefixes, ..MemoryPlan::default() };
    let plan = plan.with_requests(available, args, machine.tokenization_workers, max_length);
    plan.check_fit(available, args.model.hub.backend)?;
    tracing::info!("Memory: {plan}; {available}");
    Ok(Some(plan))
}

/// The bytes of a model's weights as they are read; if only another library reads them, the bytes of their
/// files.
pub(super) fn weight_bytes(folder: &ModelFolder) -> u64 {
    folder.stored.as_ref().map_or_else(
        || folder.weights.iter().filter_map(|file| file.length().ok()).sum(),
        |stored| stored.bytes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_cannot_fit_is_refused_with_its_sizes() {
        let available = |bytes| Available { bytes, source: "this container may use" };
        let plan = MemoryPlan {
            loaded: 400_000_000,
            others: 300_000_000,
            batch: 100_000_000,
            prefixes: 200_000_000,
            requests: 1,
            payload: Some(1),
        };
        assert!(plan.check_fit(available(1_000_000_000), BackendKind::Candle).is_ok(), "and a warning");
        let no_request =
            MemoryPlan { payload: None, ..plan }.check_fit(available(1_000_000_000), BackendKind::Python);
        let message = no_request.map_err(|error| error.to_string());
        assert!(
            message.is_err_and(|message| message.contains("too little memory for a single request (400 MB"))
        );
        for (backend, advice) in [
            (
                BackendKind::Candle,
                "lower `--max-batch-tokens`, `--max-input-length` or `--prefix-cache-bytes`, choose `--dtype int8` or \
                 `int4`, or give it more memory",
            ),
            (
                BackendKind::Ort,
                "lower `--max-batch-tokens` or `--max-input-length`, name a smaller file by `--onnx-file`, or give it \
                 more memory",
            ),
            (
                BackendKind::Python,
                "lower `--max-batch-tokens` or `--max-input-length`, or give it more memory",
            ),
        ] {
            let message = plan.check_fit(available(999_999_999), backend).map_err(|error| error.to_string());
            let sizes = "there is too little memory (400 MB loaded, at most 100 MB for a batch and 200 MB of \
                prefixes, 300 MB for other models; this container may use 1000 MB)";
            assert_eq!(message, Err(format!("{sizes}: {advice}")));
        }
        for (backend, dtype, advice) in [
            (BackendKind::Candle, None, "choose a smaller model, or `--dtype int8` or `int4`"),
            (BackendKind::Candle, Some(DType::Int8), "choose a smaller model, or `--dtype int4`"),
            (BackendKind::Ort, None, "choose a smaller model, or another file by `--onnx-file`"),
            (BackendKind::Python, None, "choose a smaller model"),
        ] {
            let message =
                available(1).check_weights(1 << 30, dtype, backend).map_err(|error| error.to_string());
            assert!(
                message.is_err_and(|message| message.ends_with(&format!(": {advice}"))),
                "{backend} {dtype:?}"
            );
        }
        for (stored, dtype, fits) in [
            (1000, Some(DType::Float32), true),
            (1001, Some(DType::Float32), false),
            (2000, None, true),
            (2002, Some(DType::BFloat16), false),
            (4000, Some(DType::Int8), true),
            (4004, Some(DType::Int8), false),
            (8000, Some(DType::Int4), true),
            (8008, Some(DType::Int4), false),
        ] {
            assert_eq!(
                available(1000).check_weights(stored, dtype, BackendKind::Candle).is_ok(),
                fits,
                "{stored} {dtype:?}"
            );
        }
    }
}
