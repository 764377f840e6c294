//! When to stop: asked first, then due.
//!
//! Input: a signal. Output: a [`Stop`] that connections and health probes ask. What must hold: it never goes
//! back to an earlier phase.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::watch;

/// How far a server is on its way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Phase {
    /// It serves.
    Serving,
    /// It was asked to stop and serves on for a while, so that nobody is refused who has not heard of it yet.
    Leaving,
    /// It accepts nothing more.
    Closing,
}

/// Says when to stop. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stop(Arc<watch::Sender<Phase>>);

impl Stop {
    /// One that is asked once `signal` completes, and due `delay` later. Wants a tokio runtime.
    pub fn on(signal: impl Future<Output = ()> + Send + 'static, delay: Duration) -> Self {
        let stop = Self::never();
        let asked = stop.clone();
        tokio::spawn(async move {
            signal.await;
            asked.advance(Phase::Leaving);
            tokio::time::sleep(delay).await;
            asked.advance(Phase::Closing);
        });
        stop
    }

    /// One that nothing asks yet.
    pub fn never() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Serving)))
    }

    /// Closes at once, without the delay.
    pub fn close_now(&self) {
        self.advance(Phase::Closing);
    }

    /// Goes on to a phase, and never back to an earlier one.
    fn advance(&self, wanted: Phase) {
        self.0.send_if_modified(|phase| {
            let is_new = *phase < wanted;
            if is_new {
                *phase = wanted;
            }
            is_new
        });
    }

    /// Whether the server was asked to stop.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow() >= Phase::Leaving
    }

    /// Completes when the server was asked to stop.
    pub async fn asked(self) {
        self.reached(Phase::Leaving).await;
    }

    /// Completes when it is time to close.
    pub async fn due(self) {
        self.reached(Phase::Closing).await;
    }

    async fn reached(self, wanted: Phase) {
        // The sender lives as long as `self`, so that this ends only with the phase.
        let _ = self.0.subscribe().wait_for(|phase| *phase >= wanted).await;
    }
}
