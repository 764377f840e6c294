//! Shows the progress of a file's download.
//!
//! Input: the number of bytes received. Output: on a terminal, a bar with bytes and remaining time; otherwise
//! log lines.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

/// Smaller files only get one line, at their end. In bytes.
const LONG_FILE: u64 = 50_000_000;
/// The longest time without a log line during the download of a large file.
const INTERVAL: Duration = Duration::from_secs(10);

/// The progress of one file's download.
pub(super) struct TransferProgress {
    file: String,
    /// The file's length in bytes; 0 if the server did not announce it.
    expected: u64,
    started: Instant,
    display: Display,
}

enum Display {
    /// No bytes have been received yet.
    Waiting,
    Bar(ProgressBar),
    Lines(Pace),
}

impl TransferProgress {
    pub(super) fn new(file: &str, expected: u64) -> Self {
        Self { file: file.to_owned(), expected, started: Instant::now(), display: Display::Waiting }
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Reports that the file is complete.
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

    /// Reports that `bytes` bytes of the file are on disk.
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

/// Decides when a log line is due: after every tenth of the file, and after ten seconds without one.
struct Pace {
    /// The number of bytes received so far.
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
        // Seconds since the start, bytes of 1,000, and whether a line is due.
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
