//! Rotary position embeddings: cosines and sines of every position's angles.
//!
//! Angles are computed in `f32`, position times inverse frequency, as in the reference (transformers,
//! `modeling_rope_utils.py`): at large positions, their rounding is part of the model's definition. Some
//! scalings depend on the length of the text ([`Scaling::depends_on_length`]). A token's state then depends
//! on it, too, so prefixes cannot be shared.

use std::{collections::BTreeMap, f64::consts::PI, ops::Range};

/// All tables are dropped before a batch if there are more than this. Texts of different lengths may need a
/// table each.
const MAX_TABLES: usize = 16;

/// How frequencies change for texts that are longer than in the first training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scaling {
    None,
    /// All frequencies are divided by the factor.
    Linear {
        factor: f64,
    },
    /// Texts longer than `original` tokens get a larger base, which grows with their length.
    Dynamic {
        factor: f64,
        /// Tokens of the longest text that is not scaled.
        original: usize,
    },
    /// High frequencies stay, low ones are divided by the factor, and a ramp joins the two (Peng et al.
    /// 2023).
    Yarn(Yarn),
    /// Like YaRN, but by wavelength, as in Llama 3.1.
    Llama3 {
        factor: f64,
        /// Wavelengths beyond `original / low` are divided by the factor.
        low: f64,
        /// Wavelengths below `original / high` stay.
        high: f64,
        /// The longest text of the first training, in tokens.
        original: usize,
    },
    /// A divisor for each frequency: one list for texts of up to `original` tokens, one for longer texts.
    LongRope(LongRope),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Yarn {
    pub(crate) factor: f64,
    /// The longest text of the first training, in tokens.
    pub(crate) original: usize,
    /// A frequency that rotates more often than this within `original` tokens stays.
    pub(crate) beta_fast: f64,
    /// A frequency that rotates less often than this is divided by the factor.
    pub(crate) beta_slow: f64,
    /// Whether the ends of the ramp are rounded to whole indices.
    pub(crate) truncate: bool,
    /// The factor of cosines and sines.
    pub(crate) attention_factor: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LongRope {
    /// The divisors for short texts.
    pub(crate) short: Vec<f64>,
    /// The divisors for long texts.
    pub(crate) long: Vec<f64>,
    /// Tokens of the longest short text.
    pub(crate) original: usize,
    /// The factor of cosines and sines.
    pub(crate) attention_factor: f64,
}

impl Scaling {
    /// Whether a token's angle depends on the length of its text.
    pub(crate) fn depends_on_length(&self) -> bool {
        match self {
            Self::Dynamic { .. } => true,
            Self::LongRope(long) => long.short != long.long,
            _ => false,
        }
    }
}

/// Rotary positions of heads of one size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rope {
    /// Values per head.
    pub(crate) size: usize,
    /// Values per head that positions rotate: those at the beginning of both halves ([`Rope::head_order`]).
    pub(crate) rotated: usize,
    /// The base of the frequencies.
    pub(crate) theta: f64,
    pub(crate) scaling: Scaling,
}

impl Rope {
    /// The order of a head's stored values. Checkpoints have the rotated values first, and their halves are
    /// pairs. Here the halves of the whole head are pairs. Scores do not depend on the order.
    pub(crate) fn head_order(&self) -> [Range<usize>; 4] {
        let (half, rotated) = (self.size / 2, self.rotated / 2);
        [0..rotated, 2 * rotated..rotated + half, rotated..2 * rotated, rotated + half..2 * half]
    }

    /// A number for the text's length. Texts with the same number have the same angles.
    fn kind_of(&self, tokens: usize) -> usize {
        match &self.scaling {
            Scaling::Dynamic { original, .. } if tokens > *original => tokens,
            Scaling::LongRope(long) if self.scaling.depends_on_length() => {
                usize::from(tokens > long.original)
            }
            _ => 0,
        }
    }

