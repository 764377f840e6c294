//! The time of each operation in a forward pass, and the limit that bounds it.
//!
//! Input: a model folder in the variable `MODEL`, of the 0.6B shape for the default workloads; optionally
//! `DTYPES`, `WORKLOADS`, `MAX_BATCH_TOKENS`, `THREADS` and `INSTRUCTION_SET`. Output: a table in Markdown
//! for each kind of arithmetic and workload. What must hold: the rows of a table add up to the pass, with one
//! row for the time outside of all operations; peaks come from the same process.
//! `docs/performance-details.md` says how to read the tables.

use super::{
    BenchmarkResult,
    machine::{MachinePeaks, settings, variable},
    table::{SPLIT_HEAD, TimedPass, split, table},
};
use crate::{
    DType,
    cpu::{
        CpuOperations,
        timed::{CallCost, CallKind, Log},
    },
    load_on,
};
use std::{
    env,
    error::Error,
    fs,
    io::{self, Write},
    path::Path,
    sync::PoisonError,
    time::Instant,
};
use text_embeddings_backend_core::{
    AnswerTokens, Backend, Batch, BatchBuilder, Head, LoadOptions, Packing, Predictions, Text, Wanted,
};

/// Bytes of keys and values that passes may keep.
const PREFIX_CACHE_BYTES: usize = 256 << 20;
/// Texts as numbers of tokens. For W1 to W3, Qwen3's tokenizer gives these numbers for `benches/workloads`.
struct Workload {
    name: &'static str,
    /// Tokens at the beginning of all texts.
    shared: usize,
    /// Tokens of each text after the shared ones.
    own: &'static [usize],
    /// The number of shared tokens that an earlier pass leaves for the next.
    kept: usize,
    /// The number of passes. The pass of median length is shown.
    passes: usize,
    /// Whether each operation is shown.
    in_detail: bool,
}

/// The odd numbers from 1 on: 64 lengths, 64² tokens.
const ODD_LENGTHS: [usize; 64] = {
    let mut lengths = [1; 64];
    let mut index = 1;
    while index < lengths.len() {
        lengths[index] = lengths[index - 1] + 2;
        index += 1;
    }
    lengths
};

const WORKLOADS: [Workload; 10] = [
    Workload {
        name: "W1",
        shared: 71,
        own: &[
            136, 135, 137, 136, 137, 137, 136, 137, 137, 137, 137, 136, 136, 136, 137, 137, 137, 137, 137,
            137, 137, 137, 136, 137, 136, 137, 137, 137, 137, 137, 136, 135,
        ],
        kept: 0,
        passes: 3,
        in_detail: true,
    },
    Workload { name: "W2", shared: 60, own: &[62], kept: 0, passes: 21, in_detail: true },
    Workload { name: "W2-kept", shared: 60, own: &[62], kept: 60, passes: 21, in_detail: true },
    Workload {
        name: "W3",
        shared: 71,
        own: &[1009, 1009, 1008, 1009, 1009, 1009, 1009, 1009],
        kept: 0,
        passes: 1,
        in_detail: false,
    },
    Workload { name: "8k", shared: 0, own: &[8192], kept: 0, passes: 1, in_detail: false },
    // Workloads of encoders, as in `benches/encoders.py`.
    Workload { name: "E32", shared: 0, own: &[128; 32], kept: 0, passes: 11, in_detail: true },
    Workload { name: "E1", shared: 0, own: &[14], kept: 0, passes: 101, in_detail: true },
    // 4096 tokens in one text, in texts of equal lengths, and in texts of different lengths.
    Workload { name: "4k", shared: 0, own: &[4096], kept: 0, passes: 3, in_detail: false },
    Workload { name: "E64", shared: 0, own: &[64; 64], kept: 0, passes: 3, in_detail: false },
    Workload { name: "E64-mixed", shared: 0, own: &ODD_LENGTHS, kept: 0, passes: 3, in_detail: false },
];

impl Workload {
    /// The workload's texts in batches of at most `budget` tokens, as the server forms them.
    fn batches(&self, vocabulary: usize, budget: usize) -> Vec<Batch> {
        // A seed of its own, so that workloads share no tokens.
        let mut state = self.own.iter().fold(self.kept, |sum, own| 31 * sum + own) as u32;
        let mut ids = |count: usize| -> Vec<u32> {
            (0..count)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) % vocabulary as u32
                })
                .collect()
        };
        let shared = ids(self.shared);
        let (mut batches, mut builder, mut tokens) = (Vec::new(), BatchBuilder::new(Packing::SHARED), 0);
        for (index, &own) in self.own.iter().enumerate() {
            // The first token after the prefix differs between texts.
            let own = [vec![index as u32], ids(own - 1)].concat();
            let ids = [&shared[..], &own].concat();
            let text = Text { reusable: self.kept, ..Text::new(ids, Wanted::WHOLE) };
            if tokens > 0 && tokens + builder.cost(&text.ids) > budget {
                batches.push(std::mem::replace(&mut builder, BatchBuilder::new(Packing::SHARED)).build());
                tokens = 0;
            }
            tokens += builder.cost(&text.ids);
            builder.push(&text);
        }
        batches.push(builder.build());
        batches
    }
}

