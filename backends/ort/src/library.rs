//! Finds and loads ONNX Runtime's library, and keeps the one environment per process.
//!
//! Input: `ORT_DYLIB_PATH`, `VIRTUAL_ENV` and the path of the binary. Output: the environment. What must
//! hold: the library is loaded once; if it is missing or too old, the error is one sentence that says how to
//! install another.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use ort::{LoadDynamicError, environment::Environment, logging::LogLevel};
use text_embeddings_backend_core::BackendError;

/// The variable with the path of the library.
const VARIABLE: &str = "ORT_DYLIB_PATH";
/// The remedy for a missing or unusable library.
const REMEDY: &str = "install it with `pip install onnxruntime` in the virtual environment that the server is started in, or \
                      name the file libonnxruntime.so in the variable ORT_DYLIB_PATH";

/// The most characters that errors show of a message from ONNX Runtime.
const MAX_MESSAGE: usize = 300;

/// The environment, and a text with the library's version and path.
pub(crate) struct Runtime {
    pub(crate) environment: Environment,
    pub(crate) library: String,
}

/// Loads the library on the first call that succeeds. Later calls return the same environment.
pub(crate) fn runtime() -> Result<Arc<Runtime>, BackendError> {
    static RUNTIME: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.clone());
    }
    let path = find(|name| env::var(name).ok(), env::current_exe().ok().as_deref());
    let builder = ort::init_from(&path).map_err(|error| BackendError::Load(unusable(&path, &error)))?;
    let environment = builder
        .with_name("text-embeddings-router")
        .with_telemetry(false)
        // Failures are returned as errors. All other messages are for the debug log.
        .with_logger(Arc::new(|_: LogLevel, category: &str, _: &str, place: &str, message: &str| {
            tracing::debug!("ONNX Runtime, {category} at {place}: {}", line(message));
        }))
        .build()
        .map_err(|error| {
            BackendError::Load(format!("ONNX Runtime does not start: {}", line(&error.to_string())))
        })?;
    environment.set_log_level(LogLevel::Warning);
    let loaded = Arc::new(Runtime { environment, library: words(ort::info(), &path) });
    *runtime = Some(loaded.clone());
    Ok(loaded)
}

/// The path of the library: from `ORT_DYLIB_PATH`, next to the binary, in the Python environment that
/// contains the binary, or in the active one. Otherwise the bare file name, which the system's loader
/// resolves.
fn find(variable: impl Fn(&str) -> Option<String>, binary: Option<&Path>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set(VARIABLE) {
        // The crate `ort` would resolve a relative path from the binary's folder.
        return fs::canonicalize(&path).unwrap_or(path);
    }
    let folder = binary.and_then(Path::parent);
    let environments = [folder.and_then(Path::parent).map(Path::to_owned), set("VIRTUAL_ENV")];
    let in_python = environments.into_iter().flatten().flat_map(|root| packages(&root));
    let mut folders = folder.map(Path::to_owned).into_iter().chain(in_python);
    folders.find_map(|folder| library_in(&folder)).unwrap_or_else(|| {
        PathBuf::from(format!("{}onnxruntime{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX))
    })
}

/// The folders of a Python environment that may hold the library of the package `onnxruntime`.
fn packages(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = entries(&root.join("lib"))
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python")))
        .map(|path| path.join("site-packages/onnxruntime/capi"))
        .collect();
    found.sort();
    found
}

/// The newest library in a folder: `libonnxruntime.so`, with or without a version before or after the ending.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let start = format!("{}onnxruntime.", env::consts::DLL_PREFIX);
    let mut found: Vec<PathBuf> = entries(folder)
        .into_iter()
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.strip_prefix(&start)
                .is_some_and(|rest| rest.split('.').any(|part| part == env::consts::DLL_EXTENSION))
        })
        .collect();
    found.sort();
    found.pop()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn unusable(path: &Path, error: &LoadDynamicError) -> String {
    let path = path.display();
    match error {
        LoadDynamicError::BadVersion { version_str, .. } => format!(
            "ONNX Runtime at {path} is version {}, but `--backend ort` needs 1.{} or newer: {REMEDY}",
            line(version_str),
            ort::MINOR_VERSION
        ),
        LoadDynamicError::Dlopen { error, .. } => {
            format!(
                "`--backend ort` cannot load ONNX Runtime from {path} ({}): {REMEDY}",
                line(&error.to_string())
            )
        }
        LoadDynamicError::MissingApi { .. } | LoadDynamicError::InvalidVersionString => {
            format!("{path} is not ONNX Runtime's library: {REMEDY}")
        }
    }
}

