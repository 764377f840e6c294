//! Finds a model's weight files, and checks that each is complete.
//!
//! Input: the names of a model's files. Output: its weight files in the order of their names: safetensors if
//! it has them, otherwise `PyTorch`'s pickles, otherwise GGUF. What must hold: every resulting file exists,
//! is not a Git LFS pointer, and has the length that its header states. So a broken download is found here,
//! not later by strange numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::BackendKind;
use text_embeddings_checkpoint::{CheckpointFile, Format};

use super::config::read_json;
use super::error::FilesError;
use super::onnx;
use super::reading;
use super::source::Reader;

/// The names of weight files in a repository of `transformers`.
struct Layout {
    /// The name of a single weight file.
    single: &'static str,
    /// The name of the index of a model with several weight files.
    index: &'static str,
    /// The ending of the names of several weight files.
    ending: &'static str,
}

/// The layouts, the preferred one first.
const LAYOUTS: [Layout; 2] = [
    Layout { single: "model.safetensors", index: "model.safetensors.index.json", ending: ".safetensors" },
    Layout { single: "pytorch_model.bin", index: "pytorch_model.bin.index.json", ending: ".bin" },
];

/// The ending of GGUF files.
const GGUF: &str = ".gguf";
/// The prefix of GGUF files that contain an image encoder and no text model.
const PROJECTOR: &str = "mmproj";

/// Weights in formats that this server does not read.
const OTHER_FORMATS: [&str; 4] = [".onnx", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"];

/// The remedy for a model without known weights.
const NEEDS_WEIGHTS: &str = "this server reads weights as model.safetensors, as pytorch_model.bin (both also in several \
                             files with their index) and as one .gguf file; convert the model, or choose another \
                             repository or `--revision`";

/// The fields of `model.safetensors.index.json` and of similar files.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: Option<Value>,
    weight_map: BTreeMap<String, String>,
}

/// The weight files of a model with an index.
pub(super) struct Shards {
    /// The files in the order of their names. Each is a plain file name in the index's folder.
    pub(super) names: BTreeSet<String>,
    /// The most bytes of all files together, by the index.
    pub(super) most: u64,
}

/// The allowed ratio between the bytes of all shards and the bytes that the index states. Indexes often state
/// the size for another type than the stored one, and leave out shared tensors and headers.
const STATED_TIMES: f64 = 4.0;
/// The additional allowance for headers, in bytes per shard.
const SHARD_ALLOWANCE: u64 = 16 << 20;

/// The files that hold a model's weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    /// One file.
    File(String),
    /// The files in the index with this name.
    Shards(String),
    /// One GGUF file, which also contains the tokenizer and the settings.
    Gguf(String),
    /// An ONNX graph with its external files of values.
    Graph(String),
}

impl Selection {
    /// The selection of a file that the user names.
    pub(super) fn named(name: &str) -> Self {
        if is_gguf(name) { Self::Gguf(name.to_owned()) } else { Self::File(name.to_owned()) }
    }
}

/// Whether a name belongs to a GGUF file.
pub(super) fn is_gguf(name: &str) -> bool {
    name.to_lowercase().ends_with(GGUF)
}

/// The path of a module's single weight file. `path` turns a file name into a path, and `has` says whether a
/// path exists.
pub(super) fn single_file(path: impl Fn(&str) -> String, has: impl Fn(&str) -> bool) -> String {
    let found = LAYOUTS.iter().map(|layout| path(layout.single)).find(|path| has(path));
    found.unwrap_or_else(|| path(LAYOUTS[0].single))
}

/// Whether a folder has safetensors, in one file or in several. `has` says whether a name exists.
pub(super) fn has_safetensors(has: impl Fn(&str) -> bool) -> bool {
    has(LAYOUTS[0].single) || has(LAYOUTS[0].index)
}

/// Whether a name belongs to a weight file.
pub(super) fn is_weights(name: &str) -> bool {
    is_gguf(name) || LAYOUTS.iter().any(|layout| name.ends_with(layout.ending))
}

