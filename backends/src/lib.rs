//! Chooses and loads a backend. There is one so far: candle's, with this project's own kernels on the CPU.

pub use text_embeddings_backend_candle::{CUTOFF_LAYERS, InstructionSet, LORA_TASK, ON_CPU, describe, load};
pub use text_embeddings_backend_core::{
    Activation, AnswerTokens, Backend, BackendError, Batch, BatchBuilder, DenseModule, Description, Head,
    LoadOptions, Loaded, ModelType, Pool, Text, Wanted,
};
