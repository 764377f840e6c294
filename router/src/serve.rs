//! Serving: every transport on its port, until the process is asked to stop, and an orderly end.
//!
//! Input: an [`AppState`] and open listeners. Output: none, once everything is answered or the time for it is up. What
//! must hold: after the signal no connection is accepted and requests in flight finish, but no later than the bound.

use std::{future::Future, io, time::Duration};

use tokio::{net::TcpListener, sync::watch};

use crate::{http, state::AppState};

/// Says when to stop. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// One that says so once `signal` completes. Wants a tokio runtime.
    pub(crate) fn on(signal: impl Future<Output = ()> + Send + 'static) -> Self {
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(async move {
            signal.await;
            // Who does not listen any more needs no signal.
            let _ = sender.send(true);
        });
        Self(receiver)
    }

    /// Whether it is time to stop.
    pub(crate) fn is_due(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when it is time to stop; never, if the signal was lost.
    pub(crate) async fn wait(mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Serves until [`AppState::stop`] says to stop, and then until the requests in flight are answered, but no longer
/// than `drain`.
///
/// # Errors
///
/// If a listener fails.
pub(crate) async fn serve(state: AppState, listener: TcpListener, drain: Duration) -> io::Result<()> {
    let stop = state.stop.clone();
    let overdue = async {
        stop.wait().await;
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        served = http::serve(state, listener) => served,
        () = overdue => {
            tracing::warn!("some requests are not answered after {drain:?}: they are dropped");
            Ok(())
        }
    }
}
