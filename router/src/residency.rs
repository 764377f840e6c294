//! Which models are in memory. Those that may leave it are loaded again when a request needs them.
//!
//! Input: a loaded model, and how it is loaded again. Output: a backend that loads itself, and the
//! [`Resident`], which tells where the model is. What must hold: a model leaves memory between two batches
//! only; one model is loaded at a time, while others compute; a model that no longer fits with the others
//! makes the one leave that was idle longest, or is refused with the numbers.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use text_embeddings_backend_core::{Backend, BackendError, Batch, Packing, Predictions, Text};
use text_embeddings_core::metrics::{MODEL_LOADED, MODEL_LOADS, ModelMetrics};

use crate::{
    available::{Available, megabytes},
    memory,
};

/// The models of the process that are in memory, or may be. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Residency(Arc<ResidencyLedger>);

#[derive(Debug, Default)]
struct ResidencyLedger {
    /// The memory that all models may take; absent if it is not known.
    available: Option<Available>,
    /// All models. It stays locked while one is loaded.
    models: Mutex<Vec<Weak<Resident>>>,
}

/// How a model is loaded, again and again.
pub(crate) type Loader = Box<dyn Fn() -> Result<Box<dyn Backend>, BackendError> + Send + Sync>;

/// A model as its owner hands it over.
pub(crate) struct Tenant {
    /// Its name, for the log.
    pub(crate) name: String,
    /// The bytes that loading it takes.
    pub(crate) weights: u64,
    /// The bytes that its largest batch and its prefix cache may take, in addition to the weights.
    pub(crate) promised: u64,
    /// The time without a request after which it leaves memory; absent if it stays.
    pub(crate) idle_limit: Option<Duration>,
    pub(crate) load: Loader,
    pub(crate) metrics: ModelMetrics,
}

/// Why something failed the last time; nothing after a success.
#[derive(Debug, Default)]
pub(crate) struct LastFailure(Mutex<Option<String>>);

impl LastFailure {
    pub(crate) fn replace_with(&self, reason: Option<String>) {
        *lock_value(&self.0) = reason;
    }

    #[cfg_attr(not(feature = "plain-http"), expect(dead_code, reason = "gRPC has no list of models"))]
    pub(crate) fn read_reason(&self) -> Option<String> {
        lock_value(&self.0).clone()
    }
}

/// A model, in memory or not.
pub(crate) struct Resident {
    tenant: Tenant,
    /// Absent while the model is not in memory. It stays locked while a batch is computed.
    backend: Mutex<Option<Box<dyn Backend>>>,
    /// Whether `backend` is there, for those who must not wait for a batch.
    is_loaded: AtomicBool,
    /// The bytes of its prefix cache: the part of the promised bytes that is in use already.
    prefixes: AtomicU64,
    /// The end of the last batch.
    last_used: Mutex<Instant>,
    /// Why it could not be loaded the last time.
    pub(crate) failure: LastFailure,
    /// The number of [`StayInMemory`] that keep it.
    kept_by: AtomicUsize,
}

/// Keeps a model in memory while a later version of it is loaded: its own files may be gone.
pub(crate) struct StayInMemory(Arc<Resident>);

