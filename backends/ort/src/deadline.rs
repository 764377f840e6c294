//! Ends runs of a graph that take too long: a graph may hold a loop of 2⁶² steps.
//!
//! A thread waits for the end of each run. When a run's time is up, it sets the run's terminate flag, which
//! ONNX Runtime reads before each node, also in the body of a loop. What must hold: a run that ends in time
//! is never terminated, and its options are used for no other run.

use ort::session::RunOptions;
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};
use text_embeddings_backend_core::BackendError;

/// The limit of a batch, and the thread that waits for it.
pub(crate) struct Deadline {
    limit: Duration,
    runs: Sender<WatchedRun>,
}

/// A run that the thread waits for.
struct WatchedRun {
    options: Arc<RunOptions>,
    until: Instant,
    /// Disconnected when the run has ended.
    ended: Receiver<()>,
}

pub(crate) struct RunWatch {
    /// Dropping it disconnects [`WatchedRun::ended`].
    _end: Sender<()>,
}

impl Deadline {
    /// Starts the thread. It ends when the deadline is dropped.
    pub(crate) fn start(limit: Duration) -> Result<Self, BackendError> {
        let (runs, received) = channel::<WatchedRun>();
        let thread = thread::Builder::new().name("onnx-deadline".to_owned()).spawn(move || {
            for WatchedRun { options, until, ended } in received {
                let left = until.saturating_duration_since(Instant::now());
                if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                    terminate(&options);
                }
            }
        });
        thread
            .map(|_| Self { limit, runs })
            .map_err(|error| BackendError::Load(format!("cannot start a thread: {error}")))
    }

    /// The time at which a batch that begins now must have ended.
    pub(crate) fn of_batch(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Watches a run with `options`, which begins now, until the result is dropped. At `until`, the run is
    /// told to stop.
    pub(crate) fn watch(&self, options: &Arc<RunOptions>, until: Instant) -> RunWatch {
        let (end, ended) = channel();
        // The thread lives as long as its channel, so it receives the run.
        let sent = self.runs.send(WatchedRun { options: options.clone(), until, ended });
        debug_assert!(sent.is_ok(), "the thread has ended");
        RunWatch { _end: end }
    }

    /// The error of a batch that was stopped.
    pub(crate) fn passed(&self) -> String {
        format!(
            "the batch was stopped after {} s, nine tenths of `--device-timeout`: the ONNX file may hold a loop without \
             end, or `--max-batch-tokens` or `--max-input-length` is too large",
            self.limit.as_secs_f32()
        )
    }
}

fn terminate(options: &RunOptions) {
    if let Err(error) = options.terminate() {
        tracing::error!(%error, "ONNX Runtime does not stop a run that takes too long");
    }
}
