//! `--stop-with-stdin`: whether the program that started this server is still there.
//!
//! Input: standard input, whose other end the parent holds open. Output: a future that completes when the parent closes
//! it or dies, however it dies: the kernel closes the pipes of a killed process too. What must hold: without the flag
//! standard input is not read; what the parent writes is read and dropped, so that it never blocks.

use std::{io, thread};

use tokio::sync::watch;

/// The parent's end of standard input. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Parent(Option<watch::Receiver<()>>);

impl Parent {
    /// Watches standard input if `is_wanted`.
    ///
    /// # Errors
    ///
    /// If the system gives no thread for it.
    pub(crate) fn watch(is_wanted: bool) -> io::Result<Self> {
        if !is_wanted {
            return Ok(Self(None));
        }
        let (sender, receiver) = watch::channel(());
        // Not one of tokio's threads: a read that never returns would keep the runtime from shutting down.
        thread::Builder::new().name("stdin".to_owned()).spawn(move || {
            // An error means what the end means: the parent cannot be heard any more.
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            drop(sender);
        })?;
        Ok(Self(Some(receiver)))
    }

    /// Completes once standard input has ended; never, if it is not watched.
    pub(crate) async fn gone(self) {
        match self.0 {
            // Nothing is ever sent: the only change is that the sender goes.
            Some(mut receiver) => while receiver.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }
}
