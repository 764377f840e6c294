//! Compares one sentence with others by their vectors.
//!
//! Input: a [`SimilarityRequest`]. Output: cosines in the order of the sentences. What must hold: they are
//! the cosines of the vectors that the routes for embeddings give.

use super::{
    Answer, Service,
    embed::{EmbedEncoding, EmbedInput, EmbedInputs},
    request::check_length,
};
use crate::{error::Error, postprocess::cosine};
use text_embeddings_backend_core::Wanted;

/// One sentence to compare with many.
#[derive(Debug, Clone, PartialEq)]
pub struct SimilarityRequest {
    /// The sentence with which the others are compared.
    pub source_sentence: String,
    /// The other sentences. Must not be empty.
    pub sentences: Vec<String>,
    /// The rules by which they become tokens.
    pub encoding: EmbedEncoding,
}

impl Service {
    /// The cosine of the source sentence's vector with the vector of each other sentence, in order.
    ///
    /// # Errors
    ///
    /// As for [`Service::embed`]. The limit of [`Error::BatchTooLarge`] includes the source sentence.
    pub async fn similarity(&self, request: SimilarityRequest) -> Result<Answer<Vec<f32>>, Error> {
        let sentences = request.sentences.len();
        self.model_metrics().refused(check_length("inputs.sentences", sentences, usize::MAX))?;
        self.model_metrics().refused(check_length(
            "inputs",
            sentences + 1,
            self.config.max_client_batch_size,
        ))?;
        self.model_metrics()
            .measured("batch", async {
                let texts = [request.source_sentence].into_iter().chain(request.sentences);
                let texts = EmbedInputs::batch(texts.map(EmbedInput::Text).collect());
                Self::check_inputs(&texts, self.config.max_client_batch_size, || {
                    self.embedder()?;
                    if self.is_splade() { Err(Error::Splade { what: "`similarity`" }) } else { Ok(()) }
                })?;
                let texts = texts.inputs;
                let (outputs, cost) = self.vectors(texts, &request.encoding, Wanted::WHOLE).await?;
                let source = &outputs[0].whole;
                let value = outputs[1..].iter().map(|output| cosine(source, &output.whole)).collect();
                Ok(Answer { value, cost })
            })
            .await
            .map_err(|error| match error {
                // The source sentence is not one of the sentences.
                Error::OfInput { index: 0, error } => *error,
                Error::OfInput { index, error } => Error::OfInput { index: index - 1, error },
                other => other,
            })
    }
}
