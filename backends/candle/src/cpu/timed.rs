//! The CPU's operations with a clock beside them, for `benchmarks::roofline`.
//!
//! Input: calls, passed on as they are. Output: for each call what it was, how long it took, and what it had to do at
//! least. What must hold: nothing of this is in a build without the feature `benchmarks`, tests aside; what a call has to do is
//! counted from its shapes, not from how it is done.

use super::{Activations, CpuOperations, PackedActivations};
use crate::{
    attention::QuerySpan,
    kernels::{
        elementwise,
        mapped::MappedMatrix,
        matrix::Matrix,
        pack::{Format, Stored},
    },
    operations::{Norm, Operations, Precision, Result, Rows},
};
use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};
use text_embeddings_backend_core::Batch;

/// Bytes of an `f32`.
const VALUE: usize = size_of::<f32>();
/// Operations that a norm takes for each value: square, sum, two factors, a conversion.
const NORM: usize = 5;
/// Those of a rotation: two products and a sum.
const ROTATION: usize = 3;

/// The name of attention.
pub(crate) const ATTENTION: &str = "attention";

/// What calls are counted under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The operation.
    pub(crate) name: &'static str,
    /// Inputs and outputs of a product's weight, heads and their size of attention.
    pub(crate) sizes: Option<(usize, usize)>,
    /// The arithmetic, which decides what peak it is held to.
    pub(crate) format: Format,
}

/// A call, or several of a kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    /// How many.
    pub(crate) calls: usize,
    /// Time.
    pub(crate) seconds: f64,
    /// Multiplications and additions.
    pub(crate) operations: usize,
    /// Bytes that are read and written if each operand is read once and each result written once.
    pub(crate) bytes: usize,
}

/// What was called so far.
pub(crate) type Log = Arc<Mutex<Vec<(Kind, Cost)>>>;

/// The operations with a clock.
pub(crate) struct Timed {
    operations: CpuOperations,
    log: Log,
}

impl Timed {
    /// Writes every call of an operation of a forward pass down in `log`.
    pub(crate) fn new(operations: CpuOperations, log: Log) -> Self {
        Self { operations, log }
    }

    fn time<R>(
        &mut self,
        kind: Kind,
        (operations, bytes): (usize, usize),
        call: impl FnOnce(&mut CpuOperations) -> R,
    ) -> R {
        let start = Instant::now();
        let result = call(&mut self.operations);
        let cost = Cost { calls: 1, seconds: start.elapsed().as_secs_f64(), operations, bytes };
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push((kind, cost));
        result
    }

    fn format(&self, precision: Precision) -> Format {
        self.operations.arithmetic.format(precision)
    }
}

/// What is not a product is computed in `f32`.
fn plain(name: &'static str) -> Kind {
    Kind { name, sizes: None, format: Format::F32 }
}

/// A product's kind, its operations and the bytes of its two operands.
fn product(name: &'static str, x: &PackedActivations, weight: &Matrix) -> (Kind, usize, usize) {
    let (depth, bytes) = weight.size();
    let (rows, outputs, format) = (x.operand.rows(), weight.outputs(), x.operand.format());
    let kind = Kind { name, sizes: Some((depth, outputs)), format };
    (kind, 2 * rows * depth * outputs, bytes + packed(format, rows, depth))
}

/// The bytes of packed rows.
fn packed(format: Format, rows: usize, depth: usize) -> usize {
    rows * format.words(depth) * size_of::<u32>()
}

fn bytes(x: &Activations) -> usize {
    x.values().len() * VALUE
}

impl Operations for Timed {
    type Tensor = Activations;
    type Operand = PackedActivations;
    type Table = MappedMatrix;
    type Matrix = Matrix;
    type GatedMatrix = Matrix;
    type Vector = Vec<f32>;
    type Rows<'a> = Rows<'a>;

    fn table(&self, values: MappedMatrix) -> Result<MappedMatrix> {
        self.operations.table(values)
    }

    fn matrix(&self, parts: Vec<MappedMatrix>, precision: Precision) -> Result<Matrix> {
        self.operations.matrix(parts, precision)
    }

    fn gated_matrix(&self, gate: MappedMatrix, up: MappedMatrix, precision: Precision) -> Result<Matrix> {
        self.operations.gated_matrix(gate, up, precision)
    }

    fn vector(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        self.operations.vector(values)
    }

    fn tensor(&mut self, values: &[f32], columns: usize) -> Result<Activations> {
        self.operations.tensor(values, columns)
    }

