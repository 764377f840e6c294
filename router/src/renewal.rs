//! New models for a running server: on SIGHUP the models file and the models' files are read again, and a
//! model that loads late is loaded for the first request.
//!
//! Input: SIGHUP, and orders of requests. Output: other models answer later requests; the log and `GET
//! /v1/models` say why not. What must hold: either all of the new file takes over or nothing of it; a model
//! that fails to load, or fails its self-check, never answers; a request ends on the models that it began
//! with; a model without a change stays as it is.

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use tokio::{
    runtime::Handle,
    signal::unix::Signal,
    sync::{mpsc::Receiver, oneshot},
    task::spawn_blocking,
    time::timeout,
};

use crate::{
    args::{
        Args, LoadTime,
        models::{ModelList, ModelsFile},
    },
    current::LoadOrder,
    machine::Machine,
    memory,
    models::{Models, PendingModel, Served},
    residency::StayInMemory,
    startup::{FoundModel, find_files, start_found},
    state::AppState,
    telemetry::metrics::set_to_zero,
    transports::CurrentApplications,
    trial::try_files,
};

/// The means to replace the models of a server.
#[derive(Clone)]
pub(crate) struct Renewal {
    pub(crate) file: ModelsFile,
    /// The arguments of the models in force.
    pub(crate) list: ModelList,
    pub(crate) machine: Machine,
    /// The state with the models in force.
    pub(crate) state: AppState,
    pub(crate) applications: CurrentApplications,
    /// The time after which a load that goes on is reported; absent if never.
    pub(crate) patience: Option<Duration>,
}

/// Models that are loaded and may take over.
struct NextModels {
    list: ModelList,
    models: Models,
    /// The models that they replace stay in memory until then.
    _earlier: Vec<StayInMemory>,
}

impl Renewal {
    /// Renews the models at each SIGHUP, and loads models that requests wait for, one after the other, for
    /// ever.
    pub(crate) async fn run_renewal(mut self, mut hangups: Signal, mut orders: Receiver<LoadOrder>) {
        loop {
            tokio::select! {
                Some(()) = hangups.recv() => self.renew_models().await,
                Some(order) = orders.recv() => {
                    let mut waiting = vec![order];
                    while let Ok(order) = orders.try_recv() {
                        waiting.push(order);
                    }
                    self.answer_orders(waiting).await;
                }
                else => return,
            }
        }
    }

    /// Reads everything again, and has it take over.
    async fn renew_models(&mut self) {
        tracing::info!("SIGHUP: the models file and the files of its models are read again");
        let taken = match self.load_next().await {
            Ok(next) => self.take_over(next),
            Err(error) => Err(error),
        };
        let failure = taken.err().map(|error| format!("{error:#}"));
        if let Some(failure) = &failure {
            tracing::error!("the models stay as they were: {failure}");
        } else {
            let names = self.list.models.iter().map(Args::model_name).collect::<Vec<_>>().join(", ");
            tracing::info!("the models are now {names}");
        }
        self.state.current.failure.replace_with(failure);
    }

    /// Loads new and changed models, on a thread of its own.
    async fn load_next(&self) -> anyhow::Result<NextModels> {
        let (loading, runtime) = (self.clone(), Handle::current());
        let mut work = pin!(run_on_own_thread(move || runtime.block_on(loading.load_models())));
        if let Some(patience) = self.patience {
            if let Ok(done) = timeout(patience, &mut work).await {
                return done?;
            }
            let failure = format!("loading has not ended after {patience:?}, and goes on");
            tracing::error!("the models stay as they were: {failure}");
            self.state.current.failure.replace_with(Some(failure));
        }
        work.await?
    }

    /// Loads the models of these orders. Requests for the same model get the same answer.
    async fn answer_orders(&mut self, mut waiting: Vec<LoadOrder>) {
        while let Some(LoadOrder { name, .. }) = waiting.first() {
            let name = name.clone();
            let (orders, others) = waiting.into_iter().partition::<Vec<_>, _>(|order| order.name == name);
            waiting = others;
            // The clients may have left.
            if orders.iter().all(|order| order.reply.is_closed()) {
                continue;
            }
            let loaded = self.load_pending(&name).await.map_err(|error| format!("{error:#}"));
            if let Err(failure) = &loaded {
                tracing::error!("the model `{name}` cannot be loaded: {failure}");
            }
            for order in orders {
                // A client may be gone.
                let _ = order.reply.send(loaded.clone().map(|()| self.applications.read_now()));
            }
        }
    }

