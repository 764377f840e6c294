//! A thread that notices when the device hangs.
//!
//! Input: the engine's state, and how long a batch may take. Output: whether the device hangs. What must
//! hold: every text that waits for a hung device gets an error; when the device works again, so does the
//! server.

use super::Shared;
use crate::error::Error;
use std::{
    ops::RangeInclusive,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

/// How often the thread looks: a tenth of the time that a batch may take, within these bounds.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(1);

/// The thread's handle. The thread ends when the handle is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Whether the device hangs.
    pub(super) hung: Arc<AtomicBool>,
    _end: Sender<()>,
}

impl Watchdog {
    /// Starts to watch the device of an engine whose batches may take at most `timeout`.
    pub(super) fn start(shared: &Arc<Shared>, timeout: Duration) -> Result<Self, Error> {
        let hung = Arc::new(AtomicBool::new(false));
        let (end, ended) = mpsc::channel();
        let (shared, flag) = (Arc::downgrade(shared), Arc::clone(&hung));
        let interval = (timeout / 10).clamp(*INTERVAL.start(), *INTERVAL.end());
        let thread = thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                look(&shared, &flag, timeout);
            }
        });
        thread.map_err(|error| Error::Inference(format!("the watchdog thread did not start: {error}")))?;
        Ok(Self { hung, _end: end })
    }
}

fn look(shared: &Weak<Shared>, hung: &AtomicBool, timeout: Duration) {
    let Some(shared) = shared.upgrade() else { return };
    let late = shared.computes_for().filter(|time| *time > timeout);
    let was_hung = hung.swap(late.is_some(), Ordering::AcqRel);
    match late {
        Some(time) => {
            let seconds = time.as_secs_f64();
            let error = Error::Inference(format!(
                "the device has computed one batch for {seconds:.1} s, longer than `--device-timeout`"
            ));
            if !was_hung {
                tracing::error!("{error}: the server is unhealthy until this batch ends");
            }
            shared.give_up(&error);
        }
        None if was_hung => {
            tracing::warn!("the device has ended the batch that took too long, and works again");
        }
        None => {}
    }
}
