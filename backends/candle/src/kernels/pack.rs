//! Operands of a product, laid out as the inner loop reads them.
//!
//! Blocks of rows: `[chunk][row][CHUNK]`. Panels of columns: `[depth][COLUMNS]`, from a matrix stored with its columns
//! as rows (a weight `[out, in]`, or keys `[token, head_dim]`). The depth is padded with zeros to a multiple of
//! [`CHUNK`], a panel's missing columns are zeros.

use super::{
    simd::dispatch,
    tile::{CHUNK, COLUMNS},
};
use half::{bf16, f16};

/// How a matrix's values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point (IEEE half).
    F16,
    /// 16-bit floating point with the range of 32-bit.
    Bf16,
}

impl Stored {
    /// Bytes of a value.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// `depth` rounded up to what the packed operands hold.
pub(crate) fn padded(depth: usize) -> usize {
    depth.next_multiple_of(CHUNK)
}

/// Packs the rows of `source`, each `depth` values long, as one block; `block` holds rows · [`padded`]`(depth)` values.
pub(crate) fn block(source: &[f32], depth: usize, block: &mut [f32]) {
    let rows = source.len() / depth;
    for (chunk, lines) in block.chunks_exact_mut(rows * CHUNK).enumerate() {
        for (row, line) in source.chunks_exact(depth).zip(lines.chunks_exact_mut(CHUNK)) {
            let values = &row[chunk * CHUNK..((chunk + 1) * CHUNK).min(depth)];
            line[..values.len()].copy_from_slice(values);
            line[values.len()..].fill(0.0);
        }
    }
}

/// Widens stored values to `f32`; `bytes` holds `out.len()` values.
pub(crate) fn widen(stored: Stored, bytes: &[u8], out: &mut [f32]) {
    match stored {
        Stored::F32 => widen_with::<4>(bytes, out, f32::from_le_bytes),
        Stored::F16 => widen_with::<2>(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Stored::Bf16 => widen_with::<2>(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
    }
}

#[inline(always)]
fn widen_with<const SIZE: usize>(bytes: &[u8], out: &mut [f32], convert: impl Fn([u8; SIZE]) -> f32) {
    let (values, _) = bytes.as_chunks::<SIZE>();
    for (out, value) in out.iter_mut().zip(values) {
        *out = convert(*value);
    }
}

dispatch! {
    /// Packs up to [`COLUMNS`] rows of `depth` stored values as the columns of one panel.
    ///
    /// `rows` is what is left of the matrix from the panel's first row on; `panel` holds [`padded`]`(depth)` ·
    /// [`COLUMNS`] values.
    fn panel(stored: Stored, rows: &[u8], depth: usize, panel: &mut [f32]) {
        match stored {
            Stored::F32 => panel_with::<_, WIDE>(rows.as_chunks().0, depth, panel, f32::from_le_bytes),
            Stored::F16 => panel_with::<_, WIDE>(rows.as_chunks().0, depth, panel, |bytes| f16::from_le_bytes(bytes).to_f32_const()),
            Stored::Bf16 => panel_with::<_, WIDE>(rows.as_chunks().0, depth, panel, |bytes| {
                f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
            }),
        }
    }
}

dispatch! {
    /// [`panel`] of rows that are `f32` in memory.
    fn panel_of_values(rows: &[f32], depth: usize, panel: &mut [f32]) {
        panel_with::<_, WIDE>(rows, depth, panel, |value| value);
    }
}

/// Transposes in squares of [`CHUNK`] depth steps, small enough to stay in the first-level cache.
#[inline(always)]
fn panel_with<T: Copy, const WIDE: bool>(
    values: &[T],
    depth: usize,
    panel: &mut [f32],
    convert: impl Fn(T) -> f32 + Copy,
) {
    let columns = (values.len() / depth).min(COLUMNS);
    let (panel, _) = panel.as_chunks_mut::<COLUMNS>();
    for (chunk, lines) in panel.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
        let mut square = [[0.0_f32; CHUNK]; COLUMNS];
        let from = chunk * CHUNK;
        let len = CHUNK.min(depth - from);
        for (column, square) in square.iter_mut().enumerate().take(columns) {
            let source = &values[column * depth + from..][..len];
            if let Ok(source) = <&[T; CHUNK]>::try_from(source) {
                *square = source.map(convert);
            } else {
                for (out, value) in square.iter_mut().zip(source) {
                    *out = convert(*value);
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        if WIDE {
            // SAFETY: `WIDE` bodies run only where `InstructionSet::available` found AVX-512.
            unsafe { wide::transpose(&square, lines) };
            continue;
        }
        for (k, line) in lines.iter_mut().enumerate() {
            *line = std::array::from_fn(|column| square[column][k]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{CHUNK, COLUMNS};
    use std::arch::x86_64::{
        __m512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_loadu_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps,
        _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    };

    /// `lines[k][column] = square[column][k]`, in two squares of 16 × 16.
    #[target_feature(enable = "avx512f")]
    pub(super) fn transpose(square: &[[f32; CHUNK]; COLUMNS], lines: &mut [[f32; COLUMNS]; CHUNK]) {
        for half in 0..2 {
            // SAFETY: a row of `square` is 16 values long.
            let mut rows: [__m512; 16] =
                std::array::from_fn(|i| unsafe { _mm512_loadu_ps(square[half * 16 + i].as_ptr()) });
            transpose_rows(&mut rows);
            for (line, row) in lines.iter_mut().zip(rows) {
                // SAFETY: a line is 32 values long, and `half` is 0 or 1.
                unsafe { _mm512_storeu_ps(line.as_mut_ptr().add(half * 16), row) };
            }
        }
    }

    /// Swaps ever larger blocks across the diagonal: pairs of values, of pairs, then of quarters of a register.
    #[target_feature(enable = "avx512f")]
    fn transpose_rows(rows: &mut [__m512; 16]) {
        let mut pairs = *rows;
        for i in (0..16).step_by(2) {
            pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
        }
        let double = |row: __m512| _mm512_castps_pd(row);
        let mut fours = pairs;
        for i in (0..16).step_by(4) {
            for j in 0..2 {
                let (a, b) = (double(pairs[i + j]), double(pairs[i + j + 2]));
                fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
            }
        }
        // Row i + j now holds, in its quarter q, column 4 q + j of the rows i..i + 4.
        for j in 0..4 {
            let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
            let (low, high) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            let (low_end, high_end) =
                (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
            rows[j] = _mm512_shuffle_f32x4::<0x88>(low, low_end);
            rows[8 + j] = _mm512_shuffle_f32x4::<0xdd>(low, low_end);
            rows[4 + j] = _mm512_shuffle_f32x4::<0x88>(high, high_end);
            rows[12 + j] = _mm512_shuffle_f32x4::<0xdd>(high, high_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::InstructionSet;
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn stored(kind: Stored, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        match kind {
            Stored::F32 => (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values.to_vec()),
            Stored::F16 => {
                let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
                (
                    halves.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    halves.iter().map(|v| v.to_f32()).collect(),
                )
            }
            Stored::Bf16 => {
                let halves: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
                (
                    halves.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    halves.iter().map(|v| v.to_f32()).collect(),
                )
            }
        }
    }

    #[test]
    fn panels_are_the_transpose_padded_with_zeros() {
        let mut rng = StdRng::seed_from_u64(3);
        for set in InstructionSet::available() {
            for kind in [Stored::F32, Stored::F16, Stored::Bf16] {
                for (rows, depth) in [(1, 1), (31, 15), (32, 16), (33, 17), (40, 50), (5, 128)] {
                    let values: Vec<f32> = (0..rows * depth).map(|_| rng.random_range(-2.0..2.0)).collect();
                    let (bytes, values) = stored(kind, &values);
                    let mut out = vec![f32::NAN; padded(depth) * COLUMNS];
                    panel(set, kind, &bytes, depth, &mut out);
                    for (at, &got) in out.iter().enumerate() {
                        let (k, column) = (at / COLUMNS, at % COLUMNS);
                        let inside = k < depth && column < rows;
                        let expected = if inside { values[column * depth + k] } else { 0.0 };
                        assert_eq!(
                            got.to_bits(),
                            expected.to_bits(),
                            "{set} {kind:?} {rows}x{depth} at {k},{column}"
                        );
                    }
                    let mut wide = vec![0.0; values.len()];
                    widen(kind, &bytes, &mut wide);
                    assert_eq!(wide, values);
                }
            }
        }
    }

    #[test]
    fn blocks_hold_their_rows_chunk_by_chunk() {
        for (rows, depth) in [(1, 5), (3, 16), (14, 33)] {
            let source: Vec<f32> = (0..rows * depth).map(|i| i as f32 + 1.0).collect();
            let mut out = vec![f32::NAN; rows * padded(depth)];
            block(&source, depth, &mut out);
            for row in 0..rows {
                for k in 0..padded(depth) {
                    let got = out[(k / CHUNK * rows + row) * CHUNK + k % CHUNK];
                    let expected = if k < depth { source[row * depth + k] } else { 0.0 };
                    assert_eq!(got.to_bits(), expected.to_bits());
                }
            }
        }
    }
}
