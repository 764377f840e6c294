//! SIGTERM and SIGINT, counted from the start of the process.
//!
//! Output: futures that complete once the process has been asked to stop, and asked again. What must hold: no signal is
//! lost, also one that comes between two waits; without the means to hear signals the system's default remains, an end at
//! once.

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// How often the process has been asked to stop. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StopSignals(watch::Receiver<u32>);

impl StopSignals {
    /// Listens from now on. Wants a tokio runtime.
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
