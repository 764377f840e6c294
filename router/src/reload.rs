//! Files that may change while the server runs: keys and certificate.
//!
//! Input: SIGHUP, or time. Output: new keys and a new certificate take effect. What must hold: a file that
//! cannot be used leaves the old state, and the log says so once for each reason, not each minute; a file
//! whose reading hangs holds up nothing else.

use std::{sync::Arc, time::Duration};

use text_embeddings_door::Certificate;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{JoinHandle, spawn_blocking},
};

use crate::auth::ApiKeys;

/// How often the files are read without a signal: orchestrators replace them and send no signal.
const INTERVAL: Duration = Duration::from_mins(1);

/// The time to read them. A network's file system may hang.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Reads the files again on SIGHUP and at intervals, for ever. Without such files, and without a models file,
/// SIGHUP keeps its meaning, which is to end the process.
pub(crate) async fn watch(keys: ApiKeys, certificate: Option<Certificate>) {
    if !keys.has_file() && certificate.is_none() {
        return;
    }
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    let mut keys = Reloaded::new("the keys", move || keys.reload());
    let mut certificate =
        Reloaded::new("the certificate", move || certificate.as_ref().map_or(Ok(false), Certificate::reload));
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        tokio::join!(keys.reload(asked, READ_LIMIT), certificate.reload(asked, READ_LIMIT));
    }
}

/// Files that are read again.
struct Reloaded {
    name: &'static str,
    read: Arc<dyn Fn() -> anyhow::Result<bool> + Send + Sync>,
    /// A reading that has not ended in time. No second one is begun before it ends.
    unfinished: Option<JoinHandle<anyhow::Result<bool>>>,
    /// The last problem, which is told once.
    last: Option<String>,
}

impl Reloaded {
    fn new(name: &'static str, read: impl Fn() -> anyhow::Result<bool> + Send + Sync + 'static) -> Self {
        Self { name, read: Arc::new(read), unfinished: None, last: None }
    }

    /// Reads the files on a thread of its own, and tells what came of it. An `asked` reading is always told.
    async fn reload(&mut self, asked: bool, limit: Duration) {
        let mut reading = self.unfinished.take().unwrap_or_else(|| {
            let read = Arc::clone(&self.read);
            spawn_blocking(move || read())
        });
        let name = self.name;
        let problem = match tokio::time::timeout(limit, &mut reading).await {
            Ok(Ok(Ok(is_new))) => {
                if is_new {
                    tracing::info!("{name} changed: the new state is in force");
                }
                None
            }
            Ok(Ok(Err(error))) => Some(format!("{error:#}")),
            Ok(Err(error)) => Some(format!("reading it failed: {error}")),
            Err(_) => {
                self.unfinished = Some(reading);
                Some(format!("reading it has not ended after {limit:?}"))
            }
        };
        if let Some(problem) = &problem
            && (asked || self.last.as_ref() != Some(problem))
        {
            tracing::error!("{name}: the old state stays in force, because {problem}");
        }
        self.last = problem;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    #[tokio::test]
    async fn a_reading_that_hangs_is_waited_for_and_not_begun_twice() {
        let (go_on, wait) = mpsc::channel::<()>();
        let (begun, wait) = (Arc::new(AtomicUsize::new(0)), Mutex::new(wait));
        let count = Arc::clone(&begun);
        let mut files = Reloaded::new("the files", move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(wait.lock().is_ok_and(|wait| wait.recv().is_ok()))
        });
        let limit = Duration::from_millis(20);
        for _ in 0..3 {
            files.reload(true, limit).await;
            assert!(files.unfinished.is_some() && files.last.is_some());
        }
        assert!(go_on.send(()).is_ok());
        files.reload(true, 100 * limit).await;
        assert!(files.unfinished.is_none() && files.last.is_none());
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }
}
