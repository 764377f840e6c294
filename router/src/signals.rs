//! Requests to stop: SIGTERM and SIGINT, counted from the start of the process, and with `--stop-with-stdin`
//! the end of standard input. SIGXFSZ has no effect.
//!
//! Output: futures that complete at the first and the second signal, and when the parent closes its end of
//! standard input or dies. The kernel also closes the pipes of a killed process. What must hold: no signal is
//! lost, even between two waits; signals that come together are one request. If the process cannot listen for
//! signals, the system's default remains: the process ends at once. Without the flag, standard input is not
//! read; with it, everything the parent writes is read and dropped, so that the parent never blocks.

use std::{
    io,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::process::Signal;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// The threads for asynchronous work. From now on, a write beyond the limit of a file's size (`ulimit -f`)
/// fails like every other failed write. By default, the system would end the process.
pub(crate) fn start_runtime() -> anyhow::Result<Runtime> {
    let message =
        "the runtime cannot start its threads: raise the limit of processes (`pids.max`, `ulimit -u`)";
    try_threads(thread::available_parallelism()?.get()).context(message)?;
    let runtime = Runtime::new().context(message)?;
    // From this call on, the process catches the signal, even if no task waits for it.
    drop(runtime.block_on(async { signal(SignalKind::from_raw(Signal::XFSZ.as_raw())) }));
    Ok(runtime)
}

/// Starts this many threads at a time and ends them: without them, tokio's runtime panics and may never end.
fn try_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..count {
            thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()))?;
        }
        Ok(())
    })
}

/// Signals within this time are one request to stop: `timeout` and others signal their child, then the group
/// that it is in.
const TOGETHER: Duration = Duration::from_millis(200);

/// The number of requests to stop so far. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StopSignals(watch::Receiver<u32>);

impl StopSignals {
    /// Starts to listen. Must run in a tokio runtime.
    pub(crate) fn listen() -> Self {
        let (sender, receiver) = watch::channel(0);
        if let (Ok(mut terminate), Ok(mut interrupt)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        {
            tokio::spawn(async move {
                let mut counted: Option<Instant> = None;
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                    if counted.is_none_or(|counted| counted.elapsed() > TOGETHER) {
                        counted = Some(Instant::now());
                        sender.send_modify(|count| *count += 1);
                    }
                }
            });
        }
        Self(receiver)
    }

    /// Completes once `number` signals have come.
    pub(crate) async fn received(mut self, number: u32) {
        if self.0.wait_for(|count| *count >= number).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The parent's end of standard input. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Parent(Option<watch::Receiver<()>>);

impl Parent {
    /// Watches standard input if `is_wanted`.
    pub(crate) fn watch(is_wanted: bool) -> io::Result<Self> {
        if !is_wanted {
            return Ok(Self(None));
        }
        let (sender, receiver) = watch::channel(());
        // Not one of tokio's threads: a read that never returns would keep the runtime from shutting down.
        thread::Builder::new().name("stdin".to_owned()).spawn(move || {
            // An error means the same as the end: nothing more comes from the parent.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            drop(sender);
        })?;
        Ok(Self(Some(receiver)))
    }

    /// Completes once standard input has ended. Never completes if it is not watched.
    pub(crate) async fn gone(self) {
        match self.0 {
            // Nothing is ever sent: the only change is that the sender goes.
            Some(mut receiver) => while receiver.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }
}
