//! The routes of the page by task, the main ones first.
//!
//! Input: the description, in which all routes are in one group, as in TEI's. Output: the same with a group
//! for each task. What must hold: every route is in one group.

use utoipa::openapi::{OpenApi, Tag, tag::TagBuilder};

use super::additions::operation_of;
use crate::{
    http::routes::{Purpose, ROUTES},
    models::RequestTask,
};

/// The groups in the order of the page, with their texts.
const GROUPS: [(&str, &str); 7] = [
    ("Re-rank", "Texts by how well they answer a query, with a re-ranker"),
    ("Embed", "Texts to vectors, with an embedding model"),
    ("Classify", "Texts to labels, with a classifier or a re-ranker"),
    ("Decide", "Questions about a text to probabilities of their answers, with a decider or a re-ranker"),
    ("Tokens", "Texts to tokens and back, with any model"),
    ("Server", "The model and its limits, probes, metrics"),
    ("Platforms", "The model's main task, on the paths of hosting platforms"),
];

/// The name of the group of routes with this purpose.
fn group_name(purpose: Purpose) -> &'static str {
    let place = match purpose {
        Purpose::Task(RequestTask::Rerank) => 0,
        Purpose::Task(RequestTask::Embed | RequestTask::EmbedSparse) => 1,
        Purpose::Task(RequestTask::Predict) => 2,
        Purpose::Task(RequestTask::Decide) => 3,
        Purpose::Tokens | Purpose::Prompt => 4,
        Purpose::Server => 5,
        Purpose::MainTask => 6,
    };
    GROUPS[place].0
}

/// The same description with a group for each task.
pub(super) fn by_task(mut description: OpenApi) -> OpenApi {
    for route in &ROUTES {
        let Some(item) = description.paths.paths.get_mut(route.path.as_ref()) else { continue };
        if let Some(operation) = operation_of(item, route) {
            operation.tags = Some(vec![group_name(route.action.purpose()).to_owned()]);
        }
    }
    let tags: Vec<Tag> = GROUPS
        .iter()
        .map(|(name, text)| TagBuilder::new().name(*name).description(Some(*text)).build())
        .collect();
    description.tags = Some(tags);
    description
}