impl Drop for StayInMemory {
    fn drop(&mut self) {
        self.0.kept_by.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Residency {
    /// Models that may take this memory together; without a limit if it is absent.
    pub(crate) fn with_limit(available: Option<Available>) -> Self {
        Self(Arc::new(ResidencyLedger { available, models: Mutex::default() }))
    }

    /// The bytes that batches and prefix caches of the loaded models may still take.
    pub(crate) fn promised_bytes(&self) -> u64 {
        bytes_promised(&lock_value(&self.0.models))
    }

    /// Unloads models that may leave until `bytes` more fit, or none is left. The error has the numbers, if
    /// they do not fit then.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<(), String> {
        self.0.make_room(&lock_value(&self.0.models), bytes)
    }

    /// Takes in a loaded model. Returns the backend that loads it again when it has left.
    ///
    /// A model with an idle limit needs a tokio runtime.
    pub(crate) fn take_in(
        &self,
        backend: Box<dyn Backend>,
        tenant: Tenant,
    ) -> (Box<dyn Backend>, Arc<Resident>) {
        let packing = backend.packing();
        tenant.metrics.set_amount(MODEL_LOADED, 1);
        let resident = Arc::new(Resident {
            tenant,
            backend: Mutex::new(Some(backend)),
            is_loaded: AtomicBool::new(true),
            prefixes: AtomicU64::new(0),
            last_used: Mutex::new(Instant::now()),
            failure: LastFailure::default(),
            kept_by: AtomicUsize::new(0),
        });
        let mut models = lock_value(&self.0.models);
        models.retain(|model| model.strong_count() > 0);
        models.push(Arc::downgrade(&resident));
        if let Some(limit) = resident.tenant.idle_limit {
            tokio::spawn(unload_when_idle(Arc::downgrade(&resident), limit));
        }
        let backend = SelfLoading { resident: Arc::clone(&resident), residency: self.clone(), packing };
        (Box::new(backend), resident)
    }
}

impl ResidencyLedger {
    fn make_room(&self, models: &[Weak<Resident>], bytes: u64) -> Result<(), String> {
        let Some(available) = self.available else { return Ok(()) };
        loop {
            let Some(held) = memory::held_bytes() else { return Ok(()) };
            let promised = bytes_promised(models);
            if held + promised + bytes <= available.bytes {
                return Ok(());
            }
            let may_leave = loaded_models(models).filter(|model| model.may_leave());
            let Some(model) = may_leave.min_by_key(|model| *lock_value(&model.last_used)) else {
                return Err(format!(
                    "it takes {}, {} are in use, batches and prefixes of other models may take {} more, and {}: \
                     give other models an `--idle-unload`, or give the server more memory",
                    megabytes(bytes),
                    megabytes(held),
                    megabytes(promised),
                    available
                ));
            };
            model.leave_memory("another one needs its memory");
        }
    }
}

/// The models in memory.
fn loaded_models(models: &[Weak<Resident>]) -> impl Iterator<Item = Arc<Resident>> {
    models.iter().filter_map(Weak::upgrade).filter(|model| model.is_loaded())
}

fn bytes_promised(models: &[Weak<Resident>]) -> u64 {
    loaded_models(models)
        .map(|model| model.tenant.promised.saturating_sub(model.prefixes.load(Ordering::Relaxed)))
        .sum()
}

impl Resident {
    /// Whether the model is in memory.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Keeps the model in memory, if it is there.
    pub(crate) fn stay_in_memory(self: &Arc<Self>) -> StayInMemory {
        self.kept_by.fetch_add(1, Ordering::AcqRel);
        StayInMemory(Arc::clone(self))
    }

    /// Whether the model may leave memory now.
    fn may_leave(&self) -> bool {
        self.tenant.idle_limit.is_some() && self.kept_by.load(Ordering::Acquire) == 0
    }

    /// Frees the model's memory, after the batch that is computed now.
    fn leave_memory(&self, reason: &str) {
        let mut backend = lock_value(&self.backend);
        if backend.is_some() && self.may_leave() {
            *backend = None;
            self.prefixes.store(0, Ordering::Relaxed);
            self.note_loaded(false);
            memory::trim();
            tracing::info!("Unloaded the model `{}`: {reason}", self.tenant.name);
        }
    }

    /// Loads the model, whose place in memory was made.
    fn load_again(&self) -> Result<(), BackendError> {
        let start = Instant::now();
        let backend = (self.tenant.load)()?;
        *lock_value(&self.last_used) = Instant::now();
        let mut place = lock_value(&self.backend);
        *place = Some(backend);
        self.note_loaded(true);
        drop(place);
        self.tenant.metrics.count_many(MODEL_LOADS, 1);
        let seconds = start.elapsed().as_secs_f32();
        tracing::info!("Loaded the model `{}` again in {seconds:.1} s", self.tenant.name);
        Ok(())
    }

