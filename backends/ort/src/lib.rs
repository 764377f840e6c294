//! The ONNX Runtime backend: makes a [`Backend`] of an ONNX file.
//!
//! `library` finds ONNX Runtime's shared library. `signature` decides what the graph's inputs get and which
//! output is read. `head` makes scores and vectors of that output. `text_embeddings_backend_host::Padded`
//! pads the batches.

mod deadline;
mod head;
mod library;
mod signature;

use std::{borrow::Cow, fs::File, path::Path, sync::Arc, time::Instant};

use ort::{
    ep::CPU,
    memory::MemoryInfo,
    session::{RunOptions, Session, builder::SessionBuilder},
    value::{DynTensor, DynValue, Outlet, Tensor, TensorElementType},
};
use serde_json::Value;
use text_embeddings_backend_core::{
    Backend, BackendError, BackendKind, Batch, Graph, Head, LoadOptions, Loaded, ModelFile, NumberSupport,
    Numbers, Output, Packing, PlainSimilarity, Predictions, first_answer_is_finite, read_graph,
};
use text_embeddings_backend_host::{Padded, describe_any, first_number, max_cells};

use crate::{
    deadline::Deadline,
    head::{GraphHead, OutputValues, failed},
    library::{line, runtime},
    signature::{Element, Feed, Meaning, Port, Signature},
};

/// A graph, and the head that reads its output.
struct OrtBackend {
    session: Session,
    signature: Signature,
    head: GraphHead,
    /// The token that fills padding cells.
    padding: u32,
    memory: Memory,
    /// The limit of a batch; `None` without one.
    deadline: Option<Deadline>,
}

/// Estimates the memory that a batch takes while it is computed, from the sizes in `config.json`.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// The longest input in tokens.
    max_length: usize,
    /// Whether texts are computed one at a time.
    alone: bool,
    /// The number of values that each token holds at the same time, apart from attention.
    per_token: usize,
    heads: usize,
}

impl Memory {
    fn new(config: &Value, signature: &Signature, max_length: usize, hidden: usize) -> Self {
        let inner = first_number(config, &["intermediate_size", "hidden_dim", "d_ff", "n_inner"]);
        let inner = inner.unwrap_or(4 * hidden);
        let heads = first_number(config, &["num_attention_heads", "n_heads", "n_head", "num_heads"]);
        let heads = heads.unwrap_or(hidden.div_ceil(64));
        // An output in float16 is copied to float32.
        let output =
            if signature.meaning == Meaning::Logits { 2 * signature.width.unwrap_or_default() } else { 0 };
        // An unfused GELU holds its input, two intermediate results and its result. The rest of a layer holds
        // queries, keys, values, their rearrangements, the residual and a norm.
        Self { max_length, alone: signature.alone, per_token: 4 * inner + 12 * hidden + output, heads }
    }

    /// The most memory of a batch of `tokens` tokens, in bytes.
    fn bytes(&self, tokens: usize) -> usize {
        let width = tokens.min(self.max_length);
        let cells = if self.alone { width } else { max_cells(tokens) };
        // Attention holds the products of queries and keys, the products with the mask, and their softmax.
        let attention = self.heads.saturating_mul(3).saturating_mul(width);
        cells.saturating_mul(self.per_token.saturating_add(attention)).saturating_mul(size_of::<f32>())
    }
}

impl Backend for OrtBackend {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        self.head.refuse_missing(batch)?;
        let mut texts = vec![Output::default(); batch.leaves().len()];
        let Self { session, signature, head, deadline, .. } = self;
        let deadline = deadline.as_ref().map(|deadline| (deadline, deadline.of_batch()));
        for group in Padded::groups(batch, self.padding, signature.alone) {
            run(session, signature, &group, deadline, |values| head.read(batch, &group, values, &mut texts))?;
        }
        Ok(Predictions { texts, ..Predictions::default() })
    }

    fn packing(&self) -> Packing {
        Packing::SEPARATE
    }

    fn batch_bytes(&self, tokens: usize) -> usize {
        self.memory.bytes(tokens)
    }
}

