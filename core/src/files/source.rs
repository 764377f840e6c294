//! The model that the user asks for, and the settings for reaching the Hub.
//!
//! Input: `--model-id`, `--revision`, `--hf-token`, the cache folder, and the Hub's environment variables.
//! Output: plain values for [`super::load`]. What must hold: this is the only place in the crate that reads
//! the environment, so that tests need not change it; the variables have the same meaning as in Python's
//! `huggingface_hub`.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use text_embeddings_backend_core::BackendKind;

use super::error::FilesError;
use super::names::{is_gguf, is_weights};
use super::reading;
use crate::secret::Secret;

/// The backend that will read a model's files. It decides which files are the weights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reader {
    /// The backend.
    pub backend: BackendKind,
    /// `--onnx-file`: the graph for ONNX Runtime, if there are several.
    pub onnx_file: Option<String>,
    /// `--gguf-file`: the GGUF file to use if there are several, or if there are other weights, too.
    pub gguf_file: Option<String>,
    /// `--dense-path`: the folder of the dense module to use instead of the only one of `modules.json`.
    pub dense_path: Option<String>,
    /// `--lora-task`: the task whose adapter is added to the weights, for models that have adapters.
    pub lora_task: Option<String>,
    /// `--trust-remote-code`: whether Python files of the model are fetched.
    pub python_code: bool,
}

/// The model to serve.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// A Hub id such as `Qwen/Qwen3-Reranker-0.6B`, optionally with `:FILE.gguf`, or the path of a directory
    /// or weight file, or `demo`.
    pub model_id: String,
    /// A branch, tag, commit or `refs/pr/N` of the Hub's repository.
    pub revision: String,
    /// The Hub's token. If absent, the environment's.
    pub token: Option<Secret>,
    /// The Hub's cache. If absent, the environment's.
    pub cache_dir: Option<PathBuf>,
    /// The backend that will read the files.
    pub reader: Reader,
}

impl ModelSource {
    /// The model's id without a file name, and its reader. `owner/name:FILE.gguf` also names a GGUF file.
    pub(super) fn split_file(&self) -> Result<(&str, Reader), FilesError> {
        let flag = self.reader.gguf_file.as_deref();
        let (model_id, file) = match self.model_id.split_once(':') {
            Some((model_id, file)) if is_gguf(file) && !Path::new(&self.model_id).exists() => {
                (model_id, Some(file))
            }
            _ => (self.model_id.as_str(), None),
        };
        match (file, flag) {
            (Some(file), Some(flag)) if file != flag => {
                Err(FilesError::TwoFiles { model_id: self.model_id.clone(), file: flag.to_owned() })
            }
            (file, flag) => {
                let gguf_file = file.or(flag).map(str::to_owned);
                Ok((model_id, Reader { gguf_file, ..self.reader.clone() }))
            }
        }
    }
}

/// The settings for reaching the Hub, and the place of its files.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The Hub's address; `None` for the public one.
    pub endpoint: Option<String>,
    /// Whether the network must not be used.
    pub offline: bool,
    /// The token for a source without its own.
    pub token: Option<Secret>,
    /// The cache for a source without its own.
    pub cache: PathBuf,
    /// The `User-Agent` of requests to the Hub.
    pub user_agent: String,
    /// The number of attempts before a request or a transfer fails.
    pub attempts: usize,
    /// The pause before the second attempt. Later pauses are longer.
    pub pause: Duration,
    /// The longest time until the Hub answers, and the longest pause within a transfer.
    pub patience: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            offline: false,
            token: None,
            cache: PathBuf::from("huggingface/hub"),
            user_agent: concat!("text-embeddings-router/", env!("CARGO_PKG_VERSION")).to_owned(),
            attempts: 3,
            pause: Duration::from_millis(500),
            patience: Duration::from_secs(30),
        }
    }
}

/// The longest token file, in bytes.
const MAX_TOKEN: u64 = 4096;

