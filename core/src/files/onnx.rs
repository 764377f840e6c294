//! Finds the ONNX file with a model's weights, and the files that belong to it.
//!
//! Input: the names of the files in a repository or folder, and `--onnx-file`. Output: the graph's name, and
//! the names of its external files of values. What must hold: if there are several graphs, none is chosen by
//! a guess; every resulting name is one of the input names.

use std::io::Read;
use std::path::Path;

use text_embeddings_backend_core::{Graph, read_graph};
use text_embeddings_checkpoint::ModelFile;

use super::error::FilesError;
use super::names::{Bound, ONNX_FOLDER, is_graph, stays_below};
use super::reading;
use super::repository::Repository;

/// Graphs that need not be named, in the order of preference.
const USUAL: [&str; 2] = ["onnx/model.onnx", "model.onnx"];

/// Chooses a graph among `names`: the one that `asked` names, by its path or by its name in the folder
/// `onnx`; otherwise `onnx/model.onnx`, `model.onnx`, or the only one. Messages show `place`, the folder or
/// repository.
pub(super) fn choose(
    names: impl IntoIterator<Item = String>,
    asked: Option<&str>,
    place: &str,
) -> Result<String, FilesError> {
    let mut graphs: Vec<String> = names.into_iter().filter(|name| is_graph(name)).collect();
    graphs.sort();
    let has = |name: &str| graphs.iter().any(|graph| graph == name);
    let found = match asked {
        Some(asked) => [asked.to_owned(), format!("{ONNX_FOLDER}{asked}")].into_iter().find(|name| has(name)),
        None => USUAL.into_iter().map(str::to_owned).find(|name| has(name)),
    };
    let all = graphs.join(", ");
    let problem = match (found, asked, graphs.as_slice()) {
        (Some(found), _, _) => return Ok(found),
        (None, None, [only]) => return Ok(only.clone()),
        (None, None, [_, _, ..]) => {
            format!("several ONNX files ({all}): name one of them with `--onnx-file`")
        }
        (None, _, _) => {
            let name = asked.map(|asked| format!(" `{asked}`")).unwrap_or_default();
            let there = if graphs.is_empty() { "none" } else { &all };
            format!(
                "no ONNX file{name} (there: {there}): `--backend ort` reads onnx/model.onnx, model.onnx or the file that \
                 `--onnx-file` names; leave `--backend` out to read safetensors"
            )
        }
    };
    Err(FilesError::NoWeights(format!("{place} has {problem}")))
}

/// The facts in the file of a graph.
pub(super) fn read(path: &Path) -> Result<Graph, FilesError> {
    let (mut file, _) = reading::open(path)?;
    let mut start = Vec::new();
    (&mut file)
        .take(reading::LFS_BYTES)
        .read_to_end(&mut start)
        .map_err(|error| FilesError::io(path, error))?;
    if reading::is_lfs_pointer(&start) {
        return Err(FilesError::LfsPointer { path: path.into() });
    }
    read_graph(file).map_err(|reason| FilesError::Damaged { path: path.into(), reason })
}

/// The names of a graph's external files of values, as files of the repository. They are in the graph's
/// folder or below it.
fn values(graph: &str, path: &Path) -> Result<Vec<String>, FilesError> {
    let folder = graph.rsplit_once('/').map(|(folder, _)| format!("{folder}/")).unwrap_or_default();
    read(path)?
        .values
        .into_iter()
        .map(|name| {
            if stays_below(&name) {
                return Ok(format!("{folder}{name}"));
            }
            let reason = format!("it names {name:?}, which cannot be a file of values next to it");
            Err(FilesError::Damaged { path: path.into(), reason })
        })
        .collect()
}

