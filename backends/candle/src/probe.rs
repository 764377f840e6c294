//! How fast this machine computes: without a model, and a model's shape with made-up weights.
//!
//! Input: instructions and threads; a [`ModelShape`]. Output: operations per second, and the time of a text.
//! What must hold: products are the kernels of models, a pass is [`Transformer::forward`], and both take
//! about as long as the caller allows; the weights of a few layers are in memory at once, not a whole model.

use crate::{
    cpu::{Arithmetic, CpuOperations},
    kernels::{
        InstructionSet,
        compute::Compute,
        pack::{OperandFormat, Stored},
        peak::{self, SampleProduct},
        threads::Threads,
    },
    load::Checkpoint,
    operations::{Operations, Result},
    pass::Pass,
    plan::RowIndex,
    prefix_cache::PrefixCache,
    shape::{ModelShape, StoredValues},
    token_shape,
    transformer::Transformer,
};
use std::time::{Duration, Instant};
use text_embeddings_backend_core::{BackendError, BatchBuilder, DType, Text, Wanted};

/// The rows, the depth and the outputs of the product by which a machine is measured: a batch of short texts
/// in the MLP of Qwen3-Reranker-0.6B.
const SAMPLE: [usize; 3] = [256, 1024, 3072];
/// The fewest runs; the fastest counts.
const RUNS: usize = 3;
/// The most values of matrices of the layers that a pass is measured with.
const MAX_VALUES: f64 = 5e7;
/// The fewest layers that it is measured with. Most architectures change their layers in turns of up to four.
const MIN_LAYERS: usize = 6;
/// The layers of a large model that are measured on their own: the first one keeps its precision in int8, and
/// of the last one only the rows of answers are computed.
const FEW_LAYERS: usize = 2;
/// The tokens of a batch for each thread, as the server forms them.
const TOKENS_PER_THREAD: usize = 256;
/// The rows of tables that a pass is measured with. A lookup takes as long in a larger table.
const TABLE_ROWS: usize = 1024;

/// The speed of all threads together in one kind of arithmetic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArithmeticSpeed {
    /// The arithmetic.
    pub dtype: DType,
    /// Operations per second of instructions whose operands stay in registers: the CPU's peak. A
    /// multiplication and its addition are two. If the CPU has no such instructions, the speed of those that
    /// take their place.
    pub peak: f64,
    /// Operations per second of a large product.
    pub product: f64,
}

/// Measures float32, bfloat16 and int8, each for about `time`.
///
/// # Errors
///
/// [`BackendError::Load`] if the system refuses threads.
pub fn measure_machine(set: InstructionSet, threads: usize, time: Duration) -> Result<Vec<ArithmeticSpeed>> {
    let compute = Compute { set, threads: Threads::start(threads)? };
    let mut speeds = Vec::new();
    for dtype in [DType::Float32, DType::BFloat16, DType::Int8] {
        let of_rows = Arithmetic::of_dtype(set, dtype).low;
        // float32 with the weights of a bfloat16 checkpoint.
        let of_weights = if of_rows == OperandFormat::F32 { OperandFormat::Bf16 } else { of_rows };
        let peak = peak::of_all_threads(set, of_rows, &compute.threads);
        let mut product = SampleProduct::pack_values(&compute, SAMPLE, [of_rows, of_weights], made_up);
        let operations = product.operation_count() as f64;
        let seconds = fastest_run(time, || {
            product.run_once(&compute);
            Ok(())
        })?;
        let product = operations / seconds;
        speeds.push(ArithmeticSpeed { dtype, peak, product });
    }
    Ok(speeds)
}

/// Values that mean nothing.
fn made_up(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index * 37 % 101) as f32 * 0.01 - 0.5).collect()
}

