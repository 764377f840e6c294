//! The user's choices among the weights of a model.

use crate::plan::{Classification, Plan};
use text_embeddings_backend_core::{BackendError, WeightChoices, amount};

/// The plan with the chosen adapter, and cut after the chosen number of layers.
pub(super) fn choose_weights(mut plan: Plan, choices: &WeightChoices) -> Result<Plan, BackendError> {
    if let Some(task) = &choices.lora_task {
        choose_task(&mut plan, task)
            .map_err(|reason| BackendError::Load(format!("`--lora-task {task}`: {reason}")))?;
    }
    choose_layers(&mut plan, choices.cutoff_layers).map_err(|reason| {
        let layers = choices.cutoff_layers.unwrap_or_default();
        BackendError::Load(format!("`--cutoff-layers {layers}`: {reason}"))
    })?;
    Ok(plan)
}

fn choose_task(plan: &mut Plan, task: &str) -> Result<(), String> {
    let Some(adapters) = &mut plan.adapters else {
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
fn choose_layers(plan: &mut Plan, chosen: Option<usize>) -> Result<(), String> {
    let Some(heads) = &plan.layer_heads else {
        return match chosen {
            None => Ok(()),
            Some(_) => {
                Err("a number of layers was chosen, but this model scores after its last layer only: \
                            leave the setting out"
                    .to_owned())
            }
        };
    };
    let (first, last) = (heads.first, plan.layers.len());
    let layers = chosen.unwrap_or(heads.recommended);
    if !(first..=last).contains(&layers) {
        return Err(format!(
            "the score after {} was requested, but this model scores after {first} to {last} layers: choose \
             one of these",
            amount(layers, "layer")
        ));
    }
    let logits = heads.logits[layers - first].clone();
    plan.classification = plan.classification.take().map(|head| Classification { logits, ..head });
    plan.layers.truncate(layers);
    plan.ignored.extend((layers..last).map(|layer| format!("layers.{layer}.")));
    Ok(())
}
