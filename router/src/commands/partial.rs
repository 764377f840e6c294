//! A file of results that is written piece by piece, and continued after its process was killed.
//!
//! Input: the file's path, the settings that its content depends on, and pieces in their order. Output: the
//! file, once it is complete. Until then its content is in `FILE.partial`, and the settings are in
//! `FILE.partial.json`. What must hold: whenever the process is killed, the next one can continue the file or
//! sees that it is complete; a file is never continued with other settings, by two processes, or replaced.

use std::{
    fmt::Debug,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, ErrorKind, Seek, SeekFrom, StdoutLock, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use crate::models::Served;

/// The size of the write buffer, in bytes.
const BUFFER: usize = 256 * 1024;

/// An incomplete file.
#[derive(Debug)]
pub(crate) struct PartialFile {
    target: PathBuf,
    writer: BufWriter<File>,
}

impl PartialFile {
    /// Begins the file `target`, or continues it with `resume`. None: it is complete already. Fails if there
    /// is a file that would be lost, an incomplete one that was begun with other settings or that another
    /// process writes, or no permission.
    pub(crate) fn open_file(
        target: &Path,
        settings: &Map<String, Value>,
        resume: bool,
    ) -> anyhow::Result<Option<Self>> {
        let (partial, about) = (with_suffix(target, ".partial"), with_suffix(target, ".partial.json"));
        if target.try_exists()? {
            ensure!(resume, "`{}` exists: remove it, or give another `--output-file`", target.display());
            remove_file(&about)?;
            tracing::warn!("`{}` is complete already", target.display());
            return Ok(None);
        }
        if partial.try_exists()? {
            ensure!(
                resume,
                "`{}` is there from an earlier run: continue it with `--resume`, or remove it",
                partial.display()
            );
            check_settings(&about, settings).with_context(|| {
                format!(
                    "`{}` cannot be continued: give what it was begun with, or remove it",
                    partial.display()
                )
            })?;
        } else {
            write_settings(&about, settings).with_context(|| not_writable(&partial))?;
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&partial);
        let file = file.with_context(|| not_writable(&partial))?;
        ensure!(file.try_lock().is_ok(), "another process writes `{}`", partial.display());
        Ok(Some(Self { target: target.to_owned(), writer: BufWriter::with_capacity(BUFFER, file) }))
    }

    /// The bytes that are there.
    pub(crate) fn byte_count(&self) -> io::Result<u64> {
        Ok(self.writer.get_ref().metadata()?.len())
    }

    /// Goes through the content from the beginning, and gives every line that has an end to `take`, with the
    /// byte at which it begins.
    pub(crate) fn each_line(&mut self, mut take: impl FnMut(&[u8], u64)) -> io::Result<()> {
        self.writer.seek(SeekFrom::Start(0))?;
        let mut content = BufReader::with_capacity(BUFFER, self.writer.get_ref());
        let (mut begin, mut line) = (0, Vec::new());
        while content.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            take(&line, begin);
            begin += line.len() as u64;
            line.clear();
        }
        Ok(())
    }

    /// Drops an incomplete last line. Returns the number of lines.
    pub(crate) fn keep_lines(&mut self) -> io::Result<u64> {
        let (mut lines, mut end) = (0, 0);
        self.each_line(|line, begin| {
            lines += 1;
            end = begin + line.len() as u64;
        })?;
        self.cut_to(end)?;
        Ok(lines)
    }

    /// Drops everything from `length` on. The next bytes go there.
    pub(crate) fn cut_to(&mut self, length: u64) -> io::Result<()> {
        self.writer.flush()?;
        self.writer.get_ref().set_len(length)?;
        self.writer.seek(SeekFrom::Start(length)).map(|_| ())
    }

    /// Writes over the beginning.
    pub(crate) fn replace_start(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.seek(SeekFrom::Start(0))?;
        self.writer.write_all(bytes)?;
        self.writer.seek(SeekFrom::End(0)).map(|_| ())
    }

    /// Gives the complete file its name.
    pub(crate) fn complete_file(mut self) -> anyhow::Result<()> {
        self.flush()?;
        self.writer.get_ref().sync_all().map_err(|error| write_error(&self.target, &error))?;
        let partial = with_suffix(&self.target, ".partial");
        fs::rename(&partial, &self.target)
            .with_context(|| format!("`{}` cannot be renamed to its final name", partial.display()))?;
        remove_file(&with_suffix(&self.target, ".partial.json"))
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes).map_err(|error| write_error(&self.target, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(|error| write_error(&self.target, &error))
    }
}

/// The error of a write, such as the one of a full disk, with the file and the remedy.
fn write_error(target: &Path, error: &io::Error) -> io::Error {
    let partial = with_suffix(target, ".partial");
    let advice =
        format!("`{}` cannot be written ({error}): make room, then use `--resume`", partial.display());
    io::Error::new(error.kind(), advice)
}

/// Where results go.
#[derive(Debug)]
pub(crate) enum OutputSink {
    /// Standard output.
    Stdout(BufWriter<StdoutLock<'static>>),
    /// A file.
    File(PartialFile),
}

impl OutputSink {
    /// Standard output.
    pub(crate) fn from_stdout() -> Self {
        Self::Stdout(BufWriter::new(io::stdout().lock()))
    }

    /// Writes the rest, and gives a file its name.
    pub(crate) fn complete_output(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout(mut out) => Ok(out.flush()?),
            Self::File(file) => file.complete_file(),
        }
    }
}

impl Write for OutputSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::File(file) => file.flush(),
        }
    }
}

