//! Small files that are read again while the server runs: keys, certificates and the models file.
//!
//! What must hold: a file that never ends, or a pipe without a writer, is refused before it is read; no
//! more is read than such a file may have.

use std::{fs::File, io::Read, path::Path};

use anyhow::Context;

/// The most bytes of such a file: thousands of keys or models, or hundreds of certificates.
const MAX_FILE: u64 = 1 << 20;

/// The content of the file that `flag` names.
///
/// # Errors
///
/// If it cannot be read, is not a regular file, or has more than 1 MiB.
pub fn read_small_file(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || format!("`{flag} {}` cannot be read", path.display());
    // Opening a pipe would wait for somebody who writes.
    let is_file = path.metadata().with_context(named)?.is_file();
    anyhow::ensure!(is_file, "`{flag} {}` is not a regular file: give one", path.display());
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut content))
        .with_context(named)?;
    anyhow::ensure!(
        content.len() as u64 <= MAX_FILE,
        "`{flag} {}` has more than 1 MiB: give the right file",
        path.display()
    );
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
            (pipe.as_path(), " is not a regular file: give one"),
            (Path::new("/dev/zero"), " is not a regular file: give one"),
            (folder.path(), " is not a regular file: give one"),
            (large.as_path(), " has more than 1 MiB: give the right file"),
            (Path::new("/nowhere"), " cannot be read"),
        ] {
            let error = read_small_file("--flag", path).unwrap_err().to_string();
            assert_eq!(error, format!("`--flag {}`{problem}", path.display()));
        }
        assert_eq!(read_small_file("--flag", &small).unwrap(), b"key");
    }
}