/// Whether a name belongs to an index of weight files.
pub(super) fn is_index(name: &str) -> bool {
    LAYOUTS.iter().any(|layout| layout.index == name)
}

/// Selects the weights for a backend among the files `names` of `place`. If the user names a GGUF file,
/// selects that file.
pub(super) fn select(place: &str, names: &[String], reader: &Reader) -> Result<Selection, FilesError> {
    let gguf_file = reader.gguf_file.as_deref();
    if let (BackendKind::Ort | BackendKind::Python, Some(file)) = (reader.backend, gguf_file) {
        let (file, backend) = (file.to_owned(), reader.backend);
        return Err(FilesError::GgufForAnother { file, backend });
    }
    if reader.backend == BackendKind::Ort {
        let graph = onnx::choose(names.iter().cloned(), reader.onnx_file.as_deref(), place)?;
        return Ok(Selection::Graph(graph));
    }
    let has = |name: &str| names.iter().any(|known| known == name);
    let is_model =
        |name: &&String| is_gguf(name) && !name.rsplit('/').next().unwrap_or(name).starts_with(PROJECTOR);
    let ggufs: Vec<&str> = names.iter().filter(is_model).map(String::as_str).collect();
    let found = || if ggufs.is_empty() { "none".to_owned() } else { ggufs.join(", ") };
    if let Some(name) = gguf_file {
        if has(name) && is_gguf(name) {
            return Ok(Selection::Gguf(name.to_owned()));
        }
        let (place, file) = (place.to_owned(), name.to_owned());
        return Err(FilesError::NoSuchGguf { place, file, found: found() });
    }
    for layout in &LAYOUTS {
        if has(layout.single) {
            return Ok(Selection::File(layout.single.to_owned()));
        }
        if has(layout.index) {
            return Ok(Selection::Shards(layout.index.to_owned()));
        }
    }
    match ggufs[..] {
        [first, ..] if reader.backend == BackendKind::Python => {
            Err(FilesError::GgufForAnother { file: first.to_owned(), backend: reader.backend })
        }
        [] => Err(no_weights(place.to_owned(), names)),
        [only] => Ok(Selection::Gguf(only.to_owned())),
        _ => Err(FilesError::SeveralGguf { place: place.to_owned(), found: found() }),
    }
}

/// Selects the weights of the model folder `root`. The selected files may be missing; [`weight_files`] checks
/// that.
pub(super) fn select_local(root: &Path, reader: &Reader) -> Result<Selection, FilesError> {
    let mut names = onnx::names(root);
    // The user may name a file in a subfolder. The server does not search there.
    names.extend(reader.gguf_file.iter().filter(|name| root.join(name).is_file()).cloned());
    select(&root.display().to_string(), &names, reader)
}

/// The files of a selection in the model folder `root`, in the order of their names. They exist;
/// [`check_weights`] checks their content.
pub(super) fn weight_files(root: &Path, selection: &Selection) -> Result<Vec<PathBuf>, FilesError> {
    let place = || root.display().to_string();
    match selection {
        Selection::Graph(graph) => onnx::graph_files(root, graph),
        Selection::File(name) | Selection::Gguf(name) => {
            let path = root.join(name);
            if !path.exists() {
                let (place, file) = (place(), name.clone());
                return Err(FilesError::Missing { place, file, remedy: NEEDS_WEIGHTS });
            }
            Ok(vec![path])
        }
        Selection::Shards(index) => {
            let mut files = Vec::new();
            for name in shards(&root.join(index))?.names {
                let path = root.join(&name);
                if !path.exists() {
                    return Err(missing_shard(place(), name));
                }
                files.push(path);
            }
            Ok(files)
        }
    }
}

