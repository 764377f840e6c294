//! Which weight files a model has, and whether each is whole.
//!
//! Input: a model folder. Output: its safetensors files in name order. What must hold: every file that is handed on
//! exists, is no Git LFS pointer, and is exactly as long as its header says, so that a broken download is found here
//! and not as an odd number later.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use text_embeddings_backend_core::BackendKind;

use super::config::read_json;
use super::error::FilesError;
use super::onnx;
use super::python;
use super::reading;
use super::source::Reader;

/// The weights of a model in one file.
pub(super) const SINGLE_FILE: &str = "model.safetensors";
/// The list of the weight files of a model in several.
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

const LFS_PREFIX: &[u8] = b"version https://git-lfs";
/// The header length stands in the first eight bytes, little-endian.
const LENGTH_BYTES: u64 = 8;
/// The format's own limit on a header.
const LONGEST_HEADER: u64 = 100_000_000;

/// Weights in other formats.
const OTHER_FORMATS: [&str; 7] = [
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    ".onnx",
    ".gguf",
    "tf_model.h5",
    "flax_model.msgpack",
    "rust_model.ot",
];

/// What to do about a model without weights that are known.
const NEEDS_SAFETENSORS: &str = "this server reads only safetensors weights (model.safetensors, or \
                                 model.safetensors.index.json with its shards); convert the model, or choose another \
                                 repository or `--revision`";

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: Option<Value>,
    weight_map: BTreeMap<String, String>,
}

/// What a model in several files consists of.
pub(super) struct Shards {
    /// The files, in name order; each is a plain file name below the index's folder.
    pub(super) names: BTreeSet<String>,
    /// The most bytes of all of them together, by the index's own account.
    pub(super) most: u64,
}

/// How many times the bytes that an index states its shards may have. The statement is often of another type of numbers
/// than that in which the weights are stored, and it leaves out shared tensors and headers.
const STATED_TIMES: f64 = 4.0;
/// What is added to that for headers, in bytes for each shard.
const SHARD_ALLOWANCE: u64 = 16 << 20;

/// One tensor of a safetensors header; its type is the backend's business.
#[derive(Deserialize)]
struct Tensor {
    #[serde(default)]
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A header entry: a tensor, or the free text under `__metadata__`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Tensor(Tensor),
    Other(IgnoredAny),
}

/// The files of the model folder `root` that a backend reads weights from, in name order. They exist; [`check_weights`]
/// looks into safetensors.
pub(super) fn weight_files(root: &Path, reader: &Reader) -> Result<Vec<PathBuf>, FilesError> {
    match reader.backend {
        BackendKind::Ort => onnx::graph_files(root, reader.onnx_file.as_deref()),
        BackendKind::Candle => safetensors_files(root),
        BackendKind::Python => match python::pickle(root) {
            // As transformers, which prefers safetensors.
            Some(pickle) if !root.join(SINGLE_FILE).exists() && !root.join(INDEX_FILE).exists() => {
                Ok(vec![pickle])
            }
            _ => safetensors_files(root),
        },
    }
}

fn safetensors_files(root: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let single = root.join(SINGLE_FILE);
    if single.exists() {
        return Ok(vec![single]);
    }
    let index = root.join(INDEX_FILE);
    if !index.exists() {
        return Err(no_weights(format!("{}", root.display()), onnx::names(root)));
    }
    let mut files = Vec::new();
    for name in shards(&index)?.names {
        let path = root.join(&name);
        if !path.exists() {
            return Err(missing_shard(format!("{}", root.display()), name));
        }
        files.push(path);
    }
    Ok(files)
}

/// The error for a folder or repository without safetensors weights, which has these files.
pub(super) fn no_weights(place: String, files: impl IntoIterator<Item = String>) -> FilesError {
    let files: Vec<String> = files.into_iter().collect();
    if let Some(found) = files.iter().find(|name| onnx::is_graph(name)) {
        return FilesError::OnlyOnnx { place, found: found.clone() };
    }
    let is_weights = |name: &String| OTHER_FORMATS.iter().any(|ending| name.ends_with(ending));
    match files.into_iter().find(is_weights) {
        Some(found) => FilesError::OtherWeights { place, found },
        None => FilesError::Missing { place, file: SINGLE_FILE.to_owned(), remedy: NEEDS_SAFETENSORS },
    }
}

/// The error for a shard that the index names and `place` lacks.
pub(super) fn missing_shard(place: String, file: String) -> FilesError {
    let remedy = "model.safetensors.index.json names it; download the model again, all shards of it";
    FilesError::Missing { place, file, remedy }
}

/// The shards that an index names.
pub(super) fn shards(index: &Path) -> Result<Shards, FilesError> {
    let Index { metadata, weight_map } = read_json(index)?;
    let names: BTreeSet<String> = weight_map.into_values().collect();
    let damaged = |reason: String| FilesError::Damaged { path: index.into(), reason };
    if names.is_empty() {
        return Err(damaged("its weight_map is empty".to_owned()));
    }
    for name in &names {
        let stays_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !stays_inside || !name.ends_with(".safetensors") {
            return Err(damaged(format!("it names {name:?}, which is no safetensors file of this model")));
        }
    }
    let stated = metadata.as_ref().and_then(|metadata| metadata["total_size"].as_f64());
    let allowance = SHARD_ALLOWANCE.saturating_mul(names.len() as u64);
    let most = stated.map_or(u64::MAX, |stated| ((stated * STATED_TIMES) as u64).saturating_add(allowance));
    Ok(Shards { names, most })
}

