//! The arithmetic of decisions: probabilities of options, and the values that follow from them.
//!
//! Input: the logits of a question's options. Output: a [`Decision`]. What must hold: probabilities are
//! finite and add up to 1 within rounding; equal logits give the same bits, whatever else is computed.

/// The probabilities of a question's options, in their order: for a yes-or-no question, of yes and of no.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// At least one.
    pub probabilities: Vec<f64>,
}

impl Decision {
    /// The softmax of logits, divided by a temperature; at least one, all finite.
    pub(super) fn from_logits(logits: &[f64], temperature: f64) -> Self {
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect();
        let sum: f64 = powers.iter().sum();
        Self { probabilities: powers.iter().map(|power| power / sum).collect() }
    }

    /// The mean of this decision and another one, whose options are in the opposite order.
    pub(super) fn mean_with_reversed(&self, reversed: &Self) -> Self {
        let pairs = self.probabilities.iter().zip(reversed.probabilities.iter().rev());
        Self { probabilities: pairs.map(|(a, b)| f64::midpoint(*a, *b)).collect() }
    }

    /// The first option with the highest probability.
    pub fn best_index(&self) -> usize {
        let mut best = 0;
        for (index, probability) in self.probabilities.iter().enumerate() {
            if *probability > self.probabilities[best] {
                best = index;
            }
        }
        best
    }

    /// How far a choice is from an even distribution (0) on the way to certainty (1).
    pub fn choice_confidence(&self) -> f64 {
        let count = self.probabilities.len() as f64;
        if count < 2.0 {
            return 1.0;
        }
        (count * self.probabilities[self.best_index()] - 1.0) / (count - 1.0)
    }

    /// The expected index of a scale's levels.
    pub fn expected_level(&self) -> f64 {
        self.probabilities.iter().enumerate().map(|(level, probability)| level as f64 * probability).sum()
    }

    /// How close a scale's levels are to the likeliest one: 1 less the mean distance from it, in units of the
    /// mean distance of all levels from the middle. Not below 0.
    pub fn score_confidence(&self) -> f64 {
        let count = self.probabilities.len() as f64;
        if count < 2.0 {
            return 1.0;
        }
        let mode = self.best_index() as f64;
        let middle = (count - 1.0) / 2.0;
        let (mut distance, mut even) = (0.0, 0.0);
        for (level, probability) in self.probabilities.iter().enumerate() {
            distance += probability * (level as f64 - mode).abs();
            even += (level as f64 - middle).abs() / count;
        }
        (1.0 - distance / even).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_decision(probabilities: &[f64]) -> Decision {
        Decision { probabilities: probabilities.to_vec() }
    }

    /// Answers of `TypeSafe`'s server, whose probabilities are rounded to two decimals, and a row of
    /// llama.cpp.
    #[test]
    fn confidences_are_those_of_other_servers() {
        let even = |count: usize, best: f64| {
            let mut all = vec![(1.0 - best) / (count - 1) as f64; count];
            all[count / 2] = best;
            made_decision(&all)
        };
        for (count, best, expected) in
            [(3, 0.61, 0.42), (4, 0.40, 0.20), (5, 0.74, 0.67), (3, 0.84, 0.76), (2, 0.5, 0.0)]
        {
            let confidence = even(count, best).choice_confidence();
            assert!((confidence - expected).abs() < 0.01, "{count} {best}: {confidence}");
        }
        let scores: [(&[f64], f64); 6] = [
            (&[0.95, 0.05], 0.90),
            (&[0.0, 0.57, 0.43], 0.35),
            (&[0.0, 0.74, 0.26], 0.61),
            (&[0.0, 0.91, 0.09], 0.87),
            (&[0.0, 0.48, 0.52, 0.0], 0.52),
            (&[0.0, 0.0, 0.86, 0.14, 0.0], 0.89),
        ];
        for (probabilities, expected) in scores {
            let confidence = made_decision(probabilities).score_confidence();
            assert!((confidence - expected).abs() < 0.011, "{probabilities:?}: {confidence}");
        }
        let row = made_decision(&[0.0023, 0.1160, 0.6753, 0.2064]);
        assert!(
            (row.score_confidence() - 0.673).abs() < 0.001 && (row.expected_level() - 2.0858).abs() < 0.001
        );
        assert!((made_decision(&[0.5, 0.0, 0.5]).score_confidence()).abs() < 1e-12, "never below zero");
        let one = made_decision(&[1.0]);
        assert_eq!((one.choice_confidence(), one.score_confidence()), (1.0, 1.0));
    }

    #[test]
    fn probabilities_are_finite_for_every_logit_and_the_first_of_equals_is_best() {
        let found = Decision::from_logits(&[-3e38, 3e38, 3e38], 1.0);
        assert_eq!(found.probabilities, [0.0, 0.5, 0.5]);
        assert_eq!(found.best_index(), 1);
        let both = made_decision(&[0.5, 0.25, 0.25]).mean_with_reversed(&made_decision(&[0.75, 0.25, 0.0]));
        assert_eq!(both.probabilities, [0.25, 0.25, 0.5]);
        let sum: f64 = Decision::from_logits(&[0.1, 7.0, -2.0, 3.3], 1.0).probabilities.iter().sum();
        assert!((sum - 1.0).abs() < 1e-15);
    }
}
