//! Operations on the CPU, made of slices, kernels and threads.
//!
//! Weights are packed when they are loaded. Activations are `f32` between operations. Their memory comes from
//! pools of buffers, so that a forward pass only allocates memory while batches grow.

/// Times the rest of a block as the call `name` of [`timed::Call`]. Without benchmarks it is nothing.
#[cfg(any(test, feature = "benchmarks"))]
macro_rules! timed {
    ($operations:ident, $name:ident($($argument:expr),* $(,)?)) => {
        let _timing = $operations.log.as_ref().map(|log| {
            let call = $crate::cpu::timed::Call::$name($($argument),*);
            $crate::cpu::timed::Timing::start(log, $operations.sharers, call)
        });
    };
}
#[cfg(not(any(test, feature = "benchmarks")))]
macro_rules! timed {
    ($($ignored:tt)*) => {};
}

pub(crate) mod attention;
mod buffers;
mod delta;
pub(crate) mod disentangled;
mod heads;
mod operations;
pub(crate) mod packed_keys;
mod parts;
mod short_convolution;
pub(crate) mod table;
#[cfg(any(test, feature = "benchmarks"))]
pub(crate) mod timed;
mod workspace;

pub(crate) use buffers::{Activations, PackedActivations};

use crate::{
    kernels::{
        InstructionSet,
        compute::Compute,
        elementwise,
        epilogue::Epilogue,
        matmul::NextIntegers,
        matrix::{ColumnOrder, Matrix, WeightFormat, WeightPacking},
        pack::{OperandFormat, Stored, Words},
        threads::Threads,
    },
    load::{Part, Weight},
    operations::{Norm, Precision, Result},
    plan::NormKind,
};
use buffers::{Stores, take};
use packed_keys::PackedKeys;
use std::sync::Arc;
use text_embeddings_backend_core::{BackendError, DType};

/// The texts whose means a thread takes at a time.
const TEXTS_PER_ITEM: usize = 16;

/// The formats of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arithmetic {
    /// The format of both operands in products of [`Precision::Low`] and of [`Precision::Spread`].
    pub(crate) low: OperandFormat,
    /// The format of both operands in products of [`Precision::High`].
    pub(crate) high: OperandFormat,
    /// The format of queries, keys, values and attention's weights.
    pub(crate) attention: OperandFormat,
    /// Whether weights that are multiplied as bytes are stored in four bits.
    pub(crate) int4: bool,
}

impl Arithmetic {
    /// The formats for a type of numbers. float16, in which the CPU does not compute, has bfloat16's.
    pub(crate) fn of_dtype(set: InstructionSet, dtype: DType) -> Self {
        // Without fast products of 16 bits, bfloat16 halves the memory of weights but not the time. Then the
        // parts of int8 that are not computed in bytes are exact.
        let [sixteen_bits, beside_bytes] = if set.has_bf16() {
            [OperandFormat::Bf16; 2]
        } else if set.takes_int16() {
            [OperandFormat::Int16; 2]
        } else {
            [OperandFormat::Bf16, OperandFormat::F32]
        };
        let [low, high, attention] = match dtype {
            DType::Float32 => [OperandFormat::F32; 3],
            DType::BFloat16 | DType::Float16 => [sixteen_bits; 3],
            DType::Int8 | DType::Int4 => [OperandFormat::Int8, beside_bytes, beside_bytes],
        };
        Self { low, high, attention, int4: dtype == DType::Int4 }
    }

    /// The size of a key's or value's number in the prefix cache, in bytes. Integers are kept as `f32`,
    /// because their scales change if they are rounded twice.
    pub(crate) fn kept_bytes(self) -> usize {
        if self.attention == OperandFormat::Bf16 { size_of::<u16>() } else { size_of::<f32>() }
    }

    fn format(self, precision: Precision) -> OperandFormat {
        match precision {
            Precision::Low | Precision::Spread => self.low,
            Precision::High => self.high,
        }
    }

    /// Whether the operands of such products are rotated. That is so if all values of a row share one step.
    fn spreads(self, precision: Precision) -> bool {
        precision == Precision::Spread && self.low == OperandFormat::Int8
    }
}

