//! The models that this process serves.
//!
//! What must hold: a request finds its model by [`Models::requested`] only, so that a second model needs no
//! change elsewhere but in the start.

use std::sync::Arc;

use text_embeddings_core::service::Service;

use crate::info::Info;

/// A model that is served.
pub(crate) struct Served {
    /// The engine with the model, which answers requests.
    pub(crate) service: Service,
    /// The answer of `GET /info`.
    pub(crate) info: Info,
    /// Model, arithmetic, device and memory in a few words, for the log.
    pub(crate) summary: String,
}

/// The models of the process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Models {
    /// For now there is one.
    only: Arc<Served>,
}

impl Models {
    /// A registry with one model.
    pub(crate) fn new(served: Served) -> Self {
        Self { only: Arc::new(served) }
    }

    /// The model that a request is for. Every request is for the only one.
    pub(crate) fn requested(&self) -> &Served {
        &self.only
    }

    /// Whether every model can compute.
    pub(crate) async fn are_healthy(&self) -> bool {
        self.only.service.healthy().await
    }
}
