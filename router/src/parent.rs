//! `--stop-with-stdin`: whether the program that started this server still runs.
//!
//! Input: standard input; the parent holds its other end open. Output: a future that completes when the
//! parent closes it or dies. The kernel also closes the pipes of a killed process. What must hold: without
//! the flag, standard input is not read; with it, everything the parent writes is read and dropped, so that
//! the parent never blocks.

use std::{io, thread};

use tokio::sync::watch;

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
