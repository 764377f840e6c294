//! Measures the speed of the cores: multiplications and additions whose operands stay in registers, reads
//! from memory, and products as models have them.
//!
//! Input: an instruction set and the format of a product's operands. Output: operations, or bytes, per
//! second; a [`SampleProduct`] to run and to time. What must hold: the loops use the same instructions as the
//! inner loops of products, in enough independent chains to hide their latency.

#![expect(
    unsafe_code,
    reason = "calls functions compiled for instruction sets that `InstructionSet` vouches for"
)]

#[cfg(target_arch = "x86_64")]
use crate::kernels::amx;
use crate::kernels::{
    InstructionSet,
    compute::Compute,
    matrix::{ColumnOrder, Matrix},
    operand::Operand,
    pack::{OperandFormat, Words},
    stored::StoredMatrix,
    threads::Threads,
};
use std::{
    hint::black_box,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// The number of chains of operations that do not depend on each other.
const CHAINS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 12 };
const STEPS: usize = 1 << 20;
const ROUNDS: usize = 8;
/// The bytes that a measurement of reading covers: more than the caches hold.
#[cfg(feature = "benchmarks")]
const READ_BYTES: usize = 512 << 20;

/// Operations per second of this thread: the best of several rounds. If the CPU has no instruction for the
/// format, the number for `f32`.
pub(crate) fn operations_per_second(set: InstructionSet, format: OperandFormat) -> f64 {
    let (per_step, run) = chains(set, format);
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            run(STEPS);
            (STEPS * CHAINS * per_step) as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

/// Operations per second of all threads together.
pub(crate) fn of_all_threads(set: InstructionSet, format: OperandFormat, threads: &Threads) -> f64 {
    let sum = Mutex::new(0.0);
    // One item per thread: a thread is busy with its item until all items are taken.
    threads.for_each(0..threads.count(), |_| {
        let one = operations_per_second(set, format);
        *sum.lock().unwrap_or_else(PoisonError::into_inner) += one;
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A product `x · Wᵀ` of values that mean nothing.
pub(crate) struct SampleProduct {
    x: Operand,
    weight: Matrix,
    out: Vec<f32>,
    /// Multiplications and additions.
    operations: usize,
}

impl SampleProduct {
    /// A product of `[rows, depth]` and `[outputs, depth]` with these formats of rows and weights.
    /// `fill` gives that many values.
    pub(crate) fn pack_values(
        compute: &Compute,
        [rows, depth, outputs]: [usize; 3],
        [of_rows, of_weights]: [OperandFormat; 2],
        mut fill: impl FnMut(usize) -> Vec<f32>,
    ) -> Self {
        let stored = StoredMatrix::from_values(&fill(depth * outputs), depth);
        let weight = Matrix::pack(compute, &[stored], of_weights, ColumnOrder::Plain);
        let x = compute.operand(&fill(rows * depth), depth, of_rows, Words::default(), |row, _| row);
        Self { x, weight, out: vec![0.0; rows * outputs], operations: 2 * rows * depth * outputs }
    }

    /// The number of its multiplications and additions.
    pub(crate) fn operation_count(&self) -> usize {
        self.operations
    }

    /// Computes it.
    pub(crate) fn run_once(&mut self, compute: &Compute) {
        compute.product(&self.x, &self.weight, &mut self.out);
    }
}

/// Bytes per second that all threads together read from memory: the best of several rounds.
#[cfg(feature = "benchmarks")]
pub(crate) fn bytes_per_second(threads: &Threads) -> f64 {
    let values = vec![1_u64; READ_BYTES / size_of::<u64>()];
    let part = values.len().div_ceil(threads.count());
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            threads.for_each(values.chunks(part), |part| {
                black_box(part.iter().fold(0_u64, |sum, value| sum.wrapping_add(*value)));
            });
            READ_BYTES as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

/// The number of operations of one instruction, and a function that runs the given number of steps of
/// [`CHAINS`] instructions.
fn chains(set: InstructionSet, format: OperandFormat) -> (usize, fn(usize)) {
    match (set, format) {
        (InstructionSet::Portable, _) => (8, portable),
        // One instruction multiplies 16 rows by 16 columns.
        #[cfg(target_arch = "x86_64")]
        // SAFETY (all): every `InstructionSet` comes from `available`, which checked the CPU.
        (InstructionSet::Avx512Amx, OperandFormat::Bf16) => {
            (256 * 64, |steps| unsafe { amx::bf16_chains(steps) })
        }
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512Amx, OperandFormat::Int8) => {
            (256 * 128, |steps| unsafe { amx::int8_chains(steps) })
        }
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512Bf16, OperandFormat::Bf16) => (64, |steps| unsafe { x86::bf16_avx512(steps) }),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512Bf16 | InstructionSet::Avx512Vnni, OperandFormat::Int8) => {
            (128, |steps| unsafe { x86::int8_avx512(steps) })
        }
        #[cfg(target_arch = "x86_64")]
        (
            InstructionSet::Avx512Amx | InstructionSet::Avx512Bf16 | InstructionSet::Avx512Vnni,
            OperandFormat::Int16,
        ) => (64, |steps| unsafe { x86::int16_avx512(steps) }),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2Vnni, OperandFormat::Int16) => {
            (32, |steps| unsafe { x86::int16_avx2vnni(steps) })
        }
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2, OperandFormat::Int16) => (32, |steps| unsafe { x86::int16_avx2(steps) }),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2Vnni, OperandFormat::Int8) => (64, |steps| unsafe { x86::int8_avx2(steps) }),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2 | InstructionSet::Avx2Vnni, _) => (16, |steps| unsafe { x86::f32_avx2(steps) }),
        #[cfg(target_arch = "x86_64")]
        _ => (32, |steps| unsafe { x86::f32_avx512(steps) }),
        #[cfg(target_arch = "aarch64")]
        // SAFETY (all): as above.
        (InstructionSet::NeonI8mmBf16, OperandFormat::Bf16) => (32, |steps| unsafe { arm::bf16(steps) }),
        #[cfg(target_arch = "aarch64")]
        (InstructionSet::NeonI8mmBf16, OperandFormat::Int8) => (64, |steps| unsafe { arm::int8_i8mm(steps) }),
        #[cfg(target_arch = "aarch64")]
        (InstructionSet::NeonDotprod, OperandFormat::Int8) => {
            (32, |steps| unsafe { arm::int8_dotprod(steps) })
        }
        #[cfg(target_arch = "aarch64")]
        _ => (8, |steps| unsafe { arm::f32(steps) }),
    }
}

