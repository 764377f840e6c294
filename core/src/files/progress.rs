//! Shows how far the download of one file is.
//!
//! Input: how many bytes have come. Output: a bar with bytes and remaining time on a terminal, log lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

/// Files below this size get one line at their end and none before.
const LONG_FILE: u64 = 50_000_000;
/// The longest silence during a long file.
const INTERVAL: Duration = Duration::from_secs(10);

/// The progress of one file's download.
pub(super) struct TransferProgress {
    file: String,
    /// The file's length in bytes; 0 if it was not announced.
    expected: u64,
    started: Instant,
    display: Display,
}

enum Display {
    /// Nothing has come yet.
    Waiting,
    Bar(ProgressBar),
    Lines(Pace),
}

impl TransferProgress {
    pub(super) fn new(file: &str, expected: u64) -> Self {
        Self { file: file.to_owned(), expected, started: Instant::now(), display: Display::Waiting }
    }

    /// The file's name.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// The file is complete.
    pub(super) fn finish(&self) {
        match &self.display {
            Display::Waiting => {}
            Display::Bar(bar) => bar.finish(),
            Display::Lines(pace) => {
                let seconds = self.started.elapsed().as_secs_f32();
                tracing::info!("downloaded {} ({}, {seconds:.1} s)", self.file, DecimalBytes(pace.bytes));
            }
        }
    }

    /// So many bytes are on the disk.
    pub(super) fn advance(&mut self, bytes: u64) {
        if let Display::Waiting = self.display {
            self.display = self.start();
        }
        match &mut self.display {
            Display::Waiting => {}
            Display::Bar(bar) => bar.set_position(bytes),
            Display::Lines(pace) => {
                if pace.is_due(bytes, self.expected, Instant::now()) && self.expected >= LONG_FILE {
                    tracing::info!(
                        "downloading {}: {} of {}",
                        self.file,
                        DecimalBytes(bytes),
                        DecimalBytes(self.expected)
                    );
                }
            }
        }
    }

    fn start(&self) -> Display {
        let expected = self.expected;
        if !std::io::stderr().is_terminal() {
            if expected >= LONG_FILE {
                tracing::info!("downloading {} ({})", self.file, DecimalBytes(expected));
            }
            return Display::Lines(Pace { bytes: 0, tenths: 0, last: Instant::now() });
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

/// Decides when a log line is due: at every tenth of the file, and after ten seconds of silence.
struct Pace {
    /// What has come so far.
    bytes: u64,
    tenths: u64,
    last: Instant,
}

impl Pace {
    fn is_due(&mut self, bytes: u64, expected: u64, now: Instant) -> bool {
        self.bytes = bytes;
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

    #[test]
    fn a_line_is_due_at_each_tenth_and_after_ten_seconds() {
        let start = Instant::now();
        let mut pace = Pace { bytes: 0, tenths: 0, last: start };
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
}
