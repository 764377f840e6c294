//! The variants of a model among which a user chooses: adapters for tasks, and heads after several layers.

/// Low-rank adapters for several tasks (`LoRA`). Loading adds to a matrix the product of two thin ones.
#[derive(Debug, Clone)]
pub(crate) struct Adapters {
    pub(crate) tasks: Vec<String>,
    /// The index of the task whose product is added. If absent, the original is used alone.
    pub(crate) task: Option<usize>,
    pub(crate) layout: AdapterLayout,
    /// The factor of the product.
    pub(crate) scale: f32,
    /// The tokens whose vectors are stored with the adapter, in the order of these vectors.
    pub(crate) token_rows: Vec<u32>,
}

/// How adapters of a matrix `X.weight` are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdapterLayout {
    /// The original is `X.parametrizations.weight.original`, and the chosen task's factors are slices of
    /// `….0.lora_A` and `….0.lora_B`.
    Stacked {
        /// Columns of the product's first factor.
        rank: usize,
    },
    /// One task's factors are `X.lora_A.weight` and `X.lora_B.weight`, from a file of their own (PEFT).
    /// Matrices may lack them.
    OwnFile,
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