/// The CPU's operations.
pub(crate) struct CpuOperations {
    compute: Arc<Compute>,
    arithmetic: Arithmetic,
    stores: Arc<Stores>,
    packed_keys: PackedKeys,
    /// The fewest tokens for which a thread reads all weights.
    part_tokens: usize,
    #[cfg(any(test, feature = "benchmarks"))]
    log: Option<timed::Log>,
    /// All threads if each computes calls of its own, 1 if all compute each call.
    #[cfg(any(test, feature = "benchmarks"))]
    sharers: usize,
}

impl CpuOperations {
    /// Starts the compute threads.
    #[cfg(any(test, feature = "benchmarks"))]
    pub(crate) fn start(threads: usize, set: InstructionSet, dtype: DType) -> Result<Self> {
        Self::on(Threads::start(threads)?, set, dtype)
    }

    /// On threads that already run.
    pub(crate) fn on(threads: Threads, set: InstructionSet, dtype: DType) -> Result<Self> {
        if dtype == DType::Float16 {
            return Err(BackendError::Load(
                "`--dtype float16` is not supported on the CPU: give float32, bfloat16, int8 or int4, or \
                 leave it out"
                    .to_owned(),
            ));
        }
        let arithmetic = Arithmetic::of_dtype(set, dtype);
        Ok(Self {
            compute: Arc::new(Compute { set, threads }),
            arithmetic,
            stores: Arc::default(),
            packed_keys: PackedKeys::new(arithmetic.attention),
            part_tokens: parts::PART_TOKENS,
            #[cfg(any(test, feature = "benchmarks"))]
            log: None,
            #[cfg(any(test, feature = "benchmarks"))]
            sharers: 1,
        })
    }

    /// Logs every call of an operation of a forward pass in `log`. The seconds of a call on one of several
    /// threads are divided by their number.
    #[cfg(any(test, feature = "benchmarks"))]
    pub(crate) fn timed(self, log: timed::Log) -> Self {
        Self { log: Some(log), ..self }
    }

    /// Lets one thread compute parts of as few tokens.
    #[cfg(test)]
    pub(crate) fn with_parts_of(self, part_tokens: usize) -> Self {
        Self { part_tokens, ..self }
    }

    /// Activations with unspecified content.
    fn activations(&self, rows: usize, columns: usize) -> Activations {
        let mut values = take(&self.stores.values, rows * columns);
        values.resize(rows * columns);
        Activations { values, columns, stores: self.stores.clone() }
    }

    /// Packs the rows of `x` after `prepare` has changed them.
    fn pack(
        &self,
        x: &[f32],
        columns: usize,
        precision: Precision,
        prepare: impl for<'a> Fn(&'a [f32], &'a mut [f32]) -> &'a [f32] + Sync,
    ) -> PackedActivations {
        let format = self.arithmetic.format(precision);
        let words = self.words(format, x.len() / columns, columns);
        let operand = self.compute.operand(x, columns, format, words, prepare);
        PackedActivations { operand, stores: self.stores.clone() }
    }

    /// Replaces each row of `x` by its norm, and packs the result.
    fn pack_normed(
        &self,
        x: &mut Activations,
        norm: &Norm<Vec<f32>>,
        precision: Precision,
    ) -> PackedActivations {
        let (rows, columns, format) = (x.rows(), x.columns, self.arithmetic.format(precision));
        let (words, spreads) = (self.words(format, rows, columns), self.arithmetic.spreads(precision));
        let per_item = self.compute.rows_per_item(rows);
        let items = x.values_mut().chunks_mut(per_item * columns);
        let counts: Vec<usize> = self.compute.rows_of_items(rows).collect();
        let operand = self.compute.operand_of(&counts, columns, format, words, |parts| {
            self.compute.threads.for_each(items.zip(parts), |(x, mut rows)| {
                let mut normed = vec![0.0; columns];
                for (index, row) in x.chunks_exact_mut(columns).enumerate() {
                    self.norm_rows(norm, row, &mut normed);
                    row.copy_from_slice(&normed);
                    if spreads {
                        elementwise::spread(self.compute.set, &mut normed);
                    }
                    rows.write(index, &normed);
                }
            });
        });
        PackedActivations { operand, stores: self.stores.clone() }
    }

    fn words(&self, format: OperandFormat, rows: usize, columns: usize) -> Words {
        take(&self.stores.words, rows * format.of_rows(self.compute.set).words(columns))
    }

