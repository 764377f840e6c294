//! The speed of each kernel: GFLOP/s (GOP/s for bytes), and the share of the CPU's peak, which the same
//! process measures.
//!
//! Input: `cargo bench` with criterion's flags, and the variables `INSTRUCTION_SET` (default: the best) and
//! `THREADS` (default: 1). Output: criterion's times, and a line of our own for each kernel.
//! `docs/performance-details.md` says how to read it.

pub mod machine;
pub mod roofline;
mod table;

use crate::{
    attention::{Heads, Mask, Scoring, queries_at},
    cpu::{
        attention::{self, Keys, Queries},
        packed_keys::PackedKeys,
    },
    kernels::{
        InstructionSet, activation,
        compute::Compute,
        elementwise,
        pack::{OperandFormat, Words},
        peak::{self, SampleProduct},
        softmax::{self, RunningSoftmax, StepFactors},
        threads::Threads,
    },
    similarity::CpuSimilarity,
};
use criterion::{Criterion, Throughput, measurement::WallTime};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    env,
    error::Error,
    io::{self, Write},
    time::{Duration, Instant},
};
use text_embeddings_backend_core::{
    Activation, BatchBuilder, Packing, Text, TokenSimilarity, TokenVectors, Wanted,
};

/// Sizes of the 0.6B model.
const HIDDEN: usize = 1024;
const INNER: usize = 3072;
const HEADS: Heads = Heads { queries: 16, keys: 8, size: 128 };
/// The operations that an exponential counts as: its polynomial, and the steps before and after it.
const EXPONENTIAL: usize = 18;

type BenchmarkResult = Result<(), Box<dyn Error>>;

/// The instruction set that `INSTRUCTION_SET` names, else the best.
fn instruction_set() -> Result<InstructionSet, Box<dyn Error>> {
    Ok(env::var("INSTRUCTION_SET").map_or(Ok(InstructionSet::best()), |name| name.parse())?)
}

/// The state that all measurements share.
struct Bench {
    criterion: Criterion<WallTime>,
    compute: Compute,
    rng: StdRng,
    /// Operations per second of all threads, for each format that was measured.
    peaks: Vec<(OperandFormat, f64)>,
}

impl Bench {
    fn new() -> Result<Self, Box<dyn Error>> {
        let set = instruction_set()?;
        let threads = env::var("THREADS").map_or(Ok(1), |count| count.parse())?;
        let criterion = Criterion::default()
            .sample_size(10)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1))
            .configure_from_args();
        let compute = Compute { set, threads: Threads::start(threads)? };
        Ok(Self { criterion, compute, rng: StdRng::seed_from_u64(1), peaks: Vec::new() })
    }

    fn random(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.rng.random_range(-1.0..1.0)).collect()
    }

    fn peak(&mut self, format: OperandFormat) -> f64 {
        if let Some((_, peak)) = self.peaks.iter().find(|(known, _)| *known == format) {
            return *peak;
        }
        let one = peak::operations_per_second(self.compute.set, format);
        let peak = one * self.compute.threads.count() as f64;
        self.peaks.push((format, peak));
        peak
    }

    /// Measures `body`, which takes `operations` operations of a format.
    fn run(
        &mut self,
        name: &str,
        format: OperandFormat,
        operations: usize,
        mut body: impl FnMut(&Compute),
    ) -> BenchmarkResult {
        let peak = self.peak(format);
        let mut group = self.criterion.benchmark_group("kernels");
        group.throughput(Throughput::Elements(operations as u64));
        let mut times = Vec::new();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                let start = Instant::now();
                (0..iterations).for_each(|_| body(&self.compute));
                let elapsed = start.elapsed();
                times.push(elapsed.as_secs_f64() / iterations as f64);
                elapsed
            });
        });
        group.finish();
        times.sort_by(f64::total_cmp);
        // There is no time if a filter leaves this measurement out.
        if let Some(median) = times.get(times.len() / 2) {
            let rate = operations as f64 / median;
            writeln!(
                io::stdout(),
                "{name}: {:.1} G/s, {:.0} % of the peak {:.0}\n",
                rate / 1e9,
                100.0 * rate / peak,
                peak / 1e9
            )?;
        }
        Ok(())
    }
}

