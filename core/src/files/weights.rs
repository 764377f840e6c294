//! Finds a model's weight files, and checks that each is complete.
//!
//! Input: the names of a model's files. Output: its weight files in the order of their names: safetensors if
//! it has them, otherwise `PyTorch`'s pickles, otherwise GGUF. What must hold: every resulting file exists,
//! is not a Git LFS pointer, and has the length that its header states. So a broken download is found here,
//! not later by strange numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::Value;
use text_embeddings_backend_core::BackendKind;
use text_embeddings_checkpoint::{CheckpointFile, Format, ModelFile};

use super::error::FilesError;
use super::names::{Bound, LAYOUTS, is_gguf, is_graph};
use super::onnx;
use super::reading::{FileText, read_text};
use super::repository::Repository;
use super::source::Reader;

/// The prefix of GGUF files that contain an image encoder and no text model.
const PROJECTOR: &str = "mmproj";

/// Weights in formats that this server does not read.
const OTHER_FORMATS: [&str; 4] = [".onnx", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"];

/// The remedy for a model without known weights.
pub(super) const NEEDS_WEIGHTS: &str = "this server reads weights as model.safetensors, as pytorch_model.bin (both also in several \
                             files with their index) and as one .gguf file; convert the model, or choose another \
                             repository or `--revision`";

/// The fields of `model.safetensors.index.json` and of similar files.
#[derive(Deserialize)]
struct Index {
    metadata: Option<Value>,
    weight_map: BTreeMap<String, String>,
}

/// The weight files of a model with an index.
struct Shards {
    /// The files in the order of their names. Each is a plain file name in the index's folder.
    names: BTreeSet<String>,
    /// The most bytes of all files together, by the index.
    max_bytes: u64,
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
    /// The weights if `--model-id` (`model_id`) is a file.
    pub(super) fn new(model_id: &str, file: String, reader: &Reader) -> Result<Self, FilesError> {
        let selection = if is_gguf(&file) { Self::Gguf(file.clone()) } else { Self::File(file.clone()) };
        match (reader.backend, &selection, &reader.gguf_file) {
            (_, _, Some(flag)) if *flag != file => {
                Err(FilesError::TwoFiles { model_id: model_id.to_owned(), file: flag.clone() })
            }
            (BackendKind::Candle, ..) => Ok(selection),
            (backend, Self::Gguf(_), _) => Err(FilesError::GgufForAnother { file, backend }),
            // Other backends choose among the files of a folder themselves.
            _ => Err(FilesError::NotADirectory { model_id: model_id.to_owned() }),
        }
    }
}

/// Selects the weights for a backend. The selected files may be missing; [`open_weights`] finds that out.
pub(super) fn select(repository: &Repository<'_>, reader: &Reader) -> Result<Selection, FilesError> {
    let mut names = repository.names();
    // The user may name a file in a subfolder. The server does not search there.
    names.extend(reader.gguf_file.iter().filter(|name| repository.has(name)).cloned());
    select_among(&repository.place(), &names, reader)
}

/// Selects the weights for a backend among the files `names` of `place`. If the user names a GGUF file,
/// selects that file.
fn select_among(place: &str, names: &[String], reader: &Reader) -> Result<Selection, FilesError> {
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
    let ggufs: Vec<&str> = names
        .iter()
        .filter(|name| is_gguf(name) && !name.rsplit('/').next().unwrap_or(name).starts_with(PROJECTOR))
        .map(String::as_str)
        .collect();
    let found = || if ggufs.is_empty() { "none".to_owned() } else { ggufs.join(", ") };
    if let Some(name) = gguf_file {
        if has(name) && is_gguf(name) {
            return Ok(Selection::Gguf(name.to_owned()));
        }
        let message = format!("{place} has no GGUF file `{name}`; its GGUF files: {}", found());
        return Err(FilesError::NoGguf(message));
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
        [] => Err(no_weights(place, names)),
        [only] => Ok(Selection::Gguf(only.to_owned())),
        _ => Err(FilesError::NoGguf(format!(
            "{place} has several GGUF files, and `--model-id` names none of them; choose one with `--gguf-file`: {}",
            found()
        ))),
    }
}

/// Opens the files of a selection, in the order of their names. [`check_weights`] checks their content.
pub(super) async fn open_weights(
    repository: &Repository<'_>,
    selection: &Selection,
) -> Result<Vec<ModelFile>, FilesError> {
    match selection {
        Selection::Graph(graph) => onnx::open_graph(repository, graph).await,
        Selection::File(name) | Selection::Gguf(name) => {
            Ok(vec![repository.require(name, Bound::ANY, NEEDS_WEIGHTS).await?])
        }
        Selection::Shards(index) => {
            let index = repository.require(index, Bound::Small, NEEDS_WEIGHTS).await?;
            open_shards(repository, &read_text(&index)?).await
        }
    }
}

async fn open_shards(repository: &Repository<'_>, index: &FileText) -> Result<Vec<ModelFile>, FilesError> {
    let Shards { names, mut max_bytes } = shards(index)?;
    if let Some(missing) = names.iter().find(|name| !repository.has(name)) {
        let remedy = "the index of the weights names it; download all shards of the model again";
        return Err(repository.missing(missing, remedy));
    }
    let mut files = Vec::with_capacity(names.len());
    for name in &names {
        let file = repository.require(name, Bound::Weights(max_bytes), NEEDS_WEIGHTS).await?;
        let length = file.length().map_err(|error| FilesError::io(file.path(), error))?;
        max_bytes = max_bytes.saturating_sub(length);
        files.push(file);
    }
    Ok(files)
}

/// The error for a folder or repository with these files, but without weights that this server reads.
fn no_weights(place: &str, files: &[String]) -> FilesError {
    if let Some(found) = files.iter().find(|name| is_graph(name)) {
        return FilesError::NoWeights(format!(
            "the weights in {place} are in ONNX ({found}), which `--backend candle` does not read: give \
             `--backend ort`, in a build with the feature `ort`"
        ));
    }
    if let Some(found) = files.iter().find(|name| OTHER_FORMATS.iter().any(|end| name.ends_with(end))) {
        return FilesError::NoWeights(format!(
            "the weights in {place} are in the format of `{found}`, but this server reads safetensors, PyTorch's and \
             GGUF files only: choose another repository or `--revision`, or convert them, by loading the model with \
             transformers and `save_pretrained(folder)`"
        ));
    }
    let (place, file) = (place.to_owned(), LAYOUTS[0].single.to_owned());
    FilesError::Missing { place, file, remedy: NEEDS_WEIGHTS }
}

fn shards(index: &FileText) -> Result<Shards, FilesError> {
    let Index { metadata, weight_map } = index.parse()?;
    let name = index.path.file_name().unwrap_or_default().to_string_lossy();
    let ending =
        LAYOUTS.iter().find(|layout| layout.index == name).map_or(".safetensors", |layout| layout.ending);
    let names: BTreeSet<String> = weight_map.into_values().collect();
    let damaged = |reason: String| FilesError::Damaged { path: index.path.clone(), reason };
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
    let max_bytes =
        stated.map_or(u64::MAX, |stated| ((stated * STATED_TIMES) as u64).saturating_add(allowance));
    Ok(Shards { names, max_bytes })
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
pub(super) fn check_weights(file: &ModelFile) -> Result<CheckpointFile, FilesError> {
    text_embeddings_checkpoint::open(file.clone()).map_err(FilesError::Weights)
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
            let message =
                check_weights(&path.into()).err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(message.is_empty(), expected.is_empty(), "{message}");
            assert!(message.contains(expected), "{message}");
            assert!(message.is_empty() || message.contains("model.safetensors"), "{message}");
        }
    }

    #[test]
    fn an_index_cannot_lead_out_of_its_folder() {
        let index = |map: &str| FileText {
            path: LAYOUTS[0].index.into(),
            text: format!(r#"{{"weight_map":{map}}}"#),
        };
        for name in ["../other.safetensors", "/etc/passwd", "", "pytorch_model.bin"] {
            let message =
                shards(&index(&serde_json::json!({ "w": name }).to_string())).err().unwrap().to_string();
            assert!(
                message.contains(LAYOUTS[0].index) && message.contains(&format!("{name:?}")),
                "{message}"
            );
        }
        assert!(shards(&index("{}")).err().unwrap().to_string().contains("empty"));
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
            match (select_among("there", &owned, &reader), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{names:?}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{names:?}: {error}"),
                (found, expected) => panic!("{names:?}: {found:?}, not {expected:?}"),
            }
        }
    }
}
