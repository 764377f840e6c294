//! The Python backend: a worker process computes with the user's PyTorch and sentence-transformers.
//!
//! Input: a model's folder and an interpreter. Output: a [`Backend`]. What must hold: a worker that dies,
//! hangs or answers nonsense only fails the current batch; it is started again, with growing pauses while no
//! batch succeeds; the worker ends with this process.

#[cfg(not(unix))]
compile_error!("the feature `python` needs Unix sockets");

mod frame;
pub mod fuzzing;
mod log;
mod process;
mod restart;
mod worker;

use restart::Supervisor;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{
    Backend, BackendError, BackendKind, Batch, DType, Head, LoadOptions, Loaded, NumberSupport, Numbers,
    Output, Packing, PlainSimilarity, Pool, Predictions, Probe, PythonOptions, TokenVectors, Wanted,
    WholeHead,
};
use text_embeddings_backend_host::{Padded, max_cells};
use worker::{BatchError, GroupValues, Worker};

/// The most values of a text or a token: far more than any model has.
const MAX_VALUES: usize = 1 << 20;

/// The worker's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerTask {
    /// Vectors of texts and tokens, by `SentenceTransformer`.
    Embedding,
    /// Raw scores, by `CrossEncoder`. The value is their number.
    Scores(usize),
}

impl WorkerTask {
    fn from_head(head: &Head) -> Result<Self, BackendError> {
        let refused = |what: &str| {
            let reason = format!("{what} are not served by `--backend python`: choose `--backend candle`");
            Err(BackendError::Load(reason))
        };
        match (&head.whole, &head.sparse) {
            (Some(WholeHead::Vector { .. }), _) => Ok(Self::Embedding),
            (Some(WholeHead::Classification { labels }), _) => Ok(Self::Scores(*labels)),
            (Some(WholeHead::Scores { .. }), _) => Ok(Self::Scores(1)),
            (Some(WholeHead::Answers(_)), _) | (None, None) => refused("generative re-rankers"),
            (Some(WholeHead::Labels(_)), _) => refused("deciders"),
            (None, Some(_)) => refused("SPLADE models"),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Scores(_) => "scores",
        }
    }
}

/// The model, and the settings for computing it.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// The interpreter.
    pub python: PathBuf,
    /// The model's folder, complete for sentence-transformers.
    pub folder: PathBuf,
    /// The worker's task.
    pub task: WorkerTask,
    /// The pooling of an embedding model whose files do not name one, in the words of sentence-transformers.
    pub pooling: Option<&'static str>,
    /// The arithmetic: float32, bfloat16 or float16.
    pub numbers: Numbers,
    /// The number of compute threads on the CPU.
    pub threads: usize,
    /// Whether Python files of the model may run.
    pub trust_remote_code: bool,
    /// Texts with their ids. The worker compares its tokenizer with them.
    pub probes: Vec<Probe>,
}

impl WorkerSettings {
    fn new(options: &LoadOptions, python: &PythonOptions) -> Result<Self, BackendError> {
        Ok(Self {
            python: python.interpreter.clone(),
            folder: options.folder.clone(),
            task: WorkerTask::from_head(&options.head)?,
            pooling: python.pooling.map(|pool| match pool {
                Pool::Cls | Pool::Splade => "cls",
                Pool::Mean => "mean",
                Pool::LastToken => "lasttoken",
            }),
            numbers: choose_numbers(options.dtype)?,
            threads: options.threads,
            trust_remote_code: python.trust_remote_code,
            probes: python.probes.clone(),
        })
    }
}

/// The arithmetic for the value of `--dtype`.
///
/// # Errors
///
/// [`BackendError::Load`] if PyTorch does not support it.
pub fn choose_numbers(requested: Option<DType>) -> Result<Numbers, BackendError> {
    Numbers::choose(requested, NumberSupport::Floats).map_err(|dtype| {
        BackendError::Load(format!(
            "`--dtype {dtype}` is not supported by `--backend python`: choose float32, bfloat16 or float16"
        ))
    })
}

/// The worker's time limits.
#[derive(Debug, Clone, Copy)]
pub struct WorkerLimits {
    /// From its start to its first message.
    pub hello: Duration,
    /// From the request to load the model to the answer.
    pub load: Duration,
    /// For each batch; no limit if absent.
    pub batch: Option<Duration>,
    /// The pause before the second start in a row without a successful batch. It doubles with each further
    /// start.
    pub pause: Duration,
}