/// The scores of a block of rows, which a softmax takes in again and again.
struct Softmax {
    scores: Vec<[f32; 32]>,
    weights: Vec<[u32; 16]>,
}

impl Softmax {
    const ROWS: usize = 14;
    const PANELS: usize = 8;
    const SCORES: usize = 32 * Self::ROWS * Self::PANELS;

    fn new() -> Self {
        let scores: Vec<_> = (0..Self::ROWS * Self::PANELS)
            .map(|panel| std::array::from_fn(|column| ((7 * panel + column) % 97) as f32 * 0.1))
            .collect();
        Self { weights: vec![[0; 16]; 2 * scores.len()], scores }
    }

    fn step(&mut self, set: InstructionSet) {
        let (mut max, mut sum) = ([f32::NEG_INFINITY; Self::ROWS], [0.0; Self::ROWS]);
        let (mut correction, mut step_sum) = (sum, sum);
        let mut state = RunningSoftmax {
            max: &mut max,
            sum: &mut sum,
            correction: &mut correction,
            step_sum: &mut step_sum,
        };
        let visible: [_; Self::ROWS] = std::array::from_fn(|_| 0..32 * Self::PANELS);
        let factors = StepFactors { of_scores: 1.0, sum_scales: None, of_weights: &[] };
        softmax::step(set, &mut self.scores, &visible, factors, &mut state, &mut self.weights);
    }
}

/// Measures every kernel, or only the kernels that criterion's flags name.
///
/// # Errors
///
/// If a variable is malformed, or the system refuses threads, files or output.
pub fn run() -> BenchmarkResult {
    let mut bench = Bench::new()?;
    let (set, threads) = (bench.compute.set, bench.compute.threads.count());
    writeln!(io::stdout(), "{set}, threads: {threads}")?;
    products(&mut bench)?;
    similarities(&mut bench)?;
    attentions(&mut bench)?;
    norms(&mut bench)?;
    steps(&mut bench)?;
    bench.criterion.final_summary();
    Ok(())
}

/// The format of rows, then of weights, for each kind of arithmetic; float32 with the weights of a bfloat16
/// checkpoint.
const FORMATS: [(&str, OperandFormat, OperandFormat); 4] = [
    ("float32", OperandFormat::F32, OperandFormat::Bf16),
    ("bfloat16", OperandFormat::Bf16, OperandFormat::Bf16),
    ("int16", OperandFormat::Int16, OperandFormat::Int16),
    ("int8", OperandFormat::Int8, OperandFormat::Int8),
];

