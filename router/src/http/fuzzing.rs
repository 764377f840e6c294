//! Arbitrary bytes as the body of each route, in each dialect and both formats, for the fuzz target
//! `request`.
//!
//! Input: a byte that chooses the format, then a body. Output: none. What must hold: nothing panics, and the
//! texts that are built from a body are bounded by the payload limit.

use super::{
    cohere::CohereEmbedBody,
    decide,
    embed::{EmbedAllBody, EmbedBody, EmbedSparseBody},
    extract::DecodedBody,
    format::BodyFormat,
    openai::OpenAiBody,
    predict::PredictBody,
    rerank::{self, RerankBody},
    score,
    similarity::SimilarityBody,
    tokenize::{DecodeBody, TokenizeBody},
    vertex::VertexBody,
};

#[cfg(test)]
#[expect(
    unreachable_pub,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "it has several users, tests all of them"
)]
#[path = "../../../fuzz/src/seeded.rs"]
mod seeded;

/// Reads a body as every route would.
pub(crate) fn request(data: &[u8]) {
    let Some((format, body)) = data.split_first() else { return };
    let format = if format % 2 == 0 { BodyFormat::Json } else { BodyFormat::MessagePack };
    let Ok(body) = DecodedBody::new(body.to_vec(), format) else { return };
    drop(body.parse::<RerankBody>());
    drop(score::read(&body).map(|read| read.body));
    drop(body.parse::<EmbedBody>());
    drop(body.parse::<EmbedAllBody>());
    drop(body.parse::<EmbedSparseBody>());
    drop(body.parse::<PredictBody>());
    drop(body.parse::<SimilarityBody>());
    drop(body.parse::<TokenizeBody>());
    drop(body.parse::<DecodeBody>());
    drop(body.parse::<OpenAiBody>());
    drop(body.parse::<CohereEmbedBody>().map(CohereEmbedBody::build_request));
    drop(body.parse::<VertexBody>());
    rerank::check_reading(&body);
    decide::check_reading(&body);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::seeded;

    #[test]
    fn changed_bodies_of_each_dialect_and_format() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        seeded::run(root, "request", 3000, super::request);
    }
}
