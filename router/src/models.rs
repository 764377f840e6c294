//! The models that this process serves, found by name or by the task of a request.
//!
//! What must hold: no two models have a name in common (`args/models.rs`); with one model, every request is
//! for that model, whatever it names.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use axum::{
    Router,
    extract::Request,
    http::{HeaderName, HeaderValue},
    response::Response,
};
use futures_util::future::{join_all, select_all};
use text_embeddings_backend_core::ModelType;
use text_embeddings_core::{
    model::Model,
    service::{SecondStage, Service},
};
use tower_service::Service as _;

use crate::{
    args::{Args, CascadeArgs},
    file_versions::FileVersions,
    info::Info,
    residency::{LastFailure, Resident},
};

/// The header of an answer that names its model, if there are several.
const MODEL_HEADER: HeaderName = HeaderName::from_static("x-model");

/// A model that is served.
#[derive(Clone)]
pub(crate) struct Served {
    /// The engine with the model, which answers requests.
    pub(crate) service: Service,
    /// The answer of `GET /info`.
    pub(crate) info: Info,
    /// Further names by which requests may ask for the model.
    pub(crate) aliases: Vec<String>,
    /// Whether it is in memory.
    pub(crate) resident: Arc<Resident>,
    /// Model, arithmetic, device and memory in a few words, for the log.
    pub(crate) summary: String,
    /// The version of its files.
    pub(crate) versions: FileVersions,
    /// The largest body that fits its memory; absent if that is not known.
    pub(crate) max_payload: Option<usize>,
}

/// A model that the first request for it will load.
#[derive(Debug)]
pub(crate) struct PendingModel {
    /// Its own name first.
    names: Vec<String>,
    /// The model as the user named it.
    #[cfg_attr(not(feature = "plain-http"), expect(dead_code, reason = "gRPC lists no models"))]
    pub(crate) model_id: String,
    /// Why it could not be loaded the last time.
    pub(crate) failure: LastFailure,
}

impl PendingModel {
    pub(crate) fn from_args(args: &Args) -> Self {
        let names = std::iter::once(args.model_name()).chain(args.aliases.iter().map(String::as_str));
        let names = names.map(str::to_owned).collect();
        Self { names, model_id: args.model_id.clone(), failure: LastFailure::default() }
    }

    pub(crate) fn own_name(&self) -> &str {
        &self.names[0]
    }

    #[cfg_attr(not(feature = "plain-http"), expect(dead_code, reason = "gRPC has no list of models"))]
    pub(crate) fn further_names(&self) -> &[String] {
        &self.names[1..]
    }

    /// The names by which requests may ask for the model, its own first.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

/// The model that a request is for.
#[derive(Debug, Clone)]
pub(crate) enum ChosenModel {
    /// The one at this place.
    Served(usize),
    /// One that must be loaded first.
    Pending(Arc<PendingModel>),
}

/// A kind of work that some models can do and others cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestTask {
    Rerank,
    /// A re-ranker labels pairs, too.
    Predict,
    Decide,
    Embed,
    EmbedSparse,
}

impl RequestTask {
    /// Whether this model can do it, and no other kind of model does it better: a re-ranker re-ranks before
    /// an embedding model does, and a decider decides before a re-ranker does.
    fn is_made_for(self, model: &Model) -> bool {
        match self {
            Self::Rerank => matches!(model.model_type(), ModelType::Reranker | ModelType::ListwiseReranker),
            Self::Decide => model.model_type() == ModelType::Decider,
            Self::Predict | Self::Embed | Self::EmbedSparse => self.fits_model(model),
        }
    }

    /// Whether this model can do it.
    pub(crate) fn fits_model(self, model: &Model) -> bool {
        let model_type = model.model_type();
        match self {
            Self::Rerank => self.is_made_for(model) || model.cosine_ranking().is_some(),
            Self::Predict => !matches!(model_type, ModelType::Embedding(_) | ModelType::Decider),
            Self::Decide => model.how_it_decides().is_some(),
            Self::Embed => matches!(model_type, ModelType::Embedding(_)) && model.head.outputs().whole,
            Self::EmbedSparse => matches!(model_type, ModelType::Embedding(_)) && model.head.outputs().sparse,
        }
    }
}

impl Served {
    /// The names by which requests may ask for the model, its own first.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.info.served_model_name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }

    /// The answer of the model's `router`, with the model's name in the headers and in the log's lines about
    /// the request. A name that no header can hold is left out.
    pub(crate) async fn answer_named(&self, mut router: Router, request: Request) -> Response {
        tracing::Span::current().record("model", self.info.served_model_name.as_str());
        let Ok(mut response) = router.call(request).await;
        if let Ok(name) = HeaderValue::from_str(&self.info.served_model_name) {
            response.headers_mut().insert(MODEL_HEADER, name);
        }
        response
    }

    /// Whether requests may ask for the model by this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.all_names().any(|known| known == name)
    }
}