/// `x · Wᵀ` for each kind of arithmetic.
fn products(bench: &mut Bench) -> BenchmarkResult {
    for (dtype, left, right) in FORMATS {
        for (depth, outputs, counts) in [(HIDDEN, INNER, &[1, 8, 64, 128, 512][..]), (1000, 777, &[13, 131])]
        {
            for &rows in counts {
                let (compute, rng) = (&bench.compute, &mut bench.rng);
                let mut product =
                    SampleProduct::pack_values(compute, [rows, depth, outputs], [left, right], |count| {
                        (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
                    });
                let name = format!("product {dtype} {rows}x{depth}x{outputs}");
                bench.run(&name, left, product.operation_count(), |compute| product.run_once(compute))?;
            }
        }
    }
    Ok(())
}

/// `MaxSim` of a query with documents, whose vectors are kept as float32.
fn similarities(bench: &mut Bench) -> BenchmarkResult {
    let (queries, rows, width) = (32, 180, 128);
    let similarity = CpuSimilarity::new(bench.compute.set, Threads::start(bench.compute.threads.count())?)?;
    let query = TokenVectors { values: bench.random(queries * width), width };
    for count in [100, 1000] {
        let documents: Vec<TokenVectors> =
            (0..count).map(|_| TokenVectors { values: bench.random(rows * width), width }).collect();
        let documents: Vec<&TokenVectors> = documents.iter().collect();
        let name = format!("MaxSim {queries} vectors, {count} documents of {rows}x{width}");
        bench.run(&name, OperandFormat::F32, 2 * count * rows * queries * width, |_| {
            std::hint::black_box(similarity.sum_max_products(&query, &documents));
        })?;
    }
    Ok(())
}

/// Attention of all tokens: of one text, and of eight texts with a common prefix.
fn attentions(bench: &mut Bench) -> BenchmarkResult {
    for (what, shared, own, texts) in [("1 text of 1024", 0, 1024, 1), ("8 texts of 90+128", 90, 128, 8)] {
        let mut builder = BatchBuilder::new(Packing::SHARED);
        for text in 0..texts {
            // The first token after the prefix differs between texts.
            let ids: Vec<u32> = (0..shared).chain(1000 * (text + 1)..1000 * (text + 1) + own).collect();
            builder.push(&Text::new(ids, Wanted::WHOLE));
        }
        let batch = builder.build();
        let rows: Vec<usize> = (0..batch.token_ids().len()).collect();
        let visible: usize = batch.positions().map(|position| position + 1).sum();
        let spans = queries_at(&batch, &rows);
        let keys_values = bench.random(rows.len() * 2 * HEADS.keys * HEADS.size);
        let queries = bench.random(rows.len() * HEADS.queries * HEADS.size);
        for &(dtype, format, _) in &FORMATS[..3] {
            let (mut packed, mut words) = (PackedKeys::new(format), Words::default());
            packed.pack(&bench.compute, &keys_values, &rows, HEADS, &batch);
            // A query meets each key once and its value once.
            let operations = 4 * HEADS.size * HEADS.queries * visible;
            bench.run(&format!("attention {dtype} {what}"), format, operations, |compute| {
                let queries = Queries {
                    values: &queries,
                    spans: &spans,
                    turn: |_: usize, _: &mut [f32]| (),
                    gate: None,
                };
                let divisor = (HEADS.size as f32).sqrt();
                let scoring =
                    Scoring { mask: Mask::CAUSAL, divisor, soft_cap: None, bias: None, disentangled: false };
                let keys = Keys { packed: &packed, batch: &batch, heads: HEADS, scoring, disentangled: None };
                let memory = std::mem::take(&mut words);
                words = attention::attention(compute, &queries, keys, format, memory).take_words();
            })?;
        }
    }
    Ok(())
}

/// The norm of a row and its conversion to the next product's operand.
fn norms(bench: &mut Bench) -> BenchmarkResult {
    let (rows, norm) = (128, vec![1.0; HIDDEN]);
    let x = bench.random(rows * HIDDEN);
    for (dtype, format) in
        [("float32", OperandFormat::F32), ("bfloat16", OperandFormat::Bf16), ("int8", OperandFormat::Int8)]
    {
        let mut words = Words::default();
        // Square, sum, two factors, one conversion.
        bench.run(
            &format!("norm to {dtype} {rows}x{HIDDEN}"),
            OperandFormat::F32,
            5 * rows * HIDDEN,
            |compute| {
                let mut operand =
                    compute.operand(&x, HIDDEN, format, std::mem::take(&mut words), |row, out| {
                        elementwise::rms_norm(compute.set, row, &norm, 1e-6, out);
                        out
                    });
                words = operand.take_words();
            },
        )?;
    }
    Ok(())
}

/// A step of the softmax, and gates multiplied with their values; on one thread.
fn steps(bench: &mut Bench) -> BenchmarkResult {
    let mut softmax = Softmax::new();
    // Maximum, exponent, exponential, sum.
    bench.run("softmax 14x256", OperandFormat::F32, (EXPONENTIAL + 3) * Softmax::SCORES, |compute| {
        softmax.step(compute.set);
    })?;
    let rows = 64;
    let gates: Vec<[f32; 32]> =
        (0..rows).map(|_| std::array::from_fn(|_| bench.rng.random_range(-4.0..4.0))).collect();
    let mut gated = gates.clone();
    bench.run("gates 64x16", OperandFormat::F32, (EXPONENTIAL + 3) * rows * 16, |compute| {
        gated.copy_from_slice(&gates);
        activation::gate(compute.set, &mut gated, Activation::Silu);
    })
}
