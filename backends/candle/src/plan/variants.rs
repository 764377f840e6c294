//! The variants of a model among which a user chooses: adapters for tasks, and heads after several layers.

/// Low-rank adapters for several tasks (`LoRA`). A matrix `X.weight` is stored as
/// `X.parametrizations.weight.original`. Loading adds to it the product of the chosen task's slices of
/// `….0.lora_A` and `….0.lora_B`.
#[derive(Debug, Clone)]
pub(crate) struct Adapters {
    /// The names of the tasks.
    pub(crate) tasks: Vec<String>,
    /// The index of the task whose product is added. If absent, the original is used alone.
    pub(crate) task: Option<usize>,
    /// Columns of the product's first factor.
    pub(crate) rank: usize,
    /// The factor of the product.
    pub(crate) scale: f32,
}

/// The heads of a layer-wise re-ranker: one after each layer from `first` on.
#[derive(Debug, Clone)]
pub(crate) struct LayerHeads {
    /// The smallest number of layers after which the model can score; at least one.
    pub(crate) first: usize,
    /// The number of layers after which its authors score.
    pub(crate) recommended: usize,
    /// The name of each head's last matrix.
    pub(crate) logits: Vec<String>,
}
