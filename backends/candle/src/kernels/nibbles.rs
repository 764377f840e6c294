//! Weights of four bits, which are multiplied as bytes.
//!
//! Along a row, [`GROUP`] values share a step and an offset. Both are whole multiples of the row's own step:
//! a value is `scale · (nibble · multiplier − offset)`, and the expression in parentheses fits a byte. A
//! panel of nibbles is expanded exactly to a panel of bytes just before its tiles are computed. So the
//! products are those of bytes, and no sum is split by groups.
//!
//! Input: rows of `f32`. Output: their nibbles and [`NibbleGroup`]s, then panels of bytes. What must hold:
//! the error of a value is at most half a step of its group; the scale of a row with a value that is not
//! finite is NaN.

#[cfg(target_arch = "x86_64")]
use super::pack::wide;
use super::{simd::dispatch, tile::COLUMNS};

/// The number of values that share a step: half of the unit to which rows are padded.
pub(crate) const GROUP: usize = 32;
/// The number of words of four values in a group.
pub(crate) const GROUP_WORDS: usize = GROUP / 4;
/// The largest multiplier. With it, the nibbles 0 to 15 of a group span all bytes.
const MOST: f32 = 17.0;
/// The number of steps between the smallest and the largest nibble.
const STEPS: f32 = 15.0;

/// The step and the offset of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NibbleGroup {
    /// The group's step as a multiple of the row's step: 1 to 17, or 0 if all values are zero.
    pub(crate) multiplier: u8,
    /// The number that is subtracted, modulo 256.
    pub(crate) offset: u8,
}

impl NibbleGroup {
    /// A value as a multiple of its row's step.
    pub(crate) fn byte(self, nibble: u8) -> i8 {
        (nibble * self.multiplier).wrapping_sub(self.offset).cast_signed()
    }
}

/// The groups of a panel's columns for the same range of values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelGroups {
    multipliers: [u8; COLUMNS],
    offsets: [u8; COLUMNS],
}

impl PanelGroups {
    /// The groups of columns without values.
    pub(crate) const EMPTY: Self = Self { multipliers: [0; COLUMNS], offsets: [0; COLUMNS] };

    /// Writes the group of a column.
    pub(crate) fn set(&mut self, column: usize, group: NibbleGroup) {
        self.multipliers[column] = group.multiplier;
        self.offsets[column] = group.offset;
    }
}

dispatch! {
    /// Writes a row's nibbles, one per byte, its groups, and the factor that turns its bytes into values.
    /// `nibbles` and `groups` have at least as many elements as the values need; the others become zero.
    fn quantise(values: &[f32], nibbles: &mut [u8], groups: &mut [NibbleGroup], scale: &mut f32) {
        let (mut largest, mut widest) = (0.0_f32, 0.0_f32);
        let mut finite = true;
        for group in values.chunks(GROUP) {
            let [low, high] = reach(group);
            finite &= group.iter().all(|value| value.is_finite());
            largest = largest.max(high).max(-low);
            widest = widest.max(high - low);
        }
        nibbles.fill(0);
        groups.fill(NibbleGroup::default());
        // The difference of two finite values may be infinite.
        if !finite || !widest.is_finite() {
            *scale = f32::NAN;
            return;
        }
        *scale = (largest / 127.0).max(widest / (STEPS * MOST)).max(f32::MIN_POSITIVE * 128.0);
        let inverse = 1.0 / *scale;
        for ((values, nibbles), group) in values.chunks(GROUP).zip(nibbles.chunks_mut(GROUP)).zip(groups) {
            let mut steps = [0.0; GROUP];
            let steps = &mut steps[..values.len()];
            for (step, value) in steps.iter_mut().zip(values) {
                *step = value * inverse;
            }
            let [low, high] = reach(steps);
            let finest = ((high - low) / STEPS).floor();
            let mut best = f32::INFINITY;
            // The coarser step reaches both ends. The finer step cuts them off, which is better if only few
            // values are near the ends.
            for multiplier in [finest.clamp(1.0, MOST), (finest + 1.0).min(MOST)] {
                let middle = (STEPS * multiplier - low - high) / 2.0;
                let offset = middle.round_ties_even().clamp(STEPS * multiplier - 127.0, 128.0);
                let inverse = 1.0 / multiplier;
                let mut found = [0.0; GROUP];
                let mut error = 0.0;
                for (found, step) in found.iter_mut().zip(steps.iter()) {
                    *found = ((step + offset) * inverse).round_ties_even().clamp(0.0, STEPS);
                    let off = *found * multiplier - offset - step;
                    error += off * off;
                }
                if error < best {
                    best = error;
                    *group = NibbleGroup { multiplier: multiplier as u8, offset: (offset as i32 & 0xff) as u8 };
                    for (nibble, found) in nibbles.iter_mut().zip(found) {
                        *nibble = found as u8;
                    }
                }
            }
        }
    }
}

