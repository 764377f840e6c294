//! Documents from arguments, files and standard input: read in order, and later again by their place.
//!
//! Input: a [`DocumentSource`]. Output: [`Document`]s in their order from [`Documents`], and later the text
//! at a place from [`Texts`]. What must hold: memory does not grow with the number of documents; a document
//! that cannot be read is never skipped, but an error that names the file, the line and what to do.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, bail};

use flate2::read::MultiGzDecoder;

use super::{
    fields::{Columns, Field, TextField},
    format::{Document, InputFormat, Parser, is_compressed},
    is_stdin,
    json_list::JsonList,
    name_in_messages,
};

/// The source of documents.
#[derive(Debug, Clone)]
pub(crate) enum DocumentSource {
    /// The command line. The texts are in this field of the results.
    Arguments(Vec<String>, TextField),
    /// A file; `-` is standard input.
    File {
        path: PathBuf,
        /// How it is read.
        format: InputFormat,
        /// The field or column with the text.
        field: TextField,
    },
}

/// Reads documents in order.
pub(crate) struct Documents {
    stream: DocumentStream,
    /// Whether documents come with their fields the first time.
    keeps_fields: bool,
    /// The columns for a table of all documents so far.
    columns: Columns,
}

/// The documents that are still to be read.
enum DocumentStream {
    /// From memory.
    Arguments { texts: Vec<String>, field: TextField, next: usize },
    /// From a stream.
    Stream {
        parser: Parser,
        /// Where its texts can be read again: the file itself, or a temporary copy of a stream that can be
        /// read only once; absent if they are not needed again.
        texts: Option<File>,
        length: Option<u64>,
    },
}

/// Reads documents again, in any order.
pub(crate) enum Texts {
    /// From memory.
    Arguments(Vec<String>, TextField),
    /// From a file.
    File { file: File, again: Box<dyn Fn(File, u64) -> anyhow::Result<Document> + Send> },
}

impl Documents {
    /// Opens a source. With `again`, documents can be read a second time, and have their fields only then: a
    /// stream that can be read only once is copied to a temporary file while it is read. `columns` collects
    /// the fields for a table. Fails if the file cannot be opened or its header does not name the field.
    pub(crate) fn open(source: &DocumentSource, again: bool, columns: Columns) -> anyhow::Result<Self> {
        Ok(Self { stream: DocumentStream::open_source(source, again)?, keeps_fields: !again, columns })
    }

    /// The next document; none at the end. Fails if it cannot be read, or has a field for which the table has
    /// no column.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Document>> {
        let Some(mut document) = self.stream.next_document()? else { return Ok(None) };
        self.columns.add_fields(&document.fields).with_context(|| self.names().describe(document.index))?;
        if !self.keeps_fields {
            document.fields = Vec::new();
        }
        Ok(Some(document))
    }

    /// The same documents with their fields the first time already.
    pub(crate) fn with_fields(self) -> Self {
        Self { keeps_fields: true, ..self }
    }

    /// Reads up to `count` documents and drops them. Returns their number.
    pub(crate) fn skip_documents(&mut self, count: u64) -> anyhow::Result<u64> {
        for skipped in 0..count {
            if self.stream.next_document()?.is_none() {
                return Ok(skipped);
            }
        }
        Ok(count)
    }

    /// The bytes of the file, or the number of arguments; absent for a stream of unknown length.
    pub(crate) fn length(&self) -> Option<u64> {
        match &self.stream {
            DocumentStream::Arguments { texts, .. } => Some(texts.len() as u64),
            DocumentStream::Stream { length, .. } => *length,
        }
    }

    /// The words for single documents in messages.
    pub(crate) fn names(&self) -> Names {
        Names(match &self.stream {
            DocumentStream::Arguments { .. } => "document".to_owned(),
            DocumentStream::Stream { parser, .. } => parser.document_unit(),
        })
    }

    /// The columns for a table of the documents so far, in their order.
    pub(crate) fn column_names(&self) -> Vec<Arc<str>> {
        self.columns.names_so_far().to_vec()
    }

    /// Reads documents again, after all were read. Fails if the stream was opened without `again`.
    pub(crate) fn into_texts(self) -> anyhow::Result<Texts> {
        match self.stream {
            DocumentStream::Arguments { texts, field, .. } => Ok(Texts::Arguments(texts, field)),
            DocumentStream::Stream { parser, texts, .. } => {
                let file = texts.context("the documents were not kept")?;
                Ok(Texts::File { file, again: parser.into_reader() })
            }
        }
    }
}

