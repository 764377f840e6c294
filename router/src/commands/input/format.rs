//! The formats of document files.
//!
//! Input: a stream of bytes, its [`InputFormat`] and the name of the field with the text. Output:
//! [`Document`]s. What must hold: a byte order mark and carriage returns at the ends of lines do not belong
//! to the text; a line that is not UTF-8, not JSON, without the field or endless is an error that names it;
//! blank lines are not documents, but count.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, anyhow, bail, ensure};
use csv::ByteRecord;
use serde_json::Value;
use text_embeddings_backend_core::amount;

use super::{
    fields::{Field, Header, TextField, read_json},
    is_stdin,
    quotes::{BoundedRecords, Quotes, TOO_LONG},
};

/// The longest line or record in bytes: far more than any model takes, and small enough to be kept in memory.
const MAX_RECORD: u64 = 16 << 20;

const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// A document.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    /// Its number from 0. In a file it is the number of its line or record, so that blank lines count.
    pub(crate) index: u32,
    /// Its place in the source, for [`Texts`](super::Texts).
    pub(crate) place: u64,
    pub(crate) text: String,
    /// All its fields, if the output shows them; otherwise empty.
    pub(crate) fields: Vec<Field>,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum InputFormat {
    /// A document on each line.
    Txt,
    /// A JSON object on each line.
    Jsonl,
    /// A JSON list of objects or texts.
    Json,
    /// Comma- or semicolon-separated values with a header; quoted ones may hold the separator and line
    /// breaks.
    Csv,
    /// Tab-separated values with a header, without quoting.
    Tsv,
    /// A JSON object on each line if the first line is one, else a document on each line.
    #[value(skip)]
    ByFirstLine,
}

impl InputFormat {
    /// The format by a file's name; for standard input, by its first line.
    pub(crate) fn from_name(path: &Path) -> Option<Self> {
        if is_stdin(path) {
            return Some(Self::ByFirstLine);
        }
        if is_compressed(path) {
            return Self::from_name(Path::new(path.file_stem()?));
        }
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "json" => Some(Self::Json),
            "txt" => Some(Self::Txt),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            _ => None,
        }
    }
}

/// Whether a file is compressed by gzip, by its name.
pub(crate) fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// Reads documents from a stream.
pub(crate) struct Parser {
    name: String,
    kind: ParserInput,
}

enum ParserInput {
    Lines(LineReader),
    Records { records: Box<Records>, header: Arc<Header>, separator: u8 },
}

/// Lines of text or of JSON.
struct LineReader {
    stream: Box<dyn BufRead + Send>,
    /// The format, which is one without records.
    format: InputFormat,
    /// The field with the text, of a line that is an object.
    field: TextField,
    /// The byte at which the next line begins.
    place: u64,
    /// The number of lines so far.
    line: u64,
    buffer: Vec<u8>,
}

/// Records of separated values.
struct Records {
    reader: csv::Reader<BoundedRecords>,
    /// The bytes before the first one that the reader sees.
    offset: u64,
    left: Arc<AtomicU64>,
    next: u64,
    record: ByteRecord,
}

