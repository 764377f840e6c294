//! The machine's peaks, with which benchmarks compare the kernels. The same process measures both.
//!
//! Input: the variables `INSTRUCTION_SET` (default: the best) and `THREADS` (default: all cores). Output:
//! operations and bytes per second, of all threads together.

use super::{BenchmarkResult, Softmax, instruction_set};
use crate::cpu::Arithmetic;
use crate::kernels::{InstructionSet, pack::OperandFormat, peak, threads::Threads};
use std::{
    env,
    error::Error,
    io::{self, Write},
    str::FromStr,
    thread,
    time::Instant,
};
use text_embeddings_backend_core::DType;

/// The machine's peaks, per second.
pub(super) struct MachinePeaks {
    pub(super) set: InstructionSet,
    pub(super) threads: usize,
    peaks: [(OperandFormat, f64); 4],
    /// Bytes read from memory.
    pub(super) bytes: f64,
    /// Attention scores through the softmax, if the threads do nothing else.
    pub(super) scores: f64,
}

impl MachinePeaks {
    /// Measures all peaks.
    pub(super) fn measure(set: InstructionSet, threads: usize) -> Result<Self, Box<dyn Error>> {
        let pool = Threads::start(threads)?;
        let peaks = [OperandFormat::F32, OperandFormat::Bf16, OperandFormat::Int16, OperandFormat::Int8]
            .map(|format| (format, peak::of_all_threads(set, format, &pool)));
        let bytes = peak::bytes_per_second(&pool);
        Ok(Self { set, threads, peaks, bytes, scores: threads as f64 * softmax(set) })
    }

    /// The peak of multiplications and additions.
    pub(super) fn peak(&self, format: OperandFormat) -> f64 {
        let format = if format == OperandFormat::WideBf16 { OperandFormat::F32 } else { format };
        self.peaks.iter().find(|(known, _)| *known == format).map_or(f64::NAN, |(_, peak)| *peak)
    }

    /// The peaks in words.
    pub(super) fn line(&self) -> String {
        let [float32, bfloat16, int16, int8] = self.peaks.map(|(_, peak)| peak / 1e9);
        format!(
            "{}, threads: {}; peaks: float32 {float32:.0}, bfloat16 {bfloat16:.0}, int16 {int16:.0}, int8 \
             {int8:.0} G/s; memory {:.0} GB/s",
            self.set,
            self.threads,
            self.bytes / 1e9
        )
    }
}

/// Scores per second of one thread: the best of several rounds.
fn softmax(set: InstructionSet) -> f64 {
    let mut softmax = Softmax::new();
    (0..5)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..200 {
                softmax.step(set);
            }
            (200 * Softmax::SCORES) as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

/// The value of a variable.
pub(super) fn variable<T: FromStr>(name: &str, default: T) -> Result<T, Box<dyn Error>> {
    let value = env::var(name).ok().filter(|value| !value.is_empty());
    value.map_or(Ok(default), |value| {
        value.parse().map_err(|_| format!("the value of {name}, {value:?}, is malformed").into())
    })
}

/// The instruction set and the number of threads that the variables name, else the best and all.
pub(super) fn settings() -> Result<(InstructionSet, usize), Box<dyn Error>> {
    let cores = thread::available_parallelism().map_or(1, Into::into);
    Ok((instruction_set()?, variable("THREADS", cores)?))
}

/// Prints the peaks of each arithmetic in G/s, and the memory's GB/s, as a JSON object.
///
/// # Errors
///
/// If a variable is malformed, or the system refuses threads.
pub fn print_peaks() -> BenchmarkResult {
    let (set, threads) = settings()?;
    let machine = MachinePeaks::measure(set, threads)?;
    let mut peaks = serde_json::json!({
        "instruction_set": set.to_string(), "threads": threads, "memory": machine.bytes / 1e9,
    });
    for dtype in [DType::Float32, DType::BFloat16, DType::Int8] {
        peaks[dtype.to_string()] = (machine.peak(Arithmetic::of_dtype(set, dtype).low) / 1e9).into();
    }
    writeln!(io::stdout(), "{peaks}")?;
    Ok(())
}
