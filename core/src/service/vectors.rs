//! The scaling of the vectors of tokens before they are compared, kept or sent.

use text_embeddings_backend_core::TokenVectors;

/// The vectors of tokens, each of length one. As in torch, a shorter one than 1e-12 is not scaled to that.
pub(super) fn unit_vectors(mut tokens: TokenVectors) -> TokenVectors {
    for vector in tokens.values.chunks_exact_mut(tokens.width.max(1)) {
        let squares: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
        let length = squares.sqrt().max(1e-12);
        for value in vector {
            *value = (f64::from(*value) / length) as f32;
        }
    }
    tokens
}

/// The vectors of all tokens but the first, the beginning of the text.
pub(super) fn without_first(mut tokens: TokenVectors) -> TokenVectors {
    tokens.values.drain(..tokens.width.min(tokens.values.len()));
    tokens
}