/// The smallest and the largest of some values.
#[inline(always)]
fn reach(values: &[f32]) -> [f32; 2] {
    values
        .iter()
        .fold([f32::INFINITY, f32::NEG_INFINITY], |[low, high], value| [value.min(low), value.max(high)])
}

/// Merges two lines of nibbles, one per byte, into one line. The second line takes the upper halves of the
/// bytes.
pub(crate) fn pair([first, second]: [&[u32; COLUMNS]; 2]) -> [u32; COLUMNS] {
    std::array::from_fn(|column| first[column] | second[column] << 4)
}

dispatch! {
    /// Expands a panel of nibbles `[pair of words][COLUMNS]`, whose lines [`pair`] made, to bytes
    /// `[word][COLUMNS]`.
    fn expand(nibbles: &[u32], groups: &[PanelGroups], panel: &mut [u32]) {
        let lines = nibbles.as_chunks::<COLUMNS>().0.as_chunks::<{ GROUP_WORDS / 2 }>().0;
        let panel = panel.as_chunks_mut::<COLUMNS>().0.as_chunks_mut::<GROUP_WORDS>().0;
        for ((lines, group), panel) in lines.iter().zip(groups).zip(panel) {
            #[cfg(target_arch = "x86_64")]
            if WIDE {
                // SAFETY: `WIDE` bodies only run if `InstructionSet::available` found AVX-512.
                unsafe { wide::expand(lines, [&group.multipliers, &group.offsets], panel) };
                continue;
            }
            for (line, panel) in lines.iter().zip(panel.as_chunks_mut::<2>().0) {
                for column in 0..COLUMNS {
                    let (multiplier, offset) = (group.multipliers[column], group.offsets[column]);
                    // No product of bytes exceeds 255, so it does not carry into the next byte.
                    let less = u32::from(offset) * 0x0101_0101;
                    let multiplied = [line[column] & LOW, line[column] >> 4 & LOW].map(|four| four * u32::from(multiplier));
                    panel[0][column] = less_bytes(multiplied[0], less);
                    panel[1][column] = less_bytes(multiplied[1], less);
                }
            }
        }
    }
}

/// A mask for the lower half of each byte of a word.
const LOW: u32 = 0x0f0f_0f0f;

/// Subtracts the bytes of two words, modulo 256.
#[inline(always)]
fn less_bytes(from: u32, less: u32) -> u32 {
    const TOP: u32 = 0x8080_8080;
    ((from | TOP) - (less & !TOP)) ^ ((from ^ !less) & TOP)
}

#[cfg(test)]
mod tests {
    use super::{super::InstructionSet, *};
    use rand::{Rng, SeedableRng, rngs::StdRng};

    /// A row in which some groups are zero or lie on one side of zero, far from it.
    fn row(rng: &mut StdRng, len: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(len);
        while values.len() < len {
            let size = [0.0, 1e-3, 0.1, 1.0, 3.0][rng.random_range(0..5)];
            let middle = [0.0, 0.0, 1.0, -1.0][rng.random_range(0..4)] * size;
            values.extend((0..GROUP).map(|_| middle + size * rng.random_range(-1.0..1.0)));
        }
        values.truncate(len);
        values
    }

    struct Quantised {
        nibbles: Vec<u8>,
        groups: Vec<NibbleGroup>,
        scale: f32,
    }

    fn quantised(set: InstructionSet, values: &[f32]) -> Quantised {
        let padded = values.len().next_multiple_of(2 * GROUP);
        let mut found = Quantised {
            nibbles: vec![0xff; padded],
            groups: vec![NibbleGroup { multiplier: 9, offset: 9 }; padded / GROUP],
            scale: 0.0,
        };
        quantise(set, values, &mut found.nibbles, &mut found.groups, &mut found.scale);
        found
    }

