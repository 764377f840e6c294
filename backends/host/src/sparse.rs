//! Weights of vocabulary entries. What must hold: NaN is kept, so that an answer with NaN becomes an error.

use std::collections::BTreeMap;
use text_embeddings_backend_core::SparseValue;

/// Updates `largest`, the largest logit so far of each vocabulary entry, with a token's logits. The caller
/// starts with zeros.
pub(crate) fn take_largest(largest: &mut [f32], logits: &[f32]) {
    for (largest, &logit) in largest.iter_mut().zip(logits) {
        if logit > *largest || logit.is_nan() {
            *largest = logit;
        }
    }
}

/// SPLADE's weights: `log(1 + x)` of every largest logit `x` above zero.
pub(crate) fn splade_weights(largest: &[f32]) -> Vec<SparseValue> {
    let weights = largest.iter().enumerate().filter(|(_, logit)| is_weight(**logit));
    weights.map(|(index, logit)| SparseValue { index: index as u32, value: logit.ln_1p() }).collect()
}

/// The largest weight of each token if it is above zero, by ascending id.
pub(crate) fn largest_weights(weights: impl IntoIterator<Item = (u32, f32)>) -> Vec<SparseValue> {
    let mut largest = BTreeMap::new();
    for (id, weight) in weights.into_iter().filter(|(_, weight)| is_weight(*weight)) {
        let so_far = largest.entry(id).or_insert(weight);
        if weight > *so_far || weight.is_nan() {
            *so_far = weight;
        }
    }
    largest.into_iter().map(|(index, value)| SparseValue { index, value }).collect()
}

/// Whether a weight belongs in the answer: it is above zero, or NaN.
fn is_weight(value: f32) -> bool {
    value > 0.0 || value.is_nan()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(weights: &[SparseValue]) -> Vec<(u32, u32)> {
        weights.iter().map(|weight| (weight.index, weight.value.to_bits())).collect()
    }

    #[test]
    fn the_largest_logit_above_zero_counts_and_what_is_not_a_number_stays() {
        let mut largest = [0.0; 4];
        for logits in [[1.0, -1.0, f32::NAN, 0.0], [2.0, -3.0, 5.0, -0.0], [0.5, -1.0, -1.0, 0.0]] {
            take_largest(&mut largest, &logits);
        }
        let weights = splade_weights(&largest);
        assert_eq!(bits(&weights[..1]), [(0, 2.0_f32.ln_1p().to_bits())]);
        assert!(weights.len() == 2 && weights[1].index == 2 && weights[1].value.is_nan());
    }

    #[test]
    fn the_largest_weight_of_each_token_counts() {
        let of_tokens = [(7, 0.5), (3, -1.0), (7, 0.25), (1, 0.0), (2, 1.0), (2, f32::NAN), (2, 9.0)];
        let weights = largest_weights(of_tokens);
        assert_eq!(bits(&weights[1..]), [(7, 0.5_f32.to_bits())]);
        assert!(weights.len() == 2 && weights[0].index == 2 && weights[0].value.is_nan());
    }
}