impl WorkerLimits {
    /// Generous limits: for Python packages read for the first time from a network drive, and gigabytes of
    /// weights.
    ///
    /// `batch` is the time for a batch ([`LoadOptions::batch_limit`]).
    pub fn of_batch(batch: Option<Duration>) -> Self {
        Self {
            hello: Duration::from_mins(2),
            load: Duration::from_mins(20),
            batch,
            pause: Duration::from_secs(1),
        }
    }
}

/// Starts a worker that loads the model.
///
/// # Errors
///
/// [`BackendError::Load`] if PyTorch does not support the dtype, if the kind of model is not supported, or if
/// the worker does not start or refuses the model.
pub fn load(options: &LoadOptions, python: &PythonOptions) -> Result<Loaded, BackendError> {
    start(WorkerSettings::new(options, python)?, WorkerLimits::of_batch(options.batch_limit()))
}

/// Like [`load`], with settings and time limits of the caller.
///
/// # Errors
///
/// Like [`load`].
pub fn start(settings: WorkerSettings, limits: WorkerLimits) -> Result<Loaded, BackendError> {
    let numbers = settings.numbers;
    let worker = Worker::start(&settings, limits)
        .map_err(|reason| BackendError::Load(format!("the Python backend: {reason}")))?;
    let facts = worker.facts().clone();
    let supervisor = Supervisor::new(worker, settings, limits);
    let backend =
        PythonBackend { supervisor, limit: limits.batch, padding: facts.padding, width: facts.token_width };
    Ok(Loaded {
        backend: Box::new(backend),
        kind: BackendKind::Python,
        library: Some(frame::told(&facts.versions)),
        device: if facts.device == "cuda" { "cuda" } else { "cpu" },
        numbers,
        instruction_set: None,
        pinned_threads: false,
        prefix_cache_bytes: 0,
        similarity: Arc::new(PlainSimilarity),
    })
}

struct PythonBackend {
    supervisor: Supervisor,
    limit: Option<Duration>,
    padding: u32,
    /// The length of a token's vector.
    width: usize,
}

impl Backend for PythonBackend {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        if batch.wanted().iter().any(|wanted| wanted.sparse) {
            return Err(BackendError::Inference(
                "the Python backend does not compute sparse vectors".to_owned(),
            ));
        }
        let failed = BackendError::Inference;
        // The time limit of a batch does not include a restart.
        let worker = self.supervisor.worker().map_err(failed)?;
        let facts = worker.facts().clone();
        if facts.token_width == 0 && batch.wanted().iter().any(|wanted| wanted.tokens) {
            return Err(failed("the model gives no vectors of tokens".to_owned()));
        }
        let until = self.limit.map(|limit| Instant::now() + limit);
        let mut texts = vec![Output::default(); batch.leaves().len()];
        for group in Padded::groups(batch, self.padding, false) {
            let tokens = group.texts.iter().any(|&text| batch.wanted()[text].tokens);
            match worker.compute(&group, tokens, until) {
                Ok(values) => deal(batch, &group, &values, facts.token_width, &mut texts),
                Err(BatchError::OutOfMemory(reason)) => return Err(BackendError::OutOfMemory(reason)),
                Err(BatchError::Failed(reason)) => return Err(failed(reason)),
                Err(BatchError::Broken(reason)) => {
                    self.supervisor.start_again();
                    return Err(failed(reason));
                }
            }
        }
        self.supervisor.succeeded();
        Ok(Predictions { texts, ..Predictions::default() })
    }

    fn packing(&self) -> Packing {
        Packing::SEPARATE
    }

    /// The memory in this process: the matrices for the worker, and the vectors of all tokens in its answer.
    /// The worker's own memory is unknown.
    fn batch_bytes(&self, tokens: usize) -> usize {
        let matrices = 3 * max_cells(tokens) * (size_of::<i64>() + 2 * size_of::<u32>());
        matrices.saturating_add(tokens.saturating_mul(2 * size_of::<f32>() * self.width))
    }
}

/// Writes the values of a group to the outputs of its texts.
fn deal(batch: &Batch, group: &Padded, values: &GroupValues, token_width: usize, texts: &mut [Output]) {
    let width = values.whole.len() / group.texts.len();
    let mut tokens = values.tokens.as_slice();
    for (row, (&text, &length)) in group.texts.iter().zip(&group.lengths).enumerate() {
        let Wanted { whole, tokens: wants_tokens, .. } = batch.wanted()[text];
        if whole {
            texts[text].whole = values.whole[row * width..(row + 1) * width].to_vec();
        }
        let (own, rest) = tokens.split_at((length * token_width).min(tokens.len()));
        tokens = rest;
        if wants_tokens {
            texts[text].tokens = TokenVectors { values: own.to_vec(), width: token_width };
        }
    }
}