    /// Must be called while `backend` is locked, so that both agree.
    fn note_loaded(&self, is_loaded: bool) {
        self.is_loaded.store(is_loaded, Ordering::Release);
        self.tenant.metrics.set_amount(MODEL_LOADED, is_loaded.into());
    }
}

/// Unloads a model whenever it was idle for `limit`, until the model is gone.
async fn unload_when_idle(model: Weak<Resident>, limit: Duration) {
    let mut wait = limit;
    loop {
        tokio::time::sleep(wait).await;
        let Some(model) = model.upgrade() else { return };
        let idle = lock_value(&model.last_used).elapsed();
        wait = limit.saturating_sub(idle);
        if wait.is_zero() {
            // Freeing gigabytes takes a while, and a batch may be computed.
            let unloaded = tokio::task::spawn_blocking(move || {
                model.leave_memory(&format!("no request for {limit:?}"));
            });
            if unloaded.await.is_err() {
                return;
            }
            wait = limit;
        }
    }
}

/// A backend that loads its model if it is not in memory.
struct SelfLoading {
    resident: Arc<Resident>,
    residency: Residency,
    packing: Packing,
}

impl SelfLoading {
    /// Loads the model, unless another thread did.
    fn ensure_loaded(&self) -> Result<(), BackendError> {
        let Resident { tenant: Tenant { name, weights, promised, .. }, .. } = &*self.resident;
        let ledger = &*self.residency.0;
        let models = lock_value(&ledger.models);
        if self.resident.is_loaded() {
            return Ok(());
        }
        let room = ledger.make_room(&models, weights + promised);
        let loaded = room.map_err(BackendError::Load).and_then(|()| self.resident.load_again());
        let failure = loaded.as_ref().err().map(ToString::to_string);
        if let Some(failure) = &failure {
            tracing::error!("the model `{name}` cannot be loaded again: {failure}");
        }
        self.resident.failure.replace_with(failure);
        loaded
    }
}

impl Backend for SelfLoading {
    fn predict(&mut self, batch: &Batch) -> Result<Predictions, BackendError> {
        let came = Instant::now();
        loop {
            let mut backend = lock_value(&self.resident.backend);
            if let Some(backend) = backend.as_mut() {
                let loading = came.elapsed();
                let predictions = backend.predict(batch);
                *lock_value(&self.resident.last_used) = Instant::now();
                let mut predictions = predictions?;
                self.resident.prefixes.store(predictions.reused.bytes as u64, Ordering::Relaxed);
                predictions.waited += loading;
                return Ok(predictions);
            }
            // Loading first waits for the ledger, whose owner may wait for this lock.
            drop(backend);
            self.ensure_loaded()?;
        }
    }

    fn packing(&self) -> Packing {
        self.packing
    }

    fn batch_bytes(&self, tokens: usize) -> usize {
        lock_value(&self.resident.backend).as_ref().map_or(0, |backend| backend.batch_bytes(tokens))
    }

    fn known_tokens(&self, text: &Text) -> usize {
        lock_value(&self.resident.backend).as_ref().map_or(0, |backend| backend.known_tokens(text))
    }

    fn begin_rest(&mut self) {
        if let Some(backend) = lock_value(&self.resident.backend).as_mut() {
            backend.begin_rest();
        }
    }
}

/// A value that a panic left locked is used all the same: the engine answers a panic as a failed batch.
fn lock_value<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::{sync::mpsc, thread};
    use text_embeddings_backend_core::{BatchBuilder, Reused, Wanted};

    /// More bytes than any machine has.
    const LARGE: u64 = 1 << 50;
    /// The bytes of the prefix cache after a batch.
    const KEPT: u64 = 1 << 30;

    /// A model that gives no outputs and waits for leave in each batch.
    struct Waiting(Arc<Mutex<mpsc::Receiver<()>>>);

    impl Backend for Waiting {
        fn predict(&mut self, _: &Batch) -> Result<Predictions, BackendError> {
            lock_value(&self.0).recv().map_err(|error| BackendError::Inference(error.to_string()))?;
            let reused = Reused { bytes: KEPT as usize, ..Reused::default() };
            Ok(Predictions { reused, ..Predictions::default() })
        }

        fn packing(&self) -> Packing {
            Packing::SHARED
        }

        fn batch_bytes(&self, tokens: usize) -> usize {
            tokens
        }
    }

    /// A model under test.
    struct Model {
        backend: Box<dyn Backend>,
        resident: Arc<Resident>,
        loads: Arc<AtomicUsize>,
        /// Leaves for batches.
        leave: mpsc::Sender<()>,
        fails: Arc<AtomicBool>,
    }

