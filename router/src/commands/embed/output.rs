//! Vectors as lines of JSON or as an array of `NumPy`.
//!
//! Input: documents with their vectors, in order. Output: bytes on standard output or in a file. What must
//! hold: a file that was continued equals one that was written in one go, byte for byte; a value is the bits
//! of the vector's `f32`, or digits that give these bits again.

use std::io::{self, Write};

use anyhow::ensure;
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::commands::{
    input::{Document, Field},
    partial::{OutputSink, PartialFile},
};

/// The fields that every line has.
pub(super) const OWN_NAMES: [&str; 2] = ["index", "embedding"];

/// The length of the header of an array: it has room for any number of rows.
const HEADER: usize = 128;

/// The format of the vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum VectorFormat {
    /// An object on each line: index, embedding, and the fields of the document.
    Jsonl,
    /// An array of `NumPy`: float32, a row for each document; into a file only.
    Npy,
}

/// A document with its vector.
pub(super) struct EmbeddedDocument {
    /// The document with its fields.
    pub(super) document: Document,
    pub(super) vector: Vec<f32>,
}

impl Serialize for EmbeddedDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [index, embedding] = OWN_NAMES;
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry(index, &self.document.index)?;
        object.serialize_entry(embedding, &self.vector)?;
        for Field { name, value } in &self.document.fields {
            object.serialize_entry(&**name, value)?;
        }
        object.end()
    }
}

pub(super) struct VectorWriter {
    sink: OutputSink,
    /// The shape of an array; absent for lines.
    array: Option<ArrayShape>,
}

/// The shape of an array so far.
struct ArrayShape {
    rows: u64,
    dimensions: usize,
}

impl VectorWriter {
    /// Writes lines to standard output.
    pub(super) fn from_stdout() -> Self {
        Self { sink: OutputSink::from_stdout(), array: None }
    }

    /// Writes to a file that may have vectors already, of `dimensions` values each. Returns the number of
    /// vectors that it has. An incomplete one at its end is dropped.
    pub(super) fn from_file(
        mut file: PartialFile,
        format: VectorFormat,
        dimensions: usize,
    ) -> io::Result<(Self, u64)> {
        let (done, array) = match format {
            VectorFormat::Jsonl => (file.keep_lines()?, None),
            VectorFormat::Npy => {
                let row = (dimensions * size_of::<f32>()) as u64;
                let rows = file.byte_count()?.saturating_sub(HEADER as u64) / row;
                file.cut_to(HEADER as u64 + rows * row)?;
                // Until the end the array says that it has no rows.
                file.replace_start(&array_header(0, dimensions))?;
                (rows, Some(ArrayShape { rows, dimensions }))
            }
        };
        Ok((Self { sink: OutputSink::File(file), array }, done))
    }

    /// Writes one vector. Fails if it cannot be written, or does not have the length of the others.
    pub(super) fn write_row(&mut self, row: &EmbeddedDocument) -> anyhow::Result<()> {
        let Some(ArrayShape { rows, dimensions }) = &mut self.array else {
            serde_json::to_writer(&mut self.sink, row)?;
            return Ok(self.sink.write_all(b"\n")?);
        };
        let length = row.vector.len();
        ensure!(length == *dimensions, "a vector has {length} values instead of {dimensions}");
        for value in &row.vector {
            self.sink.write_all(&value.to_le_bytes())?;
        }
        *rows += 1;
        Ok(())
    }

    /// Passes the vectors so far on, so that a killed process has not lost them.
    pub(super) fn flush_rows(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// Ends the output.
    pub(super) fn complete_output(mut self) -> anyhow::Result<()> {
        if let (OutputSink::File(file), Some(ArrayShape { rows, dimensions })) = (&mut self.sink, &self.array)
        {
            file.replace_start(&array_header(*rows, *dimensions))?;
        }
        self.sink.complete_output()
    }
}

/// The header of an array in version 1.0 of `NumPy`'s format, always of the same length.
fn array_header(rows: u64, dimensions: usize) -> [u8; HEADER] {
    let mut header = [b' '; HEADER];
    let words = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dimensions}), }}");
    header[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    header[8..10].copy_from_slice(&((HEADER - 10) as u16).to_le_bytes());
    // 20 digits each are the longest numbers, and fit.
    header[10..10 + words.len()].copy_from_slice(words.as_bytes());
    header[HEADER - 1] = b'\n';
    header
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::commands::input::TextField;
    use serde_json::{Map, Value};
    use std::{fs, path::Path};

    const DIMENSIONS: usize = 3;

    fn row(index: u32) -> EmbeddedDocument {
        let text = format!("text \"{index}\"\n");
        let fields = Field::from_text(&TextField::of_documents("index", &OWN_NAMES), &text);
        let document = Document { index, place: 0, text: String::new(), fields };
        EmbeddedDocument { document, vector: vec![index as f32 / 3.0, -0.0, f32::MIN_POSITIVE] }
    }

    fn continued(path: &Path, format: VectorFormat) -> (VectorWriter, u64) {
        let file = PartialFile::open_file(path, &Map::<String, Value>::new(), true).unwrap().unwrap();
        VectorWriter::from_file(file, format, DIMENSIONS).unwrap()
    }

    fn whole(path: &Path, format: VectorFormat) -> Vec<u8> {
        let (mut writer, done) = continued(path, format);
        assert_eq!(done, 0);
        for index in 0..4 {
            writer.write_row(&row(index)).unwrap();
        }
        writer.complete_output().unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn a_file_that_was_cut_anywhere_is_continued_to_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for format in [VectorFormat::Jsonl, VectorFormat::Npy] {
            let path = folder.path().join("vectors");
            let expected = whole(&path, format);
            fs::remove_file(&path).unwrap();
            // Every place at which a kill can leave the file, also within the header.
            for length in 0..=expected.len() {
                fs::write(folder.path().join("vectors.partial.json"), "{}").unwrap();
                fs::write(folder.path().join("vectors.partial"), &expected[..length]).unwrap();
                let (mut writer, done) = continued(&path, format);
                for index in done as u32..4 {
                    writer.write_row(&row(index)).unwrap();
                }
                writer.complete_output().unwrap();
                assert!(fs::read(&path).unwrap() == expected, "{format:?} {length}");
                fs::remove_file(&path).unwrap();
            }
        }
    }

    #[test]
    fn lines_and_arrays_are_exact() {
        let folder = tempfile::tempdir().unwrap();
        let lines = String::from_utf8(whole(&folder.path().join("a"), VectorFormat::Jsonl)).unwrap();
        let line = lines.lines().nth(1).unwrap();
        assert_eq!(
            line,
            r#"{"index":1,"embedding":[0.33333334,-0.0,1.1754944e-38],"input_index":"text \"1\"\n"}"#
        );
        let array = whole(&folder.path().join("b"), VectorFormat::Npy);
        assert_eq!(array.len(), HEADER + 4 * DIMENSIONS * 4);
        assert!(array.starts_with(
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }  "
        ));
        assert_eq!(
            (array[HEADER - 1], &array[HEADER..HEADER + 8]),
            (b'\n', &[0, 0, 0, 0, 0, 0, 0, 0x80][..])
        );
        assert_eq!(array_header(u64::MAX, usize::MAX)[HEADER - 2..], *b" \n");
        let (mut writer, _) = continued(&folder.path().join("c"), VectorFormat::Npy);
        let short = EmbeddedDocument { vector: vec![1.0], ..row(0) };
        assert!(writer.write_row(&short).unwrap_err().to_string().contains("1 values instead of 3"));
    }
}
