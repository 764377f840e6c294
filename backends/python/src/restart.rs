//! Supervises a worker and starts another one when it has died.
//!
//! Input: the settings of the first start. Output: a running worker, or the reason why there is none. What
//! must hold: the new start begins in the background as soon as the worker is known to be gone; the pauses
//! between starts double while no batch succeeds; a worker that reports other facts than the first one is
//! refused.

use crate::{WorkerLimits, WorkerSettings, frame::Facts, worker::Worker};
use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The longest pause between two starts.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// A worker, and everything needed to start another.
pub(crate) struct Supervisor {
    settings: Arc<WorkerSettings>,
    limits: WorkerLimits,
    first: Facts,
    state: WorkerState,
    /// The number of starts since the last batch that succeeded.
    starts: u32,
}

enum WorkerState {
    Ready(Box<Worker>),
    Starting(JoinHandle<Result<Worker, String>>),
    /// The worker did not start, for this reason. The next attempt is at this time or later.
    Failed(String, Instant),
}

impl Supervisor {
    pub(crate) fn new(worker: Worker, settings: WorkerSettings, limits: WorkerLimits) -> Self {
        let first = worker.facts().clone();
        Self {
            settings: Arc::new(settings),
            limits,
            first,
            state: WorkerState::Ready(Box::new(worker)),
            starts: 0,
        }
    }

    /// A running worker. Waits for a start that is under way.
    pub(crate) fn worker(&mut self) -> Result<&mut Worker, String> {
        if let WorkerState::Ready(worker) = &mut self.state
            && let Some(end) = worker.ended()
        {
            tracing::warn!("the Python worker ended while it had nothing to compute: {end}");
            self.start_again();
        }
        if matches!(&self.state, WorkerState::Failed(_, again) if Instant::now() >= *again) {
            self.start_again();
        }
        if let WorkerState::Starting(_) = &self.state {
            let unknown = WorkerState::Failed(String::new(), Instant::now());
            if let WorkerState::Starting(thread) = std::mem::replace(&mut self.state, unknown) {
                let started =
                    thread.join().unwrap_or_else(|_| Err("the thread that starts it panicked".to_owned()));
                self.state = match started.and_then(|worker| self.same(worker)) {
                    Ok(worker) => {
                        tracing::info!("the Python worker runs again");
                        WorkerState::Ready(Box::new(worker))
                    }
                    Err(reason) => {
                        let pause = self.pause();
                        tracing::error!(
                            "the Python worker did not start again, next attempt in {pause:?}: {reason}"
                        );
                        WorkerState::Failed(reason, Instant::now() + pause)
                    }
                };
            }
        }
        match &mut self.state {
            WorkerState::Ready(worker) => Ok(worker),
            WorkerState::Failed(reason, _) => {
                Err(format!("the Python worker ended and did not start again: {reason}"))
            }
            WorkerState::Starting(_) => Err("the Python worker is starting".to_owned()),
        }
    }

    /// Kills the worker and starts another in the background.
    pub(crate) fn start_again(&mut self) {
        let pause = if matches!(self.state, WorkerState::Failed(..)) { Duration::ZERO } else { self.pause() };
        // Dropping the old worker frees its memory before the new one allocates as much.
        self.state = WorkerState::Failed(String::new(), Instant::now());
        self.starts = self.starts.saturating_add(1);
        tracing::warn!("the Python worker is started again in {pause:?}");
        let (settings, limits) = (Arc::clone(&self.settings), self.limits);
        let start = move || {
            thread::sleep(pause);
            Worker::start(&settings, limits)
        };
        self.state = match thread::Builder::new().name("python-start".to_owned()).spawn(start) {
            Ok(thread) => WorkerState::Starting(thread),
            Err(error) => WorkerState::Failed(format!("no thread: {error}"), Instant::now() + self.pause()),
        };
    }

    pub(crate) fn succeeded(&mut self) {
        self.starts = 0;
    }

    /// The pause before the next start: zero for the first start in a row, then doubling.
    fn pause(&self) -> Duration {
        match self.starts {
            0 => Duration::ZERO,
            starts => (self.limits.pause * (1 << (starts - 1).min(16))).min(MAX_PAUSE.max(self.limits.pause)),
        }
    }

    fn same(&self, worker: Worker) -> Result<Worker, String> {
        if *worker.facts() == self.first {
            return Ok(worker);
        }
        Err(format!(
            "it differs from the first worker: {:?}, where the first was {:?}",
            worker.facts(),
            self.first
        ))
    }
}