    impl Model {
        fn take_in(residency: &Residency, name: &str, idle_limit: Option<Duration>) -> Self {
            let (leave, leaves) = mpsc::channel();
            let leaves = Arc::new(Mutex::new(leaves));
            let (loads, fails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let first = Box::new(Waiting(Arc::clone(&leaves)));
            let (loads_now, fails_now) = (Arc::clone(&loads), Arc::clone(&fails));
            let load = move || -> Result<Box<dyn Backend>, BackendError> {
                if fails_now.load(Ordering::Relaxed) {
                    return Err(BackendError::Load("the disk is gone".to_owned()));
                }
                loads_now.fetch_add(1, Ordering::Relaxed);
                Ok(Box::new(Waiting(Arc::clone(&leaves))))
            };
            let (name, metrics) = (name.to_owned(), ModelMetrics::default());
            let tenant =
                Tenant { name, weights: 0, promised: LARGE, idle_limit, load: Box::new(load), metrics };
            let (backend, resident) = residency.take_in(first, tenant);
            Self { backend, resident, loads, leave, fails }
        }

        /// Computes a batch.
        fn compute(&mut self) -> Result<Predictions, BackendError> {
            self.leave.send(()).unwrap();
            self.backend.predict(&batch())
        }
    }

    fn batch() -> Batch {
        let mut batch = BatchBuilder::new(Packing::SHARED);
        batch.push(&Text::new([1], Wanted::WHOLE));
        batch.build()
    }

    /// Room for this many large models.
    fn room_for(models: u64) -> Residency {
        let bytes = models * LARGE + LARGE / 2;
        Residency::with_limit(Some(Available { bytes, source: "this test may use" }))
    }

    fn loaded(models: &[&Model]) -> Vec<bool> {
        models.iter().map(|model| model.resident.is_loaded()).collect()
    }

    const HOUR: Option<Duration> = Some(Duration::from_hours(1));

    #[tokio::test]
    async fn an_idle_model_leaves_and_the_next_request_loads_it() {
        let limit = Duration::from_millis(20);
        let mut model = Model::take_in(&Residency::default(), "m", Some(limit));
        for loads in 1..4 {
            while model.resident.is_loaded() {
                tokio::time::sleep(limit / 4).await;
            }
            assert!(model.compute().is_ok());
            assert_eq!(model.loads.load(Ordering::Relaxed), loads);
            assert_eq!(model.backend.known_tokens(&Text::new([1], Wanted::WHOLE)), 0);
            assert_eq!(model.backend.packing(), Packing::SHARED);
        }
        // The task that waits for the end of the limit does not keep the model.
        let gone = Arc::downgrade(&model.resident);
        drop(model);
        assert!(gone.upgrade().is_none());
    }

    #[tokio::test]
    async fn the_model_that_was_idle_longest_makes_room_and_a_kept_one_stays() {
        let residency = room_for(2);
        let kept = Model::take_in(&residency, "kept", None);
        let mut first = Model::take_in(&residency, "first", HOUR);
        assert!(residency.make_room(LARGE).is_ok());
        let mut second = Model::take_in(&residency, "second", HOUR);
        assert_eq!(loaded(&[&kept, &first, &second]), [true, false, true]);
        assert_eq!(residency.promised_bytes(), 2 * LARGE);
        assert!(first.compute().is_ok());
        assert_eq!(loaded(&[&kept, &first, &second]), [true, true, false]);
        // The bytes in its cache are in use, and no longer to come.
        assert_eq!(residency.promised_bytes(), 2 * LARGE - KEPT);
        assert!(second.compute().is_ok() && second.compute().is_ok());
        assert_eq!(loaded(&[&kept, &first, &second]), [true, false, true]);
        assert_eq!(second.loads.load(Ordering::Relaxed), 1, "the second batch found it loaded");

        // With three places, the one that was used last stays.
        let residency = room_for(2);
        let mut models = ["a", "b"].map(|name| Model::take_in(&residency, name, HOUR));
        assert!(models[0].compute().is_ok());
        assert!(residency.make_room(LARGE).is_ok());
        assert_eq!(loaded(&[&models[0], &models[1]]), [true, false]);
    }

