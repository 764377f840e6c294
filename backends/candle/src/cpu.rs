//! The operations on the CPU: slices, kernels, threads.
//!
//! Weights are packed when they are loaded, activations are `f32` between the operations. Their memory comes from stores
//! of buffers that are used again, so that a forward pass asks the system for memory only while batches grow.

mod buffers;
#[cfg(any(test, feature = "benchmarks"))]
pub(crate) mod timed;

pub(crate) use buffers::{Activations, PackedActivations};

use crate::{
    attention::{cpu, packed::PackedKeys},
    kernels::{
        InstructionSet, elementwise,
        mapped::MappedMatrix,
        matmul::{Compute, ROWS_PER_ITEM},
        matrix::{Matrix, Order},
        pack::{Format, Stored, Words},
        threads::Threads,
    },
    operations::{Norm, Operations, Precision, Result, Rows, refuse_unknown},
};
use buffers::{Stores, take};
use std::{borrow::Cow, sync::Arc};
use text_embeddings_backend_core::{BackendError, DType};

/// The arithmetic of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arithmetic {
    /// What both operands of products of [`Precision::Low`] and of [`Precision::Spread`] are converted to.
    pub(crate) low: Format,
    /// What those of [`Precision::High`] are converted to.
    pub(crate) high: Format,
    /// What queries, keys, values and attention's weights are converted to.
    pub(crate) attention: Format,
}

impl Arithmetic {
    fn format(self, precision: Precision) -> Format {
        match precision {
            Precision::Low | Precision::Spread => self.low,
            Precision::High => self.high,
        }
    }

    /// Whether the operands of such products are rotated: where all values of a row share one step.
    fn spreads(self, precision: Precision) -> bool {
        precision == Precision::Spread && self.low == Format::Int8
    }
}

/// The CPU's operations.
pub(crate) struct CpuOperations {
    compute: Arc<Compute>,
    arithmetic: Arithmetic,
    stores: Arc<Stores>,
    packed_keys: PackedKeys,
}

impl CpuOperations {
    /// Starts the compute threads.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if the system refuses a thread.
    pub(crate) fn start(threads: usize, set: InstructionSet, dtype: DType) -> Result<Self> {
        Self::on(Threads::start(threads)?, set, dtype)
    }

    /// The same on threads that were started.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if the CPU does not compute in `dtype`.
    pub(crate) fn on(threads: Threads, set: InstructionSet, dtype: DType) -> Result<Self> {
        let arithmetic = arithmetic(set, dtype)?;
        Ok(Self {
            compute: Arc::new(Compute { set, threads }),
            arithmetic,
            stores: Arc::default(),
            packed_keys: PackedKeys::new(arithmetic.attention),
        })
    }

    /// Activations of unspecified content.
    fn activations(&self, rows: usize, columns: usize) -> Activations {
        let mut values = take(&self.stores.values, rows * columns);
        values.resize(rows * columns);
        Activations { values, columns, stores: self.stores.clone() }
    }

    /// `x`, each row made by `prepare` what is to be packed.
    fn pack(
        &self,
        (x, columns): (&[f32], usize),
        precision: Precision,
        prepare: impl for<'a> Fn(&'a [f32], &'a mut [f32]) -> &'a [f32] + Sync,
    ) -> PackedActivations {
        let format = self.arithmetic.format(precision);
        let words = self.words(format, x.len() / columns, columns);
        let operand = self.compute.operand((x, columns), format, words, prepare);
        PackedActivations { operand, stores: self.stores.clone() }
    }

    fn words(&self, format: Format, rows: usize, columns: usize) -> Words {
        take(&self.stores.words, rows * format.words(columns))
    }

    /// A weight. It keeps the checkpoint's precision, unless that of its products is lower.
    fn weight(&self, parts: &[MappedMatrix], precision: Precision, order: Order) -> Matrix {
        let format = match self.arithmetic.format(precision) {
            Format::F32 if parts.iter().any(|part| part.stored() != Stored::Bf16) => Format::F32,
            Format::F32 | Format::Bf16 => Format::Bf16,
            Format::Int8 => Format::Int8,
        };
        if !self.arithmetic.spreads(precision) {
            return Matrix::pack(&self.compute, parts, format, order);
        }
        let set = self.compute.set;
        Matrix::pack_prepared(&self.compute, parts, (format, order), |row| {
            // By what the two operands' rotations multiply the product; a power of two rounds nothing.
            let factor = 0.5_f32.powi(elementwise::stages(row.len()).cast_signed());
            for value in row.iter_mut() {
                *value *= factor;
            }
            elementwise::spread(set, row);
        })
    }