    /// Loads a model, unless it is there by now.
    async fn load_pending(&mut self, name: &str) -> anyhow::Result<()> {
        let mut pending = self.state.models.pending_models().to_vec();
        let Some(place) = pending.iter().position(|model| model.own_name() == name) else { return Ok(()) };
        let args = self.list.models.iter().find(|args| args.model_name() == name);
        let (args, machine) = (args.context("it is not in the models file")?.clone(), self.machine.clone());
        tracing::info!("Loading the model `{name}` for the first request");
        let runtime = Handle::current();
        let load = run_on_own_thread(move || {
            runtime.block_on(async { load_found(find_files(&args).await?, &args, &machine) })
        });
        let loaded = match load.await.flatten() {
            Ok(served) => served,
            Err(error) => {
                pending[place].failure.replace_with(Some(format!("{error:#}")));
                return Err(error);
            }
        };
        pending.remove(place);
        let models = self.list.models.iter().filter_map(|args| {
            let is_new = args.model_name() == name;
            if is_new {
                Some(Arc::clone(&loaded))
            } else {
                find_served(&self.state.models, args.model_name()).cloned()
            }
        });
        let models = Models::new(models.collect(), &self.list.cascades, pending)?;
        self.take_over(NextModels { list: self.list.clone(), models, _earlier: Vec::new() })
    }

    /// Has the next models answer later requests, and frees those that are not among them after their last
    /// request.
    fn take_over(&mut self, NextModels { list, models, _earlier }: NextModels) -> anyhow::Result<()> {
        let state = AppState { models: models.clone(), ..self.state.clone() };
        self.applications.replace_models(&state).context("a transport cannot be set up")?;
        let earlier = self.state.current.replace_models(models.clone());
        state.metrics.watch(&models);
        for served in earlier.all_models() {
            let stays = models.all_models().iter().any(|next| Arc::ptr_eq(&next.resident, &served.resident));
            // A cascade is no model of its own.
            if !stays && served.info.cascade.is_none() {
                let name = &served.info.served_model_name;
                let is_removed = list.models.iter().all(|args| args.model_name() != name);
                tracing::info!(
                    "`{name}`: {}",
                    if is_removed { "removed" } else { "the new version answers" }
                );
                let removed = if is_removed { Some(self.machine.clone()) } else { None };
                tokio::spawn(retire_model(served.clone(), removed));
            }
        }
        (self.state, self.list) = (state, list);
        Ok(())
    }
}

/// Runs work that loads models on a thread of its own: the library of tokenizers keeps the words of each
/// tokenizer until their thread ends, and tokio's threads end only when they are idle.
async fn run_on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let (reply, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("loading".to_owned());
    // The receiver is there until the server ends.
    thread.spawn(move || drop(reply.send(work()))).context("there is no thread to load on")?;
    result.await.context("loading broke off")
}

/// Frees a model after its last request. With a machine, its gauges become zero.
async fn retire_model(served: Arc<Served>, removed: Option<Machine>) {
    let (name, service) = (served.info.served_model_name.clone(), served.service.clone());
    drop(served);
    service.until_unused().await;
    // Freeing gigabytes takes a while, and the engine's threads end first.
    let _ = spawn_blocking(move || drop(service)).await;
    memory::trim();
    if let Some(machine) = removed {
        set_to_zero(&[machine.metrics_of(&name)]);
    }
    tracing::info!("`{name}`: the earlier version has left memory");
}

fn find_served<'a>(models: &'a Models, name: &str) -> Option<&'a Arc<Served>> {
    models.all_models().iter().find(|served| served.info.served_model_name == name)
}

impl Renewal {
    /// Loads new and changed models.
    async fn load_models(self) -> anyhow::Result<NextModels> {
        let list = self.file.read_list().map_err(|problem| anyhow!(problem))?;
        let (mut models, mut pending, mut earlier) = (Vec::new(), Vec::new(), Vec::new());
        for args in &list.models {
            let name = args.model_name();
            let arguments = self.list.models.iter().find(|before| before.model_name() == name);
            if arguments.is_none() {
                set_to_zero(&[self.machine.metrics_of(name)]);
            }
            let before = arguments.zip(find_served(&self.state.models, name));
            if before.is_none() && args.load == LoadTime::FirstRequest {
                pending.push(Arc::new(PendingModel::from_args(args)));
                continue;
            }
            earlier.extend(before.map(|(_, served)| served.resident.stay_in_memory()));
            let model = renew_model(args, before, &self.machine).await;
            models.push(model.with_context(|| format!("model `{name}`"))?);
        }
        let models = Models::new(models, &list.cascades, pending)?;
        Ok(NextModels { list, models, _earlier: earlier })
    }
}

/// Loads a model, after a child process tried its files.
fn load_found(found: FoundModel, args: &Args, machine: &Machine) -> anyhow::Result<Arc<Served>> {
    try_files(args)?;
    start_found(found, args, machine).map(Arc::new)
}

/// The model of these arguments: the one from before if nothing changed, else one that is loaded now.
async fn renew_model(
    args: &Args,
    before: Option<(&Args, &Arc<Served>)>,
    machine: &Machine,
) -> anyhow::Result<Arc<Served>> {
    let found = find_files(args).await?;
    if let Some((earlier, served)) = before
        && found.versions == served.versions
        && *earlier == (Args { aliases: earlier.aliases.clone(), load: earlier.load, ..args.clone() })
    {
        if args.aliases == served.aliases {
            return Ok(Arc::clone(served));
        }
        return Ok(Arc::new(Served { aliases: args.aliases.clone(), ..Served::clone(served) }));
    }
    tracing::info!("Loading the model `{}`", args.model_name());
    load_found(found, args, machine)
}
