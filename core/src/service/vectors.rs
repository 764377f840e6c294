//! The scaling of the vectors of tokens before they are compared, kept or sent.

use crate::error::Error;
use text_embeddings_backend_core::TokenVectors;

/// The vectors of tokens, each of length one. As in torch, a shorter one than 1e-12 is not scaled to that.
pub(super) fn unit_vectors(mut tokens: TokenVectors) -> Result<TokenVectors, Error> {
    for vector in tokens.values.chunks_exact_mut(tokens.width.max(1)) {
        let squares: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
        if !squares.is_finite() {
            return Err(Error::MissingValues);
        }
        let length = squares.sqrt().max(1e-12);
        for value in vector {
            *value = (f64::from(*value) / length) as f32;
        }
    }
    Ok(tokens)
}

/// The vectors of all tokens but the first, the beginning of the text.
pub(super) fn without_first(mut tokens: TokenVectors) -> TokenVectors {
    tokens.values.drain(..tokens.width.min(tokens.values.len()));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_not_finite_is_an_error_and_zeros_stay() {
        let scaled = |values: [f32; 4]| unit_vectors(TokenVectors { values: values.to_vec(), width: 2 });
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(scaled([3.0, 4.0, 1.0, wrong]).err(), Some(Error::MissingValues), "{wrong}");
        }
        let found = scaled([0.0, 0.0, f32::MAX, -f32::MAX]).map(|tokens| tokens.values);
        let half = std::f32::consts::FRAC_1_SQRT_2;
        assert_eq!(found.ok(), Some(vec![0.0, 0.0, half, -half]));
    }
}