impl Parser {
    /// Starts at the beginning of a stream, and reads the header if the format has one. Fails if the header
    /// cannot be read or lacks the field.
    pub(crate) fn new(
        mut stream: Box<dyn BufRead + Send>,
        format: InputFormat,
        field: &TextField,
        name: String,
    ) -> anyhow::Result<Self> {
        let place = skip_byte_order_mark(&mut stream).map_err(|error| match error.kind() {
            // The content is wrong, not the way to it.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
                anyhow!("{name}: {error}: check the file and `--format`")
            }
            _ => anyhow!("{name} cannot be read: check the path and its permissions: {error}"),
        })?;
        let separator = match format {
            InputFormat::Tsv => b'\t',
            InputFormat::Csv => {
                find_separator(stream.fill_buf().with_context(|| format!("{name} cannot be read"))?)
            }
            InputFormat::Txt | InputFormat::Jsonl | InputFormat::Json | InputFormat::ByFirstLine => {
                let kind = ParserInput::Lines(LineReader::new(stream, format, field.clone(), place));
                return Ok(Self { name, kind });
            }
        };
        let mut records = Records::new(stream, separator, place);
        let header = Arc::new(records.read_header(field, &name)?);
        let kind = ParserInput::Records { records: Box::new(records), header, separator };
        Ok(Self { name, kind })
    }

    /// The next document; none at the end.
    pub(crate) fn next_document(&mut self) -> anyhow::Result<Option<Document>> {
        match &mut self.kind {
            ParserInput::Lines(lines) => lines.next_document(&self.name),
            ParserInput::Records { records, header, .. } => records.next_document(header, &self.name),
        }
    }

    /// The words for a document in messages, without its number.
    pub(crate) fn document_unit(&self) -> String {
        let unit = match &self.kind {
            ParserInput::Lines(lines) => lines.line_unit(),
            ParserInput::Records { .. } => "record",
        };
        format!("{}, {unit}", self.name)
    }

    /// A function that reads a single document again, from a file at its place. The document's number is
    /// wrong.
    pub(crate) fn into_reader(self) -> Box<dyn Fn(File, u64) -> anyhow::Result<Document> + Send> {
        let Self { name, kind } = self;
        Box::new(move |file, place| {
            let stream: Box<dyn BufRead + Send> = Box::new(BufReader::new(file));
            let kind = match &kind {
                ParserInput::Lines(LineReader { format, field, .. }) => {
                    ParserInput::Lines(LineReader::new(stream, *format, field.clone(), place))
                }
                ParserInput::Records { header, separator, .. } => ParserInput::Records {
                    records: Box::new(Records::new(stream, *separator, place)),
                    header: Arc::clone(header),
                    separator: *separator,
                },
            };
            let document = Self { name: name.clone(), kind }.next_document()?;
            let document = document.filter(|document| document.place == place);
            document.with_context(|| format!("{name} was changed while it was read"))
        })
    }
}

impl LineReader {
    fn new(stream: Box<dyn BufRead + Send>, format: InputFormat, field: TextField, place: u64) -> Self {
        Self { stream, format, field, place, line: 0, buffer: Vec::new() }
    }

    /// The word for a line in messages. The elements of a list come as lines (`json_list.rs`).
    fn line_unit(&self) -> &'static str {
        if self.format == InputFormat::Json { "element" } else { "line" }
    }

    /// The document of the next line that is not blank; absent at the end.
    fn next_document(&mut self, name: &str) -> anyhow::Result<Option<Document>> {
        loop {
            let begin = self.place;
            self.buffer.clear();
            let read = (&mut self.stream).take(MAX_RECORD + 1).read_until(b'\n', &mut self.buffer);
            let read = read.with_context(|| format!("{name} cannot be read"))? as u64;
            if read == 0 {
                return Ok(None);
            }
            self.place += read;
            self.line += 1;
            let (unit, line) = (self.line_unit(), self.line);
            let at = || format!("{name}, {unit} {line}");
            ensure!(read <= MAX_RECORD, "{} {TOO_LONG}", at());
            let text = read_utf8(trim_end(&self.buffer)).with_context(at)?;
            if text.trim().is_empty() {
                continue;
            }
            if self.format == InputFormat::ByFirstLine {
                self.format = format_by(text).with_context(at)?;
            }
            let field = &self.field;
            let (text, fields) = match self.format {
                InputFormat::Json if text.trim_start().starts_with('"') => {
                    let text = serde_json::from_str(text);
                    let text: String = text
                        .map_err(|error| anyhow!("is not JSON ({error}); the texts are in `{}`", field.name))
                        .with_context(at)?;
                    let fields = Field::from_text(field, &text);
                    (text, fields)
                }
                InputFormat::Json | InputFormat::Jsonl => read_json(text, field).with_context(at)?,
                _ => (text.to_owned(), Field::from_text(field, text)),
            };
            let index = index_of(line - 1).with_context(at)?;
            return Ok(Some(Document { index, place: begin, text, fields }));
        }
    }
}

/// The format of lines that begin with `line`. JSON in another form than one object per line is refused,
/// because it would be scored as plain text.
fn format_by(line: &str) -> anyhow::Result<InputFormat> {
    const REMEDY: &str = "put an object such as {\"text\": \"…\"} on each line, or give `--format json` if this is a list, \
         `--format txt` if it is text";
    let trimmed = line.trim();
    ensure!(!matches!(trimmed, "{" | "[" | "[{"), "begins JSON over several lines: {REMEDY}");
    Ok(match serde_json::from_str(trimmed) {
        Ok(Value::Object(_)) => InputFormat::Jsonl,
        Ok(Value::Array(list)) if list.iter().any(Value::is_object) => {
            bail!("is a list of JSON objects: {REMEDY}")
        }
        _ => InputFormat::Txt,
    })
}

