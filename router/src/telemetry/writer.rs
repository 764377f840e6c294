//! The log's way out: a thread of its own writes it, so that a reader who stops costs lines, not the server.
//!
//! Input: lines of the log. Output: the same lines on standard output. What must hold: no thread of the
//! server waits for the reader; a bounded number of bytes waits, and lines beyond them are dropped and
//! counted; no line has a control character beyond ASCII, which JSON would leave as it is; when the process
//! ends, the lines that wait get a moment.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use text_embeddings_core::metrics::LOG_LINES_DROPPED;
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes of lines that wait for the reader.
const MAX_WAITING: usize = 4 << 20;
/// The most bytes of a line. The rest of a longer one is left out.
const MAX_LINE: usize = 16 << 10;
/// The time for the last lines when the process ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Takes lines of the log. Cheap to clone.
#[derive(Clone)]
pub(super) struct LogWriter(Arc<SharedLines>);

#[derive(Default)]
struct SharedLines {
    lines: Mutex<WaitingLines>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingLines {
    waiting: VecDeque<Vec<u8>>,
    /// The bytes of the waiting lines, and of the line that is being written.
    bytes: usize,
}

/// Gives the last lines a moment when it is dropped, at the end of the process.
pub(crate) struct LogEnd(Arc<SharedLines>);

impl LogWriter {
    /// Starts the thread that writes to `output`.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<(Self, LogEnd)> {
        let shared = Arc::<SharedLines>::default();
        let writing = Arc::clone(&shared);
        thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_lines(output))?;
        Ok((Self(Arc::clone(&shared)), LogEnd(shared)))
    }
}

impl SharedLines {
    fn lock(&self) -> MutexGuard<'_, WaitingLines> {
        // No code that runs under the lock can leave the state inconsistent.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line, or drops it if too many wait.
    fn push_line(&self, line: Vec<u8>) {
        let mut lines = self.lock();
        if lines.bytes + line.len() > MAX_WAITING {
            drop(lines);
            metrics::counter!(LOG_LINES_DROPPED).increment(1);
            return;
        }
        lines.bytes += line.len();
        lines.waiting.push_back(line);
        self.changed.notify_all();
    }

    /// Writes lines, for ever.
    fn write_lines(&self, mut output: impl Write) {
        let mut begun: &[u8] = b"";
        loop {
            let mut lines = self.lock();
            let line = loop {
                match lines.waiting.pop_front() {
                    Some(line) => break line,
                    None => lines = self.changed.wait(lines).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(lines);
            let written = output.write_all(begun).and_then(|()| output.write_all(&line));
            // A reader that is gone is no reason to end the server, nor is a full disk, which may have taken
            // a part of the line.
            if written.and_then(|()| output.flush()).is_err() {
                begun = b"\n";
                metrics::counter!(LOG_LINES_DROPPED).increment(1);
            } else {
                begun = b"";
            }
            self.lock().bytes -= line.len();
            self.changed.notify_all();
        }
    }
}

impl Drop for LogEnd {
    fn drop(&mut self) {
        // A timeout means that the reader has stopped.
        drop(self.0.changed.wait_timeout_while(self.0.lock(), FAREWELL, |lines| lines.bytes > 0));
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine { shared: &self.0, line: Vec::new() }
    }
}

/// A line while it is made. It is sent off when it is dropped.
pub(super) struct LogLine<'a> {
    shared: &'a SharedLines,
    line: Vec<u8>,
}

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_LINE.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        if line.len() == MAX_LINE {
            line.pop();
            line.push(b'\n');
        }
        self.shared.push_line(if line.is_ascii() { line } else { escape_controls(&line) });
    }
}