/// A safetensors file's header, and the length of the file.
struct Header {
    entries: BTreeMap<String, Entry>,
    /// Where the data begin.
    end: u64,
    /// The length of the file.
    actual: u64,
}

/// Checks that a safetensors file is whole: its length is that of header and data together.
pub(super) fn check_weights(path: &Path) -> Result<(), FilesError> {
    let Header { entries, end, actual } = header(path)?;
    let data = data_end(&entries).map_err(|reason| FilesError::Damaged { path: path.into(), reason })?;
    let expected = end.saturating_add(data);
    if actual == expected {
        return Ok(());
    }
    Err(FilesError::WrongLength { path: path.into(), expected, actual })
}

/// The shape of the tensor `name`, if one of the safetensors files has it. Reads headers only.
pub(super) fn tensor_shape(files: &[PathBuf], name: &str) -> Result<Option<Vec<u64>>, FilesError> {
    for path in files {
        if let Some(Entry::Tensor(tensor)) = header(path)?.entries.remove(name) {
            return Ok(Some(tensor.shape));
        }
    }
    Ok(None)
}

/// Reads a safetensors file's header.
fn header(path: &Path) -> Result<Header, FilesError> {
    let unreadable = |error| FilesError::io(path, error);
    let damaged = |reason: String| FilesError::Damaged { path: path.into(), reason };
    let (mut file, actual) = reading::open(path)?;
    let mut start = Vec::new();
    file.by_ref().take(LENGTH_BYTES).read_to_end(&mut start).map_err(unreadable)?;
    if LFS_PREFIX.starts_with(&start) && start.len() == LENGTH_BYTES as usize {
        return Err(FilesError::LfsPointer { path: path.into() });
    }
    let Ok(length) = <[u8; LENGTH_BYTES as usize]>::try_from(start) else {
        return Err(damaged(format!("it has only {actual} bytes, too few for a safetensors header")));
    };
    let header_length = u64::from_le_bytes(length);
    if header_length > LONGEST_HEADER {
        return Err(damaged("it does not start with a safetensors header".to_owned()));
    }
    let header_end = LENGTH_BYTES + header_length;
    if actual < header_end {
        return Err(FilesError::WrongLength { path: path.into(), expected: header_end, actual });
    }
    let mut header = Vec::new();
    file.take(header_length).read_to_end(&mut header).map_err(unreadable)?;
    let entries: BTreeMap<String, Entry> = serde_json::from_slice(&header)
        .map_err(|error| damaged(format!("its safetensors header is not readable: {error}")))?;
    Ok(Header { entries, end: header_end, actual })
}

/// The number of data bytes that the tensors of a header span.
fn data_end(entries: &BTreeMap<String, Entry>) -> Result<u64, String> {
    let mut end = 0;
    for (name, entry) in entries {
        match entry {
            Entry::Tensor(tensor) => end = end.max(tensor.data_offsets.1),
            Entry::Other(_) if name == "__metadata__" => {}
            Entry::Other(_) => return Err(format!("the header's entry `{name}` has no data_offsets")),
        }
    }
    Ok(end)
}

/// Checks that a file other than safetensors is a file of possible length, and no Git LFS pointer.
pub(super) fn check_small_file(path: &Path) -> Result<(), FilesError> {
    let unreadable = |error| FilesError::io(path, error);
    let mut start = Vec::new();
    let (file, length) = reading::open(path)?;
    let longest = reading::longest(&path.file_name().unwrap_or_default().to_string_lossy());
    if length > longest {
        return Err(FilesError::TooLong { file: path.display().to_string(), longest });
    }
    file.take(LFS_PREFIX.len() as u64).read_to_end(&mut start).map_err(unreadable)?;
    if starts_as_lfs_pointer(&start) { Err(FilesError::LfsPointer { path: path.into() }) } else { Ok(()) }
}

/// Whether a file's first bytes are those of a Git LFS pointer.
pub(super) fn starts_as_lfs_pointer(start: &[u8]) -> bool {
    start.starts_with(LFS_PREFIX)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
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
        let index = folder.path().join(INDEX_FILE);
        for name in ["../other.safetensors", "/etc/passwd", "", "pytorch_model.bin"] {
            std::fs::write(&index, serde_json::json!({ "weight_map": { "w": name } }).to_string()).unwrap();
            let message = shards(&index).err().unwrap().to_string();
            assert!(message.contains(INDEX_FILE) && message.contains(&format!("{name:?}")), "{message}");
        }
        std::fs::write(&index, r#"{"weight_map":{}}"#).unwrap();
        assert!(shards(&index).err().unwrap().to_string().contains("empty"));
    }
}
