//! Shows how far the download of one file is.
//!
//! Input: the events of `hf-hub`. Output: a bar with bytes and remaining time on a terminal, log lines elsewhere.
//! Beside that it keeps what the download needs to know: how long the file should be and how much has come.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hf_hub::progress::{DownloadEvent, FileStatus, ProgressEvent, ProgressHandler};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

/// Files below this size get one line at their end and none before.
const LONG_FILE: u64 = 50_000_000;
/// The longest silence during a long file.
const INTERVAL: Duration = Duration::from_secs(10);

/// The progress of one file's download.
pub(super) struct TransferProgress {
    file: String,
    expected: AtomicU64,
    bytes: AtomicU64,
    started: Instant,
    display: Mutex<Display>,
}

enum Display {
    /// Nothing has come yet; a file that is already in the cache stays in this state.
    Waiting,
    Bar(ProgressBar),
    Lines(Pace),
}

impl TransferProgress {
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            expected: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            started: Instant::now(),
            display: Mutex::new(Display::Waiting),
        }
    }

    /// The file's length in bytes as the Hub announced it; 0 if it did not, or was not asked.
    pub(super) fn expected(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }

    /// Bytes that have come so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The file is complete.
    pub(super) fn finish(&self) {
        match &*self.display.lock().unwrap_or_else(PoisonError::into_inner) {
            Display::Waiting => {}
            Display::Bar(bar) => bar.finish(),
            Display::Lines(_) => {
                let seconds = self.started.elapsed().as_secs_f32();
                tracing::info!("downloaded {} ({}, {seconds:.1} s)", self.file, DecimalBytes(self.bytes()));
            }
        }
    }

    fn advance(&self, bytes: u64) {
        // Events of parallel parts may come out of order; a bar never goes back.
        let bytes = self.bytes.fetch_max(bytes, Ordering::Relaxed).max(bytes);
        let expected = self.expected();
        let mut display = self.display.lock().unwrap_or_else(PoisonError::into_inner);
        if let Display::Waiting = *display {
            *display = self.start(expected);
        }
        match &mut *display {
            Display::Waiting => {}
            Display::Bar(bar) => bar.set_position(bytes),
            Display::Lines(pace) => {
                if expected >= LONG_FILE && pace.is_due(bytes, expected, Instant::now()) {
                    tracing::info!(
                        "downloading {}: {} of {}",
                        self.file,
                        DecimalBytes(bytes),
                        DecimalBytes(expected)
                    );
                }
            }
        }
    }

    fn start(&self, expected: u64) -> Display {
        if !std::io::stderr().is_terminal() {
            if expected >= LONG_FILE {
                tracing::info!("downloading {} ({})", self.file, DecimalBytes(expected));
            }
            return Display::Lines(Pace { tenths: 0, last: Instant::now() });
        }
        let bar = ProgressBar::new(expected).with_message(self.file.clone());
        let template =
            "{msg} [{wide_bar}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} ETA {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Display::Bar(bar)
    }
}

impl ProgressHandler for TransferProgress {
    fn on_progress(&self, event: &ProgressEvent) {
        match event {
            ProgressEvent::Download(DownloadEvent::Start { total_bytes, .. }) => {
                self.expected.store(*total_bytes, Ordering::Relaxed);
            }
            ProgressEvent::Download(DownloadEvent::Progress { files }) => {
                for file in files {
                    // A file of the cache is only ever complete; one that is transferred was in progress before.
                    let is_waiting = matches!(
                        *self.display.lock().unwrap_or_else(PoisonError::into_inner),
                        Display::Waiting
                    );
                    if !(is_waiting && file.status == FileStatus::Complete) {
                        self.advance(file.bytes_completed);
                    }
                }
            }
            ProgressEvent::Download(DownloadEvent::AggregateProgress { bytes_completed, .. }) => {
                self.advance(*bytes_completed);
            }
            _ => {}
        }
    }
}

/// Decides when a log line is due: at every tenth of the file, and after ten seconds of silence.
struct Pace {
    tenths: u64,
    last: Instant,
}

impl Pace {
    fn is_due(&mut self, bytes: u64, expected: u64, now: Instant) -> bool {
        let tenths = (bytes * 10).checked_div(expected).unwrap_or_default();
        let due = tenths > self.tenths || now.duration_since(self.last) >= INTERVAL;
        if due {
            self.tenths = tenths;
            self.last = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hf_hub::progress::FileProgress;

    #[test]
    fn a_line_is_due_at_each_tenth_and_after_ten_seconds() {
        let start = Instant::now();
        let mut pace = Pace { tenths: 0, last: start };
        // Seconds since the start, bytes of 1,000, whether a line is due.
        let table = [
            (0, 50, false),
            (1, 100, true),
            (2, 150, false),
            (3, 420, true),
            (12, 430, false),
            (13, 440, true),
            (14, 499, false),
            (15, 1_000, true),
            (16, 1_000, false),
        ];
        for (seconds, bytes, expected) in table {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(pace.is_due(bytes, 1_000, now), expected, "{seconds} s, {bytes} bytes");
        }
        assert!(!pace.is_due(5, 0, start + Duration::from_secs(17)), "an unknown length has no tenths");
    }

    #[test]
    fn length_and_bytes_are_taken_from_the_events() {
        let progress = TransferProgress::new("model.safetensors");
        let file = |bytes_completed, status| {
            let filename = "model.safetensors".to_owned();
            let files = vec![FileProgress { filename, bytes_completed, total_bytes: 100, status }];
            ProgressEvent::Download(DownloadEvent::Progress { files })
        };
        progress
            .on_progress(&ProgressEvent::Download(DownloadEvent::Start { total_files: 1, total_bytes: 100 }));
        progress.on_progress(&file(100, FileStatus::Complete));
        assert_eq!((progress.expected(), progress.bytes()), (100, 0), "a cache hit moves no bytes");
        progress.on_progress(&file(0, FileStatus::Started));
        progress.on_progress(&file(40, FileStatus::InProgress));
        progress.on_progress(&file(30, FileStatus::InProgress));
        assert_eq!(progress.bytes(), 40);
        progress.on_progress(&file(100, FileStatus::Complete));
        assert_eq!(progress.bytes(), 100);
    }
}
