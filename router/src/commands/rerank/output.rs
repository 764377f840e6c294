//! Results on standard output: as a table, as JSON, as lines of JSON, as comma-separated values.
//!
//! Input: [`ScoredDocument`]s, the best first or in the order of the documents. Output: bytes. What must
//! hold: a table is never wider than its terminal, and no text can control the terminal; the other formats
//! hold every field of the document unchanged.

use std::{
    borrow::Cow,
    io::{self, Write},
    sync::Arc,
};

use console::{measure_text_width, truncate_str};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{
    commands::{
        input::{Document, Field},
        screen::Screen,
    },
    telemetry::writer::is_control,
};

/// The fields that every result has.
pub(super) const OWN_NAMES: [&str; 3] = ["rank", "index", "score"];

/// The format of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OutputFormat {
    /// For people: rank, score with a bar, index, and the text cut to the width of the terminal.
    Table,
    /// An array of objects.
    Json,
    /// An object on each line.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
    /// Lines of a run as `trec_eval` reads it, with raw scores; with `--queries` only.
    Trec,
}

/// A document with its score.
#[derive(Debug, Clone)]
pub(super) struct ScoredDocument {
    /// Its place in the order, from 1; absent for unsorted results.
    pub(super) rank: Option<usize>,
    pub(super) score: f32,
    /// Its score as a probability, for the bar.
    pub(super) probability: f32,
    /// The document with its fields; its text is for a table only.
    pub(super) document: Document,
}

impl Serialize for ScoredDocument {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [rank, index, score] = OWN_NAMES;
        let mut object = serializer.serialize_map(None)?;
        if let Some(place) = self.rank {
            object.serialize_entry(rank, &place)?;
        }
        object.serialize_entry(index, &self.document.index)?;
        object.serialize_entry(score, &self.score)?;
        for Field { name, value } in &self.document.fields {
            object.serialize_entry(&**name, value)?;
        }
        object.end()
    }
}

/// Writes rows in one format.
pub(super) enum Writer<W: Write> {
    /// A table, with the width of its first and third column.
    Table { out: W, screen: Screen, rank: usize, index: usize },
    /// JSON, and whether a row was written.
    Json(W, bool),
    /// Lines of JSON.
    Jsonl(W),
    /// Comma-separated values, the columns, and whether the header is still to be written.
    Csv(Box<csv::Writer<W>>, Vec<Arc<str>>, bool),
}

/// Cells of a full bar.
const BAR: usize = 10;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

impl<W: Write> Writer<W> {
    /// Begins the output. The number of `rows` and the `largest` index set the width of a table's columns.
    /// Comma-separated values have these `columns`; by default, the first row's fields are the columns.
    pub(super) fn new(
        mut out: W,
        format: OutputFormat,
        screen: Screen,
        columns: Vec<Arc<str>>,
        rows: usize,
        largest: u32,
    ) -> io::Result<Self> {
        match format {
            OutputFormat::Json => Ok(Self::Json(out, false)),
            // A run has many queries, and `many.rs` writes it: the arguments of one query exclude it.
            OutputFormat::Jsonl | OutputFormat::Trec => Ok(Self::Jsonl(out)),
            OutputFormat::Csv => {
                let out = csv::WriterBuilder::new().has_headers(false).from_writer(out);
                Ok(Self::Csv(Box::new(out), columns, true))
            }
            OutputFormat::Table => {
                let (rank, index) = (digits(&rows).max("rank".len()), digits(&largest).max("index".len()));
                let head = format!("{:>rank$}  {:<18}  {:>index$}  text", "rank", "score", "index");
                writeln!(out, "{}", screen.styled(&head, "1"))?;
                Ok(Self::Table { out, screen, rank, index })
            }
        }
    }

