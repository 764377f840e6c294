//! A clock for tests of timeouts: real time decides nothing.
//!
//! Input: none. Output: tokio's clock of the test's runtime stands still until `tokio::time::advance` or
//! `resume`. What must hold: the test's runtime has one thread, as `#[tokio::test]` makes it.

use std::{
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

/// Keeps the clock stopped while it lives.
pub(crate) struct StoppedClock(
    #[expect(dead_code, reason = "dropping it ends the blocking task")] Sender<()>,
);

impl StoppedClock {
    pub(crate) fn new() -> Self {
        tokio::time::pause();
        // A runtime that only waits, also for a socket, moves a paused clock to its next timer, unless a
        // blocking task is running.
        let (hold, held) = channel();
        drop(tokio::task::spawn_blocking(move || held.recv()));
        Self(hold)
    }

    /// Runs `work`, and next to it a `script` that moves the clock, until `work` ends.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>, script: impl Future<Output = ()>) -> T {
        let endless = async {
            script.await;
            std::future::pending().await
        };
        tokio::select! {
            ended = work => ended,
            ended = endless => ended,
        }
    }

    /// Waits in real time until a condition is true.
    pub(crate) async fn until(&self, mut condition: impl FnMut() -> bool) {
        while !condition() {
            drop(tokio::task::spawn_blocking(|| thread::sleep(Duration::from_millis(1))).await);
        }
    }
}