    /// Packs a weight. It keeps the checkpoint's precision unless its products have a lower one.
    fn weight(&self, parts: Vec<Part>, precision: Precision, order: ColumnOrder) -> Matrix {
        let weights: Vec<Weight> = parts.iter().map(|part| part.weight.clone()).collect();
        let spreads = self.arithmetic.spreads(precision);
        // A rotated row has no four bits of its own any more. Rounding it to four bits would be the second
        // time, after the file's.
        let int4 = self.arithmetic.int4 && !(spreads && weights.iter().any(Weight::has_four_bits));
        let format = match self.arithmetic.format(precision) {
            OperandFormat::F32 if weights.iter().any(|part| part.stored() != Stored::Bf16) => {
                OperandFormat::F32.into()
            }
            OperandFormat::F32 | OperandFormat::Bf16 | OperandFormat::WideBf16 => OperandFormat::Bf16.into(),
            OperandFormat::Int16 => OperandFormat::Int16.into(),
            OperandFormat::Int8 if int4 => WeightFormat::Int4,
            OperandFormat::Int8 => OperandFormat::Int8.into(),
        };
        let matrix = if spreads {
            let set = self.compute.set;
            Matrix::pack_prepared(&self.compute, &weights, WeightPacking { format, order }, |row| {
                // Undoes the scale of the two rotations; exact, because it is a power of two.
                let factor = 0.5_f32.powi(elementwise::stages(row.len()).cast_signed());
                for value in row.iter_mut() {
                    *value *= factor;
                }
                elementwise::spread(set, row);
            })
        } else {
            Matrix::pack(&self.compute, &weights, format, order)
        };
        if parts.iter().all(|part| part.bias.is_none()) {
            return matrix;
        }
        let bias: Vec<f32> = parts.into_iter().flat_map(Part::into_bias).collect();
        matrix.with_bias(&bias, order)
    }

    /// The result of a product and the step after it, as an operand.
    fn after(
        &self,
        x: &PackedActivations,
        weight: &Matrix,
        epilogue: Epilogue,
        precision: Precision,
    ) -> PackedActivations {
        let format = self.arithmetic.format(precision);
        timed!(self, epilogue(epilogue, x, weight, format));
        let (rows, inner) = (x.operand.rows(), epilogue.outputs(weight));
        let words = self.words(format, rows, inner);
        let operand = if format.is_scaled() {
            // The scale and the rotation of a row need the whole row.
            let step = x.operand.rows_per_step(inner * size_of::<f32>());
            let mut values = self.activations(step, inner);
            let spreads = self.arithmetic.spreads(precision);
            let next = NextIntegers { format, words, values: values.values_mut() };
            self.compute.next_integers(&x.operand, weight, epilogue, next, |row| {
                if spreads {
                    elementwise::spread(self.compute.set, row);
                }
            })
        } else {
            self.compute.next_operand(&x.operand, weight, epilogue, format, words)
        };
        PackedActivations { operand, stores: self.stores.clone() }
    }

    /// Writes the norm of some rows to `out`.
    fn norm_rows(&self, norm: &Norm<Vec<f32>>, x: &[f32], out: &mut [f32]) {
        let Norm { kind, weight, bias, epsilon } = norm;
        match (kind, bias) {
            (NormKind::Layer, Some(bias)) => {
                elementwise::layer_norm(self.compute.set, x, weight, bias, *epsilon, out);
            }
            _ => elementwise::rms_norm(self.compute.set, x, weight, *epsilon, out),
        }
    }

    /// For each text, the mean of some rows of `x`, `[rows, columns]`: `[texts, columns]`.
    fn text_means(&self, x: &[f32], columns: usize, texts: &[Vec<usize>]) -> Vec<f32> {
        let mut out = vec![0.0; texts.len() * columns];
        let items = texts.chunks(TEXTS_PER_ITEM).zip(out.chunks_mut(TEXTS_PER_ITEM * columns));
        self.compute.threads.for_each(items, |(texts, out)| {
            for (rows, out) in texts.iter().zip(out.chunks_exact_mut(columns)) {
                elementwise::mean_rows(self.compute.set, x, rows, out);
            }
        });
        out
    }

    /// Calls `body` for some rows of `x` at a time. Arguments: the index of the first row, and the rows.
    fn each_rows(&self, x: &mut Activations, body: impl Fn(usize, &mut [f32]) + Sync) {
        let per_item = self.compute.rows_per_item(x.rows());
        let size = per_item * x.columns;
        let items = x.values_mut().chunks_mut(size).enumerate();
        self.compute.threads.for_each(items, |(index, rows)| body(index * per_item, rows));
    }
}
