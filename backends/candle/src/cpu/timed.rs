//! The CPU's operations with a clock beside them, for `benchmarks::roofline`.
//!
//! Input: calls, passed on as they are. Output: for each call what it was, how long it took, and what it had
//! to do at least. What must hold: nothing of this is in a build without the feature `benchmarks`, tests
//! aside; what a call has to do is counted from its shapes, not from how it is done.

use super::{Activations, CpuOperations, PackedActivations, table::Table};
use crate::{
    attention::{Mask, QuerySpan},
    kept::HostValues,
    kernels::{elementwise, matrix::Matrix, pack::Format, step::Step},
    load::Weight,
    operations::{Attention, Norm, Operations, Part, Precision, Result, Rows},
};
use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};
use text_embeddings_backend_core::{Activation, Batch};

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

impl Timed {
    /// A product with a step after it, for the next product.
    fn after(
        &mut self,
        x: &PackedActivations,
        weight: &Matrix,
        step: Step,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let name = if let Step::Gate(_) = step { "gated product" } else { "activated product" };
        let (kind, operations, bytes) = product(name, x, weight);
        let (rows, inner) = (x.operand.rows(), step.outputs(weight));
        if self.format(precision) == Format::Int8 {
            let cost = (operations, bytes + rows * inner * VALUE);
            let values = self.time(kind, cost, |operations| operations.after_values(x, weight, step));
            return self.operand(&values, precision);
        }
        let out = packed(self.format(precision), rows, inner);
        self.time(kind, (operations, bytes + out), |operations| operations.after(x, weight, step, precision))
    }
}

impl Operations for Timed {
    type Tensor = Activations;
    type Operand = PackedActivations;
    type Table = Table;
    type Matrix = Matrix;
    type GatedMatrix = Matrix;
    type Vector = Vec<f32>;
    type Rows<'a> = Rows<'a>;
    type Kept = HostValues;

    fn table(&self, values: Weight) -> Result<Table> {
        self.operations.table(values)
    }

    fn matrix(&self, parts: Vec<Part>, precision: Precision) -> Result<Matrix> {
        self.operations.matrix(parts, precision)
    }

