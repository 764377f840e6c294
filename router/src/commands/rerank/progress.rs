//! The progress of a long ranking, on standard error if that is a terminal.
//!
//! Input: the scored documents of each chunk. Output: a bar with the number of documents, their rate and the
//! remaining time; without a known end, no remaining time. What must hold: nothing is shown for work that
//! ends within a second, nor where standard error is not a terminal.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use text_embeddings_backend_core::amount;

/// Work that ends sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// The progress of a ranking.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    documents: u64,
    is_shown: bool,
}

impl Progress {
    /// Of `length` bytes or documents; absent if that is not known. `wanted`: whether a bar may be shown.
    pub(super) fn new(length: Option<u64>, wanted: bool) -> Self {
        let bar = (wanted && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
            let template = if length.is_some() {
                "{msg} [{wide_bar}] {percent}% ETA {eta}"
            } else {
                "{spinner} {msg} in {elapsed}"
            };
            bar.with_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        Self { bar, started: Instant::now(), documents: 0, is_shown: false }
    }

    /// Adds `documents` scored; `position` is the total so far, in the unit of the length.
    pub(super) fn advance(&mut self, documents: usize, position: u64) {
        self.documents += documents as u64;
        let Some(bar) = &self.bar else { return };
        let elapsed = self.started.elapsed();
        if !self.is_shown && elapsed >= PATIENCE {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
        }
        let rate = self.documents as f64 / elapsed.as_secs_f64().max(1e-3);
        bar.set_message(format!("{} scored, {rate:.1}/s", amount(self.documents, "document")));
        bar.set_position(position);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
