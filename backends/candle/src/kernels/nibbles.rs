//! Weights of four bits, which are multiplied as bytes.
//!
//! Along a row, [`GROUP`] values share a step and an offset. Both are whole multiples of the row's own step:
//! a value is `scale · (nibble · multiplier − offset)`, and the expression in parentheses fits a byte. A
//! panel of nibbles is expanded exactly to a panel of bytes just before its tiles are computed. So the
//! products are those of bytes, and no sum is split by groups.
//!
//! Rows that a file stores in four bits keep the file's nibbles ([`keep`]). Their steps are no multiples of
//! the row's step, so they have a [`FineGroup`], which counts in 1/256 of it; a byte is rounded when it is
//! expanded.
//!
//! Input: rows of `f32`. Output: their nibbles and [`NibbleGroup`]s, then panels of bytes. What must hold:
//! the error of a value is at most half a step of its group; the scale of a row with a value that is not
//! finite is NaN.

#[cfg(target_arch = "x86_64")]
use super::pack::wide;
use super::{layout::COLUMNS, simd::dispatch};
use text_embeddings_checkpoint::FourBits;

/// The number of values that share a step: half of the unit to which rows are padded.
pub(crate) const GROUP: usize = 32;
/// The number of words of four values in a group.
pub(crate) const GROUP_WORDS: usize = GROUP / 4;
/// The largest multiplier. With it, the nibbles 0 to 15 of a group span all bytes.
const MAX_MULTIPLIER: f32 = 17.0;
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

/// The step and the offset of a group in 1/256 of the row's step, modulo 2¹⁶.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FineGroup {
    /// The group's step.
    pub(crate) multiplier: u16,
    /// The number that is subtracted, less the half that rounds to the nearest byte.
    pub(crate) offset: u16,
}

impl FineGroup {
    /// A value as a multiple of its row's step.
    pub(crate) fn byte(self, nibble: u8) -> i8 {
        let fine = u16::from(nibble).wrapping_mul(self.multiplier).wrapping_sub(self.offset);
        ((fine >> 8) as u8).cast_signed()
    }
}

impl From<NibbleGroup> for FineGroup {
    fn from(NibbleGroup { multiplier, offset }: NibbleGroup) -> Self {
        Self { multiplier: u16::from(multiplier) << 8, offset: u16::from(offset) << 8 }
    }
}

/// [`PanelGroups`] of [`FineGroup`]s.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanelFineGroups {
    multipliers: [u16; COLUMNS],
    offsets: [u16; COLUMNS],
}

impl PanelFineGroups {
    /// The groups of columns without values.
    pub(crate) const EMPTY: Self = Self { multipliers: [0; COLUMNS], offsets: [0; COLUMNS] };

    /// Writes the group of a column.
    pub(crate) fn set(&mut self, column: usize, group: FineGroup) {
        self.multipliers[column] = group.multiplier;
        self.offsets[column] = group.offset;
    }
}