    fn gated_matrix(&self, gate: Part, up: Part, precision: Precision) -> Result<Matrix> {
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

    fn embed(
        &mut self,
        lookups: &[(&Table, &[u32])],
        scale: f32,
        norm: Option<&Norm<Vec<f32>>>,
    ) -> Result<Activations> {
        let read = |(table, ids): &(&Table, &[u32])| ids.len() * table.row_bytes();
        let written = lookups.first().map_or(0, |(table, ids)| ids.len() * table.columns());
        let cost = (
            if norm.is_some() { NORM * written } else { 0 },
            lookups.iter().map(read).sum::<usize>() + VALUE * written,
        );
        self.time(plain("embedding"), cost, |operations| operations.embed(lookups, scale, norm))
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

    fn norm_in_place(
        &mut self,
        x: &mut Activations,
        norm: &Norm<Vec<f32>>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let bytes = 2 * bytes(x) + packed(self.format(precision), x.rows(), x.columns);
        let cost = (NORM * x.values().len(), bytes);
        self.time(plain("norm, conversion"), cost, |operations| operations.norm_in_place(x, norm, precision))
    }

    fn norm_columns(&mut self, x: &mut Activations, norm: &Norm<Vec<f32>>) -> Result<()> {
        let values = x.rows() * norm.weight.len();
        self.time(plain("norm"), (NORM * values, 2 * values * VALUE), |operations| {
            operations.norm_columns(x, norm)
        })
    }

    fn add(&mut self, x: &Activations, norm: Option<&Norm<Vec<f32>>>, sum: &mut Activations) -> Result<()> {
        let each = 1 + norm.map_or(0, |_| NORM);
        let cost = (each * x.values().len(), 3 * bytes(x));
        self.time(plain("sum"), cost, |operations| operations.add(x, norm, sum))
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

    fn activated(
        &mut self,
        x: &PackedActivations,
        weight: &Matrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<PackedActivations> {
        self.after(x, weight, Step::Activate(activation), precision)
    }

    fn gated(
        &mut self,
        x: &PackedActivations,
        gate_up: &Matrix,
        activation: Activation,
        precision: Precision,
    ) -> Result<PackedActivations> {
        self.after(x, gate_up, Step::Gate(activation), precision)
    }

    fn rows<'a>(&mut self, rows: Rows<'a>) -> Result<Rows<'a>> {
        self.operations.rows(rows)
    }

    fn turn_keys(
        &mut self,
        keys_values: &mut Activations,
        norm: Option<&Norm<Vec<f32>>>,
        rows: &Rows<'_>,
    ) -> Result<()> {
        let values = keys_values.rows() * rows.heads.keys * rows.heads.size;
        let each = norm.map_or(0, |_| NORM) + rows.angles.map_or(0, |_| ROTATION);
        if each == 0 {
            return Ok(());
        }
        self.time(plain("norm and rotation of heads"), (each * values, 2 * values * VALUE), |operations| {
            operations.turn_keys(keys_values, norm, rows)
        })
    }

    fn keep(&mut self, x: &Activations, rows: &[usize]) -> Result<HostValues> {
        let bytes = 2 * rows.len() * x.columns * VALUE;
        self.time(plain("kept rows"), (0, bytes), |operations| operations.keep(x, rows))
    }

    fn append(&mut self, x: &mut Activations, rows: &[(&HostValues, usize)]) -> Result<()> {
        let bytes = 2 * rows.len() * x.columns * VALUE;
        self.time(plain("kept rows"), (0, bytes), |operations| operations.append(x, rows))
    }

    fn kept_bytes(&self) -> usize {
        self.operations.kept_bytes()
    }

    fn attention(
        &mut self,
        Attention { queries, query_norm, keys_values, .. }: Attention<'_, Self>,
        rows: &Rows<'_>,
        precision: Precision,
    ) -> Result<PackedActivations> {
        let seen: usize = rows.spans.iter().map(|span| seen_by(span, rows.batch, rows.scoring.mask)).sum();
        let kind = Kind {
            name: ATTENTION,
            sizes: Some((rows.heads.queries, rows.heads.size)),
            format: self.operations.arithmetic.attention,
        };
        // A query meets each key once and its value once. Its norm and its rotation are less than that of one
        // key.
        let out = packed(self.format(precision), queries.rows(), queries.columns);
        let bytes = bytes(queries) + bytes(keys_values) + out;
        let cost = (4 * rows.heads.queries * rows.heads.size * seen, bytes);
        // The scores of DeBERTa are not measured: the roofline is of models without them.
        let attention = Attention { queries, query_norm, keys_values, disentangled: None };
        self.time(kind, cost, |operations| operations.attention(attention, rows, precision))
    }

    fn copy(&mut self, x: &Activations) -> Result<Activations> {
        self.operations.copy(x)
    }

    fn select(&mut self, x: &Activations, rows: &[usize]) -> Result<Activations> {
        let bytes = 2 * rows.len() * x.columns * VALUE;
        self.time(plain("selection of rows"), (0, bytes), |operations| operations.select(x, rows))
    }

    fn add_rows(
        &mut self,
        x: &Activations,
        rows: &[usize],
        factors: &[f32],
        sum: &mut Activations,
    ) -> Result<()> {
        let cost = (2 * x.values().len(), 3 * bytes(x));
        self.time(plain("sum"), cost, |operations| operations.add_rows(x, rows, factors, sum))
    }
}

/// The keys that the queries of a span see, each query's counted.
fn seen_by(span: &QuerySpan, batch: &Batch, mask: Mask) -> usize {
    let segment = &batch.segments()[span.segment];
    let (first, tokens) = (segment.position + span.offset, segment.position + segment.rows.len());
    (first..first + span.rows.len()).map(|position| mask.visible(position, 0, tokens).len()).sum()
}
