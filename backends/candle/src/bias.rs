//! Biases of attention's scores by the distance of query and key: ALiBi, and relative positions in buckets.
//!
//! Input: slopes, or a table of values by bucket. Output: for each head, a line of values by distance.
//! Attention takes slices of the line, because the keys of a query have consecutive distances. What must
//! hold: a line has the distances of the batch's longest text and of one more panel of keys.

/// The number of distances in a line beyond the longest text: attention takes whole panels of keys, and the
/// last panel may end after the text.
const MARGIN: usize = 64;

/// How a bias follows from a distance.
pub(crate) enum DistanceRule {
    /// `-slope · |distance|`, with a slope for each head (ALiBi, in its symmetric form for bidirectional
    /// models).
    Alibi(Vec<f32>),
    /// The value of the distance's bucket.
    Buckets {
        /// For each head, the values of all buckets.
        values: Vec<Vec<f32>>,
        buckets: DistanceBuckets,
    },
}

/// Buckets of distances. Larger distances belong to the buckets of the outermost ones.
pub(crate) struct Buckets {
    /// The buckets of the distances from `-reach` to `reach`.
    pub(crate) of_distance: Vec<u32>,
    /// The largest distance.
    pub(crate) reach: usize,
}

impl Buckets {
    /// The bucket of a query and a key at these positions.
    pub(crate) fn bucket_of(&self, query: usize, key: usize) -> usize {
        let reach = self.reach as i64;
        let distance = (query as i64 - key as i64).clamp(-reach, reach);
        self.of_distance[(distance + reach) as usize] as usize
    }
}

/// Buckets of distances, key position minus query position, as in T5 for bidirectional attention. Keys after
/// the query have the second half of the buckets. In each half, the first buckets (half of them) hold one
/// distance each. The others hold ever longer ranges, by the logarithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DistanceBuckets {
    /// The number of buckets: a multiple of 4.
    pub(crate) count: usize,
    /// Distances from here on have the last bucket. Larger than `count / 4`.
    pub(crate) max_distance: usize,
}

impl DistanceBuckets {
    fn bucket_of(self, distance: i64) -> usize {
        let half = self.count / 2;
        let start = if distance > 0 { half } else { 0 };
        let distance = distance.unsigned_abs() as usize;
        let exact = half / 2;
        if distance < exact {
            return start + distance;
        }
        let share = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        start + (exact + (share * (half - exact) as f32) as usize).min(half - 1)
    }
}

impl DistanceRule {
    fn heads(&self) -> usize {
        match self {
            Self::Alibi(slopes) => slopes.len(),
            Self::Buckets { values, .. } => values.len(),
        }
    }

    fn value(&self, head: usize, distance: i64) -> f32 {
        match self {
            Self::Alibi(slopes) => -slopes[head] * distance.unsigned_abs() as f32,
            Self::Buckets { values, buckets } => values[head][buckets.bucket_of(distance)],
        }
    }
}

/// The bias of each head and distance, for texts up to a length that grows on demand.
pub(crate) struct DistanceBias {
    rule: DistanceRule,
    /// The divisor of scores. Biases are added before the division, so they are stored multiplied by it.
    divisor: f32,
    /// For each head, the values of the distances from `-reach` to `reach`.
    lines: Vec<Vec<f32>>,
    reach: usize,
}

impl DistanceBias {
    /// The biases of this rule, to be added to products of query and key that are then divided by `divisor`.
    pub(crate) fn new(rule: DistanceRule, divisor: f32) -> Self {
        Self { rule, divisor, lines: Vec::new(), reach: 0 }
    }

    /// Makes room for texts of this many tokens.
    pub(crate) fn extend_to(&mut self, tokens: usize) {
        let reach = tokens + MARGIN;
        if reach <= self.reach {
            return;
        }
        // Lines grow by half at least: otherwise each text that is one token longer would rebuild them.
        self.reach = reach.max(self.reach + self.reach / 2);
        let distances = -(self.reach as i64)..=self.reach as i64;
        self.lines = (0..self.rule.heads())
            .map(|head| {
                distances.clone().map(|distance| self.rule.value(head, distance) * self.divisor).collect()
            })
            .collect();
    }

    /// The values to add to the products of the query of `head` at `position` with the `count` keys from
    /// position `first` on.
    pub(crate) fn biases_of(&self, head: usize, position: usize, first: usize, count: usize) -> &[f32] {
        &self.lines[head][self.reach + first - position..][..count]
    }
}

/// The slope of each of `heads` heads (Press et al. 2022). If `heads` is not a power of two, the paper's
/// reference code is followed.
pub(crate) fn alibi_slopes(heads: usize) -> Vec<f32> {
    let powers = |count: usize| {
        let base = (-8.0 / count as f64).exp2();
        (1..=count).map(move |exponent| base.powi(exponent as i32) as f32)
    };
    let whole = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    powers(whole).chain(powers(2 * whole).step_by(2)).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_paper() {
        let eight: Vec<f32> = (1..=8).map(|head| 0.5_f32.powi(head)).collect();
        assert_eq!(alibi_slopes(8), eight);
        let twelve = alibi_slopes(12);
        assert_eq!(twelve[..8], eight);
        for (slope, exponent) in twelve[8..].iter().zip([0.5_f64, 1.5, 2.5, 3.5]) {
            assert!((f64::from(*slope) - 0.5_f64.powf(exponent)).abs() < 1e-7, "{slope}");
        }
    }

    #[test]
    fn lines_hold_the_bias_of_every_distance_and_grow() {
        let mut bias = DistanceBias::new(DistanceRule::Alibi(vec![0.5, 0.25]), 3.0);
        for tokens in [3, 2, 200] {
            bias.extend_to(tokens);
            for head in 0..2 {
                for position in 0..tokens {
                    let slope = [0.5, 0.25][head];
                    let line = bias.biases_of(head, position, 0, tokens);
                    for (key, value) in line.iter().enumerate() {
                        let expected = -slope * position.abs_diff(key) as f32 * 3.0;
                        assert!((value - expected).abs() <= 1e-6 * expected.abs(), "{head} {position} {key}");
                    }
                }
            }
        }
    }

    #[test]
    fn buckets_are_exact_near_and_logarithmic_far() {
        let table = [
            (0, 0),
            (-1, 1),
            (-7, 7),
            (-8, 8),
            (-11, 8),
            (-12, 9),
            (-127, 15),
            (-5000, 15),
            (1, 17),
            (7, 23),
            (8, 24),
            (128, 31),
            (5000, 31),
        ];
        for (distance, bucket) in table {
            assert_eq!(
                DistanceBuckets { count: 32, max_distance: 128 }.bucket_of(distance),
                bucket,
                "{distance}"
            );
        }
    }
}