/// All that results depend on: the arguments, the model, and the lengths of the input files, which tell one
/// file from another.
pub(crate) fn settings_of(arguments: &impl Debug, served: &Served, inputs: &[&Path]) -> Map<String, Value> {
    let mut settings = Map::new();
    settings.insert("revision".to_owned(), json!(served.info.model_sha));
    settings.insert("arithmetic".to_owned(), json!(served.info.computation.arithmetic));
    // A pipe has no length.
    let lengths = inputs.iter().map(|path| Some(fs::metadata(path).ok().filter(Metadata::is_file)?.len()));
    settings.insert("bytes of the input".to_owned(), lengths.collect());
    // On a line each, so that a difference is a line.
    let arguments = format!("{arguments:#?}");
    settings.insert("arguments".to_owned(), arguments.lines().map(str::trim).collect());
    settings
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("`{}` cannot be removed", path.display()))
        }
        _ => Ok(()),
    }
}

fn not_writable(path: &Path) -> String {
    format!("`{}` cannot be written: check the folder and its permissions", path.display())
}

/// Writes the settings first into another file, so that they are whole whenever the partial file is there.
fn write_settings(about: &Path, settings: &Map<String, Value>) -> anyhow::Result<()> {
    let folder = about.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut new, settings)?;
    new.persist(about)?;
    Ok(())
}

/// Refuses settings that differ from the written ones, and names the first difference.
fn check_settings(about: &Path, settings: &Map<String, Value>) -> anyhow::Result<()> {
    let written = fs::read(about).with_context(|| format!("`{}` cannot be read", about.display()))?;
    let written: Map<String, Value> =
        serde_json::from_slice(&written).with_context(|| format!("`{}` is not JSON", about.display()))?;
    for (name, value) in settings {
        let before = written.get(name).unwrap_or(&Value::Null);
        // Of a list, the first difference is enough.
        let difference = match (before, value) {
            (Value::Array(before), Value::Array(value)) => {
                before.iter().zip(value).find(|(one, other)| one != other)
            }
            _ => None,
        };
        let (before, value) = difference.unwrap_or((before, value));
        ensure!(before == value, "{name}: it was {before}, and is {value}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use serde_json::json;

    fn settings(model: &str) -> Map<String, Value> {
        json!({"input": "a.txt", "arguments": ["same", model]}).as_object().unwrap().clone()
    }

    fn refusal(target: &Path, model: &str, resume: bool) -> String {
        format!("{:#}", PartialFile::open_file(target, &settings(model), resume).unwrap_err())
    }

    #[test]
    fn an_incomplete_line_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        for (content, lines, kept) in
            [("", 0, ""), ("a", 0, ""), ("a\n\nb\nc", 3, "a\n\nb\n"), ("a\n", 1, "a\n")]
        {
            let target = folder.path().join("out");
            let mut file = PartialFile::open_file(&target, &settings("m"), false).unwrap().unwrap();
            file.write_all(content.as_bytes()).unwrap();
            file.flush().unwrap();
            assert_eq!(file.keep_lines().unwrap(), lines, "{content:?}");
            file.complete_file().unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), kept);
            fs::remove_file(&target).unwrap();
        }
    }

    #[test]
    fn a_file_is_continued_with_its_settings_only_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out.npy");
        let open = |resume| PartialFile::open_file(&target, &settings("m"), resume).unwrap();
        let mut file = open(true).unwrap();
        file.write_all(b"first half").unwrap();
        file.flush().unwrap();
        assert!(refusal(&target, "m", true).contains("another process writes"));
        drop(file);
        assert!(!target.exists());
        assert!(refusal(&target, "m", false).contains("continue it with `--resume`"));
        let message = refusal(&target, "other", true);
        assert!(message.contains(r#"arguments: it was "m", and is "other""#), "{message}");

        let mut file = open(true).unwrap();
        assert_eq!(file.byte_count().unwrap(), 10);
        file.cut_to(6).unwrap();
        file.write_all(b"part").unwrap();
        file.replace_start(b"F").unwrap();
        file.write_all(b"!").unwrap();
        file.complete_file().unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "First part!");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(refusal(&target, "m", false).contains("exists: remove it"));
        assert!(open(true).is_none());
        // Killed after the file got its name: the settings are still there.
        fs::write(folder.path().join("out.npy.partial.json"), "{}").unwrap();
        assert!(open(true).is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // Killed before the partial file was there.
        fs::remove_file(&target).unwrap();
        fs::write(folder.path().join("out.npy.partial.json"), "{}").unwrap();
        assert!(open(false).is_some());
        let gone = folder.path().join("none").join("out.npy");
        assert!(refusal(&gone, "m", false).contains("check the folder"));
    }
}
