//! Errors about a model's kind, at the start. Each names the flag that decides.

use super::RequestedType;
use text_embeddings_backend_core::Pool;

/// A model whose kind is unclear, or differs from the kind that the flags name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DetectError {
    /// A causal language model without any hint about its use.
    #[error(
        "nothing in the files of `{name}` says what it is: give `--model-type listwise-reranker` if it is a \
         generative re-ranker such as Qwen3-Reranker, `--model-type decider` if it is an instruct model that \
         answers questions about a text, or `--pooling last-token` (or mean, cls) if it is an embedding model"
    )]
    Ambiguous {
        /// The model.
        name: String,
    },
    /// A late-interaction model that is to be of another kind.
    #[error(
        "`{name}` compares queries and documents token by token (ColBERT), so it is a re-ranker, and \
         `/embed_all` gives its vectors: leave `--model-type` and `--pooling` out"
    )]
    LateInteraction {
        /// The model.
        name: String,
    },
    /// An embedding model, by its other files or by exclusion, without a pooling.
    #[error(
        "`{name}` ({architecture}) would be an embedding model, but no 1_Pooling/config.json says how it \
         pools: give `--pooling` (cls, mean, splade or last-token), or the right kind with `--model-type`"
    )]
    NoPooling {
        /// The model.
        name: String,
        /// Its architecture.
        architecture: String,
    },
    /// A flag or file asks for SPLADE, but the model does not have the head for it.
    #[error(
        "a SPLADE model needs a masked-language-model head (an architecture that ends in ForMaskedLM), but \
         `{name}` is {architecture}: leave `--pooling splade` out, or choose another model"
    )]
    NoMaskedHead {
        /// The model.
        name: String,
        /// Its architecture.
        architecture: String,
    },
    /// A re-ranker that does not score pairs in single forward passes, and is not supported.
    #[error("`{name}` cannot be served as a re-ranker: {reason}")]
    Unserved {
        /// The model.
        name: String,
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// A pooling module with modes that this server does not support.
    #[error(
        "the pooling of `{name}` is not exactly one of cls, mean and lasttoken in 1_Pooling/config.json: \
         choose one with `--pooling`, if the model works with it"
    )]
    UnsupportedPooling {
        /// The model.
        name: String,
    },
    /// `--pooling` together with a `--model-type` that does not pool.
    #[error(
        "`--pooling {pooling}` makes no sense with `--model-type {model_type}`: leave one of the two out"
    )]
    PoolingWithoutEmbedding {
        /// The requested kind.
        model_type: RequestedType,
        /// The requested pooling.
        pooling: Pool,
    },
    /// `--model-type` asks for a classification head, but the model has none.
    #[error(
        "`--model-type {model_type}` needs a classification head, but `{name}` is {architecture}: {advice}"
    )]
    NoClassificationHead {
        /// The requested kind.
        model_type: RequestedType,
        /// The model.
        name: String,
        /// Its architecture.
        architecture: String,
        /// What to do.
        advice: String,
    },
    /// `--model-type reranker` for a head with more than two labels.
    #[error(
        "`--model-type reranker` needs a head with one or two labels, but `{name}` has {labels}: give \
         `--model-type classifier`"
    )]
    SeveralLabels {
        /// The model.
        name: String,
        /// Its labels.
        labels: usize,
    },
    /// `--model-type listwise-reranker` or `decider` for a model with a classification head.
    #[error(
        "`--model-type {model_type}` needs a causal language model, but `{name}` is {architecture}: \
         leave the flag out, or give `--model-type reranker`"
    )]
    NotCausal {
        /// The requested kind.
        model_type: RequestedType,
        /// The model.
        name: String,
        /// Its architecture.
        architecture: String,
    },
}
