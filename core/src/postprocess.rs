//! From raw scores to what the client reads: probabilities, and an order with the best first.
//!
//! Input: a text's raw scores, or one score per text. Output: values in [0, 1], or indices. What must hold: results
//! are finite for every finite input, however large; equal scores keep the order in which the texts came.

/// `1 / (1 + e^-x)`, without overflow for large negative `x`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

/// `e^x / Σ e^x` over the classes; the largest is subtracted first, so that nothing overflows.
pub(crate) fn softmax(raw: &[f32]) -> Vec<f32> {
    let largest = raw.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = raw.iter().map(|x| (x - largest).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// The probability of each class: of a single one its sigmoid, of several their softmax.
pub(crate) fn probabilities(raw: &[f32]) -> Vec<f32> {
    match raw {
        [x] => vec![sigmoid(*x)],
        _ => softmax(raw),
    }
}

/// Indices of `scores` from the highest score to the lowest, the first `top_n` of them if given.
pub(crate) fn order(scores: &[f32], top_n: Option<usize>) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..scores.len()).collect();
    indices.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    indices.truncate(top_n.unwrap_or(usize::MAX));
    indices
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
        // Two classes are a sigmoid of their difference.
        assert_close(&softmax(&[0.5, -0.75])[..1], &[f64::from(sigmoid(1.25))]);
    }

    #[test]
    fn one_class_is_a_sigmoid_and_never_always_one() {
        assert_close(&probabilities(&[2.0]), &[0.880_797_078]);
        assert_close(&probabilities(&[0.0, 0.0]), &[0.5, 0.5]);
    }

    #[test]
    fn the_best_come_first_and_equals_keep_their_order() {
        for (scores, top_n, wanted) in [
            (vec![0.1, 0.9, 0.5], None, vec![1, 2, 0]),
            (vec![0.5, 0.9, 0.5, 0.5], None, vec![1, 0, 2, 3]),
            (vec![0.5, 0.9, 0.5, 0.5], Some(2), vec![1, 0]),
            (vec![-1.0, f32::INFINITY, f32::NEG_INFINITY], Some(10), vec![1, 0, 2]),
            (vec![], Some(1), vec![]),
        ] {
            assert_eq!(order(&scores, top_n), wanted, "{scores:?}");
        }
    }
}
