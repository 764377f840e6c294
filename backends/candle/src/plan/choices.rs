//! The user's choices among the weights of a model.

use super::{Classification, Plan};
use text_embeddings_backend_core::{BackendError, WeightChoices, amount};

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

impl Plan {
    /// The plan with the chosen adapter, and cut after the chosen number of layers.
    ///
    /// # Errors
    ///
    /// [`BackendError::Load`] if the model does not offer a choice, or not this value.
    pub(crate) fn with_choices(mut self, choices: &WeightChoices) -> Result<Self, BackendError> {
        if let Some(task) = &choices.lora_task {
            self.choose_task(task)
                .map_err(|reason| BackendError::Load(format!("`--lora-task {task}`: {reason}")))?;
        }
        self.choose_layers(choices.cutoff_layers).map_err(|reason| {
            let layers = choices.cutoff_layers.unwrap_or_default();
            BackendError::Load(format!("`--cutoff-layers {layers}`: {reason}"))
        })?;
        Ok(self)
    }

    fn choose_task(&mut self, task: &str) -> Result<(), String> {
        let Some(adapters) = &mut self.adapters else {
            return Err(format!(
                "the task {task:?} was chosen, but this model has no adapters for tasks: leave the setting out"
            ));
        };
        let Some(index) = adapters.tasks.iter().position(|known| known == task) else {
            let known = adapters.tasks.join(", ");
            return Err(format!("the model has no adapter for the task {task:?}: choose one of {known}"));
        };
        adapters.task = Some(index);
        Ok(())
    }

    /// Without `chosen`, a layer-wise re-ranker is cut where its authors score.
    fn choose_layers(&mut self, chosen: Option<usize>) -> Result<(), String> {
        let Some(heads) = &self.layer_heads else {
            return match chosen {
                None => Ok(()),
                Some(_) => Err("a number of layers was chosen, but this model scores after its last layer \
                                only: leave the setting out"
                    .to_owned()),
            };
        };
        let (first, last) = (heads.first, self.layers.len());
        let layers = chosen.unwrap_or(heads.recommended);
        if !(first..=last).contains(&layers) {
            return Err(format!(
                "the score after {} was requested, but this model scores after {first} to {last} layers: \
                 choose one of these",
                amount(layers, "layer")
            ));
        }
        let logits = heads.logits[layers - first].clone();
        self.classification = self.classification.take().map(|head| Classification { logits, ..head });
        self.layers.truncate(layers);
        self.ignored.extend((layers..last).map(|layer| format!("layers.{layer}.")));
        Ok(())
    }
}
