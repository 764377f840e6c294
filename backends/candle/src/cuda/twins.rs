//! The kernels of `kernels.cu` in plain Rust, as the reference for the kernels' tests.
//!
//! Input: slices of `f32` in row-major order. A value that the kernel reads as bfloat16 or half precision is
//! already rounded to that type. Output: slices of `f32`. If the kernel stores `T`, the twin takes a
//! [`Round`] to `T`. What must hold: each stored value is rounded once; sums are `f64`, so that a twin is at
//! least as exact as its kernel.

use crate::{
    operations::{Lookup, Norm},
    plan::NormKind,
};
use candle_core::cpu::erf::erf_f64;
use half::{bf16, f16};
use text_embeddings_backend_core::Activation;

/// Rounds to the type that the kernel stores: [`to_bf16`], [`to_f16`] or [`to_f32`].
pub(crate) type Round = fn(f32) -> f32;

/// A norm whose weights are in main memory, one value per column.
pub(crate) type HostNorm<'a> = Norm<&'a [f32]>;

/// To the nearest bfloat16, ties to even.
pub(crate) fn to_bf16(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// To the nearest half-precision value, ties to even.
pub(crate) fn to_f16(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

/// Leaves a value unrounded.
pub(crate) fn to_f32(value: f32) -> f32 {
    value
}

/// `activation(x)`, computed in `f64`.
fn activated(x: f32, activation: Activation) -> f64 {
    let x = f64::from(x);
    match activation {
        Activation::Identity => x,
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf_f64(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

/// The mean square of a row.
fn mean_square(row: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = row.len() as f64;
    row.map(|value| value * value).sum::<f64>() / count
}

/// The norm of one row, unrounded.
fn normed_row(row: &[f32], norm: &HostNorm<'_>) -> Vec<f32> {
    let mean = match norm.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => row.iter().copied().map(f64::from).sum::<f64>() / row.len() as f64,
    };
    let spread = mean_square(row.iter().map(|&value| f64::from(value) - mean)) + f64::from(norm.epsilon);
    row.iter()
        .enumerate()
        .map(|(column, &value)| {
            let scaled = (f64::from(value) - mean) / spread.sqrt() * f64::from(norm.weight[column]);
            (scaled + norm.bias.map_or(0.0, |bias| f64::from(bias[column]))) as f32
        })
        .collect()
}

/// `norm_T`: the norm of each row of `x`, `[rows, columns]`; without a norm, the values themselves. The
/// kernel's `in_place` is the same with [`to_f32`].
pub(crate) fn norm(x: &[f32], columns: usize, norm: Option<&HostNorm<'_>>, round: Round) -> Vec<f32> {
    let Some(norm) = norm else {
        return x.iter().copied().map(round).collect();
    };
    x.chunks_exact(columns).flat_map(|row| normed_row(row, norm)).map(round).collect()
}

/// `add_norm_T`, `add_norm_f32`: adds the norm of each row of `x`, `[rows, columns]`, to `sum`, which stays
/// `f32`.
pub(crate) fn add_norm(x: &[f32], columns: usize, norm: Option<&HostNorm<'_>>, sum: &mut [f32]) {
    for (sum, value) in sum.iter_mut().zip(self::norm(x, columns, norm, to_f32)) {
        *sum += value;
    }
}

/// `norm_columns_T`: replaces the first columns of each row of `x`, `[rows, stride]`, by their norm. The
/// length of the norm's weight is the number of columns.
pub(crate) fn norm_columns(x: &mut [f32], stride: usize, norm: &HostNorm<'_>, round: Round) {
    for row in x.chunks_exact_mut(stride) {
        let first = &mut row[..norm.weight.len()];
        let normed = normed_row(first, norm);
        first.iter_mut().zip(normed).for_each(|(old, new)| *old = round(new));
    }
}

/// The heads that [`turn_heads`] normalises and rotates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnedHeads {
    /// The number of heads at the beginning of each row.
    pub(crate) heads: usize,
    /// The columns of a head, an even number.
    pub(crate) size: usize,
    /// The columns of a row, at least `heads · size`.
    pub(crate) stride: usize,
}

/// The angles of [`turn_heads`]'s rotations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turns<'a> {
    /// `[angles, size / 2]`
    pub(crate) cosines: &'a [f32],
    /// `[angles, size / 2]`
    pub(crate) sines: &'a [f32],
    /// For each row, the index of its angles.
    pub(crate) of_rows: &'a [u32],
}

/// `turn_heads_T`: takes the first heads of each row of `x`, `[rows, stride]`. Each head gets its
/// root-mean-square norm (weight `[size]`; absent: no norm), and is then rotated by the row's angles (absent:
/// no rotation). A head's halves `(a, b)` become `(a cos - b sin, b cos + a sin)`. The heads are written to
/// the same places of `out`, whose other columns stay as they are.
pub(crate) fn turn_heads(
    x: &[f32],
    out: &mut [f32],
    shape: TurnedHeads,
    norm: Option<&HostNorm<'_>>,
    turns: Option<Turns<'_>>,
    round: Round,
) {
    let TurnedHeads { heads, size, stride } = shape;
    let half = size / 2;
    let rows = x.chunks_exact(stride).zip(out.chunks_exact_mut(stride));
    for (row, (x, out)) in rows.enumerate() {
        let angle = |pair: usize| {
            turns.map_or((1.0, 0.0), |Turns { cosines, sines, of_rows }| {
                let at = of_rows[row] as usize * half + pair;
                (cosines[at], sines[at])
            })
        };
        let heads = x[..heads * size].chunks_exact(size).zip(out.chunks_exact_mut(size));
        for (head, out) in heads {
            let normed = norm.map_or_else(|| head.to_vec(), |norm| normed_row(head, norm));
            for pair in 0..half {
                let (a, b) = (normed[pair], normed[half + pair]);
                let (cosine, sine) = angle(pair);
                out[pair] = round(a * cosine - b * sine);
                out[half + pair] = round(b * cosine + a * sine);
            }
        }
    }
}

/// `activate_T`: `activation(x + bias)` for `x`, `[rows, columns]`, and the bias of each column.
pub(crate) fn activate(
    x: &[f32],
    columns: usize,
    bias: Option<&[f32]>,
    activation: Activation,
    round: Round,
) -> Vec<f32> {
    x.iter()
        .enumerate()
        .map(|(at, &x)| {
            let bias = bias.map_or(0.0, |bias| bias[at % columns]);
            round(activated(x + bias, activation) as f32)
        })
        .collect()
}

/// `gate_T`: `activation(gate + bias[..inner]) * (up + bias[inner..])`, `[rows, inner]`. Each row of `x`,
/// `[rows, 2 · inner]`, has its gate before its `up`.
pub(crate) fn gate(
    x: &[f32],
    inner: usize,
    bias: Option<&[f32]>,
    activation: Activation,
    round: Round,
) -> Vec<f32> {
    let bias = |column: usize| bias.map_or(0.0, |bias| bias[column]);
    let row = |row: &[f32]| -> Vec<f32> {
        (0..inner)
            .map(|column| {
                let gate = activated(row[column] + bias(column), activation) as f32;
                round(gate * (row[inner + column] + bias(inner + column)))
            })
            .collect()
    };
    x.chunks_exact(2 * inner).flat_map(row).collect()
}

/// `add_bias_T`, `add_bias_f32`: adds the bias of each column to `x`, `[rows, columns]`, in place.
pub(crate) fn add_bias(x: &mut [f32], bias: &[f32], round: Round) {
    for row in x.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(value, bias)| *value = round(*value + bias));
    }
}