impl HubOptions {
    /// The defaults with the Hub's environment variables. Nothing else reads these variables.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let path = |name| variable(name).map(PathBuf::from);
        let words = ["1", "on", "yes", "true"];
        let is_on = |name| variable(name).is_some_and(|value| words.contains(&value.to_lowercase().as_str()));
        let home = path("HF_HOME");
        let home = home.unwrap_or_else(|| {
            path("XDG_CACHE_HOME")
                .unwrap_or_else(|| path("HOME").unwrap_or_else(|| PathBuf::from("/tmp")).join(".cache"))
                .join("huggingface")
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let token = if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            None
        } else {
            let file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
            variable("HF_TOKEN").or_else(|| read_token(&file)).map(Secret::new)
        };
        let defaults = Self::default();
        let user_agent = match variable("HF_HUB_USER_AGENT_ORIGIN") {
            Some(origin) => format!("{}; {origin}", defaults.user_agent),
            None => defaults.user_agent.clone(),
        };
        Self {
            endpoint: variable("HF_ENDPOINT"),
            offline: is_on("HF_HUB_OFFLINE"),
            token,
            cache: cache.unwrap_or_else(|| home.join("hub")),
            user_agent,
            ..defaults
        }
    }
}

/// The token that `huggingface-cli login` wrote to a file, if it is there.
fn read_token(file: &Path) -> Option<String> {
    let token = reading::text(file, MAX_TOKEN).ok()?.trim().to_owned();
    if token.is_empty() { None } else { Some(token) }
}

/// The directory that `model_id` names, and the file in it if it names a file. `None` if `model_id` can only
/// be a Hub id.
pub(super) fn local(model_id: &str) -> Result<Option<(PathBuf, Option<String>)>, FilesError> {
    let path = Path::new(model_id);
    let model_id = model_id.to_owned();
    let metadata = match path.metadata() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(FilesError::io(path, error)),
        metadata => metadata.ok(),
    };
    if metadata.as_ref().is_some_and(Metadata::is_dir) {
        return Ok(Some((path.to_owned(), None)));
    }
    if metadata.is_some_and(|metadata| metadata.is_file()) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_weights(&file) {
            return Err(FilesError::NotADirectory { model_id });
        }
        return Ok(Some((folder.to_owned(), Some(file))));
    }
    // A weight file in a folder that exists: its name is wrong, or it is a link to nothing.
    let is_local_file = is_weights(&model_id) && path.parent().is_some_and(Path::is_dir);
    if model_id.starts_with(['/', '.', '~']) || model_id.matches('/').count() > 1 || is_local_file {
        return Err(FilesError::Refused(format!(
            "`--model-id {model_id}` looks like a path, but there is no such directory or file: correct it, or \
             give a Hub id such as `Qwen/Qwen3-Reranker-0.6B`"
        )));
    }
    let is_hub_id = model_id.split('/').all(|part| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    });
    if is_hub_id { Ok(None) } else { Err(FilesError::InvalidModelId { model_id }) }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn only_words_for_true_switch_the_network_off() {
        for (value, expected) in
            [("1", true), ("ON", true), ("yes", true), ("True", true), ("0", false), ("off", false)]
        {
            let options =
                HubOptions::from_variables(|name| (name == "HF_HUB_OFFLINE").then(|| value.to_owned()));
            assert_eq!(options.offline, expected, "{value}");
        }
    }

    type Variables<'a> = [(&'a str, &'a str)];

    #[test]
    fn token_and_cache_are_where_pythons_library_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().display().to_string();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let read = |variables: &[(&str, &str)]| {
            let find = |name: &str| Some(variables.iter().find(|(known, _)| *known == name)?.1.to_owned());
            let HubOptions { token, cache, .. } = HubOptions::from_variables(find);
            (token.as_ref().map_or("", Secret::expose).to_owned(), cache.display().to_string())
        };
        let table: [(&Variables<'_>, &str, &str); 7] = [
            (&[], "", "/tmp/.cache/huggingface/hub"),
            (&[("HOME", "/h")], "", "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "", "/x/huggingface/hub"),
            (&[("HF_HOME", &home), ("XDG_CACHE_HOME", "/x")], "hf_file", &format!("{home}/hub")),
            (&[("HF_HOME", &home), ("HF_TOKEN", "hf_own"), ("HF_HUB_CACHE", "/c")], "hf_own", "/c"),
            (
                &[("HUGGINGFACE_HUB_CACHE", "/c"), ("HF_TOKEN_PATH", &format!("{home}/token"))],
                "hf_file",
                "/c",
            ),
            (
                &[("HF_HOME", &home), ("HF_TOKEN", "x"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")],
                "",
                &format!("{home}/hub"),
            ),
        ];
        for (variables, token, cache) in table {
            assert_eq!(read(variables), (token.to_owned(), cache.to_owned()), "{variables:?}");
        }
        let options =
            HubOptions { token: Some(Secret::new("hf_secret".to_owned())), ..HubOptions::default() };
        assert!(!format!("{options:?}").contains("hf_secret"));
    }
}