    /// `silu(gate) ∘ up`, row after row.
    fn gated(&self, x: &PackedActivations, gate_up: &Matrix) -> Activations {
        let mut out = self.activations(x.operand.rows(), gate_up.outputs() / 2);
        self.compute.gated_values(&x.operand, gate_up, out.values_mut());
        out
    }
}

fn arithmetic(set: InstructionSet, dtype: DType) -> Result<Arithmetic> {
    let higher = if set.has_bf16() { Format::Bf16 } else { Format::F32 };
    let [low, high, attention] = match dtype {
        DType::Float32 => [Format::F32; 3],
        DType::BFloat16 => [Format::Bf16; 3],
        DType::Int8 => [Format::Int8, higher, higher],
        DType::Float16 => {
            return Err(BackendError::Load(
                "`--dtype float16` is not supported on the CPU: give float32, bfloat16 or int8, or leave it out"
                    .to_owned(),
            ));
        }
    };
    Ok(Arithmetic { low, high, attention })
}

impl Operations for CpuOperations {
    type Tensor = Activations;
    type Operand = PackedActivations;
    type Table = MappedMatrix;
    type Matrix = Matrix;
    type GatedMatrix = Matrix;
    type Vector = Vec<f32>;
    type Rows<'a> = Rows<'a>;

    fn table(&self, values: MappedMatrix) -> Result<MappedMatrix> {
        Ok(values)
    }

    fn matrix(&self, parts: Vec<MappedMatrix>, precision: Precision) -> Result<Matrix> {
        Ok(self.weight(&parts, precision, Order::Plain))
    }