/// `embed_E`: for each row, the sum of one row of each table (`[ids, columns]`, chosen by the row's id),
/// times `scale`, then the norm, in `f32`. The kernel takes one to three lookups, each with an id for every
/// row.
pub(crate) fn embed(
    lookups: &[Lookup<'_, [f32]>],
    columns: usize,
    scale: f32,
    norm: Option<&HostNorm<'_>>,
) -> Vec<f32> {
    let rows = lookups.first().map_or(0, |lookup| lookup.ids.len());
    let mut sums = vec![0.0; rows * columns];
    for Lookup { table, ids } in lookups {
        for (sum, &id) in sums.chunks_exact_mut(columns).zip(*ids) {
            let vector = &table[id as usize * columns..][..columns];
            sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value);
        }
    }
    for sum in &mut sums {
        *sum *= scale;
    }
    self::norm(&sums, columns, norm, to_f32)
}

/// `gather_rows`: row `rows[i]` of `x`, `[…, columns]`, becomes row `i`.
pub(crate) fn gather_rows<V: Copy>(x: &[V], columns: usize, rows: &[u32]) -> Vec<V> {
    rows.iter().flat_map(|&row| &x[row as usize * columns..][..columns]).copied().collect()
}

/// `copy_layers`: the rows of each layer, `[…, columns]`.
pub(crate) fn copy_layers<V: Copy>(layers: &[Vec<V>], columns: usize, rows: &[u32]) -> Vec<V> {
    layers.iter().flat_map(|layer| gather_rows(layer, columns, rows)).collect()
}

/// `mean_rows`: for each text, the mean of the rows of `x`, `[…, columns]`, that
/// `rows[starts[text]..starts[text + 1]]` names. `starts` has one more element than there are texts. The mean
/// of no rows is zero.
pub(crate) fn mean_rows(x: &[f32], columns: usize, starts: &[u32], rows: &[u32]) -> Vec<f32> {
    let mut out = Vec::with_capacity((starts.len() - 1) * columns);
    for bounds in starts.windows(2) {
        let rows = &rows[bounds[0] as usize..bounds[1] as usize];
        out.extend((0..columns).map(|column| {
            let sum: f64 = rows.iter().map(|&row| f64::from(x[row as usize * columns + column])).sum();
            (sum / rows.len().max(1) as f64) as f32
        }));
    }
    out
}

/// `not_finite_T`: whether a value is infinite or NaN.
pub(crate) fn not_finite(x: &[f32]) -> bool {
    x.iter().any(|value| !value.is_finite())
}