    #[test]
    fn a_value_is_off_by_half_a_step_and_no_worse_than_with_steps_and_offsets_in_floating_point() {
        let mut rng = StdRng::seed_from_u64(41);
        for set in InstructionSet::available() {
            let (mut ours, mut plain) = (0.0_f64, 0.0_f64);
            for len in 1..=200 {
                let values = row(&mut rng, len);
                let Quantised { nibbles, groups, scale } = quantised(set, &values);
                for ((values, nibbles), group) in values.chunks(GROUP).zip(nibbles.chunks(GROUP)).zip(groups)
                {
                    assert!(nibbles.iter().all(|&nibble| nibble < 16));
                    let [low, high] = reach(values);
                    // A step that reaches both ends may be larger by one step of the row, and the offset is
                    // rounded.
                    let step = f32::from(group.multiplier) * scale;
                    assert!(
                        step <= (high - low) / STEPS + scale * 1.001,
                        "{set} {len}: {step} for {low} to {high}"
                    );
                    for (&value, &nibble) in values.iter().zip(nibbles) {
                        let off = f32::from(group.byte(nibble)) * scale - value;
                        assert!(
                            off.abs() <= (high - low) / STEPS + 1.01 * scale,
                            "{set} {len}: {value} off by {off}"
                        );
                        ours += f64::from(off).powi(2);
                        let fine = ((high - low) / STEPS).max(f32::MIN_POSITIVE);
                        plain += f64::from(((value - low) / fine).round() * fine + low - value).powi(2);
                    }
                }
            }
            assert!(ours < 1.1 * plain, "{set}: {ours} for {plain}");
        }
    }

    #[test]
    fn rows_of_zeros_stay_zero_and_what_is_not_finite_is_told() {
        for set in InstructionSet::available() {
            for values in [vec![0.0; 70], vec![], vec![-0.0; 3]] {
                let Quantised { nibbles, groups, scale } = quantised(set, &values);
                let bytes = nibbles.iter().enumerate().map(|(i, &nibble)| groups[i / GROUP].byte(nibble));
                assert!(scale.is_finite() && bytes.take(values.len()).all(|byte| byte == 0), "{set}");
            }
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for place in [0, 31, 32, 99] {
                    let mut values = vec![1.0; 100];
                    values[place] = odd;
                    assert!(quantised(set, &values).scale.is_nan(), "{set} {odd} at {place}");
                }
            }
            assert!(
                quantised(set, &[f32::MAX, f32::MIN]).scale.is_nan(),
                "{set}: a reach beyond all numbers"
            );
        }
    }

    #[test]
    fn panels_hold_the_bytes_of_their_nibbles() {
        let mut rng = StdRng::seed_from_u64(42);
        for groups in [1, 2, 3, 8] {
            let mut of_panel = vec![PanelGroups::EMPTY; groups];
            let mut expected = vec![0_u32; groups * GROUP_WORDS * COLUMNS];
            let mut lines = vec![[0_u32; COLUMNS]; groups * GROUP_WORDS];
            for (index, of_panel) in of_panel.iter_mut().enumerate() {
                for column in 0..COLUMNS {
                    let group = NibbleGroup { multiplier: rng.random_range(0..=17), offset: rng.random() };
                    of_panel.set(column, group);
                    for word in index * GROUP_WORDS..(index + 1) * GROUP_WORDS {
                        let four: [u8; 4] = std::array::from_fn(|_| rng.random_range(0..16));
                        lines[word][column] = u32::from_le_bytes(four);
                        let bytes = four.map(|nibble| group.byte(nibble).cast_unsigned());
                        expected[word * COLUMNS + column] = u32::from_le_bytes(bytes);
                    }
                }
            }
            let nibbles: Vec<u32> =
                lines.as_chunks::<2>().0.iter().flat_map(|[first, second]| pair([first, second])).collect();
            for set in InstructionSet::available() {
                let mut panel = vec![7; expected.len()];
                expand(set, &nibbles, &of_panel, &mut panel);
                assert_eq!(panel, expected, "{set} {groups}");
            }
        }
    }
}