    fn gated_matrix(&self, gate: MappedMatrix, up: MappedMatrix, precision: Precision) -> Result<Matrix> {
        Ok(self.weight(&[gate, up], precision, Order::Gated))
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        Ok(values)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Activations> {
        let mut out = self.activations(values.len() / columns, columns);
        out.values_mut().copy_from_slice(values);
        Ok(out)
    }

    fn values<'a>(&mut self, x: &'a Activations) -> Result<Cow<'a, [f32]>> {
        Ok(Cow::Borrowed(x.values()))
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        let compute = self.compute.clone();
        compute.threads.enter(|| pass(self))
    }

    fn embed(&mut self, table: &MappedMatrix, ids: &[u32]) -> Result<Activations> {
        refuse_unknown(ids, table.rows())?;
        let mut out = self.activations(ids.len(), table.columns());
        for (&id, out) in ids.iter().zip(out.values_mut().chunks_exact_mut(table.columns())) {
            table.widen_row(id as usize, out);
        }
        Ok(out)
    }

    fn norm(&mut self, x: &Activations, norm: &Norm<Vec<f32>>) -> Result<Activations> {
        let mut out = self.activations(x.rows(), x.columns);
        let size = ROWS_PER_ITEM * x.columns;
        self.compute.threads.for_each(
            x.values().chunks(size).zip(out.values_mut().chunks_mut(size)),
            |(x, out)| {
                elementwise::rms_norm(self.compute.set, x, &norm.weight, norm.epsilon, out);
            },
        );
        Ok(out)
    }

    fn operand(&mut self, x: &Activations, precision: Precision) -> Result<PackedActivations> {
        let spreads = self.arithmetic.spreads(precision);
        Ok(self.pack((x.values(), x.columns), precision, |row, out| {
            if !spreads {
                return row;
            }
            out.copy_from_slice(row);
            elementwise::spread(self.compute.set, out);
            out
        }))
    }

    fn norm_operand(
        &mut self,
        x: &Activations,
        norm: &Norm<Vec<f32>>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let spreads = self.arithmetic.spreads(precision);
        Ok(self.pack((x.values(), x.columns), precision, |row, out| {
            elementwise::rms_norm(self.compute.set, row, &norm.weight, norm.epsilon, out);
            if spreads {
                elementwise::spread(self.compute.set, out);
            }
            out
        }))
    }

    fn linear(&mut self, x: &PackedActivations, weight: &Matrix) -> Result<Activations> {
        let mut out = self.activations(x.operand.rows(), weight.outputs());
        self.compute.product(&x.operand, weight, out.values_mut());
        Ok(out)
    }

    fn add_linear(&mut self, x: &PackedActivations, weight: &Matrix, sum: &mut Activations) -> Result<()> {
        self.compute.add_product(&x.operand, weight, sum.values_mut());
        Ok(())
    }

    fn swiglu(
        &mut self,
        x: &PackedActivations,
        gate_up: &Matrix,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let format = self.arithmetic.format(precision);
        if format == Format::Int8 {
            // A row's scale, and its rotation, need all of it.
            let activated = self.gated(x, gate_up);
            return self.operand(&activated, precision);
        }
        let (rows, inner) = (x.operand.rows(), gate_up.outputs() / 2);
        let words = self.words(format, rows, inner);
        let operand = self.compute.gated_product(&x.operand, gate_up, format, words);
        Ok(PackedActivations { operand, stores: self.stores.clone() })
    }

    fn rows<'a>(&mut self, rows: Rows<'a>) -> Result<Rows<'a>> {
        Ok(rows)
    }

    fn norm_and_rotate(
        &mut self,
        keys_values: &mut Activations,
        norm: &Norm<Vec<f32>>,
        Rows { heads, rotation, .. }: &Rows<'_>,
    ) -> Result<()> {
        let columns = keys_values.columns;
        let rows = keys_values.values_mut().chunks_mut(ROWS_PER_ITEM * columns);
        let rows = rows.zip(rotation.positions.chunks(ROWS_PER_ITEM));
        self.compute.threads.for_each(rows, |(rows, positions)| {
            for (row, &position) in rows.chunks_exact_mut(columns).zip(positions) {
                let keys = &mut row[..heads.keys * heads.size];
                let angles = rotation.table.at(position);
                elementwise::norm_and_rotate(self.compute.set, keys, &norm.weight, norm.epsilon, angles);
            }
        });
        Ok(())
    }

    fn append(&mut self, x: &mut Activations, rows: &[f32]) -> Result<()> {
        let before = x.values().len();
        x.values.resize(before + rows.len());
        x.values_mut()[before..].copy_from_slice(rows);
        Ok(())
    }

    fn keys_format(&self) -> Format {
        self.arithmetic.attention
    }

    fn attention(
        &mut self,
        (queries, norm): (&Activations, &Norm<Vec<f32>>),
        keys_values: &Activations,
        &Rows { batch, places, spans, rotation, heads }: &Rows<'_>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        self.packed_keys.pack(&self.compute, (keys_values.values(), places), heads, batch);
        let format = self.arithmetic.format(precision);
        let words = self.words(format, queries.rows(), queries.columns);
        let turn = |row: usize, values: &mut [f32]| {
            let angles = rotation.table.at(rotation.positions[row]);
            elementwise::norm_and_rotate(self.compute.set, values, &norm.weight, norm.epsilon, angles);
        };
        let operand = cpu::attention(
            &self.compute,
            (queries.values(), spans, turn),
            &self.packed_keys,
            heads,
            batch,
            (format, words),
        );
        Ok(PackedActivations { operand, stores: self.stores.clone() })
    }

    fn select(&mut self, x: &Activations, rows: &[usize]) -> Result<Activations> {
        let mut out = self.activations(rows.len(), x.columns);
        for (&row, out) in rows.iter().zip(out.values_mut().chunks_exact_mut(x.columns)) {
            out.copy_from_slice(&x.values()[row * x.columns..(row + 1) * x.columns]);
        }
        Ok(out)
    }

    fn dot(&mut self, x: &Activations, vector: &Vec<f32>) -> Result<Vec<f32>> {
        let dot =
            |row: &[f32]| -> f64 { row.iter().zip(vector).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
        Ok(x.values().chunks_exact(x.columns).map(|row| dot(row) as f32).collect())
    }
}
