//! The answers of a batch, and the thread that sends them while the device computes the next batch.
//!
//! Input: the entries of a batch, with their outputs or the batch's error. Output: none. What must hold:
//! every entry is answered exactly once, even if the thread no longer runs; the thread ends after the device
//! thread.

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

/// The number of batches that may wait while the thread sends another batch's answers. More would only take
/// memory.
const WAITING: usize = 1;

/// The result of a batch.
#[derive(Debug)]
pub(super) struct BatchAnswers {
    /// The entries of the batch's texts, in its order.
    pub(super) entries: Vec<Entry>,
    /// The output of each text, or the batch's error.
    pub(super) outputs: Result<Vec<Output>, Error>,
    /// The start of the forward pass, and then its duration.
    pub(super) start: Instant,
    pub(super) inference: Duration,
}

impl BatchAnswers {
    /// Answers each text, the last one first: whoever sees a request's first text fail can then count all
    /// failed texts.
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

/// The channel to the thread that sends answers. When it is dropped, the thread sends the rest and ends.
#[derive(Debug)]
pub(super) struct Sender(SyncSender<BatchAnswers>);

impl Sender {
    /// Hands the answers of a batch to the thread. Waits while the thread is two batches behind.
    pub(super) fn send(&self, answers: BatchAnswers) {
        if let Err(SendError(answers)) = self.0.send(answers) {
            answers.send();
        }
    }

    /// A channel without a thread, for tests that compute in a thread of their own.
    #[cfg(test)]
    pub(super) fn without_thread() -> Self {
        Self(mpsc::sync_channel(WAITING).0)
    }
}

pub(super) fn start() -> Result<(Sender, JoinHandle<()>), Error> {
    let (sender, receiver) = mpsc::sync_channel::<BatchAnswers>(WAITING);
    let thread = thread::Builder::new()
        .name("answers".to_owned())
        .spawn(move || receiver.into_iter().for_each(BatchAnswers::send))
        .map_err(|error| Error::Inference(format!("the thread that sends answers did not start: {error}")))?;
    Ok((Sender(sender), thread))
}

/// Gives all texts the same error, the last text first.
pub(super) fn fail(entries: Vec<Entry>, error: &Error) {
    for entry in entries.into_iter().rev() {
        // A receiver that is gone wants no answer.
        let _ = entry.reply.send(Err(error.clone()));
    }
}