/// Whether a terminal obeys a character instead of showing it: it moves the cursor, breaks the line, or turns
/// the direction of the text around it.
pub(crate) fn is_control(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A line whose control characters beyond ASCII are written as in JSON.
fn escape_controls(line: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(line.len());
    for character in String::from_utf8_lossy(line).chars() {
        // Writing to memory does not fail.
        let _ = if is_control(character) && !character.is_ascii() {
            write!(escaped, "\\u{:04x}", u32::from(character))
        } else {
            write!(escaped, "{character}")
        };
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::sync::mpsc;

    /// An output that takes a line only when its reader asks for one.
    struct Reader {
        asked: mpsc::Receiver<()>,
        read: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.recv().map_err(io::Error::other)?;
            self.read.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_nobody_waits() {
        let ((ask, asked), (read, lines)) = (mpsc::channel(), mpsc::channel());
        let (writer, end) = LogWriter::start(Reader { asked, read }).unwrap();
        let line = [vec![b'a'; MAX_LINE - 1], b"\n".to_vec()].concat();
        let count = MAX_WAITING / MAX_LINE;
        for _ in 0..2 * count {
            writer.make_writer().write_all(&line).unwrap();
        }
        assert_eq!(writer.0.lock().bytes, MAX_WAITING, "the rest is dropped");
        for _ in 0..count {
            ask.send(()).unwrap();
            assert_eq!(lines.recv().unwrap(), line);
        }
        writer.make_writer().write_all(b"after\n").unwrap();
        ask.send(()).unwrap();
        assert_eq!(lines.recv().unwrap(), b"after\n");
        drop(end);
        assert_eq!(writer.0.lock().bytes, 0);
    }

    #[test]
    fn a_long_line_is_cut_and_stays_a_line() {
        let ((ask, asked), (read, lines)) = (mpsc::channel(), mpsc::channel());
        let (writer, _end) = LogWriter::start(Reader { asked, read }).unwrap();
        ask.send(()).unwrap();
        let mut line = writer.make_writer();
        for _ in 0..100 {
            line.write_all(&[b'a'; 1000]).unwrap();
        }
        drop(line);
        let written = lines.recv().unwrap();
        assert_eq!((written.len(), written.last()), (MAX_LINE, Some(&b'\n')));
    }

    #[test]
    fn control_characters_beyond_ascii_are_escaped_and_a_cut_character_is_replaced() {
        let ((ask, asked), (read, lines)) = (mpsc::channel(), mpsc::channel());
        let (writer, _end) = LogWriter::start(Reader { asked, read }).unwrap();
        let long = format!("a{}", "감".repeat(MAX_LINE / 3));
        for (line, expected) in [
            ("{\"a\":\"\u{9b}2J\u{2028}\u{202e}감\"}\n", r#"{"a":"\u009b2J\u2028\u202e감"}"#),
            ("\u{1b}[2m감\u{1b}[0m\n", "\u{1b}[2m감\u{1b}[0m"),
            (&long, &format!("a{}\u{fffd}", "감".repeat(MAX_LINE / 3 - 1))),
        ] {
            writer.make_writer().write_all(line.as_bytes()).unwrap();
            ask.send(()).unwrap();
            assert_eq!(String::from_utf8(lines.recv().unwrap()).unwrap(), format!("{expected}\n"));
        }
    }

    /// A disk of a few bytes.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (written, room) = &mut *self.0.lock().unwrap();
            let taken = bytes.len().min(*room - written.len());
            written.extend_from_slice(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_after_a_full_disk_is_a_line_of_its_own() {
        let disk = Disk::default();
        disk.0.lock().unwrap().1 = 9;
        let (writer, _end) = LogWriter::start(disk.clone()).unwrap();
        let write_line = |line: &[u8]| {
            writer.make_writer().write_all(line).unwrap();
            let lines = writer.0.lock();
            drop(writer.0.changed.wait_while(lines, |lines| lines.bytes > 0).unwrap());
        };
        for line in ["first\n", "second\n", "third\n"] {
            write_line(line.as_bytes());
        }
        disk.0.lock().unwrap().1 = 99;
        for line in ["fourth\n", "fifth\n"] {
            write_line(line.as_bytes());
        }
        assert_eq!(disk.0.lock().unwrap().0, b"first\nsec\nfourth\nfifth\n");
    }
}