/// The error for a folder or repository with these files, but without weights that this server reads.
fn no_weights(place: String, files: &[String]) -> FilesError {
    if let Some(found) = files.iter().find(|name| onnx::is_graph(name)) {
        return FilesError::OnlyOnnx { place, found: found.clone() };
    }
    let is_weights = |name: &&String| OTHER_FORMATS.iter().any(|ending| name.ends_with(ending));
    match files.iter().find(is_weights) {
        Some(found) => FilesError::OtherWeights { place, found: found.clone() },
        None => FilesError::Missing { place, file: LAYOUTS[0].single.to_owned(), remedy: NEEDS_WEIGHTS },
    }
}

/// The error for a shard in the index that is missing in `place`.
pub(super) fn missing_shard(place: String, file: String) -> FilesError {
    let remedy = "the index of the weights names it; download all shards of the model again";
    FilesError::Missing { place, file, remedy }
}

/// The shards in an index.
pub(super) fn shards(index: &Path) -> Result<Shards, FilesError> {
    let Index { metadata, weight_map } = read_json(index)?;
    let name = index.file_name().unwrap_or_default().to_string_lossy();
    let ending =
        LAYOUTS.iter().find(|layout| layout.index == name).map_or(".safetensors", |layout| layout.ending);
    let names: BTreeSet<String> = weight_map.into_values().collect();
    let damaged = |reason: String| FilesError::Damaged { path: index.into(), reason };
    if names.is_empty() {
        return Err(damaged("its weight_map is empty".to_owned()));
    }
    for name in &names {
        let stays_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !stays_inside || !name.ends_with(ending) {
            return Err(damaged(format!("it names {name:?}, which is not a weight file of this model")));
        }
    }
    let stated = metadata.as_ref().and_then(|metadata| metadata["total_size"].as_f64());
    let allowance = SHARD_ALLOWANCE.saturating_mul(names.len() as u64);
    let most = stated.map_or(u64::MAX, |stated| ((stated * STATED_TIMES) as u64).saturating_add(allowance));
    Ok(Shards { names, most })
}

/// The content of a model's weight files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWeights {
    /// Their format.
    pub format: Format,
    /// The types of their values. The type with the most values is first.
    pub types: Vec<&'static str>,
    /// Their size in memory after reading, in bytes. Blocks of quantised values are widened to 32 bits.
    pub bytes: u64,
}

impl std::fmt::Display for StoredWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.format, self.types.join(", "))
    }
}

/// Checks that a weight file is complete.
pub(super) fn check_weights(path: &Path) -> Result<CheckpointFile, FilesError> {
    text_embeddings_checkpoint::open(path).map_err(FilesError::Weights)
}

/// Describes the weight files `checkpoints`; `None` if there are none.
pub(super) fn stored(checkpoints: &[CheckpointFile]) -> Option<StoredWeights> {
    let format = checkpoints.first()?.format;
    let mut counts = BTreeMap::<&'static str, u64>::new();
    let mut bytes = 0_u64;
    for tensor in checkpoints.iter().flat_map(|checkpoint| checkpoint.tensors.values()) {
        let (encoding, values) = (tensor.encoding(), (tensor.rows() * tensor.columns()) as u64);
        let size = if encoding.is_quantised() { 4 } else { encoding.bytes as u64 };
        *counts.entry(encoding.name).or_default() += values;
        bytes = bytes.saturating_add(values.saturating_mul(size));
    }
    let mut types: Vec<_> = counts.into_iter().collect();
    types.sort_by_key(|(_, values)| std::cmp::Reverse(*values));
    Some(StoredWeights { format, types: types.into_iter().map(|(name, _)| name).collect(), bytes })
}