    fn values<'a>(&mut self, x: &'a Activations) -> Result<Cow<'a, [f32]>> {
        self.operations.values(x)
    }

    fn enter<R: Send>(&mut self, pass: impl FnOnce(&mut Self) -> R + Send) -> R {
        let compute = self.operations.compute.clone();
        compute.threads.enter(|| pass(self))
    }

    fn embed(&mut self, table: &MappedMatrix, ids: &[u32]) -> Result<Activations> {
        let stored = if table.stored() == Stored::F32 { VALUE } else { VALUE / 2 };
        let bytes = ids.len() * table.columns() * (stored + VALUE);
        self.time(plain("embedding"), (0, bytes), |operations| operations.embed(table, ids))
    }

    fn norm(&mut self, x: &Activations, norm: &Norm<Vec<f32>>) -> Result<Activations> {
        let cost = (NORM * x.values().len(), 2 * bytes(x));
        self.time(plain("norm"), cost, |operations| operations.norm(x, norm))
    }

    fn operand(&mut self, x: &Activations, precision: Precision) -> Result<PackedActivations> {
        let bytes = bytes(x) + packed(self.format(precision), x.rows(), x.columns);
        let (name, each) = if self.operations.arithmetic.spreads(precision) {
            ("spreading, conversion", 1 + elementwise::stages(x.columns) as usize)
        } else {
            ("conversion", 1)
        };
        let cost = (each * x.values().len(), bytes);
        self.time(plain(name), cost, |operations| operations.operand(x, precision))
    }

    fn norm_operand(
        &mut self,
        x: &Activations,
        norm: &Norm<Vec<f32>>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let bytes = bytes(x) + packed(self.format(precision), x.rows(), x.columns);
        let cost = (NORM * x.values().len(), bytes);
        self.time(plain("norm, conversion"), cost, |operations| operations.norm_operand(x, norm, precision))
    }

    fn linear(&mut self, x: &PackedActivations, weight: &Matrix) -> Result<Activations> {
        let (kind, operations, bytes) = product("product", x, weight);
        let out = x.operand.rows() * weight.outputs() * VALUE;
        self.time(kind, (operations, bytes + out), |operations| operations.linear(x, weight))
    }

    fn add_linear(&mut self, x: &PackedActivations, weight: &Matrix, sum: &mut Activations) -> Result<()> {
        let (kind, operations, bytes) = product("product, sum", x, weight);
        let out = 2 * x.operand.rows() * weight.outputs() * VALUE;
        self.time(kind, (operations, bytes + out), |operations| operations.add_linear(x, weight, sum))
    }

    fn swiglu(
        &mut self,
        x: &PackedActivations,
        gate_up: &Matrix,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let (kind, operations, bytes) = product("gated product", x, gate_up);
        let (rows, inner) = (x.operand.rows(), gate_up.outputs() / 2);
        if self.format(precision) == Format::Int8 {
            let cost = (operations, bytes + rows * inner * VALUE);
            let activated = self.time(kind, cost, |operations| operations.gated(x, gate_up));
            return self.operand(&activated, precision);
        }
        let out = packed(self.format(precision), rows, inner);
        self.time(kind, (operations, bytes + out), |operations| operations.swiglu(x, gate_up, precision))
    }

    fn rows<'a>(&mut self, rows: Rows<'a>) -> Result<Rows<'a>> {
        self.operations.rows(rows)
    }

    fn norm_and_rotate(
        &mut self,
        keys_values: &mut Activations,
        norm: &Norm<Vec<f32>>,
        rows: &Rows<'_>,
    ) -> Result<()> {
        let values = keys_values.rows() * rows.heads.keys * rows.heads.size;
        let cost = ((NORM + ROTATION) * values, 2 * values * VALUE);
        self.time(plain("norm and rotation of heads"), cost, |operations| {
            operations.norm_and_rotate(keys_values, norm, rows)
        })
    }

    fn append(&mut self, x: &mut Activations, rows: &[f32]) -> Result<()> {
        let bytes = 2 * rows.len() * VALUE;
        self.time(plain("kept rows"), (0, bytes), |operations| operations.append(x, rows))
    }

    fn keys_format(&self) -> Format {
        self.operations.keys_format()
    }

    fn attention(
        &mut self,
        (queries, norm): (&Activations, &Norm<Vec<f32>>),
        keys_values: &Activations,
        rows: &Rows<'_>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let seen: usize = rows.spans.iter().map(|span| seen_by(span, rows.batch)).sum();
        let kind = Kind {
            name: ATTENTION,
            sizes: Some((rows.heads.queries, rows.heads.size)),
            format: self.operations.arithmetic.attention,
        };
        // A query meets each key once and its value once. Its norm and its rotation are less than that of one key.
        let out = packed(self.format(precision), queries.rows(), queries.columns);
        let bytes = bytes(queries) + bytes(keys_values) + out;
        let cost = (4 * rows.heads.queries * rows.heads.size * seen, bytes);
        self.time(kind, cost, |operations| {
            operations.attention((queries, norm), keys_values, rows, precision)
        })
    }

    fn select(&mut self, x: &Activations, rows: &[usize]) -> Result<Activations> {
        let bytes = 2 * rows.len() * x.columns * VALUE;
        self.time(plain("selection of rows"), (0, bytes), |operations| operations.select(x, rows))
    }

    fn dot(&mut self, x: &Activations, vector: &Vec<f32>) -> Result<Vec<f32>> {
        let cost = (2 * x.values().len(), bytes(x));
        self.time(plain("head"), cost, |operations| operations.dot(x, vector))
    }
}

/// The keys that the queries of a span see, each query's counted.
fn seen_by(span: &QuerySpan, batch: &Batch) -> usize {
    let first = batch.segments()[span.segment].position + span.offset;
    (first..first + span.rows.len()).map(|position| position + 1).sum()
}
