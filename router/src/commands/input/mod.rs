//! The texts that the commands read: from arguments, files and standard input, in several formats.
//!
//! Input: `--format`, `--field`, and a file or texts. Output: a [`DocumentSource`] for [`Documents`]. What
//! must hold: every command reads the same formats in the same way.

mod documents;
mod fields;
mod format;
mod json_list;
mod quotes;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, ensure};
use clap::Args;

pub(crate) use documents::{DocumentSource, Documents, Texts};
pub(crate) use fields::{Columns, Field, InputValue, TextField, read_json};
pub(crate) use format::{Document, InputFormat};

/// The flag of a file of queries.
pub(crate) const QUERIES_FLAG: &str = "--queries";
/// The name of the field with the text, unless `--field` names another.
const TEXT: &str = "text";

/// The most bytes of a file that is read as a whole. A file without end would fill the memory.
const MAX_FILE: u64 = 16 << 20;

/// Standard input, where a file or a text is expected.
const STDIN: &str = "-";

/// Whether a path means standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

/// The words for a file in messages.
pub(crate) fn name_in_messages(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { format!("`{}`", path.display()) }
}

/// The content of a file that is read as a whole. A byte order mark at its start and a line break at its end
/// are not part of it. Fails if it cannot be read, or is longer than [`MAX_FILE`].
pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    let input: Box<dyn Read> = if is_stdin(path) {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).with_context(|| path.display().to_string())?)
    };
    let mut text = String::new();
    input.take(MAX_FILE + 1).read_to_string(&mut text).with_context(|| path.display().to_string())?;
    ensure!(
        text.len() as u64 <= MAX_FILE,
        "{} is longer than 16 MiB: give a shorter one",
        name_in_messages(path)
    );
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// How a file of texts is read.
#[derive(Debug, Clone, Args)]
pub(crate) struct FormatArgs {
    /// How the file is read [default: by its name; for standard input jsonl if its first line is a JSON
    /// object, else txt].
    #[arg(long)]
    pub(crate) format: Option<InputFormat>,

    /// The field, or column, with the text [default: text].
    #[arg(long)]
    pub(crate) field: Option<String>,
}

impl FormatArgs {
    /// The field, or column, with the text.
    pub(crate) fn text_field(&self) -> String {
        self.field.clone().unwrap_or_else(|| TEXT.to_owned())
    }

    /// The documents in `file`, which the flag `flag` names, or without one `texts`; a single `-` there is
    /// standard input, too. Results have fields of their `own`. The error is a sentence about the arguments
    /// that contradict each other, or about a file whose name does not tell its format.
    pub(crate) fn find_source(
        &self,
        file: Option<&Path>,
        texts: &[String],
        flag: &str,
        own: &'static [&'static str],
    ) -> Result<DocumentSource, String> {
        let mut field = TextField::of_documents(&self.text_field(), own);
        if flag == QUERIES_FLAG {
            field.flag = "--query-field";
        }
        let is_stdin = texts == [STDIN];
        let Some(path) = file.or(is_stdin.then_some(Path::new(STDIN))) else {
            if texts.iter().any(|text| text == STDIN) {
                return Err(format!(
                    "`{STDIN}` means standard input, which takes no further texts as arguments"
                ));
            }
            if self.format.is_some() || self.field.is_some() {
                return Err(format!("`--format` and `{}` are about a file: give `{flag}`", field.flag));
            }
            return Ok(DocumentSource::Arguments(texts.to_owned(), field));
        };
        // Plain text has no fields: `--field` says that standard input is JSON.
        let by_name = match InputFormat::from_name(path) {
            Some(InputFormat::ByFirstLine) if self.field.is_some() => Some(InputFormat::Jsonl),
            format => format,
        };
        let Some(format) = self.format.or(by_name) else {
            return Err(format!(
                "the name of `{}` does not tell its format: give `--format`",
                path.display()
            ));
        };
        if self.field.is_some() && format == InputFormat::Txt {
            return Err(if flag == QUERIES_FLAG {
                "`--queries` is a file of jsonl, json, csv or tsv, not txt: give `--format`".to_owned()
            } else {
                "`--field` is about jsonl, json, csv and tsv, not txt: leave it out, or give `--format`"
                    .to_owned()
            });
        }
        Ok(DocumentSource::File { path: path.to_owned(), format, field })
    }
}
