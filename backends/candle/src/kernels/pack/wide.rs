//! Packing with AVX-512: the CPU's own conversions to bfloat16 and to bytes, and transposed squares.
//!
//! Input and output: those of the functions in `pack.rs` that call these. What must hold: the results are
//! identical, except that subnormal values become zeros.

use super::super::nibbles::GROUP_WORDS;
use super::{COLUMNS, ROUND, WORDS, values_from};
use std::arch::x86_64::{
    __m256i, __m512, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm512_add_epi32, _mm512_and_si512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512,
    _mm512_cvtepi32_epi8, _mm512_cvtepi32_epi16, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32,
    _mm512_cvtneps_pbh, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mullo_epi16,
    _mm512_or_si512, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_shuffle_f32x4,
    _mm512_slli_epi32, _mm512_srli_epi16, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_sub_epi8, _mm512_sub_epi16, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
    _mm512_unpacklo_ps,
};
use std::mem::transmute;

/// The number of values that are rounded at a time.
const LANES: usize = 16;

/// Sixteen values rounded to bfloat16. Subnormal values become zeros, as in products.
#[target_feature(enable = "avx512f,avx512bf16")]
fn rounded(values: &[f32; LANES]) -> __m256i {
    // SAFETY: the array holds a register's values. Both types have 256 bits, for sixteen 16-bit values.
    unsafe { transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(values.as_ptr()))) }
}

/// Up to sixteen values, followed by zeros.
fn padded(values: &[f32]) -> [f32; LANES] {
    let mut all = [0.0; LANES];
    all[..values.len()].copy_from_slice(values);
    all
}

/// [`super::round`] with the CPU's own conversion.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn round(values: &[f32], words: &mut [u32]) {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let (full, tail) = words.split_at_mut(chunks.len() * LANES / 2);
    for (words, chunk) in full.as_chunks_mut::<{ LANES / 2 }>().0.iter_mut().zip(chunks) {
        // SAFETY: there is memory for eight words of two values.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), rounded(chunk)) };
    }
    tail.fill(0);
    if !rest.is_empty() {
        let mut words = [0; LANES / 2];
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), rounded(&padded(rest))) };
        let used = rest.len().div_ceil(2);
        tail[..used].copy_from_slice(&words[..used]);
    }
}

/// [`super::quantise`] for groups of sixteen values. Their bytes fill `words`.
#[target_feature(enable = "avx512f")]
pub(super) fn bytes(values: &[[f32; LANES]], inverse: f32, offset: i32, words: &mut [u32]) {
    let (inverse, round) = (_mm512_set1_ps(inverse), _mm512_set1_ps(ROUND));
    for (values, words) in values.iter().zip(words.as_chunks_mut::<{ LANES / 4 }>().0) {
        // SAFETY: the array holds a register's values.
        let shifted = _mm512_fmadd_ps(unsafe { _mm512_loadu_ps(values.as_ptr()) }, inverse, round);
        let sum = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(offset));
        // SAFETY: there is memory for four words of four bytes: the low bytes of the sums.
        unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(sum)) };
    }
}

/// [`super::int16::round_rows`] for groups of sixteen values. Their integers fill `words`.
#[target_feature(enable = "avx512f")]
pub(super) fn round_to_int16(values: &[[f32; LANES]], inverse: f32, words: &mut [u32]) {
    let (inverse, round) = (_mm512_set1_ps(inverse), _mm512_set1_ps(ROUND));
    for (values, words) in values.iter().zip(words.as_chunks_mut::<{ LANES / 2 }>().0) {
        // SAFETY: the array holds a register's values.
        let shifted = _mm512_fmadd_ps(unsafe { _mm512_loadu_ps(values.as_ptr()) }, inverse, round);
        let integers = _mm512_cvtepi32_epi16(_mm512_castps_si512(shifted));
        // SAFETY: there is memory for eight words of two integers: the lower halves of the sums.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), integers) };
    }
}

/// Words that hold one value of each slice.
#[target_feature(enable = "avx512f,avx512bf16")]
fn interleaved(first: &[f32; LANES], second: &[f32; LANES]) -> __m512i {
    let (low, high) = (_mm512_cvtepu16_epi32(rounded(first)), _mm512_cvtepu16_epi32(rounded(second)));
    _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
}

/// [`super::interleave`] with the CPU's own conversion.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn interleave(rows: &[&[f32]], first: usize, lines: &mut [[u32; COLUMNS]]) {
    for (word, line) in lines.iter_mut().enumerate() {
        let (a, b) = (values_from(rows, 2 * word, first), values_from(rows, 2 * word + 1, first));
        let halves = a.as_chunks().0.iter().zip(b.as_chunks().0);
        for ((a, b), words) in halves.zip(line.as_chunks_mut::<LANES>().0) {
            // SAFETY: there is memory for sixteen words.
            unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), interleaved(a, b)) };
        }
    }
}

/// `lines[k][column] = square[column][k]`, as two squares of 16 × 16.
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(square: &[[u32; WORDS]; COLUMNS], lines: &mut [[u32; COLUMNS]; WORDS]) {
    for half in 0..2 {
        // SAFETY: a row of `square` has 16 values.
        let mut rows: [__m512; 16] =
            std::array::from_fn(|i| unsafe { _mm512_loadu_ps(square[half * 16 + i].as_ptr().cast()) });
        transpose_rows(&mut rows);
        for (line, row) in lines.iter_mut().zip(rows) {
            // SAFETY: a line has 32 values, and `half` is 0 or 1.
            unsafe { _mm512_storeu_ps(line.as_mut_ptr().add(half * 16).cast(), row) };
        }
    }
}

