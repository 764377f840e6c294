//! What the user asks for, and how the Hub is reached.
//!
//! Input: `--model-id`, `--revision`, `--hf-token`, the cache folder, and the Hub's environment variables. Output: plain
//! values for [`super::fetch`]. What must hold: this crate reads the environment here only, so that tests need not change
//! it; `hf-hub` reads its own variables where these values leave something open.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::FilesError;

/// Which model to serve.
#[derive(Clone)]
pub struct ModelSource {
    /// A Hub id such as `Qwen/Qwen3-Reranker-0.6B`, the path of a directory, or `demo`.
    pub model_id: String,
    /// Branch, tag, commit or `refs/pr/N` of the Hub's repository.
    pub revision: String,
    /// The Hub's token; none for that of the environment.
    pub token: Option<String>,
    /// The Hub's cache; none for that of the environment.
    pub cache_dir: Option<PathBuf>,
    /// `--dense-path`: a folder of the model whose files are wanted too.
    pub dense_path: Option<String>,
}

impl fmt::Debug for ModelSource {
    /// The token is a secret: only whether there is one is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelSource")
            .field("model_id", &self.model_id)
            .field("revision", &self.revision)
            .field("token", &self.token.as_ref().map(|_| "REDACTED"))
            .field("cache_dir", &self.cache_dir)
            .field("dense_path", &self.dense_path)
            .finish()
    }
}

/// How to reach the Hub. Where it leaves something open, `hf-hub` reads `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN` and
/// the token file.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The Hub's address; none for the public one.
    pub endpoint: Option<String>,
    /// Whether only the cache may be used.
    pub offline: bool,
    /// How often a request or a transfer is tried before it counts as failed.
    pub attempts: usize,
    /// The pause before the second attempt; later ones are longer.
    pub pause: Duration,
    /// How long the Hub may take to answer, and how long a transfer may stand still.
    pub patience: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            offline: false,
            attempts: 3,
            pause: Duration::from_millis(500),
            patience: Duration::from_secs(30),
        }
    }
}

impl HubOptions {
    /// The defaults with `HF_ENDPOINT` and `HF_HUB_OFFLINE` of the environment. The only place that reads them.
    #[must_use]
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let offline = variable("HF_HUB_OFFLINE").is_some_and(|value| is_switched_on(&value));
        Self { endpoint: variable("HF_ENDPOINT"), offline, ..Self::default() }
    }
}

/// The spellings of true in the Hub's variables.
fn is_switched_on(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
}

/// The directory that `model_id` names; none if it can only be a Hub id.
pub(super) fn local_directory(model_id: &str) -> Result<Option<PathBuf>, FilesError> {
    let path = Path::new(model_id);
    let model_id = model_id.to_owned();
    if path.is_dir() {
        return Ok(Some(path.to_owned()));
    }
    if path.is_file() {
        return Err(FilesError::NotADirectory { model_id });
    }
    if model_id.starts_with(['/', '.', '~']) || model_id.matches('/').count() > 1 {
        return Err(FilesError::NoSuchDirectory { model_id });
    }
    let allowed = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    if model_id.split('/').all(allowed) { Ok(None) } else { Err(FilesError::InvalidModelId { model_id }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_for_true_switch_the_network_off() {
        for (value, expected) in
            [("1", true), ("ON", true), ("yes", true), ("True", true), ("0", false), ("off", false)]
        {
            assert_eq!(is_switched_on(value), expected, "{value}");
        }
    }
}
