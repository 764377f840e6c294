//! Turns the model's values into those that the client reads: probabilities, an order with the best first,
//! vectors of length one, and cosines.
//!
//! Input: a text's raw scores or vector, or one score per text. Output: values in [0, 1], indices, vectors,
//! or a cosine. What must hold: results are finite for every finite input, however large; equal scores keep
//! the order of the texts.

/// `1 / (1 + e^-x)`, without overflow for large negative `x`.
pub fn sigmoid(x: f32) -> f32 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

/// `e^x / Σ e^x` over the classes. The largest value is subtracted first to prevent overflow.
pub(crate) fn softmax(raw: &[f32]) -> Vec<f32> {
    let largest = raw.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = raw.iter().map(|x| (x - largest).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// The probability of each class: the sigmoid for a single class, the softmax for several.
pub(crate) fn probabilities(raw: &[f32]) -> Vec<f32> {
    match raw {
        [x] => vec![sigmoid(*x)],
        _ => softmax(raw),
    }
}

/// The indices of `scores` in descending order of the score.
pub(crate) fn order(scores: &[f32]) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..scores.len()).collect();
    indices.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    indices
}

/// `vector` scaled to length one. A vector of zeros stays unchanged.
pub(crate) fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = dot(vector, vector).sqrt();
    if length == 0.0 {
        return vector.to_vec();
    }
    vector.iter().map(|value| (f64::from(*value) / length) as f32).collect()
}

/// The cosine of the angle between two vectors of equal length, in [-1, 1]; 0 if one of them is all zeros.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let lengths = dot(a, a).sqrt() * dot(b, b).sqrt();
    if lengths == 0.0 { 0.0 } else { (dot(a, b) / lengths).clamp(-1.0, 1.0) as f32 }
}

/// The dot product in double precision, in which squares of `f32` neither overflow nor vanish.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(got: &[f32], wanted: &[f64]) {
        assert_eq!(got.len(), wanted.len());
        for (got, wanted) in got.iter().zip(wanted) {
            assert!((f64::from(*got) - wanted).abs() <= 1e-7, "{got} is not {wanted}");
        }
    }

    #[test]
    fn sigmoid_agrees_with_double_precision_and_saturates() {
        for step in -4000..=4000 {
            let x = step as f32 / 100.0;
            assert_close(&[sigmoid(x)], &[1.0 / (1.0 + (-f64::from(x)).exp())]);
        }
        let extremes = [f32::NEG_INFINITY, f32::MIN, -104.0, 104.0, f32::MAX, f32::INFINITY];
        assert_close(&extremes.map(sigmoid), &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert!(sigmoid(-80.0) > 0.0, "small probabilities keep their order");
    }

    #[test]
    fn softmax_agrees_with_double_precision_and_does_not_overflow() {
        assert_close(&softmax(&[1.0, 2.0, 3.0]), &[0.090_030_573, 0.244_728_471, 0.665_240_956]);
        assert_close(&softmax(&[1e30, 1e30]), &[0.5, 0.5]);
        assert_close(&softmax(&[-1e30, 0.0]), &[0.0, 1.0]);
        // For two classes, the softmax is the sigmoid of their difference.
        assert_close(&softmax(&[0.5, -0.75])[..1], &[f64::from(sigmoid(1.25))]);
    }

    #[test]
    fn one_class_is_a_sigmoid_and_never_always_one() {
        assert_close(&probabilities(&[2.0]), &[0.880_797_078]);
        assert_close(&probabilities(&[0.0, 0.0]), &[0.5, 0.5]);
    }

    #[test]
    fn the_best_come_first_and_equals_keep_their_order() {
        for (scores, wanted) in [
            (vec![0.1, 0.9, 0.5], vec![1, 2, 0]),
            (vec![0.5, 0.9, 0.5, 0.5], vec![1, 0, 2, 3]),
            (vec![-1.0, f32::INFINITY, f32::NEG_INFINITY], vec![1, 0, 2]),
            (vec![], vec![]),
        ] {
            assert_eq!(order(&scores), wanted, "{scores:?}");
        }
    }

    #[test]
    fn vectors_get_length_one_at_every_size() {
        for (vector, wanted) in [
            (vec![3.0, -4.0], vec![0.6, -0.8]),
            (vec![1e-30, 0.0], vec![1.0, 0.0]),
            (vec![3e38, 3e38, 3e38, 3e38], vec![0.5, 0.5, 0.5, 0.5]),
            (vec![1e-45], vec![1.0]),
            (vec![0.0, 0.0], vec![0.0, 0.0]),
        ] {
            assert_close(&normalized(&vector), &wanted);
        }
    }

    #[test]
    fn cosines_do_not_depend_on_lengths_and_stay_within_their_bounds() {
        let long: Vec<f32> = (0..1000).map(|index| (index as f32 * 0.37).sin()).collect();
        let negated: Vec<f32> = long.iter().map(|value| value * -1e-20).collect();
        for (a, b, wanted) in [
            (vec![1.0, 0.0], vec![0.0, 2.0], 0.0),
            (vec![1.0, 2.0, 2.0], vec![2.0, 1.0, -2.0], 0.0),
            (vec![1.0, 1.0], vec![0.0, 5e37], std::f64::consts::FRAC_1_SQRT_2),
            (vec![0.0, 0.0], vec![1.0, 1.0], 0.0),
            (long.clone(), long.clone(), 1.0),
            (long, negated, -1.0),
        ] {
            let cosine = cosine(&a, &b);
            assert_close(&[cosine], &[wanted]);
            assert!((-1.0..=1.0).contains(&cosine));
        }
    }
}