/// Opens a graph and its external files of values.
pub(super) async fn open_graph(
    repository: &Repository<'_>,
    graph: &str,
) -> Result<Vec<ModelFile>, FilesError> {
    let remedy = "the ONNX file names it; download all files of the model again";
    let file = repository.require(graph, Bound::ANY, remedy).await?;
    let names = values(graph, file.path())?;
    let mut files = vec![file];
    for name in names {
        files.push(repository.require(&name, Bound::ANY, remedy).await?);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::super::reading::run_ready;
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_usual_graph_the_only_one_or_the_one_that_is_asked_for() {
        let table: [(&[&str], Option<&str>, &str); 11] = [
            (&["onnx/model.onnx", "model.onnx", "onnx/model_int8.onnx"], None, "onnx/model.onnx"),
            (&["config.json", "model.onnx", "onnx/model_int8.onnx"], None, "model.onnx"),
            (&["onnx/model_O4.onnx"], None, "onnx/model_O4.onnx"),
            (&["onnx/model.onnx", "onnx/model_int8.onnx"], Some("model_int8.onnx"), "onnx/model_int8.onnx"),
            (
                &["onnx/model.onnx", "onnx/model_int8.onnx"],
                Some("onnx/model_int8.onnx"),
                "onnx/model_int8.onnx",
            ),
            (&["onnx/model.onnx", "model.onnx"], Some("model.onnx"), "model.onnx"),
            (&["onnx/a.onnx", "onnx/b.onnx"], None, "several ONNX files (onnx/a.onnx, onnx/b.onnx)"),
            (&["model.safetensors"], None, "no ONNX file"),
            (&["openvino/model.onnx"], None, "no ONNX file"),
            (
                &["onnx/model.onnx"],
                Some("model_q4.onnx"),
                "no ONNX file `model_q4.onnx` (there: onnx/model.onnx)",
            ),
            (&["onnx/model.onnx"], Some("../model.onnx"), "no ONNX file `../model.onnx`"),
        ];
        for (files, asked, expected) in table {
            let found = choose(names(files), asked, "the repository");
            let found = found.unwrap_or_else(|error| error.to_string());
            assert!(
                found == expected || found.contains(expected) && found.contains("the repository"),
                "{found}"
            );
        }
    }

    #[test]
    fn values_are_files_beside_their_graph() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir(root.join("onnx")).unwrap();
        let graph = root.join("onnx/model.onnx");
        let write = |values: &[&str]| std::fs::write(&graph, super::super::fake_hub::graph(values)).unwrap();
        let files = || {
            let repository = Repository::Folder(root.to_owned());
            let found = run_ready(open_graph(&repository, "onnx/model.onnx"))?;
            Ok(found
                .iter()
                .map(|file| file.path().strip_prefix(root).unwrap().display().to_string())
                .collect::<Vec<_>>())
        };
        write(&[]);
        assert_eq!(files().unwrap(), ["onnx/model.onnx"]);
        write(&["model.onnx_data", "b"]);
        std::fs::write(root.join("onnx/b"), "").unwrap();
        let message = files().map_err(|error: FilesError| error.to_string()).unwrap_err();
        assert!(message.contains("`onnx/model.onnx_data` is missing"), "{message}");
        std::fs::write(root.join("onnx/model.onnx_data"), "").unwrap();
        assert_eq!(files().unwrap(), ["onnx/model.onnx", "onnx/b", "onnx/model.onnx_data"]);
        for hostile in ["../config.json", "/etc/passwd", "", "a/../../b"] {
            write(&[hostile]);
            let message = files().map_err(|error: FilesError| error.to_string()).unwrap_err();
            assert!(
                message.contains("cannot be a file of values") && message.contains("model.onnx"),
                "{message}"
            );
        }
        for (content, part) in [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0".to_vec(), "git lfs pull"),
            (super::super::fake_hub::graph(&["b"])[..20].to_vec(), "is damaged"),
            (Vec::new(), "is damaged (it holds no graph"),
        ] {
            std::fs::write(&graph, content).unwrap();
            let message = files().map_err(|error: FilesError| error.to_string()).unwrap_err();
            assert!(message.contains(part) && message.contains("model.onnx"), "{message}");
        }
    }
}