/// Runs the graph on one group and passes its output to `read`. A run that has not ended at the deadline is
/// stopped.
fn run(
    session: &mut Session,
    signature: &Signature,
    group: &Padded,
    deadline: Option<(&Deadline, Instant)>,
    read: impl FnOnce(&OutputValues<'_>) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    let stopped = |error: ort::Error| failed(&format!("ONNX Runtime: {}", line(&error.to_string())));
    let (texts, tokens) = (group.texts.len(), group.width);
    let options = Arc::new(RunOptions::new().map_err(stopped)?);
    // Only the needed output is bound, and so computed.
    let mut binding = session.create_binding().map_err(stopped)?;
    for filled in &signature.inputs {
        let values = input(filled.feed, filled.is_narrow, group).map_err(stopped)?;
        binding.bind_input(filled.name.as_str(), &values).map_err(stopped)?;
    }
    binding.bind_output_to_device(signature.output.as_str(), &MemoryInfo::default()).map_err(stopped)?;
    let watch = deadline.map(|(deadline, until)| deadline.watch(&options, until));
    let result = session.run_binding_with_options(&binding, &options);
    drop(watch);
    let outputs = result.map_err(|error| match deadline {
        Some((deadline, until)) if Instant::now() >= until => failed(&deadline.passed()),
        _ => stopped(error),
    })?;
    let value = outputs.get(&signature.output).ok_or_else(|| failed("the ONNX file gave no output"))?;
    let (shape, values) = floats(value).map_err(stopped)?;
    let expected = signature.dimensions(texts, tokens);
    let width = match shape.split_last() {
        Some((width, before)) if before == expected => *width,
        _ => {
            return Err(failed(&format!(
                "the ONNX file's output `{}` has the shape {shape:?} for {texts} texts of {tokens} tokens",
                signature.output
            )));
        }
    };
    read(&OutputValues { values: &values, width })
}

fn input(feed: Feed, is_narrow: bool, group: &Padded) -> ort::Result<DynTensor> {
    let shape = [group.texts.len(), group.width];
    let values = match feed {
        Feed::Ids => group.ids.clone(),
        Feed::Mask => group.mask.clone(),
        Feed::Types => group.types.clone(),
        Feed::Positions => group.positions(),
    };
    Ok(if is_narrow {
        // Ids, types and positions are below 2³¹ in every model.
        let narrow: Vec<i32> = values.into_iter().map(|value| value as i32).collect();
        Tensor::from_array((shape, narrow))?.upcast()
    } else {
        Tensor::from_array((shape, values))?.upcast()
    })
}

/// The shape and the values of an output, as float32.
fn floats(value: &DynValue) -> ort::Result<(Vec<usize>, Cow<'_, [f32]>)> {
    let sizes = |shape: &[i64]| shape.iter().map(|&size| size.max(0) as usize).collect();
    if value.dtype().tensor_type() == Some(TensorElementType::Float16) {
        let (shape, values) = value.try_extract_tensor::<half::f16>()?;
        return Ok((sizes(shape), values.iter().map(|value| value.to_f32()).collect()));
    }
    let (shape, values) = value.try_extract_tensor::<f32>()?;
    Ok((sizes(shape), Cow::Borrowed(values)))
}

/// Loads a graph and runs it once.
///
/// # Errors
///
/// [`BackendError::Load`] if ONNX Runtime's library or the file is missing, broken or too old, if an input,
/// an output or the head is not supported, or if an answer is not finite.
pub fn load(options: &LoadOptions) -> Result<Loaded, BackendError> {
    let Some(path) = options.weights.first().map(ModelFile::path) else {
        return Err(BackendError::Load("there is no ONNX file".to_owned()));
    };
    let graph = facts(path)?;
    let numbers = Numbers::choose(options.dtype, NumberSupport::Fixed(graph.dtype)).map_err(|dtype| {
        BackendError::Load(format!(
            "`--dtype {dtype}` was requested, but {} computes in {}: leave it out, or name another file with `--onnx-file`",
            path.display(),
            graph.dtype
        ))
    })?;
    let runtime = runtime()?;
    let session = session(&runtime.environment, path, options.threads).map_err(|error| {
        BackendError::Load(format!(
            "ONNX Runtime cannot load {}: {}; download it again, or install a newer ONNX Runtime",
            path.display(),
            line(&error)
        ))
    })?;
    let mut signature = Signature::new(&ports(session.inputs()), &ports(session.outputs()), &options.head)
        .map_err(|reason| BackendError::Load(format!("{} is not served: {reason}", path.display())))?;
    // If the rounding of a text depends on other texts, each text is run alone. The same goes for logits over
    // the whole vocabulary, because of their size.
    signature.alone |= graph.is_shared || signature.meaning == Meaning::Logits;
    let description = describe_any(&options.config)?;
    let width = signature.width.or((signature.meaning == Meaning::States).then_some(description.hidden));
    if signature.meaning == Meaning::Vector {
        tracing::warn!(
            "The ONNX file only has the output `{}`: the file itself pools vectors, and `--pooling` and 1_Pooling have no effect",
            signature.output
        );
    }
    let memory = Memory::new(&options.config, &signature, options.max_input_length, description.hidden);
    let padding = options.config["pad_token_id"].as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or(0);
    let head = GraphHead::load(&options.head, signature.meaning, width)?;
    let deadline = options.batch_limit().map(Deadline::start).transpose()?;
    let mut backend = OrtBackend { session, signature, head, padding, memory, deadline };
    refuse_nan(&mut backend, &options.head)?;
    Ok(Loaded {
        backend: Box::new(backend),
        kind: BackendKind::Ort,
        library: Some(runtime.library.clone()),
        device: "cpu",
        numbers,
        instruction_set: None,
        pinned_threads: false,
        prefix_cache_bytes: 0,
        similarity: Arc::new(PlainSimilarity),
    })
}

fn facts(path: &Path) -> Result<Graph, BackendError> {
    let unreadable = |reason: String| BackendError::Load(format!("cannot read {}: {reason}", path.display()));
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    read_graph(file).map_err(unreadable)
}

fn session(
    environment: &ort::environment::Environment,
    path: &Path,
    threads: usize,
) -> Result<Session, String> {
    let words = |error: ort::Error<SessionBuilder>| error.to_string();
    Session::builder(environment)
        .map_err(|error| error.to_string())?
        .with_intra_threads(threads)
        .map_err(words)?
        .with_inter_threads(1)
        .map_err(words)?
        // An arena would keep the memory of one long batch for ever.
        .with_execution_providers([CPU::default().with_arena_allocator(false).build()])
        .map_err(words)?
        .with_memory_pattern(false)
        .map_err(words)?
        .commit_from_file(path)
        .map_err(|error| error.to_string())
}

fn ports(outlets: &[Outlet]) -> Vec<Port> {
    outlets
        .iter()
        .map(|outlet| {
            let element = match outlet.dtype().tensor_type() {
                Some(TensorElementType::Int64) => Element::Int64,
                Some(TensorElementType::Int32) => Element::Int32,
                Some(TensorElementType::Float32) => Element::Float32,
                Some(TensorElementType::Float16) => Element::Float16,
                _ => Element::Other,
            };
            let shape = outlet.dtype().tensor_shape().map(|shape| shape.to_vec()).unwrap_or_default();
            Port { name: outlet.name().to_owned(), element, shape }
        })
        .collect()
}

/// Refuses a graph that fails on a first text, or whose first answer is not finite.
fn refuse_nan(backend: &mut OrtBackend, head: &Head) -> Result<(), BackendError> {
    let is_finite = first_answer_is_finite(backend, head).map_err(|error| match error {
        BackendError::Inference(reason) => {
            BackendError::Load(format!("the ONNX file fails on a first text: {reason}"))
        }
        error => error,
    })?;
    if is_finite {
        return Ok(());
    }
    Err(BackendError::Load(
        "the ONNX file's first answer is not a number: its weights are broken, or too large for its arithmetic".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_cells_and_with_the_square_of_the_longest_text() {
        let memory = Memory { max_length: 512, alone: false, per_token: 100, heads: 2 };
        assert_eq!(memory.bytes(8), 10 * (100 + 2 * 3 * 8) * 4);
        assert_eq!(memory.bytes(1000), 1250 * (100 + 2 * 3 * 512) * 4);
        assert_eq!(Memory { alone: true, ..memory }.bytes(1000), 512 * (100 + 2 * 3 * 512) * 4);
        assert_eq!(Memory { heads: usize::MAX, ..memory }.bytes(9), usize::MAX);
    }
}
