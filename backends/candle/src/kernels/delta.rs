//! The steps of a gated delta rule (`crate::delta` has the formulas).
//!
//! A step reads the state with the key and with the query, and writes it. The columns of a state are
//! independent. So a few columns of all rows are a block that stays in the nearest cache while many tokens
//! pass. A step's write is delayed until the next token reads the same values: each value of the state is
//! loaded and stored once for each token. What must hold: the bits do not depend on the number of tokens in a
//! call.

use super::{
    activation::silu,
    elementwise::sum_of,
    instruction_set::InstructionSet,
    simd::{dispatch, mul_add},
};

/// The most registers of a block's row.
const MAX_REGISTERS: usize = 4;

/// The registers of a block's row. Two keep both units for products busy: each waits for two sums of four
/// steps. AVX-512 has names for twice as many, which halves the loads of keys and queries.
const fn row_registers(wide: bool) -> usize {
    if wide { MAX_REGISTERS } else { 2 }
}

dispatch! {
    fn read_width(width: &mut usize) {
        *width = row_registers(WIDE) * S::LANES;
    }
}

/// The number of columns of a block.
pub(crate) fn block_columns(set: InstructionSet) -> usize {
    let mut width = 0;
    read_width(set, &mut width);
    width
}

/// Consecutive tokens of one head.
#[derive(Clone, Copy)]
pub(crate) struct DeltaTokens<'a> {
    /// Values per query and per key.
    pub(crate) size: usize,
    /// `[tokens, size]`
    pub(crate) queries: &'a [f32],
    /// `[tokens, size]`
    pub(crate) keys: &'a [f32],
    /// The tokens' strengths, decays, and products of query and key.
    pub(crate) rates: &'a [[f32; 3]],
}

dispatch! {
    /// Takes the steps of `tokens` in a block of the state, `[size, columns]`. `values`, `[tokens, columns]`,
    /// become the results.
    fn delta_steps(state: &mut [f32], tokens: DeltaTokens<'_>, values: &mut [f32]) {
        let DeltaTokens { size, queries, keys, rates } = tokens;
        let (count, lanes) = (row_registers(WIDE), S::LANES);
        let width = count * lanes;
        assert!(state.len() == size * width && values.len() == rates.len() * width);
        assert!(queries.len() == rates.len() * size && keys.len() == rates.len() * size);
        // SAFETY: `dispatch` chooses registers of an instruction set that this CPU has. The lengths above
        // hold every row of `size` or `width` values that is read or written below.
        unsafe {
            let zero = S::splat(0.0);
            // The write that the state still lacks: S ← decay · S + before · writtenᵀ.
            let (mut before, mut decay, mut written) = (keys.as_ptr(), S::splat(1.0), [zero; MAX_REGISTERS]);
            for (token, &[strength, next_decay, product]) in rates.iter().enumerate() {
                let (query, key) = (queries.as_ptr().add(token * size), keys.as_ptr().add(token * size));
                let (mut of_key, mut of_query) = ([zero; MAX_REGISTERS], [zero; MAX_REGISTERS]);
                for row in 0..size {
                    let place = state.as_mut_ptr().add(row * width);
                    let [late, key, query] = [before, key, query].map(|x| S::splat(*x.add(row)));
                    for (i, &written) in written[..count].iter().enumerate() {
                        let kept = S::load(place.add(i * lanes)).mul_add(decay, zero);
                        let value = late.mul_add(written, kept);
                        value.store(place.add(i * lanes));
                        of_key[i] = value.mul_add(key, of_key[i]);
                        of_query[i] = value.mul_add(query, of_query[i]);
                    }
                }
                let (reads, strength) = (S::splat(-strength * next_decay), S::splat(strength));
                (before, decay) = (key, S::splat(next_decay));
                for i in 0..count {
                    let place = values.as_mut_ptr().add(token * width + i * lanes);
                    written[i] = of_key[i].mul_add(reads, S::load(place).mul_add(strength, zero));
                    let result = of_query[i].mul_add(decay, written[i].mul_add(S::splat(product), zero));
                    result.store(place);
                }
            }
            if rates.is_empty() {
                return;
            }
            for row in 0..size {
                let (place, late) = (state.as_mut_ptr().add(row * width), S::splat(*before.add(row)));
                for (i, &written) in written[..count].iter().enumerate() {
                    let kept = S::load(place.add(i * lanes)).mul_add(decay, zero);
                    late.mul_add(written, kept).store(place.add(i * lanes));
                }
            }
        }
    }
}

dispatch! {
    /// A causal convolution of each column, and `SiLU`: row `t` of `out`, `[tokens, width]`, is the sum of
    /// the rows `t`, `t + 1`, … of `rows`, each times its row of `taps`.
    fn convolve_rows(rows: &[f32], taps: &[f32], width: usize, out: &mut [f32]) {
        for (token, out) in out.chunks_exact_mut(width).enumerate() {
            out.fill(0.0);
            for (taps, row) in taps.chunks_exact(width).zip(rows[token * width..].chunks_exact(width)) {
                for ((out, &value), &tap) in out.iter_mut().zip(row).zip(taps) {
                    *out = mul_add::<FUSED>(value, tap, *out);
                }
            }
            for value in out {
                *value = silu::<FUSED>(*value);
            }
        }
    }
}

dispatch! {
    /// Writes the row `x`, divided by √(Σx² + epsilon) and multiplied by `factor`, to `out`.
    fn unit_row(x: &[f32], epsilon: f32, factor: f32, out: &mut [f32]) {
        let squares = sum_of(x, |value, sum| mul_add::<FUSED>(value, value, sum));
        let scale = factor / (squares + epsilon).sqrt();
        for (out, &value) in out.iter_mut().zip(x) {
            *out = value * scale;
        }
    }
}

dispatch! {
    /// The product of two rows.
    fn dot_rows(a: &[f32], b: &[f32], out: &mut f32) {
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
        let mut sums = [0.0_f32; 16];
        for (a, b) in a.iter().zip(b) {
            for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
                *sum = mul_add::<FUSED>(a, b, *sum);
            }
        }
        for ((sum, &a), &b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
            *sum = mul_add::<FUSED>(a, b, *sum);
        }
        *out = sums.iter().sum();
    }
}

dispatch! {
    /// `gate = x / √(mean(x²) + epsilon) · weight · SiLU(gate)`
    fn gated_norm(x: &[f32], weight: &[f32], epsilon: f32, gate: &mut [f32]) {
        let mean = sum_of(x, |value, sum| mul_add::<FUSED>(value, value, sum)) / x.len() as f32;
        let scale = 1.0 / (mean + epsilon).sqrt();
        for ((gate, &value), &weight) in gate.iter_mut().zip(x).zip(weight) {
            *gate = weight * (value * scale) * silu::<FUSED>(*gate);
        }
    }
}
