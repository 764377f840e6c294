//! A gated delta rule: its weights, the way through a batch's forest, and a plain form for every device.
//!
//! For each value head, a matrix `S` `[key size, value size]` takes the place of keys and values. With a
//! token's query q, key k and value v (channels after a causal convolution and `SiLU`; q and k of length
//! one, q divided by the root of the key size), its strength β and its decay
//! α = exp(−exp(A)·softplus(a + bias)):
//!
//! ```text
//! S ← α·S     u = β·(v − Sᵀk)     S ← S + k·uᵀ     o = Sᵀq     result = norm(o) ∘ SiLU(gate)
//! ```
//!
//! What must hold: all of this is `f32` in every arithmetic; a text begins with `S` = 0 and with zeros before
//! its first token; a segment begins with its parent's end. Steps are taken token by token, so that values
//! are the same wherever a segment or a run ends.

mod walk;

use crate::plan::DeltaSizes;
use std::ops::Range;
use text_embeddings_backend_core::Activation;
use text_embeddings_backend_host::apply_activation;
pub(crate) use walk::{RowRun, SegmentRows, Tree, Walk};

/// Added to the sum of squares of a query and of a key.
pub(crate) const UNIT_EPSILON: f32 = 1e-6;

/// The small weights of a gated delta rule, in main memory.
pub(crate) struct DeltaRule {
    pub(crate) sizes: DeltaSizes,
    /// For each value head, the convolution of its queries, keys and values, `[taps, width]`. The last tap is
    /// the token's own.
    pub(crate) taps: Vec<Vec<f32>>,
    /// For each value head, −exp(A).
    pub(crate) decays: Vec<f32>,
    /// For each value head, the addend of the product for the decay.
    pub(crate) decay_bias: Vec<f32>,
    /// The norm of each head's result.
    pub(crate) norm: Vec<f32>,
    /// Added to the mean square of a head's result.
    pub(crate) epsilon: f32,
}

impl DeltaRule {
    /// The number of channels of a value head: its query's, its key's and its value's.
    pub(crate) fn head_width(&self) -> usize {
        2 * self.sizes.key_size + self.sizes.value_size
    }

    /// A head's strength and decay from the products of a row, `[2 · value heads]`.
    pub(crate) fn head_rates(&self, head: usize, products: &[f32]) -> [f32; 2] {
        let strength = apply_activation(Activation::Sigmoid, products[head]);
        let input = products[self.sizes.value_heads + head] + self.decay_bias[head];
        // Above 20, the logarithm adds less than `f32` holds.
        let softplus = if input > 20.0 { input } else { input.exp().ln_1p() };
        [strength, (self.decays[head] * softplus).exp()]
    }

    /// A head's channels of a row, `[channels]`.
    pub(crate) fn head_channels(&self, head: usize, row: &[f32], out: &mut [f32]) {
        let mut rest = out;
        for (first, count) in self.sizes.head_slices(head) {
            let (slice, after) = rest.split_at_mut(count);
            slice.copy_from_slice(&row[first..][..count]);
            rest = after;
        }
    }
}

/// The results of a batch, and states to keep.
pub(crate) struct Recurred {
    /// `[rows, value heads · value size]`, before norm and gate.
    pub(crate) results: Vec<f32>,
    pub(crate) kept: Vec<Vec<f32>>,
}

/// The number of values of a state in the plain form.
pub(crate) fn state_values(sizes: DeltaSizes) -> usize {
    let DeltaSizes { key_size, value_size, taps, value_heads, .. } = sizes;
    value_heads * (key_size * value_size + (taps - 1) * (2 * key_size + value_size))
}

/// The states of one head before its results: of the texts' beginnings, and those that earlier batches kept.
struct HeadStates<'a> {
    /// The head's place in a state.
    place: Range<usize>,
    known: &'a [&'a [f32]],
}

impl HeadStates<'_> {
    /// The state of a text's beginning, or the known state of this index.
    fn state_at(&self, known: Option<usize>) -> Vec<f32> {
        known.map_or_else(
            || vec![0.0; self.place.len()],
            |index| self.known[index][self.place.clone()].to_vec(),
        )
    }
}

