//! What a batch gave, on its way to whoever waits, and the thread that sends it while the device computes the next batch.
//!
//! Input: the entries of a batch with their outputs or its error. Output: none. What must hold: every entry is answered
//! once, also if the thread does not run any more; the thread ends when the device thread has.

use crate::{
    error::Error,
    queue::{Entry, Outcome},
};
use std::{
    sync::mpsc::{self, SendError, SyncSender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use text_embeddings_backend_core::Output;

/// Batches whose answers may wait while those of another are sent: the outputs of more would only take memory.
const WAITING: usize = 1;

/// What a batch gave.
#[derive(Debug)]
pub(super) struct Answers {
    /// Who waits for its texts, in its order.
    pub(super) entries: Vec<Entry>,
    /// The output of each text, or why there is none.
    pub(super) outputs: Result<Vec<Output>, Error>,
    /// When the device began to compute it, and for how long it did.
    pub(super) start: Instant,
    pub(super) inference: Duration,
}

impl Answers {
    /// Answers each text. The last one first: who hears of the failure of a request's first text can count all that failed
    /// with it.
    pub(super) fn send(self) {
        let Self { entries, outputs, start, inference } = self;
        let outputs = match outputs {
            Ok(outputs) => outputs,
            Err(error) => return fail(entries, &error),
        };
        for (entry, output) in entries.into_iter().zip(outputs).rev() {
            let queue = start.saturating_duration_since(entry.enqueued);
            let outcome = if output.has_nan() {
                Err(Error::MissingValues)
            } else {
                Ok(Outcome { output, queue, inference })
            };
            // A receiver that is gone wants no answer.
            let _ = entry.reply.send(outcome);
        }
    }
}

/// The way to the thread that sends answers. The thread ends when this is dropped and what it was given is sent.
#[derive(Debug)]
pub(super) struct Sender(SyncSender<Answers>);

impl Sender {
    /// Has the thread send the answers of a batch. Waits while it is two batches behind.
    pub(super) fn send(&self, answers: Answers) {
        if let Err(SendError(answers)) = self.0.send(answers) {
            answers.send();
        }
    }

    /// One without a thread, for tests that compute in a thread of their own.
    #[cfg(test)]
    pub(super) fn without_thread() -> Self {
        Self(mpsc::sync_channel(WAITING).0)
    }
}

/// Starts the thread.
///
/// # Errors
///
/// [`Error::Inference`] if the system gives no thread.
pub(super) fn start() -> Result<(Sender, JoinHandle<()>), Error> {
    let (sender, receiver) = mpsc::sync_channel::<Answers>(WAITING);
    let thread = thread::Builder::new()
        .name("answers".to_owned())
        .spawn(move || receiver.into_iter().for_each(Answers::send))
        .map_err(|error| Error::Inference(format!("the thread that sends answers did not start: {error}")))?;
    Ok((Sender(sender), thread))
}

/// Tells everyone the same, the last first.
pub(super) fn fail(entries: Vec<Entry>, error: &Error) {
    for entry in entries.into_iter().rev() {
        // A receiver that is gone wants no answer.
        let _ = entry.reply.send(Err(error.clone()));
    }
}
