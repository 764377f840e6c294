//! The routes of the page by task, the main ones first.
//!
//! Input: the description, in which all routes are in one group, as in TEI's. Output: the same with a group
//! for each task. What must hold: every route is in one group.

use utoipa::openapi::{OpenApi, Tag, tag::TagBuilder};

use crate::http::routes::{Action, Method, ROUTES};

/// A task, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Rerank,
    Embed,
    Classify,
    Tokenize,
    Server,
    Platforms,
}

impl Task {
    const ALL: [Self; 6] =
        [Self::Rerank, Self::Embed, Self::Classify, Self::Tokenize, Self::Server, Self::Platforms];

    /// The task of a route.
    fn from_action(action: Action) -> Self {
        match action {
            Action::Rerank | Action::Score => Self::Rerank,
            Action::Embed
            | Action::EmbedAll
            | Action::EmbedSparse
            | Action::Similarity
            | Action::OpenAiEmbeddings => Self::Embed,
            Action::Predict => Self::Classify,
            Action::Tokenize | Action::Decode | Action::Prompt => Self::Tokenize,
            Action::MainTask | Action::Vertex => Self::Platforms,
            Action::Info
            | Action::Models
            | Action::Health
            | Action::Live
            | Action::Ready
            | Action::Metrics
            | Action::Description
            | Action::DocsRedirect
            | Action::Docs
            | Action::Playground
            | Action::PlaygroundRedirect
            | Action::PlaygroundFile => Self::Server,
        }
    }

    fn group_name(self) -> &'static str {
        match self {
            Self::Rerank => "Re-rank",
            Self::Embed => "Embed",
            Self::Classify => "Classify",
            Self::Tokenize => "Tokens",
            Self::Server => "Server",
            Self::Platforms => "Platforms",
        }
    }

    fn group_text(self) -> &'static str {
        match self {
            Self::Rerank => "Texts by how well they answer a query, with a re-ranker",
            Self::Embed => "Texts to vectors, with an embedding model",
            Self::Classify => "Texts to labels, with a classifier or a re-ranker",
            Self::Tokenize => "Texts to tokens and back, with any model",
            Self::Server => "The model and its limits, probes, metrics",
            Self::Platforms => "The model's main task, on the paths of hosting platforms",
        }
    }
}

/// The same description with a group for each task.
pub(super) fn by_task(mut description: OpenApi) -> OpenApi {
    for route in &ROUTES {
        let Some(item) = description.paths.paths.get_mut(route.path.as_ref()) else { continue };
        let operation = match route.method {
            Method::Get => item.get.as_mut(),
            Method::Post => item.post.as_mut(),
        };
        if let Some(operation) = operation {
            operation.tags = Some(vec![Task::from_action(route.action).group_name().to_owned()]);
        }
    }
    let tag = |task: Task| -> Tag {
        TagBuilder::new().name(task.group_name()).description(Some(task.group_text())).build()
    };
    description.tags = Some(Task::ALL.map(tag).into());
    description
}
