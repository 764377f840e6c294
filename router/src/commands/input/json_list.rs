//! A JSON list as lines with an element each.
//!
//! Input: the bytes of `[a, b, …]`, over any number of lines. Output: `a`, `b`, … on a line each. What must
//! hold: memory does not grow with the list; only the commas and brackets of the list itself are touched, so
//! that a malformed element is still malformed on its line.

use std::io::{self, BufRead, Read};

/// The place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListPlace {
    Before,
    Inside,
    After,
}

/// Reads a list as lines.
pub(crate) struct JsonList<R> {
    stream: R,
    place: ListPlace,
    /// The brackets and braces that are open in an element.
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl<R: BufRead> JsonList<R> {
    /// Reads the list in a stream.
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, place: ListPlace::Before, depth: 0, in_string: false, is_escaped: false }
    }

    /// The byte to give for the next one of the list, if any.
    fn take_byte(&mut self, byte: u8) -> io::Result<Option<u8>> {
        // A byte order mark may come before the list.
        let is_blank = byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf);
        match self.place {
            ListPlace::Before if byte == b'[' => {
                self.place = ListPlace::Inside;
                Ok(None)
            }
            ListPlace::Before | ListPlace::After if is_blank => Ok(None),
            ListPlace::Before => Err(list_refusal("must be a list: `[` comes first")),
            ListPlace::After => Err(list_refusal("goes on after the `]` of its list")),
            ListPlace::Inside => Ok(Some(self.inside_byte(byte))),
        }
    }

    fn inside_byte(&mut self, byte: u8) -> u8 {
        if self.in_string {
            self.in_string = byte != b'"' || self.is_escaped;
            self.is_escaped = byte == b'\\' && !self.is_escaped;
            return byte;
        }
        match byte {
            b'"' => self.in_string = true,
            b'[' | b'{' => self.depth += 1,
            b']' if self.depth == 0 => {
                self.place = ListPlace::After;
                return b'\n';
            }
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            b',' if self.depth == 0 => return b'\n',
            b'\n' | b'\r' => return b' ',
            _ => {}
        }
        byte
    }
}

impl<R: BufRead> Read for JsonList<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut written = 0;
        // Reading no byte would mean the end.
        while written == 0 && !buffer.is_empty() {
            let bytes = self.stream.fill_buf()?;
            if bytes.is_empty() {
                let is_whole = self.place != ListPlace::Inside;
                return if is_whole { Ok(0) } else { Err(list_refusal("ends before the `]` of its list")) };
            }
            let bytes = bytes[..bytes.len().min(buffer.len())].to_vec();
            self.stream.consume(bytes.len());
            for byte in bytes {
                if let Some(byte) = self.take_byte(byte)? {
                    buffer[written] = byte;
                    written += 1;
                }
            }
        }
        Ok(written)
    }
}

fn list_refusal(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the JSON {problem}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn the_elements_of_a_list_come_on_a_line_each() {
        for (list, expected) in [
            ("[]", Ok("\n")),
            ("", Ok("")),
            ("\u{feff} [1]\n", Ok("1\n")),
            (r#"["a","b"]"#, Ok("\"a\"\n\"b\"\n")),
            ("[\n {\"a\": [1,\n2]},\r\n {}]", Ok("  {\"a\": [1, 2]}\n   {}\n")),
            (r#"["a,]\"[","\\"]"#, Ok("\"a,]\\\"[\"\n\"\\\\\"\n")),
            ("{}", Err("the JSON must be a list: `[` comes first")),
            ("[1", Err("the JSON ends before the `]` of its list")),
            ("[1] 2", Err("the JSON goes on after the `]` of its list")),
        ] {
            for length in [1, 3, 1000] {
                let stream = io::BufReader::with_capacity(length, list.as_bytes());
                let mut lines = String::new();
                let read = JsonList::new(stream).read_to_string(&mut lines);
                match expected {
                    Ok(expected) => {
                        read.unwrap();
                        assert_eq!(lines, expected, "{list}");
                    }
                    Err(expected) => assert_eq!(read.unwrap_err().to_string(), expected, "{list}"),
                }
            }
        }
    }
}