impl Records {
    fn new(stream: Box<dyn BufRead + Send>, separator: u8, offset: u64) -> Self {
        let left = Arc::new(AtomicU64::new(MAX_RECORD));
        let has_quotes = separator != b'\t';
        let bounded = BoundedRecords {
            stream,
            left: Arc::clone(&left),
            quotes: has_quotes.then(|| Quotes::in_record(separator)),
        };
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .delimiter(separator)
            .quoting(has_quotes)
            .from_reader(bounded);
        Self { reader, offset, left, next: 0, record: ByteRecord::new() }
    }

    fn read(&mut self, name: &str) -> anyhow::Result<bool> {
        let line = self.reader.position().line();
        self.left.store(MAX_RECORD, Ordering::Relaxed);
        self.reader.read_byte_record(&mut self.record).map_err(|error| match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, pos } => {
                let line = pos.as_ref().map_or(line, csv::Position::line);
                anyhow!(
                    "{name}, line {line}: has {} where the header has {expected_len}: quote values that hold \
                     the separator, or check `--format`",
                    amount(len, "value")
                )
            }
            // It has a line of its own: more than the record was read.
            csv::ErrorKind::Io(wrong) if wrong.kind() == io::ErrorKind::InvalidData => {
                anyhow!("{name}: {wrong}")
            }
            _ => anyhow!("{name}, line {line}: {error}"),
        })
    }

    /// Reads the header, in which `field` names the column with the text.
    fn read_header(&mut self, field: &TextField, name: &str) -> anyhow::Result<Header> {
        ensure!(self.read(name)?, "{name} is empty: its first line must name the columns");
        let columns: Vec<_> = self.record.iter().map(String::from_utf8_lossy).collect();
        let columns: Vec<_> = columns.iter().map(AsRef::as_ref).collect();
        Header::from_columns(&columns, field).map_err(|error| anyhow!("{name} {error}"))
    }

    fn next_document(&mut self, header: &Header, name: &str) -> anyhow::Result<Option<Document>> {
        if !self.read(name)? {
            return Ok(None);
        }
        let position = self.record.position().context("a record without a place")?;
        let at = || format!("{name}, line {}", position.line());
        let values: anyhow::Result<Vec<_>> = self.record.iter().map(read_utf8).collect();
        let (text, fields) = header
            .read_record(values.with_context(at)?)
            .with_context(|| format!("{name} was changed while it was read"))?;
        let index = index_of(self.next).with_context(at)?;
        self.next += 1;
        Ok(Some(Document { index, place: self.offset + position.byte(), text, fields }))
    }
}

/// The separator of values, by the beginning of a file. Spreadsheets write semicolons where a comma separates
/// the digits of a number.
fn find_separator(beginning: &[u8]) -> u8 {
    let header = beginning.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if header.contains(&b';') && !header.contains(&b',') { b';' } else { b',' }
}

/// The number of a document in four bytes, because one is kept for each document.
fn index_of(number: u64) -> anyhow::Result<u32> {
    u32::try_from(number).map_err(|_| anyhow!("there are more than 4294967296 documents: split the file"))
}

/// Skips the mark with which some editors begin a file. Returns its length.
fn skip_byte_order_mark(stream: &mut Box<dyn BufRead + Send>) -> io::Result<u64> {
    // A pipe may pause after its first bytes: more are read only if they can belong to the mark.
    if stream.fill_buf()?.first() != BYTE_ORDER_MARK.first() {
        return Ok(0);
    }
    let mut start = Vec::new();
    stream.take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut start)?;
    if start == BYTE_ORDER_MARK {
        return Ok(start.len() as u64);
    }
    let rest = std::mem::replace(stream, Box::new(io::empty()));
    *stream = Box::new(io::Cursor::new(start).chain(rest));
    Ok(0)
}

/// A line without its end.
fn trim_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn read_utf8(bytes: &[u8]) -> anyhow::Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to() + 1;
        anyhow!("byte {place} is not UTF-8: convert the file, for example with `iconv -t UTF-8`")
    })
}