/// Runs the workloads and prints a table for each.
///
/// # Errors
///
/// If a variable is malformed, or the model cannot be loaded.
pub fn run() -> BenchmarkResult {
    let folder = env::var("MODEL").map_err(
        |_| "MODEL must name a model folder: integration_tests/reference/benchmark_model.py makes one",
    )?;
    let (set, threads) = settings()?;
    let budget = variable("MAX_BATCH_TOKENS", 16384)?;
    let dtypes: String = variable("DTYPES", "float32,bfloat16,int8".to_owned())?;
    let names: String = variable("WORKLOADS", "W1,W2,W2-kept,W3,8k".to_owned())?;
    let machine = MachinePeaks::measure(set, threads)?;
    writeln!(io::stdout(), "{}", machine.line())?;
    for dtype in dtypes.split(',') {
        let known = DType::ALL.into_iter().find(|known| known.to_string() == dtype);
        let dtype = known.ok_or_else(|| format!("DTYPES: {dtype} is not known"))?;
        let mut measured = RunningModel::load(Path::new(&folder), &machine, dtype)?;
        let mut splits = SPLIT_HEAD.to_owned();
        for name in names.split(',') {
            let workload = WORKLOADS.iter().find(|workload| workload.name == name);
            let workload = workload.ok_or_else(|| format!("WORKLOADS: {name} is not known"))?;
            let batches = workload.batches(measured.vocabulary, budget);
            let pass = measured.median_pass(&batches, workload.passes)?;
            splits += &split(name, &pass, &machine);
            if workload.in_detail {
                let tokens: usize = batches.iter().map(|batch| batch.token_ids().len()).sum();
                let computed = tokens - workload.kept;
                writeln!(
                    io::stdout(),
                    "\n### {dtype}, {name}: {computed} tokens to compute, batches: {}\n",
                    batches.len()
                )?;
                io::stdout().write_all(table(&pass, &machine).as_bytes())?;
            }
        }
        writeln!(io::stdout(), "\n### {dtype}, products and attention\n\n{splits}")?;
    }
    Ok(())
}

/// A model whose passes are timed.
struct RunningModel {
    backend: Box<dyn Backend>,
    log: Log,
    vocabulary: usize,
}

impl RunningModel {
    fn load(folder: &Path, machine: &MachinePeaks, dtype: DType) -> Result<Self, Box<dyn Error>> {
        let config: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("config.json"))?)?;
        let vocabulary = config["vocab_size"].as_u64().ok_or("config.json: no vocab_size")? as usize;
        let log = Log::default();
        let options = LoadOptions {
            dtype: Some(dtype),
            threads: machine.threads,
            instruction_set: Some(machine.set.to_string()),
            prefix_cache_bytes: PREFIX_CACHE_BYTES,
            ..LoadOptions::new(
                config,
                vec![folder.join("model.safetensors").into()],
                Head::answers(AnswerTokens::difference(1, Some(2))),
            )
        };
        let operations = CpuOperations::start(machine.threads, machine.set, dtype)?.timed(log.clone());
        let backend = load_on(operations, &options)?;
        Ok(Self { backend, log, vocabulary })
    }

    /// The pass of median length. An extra pass comes first, which fills buffers and the prefix cache.
    fn median_pass(&mut self, batches: &[Batch], passes: usize) -> Result<TimedPass, Box<dyn Error>> {
        self.pass(batches)?;
        let mut passes = (0..passes).map(|_| self.pass(batches)).collect::<Result<Vec<_>, _>>()?;
        passes.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Ok(passes.swap_remove(passes.len() / 2))
    }

    fn pass(&mut self, batches: &[Batch]) -> Result<TimedPass, Box<dyn Error>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let start = Instant::now();
        for batch in batches {
            let _: Predictions = self.backend.predict(batch)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let calls = std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        let mut costs: Vec<(CallKind, CallCost)> = Vec::new();
        for (kind, call) in calls {
            match costs.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, cost)) => cost.add(call),
                None => costs.push((kind, call)),
            }
        }
        costs.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        Ok(TimedPass { seconds, costs })
    }
}