/// `ONNX Runtime 1.31.1 at PATH`. The version comes from the library's build description, otherwise from its
/// file name.
fn words(build: &str, path: &Path) -> String {
    let branch = build.split("git-branch=rel-").nth(1).and_then(|rest| rest.split([',', ' ']).next());
    let file = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let file = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let numbers: Vec<&str> =
        file.split('.').filter(|part| part.bytes().all(|byte| byte.is_ascii_digit())).collect();
    let version = branch.map(str::to_owned).or_else(|| (!numbers.is_empty()).then(|| numbers.join(".")));
    let version = version.map(|version| format!(" {version}")).unwrap_or_default();
    format!("ONNX Runtime{version} at {}", path.display())
}

/// A message as one line of at most [`MAX_MESSAGE`] characters.
pub(crate) fn line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").chars().take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn library(root: &Path, path: &str) -> PathBuf {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(line("a\n  b\tc\n"), "a b c");
        assert_eq!(line(&"é".repeat(1000)).chars().count(), MAX_MESSAGE);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_library_is_where_the_documents_say() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let binary = root.join("venv/bin/text-embeddings-router");
        let none = |_: &str| None;
        assert_eq!(find(none, Some(&binary)), Path::new("libonnxruntime.so"));
        assert_eq!(find(none, None), Path::new("libonnxruntime.so"));
        library(root, "venv/bin/libonnxruntime_providers_shared.so");
        let active =
            library(root, "active/lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime.so.1.30.0");
        let venv = root.join("active").display().to_string();
        let in_venv = |name: &str| (name == "VIRTUAL_ENV").then(|| venv.clone());
        assert_eq!(find(in_venv, Some(&binary)), active);
        let own =
            library(root, "venv/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.31.1");
        assert_eq!(find(in_venv, Some(&binary)), own);
        let beside = library(root, "venv/bin/libonnxruntime.so");
        assert_eq!(find(in_venv, Some(&binary)), beside);
        let named = |name: &str| (name == VARIABLE).then(|| "/opt/lib.so".to_owned());
        assert_eq!(find(named, Some(&binary)), Path::new("/opt/lib.so"));
        let empty = |name: &str| (name == VARIABLE).then(String::new);
        assert_eq!(find(empty, Some(&binary)), beside);
    }

    #[test]
    fn a_library_that_cannot_be_used_is_one_sentence_with_the_remedy() {
        let path = Path::new("/x/libonnxruntime.so");
        let errors = [
            (
                LoadDynamicError::BadVersion { version_str: "1.9.0".to_owned(), path: path.to_owned() },
                "is version 1.9.0, but `--backend ort` needs 1.17 or newer: install",
            ),
            (
                LoadDynamicError::MissingApi { path: path.to_owned() },
                "is not ONNX Runtime's library: install",
            ),
        ];
        for (error, part) in errors {
            let message = unusable(path, &error);
            assert!(message.contains(part) && message.contains("/x/libonnxruntime.so"), "{message}");
        }
        let build = "ORT Build Info: git-branch=rel-1.31.1, git-commit-id=26250ae, build type=Release";
        assert_eq!(words(build, path), "ONNX Runtime 1.31.1 at /x/libonnxruntime.so");
        assert_eq!(words("custom", path), "ONNX Runtime at /x/libonnxruntime.so");
        for (name, version) in
            [("libonnxruntime.so.1.30.0", "1.30.0"), ("libonnxruntime.1.29.2.dylib", "1.29.2")]
        {
            let path = Path::new("/x").join(name);
            assert_eq!(words("git-branch=HEAD", &path), format!("ONNX Runtime {version} at /x/{name}"));
        }
    }
}