impl DocumentStream {
    fn open_source(source: &DocumentSource, again: bool) -> anyhow::Result<Self> {
        let (path, format, field) = match source {
            DocumentSource::Arguments(texts, field) => {
                return Ok(Self::Arguments { texts: texts.clone(), field: field.clone(), next: 0 });
            }
            DocumentSource::File { path, format, field } => (path, *format, field),
        };
        let name = name_in_messages(path);
        if is_stdin(path) {
            return Self::from_stream(Box::new(io::stdin()), format, field, name, again);
        }
        let advice = || format!("{name} cannot be read: check the path and its permissions");
        let file = File::open(path).with_context(advice)?;
        let metadata = file.metadata().with_context(advice)?;
        if metadata.is_dir() {
            bail!("{name} is a folder: give the file with the documents");
        }
        if is_compressed(path) {
            let stream = Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, file)));
            return Self::from_stream(stream, format, field, name, again);
        }
        if !metadata.is_file() || format == InputFormat::Json {
            return Self::from_stream(Box::new(file), format, field, name, again);
        }
        let stream = BufReader::with_capacity(BUFFER, file.try_clone().with_context(advice)?);
        let parser = Parser::new(Box::new(stream), format, field, name)?;
        Ok(Self::Stream { parser, texts: Some(file), length: Some(metadata.len()) })
    }

    /// The documents of a stream that can be read only once, or that is not read as it is stored.
    fn from_stream(
        stream: Box<dyn Read + Send>,
        format: InputFormat,
        field: &TextField,
        name: String,
        again: bool,
    ) -> anyhow::Result<Self> {
        let stream: Box<dyn Read + Send> = match format {
            InputFormat::Json => Box::new(JsonList::new(BufReader::with_capacity(BUFFER, stream))),
            _ => stream,
        };
        let (stream, texts) = copy_stream(stream, again)?;
        let parser = Parser::new(stream, format, field, name)?;
        Ok(Self::Stream { parser, texts, length: None })
    }

    /// The next document; none at the end.
    fn next_document(&mut self) -> anyhow::Result<Option<Document>> {
        match self {
            Self::Stream { parser, .. } => parser.next_document(),
            Self::Arguments { texts, field, next } => {
                let Some(text) = texts.get(*next) else { return Ok(None) };
                let index = *next as u32;
                *next += 1;
                let fields = Field::from_text(field, text);
                Ok(Some(Document { index, place: u64::from(index), text: text.clone(), fields }))
            }
        }
    }
}

/// The words for the documents of a source in messages.
pub(crate) struct Names(String);

impl Names {
    /// The words for the document with this number, such as `` `a.txt`, line 3 ``.
    pub(crate) fn describe(&self, index: u32) -> String {
        format!("{} {}", self.0, u64::from(index) + 1)
    }
}

impl Texts {
    /// The document with this number at this place. Fails if the file cannot be read, or was changed in the
    /// meantime.
    pub(crate) fn at(&mut self, place: u64, index: u32) -> anyhow::Result<Document> {
        match self {
            Self::Arguments(texts, field) => {
                let text = texts[place as usize].clone();
                let fields = Field::from_text(field, &text);
                Ok(Document { index, place, text, fields })
            }
            Self::File { file, again } => {
                file.seek(SeekFrom::Start(place))?;
                Ok(Document { index, ..again(file.try_clone()?, place)? })
            }
        }
    }
}

