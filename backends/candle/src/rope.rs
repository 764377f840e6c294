//! Rotary position embeddings: cosines and sines of every position's angles.
//!
//! Angles are formed in `f32`, position times inverse frequency, as the reference does (transformers,
//! `modeling_rope_utils.py`, type `default`): at large positions their rounding is part of the model's definition.

/// Cosines and sines for the positions seen so far.
pub(crate) struct RopeTable {
    inverse_frequencies: Vec<f32>,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl RopeTable {
    /// The table for heads of `size` values with the base `theta`: inverse frequencies `theta^(-2i / size)`.
    pub(crate) fn new(size: usize, theta: f64) -> Self {
        let inverse_frequencies =
            (0..size / 2).map(|i| 1.0 / (theta as f32).powf((2 * i) as f32 / size as f32)).collect();
        Self { inverse_frequencies, cosines: Vec::new(), sines: Vec::new() }
    }

    /// Computes what is missing of the first `positions` positions.
    pub(crate) fn extend_to(&mut self, positions: usize) {
        for position in self.cosines.len() / self.inverse_frequencies.len()..positions {
            for frequency in &self.inverse_frequencies {
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                self.cosines.push(cosine);
                self.sines.push(sine);
            }
        }
    }

    /// Cosines and sines of one position, half a head's size each.
    pub(crate) fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.inverse_frequencies.len();
        (&self.cosines[position * half..][..half], &self.sines[position * half..][..half])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_follow_the_formula_and_position_zero_does_not_turn() {
        let mut table = RopeTable::new(8, 1e6);
        table.extend_to(3);
        table.extend_to(70);
        assert_eq!(table.at(0), (&[1.0; 4][..], &[0.0; 4][..]));
        for position in [1, 2, 69] {
            let (cosines, sines) = table.at(position);
            for i in 0..4 {
                let angle = position as f64 / 1e6_f64.powf(i as f64 / 4.0);
                assert!((f64::from(cosines[i]) - angle.cos()).abs() < 1e-5);
                assert!((f64::from(sines[i]) - angle.sin()).abs() < 1e-5);
            }
        }
    }
}