/// The seconds of the fastest run of `body`, of at least [`RUNS`], and of as many as `time` has room for.
fn fastest_run(time: Duration, mut body: impl FnMut() -> Result<()>) -> Result<f64> {
    body()?;
    let (begin, mut fastest, mut runs) = (Instant::now(), f64::INFINITY, 0);
    while runs < RUNS || begin.elapsed() < time {
        let start = Instant::now();
        body()?;
        fastest = fastest.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    Ok(fastest)
}

/// How a shape is measured.
#[derive(Debug, Clone, Copy)]
pub struct PassSettings {
    /// The vector instructions.
    pub set: InstructionSet,
    /// Compute threads.
    pub threads: usize,
    /// The arithmetic.
    pub dtype: DType,
    /// How a checkpoint would store the weights.
    pub stored: StoredValues,
    /// Tokens of a text.
    pub tokens: usize,
    /// The number of them that an answer needs.
    pub answer_rows: usize,
    /// About how long passes are repeated.
    pub time: Duration,
}

impl ModelShape {
    /// The seconds that a text takes in a batch of equal ones, without the model's head: the fastest of
    /// passes with made-up weights. Of a large model only the first layers are computed: the time that more
    /// of them take than `FEW_LAYERS` counts for the others, by their work.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] for a model without layers, or if the system refuses threads.
    pub fn measure_text(&self, settings: &PassSettings) -> Result<f64> {
        let part = self.with_layers(self.count_measured());
        let seconds = part.time_pass(settings)?;
        if part.layer_count() == self.layer_count() {
            return Ok(seconds);
        }
        let few = self.with_layers(FEW_LAYERS);
        let difference =
            (seconds - few.time_pass(settings)?).max(0.0) / (part.work_of(settings) - few.work_of(settings));
        Ok(seconds + difference * (self.work_of(settings) - part.work_of(settings)))
    }

    /// The multiplications of a text.
    fn work_of(&self, settings: &PassSettings) -> f64 {
        self.text_work(settings.tokens, settings.answer_rows).all_multiplications()
    }

    /// The seconds that a text takes in a batch of equal ones.
    fn time_pass(&self, settings: &PassSettings) -> Result<f64> {
        let &PassSettings { set, threads, dtype, stored, tokens, answer_rows, time } = settings;
        let plan = &self.plan;
        if plan.layers.is_empty() {
            return Err(BackendError::Load("a model without layers has no pass to measure".to_owned()));
        }
        let mut operations = CpuOperations::on(Threads::share_threads(threads, None)?, set, dtype)?;
        let kind = if stored.are_bfloat16 { Stored::Bf16 } else { Stored::F32 };
        let mut model = Transformer::load(plan, &Checkpoint::made_up(kind), &mut operations)?;
        let texts = (TOKENS_PER_THREAD * threads / tokens).max(1);
        let mut builder = BatchBuilder::new(plan.packing());
        for text in 0..texts {
            // Texts differ in their first token, so that none shares the work of another.
            let ids = (0..tokens).map(|at| ((if at == 0 { text } else { at }) % plan.vocabulary) as u32);
            builder.push(&Text::new(ids.collect::<Vec<_>>(), Wanted::WHOLE));
        }
        let batch = builder.build();
        let mut rows = Vec::new();
        for text in 0..texts {
            rows.extend(batch.rows_of(text).skip(tokens - answer_rows.min(tokens)));
        }
        rows.sort_unstable();
        let cache = PrefixCache::new(0, token_shape(plan, &operations));
        model.extend_positions(&batch);
        let seconds = fastest_run(time, || {
            let mut pass = Pass::new(&batch, &rows, &cache);
            operations.enter(|operations| model.forward(operations, &mut pass, &rows).map(drop))
        })?;
        Ok(seconds / texts as f64)
    }

    /// The number of layers that are measured.
    fn count_measured(&self) -> usize {
        let count = self.plan.layers.len();
        if self.plan.repeated.is_some() {
            return count;
        }
        let mut values = 0.0;
        (0..count)
            .take_while(|&index| {
                values += self.layer_values(index);
                index < MIN_LAYERS || values <= MAX_VALUES
            })
            .count()
    }

    /// The same model with fewer layers and a smaller table of tokens.
    fn with_layers(&self, count: usize) -> Self {
        let mut plan = self.plan.clone();
        for table in plan.embeddings.tables.iter_mut().filter(|table| table.index == RowIndex::Token) {
            table.shape[0] = table.shape[0].min(TABLE_ROWS);
        }
        plan.vocabulary = plan.vocabulary.min(TABLE_ROWS);
        plan.layers.truncate(count);
        plan.input_gates.truncate(count);
        Self { plan }
    }
}
