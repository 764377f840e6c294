//! Small files that flags name: keys, certificates, the models file, a template, a calibration.
//!
//! What must hold: a file that never ends, or a pipe without a writer, is refused before it is read; no
//! more is read than such a file may have.

use std::{
    fs::File,
    io::{Error, ErrorKind, Read, Result},
    path::Path,
};

use anyhow::Context;

/// The most bytes of such a file: thousands of keys or models, or hundreds of certificates.
const MAX_FILE: u64 = 1 << 20;

/// The content of the file that `flag` names.
///
/// # Errors
///
/// If it cannot be read, is not a regular file, or has more than 1 MiB.
pub fn read_small_file(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    read_bounded(path).with_context(|| format!("`{flag} {}` cannot be read", path.display()))
}

/// The content of a small file that is text.
///
/// # Errors
///
/// As [`read_small_file`], without the file's name, and if it is not UTF-8.
pub fn read_small_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bounded(path)?).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    // Opening a pipe would wait for somebody who writes.
    if !path.metadata()?.is_file() {
        return Err(Error::other("it is not a regular file"));
    }
    let mut content = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE {
        return Err(Error::other("it has more than 1 MiB"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::process::Command;

    #[test]
    fn files_that_block_or_never_end_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, large, small] = ["pipe", "large", "small"].map(|name| folder.path().join(name));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        File::create(&large).unwrap().set_len(1 << 40).unwrap();
        std::fs::write(&small, "key").unwrap();
        for (path, problem) in [
            (pipe.as_path(), "it is not a regular file"),
            (Path::new("/dev/zero"), "it is not a regular file"),
            (folder.path(), "it is not a regular file"),
            (large.as_path(), "it has more than 1 MiB"),
            (Path::new("/nowhere"), "No such file or directory (os error 2)"),
        ] {
            let error = read_small_file("--flag", path).unwrap_err();
            assert_eq!(
                format!("{error:#}"),
                format!("`--flag {}` cannot be read: {problem}", path.display())
            );
            assert_eq!(read_small_text(path).unwrap_err().to_string(), problem);
        }
        assert_eq!(read_small_file("--flag", &small).unwrap(), b"key");
    }
}