/// Bytes read from a file at once.
const BUFFER: usize = 64 * 1024;

/// A buffered stream, and with `wanted` a temporary file that receives a copy of everything that is read.
fn copy_stream(
    stream: impl Read + Send + 'static,
    wanted: bool,
) -> anyhow::Result<(Box<dyn BufRead + Send>, Option<File>)> {
    if !wanted {
        return Ok((Box::new(BufReader::with_capacity(BUFFER, stream)), None));
    }
    let file = tempfile::tempfile().with_context(|| {
        format!("a temporary copy cannot be made in `{}`: set TMPDIR", std::env::temp_dir().display())
    })?;
    let copy = BufWriter::with_capacity(BUFFER, file.try_clone()?);
    Ok((Box::new(BufReader::with_capacity(BUFFER, Tee { stream, copy })), Some(file)))
}

/// A reader that copies everything that passes through it.
struct Tee<R> {
    stream: R,
    copy: BufWriter<File>,
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        let written = if read == 0 { self.copy.flush() } else { self.copy.write_all(&buffer[..read]) };
        written
            .map_err(|error| io::Error::other(format!("the temporary copy cannot be written: {error}")))?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::fmt::Write as _;

    /// The documents of a file with this content, each read again from the last to the first.
    fn read(content: &[u8], format: InputFormat, field: &str) -> anyhow::Result<Vec<(u32, String)>> {
        let field = TextField::of_documents(field, &[]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, content).unwrap();
        let documents = Documents::open(
            &DocumentSource::File { path, format, field: field.clone() },
            true,
            Columns::None,
        )?;
        let from_file = read_all(documents)?;
        // A stream that can be read only once gives the same from its copy.
        let stream = Box::new(io::Cursor::new(content.to_vec()));
        let stream = DocumentStream::from_stream(stream, format, &field, "x".to_owned(), true)?;
        let documents = Documents { stream, keeps_fields: false, columns: Columns::None };
        assert_eq!(read_all(documents)?, from_file);
        // So does a compressed file.
        let path = folder.path().join("file.gz");
        let mut packed = flate2::write::GzEncoder::new(File::create(&path)?, flate2::Compression::fast());
        packed.write_all(content)?;
        packed.finish()?;
        let documents = Documents::open(
            &DocumentSource::File { path, format, field: field.clone() },
            true,
            Columns::None,
        )?;
        assert_eq!(read_all(documents)?, from_file);
        Ok(from_file)
    }

    fn read_all(mut documents: Documents) -> anyhow::Result<Vec<(u32, String)>> {
        let mut all = Vec::new();
        while let Some(document) = documents.next()? {
            all.push(document);
        }
        let mut texts = documents.into_texts()?;
        for document in all.iter().rev() {
            assert_eq!(texts.at(document.place, document.index)?.text, document.text);
        }
        Ok(all.into_iter().map(|document| (document.index, document.text)).collect())
    }

