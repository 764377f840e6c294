//! A gated delta rule: its weights, the way through a batch's forest, and a plain form of it for every device.
//!
//! For each value head, a matrix `S` `[key size, value size]` takes the place of keys and values. With a
//! token's query q, key k and value v (channels after a causal convolution and SiLU; q and k of length one, q
//! divided by the root of the key size), its strength β and its decay α = exp(−exp(A)·softplus(a + bias)):
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
use text_embeddings_backend_core::Activation;
use text_embeddings_backend_host::apply_activation;
pub(crate) use walk::{Run, Stretch, Tree, Walk};

/// Added to the sum of squares of a query and of a key.
pub(crate) const UNIT_EPSILON: f32 = 1e-6;

/// The small weights of a gated delta rule, in main memory.
pub(crate) struct DeltaRule {
    /// The sizes.
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
    pub(crate) fn width(&self) -> usize {
        2 * self.sizes.key_size + self.sizes.value_size
    }

    /// A head's strength and decay from the products of a row, `[2 · value heads]`.
    pub(crate) fn rates(&self, head: usize, products: &[f32]) -> [f32; 2] {
        let strength = apply_activation(Activation::Sigmoid, products[head]);
        let input = products[self.sizes.value_heads + head] + self.decay_bias[head];
        // Above 20, the logarithm adds less than `f32` holds.
        let softplus = if input > 20.0 { input } else { input.exp().ln_1p() };
        [strength, (self.decays[head] * softplus).exp()]
    }

    /// A head's channels of a row, `[channels]`.
    pub(crate) fn head_channels(&self, head: usize, row: &[f32], out: &mut [f32]) {
        let mut rest = out;
        for (first, count) in self.sizes.slices(head) {
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
    /// The states that the walk keeps.
    pub(crate) kept: Vec<Vec<f32>>,
}

/// The number of values of a state in the plain form.
pub(crate) fn state_values(sizes: DeltaSizes) -> usize {
    let DeltaSizes { key_size, value_size, taps, value_heads, .. } = sizes;
    value_heads * (key_size * value_size + (taps - 1) * (2 * key_size + value_size))
}

/// Takes the steps of all texts, token by token. `channels` `[rows, channels]` and `rates` `[rows, 2 · value
/// heads]` are products of the computed rows; `known` are states that earlier batches kept.
pub(crate) fn recur(
    rule: &DeltaRule,
    channels: &[f32],
    rates: &[f32],
    walk: &Walk,
    known: &[&[f32]],
) -> Recurred {
    let DeltaSizes { value_heads: heads, value_size, .. } = rule.sizes;
    let of_head = state_values(rule.sizes) / heads;
    let rows = rates.len() / (2 * heads);
    let mut results = vec![0.0; rows * rule.sizes.values()];
    let mut kept = vec![vec![0.0; heads * of_head]; walk.kept];
    for head in 0..heads {
        let place = head * of_head..(head + 1) * of_head;
        let start = |known_state: Option<usize>| match known_state {
            Some(index) => known[index][place.clone()].to_vec(),
            None => vec![0.0; of_head],
        };
        for tree in &walk.trees {
            tree.follow(start, |run, state: &mut Vec<f32>| {
                for row in run.rows.clone() {
                    let channels = &channels[row * rule.sizes.channels()..][..rule.sizes.channels()];
                    let rates = rule.rates(head, &rates[row * 2 * heads..][..2 * heads]);
                    let out = &mut results[(row * heads + head) * value_size..][..value_size];
                    step(rule, head, channels, rates, (state, out));
                }
                if let Some(index) = run.keeps {
                    kept[index][place.clone()].copy_from_slice(state);
                }
            });
        }
    }
    Recurred { results, kept }
}

/// One token of one head. A state is `S`, row after row, and then the channels of the tokens before, the
/// oldest first.
fn step(
    rule: &DeltaRule,
    head: usize,
    channels: &[f32],
    [strength, decay]: [f32; 2],
    (state, out): (&mut [f32], &mut [f32]),
) {
    let DeltaSizes { key_size, value_size, .. } = rule.sizes;
    let (matrix, before) = state.split_at_mut(key_size * value_size);
    let width = rule.width();
    let mut own = vec![0.0; width];
    rule.head_channels(head, channels, &mut own);
    let window = [&*before, &own].concat(); // [taps, width]
    before.copy_from_slice(&window[width..]);
    let mixed = |channel: usize| {
        let products = window.chunks_exact(width).zip(rule.taps[head].chunks_exact(width));
        let sum = products.map(|(row, weights)| row[channel] * weights[channel]).sum();
        apply_activation(Activation::Silu, sum)
    };
    let mixed: Vec<f32> = (0..width).map(mixed).collect();
    let (query, rest) = mixed.split_at(key_size);
    let (key, value) = rest.split_at(key_size);
    let unit = |x: &[f32]| -> Vec<f32> {
        let squares: f32 = x.iter().map(|value| value * value).sum();
        x.iter().map(|value| value / (squares + UNIT_EPSILON).sqrt()).collect()
    };
    let (query, key) = (unit(query), unit(key));
    for value in &mut *matrix {
        *value *= decay;
    }
    for column in 0..value_size {
        let at = |row: usize| row * value_size + column;
        let read: f32 = (0..key_size).map(|row| matrix[at(row)] * key[row]).sum();
        let written = strength * (value[column] - read);
        for row in 0..key_size {
            matrix[at(row)] += key[row] * written;
        }
        let result: f32 = (0..key_size).map(|row| matrix[at(row)] * query[row]).sum();
        out[column] = result / (key_size as f32).sqrt();
    }
}

/// The norm of each head's result, times the SiLU of its gate: `[rows, values]`. `rows` are the rows of
/// `results` that the rows of `gate` belong to.
pub(crate) fn gated_norm(rule: &DeltaRule, results: &[f32], rows: &[usize], gate: &[f32]) -> Vec<f32> {
    let (size, width) = (rule.sizes.value_size, rule.sizes.values());
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