/// Like [`quantise`] for a row that is stored in four bits: keeps its nibbles. `values` are the row's values.
/// Returns whether it did: not if steps and offsets of one group differ so much from its values that they
/// cannot be counted in the row's step. A byte then differs from its value by at most 0.54 of the row's step.
pub(crate) fn keep(
    stored: &[FourBits],
    values: &[f32],
    nibbles: &mut [u8],
    groups: &mut [FineGroup],
    scale: &mut f32,
) -> bool {
    /// The largest multiplier: two values of a group are at most 254 steps of the row apart.
    const MAX_MULTIPLIER: f64 = 254.5 * 256.0;
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    if !values.iter().all(|value| value.is_finite()) {
        return false;
    }
    *scale = largest.max(f32::MIN_POSITIVE * 128.0) / 127.0;
    let fine = |value: f32| f64::from(value) / f64::from(*scale) * 256.0;
    nibbles.fill(0);
    groups.fill(FineGroup::default());
    for ((stored, nibbles), group) in stored.iter().zip(nibbles.as_chunks_mut::<GROUP>().0).zip(groups) {
        let (multiplier, least) = (fine(stored.step), fine(stored.least));
        if !(multiplier.abs() <= MAX_MULTIPLIER && least.abs() <= 16.0 * MAX_MULTIPLIER) {
            return false;
        }
        *nibbles = stored.nibbles;
        // The half that is added before the lower byte is dropped rounds to the nearest.
        let offset = -least.round() as i32 - 128;
        *group = FineGroup {
            multiplier: (multiplier.round() as i32 & 0xffff) as u16,
            offset: (offset & 0xffff) as u16,
        };
    }
    true
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
        *scale = (largest / 127.0).max(widest / (STEPS * MAX_MULTIPLIER)).max(f32::MIN_POSITIVE * 128.0);
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
            for multiplier in [finest.clamp(1.0, MAX_MULTIPLIER), (finest + 1.0).min(MAX_MULTIPLIER)] {
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

dispatch! {
    /// [`expand`] for fine groups.
    fn expand_fine(nibbles: &[u32], groups: &[PanelFineGroups], panel: &mut [u32]) {
        let lines = nibbles.as_chunks::<COLUMNS>().0.as_chunks::<{ GROUP_WORDS / 2 }>().0;
        let panel = panel.as_chunks_mut::<COLUMNS>().0.as_chunks_mut::<GROUP_WORDS>().0;
        for ((lines, group), panel) in lines.iter().zip(groups).zip(panel) {
            #[cfg(target_arch = "x86_64")]
            if WIDE {
                // SAFETY: `WIDE` bodies only run if `InstructionSet::available` found AVX-512.
                unsafe { wide::expand_fine(lines, [&group.multipliers, &group.offsets], panel) };
                continue;
            }
            for (line, panel) in lines.iter().zip(panel.as_chunks_mut::<2>().0) {
                for column in 0..COLUMNS {
                    let (multiplier, offset) =
                        (u32::from(group.multipliers[column]), u32::from(group.offsets[column]));
                    for (shift, panel) in [0, 4].into_iter().zip(panel.iter_mut()) {
                        let word = line[column] >> shift & LOW;
                        let byte = |place: u32| {
                            (word >> place & 0xff).wrapping_mul(multiplier).wrapping_sub(offset) >> 8 & 0xff
                        };
                        panel[column] = byte(0) | byte(8) << 8 | byte(16) << 16 | byte(24) << 24;
                    }
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

    /// A row as a file stores it, and its values. Steps may be negative, and some groups have one value only.
    fn stored_row(rng: &mut StdRng, groups: usize) -> (Vec<FourBits>, Vec<f32>) {
        let group = |rng: &mut StdRng| {
            let step = rng.random_range(-1.0..1.0_f32) * [0.0, 1e-3, 0.1, 1.0][rng.random_range(0..4)];
            let least = [-8.0 * step, rng.random_range(-1.0..1.0), 0.0][rng.random_range(0..3)];
            let most = [1, 2, 16][rng.random_range(0..3)];
            FourBits { step, least, nibbles: std::array::from_fn(|_| rng.random_range(0..most)) }
        };
        let stored: Vec<FourBits> = (0..groups).map(|_| group(rng)).collect();
        let value =
            |group: &FourBits| group.nibbles.map(|nibble| group.step * f32::from(nibble) + group.least);
        let values = stored.iter().flat_map(value).collect();
        (stored, values)
    }

    #[test]
    fn nibbles_of_a_file_are_kept_and_their_bytes_are_near_their_values() {
        let mut rng = StdRng::seed_from_u64(44);
        let mut kept = 0;
        for groups in (1..=9).cycle().take(500) {
            let (stored, values) = stored_row(&mut rng, groups);
            let padded = groups.next_multiple_of(2);
            let (mut nibbles, mut fine) = (vec![9; padded * GROUP], vec![FineGroup::default(); padded]);
            let mut scale = 0.0;
            if !keep(&stored, &values, &mut nibbles, &mut fine, &mut scale) {
                continue;
            }
            kept += 1;
            for (index, value) in values.iter().enumerate() {
                let (group, nibble) = (index / GROUP, nibbles[index]);
                assert_eq!(nibble, stored[group].nibbles[index % GROUP]);
                let byte = f32::from(fine[group].byte(nibble));
                assert!((byte - value / scale).abs() <= 0.54, "{byte} for {}", value / scale);
            }
            assert!(nibbles[values.len()..].iter().all(|&nibble| nibble == 0));
            assert!(fine[groups..].iter().all(|group| group.byte(0) == 0));
        }
        assert!(kept > 400, "{kept}");
    }

    #[test]
    fn rows_of_a_file_that_have_no_bytes_are_not_kept() {
        let of = |step: f32, least: f32, nibble: u8| {
            let stored = [FourBits { step, least, nibbles: [nibble; GROUP] }];
            let values = [step * f32::from(nibble) + least; GROUP];
            let (mut nibbles, mut groups) = ([0; 2 * GROUP], [FineGroup::default(); 2]);
            keep(&stored, &values, &mut nibbles, &mut groups, &mut 0.0)
        };
        assert!(of(1.0, -8.0, 15) && of(-1.0, 8.0, 0) && of(0.0, 0.0, 7));
        assert!(!of(f32::INFINITY, 0.0, 1) && !of(f32::NAN, 0.0, 0) && !of(1.0, f32::NEG_INFINITY, 1));
        // Values near zero as the difference of large numbers.
        assert!(!of(1e9, -8e9, 8));
    }

    /// Panels of random nibbles expand to the bytes of their groups. `set_group` gives a column of a panel a
    /// random group, and returns the byte of each nibble in it.
    fn assert_panels_expand<P: Copy>(
        seed: u64,
        empty: P,
        mut set_group: impl FnMut(&mut StdRng, &mut P, usize) -> [i8; 16],
        expand: impl Fn(InstructionSet, &[u32], &[P], &mut [u32]),
    ) {
        let mut rng = StdRng::seed_from_u64(seed);
        for groups in [1, 2, 3, 8] {
            let mut of_panel = vec![empty; groups];
            let mut expected = vec![0_u32; groups * GROUP_WORDS * COLUMNS];
            let mut lines = vec![[0_u32; COLUMNS]; groups * GROUP_WORDS];
            for (index, of_panel) in of_panel.iter_mut().enumerate() {
                for column in 0..COLUMNS {
                    let bytes_of = set_group(&mut rng, of_panel, column);
                    for word in index * GROUP_WORDS..(index + 1) * GROUP_WORDS {
                        let four: [u8; 4] = std::array::from_fn(|_| rng.random_range(0..16));
                        lines[word][column] = u32::from_le_bytes(four);
                        let bytes = four.map(|nibble| bytes_of[usize::from(nibble)].cast_unsigned());
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

    #[test]
    fn panels_hold_the_bytes_of_their_fine_groups() {
        let set_group = |rng: &mut StdRng, panel: &mut PanelFineGroups, column| {
            let group = FineGroup { multiplier: rng.random(), offset: rng.random() };
            panel.set(column, group);
            std::array::from_fn(|nibble| group.byte(nibble as u8))
        };
        assert_panels_expand(45, PanelFineGroups::EMPTY, set_group, expand_fine);
    }

    #[test]
    fn panels_hold_the_bytes_of_their_nibbles() {
        let set_group = |rng: &mut StdRng, panel: &mut PanelGroups, column| {
            let group = NibbleGroup { multiplier: rng.random_range(0..=17), offset: rng.random() };
            panel.set(column, group);
            std::array::from_fn(|nibble| group.byte(nibble as u8))
        };
        assert_panels_expand(42, PanelGroups::EMPTY, set_group, expand);
    }
}