    pub(super) fn write(&mut self, row: &ScoredDocument) -> io::Result<()> {
        match self {
            Self::Json(out, begun) => {
                out.write_all(if *begun { b",\n " } else { b"[" })?;
                *begun = true;
                Ok(serde_json::to_writer(out, row)?)
            }
            Self::Jsonl(out) => {
                serde_json::to_writer(&mut *out, row)?;
                out.write_all(b"\n")
            }
            Self::Csv(out, columns, is_first) => {
                let fields = &row.document.fields;
                if std::mem::take(is_first) {
                    if columns.is_empty() {
                        columns.extend(fields.iter().map(|field| Arc::clone(&field.name)));
                    }
                    let own = OWN_NAMES.into_iter().skip(usize::from(row.rank.is_none()));
                    out.write_record(own.chain(columns.iter().map(AsRef::as_ref))).map_err(kept_kind)?;
                }
                let cells: Vec<_> = columns
                    .iter()
                    .enumerate()
                    .map(|(place, name)| column_cell(fields, place, name))
                    .collect();
                let (index, score) = (row.document.index, row.score);
                match row.rank {
                    Some(rank) => out.serialize((rank, index, score, cells)),
                    None => out.serialize((index, score, cells)),
                }
                .map_err(kept_kind)
            }
            Self::Table { out, screen, rank, index } => {
                let rank = format!("{:>rank$}", row.rank.unwrap_or_default());
                let bar = screen.styled(&format!("{:<BAR$}", bar(row.probability)), "36");
                let before =
                    format!("{rank}  {:>7}  {bar}  {:>index$}  ", score(row.score), row.document.index);
                let room = screen.width.map(|width| width.saturating_sub(measure_text_width(&before)));
                writeln!(out, "{}", format!("{before}{}", shown(&row.document.text, room)).trim_end())
            }
        }
    }

    /// Ends the output.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if let Self::Json(out, begun) = &mut self {
            out.write_all(if *begun { b"]\n" } else { b"[]\n" })?;
        }
        self.flush()
    }

    /// Flushes the rows so far.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Json(out, _) | Self::Jsonl(out) | Self::Table { out, .. } => out.flush(),
            Self::Csv(out, ..) => out.flush(),
        }
    }
}

/// The same error with its kind, which `io::Error::from` loses: a closed pipe is no failure.
fn kept_kind(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        kind => io::Error::other(format!("{kind:?}")),
    }
}

/// The value of a column in a row, empty if the row has no such field. Most rows have it at the same `place`.
fn column_cell<'a>(fields: &'a [Field], place: usize, name: &Arc<str>) -> Cow<'a, str> {
    let here = fields.get(place).filter(|field| field.name == *name);
    let field = here.or_else(|| fields.iter().find(|field| field.name == *name));
    field.map_or(Cow::Borrowed(""), |field| field.value.cell_text())
}

fn digits(number: &impl ToString) -> usize {
    number.to_string().len()
}

/// Four decimal places; scores that are too small for that in scientific notation.
fn score(score: f32) -> String {
    if score != 0.0 && score.abs() < 0.00005 { format!("{score:.1e}") } else { format!("{score:.4}") }
}