/// [`expand`](super::super::nibbles::expand) for one group. `[multipliers, offsets]` belong to its
/// columns.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in super::super) fn expand(
    lines: &[[u32; COLUMNS]; GROUP_WORDS / 2],
    [multipliers, offsets]: [&[u8; COLUMNS]; 2],
    panel: &mut [[u32; COLUMNS]; GROUP_WORDS],
) {
    let low = _mm512_set1_epi32(0x0f0f_0f0f);
    for half in 0..2 {
        let [multiplier, offset] = [multipliers, offsets].map(|bytes| {
            // SAFETY: there are 32 bytes, and `half` is 0 or 1.
            _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().add(half * LANES).cast()) })
        });
        let multiplier = _mm512_or_si512(multiplier, _mm512_slli_epi32::<16>(multiplier));
        let offset = _mm512_or_si512(offset, _mm512_slli_epi32::<8>(offset));
        let offset = _mm512_or_si512(offset, _mm512_slli_epi32::<16>(offset));
        for (line, panel) in lines.iter().zip(panel.as_chunks_mut::<2>().0) {
            // SAFETY: a line has 32 words, and `half` is 0 or 1.
            let nibbles = unsafe { _mm512_loadu_si512(line.as_ptr().add(half * LANES).cast()) };
            for (nibbles, line) in [nibbles, _mm512_srli_epi32::<4>(nibbles)].into_iter().zip(panel) {
                // No product of bytes exceeds 255, so two of them fit one product of 16 bits.
                let bytes = _mm512_mullo_epi16(_mm512_and_si512(nibbles, low), multiplier);
                // SAFETY: as above.
                unsafe {
                    _mm512_storeu_si512(
                        line.as_mut_ptr().add(half * LANES).cast(),
                        _mm512_sub_epi8(bytes, offset),
                    );
                }
            }
        }
    }
}

/// [`expand_fine`](super::super::nibbles::expand_fine) for one group.
#[target_feature(enable = "avx512f,avx512bw")]
pub(in super::super) fn expand_fine(
    lines: &[[u32; COLUMNS]; GROUP_WORDS / 2],
    [multipliers, offsets]: [&[u16; COLUMNS]; 2],
    panel: &mut [[u32; COLUMNS]; GROUP_WORDS],
) {
    let (low, upper) = (_mm512_set1_epi16(0x0f), _mm512_set1_epi16(0xff00_u16.cast_signed()));
    for half in 0..2 {
        let [multiplier, offset] = [multipliers, offsets].map(|numbers| {
            // SAFETY: there are 32 numbers, and `half` is 0 or 1.
            let numbers = _mm512_cvtepu16_epi32(unsafe {
                _mm256_loadu_si256(numbers.as_ptr().add(half * LANES).cast())
            });
            _mm512_or_si512(numbers, _mm512_slli_epi32::<16>(numbers))
        });
        let fine = |nibbles| {
            _mm512_sub_epi16(_mm512_mullo_epi16(_mm512_and_si512(nibbles, low), multiplier), offset)
        };
        for (line, panel) in lines.iter().zip(panel.as_chunks_mut::<2>().0) {
            // SAFETY: a line has 32 words, and `half` is 0 or 1.
            let nibbles = unsafe { _mm512_loadu_si512(line.as_ptr().add(half * LANES).cast()) };
            for (nibbles, line) in [nibbles, _mm512_srli_epi16::<4>(nibbles)].into_iter().zip(panel) {
                // The first and the third byte of each word, then the second and the fourth.
                let even = _mm512_srli_epi16::<8>(fine(nibbles));
                let odd = _mm512_and_si512(fine(_mm512_srli_epi16::<8>(nibbles)), upper);
                // SAFETY: as above.
                unsafe {
                    _mm512_storeu_si512(
                        line.as_mut_ptr().add(half * LANES).cast(),
                        _mm512_or_si512(even, odd),
                    );
                }
            }
        }
    }
}

/// Swaps ever larger blocks across the diagonal: single values, pairs, then quarters of a register.
#[target_feature(enable = "avx512f")]
fn transpose_rows(rows: &mut [__m512; 16]) {
    let mut pairs = *rows;
    for i in (0..16).step_by(2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..16).step_by(4) {
        for j in 0..2 {
            let (a, b) = (_mm512_castps_pd(pairs[i + j]), _mm512_castps_pd(pairs[i + j + 2]));
            fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    // Quarter q of row i + j now holds the column 4 q + j of the rows i..i + 4.
    for j in 0..4 {
        let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
        let (low, high) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (low_end, high_end) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
        rows[j] = _mm512_shuffle_f32x4::<0x88>(low, low_end);
        rows[8 + j] = _mm512_shuffle_f32x4::<0xdd>(low, low_end);
        rows[4 + j] = _mm512_shuffle_f32x4::<0x88>(high, high_end);
        rows[12 + j] = _mm512_shuffle_f32x4::<0xdd>(high, high_end);
    }
}
