//! The bytes of separated values on the way to their reader.
//!
//! Input: a file's bytes in order. Output: the same bytes, and an error where a record is too long, or where
//! a quoted value is not closed or goes on behind its second quote. What must hold: every file that a writer
//! of separated values makes passes.

use std::{
    io::{self, BufRead, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The end of the sentence about a record, or a line, that is too long.
pub(super) const TOO_LONG: &str =
    "is longer than 16 MiB: check `--format`, and that every quoted value is closed";

/// A stream that ends with an error if a record is too long, or its quotes are not as the format has them:
/// the reader of records would take the rest of the file for one value.
pub(super) struct BoundedRecords {
    pub(super) stream: Box<dyn BufRead + Send>,
    /// The bytes that the record may still have.
    pub(super) left: Arc<AtomicU64>,
    /// Absent for a format without quotes.
    pub(super) quotes: Option<Quotes>,
}

impl Read for BoundedRecords {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        if let Some(quotes) = &mut self.quotes {
            if read == 0 && !buffer.is_empty() {
                quotes.end_file()?;
            } else {
                quotes.follow_bytes(&buffer[..read])?;
            }
        }
        let left = self.left.load(Ordering::Relaxed);
        if left < read as u64 {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, TOO_LONG));
        }
        self.left.store(left - read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// The quotes of separated values so far.
pub(super) struct Quotes {
    separator: u8,
    place: QuotePlace,
    /// The line, from 1, and the line of the last quote that opened a value. Lines are counted from where the
    /// stream began.
    line: u64,
    opened: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QuotePlace {
    /// At the start of a value.
    Start,
    /// In a value without quotes.
    Plain,
    /// In a quoted value.
    Quoted,
    /// After a quote in a quoted value: its end, or the first of two.
    Quote,
}

impl Quotes {
    /// At the start of a record.
    pub(super) fn in_record(separator: u8) -> Self {
        Self { separator, place: QuotePlace::Start, line: 1, opened: 1 }
    }

    /// Follows the next bytes.
    pub(super) fn follow_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        for &byte in bytes {
            self.line += u64::from(byte == b'\n');
            self.place = match (self.place, byte) {
                (QuotePlace::Start, b'"') => {
                    self.opened = self.line;
                    QuotePlace::Quoted
                }
                (QuotePlace::Quoted, b'"') => QuotePlace::Quote,
                (QuotePlace::Quote, b'"') | (QuotePlace::Quoted, _) => QuotePlace::Quoted,
                (_, b'\n' | b'\r') => QuotePlace::Start,
                (_, byte) if byte == self.separator => QuotePlace::Start,
                (QuotePlace::Start | QuotePlace::Plain, _) => QuotePlace::Plain,
                (QuotePlace::Quote, _) => return Err(self.wrong_quote("goes on behind its second quote")),
            };
        }
        Ok(())
    }

    /// Checks that no quoted value is open at the end of the file.
    pub(super) fn end_file(&self) -> io::Result<()> {
        if self.place == QuotePlace::Quoted { Err(self.wrong_quote("has no second quote")) } else { Ok(()) }
    }

    fn wrong_quote(&self, problem: &str) -> io::Error {
        let message = format!(
            "the value that is quoted from line {} on {problem}: write a quote in a value twice, in a value with \
             quotes around it",
            self.opened
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    }
}
