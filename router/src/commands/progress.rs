//! The progress of a long command, on standard error if that is a terminal.
//!
//! Input: the number of finished documents of each chunk. Output: a word while the model is loaded; then a
//! bar with the number of documents, their rate and the remaining time; without a known end, no remaining
//! time.
//! What must hold: no bar is shown for work that ends within a second, nor anything where standard error is
//! not a terminal.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use text_embeddings_backend_core::amount;

/// Work that ends sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the word about loading turns.
const TURN: Duration = Duration::from_millis(200);

/// The word while a model is loaded. Dropping it removes it.
pub(crate) struct Loading(Option<ProgressBar>);

impl Loading {
    /// Says that `model` is loaded; `wanted`: whether anything may be shown.
    pub(crate) fn new(model: &str, wanted: bool) -> Self {
        Self((wanted && io::stderr().is_terminal()).then(|| {
            let spinner = ProgressBar::new_spinner().with_message(format!("Loading {model}"));
            spinner.enable_steady_tick(TURN);
            spinner
        }))
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        if let Some(spinner) = &self.0 {
            spinner.finish_and_clear();
        }
    }
}

/// The progress of a command.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    /// The word for one of the things that are counted, such as `document`.
    unit: &'static str,
    /// The word for the work on it, such as `scored`.
    done: &'static str,
    started: Instant,
    documents: u64,
    is_shown: bool,
    speed: Speed,
}

impl Progress {
    /// Of `length` bytes or documents; absent if that is not known. `wanted`: whether a bar may be shown. It
    /// counts each `unit` as `done`.
    pub(crate) fn new(length: Option<u64>, wanted: bool, unit: &'static str, done: &'static str) -> Self {
        let bar = (wanted && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
            let template = if length.is_some() {
                "{msg} [{wide_bar}] {percent}% {prefix}"
            } else {
                "{spinner} {msg} in {elapsed}"
            };
            bar.with_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        });
        Self {
            bar,
            unit,
            done,
            started: Instant::now(),
            documents: 0,
            is_shown: false,
            speed: Speed::default(),
        }
    }

    /// Adds `documents` scored; `position` is the total so far, in the unit of the length.
    pub(crate) fn advance(&mut self, documents: usize, position: u64) {
        self.documents += documents as u64;
        let Some(bar) = &self.bar else { return };
        let elapsed = self.started.elapsed();
        if !self.is_shown && elapsed >= PATIENCE {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
        }
        let rate = self.documents as f64 / elapsed.as_secs_f64().max(1e-3);
        bar.set_message(format!("{} {}, {rate:.1}/s", amount(self.documents, self.unit), self.done));
        bar.set_position(position);
        self.speed.add_sample(elapsed, position);
        if let Some(left) = self.speed.remaining_time(bar.length().unwrap_or(position)) {
            bar.set_prefix(format!("ETA {} s", left.as_secs()));
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The speed of the later half of the time so far. The first chunks are small and slow: counted in full, they
/// would make the rest look several times as long.
#[derive(Debug, Default)]
struct Speed {
    /// Times and positions of the later half, and one sample before it; the oldest first.
    noted: VecDeque<(Duration, u64)>,
}

impl Speed {
    fn add_sample(&mut self, elapsed: Duration, position: u64) {
        self.noted.push_back((elapsed, position));
        while self.noted.len() > 2 && self.noted[1].0 <= elapsed / 2 {
            self.noted.pop_front();
        }
    }

    /// The time for the rest of `length`; absent before there is a speed.
    fn remaining_time(&self, length: u64) -> Option<Duration> {
        let ((first, start), (last, position)) = (self.noted.front()?, self.noted.back()?);
        let covered = position.checked_sub(*start).filter(|covered| *covered > 0)?;
        let left = length.saturating_sub(*position) as f64 / covered as f64;
        Duration::try_from_secs_f64(last.saturating_sub(*first).as_secs_f64() * left).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_first_chunks_do_not_make_the_rest_look_long() {
        let mut speed = Speed::default();
        assert_eq!(speed.remaining_time(100), None);
        // Chunks of 4, 8, 16, … documents that take 0.4 s each, as when a chunk costs as much as its pass.
        let (mut elapsed, mut position) = (Duration::ZERO, 0);
        for documents in [4, 8, 16, 32, 64] {
            elapsed += Duration::from_millis(400);
            position += documents;
            speed.add_sample(elapsed, position);
        }
        // From then on 64 documents take 0.4 s: 1000 more take 6.25 s. All so far would say 16 s.
        let left = speed.remaining_time(position + 1000).map(|left| left.as_secs_f64()).unwrap_or_default();
        assert!((6.25..12.5).contains(&left), "{left}");
        for _ in 0..50 {
            elapsed += Duration::from_millis(400);
            position += 64;
            speed.add_sample(elapsed, position);
        }
        let left = speed.remaining_time(position + 1000).map(|left| left.as_secs_f64()).unwrap_or_default();
        assert!((left - 6.25).abs() < 1e-6, "{left}");
        assert!(speed.noted.len() < 30);
        assert_eq!(speed.remaining_time(position), Some(Duration::ZERO));
    }
}
