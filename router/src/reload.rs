//! Files that may change while the server runs: keys and certificate.
//!
//! Input: SIGHUP, or time. Output: new keys and a new certificate take effect. What must hold: a file that
//! cannot be used leaves the old state, and the log says so once for each reason, not each minute.

use std::time::Duration;

use text_embeddings_door::Certificate;
use tokio::signal::unix::{SignalKind, signal};

use crate::auth::ApiKeys;

/// How often the files are read without a signal: orchestrators replace them and send no signal.
const INTERVAL: Duration = Duration::from_mins(1);

/// Reads the files again on SIGHUP and at intervals, for ever. Without such files SIGHUP keeps its meaning,
/// which is to end the process.
pub(crate) async fn watch(keys: ApiKeys, certificate: Option<Certificate>) {
    if !keys.has_file() && certificate.is_none() {
        return;
    }
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    let mut last: [Option<String>; 2] = [None, None];
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        let outcomes = [
            ("the keys", keys.reload()),
            ("the certificate", certificate.as_ref().map_or(Ok(false), Certificate::reload)),
        ];
        for ((what, outcome), last) in outcomes.into_iter().zip(&mut last) {
            let problem = outcome.as_ref().err().map(|error| format!("{error:#}"));
            match (&outcome, &problem) {
                (Ok(true), _) => tracing::info!("{what} changed: the new state is in force"),
                (_, Some(problem)) if asked || Some(problem) != last.as_ref() => {
                    tracing::error!("{what}: the old state stays in force, because {problem}");
                }
                _ => {}
            }
            *last = problem;
        }
    }
}