    #[tokio::test]
    async fn a_model_for_which_no_other_may_leave_is_refused_with_the_numbers() {
        let residency = room_for(2);
        let mut model = Model::take_in(&residency, "m", HOUR);
        assert!(residency.make_room(2 * LARGE).is_ok());
        let kept = ["a", "b"].map(|name| Model::take_in(&residency, name, None));
        let error = model.compute().unwrap_err().to_string();
        for part in
            ["it takes 1125899907 MB", "batches and prefixes of other models may take 2251799814 MB more"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(model.resident.failure.read_reason(), Some(error));
        drop(kept);
        assert!(model.backend.predict(&batch()).is_ok(), "the others are gone");
        assert_eq!(model.resident.failure.read_reason(), None);
    }

    #[tokio::test]
    async fn two_hundred_models_are_served_with_room_for_three() {
        let residency = room_for(3);
        let models: Vec<Model> = (0..200)
            .map(|_| {
                assert!(residency.make_room(LARGE).is_ok());
                Model::take_in(&residency, "m", HOUR)
            })
            .collect();
        let residents: Vec<_> = models.iter().map(|model| Arc::clone(&model.resident)).collect();
        thread::scope(|scope| {
            for mut model in models {
                scope.spawn(move || (0..3).for_each(|_| assert!(model.compute().is_ok())));
            }
        });
        let loaded = residents.iter().filter(|resident| resident.is_loaded()).count();
        assert!((1..=3).contains(&loaded), "{loaded}");
    }

    #[tokio::test]
    async fn a_model_that_cannot_be_loaded_fails_its_own_requests_and_is_tried_again() {
        let residency = room_for(1);
        let mut model = Model::take_in(&residency, "m", HOUR);
        assert!(residency.make_room(LARGE).is_ok());
        let mut other = Model::take_in(&residency, "other", HOUR);
        model.fails.store(true, Ordering::Relaxed);
        let error = model.compute().unwrap_err().to_string();
        assert!(error.contains("the disk is gone"), "{error}");
        assert_eq!(model.resident.failure.read_reason(), Some(error));
        assert!(other.compute().is_ok());
        model.fails.store(false, Ordering::Relaxed);
        assert!(model.backend.predict(&batch()).is_ok());
        assert_eq!(
            (model.resident.failure.read_reason(), loaded(&[&model, &other])),
            (None, vec![true, false])
        );
    }

    #[tokio::test]
    async fn a_model_leaves_after_its_batch_only() {
        let residency = room_for(1);
        let Model { mut backend, resident, leave, .. } = Model::take_in(&residency, "m", HOUR);
        thread::scope(|scope| {
            let batch = scope.spawn(move || backend.predict(&batch()));
            while resident.backend.try_lock().is_ok() {
                thread::yield_now();
            }
            let unloading = scope.spawn(|| residency.make_room(LARGE));
            thread::sleep(Duration::from_millis(20));
            assert!(resident.is_loaded() && !unloading.is_finished());
            leave.send(()).unwrap();
            assert!(batch.join().unwrap().is_ok());
        });
        assert!(!resident.is_loaded());
    }

    #[tokio::test]
    async fn a_model_whose_next_version_is_loaded_stays_in_memory() {
        let residency = room_for(1);
        let limit = Duration::from_millis(10);
        let model = Model::take_in(&residency, "m", Some(limit));
        let stays = [model.resident.stay_in_memory(), model.resident.stay_in_memory()];
        let error = residency.make_room(LARGE).unwrap_err();
        assert!(error.starts_with("it takes 1125899907 MB"), "{error}");
        for held in stays {
            tokio::time::sleep(3 * limit).await;
            assert!(model.resident.is_loaded());
            drop(held);
        }
        while model.resident.is_loaded() {
            tokio::time::sleep(limit).await;
        }
        assert!(residency.make_room(LARGE).is_ok());
    }

    #[tokio::test]
    async fn a_request_during_the_unloading_of_its_model_loads_it_again() {
        // Idle after no time at all: the model is unloaded whenever no batch is computed.
        let mut model = Model::take_in(&Residency::default(), "m", Some(Duration::from_nanos(1)));
        for _ in 0..200 {
            assert!(model.compute().is_ok());
            tokio::task::yield_now().await;
        }
    }
}
