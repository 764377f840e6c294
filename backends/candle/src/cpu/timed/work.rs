//! The least work of each call. It follows from the shapes, not from the implementation.

use super::{
    super::{Activations, Arithmetic, PackedActivations, table::EmbeddingTable},
    ATTENTION, CONVOLUTION, Call, CallCost, CallKind, DELTA_RULE,
};
use crate::{
    attention::{Mask, QuerySpan},
    kernels::{elementwise, epilogue::Epilogue, matrix::Matrix, pack::OperandFormat},
    operations::{Lookup, Precision, Rows},
    plan::DeltaSizes,
};
use text_embeddings_backend_core::Batch;

/// The bytes of an `f32`.
const VALUE: usize = size_of::<f32>();
/// The operations of a norm per value: square, sum, two factors, a conversion.
const NORM: usize = 5;
/// The operations of a rotation per value: two products and a sum.
const ROTATION: usize = 3;

impl Call {
    fn new(
        name: &'static str,
        sizes: Option<(usize, usize)>,
        format: OperandFormat,
        work: [usize; 2],
    ) -> Self {
        let [operations, bytes] = work;
        Self(
            CallKind { name, sizes, format },
            CallCost { calls: 1, operations, bytes, ..CallCost::default() },
        )
    }

    /// A call on `f32` values.
    fn plain(name: &'static str, operations: usize, bytes: usize) -> Self {
        Self::new(name, None, OperandFormat::F32, [operations, bytes])
    }

    pub(in crate::cpu) fn embedding(lookups: &[Lookup<'_, EmbeddingTable>], has_norm: bool) -> Self {
        let read: usize = lookups.iter().map(|Lookup { table, ids }| ids.len() * table.row_bytes()).sum();
        let written = lookups.first().map_or(0, |Lookup { table, ids }| ids.len() * table.columns());
        Self::plain("embedding", usize::from(has_norm) * NORM * written, read + VALUE * written)
    }

    /// A norm of `values` values.
    pub(in crate::cpu) fn norm(values: usize) -> Self {
        Self::plain("norm", NORM * values, 2 * values * VALUE)
    }

    /// A conversion to an operand.
    pub(in crate::cpu) fn conversion(x: &Activations, arithmetic: Arithmetic, precision: Precision) -> Self {
        let bytes = bytes(x) + packed(arithmetic.format(precision), x.rows(), x.columns);
        if !arithmetic.spreads(precision) {
            return Self::plain("conversion", count(x), bytes);
        }
        Self::plain("spreading, conversion", (1 + elementwise::stages(x.columns) as usize) * count(x), bytes)
    }

    /// A norm whose result becomes an operand in `format`. Each value of `x` is moved `times` times.
    pub(in crate::cpu) fn norm_conversion(x: &Activations, format: OperandFormat, times: usize) -> Self {
        let bytes = times * bytes(x) + packed(format, x.rows(), x.columns);
        Self::plain("norm, conversion", NORM * count(x), bytes)
    }

    /// A sum that takes `each` operations per value.
    fn sum_of(x: &Activations, each: usize) -> Self {
        Self::plain("sum", each * count(x), 3 * bytes(x))
    }

    pub(in crate::cpu) fn sum(x: &Activations, has_norm: bool) -> Self {
        Self::sum_of(x, 1 + usize::from(has_norm) * NORM)
    }

    pub(in crate::cpu) fn weighted_sum(x: &Activations) -> Self {
        Self::sum_of(x, 2)
    }

    /// A product that also reads or writes `out` bytes of results.
    fn product_to(name: &'static str, x: &PackedActivations, weight: &Matrix, out: usize) -> Self {
        let ((depth, read), outputs) = (weight.size(), weight.outputs());
        let (rows, format) = (x.operand.rows(), x.operand.format());
        let work = [2 * rows * depth * outputs, read + packed(format, rows, depth) + out];
        Self::new(name, Some((depth, outputs)), format, work)
    }

    /// A product whose results are moved `times` times.
    pub(in crate::cpu) fn product(
        name: &'static str,
        x: &PackedActivations,
        weight: &Matrix,
        times: usize,
    ) -> Self {
        Self::product_to(name, x, weight, times * x.operand.rows() * weight.outputs() * VALUE)
    }

    /// A product and its step. The result is an operand in `format`.
    pub(in crate::cpu) fn epilogue(
        epilogue: Epilogue,
        x: &PackedActivations,
        weight: &Matrix,
        format: OperandFormat,
    ) -> Self {
        let name = if let Epilogue::Gate(_) = epilogue { "gated product" } else { "activated product" };
        let (rows, inner) = (x.operand.rows(), epilogue.outputs(weight));
        Self::product_to(name, x, weight, packed(format, rows, inner))
    }

    /// The norm and the rotation of `values` values of heads.
    pub(in crate::cpu) fn turned(values: usize, has_norm: bool, has_angles: bool) -> Self {
        let each = usize::from(has_norm) * NORM + usize::from(has_angles) * ROTATION;
        Self::plain("norm and rotation of heads", each * values, 2 * values * VALUE)
    }

    /// A copy of `values` values.
    pub(in crate::cpu) fn copied(name: &'static str, values: usize) -> Self {
        Self::plain(name, 0, 2 * values * VALUE)
    }

    /// A gated delta rule: for each value of a state, two reads, a write and a decay; for each channel, the
    /// convolution.
    pub(in crate::cpu) fn delta_rule(channels: &Activations, sizes: DeltaSizes) -> Self {
        let state = sizes.value_heads * sizes.key_size * sizes.value_size;
        let each = 7 * state + 2 * sizes.taps * sizes.channel_count();
        Self::plain(
            DELTA_RULE,
            channels.rows() * each,
            bytes(channels) + 3 * channels.rows() * sizes.value_count() * VALUE,
        )
    }

    /// A gated convolution: the input's gate, `taps` multiplications and additions, and the result's gate.
    pub(in crate::cpu) fn short_convolution(values: &Activations, taps: usize) -> Self {
        let rows = values.rows();
        Self::plain(CONVOLUTION, rows * (2 * taps + values.columns), 2 * bytes(values))
    }

    /// Each query reads every key and value that it sees once. Its norm and its rotation cost less than one
    /// key.
    pub(in crate::cpu) fn attention(
        queries: &Activations,
        keys_values: &Activations,
        rows: &Rows<'_>,
        arithmetic: Arithmetic,
        precision: Precision,
    ) -> Self {
        let (heads, size) = (rows.heads.queries, rows.heads.size);
        let seen: usize = rows.spans.iter().map(|span| seen_by(span, rows.batch, rows.scoring.mask)).sum();
        let out = packed(arithmetic.format(precision), queries.rows(), queries.columns);
        let work = [4 * heads * size * seen, bytes(queries) + bytes(keys_values) + out];
        Self::new(ATTENTION, Some((heads, size)), arithmetic.attention, work)
    }
}

/// The bytes of packed rows.
fn packed(format: OperandFormat, rows: usize, depth: usize) -> usize {
    rows * format.words(depth) * size_of::<u32>()
}

/// The number of values.
fn count(x: &Activations) -> usize {
    x.values().len()
}

fn bytes(x: &Activations) -> usize {
    count(x) * VALUE
}

/// The number of keys that the queries of a span see, added up over the queries.
fn seen_by(span: &QuerySpan, batch: &Batch, mask: Mask) -> usize {
    let segment = &batch.segments()[span.segment];
    let (first, tokens) = (segment.position + span.offset, batch.attended_tokens(span.segment));
    (first..first + span.rows.len()).map(|position| mask.visible(position, 0, tokens).len()).sum()
}