    /// The inverse frequencies of texts of this kind, and the factor of their cosines and sines.
    fn frequencies(&self, kind: usize) -> (Vec<f32>, f32) {
        let size = self.rotated as f32;
        let base = |theta: f64| -> Vec<f32> {
            (0..self.rotated / 2).map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / size)).collect()
        };
        let plain = || base(self.theta);
        match &self.scaling {
            Scaling::None => (plain(), 1.0),
            Scaling::Linear { factor } => {
                (plain().iter().map(|frequency| frequency / *factor as f32).collect(), 1.0)
            }
            Scaling::Dynamic { .. } if kind == 0 => (plain(), 1.0),
            Scaling::Dynamic { factor, original } => {
                let size = self.rotated as f64;
                let growth = factor * kind as f64 / *original as f64 - (factor - 1.0);
                (base(self.theta * growth.powf(size / (size - 2.0))), 1.0)
            }
            Scaling::Yarn(yarn) => (yarn.frequencies(self, &plain()), yarn.attention_factor as f32),
            Scaling::Llama3 { factor, low, high, original } => {
                let mut frequencies = plain();
                for value in &mut frequencies {
                    let frequency = f64::from(*value);
                    let wavelengths = *original as f64 * frequency / (2.0 * PI);
                    let smooth = ((wavelengths - low) / (high - low)).clamp(0.0, 1.0);
                    *value = ((1.0 - smooth) * frequency / factor + smooth * frequency) as f32;
                }
                (frequencies, 1.0)
            }
            Scaling::LongRope(long) => {
                let divisors = if kind == 0 { &long.short } else { &long.long };
                let plain = plain();
                let divided =
                    plain.iter().zip(divisors).map(|(frequency, divisor)| frequency / *divisor as f32);
                (divided.collect(), long.attention_factor as f32)
            }
        }
    }
}