fn portable(steps: usize) {
    let factor = black_box(0.5_f32);
    let mut sums = [[0.0_f32; 4]; CHAINS];
    for _ in 0..steps {
        for sum in sums.as_flattened_mut() {
            *sum = *sum * factor + factor;
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, black_box};
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_dpbusd_avx_epi32, _mm256_dpwssd_avx_epi32, _mm256_fmadd_ps,
        _mm256_madd_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
        _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_fmadd_ps,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    };

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, _mm256_madd_epi16(sum, b))
    }

    macro_rules! chains {
        ($($features:literal $name:ident: $step:ident($zero:expr, $factor:expr);)*) => {$(
            #[target_feature(enable = $features)]
            pub(super) fn $name(steps: usize) {
                let factor = black_box($factor);
                let mut sums = [$zero; CHAINS];
                for _ in 0..steps {
                    for sum in &mut sums {
                        *sum = $step(*sum, factor, factor);
                    }
                }
                black_box(sums);
            }
        )*};
    }

    chains! {
        "avx2,fma" f32_avx2: _mm256_fmadd_ps(_mm256_setzero_ps(), _mm256_set1_ps(0.5));
        "avx2,avxvnni" int8_avx2: _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), _mm256_set1_epi32(1));
        "avx512f" f32_avx512: _mm512_fmadd_ps(_mm512_setzero_ps(), _mm512_set1_ps(0.5));
        "avx2" int16_avx2: add_products(_mm256_setzero_si256(), _mm256_set1_epi32(1));
        "avx2,avxvnni" int16_avx2vnni: _mm256_dpwssd_avx_epi32(_mm256_setzero_si256(), _mm256_set1_epi32(1));
        "avx512f,avx512vnni" int16_avx512: _mm512_dpwssd_epi32(_mm512_setzero_si512(), _mm512_set1_epi32(1));
        "avx512f,avx512vnni" int8_avx512: _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi32(1));
        "avx512f,avx512bf16" bf16_avx512:
            _mm512_dpbf16_ps(_mm512_setzero_ps(), _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5), _mm512_set1_ps(0.5)));
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{CHAINS, black_box};
    use std::arch::{aarch64::vdupq_n_u32, asm};

    macro_rules! chains {
        ($($features:literal $name:ident: $instruction:literal, $factor:literal;)*) => {$(
            #[target_feature(enable = $features)]
            pub(super) fn $name(steps: usize) {
                let factor = black_box(vdupq_n_u32($factor));
                let mut sums = [vdupq_n_u32(0); CHAINS];
                for _ in 0..steps {
                    for sum in &mut sums {
                        // SAFETY: this function is compiled for the instruction, which changes only its first
                        // register.
                        unsafe {
                            asm!(
                                $instruction,
                                inout(vreg) *sum,
                                in(vreg) factor,
                                options(pure, nomem, nostack, preserves_flags),
                            );
                        }
                    }
                }
                black_box(sums);
            }
        )*};
    }

    chains! {
        "neon" f32: "fmla {0:v}.4s, {1:v}.4s, {1:v}.s[0]", 0x3f00_0000;
        "neon,dotprod" int8_dotprod: "sdot {0:v}.4s, {1:v}.16b, {1:v}.4b[0]", 0x0101_0101;
        "neon,i8mm" int8_i8mm: "smmla {0:v}.4s, {1:v}.16b, {1:v}.16b", 0x0101_0101;
        "neon,bf16" bf16: "bfmmla {0:v}.4s, {1:v}.8h, {1:v}.8h", 0x3f00_3f00;
    }
}
