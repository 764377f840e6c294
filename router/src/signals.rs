//! SIGTERM and SIGINT, counted from the start of the process.
//!
//! Output: futures that complete at the first and the second request to stop. What must hold: no signal is
//! lost, even between two waits. If the process cannot listen for signals, the system's default remains: the
//! process ends at once.

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

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
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                    sender.send_modify(|count| *count += 1);
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