impl Yarn {
    fn frequencies(&self, rope: &Rope, plain: &[f32]) -> Vec<f32> {
        let size = rope.rotated as f64;
        let index = |rotations: f64| {
            size * (self.original as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * rope.theta.ln())
        };
        let (mut low, mut high) = (index(self.beta_fast), index(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(size - 1.0));
        // A range that ends before it begins scales nothing, as in transformers.
        let width = if high - low == 0.0 { 0.001 } else { high - low };
        plain
            .iter()
            .enumerate()
            .map(|(i, frequency)| {
                let ramp = ((i as f64 - low) / width).clamp(0.0, 1.0);
                let frequency = f64::from(*frequency);
                (frequency / self.factor * ramp + frequency * (1.0 - ramp)) as f32
            })
            .collect()
    }
}

/// Cosines and sines of a position, half a head's size each.
pub(crate) type Angles<'a> = (&'a [f32], &'a [f32]);

/// Cosines and sines for the positions and lengths seen so far.
pub(crate) struct RopeTables {
    rope: Rope,
    tables: BTreeMap<usize, AngleTable>,
}

struct AngleTable {
    frequencies: Vec<f32>,
    /// Half a head's size. Angles without a frequency are zero.
    half: usize,
    factor: f32,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl RopeTables {
    pub(crate) fn new(rope: Rope) -> Self {
        Self { rope, tables: BTreeMap::new() }
    }

    /// Prepares [`RopeTables::at`] for all positions of texts of these lengths.
    pub(crate) fn extend_to(&mut self, lengths: impl Iterator<Item = usize>) {
        if self.tables.len() > MAX_TABLES {
            self.tables.clear();
        }
        for tokens in lengths {
            let kind = self.rope.kind_of(tokens);
            let table = self.tables.entry(kind).or_insert_with(|| {
                let (frequencies, factor) = self.rope.frequencies(kind);
                AngleTable {
                    frequencies,
                    half: self.rope.size / 2,
                    factor,
                    cosines: Vec::new(),
                    sines: Vec::new(),
                }
            });
            table.extend_to(tokens);
        }
    }

    /// The angles of a position in a text of `tokens` tokens.
    pub(crate) fn at(&self, position: usize, tokens: usize) -> Angles<'_> {
        let table = &self.tables[&self.rope.kind_of(tokens)];
        let half = table.half;
        (&table.cosines[position * half..][..half], &table.sines[position * half..][..half])
    }
}

impl AngleTable {
    fn extend_to(&mut self, positions: usize) {
        for position in self.cosines.len() / self.half..positions {
            for frequency in &self.frequencies {
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                self.cosines.push(cosine * self.factor);
                self.sines.push(sine * self.factor);
            }
            self.cosines.resize((position + 1) * self.half, 1.0);
            self.sines.resize((position + 1) * self.half, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(scaling: Scaling) -> RopeTables {
        RopeTables::new(Rope { size: 8, rotated: 8, theta: 1e6, scaling })
    }

    #[test]
    fn angles_follow_the_formula_and_position_zero_does_not_turn() {
        let mut tables = tables(Scaling::None);
        tables.extend_to([3, 70].into_iter());
        assert_eq!(tables.at(0, 70), (&[1.0; 4][..], &[0.0; 4][..]));
        for position in [1, 2, 69] {
            let (cosines, sines) = tables.at(position, 70);
            for i in 0..4 {
                let angle = position as f64 / 1e6_f64.powf(i as f64 / 4.0);
                assert!((f64::from(cosines[i]) - angle.cos()).abs() < 1e-5);
                assert!((f64::from(sines[i]) - angle.sin()).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn angles_depend_on_the_length_where_the_scaling_says_so() {
        for (scaling, depends) in [
            (Scaling::Linear { factor: 2.0 }, false),
            (Scaling::Dynamic { factor: 2.0, original: 10 }, true),
            (
                Scaling::LongRope(LongRope {
                    short: vec![1.0; 4],
                    long: vec![2.0; 4],
                    original: 10,
                    attention_factor: 1.5,
                }),
                true,
            ),
        ] {
            assert_eq!(scaling.depends_on_length(), depends);
            let mut tables = tables(scaling.clone());
            tables.extend_to([5, 10, 11].into_iter());
            assert_eq!(tables.at(4, 5), tables.at(4, 10));
            assert_eq!(tables.at(4, 10) != tables.at(4, 11), depends, "{scaling:?}");
        }
    }

    /// The frequencies of transformers 5.23 (`_compute_yarn_parameters`).
    #[test]
    fn a_yarn_range_may_end_before_it_begins() {
        for (beta_fast, beta_slow, expected) in [
            (32.0, 1.0, [1.0, 3.162e-1, 8.125e-2, 1.976e-2, 4.375e-3, 7.906e-4, 2.5e-4, 7.906e-5]),
            (1.0, 1.0, [1.0, 3.162e-1, 0.1, 3.162e-2, 0.01, 7.906e-4, 2.5e-4, 7.906e-5]),
            (1.0, 32.0, [0.25, 7.906e-2, 0.025, 1.976e-2, 0.01, 3.162e-3, 0.001, 3.162e-4]),
        ] {
            let yarn = Yarn {
                factor: 4.0,
                original: 1024,
                beta_fast,
                beta_slow,
                truncate: true,
                attention_factor: 1.0,
            };
            let rope = Rope { size: 16, rotated: 16, theta: 1e4, scaling: Scaling::Yarn(yarn) };
            let found = rope.frequencies(0).0;
            for (found, expected) in found.iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-3, "{beta_fast} {beta_slow}: {found} {expected}");
            }
        }
    }

    #[test]
    fn tables_of_many_lengths_do_not_pile_up() {
        let mut tables = tables(Scaling::Dynamic { factor: 2.0, original: 1 });
        for tokens in 2..200 {
            tables.extend_to(std::iter::once(tokens));
            assert!(tables.tables.len() <= MAX_TABLES + 1);
            assert_eq!(tables.at(tokens - 1, tokens).0.len(), 4);
        }
    }
}