    #[test]
    fn every_format_is_read() {
        type Case = (&'static str, InputFormat, &'static str, &'static [(u32, &'static str)]);
        let table: [Case; 26] = [
            ("", InputFormat::Txt, "text", &[]),
            ("a\nb", InputFormat::Txt, "text", &[(0, "a"), (1, "b")]),
            ("a\r\n\r\n b \n\n", InputFormat::Txt, "text", &[(0, "a"), (2, " b ")]),
            ("\u{feff}행성\n\u{feff}b\n", InputFormat::Txt, "text", &[(0, "행성"), (1, "\u{feff}b")]),
            ("{\"text\":\"a\\nb\",\"n\":1}\n", InputFormat::Jsonl, "text", &[(0, "a\nb")]),
            ("\u{feff}{\"t\":\"a\"}\r\n\n {\"t\":\"\"} ", InputFormat::Jsonl, "t", &[(0, "a"), (2, "")]),
            ("text\na\n", InputFormat::Csv, "text", &[(0, "a")]),
            ("text\n", InputFormat::Csv, "text", &[]),
            (
                "\u{feff}id,text\r\n1,\"a,\nb\"\r\n2,\"say \"\"c\"\"\"\n",
                InputFormat::Csv,
                "text",
                &[(0, "a,\nb"), (1, "say \"c\"")],
            ),
            ("\u{feff}id,text\n1,a\n", InputFormat::Csv, "id", &[(0, "1")]),
            ("text,n\n\n a ,1\n\n,2", InputFormat::Csv, "text", &[(0, " a "), (1, "")]),
            ("id\ttext\n1\tsay \"a\n2\t\"b, c\n", InputFormat::Tsv, "text", &[(0, "say \"a"), (1, "\"b, c")]),
            ("한 줄\n", InputFormat::Txt, "text", &[(0, "한 줄")]),
            ("{\"text\":\"\\ud55c\"}", InputFormat::Jsonl, "text", &[(0, "한")]),
            ("a\n{\"text\":\"b\"}\n", InputFormat::ByFirstLine, "text", &[(0, "a"), (1, "{\"text\":\"b\"}")]),
            ("\n{\"text\":\"a\"}\n{\"text\":\"b\"}", InputFormat::ByFirstLine, "text", &[(1, "a"), (2, "b")]),
            ("\u{feff}{\"t\":\"a\"}\n", InputFormat::ByFirstLine, "t", &[(0, "a")]),
            ("{curly} braces\n", InputFormat::ByFirstLine, "text", &[(0, "{curly} braces")]),
            ("[1] a note\n[2]\n", InputFormat::ByFirstLine, "text", &[(0, "[1] a note"), (1, "[2]")]),
            ("a", InputFormat::ByFirstLine, "text", &[(0, "a")]),
            ("id;text\n1;a, b\n2;\"c;d\"\n", InputFormat::Csv, "text", &[(0, "a, b"), (1, "c;d")]),
            ("id,text;more\n1,a\n", InputFormat::Csv, "id", &[(0, "1")]),
            ("[]", InputFormat::Json, "text", &[]),
            ("\u{feff}[\"a\",\"b\\n,]\"]", InputFormat::Json, "text", &[(0, "a"), (1, "b\n,]")]),
            (
                "[{\"t\":\"a\",\"n\":[1,2]},\n{\n\"t\":\n\"b\"}\n]\n",
                InputFormat::Json,
                "t",
                &[(0, "a"), (1, "b")],
            ),
            ("[{\"text\":\"a\"}]", InputFormat::Json, "text", &[(0, "a")]),
        ];
        for (content, format, field, expected) in table {
            let got = read(content.as_bytes(), format, field).unwrap();
            let got: Vec<_> = got.iter().map(|(index, text)| (*index, text.as_str())).collect();
            assert_eq!(got, expected, "{content:?}");
        }
    }

    #[test]
    fn random_texts_come_back_whatever_the_format() {
        let mut rng = StdRng::seed_from_u64(11);
        let pieces = ["a", " ", "\"", ",", "\\", "행", "\t", "\n", "\r\n", "😀", "longer words here"];
        for _ in 0..30 {
            let texts: Vec<String> = (0..rng.random_range(1..200))
                .map(|_| {
                    (0..rng.random_range(0..40)).map(|_| pieces[rng.random_range(0..pieces.len())]).collect()
                })
                .collect();
            let expected: Vec<_> = (0..).zip(texts.iter().cloned()).collect();
            let mut lines = String::new();
            for text in &texts {
                writeln!(lines, "{}", serde_json::json!({ "id": 7, "text": text })).unwrap();
            }
            assert_eq!(read(lines.as_bytes(), InputFormat::Jsonl, "text").unwrap(), expected);
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(["id", "text"]).unwrap();
            for text in &texts {
                writer.write_record(["7", text]).unwrap();
            }
            let records = writer.into_inner().unwrap();
            assert_eq!(read(&records, InputFormat::Csv, "text").unwrap(), expected);
        }
    }

    #[test]
    fn a_document_that_cannot_be_read_is_named_with_its_line() {
        let long = format!("a\n{}\n", "x".repeat(17 << 20));
        let unclosed = format!("text\nfine\n\"{}", "never closed\n".repeat(2 << 20));
        let table: [(&[u8], InputFormat, &[&str]); 19] = [
            (b"a\nb\xff\n", InputFormat::Txt, &["line 2", "byte 2 is not UTF-8", "iconv"]),
            (b"\xff\xfea\0", InputFormat::Txt, &["line 1", "byte 1 is not UTF-8"]),
            (long.as_bytes(), InputFormat::Txt, &["line 2", "longer than 16 MiB"]),
            (b"{\"text\":\"a\"}\n{\"text\":", InputFormat::Jsonl, &["line 2", "is not JSON"]),
            (b"[1]\n", InputFormat::Jsonl, &["line 1", "is not a JSON object"]),
            (
                b"\n{\"a\":1,\"b\":2}\n",
                InputFormat::Jsonl,
                &["line 2", "no field `text`, but `a`, `b`", "--field"],
            ),
            (b"{\"text\":[]}\n", InputFormat::Jsonl, &["line 1", "`text` is not a string"]),
            (b"\n{\"a\":1}\n", InputFormat::ByFirstLine, &["line 2", "no field `text`, but `a`", "--field"]),
            (b"{\"text\":\"a\"}\nb\n", InputFormat::ByFirstLine, &["line 2", "is not JSON"]),
            (
                b"[{\"text\":\"a\"}]\n",
                InputFormat::ByFirstLine,
                &["line 1", "a list of JSON objects", "--format txt"],
            ),
            (
                b" {\n\"text\": \"a\"}\n",
                InputFormat::ByFirstLine,
                &["line 1", "several lines", "--format txt"],
            ),
            (b"[\n", InputFormat::ByFirstLine, &["line 1", "several lines", "--format txt"]),
            (b"", InputFormat::Csv, &["is empty", "columns"]),
            (b"id,body\n1,2\n", InputFormat::Csv, &["no column `text`, but `id`, `body`", "--field"]),
            (b"id,text\n1,a\n2,b,c\n", InputFormat::Csv, &["line 3", "has 3 values where the header has 2"]),
            (b"text\na\n\xff\n", InputFormat::Csv, &["line 3", "not UTF-8"]),
            (unclosed.as_bytes(), InputFormat::Csv, &["line 3", "longer than 16 MiB", "closed"]),
            (b"id,text\n1,a\n2,\"b\n3,c\n", InputFormat::Csv, &["quoted from line 3", "has no second quote"]),
            (
                b"\"id\";\"text\"\n\"1\";\"a\n\"2\";\"b\"\"\"\r\n",
                InputFormat::Csv,
                &["quoted from line 2", "goes on behind its second quote"],
            ),
        ];
        for (content, format, expected) in table {
            let message = format!("{:#}", read(content, format, "text").unwrap_err());
            assert!(expected.iter().all(|word| message.contains(word)), "{message}");
            assert!(!message.contains('\n') && message.starts_with('`'), "{message}");
        }
    }

    #[test]
    fn a_path_that_is_not_a_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (path, expected) in [("nowhere.txt", "nowhere.txt` cannot be read"), (".", "is a folder")] {
            let path = folder.path().join(path);
            let source = DocumentSource::File {
                path,
                format: InputFormat::Txt,
                field: TextField::of_documents("", &[]),
            };
            let message = format!("{:#}", Documents::open(&source, false, Columns::None).err().unwrap());
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn arguments_are_documents_too() {
        let source = DocumentSource::Arguments(
            vec!["a".to_owned(), String::new()],
            TextField::of_documents("text", &[]),
        );
        let documents = Documents::open(&source, true, Columns::None).unwrap();
        assert_eq!(documents.length(), Some(2));
        assert_eq!(read_all(documents).unwrap(), [(0, "a".to_owned()), (1, String::new())]);
    }
}