/// Takes the steps of all texts, token by token. `channels` `[rows, channels]` and `rates` `[rows, 2 · value
/// heads]` are products of the computed rows; `known` are states that earlier batches kept.
pub(crate) fn plain_results(
    rule: &DeltaRule,
    channels: &[f32],
    rates: &[f32],
    walk: &Walk,
    known: &[&[f32]],
) -> Recurred {
    let DeltaSizes { value_heads: heads, value_size, .. } = rule.sizes;
    let of_head = state_values(rule.sizes) / heads;
    let rows = rates.len() / (2 * heads);
    let mut results = vec![0.0; rows * rule.sizes.value_count()];
    let mut kept = vec![vec![0.0; heads * of_head]; walk.kept];
    for head in 0..heads {
        let states = HeadStates { place: head * of_head..(head + 1) * of_head, known };
        for tree in &walk.trees {
            tree.follow_runs(
                |known| states.state_at(known),
                |run, state: &mut Vec<f32>| {
                    for row in run.rows.clone() {
                        let channels = &channels[row * rule.sizes.channel_count()..];
                        let rates = rule.head_rates(head, &rates[row * 2 * heads..][..2 * heads]);
                        let result = take_step(rule, head, channels, rates, state);
                        results[(row * heads + head) * value_size..][..value_size].copy_from_slice(&result);
                    }
                    if let Some(index) = run.keeps {
                        kept[index][states.place.clone()].copy_from_slice(state);
                    }
                },
            );
        }
    }
    Recurred { results, kept }
}

/// One token of one head. A state is `S`, row after row, and then the channels of the tokens before, the
/// oldest first. Returns the result.
fn take_step(
    rule: &DeltaRule,
    head: usize,
    channels: &[f32],
    [strength, decay]: [f32; 2],
    state: &mut [f32],
) -> Vec<f32> {
    let DeltaSizes { key_size, value_size, .. } = rule.sizes;
    let (matrix, before) = state.split_at_mut(key_size * value_size);
    let width = rule.head_width();
    let mut own = vec![0.0; width];
    rule.head_channels(head, channels, &mut own);
    let window = [&*before, &own].concat(); // [taps, width]
    before.copy_from_slice(&window[width..]);
    let mut mixed = vec![0.0; width];
    for (row, taps) in window.chunks_exact(width).zip(rule.taps[head].chunks_exact(width)) {
        mixed.iter_mut().zip(row).zip(taps).for_each(|((sum, value), tap)| *sum += value * tap);
    }
    for value in &mut mixed {
        *value = apply_activation(Activation::Silu, *value);
    }
    let (query, key) = (unit_row(&mixed[..key_size]), unit_row(&mixed[key_size..2 * key_size]));
    for value in &mut *matrix {
        *value *= decay;
    }
    let mut result = vec![0.0; value_size];
    for (column, (result, value)) in result.iter_mut().zip(&mixed[2 * key_size..]).enumerate() {
        let rows = matrix.chunks_exact(value_size).zip(&key);
        let read: f32 = rows.map(|(row, key)| row[column] * key).sum();
        let written = strength * (value - read);
        for ((row, key), query) in matrix.chunks_exact_mut(value_size).zip(&key).zip(&query) {
            row[column] += key * written;
            *result += row[column] * query / (key_size as f32).sqrt();
        }
    }
    result
}

/// A row of length one.
fn unit_row(x: &[f32]) -> Vec<f32> {
    let squares: f32 = x.iter().map(|value| value * value).sum();
    x.iter().map(|value| value / (squares + UNIT_EPSILON).sqrt()).collect()
}

/// The norm of each head's result, times the `SiLU` of its gate: `[rows, values]`. `rows` are the rows of
/// `results` that the rows of `gate` belong to.
pub(crate) fn gated_norm(rule: &DeltaRule, results: &[f32], rows: &[usize], gate: &[f32]) -> Vec<f32> {
    let (size, width) = (rule.sizes.value_size, rule.sizes.value_count());
    let mut out = Vec::with_capacity(gate.len());
    for (&row, gate) in rows.iter().zip(gate.chunks_exact(width)) {
        let heads = results[row * width..][..width].chunks_exact(size).zip(gate.chunks_exact(size));
        for (result, gate) in heads {
            let squares: f32 = result.iter().map(|value| value * value).sum();
            let scale = 1.0 / (squares / size as f32 + rule.epsilon).sqrt();
            let gated = result.iter().zip(&rule.norm).zip(gate);
            out.extend(gated.map(|((value, weight), &gate)| {
                value * scale * weight * apply_activation(Activation::Silu, gate)
            }));
        }
    }
    out
}
