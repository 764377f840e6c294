//! Which ONNX file of a model is its weights, and which files belong to it.
//!
//! Input: the names of a repository's or folder's files, and `--onnx-file`. Output: the graph's name, and the names of the
//! files of values beside it. What must hold: of several graphs none is taken by a guess; every name that comes out is among
//! those that went in.

use std::path::Path;

use super::error::FilesError;

/// The folder in which exported models are.
const FOLDER: &str = "onnx/";
/// Graphs that are taken without being named, in this order.
const USUAL: [&str; 2] = ["onnx/model.onnx", "model.onnx"];
const ENDING: &str = ".onnx";
/// What exporters put behind a graph's name for the values that do not fit into it.
const VALUES: [&str; 2] = ["_data", ".data"];

/// Whether a file is a graph in one of the two folders where models have them.
pub(super) fn is_graph(name: &str) -> bool {
    name.ends_with(ENDING) && !name.strip_prefix(FOLDER).unwrap_or(name).contains('/')
}

/// The graph among `names`: the one that `asked` names, by its path or by its name in the folder `onnx`; else
/// `onnx/model.onnx`, `model.onnx`, or the only one that there is. `place` is the folder or repository, for messages.
///
/// # Errors
///
/// [`FilesError::NoOnnx`] if there is none, or not this one; [`FilesError::SeveralOnnx`] if there are several and none is
/// asked for.
pub(super) fn choose(
    names: impl IntoIterator<Item = String>,
    asked: Option<&str>,
    place: &str,
) -> Result<String, FilesError> {
    let mut graphs: Vec<String> = names.into_iter().filter(|name| is_graph(name)).collect();
    graphs.sort();
    let has = |name: &str| graphs.iter().any(|graph| graph == name);
    let found = match asked {
        Some(asked) => [asked.to_owned(), format!("{FOLDER}{asked}")].into_iter().find(|name| has(name)),
        None => USUAL.into_iter().map(str::to_owned).find(|name| has(name)),
    };
    match (found, asked, graphs.as_slice()) {
        (Some(found), _, _) => Ok(found),
        (None, None, [only]) => Ok(only.clone()),
        (None, None, [_, _, ..]) => {
            Err(FilesError::SeveralOnnx { place: place.to_owned(), graphs: graphs.join(", ") })
        }
        (None, _, _) => Err(FilesError::NoOnnx {
            place: place.to_owned(),
            asked: asked.map_or_else(|| "ONNX file".to_owned(), |asked| format!("ONNX file `{asked}`")),
            graphs: if graphs.is_empty() { "none".to_owned() } else { graphs.join(", ") },
        }),
    }
}

/// The files of values that belong to a graph, by their names: `model.onnx_data`, `model.onnx_data_1`, `model.onnx.data`.
pub(super) fn values<'a>(graph: &'a str, names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let belongs = |name: &&String| {
        let rest = name.strip_prefix(graph);
        rest.is_some_and(|rest| !rest.contains('/') && VALUES.iter().any(|start| rest.starts_with(start)))
    };
    names.filter(belongs).collect()
}

/// The names of the files of the model folder `root` and of its folder of exported models, each in order.
pub(super) fn names(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["", FOLDER] {
        let entries = std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        let below = entries.map(|entry| format!("{folder}{}", entry.file_name().to_string_lossy()));
        let mut below: Vec<String> = below.collect();
        below.sort();
        names.extend(below);
    }
    names
}

#[cfg(test)]
mod tests {
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
    fn values_are_beside_their_graph() {
        let files = names(&[
            "onnx/model.onnx",
            "onnx/model.onnx_data",
            "onnx/model.onnx_data_1",
            "onnx/model.onnx.data",
            "onnx/model_fp16.onnx_data",
            "model.onnx_data",
            "onnx/model.onnx_data/x",
        ]);
        let expected = ["onnx/model.onnx_data", "onnx/model.onnx_data_1", "onnx/model.onnx.data"];
        assert_eq!(values("onnx/model.onnx", files.iter()), expected);
        assert_eq!(values("model.onnx", files.iter()), ["model.onnx_data"]);
    }
}
