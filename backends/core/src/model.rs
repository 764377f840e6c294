//! The kind of model, its arithmetic and its backend: the terms that every crate shares.

use std::fmt;

/// The kind of a model: how its last hidden states become an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelType {
    /// Texts become vectors.
    Embedding(Pool),
    /// Texts or pairs get one of several labels.
    Classifier,
    /// A classification head with one label scores a pair.
    Reranker,
    /// A causal language model that reads query and document in a prompt. TEI's name covers two kinds:
    ///
    /// - Most read one document per prompt. The score is the probability of one token ("yes") against another
    ///   ("no"), and depends on the pair alone.
    /// - A few (jina-reranker-v3) read a list, many documents in one prompt. The score is the cosine of the
    ///   query's vector and the document's vector, and depends on the other documents in the request.
    ListwiseReranker,
    /// A causal language model that reads a question about a text in its chat template. The answer is a
    /// probability for each listed label, from the logits of the labels' tokens.
    Decider,
}

impl fmt::Display for ModelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding(pool) => write!(f, "embedding model ({pool} pooling)"),
            Self::Classifier => f.write_str("classifier"),
            Self::Reranker => f.write_str("re-ranker with a classification head"),
            Self::ListwiseReranker => f.write_str("generative re-ranker"),
            Self::Decider => f.write_str("decider"),
        }
    }
}

/// The value of `--pooling`: the vectors that an embedding model is served for. The head that follows from it
/// is a [`Head`](crate::Head).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The first token's state.
    Cls,
    /// The mean over the tokens.
    Mean,
    /// Sparse vectors of a SPLADE model, which pools no states.
    Splade,
    /// The last token's state.
    LastToken,
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cls => "cls",
            Self::Mean => "mean",
            Self::Splade => "splade",
            Self::LastToken => "last-token",
        })
    }
}

/// The arithmetic of the matrix products in the forward pass. Weights may be stored in a smaller type. Norms,
/// sums and softmax always use 32-bit floating point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// 32-bit floating point.
    Float32,
    /// 16-bit floating point (IEEE half).
    Float16,
    /// 16-bit floating point with the range of 32-bit.
    BFloat16,
    /// Products of 8-bit integers; everything else in floating point.
    Int8,
    /// Like [`DType::Int8`], with weights of 4 bits in groups.
    Int4,
}

impl DType {
    /// All variants.
    pub const ALL: [Self; 5] = [Self::Float32, Self::Float16, Self::BFloat16, Self::Int8, Self::Int4];
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        })
    }
}

/// A backend: the code that computes the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// This project's own models and kernels, with candle on a GPU.
    #[default]
    Candle,
    /// ONNX Runtime, for models exported to ONNX.
    Ort,
    /// A Python process with sentence-transformers.
    Python,
}

impl BackendKind {
    /// Every backend, in the order of the help text.
    pub const ALL: [Self; 3] = [Self::Candle, Self::Ort, Self::Python];

    /// The value of `--backend`, which is also the Cargo feature that builds it in.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Candle => "candle",
            Self::Ort => "ort",
            Self::Python => "python",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
