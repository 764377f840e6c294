//! The models that answer now. A reload, or the first request for a model, replaces them as a whole.
//!
//! What must hold: requests that began with earlier models end on those; whatever lives longer than a request
//! asks here again and keeps no models in memory; the number of requests that wait for a load is bounded.

use std::{sync::Arc, time::Duration};

use axum::Router;
use text_embeddings_core::error::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    models::{Models, PendingModel},
    residency::LastFailure,
};

/// The seconds after which a client may try again if too many requests wait for a load.
const RETRY_AFTER: u64 = 1;

/// The application of the first port, and of the second one if gRPC has it in addition to HTTP.
#[derive(Clone)]
pub(crate) struct Applications {
    pub(crate) first: Router,
    #[cfg_attr(not(feature = "grpc"), expect(dead_code, reason = "only gRPC has a second port"))]
    pub(crate) second: Option<Router>,
}

/// A request that waits until a model is loaded.
pub(crate) struct LoadOrder {
    pub(crate) name: String,
    /// Takes the applications that know the model, or a sentence that says why it cannot be loaded.
    pub(crate) reply: oneshot::Sender<Result<Applications, String>>,
}

/// The models that answer now. Cheap to clone; all clones change together.
#[derive(Clone)]
pub(crate) struct CurrentModels {
    models: watch::Sender<Models>,
    orders: mpsc::Sender<LoadOrder>,
    /// The longest wait for a load; unlimited if absent.
    patience: Option<Duration>,
    /// Why the last reload changed nothing.
    pub(crate) failure: Arc<LastFailure>,
}

impl CurrentModels {
    /// These models, and the requests that will wait for others: at most `max_waiting`, no longer than
    /// `patience`.
    pub(crate) fn from_models(
        models: Models,
        max_waiting: usize,
        patience: Option<Duration>,
    ) -> (Self, mpsc::Receiver<LoadOrder>) {
        let (orders, received) = mpsc::channel(max_waiting.clamp(1, tokio::sync::Semaphore::MAX_PERMITS));
        let models = watch::Sender::new(models);
        (Self { models, orders, patience, failure: Arc::default() }, received)
    }

    /// The models that answer now.
    pub(crate) fn read_models(&self) -> Models {
        self.models.borrow().clone()
    }

    /// Replaces the models, and returns the earlier ones.
    pub(crate) fn replace_models(&self, models: Models) -> Models {
        self.models.send_replace(models)
    }

    /// Has a model loaded. Returns the applications that know it. The error is [`Error::Inference`] with the
    /// reason why it cannot be loaded, or if that takes too long; [`Error::Overloaded`] if too many requests
    /// wait.
    pub(crate) async fn load_model(&self, model: &PendingModel) -> Result<Applications, Error> {
        let (reply, loaded) = oneshot::channel();
        let name = model.own_name().to_owned();
        let order = LoadOrder { name, reply };
        self.orders.try_send(order).map_err(|_| Error::Overloaded { retry_after: RETRY_AFTER })?;
        let loaded = match self.patience {
            None => loaded.await,
            Some(patience) => tokio::time::timeout(patience, loaded).await.unwrap_or_else(|_| {
                Ok(Err(format!("loading has not ended after {patience:?}, `--device-timeout`, and goes on")))
            }),
        };
        let loaded = loaded.unwrap_or_else(|_| Err("the server is stopping".to_owned()));
        loaded.map_err(|reason| {
            Error::Inference(format!("the model `{}` cannot be loaded: {reason}", model.own_name()))
        })
    }

    /// Waits until the device of a model is lost.
    pub(crate) async fn device_lost(&self) {
        let mut changes = self.models.subscribe();
        loop {
            let models = changes.borrow_and_update().clone();
            tokio::select! {
                () = models.device_lost() => return,
                // The sender lives as long as `self`.
                _ = changes.changed() => {}
            }
        }
    }
}
