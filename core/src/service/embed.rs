//! Embeddings: texts or token ids to vectors, and what follows from vectors.
//!
//! Input: one of this file's requests. Output: vectors, in the order of the request. What must hold: an input's vector
//! does not depend on the other inputs of its request; every route gives the same vector for the same input.

use super::{
    Answer, Service,
    request::{measured, method},
};
use crate::{error::Error, tokenization::TruncationDirection};
use text_embeddings_backend_core::ModelType;

/// One input of an embedding model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbedInput {
    /// A text, which the tokenizer encodes with its special tokens.
    Text(String),
    /// Token ids, which are taken as they are.
    Ids(Vec<u32>),
}

/// How an input becomes tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EmbedEncoding {
    /// Whether too long inputs are truncated; the server's default if absent.
    pub truncate: Option<bool>,
    /// From which end an input is cut.
    pub truncation_direction: TruncationDirection,
    /// Which of the model's prompts is put before the text; the server's default if absent.
    pub prompt_name: Option<String>,
}

/// Inputs that become a vector each.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedRequest {
    /// The inputs. Must not be empty.
    pub inputs: Vec<EmbedInput>,
    /// How they become tokens.
    pub encoding: EmbedEncoding,
    /// Whether vectors are scaled to length one.
    pub normalize: bool,
    /// How many of a vector's first values are wanted (Matryoshka); all if absent.
    pub dimensions: Option<usize>,
}

/// Inputs whose every token becomes a vector.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedAllRequest {
    /// The inputs. Must not be empty.
    pub inputs: Vec<EmbedInput>,
    /// How they become tokens.
    pub encoding: EmbedEncoding,
}

/// Inputs that become a sparse vector each.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedSparseRequest {
    /// The inputs. Must not be empty.
    pub inputs: Vec<EmbedInput>,
    /// How they become tokens.
    pub encoding: EmbedEncoding,
}

/// A value of a sparse vector that is not zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparseValue {
    /// The vocabulary entry.
    pub index: usize,
    /// Its activation.
    pub value: f32,
}

/// One sentence to compare with many.
#[derive(Debug, Clone, PartialEq)]
pub struct SimilarityRequest {
    /// What the others are compared with.
    pub source_sentence: String,
    /// The others. Must not be empty.
    pub sentences: Vec<String>,
    /// How they become tokens.
    pub encoding: EmbedEncoding,
}

impl Service {
    /// A vector for each input.
    ///
    /// # Errors
    ///
    /// [`Error::ModelType`] if the model is not an embedding model; [`Error::Empty`], [`Error::BatchTooLarge`] and
    /// [`Error::Validation`] for a request that cannot be served, [`Error::TooLong`] for an input that must not be
    /// truncated; [`Error::Overloaded`] without a free permit; what goes wrong in the tokenizer or the model.
    pub async fn embed(&self, request: EmbedRequest) -> Result<Answer<Vec<Vec<f32>>>, Error> {
        measured(method(request.inputs.len()), async { Err(self.not_an_embedding_model()) }).await
    }

    /// A vector for each token of each input.
    ///
    /// # Errors
    ///
    /// As [`Service::embed`].
    pub async fn embed_all(&self, request: EmbedAllRequest) -> Result<Answer<Vec<Vec<Vec<f32>>>>, Error> {
        measured(method(request.inputs.len()), async { Err(self.not_an_embedding_model()) }).await
    }

    /// A sparse vector for each input.
    ///
    /// # Errors
    ///
    /// [`Error::ModelType`]: no splade model is served yet.
    pub async fn embed_sparse(
        &self,
        request: EmbedSparseRequest,
    ) -> Result<Answer<Vec<Vec<SparseValue>>>, Error> {
        measured(method(request.inputs.len()), async { Err(self.not_an_embedding_model()) }).await
    }

    /// The cosine of the source sentence's vector with each other sentence's, in their order.
    ///
    /// # Errors
    ///
    /// As [`Service::embed`].
    pub async fn similarity(&self, request: SimilarityRequest) -> Result<Answer<Vec<f32>>, Error> {
        measured(method(request.sentences.len()), async { Err(self.not_an_embedding_model()) }).await
    }

    fn not_an_embedding_model(&self) -> Error {
        debug_assert!(!matches!(self.config.model_type, ModelType::Embedding(_)));
        Error::ModelType { wanted: "an embedding" }
    }
}
