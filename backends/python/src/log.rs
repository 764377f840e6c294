//! Writes the worker's output to the log.
//!
//! Input: a pipe. Output: log lines at level `info`; the last lines are kept for error messages. What must
//! hold: a line has at most [`MAX_BYTES`] and no control characters; at most [`MAX_LINES`] are logged per
//! second, and the others are counted; no output takes memory without bound, even without a newline.

use std::{
    collections::VecDeque,
    io::Read,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use text_embeddings_backend_core::amount;

/// The longest line, in bytes. Longer lines are cut.
const MAX_BYTES: usize = 1000;
/// The most lines per second.
const MAX_LINES: usize = 100;
/// The number of lines kept for error messages.
const KEPT: usize = 8;

/// The last lines of output. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<VecDeque<String>>>);

impl Recent {
    pub(crate) fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
    }

    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// Reads the pipe until it ends.
pub(crate) fn copy(mut from: impl Read, recent: &Recent) {
    let mut lines = Lines::default();
    let mut limit = Limit { second: Instant::now(), count: 0 };
    let mut bytes = [0; 4096];
    // A read error counts as the end of the pipe.
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        for line in lines.split(&bytes[..count]) {
            if limit.admits(Instant::now()) {
                tracing::info!("python: {line}");
            }
            recent.push(line);
        }
    }
}

/// Splits bytes into lines. A carriage return also ends a line, because progress bars use it.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn split(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte == b'\n' || byte == b'\r' {
                let line = String::from_utf8_lossy(&self.0);
                let line: String =
                    line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
                self.0.clear();
                if !line.trim().is_empty() {
                    lines.push(line.trim_end().to_owned());
                }
            } else if self.0.len() < MAX_BYTES {
                self.0.push(byte);
            }
        }
        lines
    }
}

/// Counts the lines of the current second.
struct Limit {
    second: Instant,
    count: usize,
}

impl Limit {
    fn admits(&mut self, now: Instant) -> bool {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            if self.count > MAX_LINES {
                let lines = amount(self.count - MAX_LINES, "line");
                tracing::info!("python: left out {lines} within a second");
            }
            *self = Self { second: now, count: 0 };
        }
        self.count += 1;
        self.count <= MAX_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_cleaned_and_may_come_in_pieces() {
        let mut lines = Lines::default();
        assert_eq!(lines.split(b"one\n\n  \ntw"), ["one"]);
        assert_eq!(lines.split(b"o\r10%\r\x1b[31mred\n"), ["two", "10%", " [31mred"]);
        assert!(lines.split(&[b'x'; 10 * MAX_BYTES]).is_empty());
        assert!(lines.0.len() == MAX_BYTES && lines.split(b"\n") == ["x".repeat(MAX_BYTES)]);
    }

    #[test]
    fn a_second_has_so_many_lines_and_no_more() {
        let start = Instant::now();
        let mut limit = Limit { second: start, count: 0 };
        assert_eq!((0..3 * MAX_LINES).filter(|_| limit.admits(start)).count(), MAX_LINES);
        assert!(limit.admits(start + Duration::from_secs(1)));
    }

    #[test]
    fn the_last_lines_are_kept_and_no_more() {
        let recent = Recent::default();
        let text = (0..20).map(|number| number.to_string()).collect::<Vec<_>>().join("\n") + "\n";
        copy(text.as_bytes(), &recent);
        assert_eq!(recent.text(), "12 | 13 | 14 | 15 | 16 | 17 | 18 | 19");
    }
}