/// Checks that a file other than weights is a regular file of plausible length and not a Git LFS pointer.
pub(super) fn check_small_file(path: &Path) -> Result<(), FilesError> {
    let unreadable = |error| FilesError::io(path, error);
    let mut start = Vec::new();
    let (file, length) = reading::open(path)?;
    let longest = reading::longest(&path.file_name().unwrap_or_default().to_string_lossy());
    if length > longest {
        return Err(FilesError::TooLong { file: path.display().to_string(), longest });
    }
    file.take(reading::LFS_BYTES).read_to_end(&mut start).map_err(unreadable)?;
    if reading::is_lfs_pointer(&start) { Err(FilesError::LfsPointer { path: path.into() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test should stop here")]
    use super::super::fake_hub::safetensors;
    use super::*;

    #[test]
    fn only_a_whole_file_passes() {
        let whole = safetensors(64);
        let cut_header = whole[..20].to_vec();
        let mut longer = whole.clone();
        longer.push(0);
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n".to_vec();
        let mut garbled = whole.clone();
        garbled[9] = b'!';
        let table: [(&[u8], &str); 8] = [
            (&whole, ""),
            (&whole[..whole.len() - 1], "where its header promises"),
            (&cut_header, "where its header promises"),
            (&longer, "where its header promises"),
            (&pointer, "git lfs pull"),
            (&garbled, "header is not readable"),
            (b"<html>an error page</html>", "does not start with a safetensors header"),
            (b"abc", "only 3 bytes"),
        ];
        for (content, expected) in table {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model.safetensors");
            std::fs::write(&path, content).unwrap();
            let message = check_weights(&path).err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(message.is_empty(), expected.is_empty(), "{message}");
            assert!(message.contains(expected), "{message}");
            assert!(message.is_empty() || message.contains("model.safetensors"), "{message}");
        }
    }

    #[test]
    fn an_index_cannot_lead_out_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join(LAYOUTS[0].index);
        for name in ["../other.safetensors", "/etc/passwd", "", "pytorch_model.bin"] {
            std::fs::write(&index, serde_json::json!({ "weight_map": { "w": name } }).to_string()).unwrap();
            let message = shards(&index).err().unwrap().to_string();
            assert!(
                message.contains(LAYOUTS[0].index) && message.contains(&format!("{name:?}")),
                "{message}"
            );
        }
        std::fs::write(&index, r#"{"weight_map":{}}"#).unwrap();
        assert!(shards(&index).err().unwrap().to_string().contains("empty"));
    }

    #[test]
    fn safetensors_go_before_pickles_and_these_before_gguf() {
        type Case<'a> = (&'a [&'a str], Option<&'a str>, Result<Selection, &'a str>);
        let table: [Case<'_>; 11] = [
            (
                &["a.gguf", "model.safetensors", "pytorch_model.bin"],
                None,
                Ok(Selection::File("model.safetensors".to_owned())),
            ),
            (
                &["model.safetensors.index.json", "pytorch_model.bin"],
                None,
                Ok(Selection::Shards("model.safetensors.index.json".to_owned())),
            ),
            (&["a.gguf", "pytorch_model.bin"], None, Ok(Selection::File("pytorch_model.bin".to_owned()))),
            (
                &["pytorch_model.bin.index.json", "model.onnx"],
                None,
                Ok(Selection::Shards("pytorch_model.bin.index.json".to_owned())),
            ),
            (&["a.gguf", "mmproj-a.gguf"], None, Ok(Selection::Gguf("a.gguf".to_owned()))),
            (&["a.gguf", "b/c.GGUF"], None, Err("`--gguf-file`: a.gguf, b/c.GGUF")),
            (&["a.gguf", "b/c.GGUF"], Some("b/c.GGUF"), Ok(Selection::Gguf("b/c.GGUF".to_owned()))),
            (&["a.gguf", "model.safetensors"], Some("a.gguf"), Ok(Selection::Gguf("a.gguf".to_owned()))),
            (&["a.gguf"], Some("b.gguf"), Err("its GGUF files: a.gguf")),
            (&["model.safetensors"], Some("model.safetensors"), Err("its GGUF files: none")),
            (&["tf_model.h5"], None, Err("format of `tf_model.h5`")),
        ];
        for (names, gguf_file, expected) in table {
            let owned: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let reader = Reader { gguf_file: gguf_file.map(str::to_owned), ..Reader::default() };
            match (select("there", &owned, &reader), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{names:?}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{names:?}: {error}"),
                (found, expected) => panic!("{names:?}: {found:?}, not {expected:?}"),
            }
        }
    }
}