impl CascadeArgs {
    /// The cascade as a model of its own.
    fn serve_cascade(&self, models: &[Arc<Served>]) -> anyhow::Result<Served> {
        let Self { name, aliases, first, then, keep, budget_ms } = self;
        let (first, strong) = (find_reranker(models, first)?, find_reranker(models, then)?);
        let max = strong.service.config().max_rerank_texts;
        ensure!(keep.get() <= max, "`keep = {keep}` is more texts than `{then}` takes in a request, {max}");
        let budget = budget_ms.map(|milliseconds| Duration::from_millis(milliseconds.get().into()));
        let stage = SecondStage { service: strong.service.clone(), keep: *keep, budget };
        Ok(Served {
            service: first.service.followed_by(stage),
            info: Info {
                model_id: name.clone(),
                served_model_name: name.clone(),
                model_sha: None,
                cascade: Some(self.clone()),
                ..first.info.clone()
            },
            aliases: aliases.clone(),
            resident: Arc::clone(&first.resident),
            summary: format!("{name}: {}, then the best {keep} by {then}", self.first),
            versions: FileVersions::default(),
            max_payload: None,
        })
    }
}

/// The model of a cascade.
fn find_reranker<'a>(models: &'a [Arc<Served>], name: &str) -> anyhow::Result<&'a Served> {
    let served = models.iter().map(|served| &**served).find(|served| served.has_name(name));
    let served = served.with_context(|| format!("there is no model `{name}`"))?;
    let is_reranker = RequestTask::Rerank.fits_model(&served.service.config().model);
    ensure!(is_reranker, "`{name}` is not a re-ranker: a cascade has two re-rankers");
    Ok(served)
}

/// The models of the process, at least one that is served. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Models {
    served: Arc<[Arc<Served>]>,
    pending: Arc<[Arc<PendingModel>]>,
}

/// A request asks for a model that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no model `{asked}`{advice}")]
pub(crate) struct UnknownModel {
    asked: String,
    advice: String,
}

impl UnknownModel {
    /// The same for a client who may not learn the names.
    #[cfg_attr(not(feature = "plain-http"), expect(dead_code, reason = "gRPC has no probe of one model"))]
    pub(crate) fn without_names(self) -> Self {
        Self { advice: String::new(), ..self }
    }
}

/// A message repeats at most this many characters of a name.
const MAX_NAME: usize = 100;

impl Models {
    /// A registry of these models, at least one, of these cascades of them, and of models that are loaded
    /// later. The error is a sentence about a cascade of models that do not fit.
    pub(crate) fn new(
        mut models: Vec<Arc<Served>>,
        cascades: &[CascadeArgs],
        pending: Vec<Arc<PendingModel>>,
    ) -> anyhow::Result<Self> {
        for cascade in cascades {
            let served =
                cascade.serve_cascade(&models).with_context(|| format!("[cascade.{}]", cascade.name))?;
            models.push(Arc::new(served));
        }
        Ok(Self { served: models.into(), pending: pending.into() })
    }

    /// All of them, in the order in which they were given.
    pub(crate) fn all_models(&self) -> &[Arc<Served>] {
        &self.served
    }

    /// The models that are loaded later.
    pub(crate) fn pending_models(&self) -> &[Arc<PendingModel>] {
        &self.pending
    }

    /// Whether there is one model, so that names have no meaning.
    pub(crate) fn is_single(&self) -> bool {
        self.served.len() == 1 && self.pending.is_empty()
    }

    /// A registry with each model alone.
    pub(crate) fn each_alone(&self) -> impl Iterator<Item = Self> {
        self.served.iter().map(|served| Self { served: [Arc::clone(served)].into(), pending: [].into() })
    }

    /// The model that a request is for: the one that it names, else the first served one that is made for the
    /// task, else the first that can do it, else the first.
    pub(crate) fn find_model(
        &self,
        name: Option<&str>,
        task: Option<RequestTask>,
    ) -> Result<ChosenModel, UnknownModel> {
        let Some(name) = name else {
            let Some(task) = task else { return Ok(ChosenModel::Served(0)) };
            let made_for = self.first_place(|model| task.is_made_for(model));
            let place = made_for.or_else(|| self.first_place(|model| task.fits_model(model)));
            return Ok(ChosenModel::Served(place.unwrap_or(0)));
        };
        if let Some(place) = self.served.iter().position(|served| served.has_name(name)) {
            return Ok(ChosenModel::Served(place));
        }
        let mut pending = self.pending.iter();
        if let Some(pending) = pending.find(|pending| pending.all_names().any(|known| known == name)) {
            return Ok(ChosenModel::Pending(Arc::clone(pending)));
        }
        let advice = format!(": choose one of {}", self.known_names().collect::<Vec<_>>().join(", "));
        Err(UnknownModel { asked: name.chars().take(MAX_NAME).collect(), advice })
    }

    /// All names by which requests may ask for a model.
    pub(crate) fn known_names(&self) -> impl Iterator<Item = &str> {
        let pending = self.pending.iter().flat_map(|pending| pending.all_names());
        self.served.iter().flat_map(|served| served.all_names()).chain(pending)
    }

    fn first_place(&self, fits: impl Fn(&Model) -> bool) -> Option<usize> {
        self.served.iter().position(|served| fits(&served.service.config().model))
    }

    /// Whether every model can compute.
    pub(crate) async fn are_healthy(&self) -> bool {
        join_all(self.served.iter().map(|served| served.service.engine().healthy()))
            .await
            .into_iter()
            .all(|is| is)
    }

    /// Waits until the device of a model is lost.
    pub(crate) async fn device_lost(&self) {
        select_all(self.served.iter().map(|served| Box::pin(served.service.engine().device_lost()))).await;
    }

    /// Whether the device of a model is lost.
    pub(crate) fn is_device_lost(&self) -> bool {
        self.served.iter().any(|served| served.service.engine().is_device_lost())
    }
}
