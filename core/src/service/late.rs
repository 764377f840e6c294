//! The vectors of late-interaction models (`ColBERT`), which read queries and documents apart.
//!
//! Input: an [`EmbedRequest`] for the vectors of tokens. Output: the vectors that `/rerank` compares
//! (`scoring.rs`). What must hold: both come from the same encoding and the same scaling.

use super::{
    Answer, EmbedRequest, Service,
    embed::{EmbedOutputs, PromptedInputs},
    request::Failed,
    task::ModelTask,
    vectors::unit_vectors,
};
use crate::{error::Error, model::InputType, tokenization::Side};
use std::sync::Arc;
use text_embeddings_backend_core::{TokenVectors, Wanted};

impl Service {
    /// Whether the model is a re-ranker that reads queries and documents apart.
    pub(super) fn reads_apart(&self) -> bool {
        self.config.model.reranker().is_some_and(|model| model.late.is_some())
    }

    /// The vectors that such a model compares: the documents' vectors, or the queries' if the request names
    /// the prompt `query`. They have length one.
    pub(super) async fn side_vectors(
        &self,
        request: EmbedRequest,
    ) -> Result<Answer<Vec<EmbedOutputs>>, Failed> {
        let EmbedRequest { inputs, encoding, dimensions, .. } = request;
        let count = inputs.inputs.len();
        let side = match (encoding.prompt_name.as_deref(), encoding.input_type) {
            (Some("query"), _) | (None, Some(InputType::Query)) => Side::Query,
            (None | Some("document"), _) => Side::Document,
            (Some(other), _) => {
                let message =
                    format!("`prompt_name` is `{other}`, but this model has `query` and `document`");
                return Err(Failed::of_texts(Error::Validation(message), count));
            }
        };
        if inputs.has_ids() {
            let message = "this model reads texts, because it puts a marker into them: send no token ids";
            return Err(Failed::of_texts(Error::Validation(message.to_owned()), count));
        }
        if dimensions.is_some() {
            let message = "`dimensions` is not available for the vectors of a late-interaction model";
            return Err(Failed::of_texts(Error::Validation(message.to_owned()), count));
        }
        let truncation = self.truncation(encoding.truncate, encoding.truncation_direction);
        let inputs = Arc::new(PromptedInputs { prompt: None, inputs: inputs.inputs, side: Some(side) });
        let (outputs, cost) =
            self.compute(&inputs, ModelTask::Embed(Wanted::TOKENS), truncation).await?.into_owned();
        let mut value = Vec::with_capacity(outputs.len());
        for output in outputs {
            let TokenVectors { values, width } = unit_vectors(output.tokens)?;
            let tokens = values.chunks(width.max(1)).map(<[f32]>::to_vec).collect();
            value.push(EmbedOutputs { tokens: Some(tokens), ..EmbedOutputs::default() });
        }
        Ok(Answer { value, cost })
    }
}