/// A bar of up to ten cells, in eighths of one.
fn bar(probability: f32) -> String {
    let eighths = (probability.clamp(0.0, 1.0) * (BAR * 8) as f32).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

/// A text on one line without control characters, cut to `room` columns.
fn shown(text: &str, room: Option<usize>) -> String {
    // A character takes at least a column, or joins one: characters far beyond the last column need not be
    // read.
    let far = room.map_or(usize::MAX, |room| room.saturating_mul(8));
    // The last two characters turn the direction of the line.
    let plain = text.chars().take(far).collect::<String>();
    let plain = plain.replace(|c| is_control(c) || matches!(c, '\u{200e}' | '\u{200f}'), " ");
    let words: Vec<_> = plain.split_whitespace().collect();
    let line = words.join(" ");
    room.map_or_else(|| line.clone(), |room| truncate_str(&line, room, "…").into_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::commands::input::{TextField, read_json};

    const WIDE: Screen = Screen { width: None, colours: false };

    fn own(name: &str) -> TextField {
        TextField::of_documents(name, &OWN_NAMES)
    }

    fn rows() -> Vec<ScoredDocument> {
        let row = |rank, index, score, text: &str, line: &str| {
            let (text, mut fields) = (text.to_owned(), Field::from_text(&own("text"), text));
            fields.extend(read_json(line, &own("t")).unwrap().1);
            let document = Document { index, place: 0, text, fields };
            ScoredDocument { rank: Some(rank), score, probability: score, document }
        };
        vec![
            row(1, 12, 0.996, "Mars, \"the\nRed\" Planet", r#"{"t": "", "id": 1.0}"#),
            row(2, 3, 0.000_000_4, "", r#"{"score": [2, 3], "t": "say \"a\""}"#),
        ]
    }

    fn written(format: OutputFormat, screen: Screen, rows: &[ScoredDocument]) -> String {
        let mut out = Vec::new();
        let columns = ["text", "t", "id", "input_score"].map(Arc::from).to_vec();
        let mut writer = Writer::new(&mut out, format, screen, columns, rows.len(), 12).unwrap();
        for row in rows {
            writer.write(row).unwrap();
        }
        writer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_format_is_exact() {
        for (format, expected) in [
            (
                OutputFormat::Table,
                "rank  score               index  text\n   1   0.9960  ██████████     12  Mars, \"the Red\" Planet\n   2   \
                 4.0e-7                  3\n",
            ),
            (
                OutputFormat::Json,
                "[{\"rank\":1,\"index\":12,\"score\":0.996,\"text\":\"Mars, \\\"the\\nRed\\\" Planet\",\"t\":\"\",\"id\":1.0},\n \
                 {\"rank\":2,\"index\":3,\"score\":4e-7,\"text\":\"\",\"input_score\":[2, 3],\"t\":\"say \\\"a\\\"\"}]\n",
            ),
            (
                OutputFormat::Jsonl,
                "{\"rank\":1,\"index\":12,\"score\":0.996,\"text\":\"Mars, \\\"the\\nRed\\\" Planet\",\"t\":\"\",\"id\":1.0}\n\
                 {\"rank\":2,\"index\":3,\"score\":4e-7,\"text\":\"\",\"input_score\":[2, 3],\"t\":\"say \\\"a\\\"\"}\n",
            ),
            (
                OutputFormat::Csv,
                "rank,index,score,text,t,id,input_score\n1,12,0.996,\"Mars, \"\"the\nRed\"\" Planet\",,1.0,\n\
                 2,3,4e-7,,\"say \"\"a\"\"\",,\"[2, 3]\"\n",
            ),
        ] {
            assert_eq!(written(format, WIDE, &rows()), expected);
        }
        assert_eq!(written(OutputFormat::Json, WIDE, &[]), "[]\n");
        assert_eq!(written(OutputFormat::Jsonl, WIDE, &[]), "");
    }

    #[test]
    fn a_table_keeps_to_its_terminal_and_does_nothing_to_it() {
        let texts = [
            "한국어 문장입니다 그리고 더",
            "\x1b[2J\x07\u{202e}gone",
            "e\u{301}".repeat(50).as_str(),
            "plain",
        ]
        .map(str::to_owned);
        for width in [30, 44, 50, 61] {
            for text in &texts {
                let mut row = rows().remove(0);
                row.document.text.clone_from(text);
                let table =
                    written(OutputFormat::Table, Screen { width: Some(width), colours: false }, &[row]);
                let line = table.lines().nth(1).unwrap();
                // The columns before the text take 35 and are not cut.
                assert!(measure_text_width(line) <= width.max(35), "{width}: {line}");
                assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
            }
        }
        let coloured = written(OutputFormat::Table, Screen { width: None, colours: true }, &rows());
        assert!(coloured.contains("\x1b[36m██████████\x1b[0m"), "{coloured}");
    }

    #[test]
    fn a_bar_is_as_long_as_its_score() {
        for (probability, expected) in [
            (0.0, ""),
            (0.004, ""),
            (0.0125, "▏"),
            (0.5, "█████"),
            (0.55, "█████▌"),
            (1.0, "██████████"),
            (7.0, "██████████"),
        ] {
            assert_eq!(bar(probability), expected, "{probability}");
        }
    }
}
