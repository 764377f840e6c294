//! Tells one version of a model's files from another without reading them.
//!
//! Input: paths. Output: [`FileVersions`], which are equal while no file was replaced or written. What must
//! hold: a folder of any size takes a bounded time.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The most files of a folder that are looked at.
const MAX_FILES: usize = 10_000;
/// The levels of folders below a model's folder that are looked at. Its modules have one.
const MAX_DEPTH: usize = 2;

/// The version of each file, as far as the system tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileVersions(Vec<FileVersion>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileVersion {
    /// The path without links, because a link may be set to another version.
    path: PathBuf,
    length: Option<u64>,
    modified: Option<SystemTime>,
}

impl FileVersions {
    /// The versions of these files.
    pub(crate) fn read_files<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let files = paths.into_iter().map(|path| {
            let metadata = fs::metadata(path).ok();
            FileVersion {
                path: fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
                length: metadata.as_ref().map(fs::Metadata::len),
                modified: metadata.and_then(|metadata| metadata.modified().ok()),
            }
        });
        Self(files.collect())
    }

    /// The versions of a model's files: those in its folder, or a weight file and the JSON files next to it.
    /// A path that does not exist has none.
    pub(crate) fn read_model(path: &Path) -> Self {
        let mut found = Vec::new();
        if path.is_file() {
            let siblings = sorted_entries(path.parent().unwrap_or(path)).into_iter();
            found.extend(siblings.filter(|file| file.extension().is_some_and(|kind| kind == "json")));
            found.push(path.to_owned());
        } else {
            add_files(path, MAX_DEPTH, &mut found);
        }
        Self::read_files(found.iter().map(PathBuf::as_path))
    }

    /// These files and others.
    pub(crate) fn with_others(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }
}

/// Adds the files in a folder and in folders below it, but for hidden ones.
fn add_files(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for path in sorted_entries(folder) {
        if found.len() >= MAX_FILES {
            return;
        }
        if !path.is_dir() {
            found.push(path);
        } else if depth > 0 {
            add_files(&path, depth - 1, found);
        }
    }
}

fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_FILES);
    let shown = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    let mut paths: Vec<PathBuf> = shown.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::{fs::File, os::unix::fs::symlink, time::Duration};

    type Change<'a> = Box<dyn Fn() + 'a>;

    #[test]
    fn every_change_of_a_models_files_is_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("v1/1_Pooling")).unwrap();
        fs::create_dir_all(at("v1/.git")).unwrap();
        fs::create_dir_all(at("v1/1/2/3")).unwrap();
        for name in ["v1/config.json", "v1/model.gguf", "v1/1_Pooling/config.json", "v1/.git/index"] {
            fs::write(at(name), "a").unwrap();
        }
        let later = SystemTime::now() + Duration::from_secs(9);
        let touch = |name: &str| {
            File::options().append(true).open(at(name)).unwrap().set_modified(later).unwrap();
        };
        symlink(at("v1"), at("model")).unwrap();
        let (model, file) = (at("model"), at("model/model.gguf"));
        let read = || (FileVersions::read_model(&model), FileVersions::read_model(&file));
        assert_eq!(read(), read());
        assert_eq!(FileVersions::read_model(&at("none")), FileVersions::default());
        let changes: [(&str, Change<'_>, (bool, bool)); 8] = [
            ("a hidden file", Box::new(|| fs::write(at("v1/.git/index"), "bc").unwrap()), (true, true)),
            ("three folders down", Box::new(|| fs::write(at("v1/1/2/3/new"), "").unwrap()), (true, true)),
            ("two folders down", Box::new(|| fs::write(at("v1/1/2/new"), "").unwrap()), (false, true)),
            (
                "a module",
                Box::new(|| fs::write(at("v1/1_Pooling/config.json"), "bc").unwrap()),
                (false, true),
            ),
            (
                "the configuration",
                Box::new(|| fs::write(at("v1/config.json"), "bc").unwrap()),
                (false, false),
            ),
            ("as long as before", Box::new(|| touch("v1/model.gguf")), (false, false)),
            ("a further file", Box::new(|| fs::write(at("v1/new.txt"), "").unwrap()), (false, true)),
            (
                "a link to a copy",
                Box::new(|| {
                    fs::rename(at("v1"), at("v2")).unwrap();
                    fs::remove_file(at("model")).unwrap();
                    symlink(at("v2"), at("model")).unwrap();
                }),
                (false, false),
            ),
        ];
        for (name, change, expected) in changes {
            let before = read();
            change();
            let after = read();
            assert_eq!((before.0 == after.0, before.1 == after.1), expected, "{name}");
        }
    }
}
