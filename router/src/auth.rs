//! The API keys, and the check whether a request carries one.
//!
//! Input: a request's headers, which are gRPC's metadata too. Output: whether the request may pass. What must
//! hold: the time of the comparison depends neither on how much of a key is right nor on which key it is; a
//! file of keys that cannot be used is an error at the start, and later leaves the old keys in force.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::Context;
use axum::http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use text_embeddings_core::secret::Secret;
use text_embeddings_door::read_small_file;

/// A key's SHA-256, so that comparing takes the same time for keys of any length.
type Fingerprint = [u8; 32];

/// The keys in force. Without keys, any request may pass. Cheap to clone; all clones change together.
#[derive(Clone, Default)]
pub(crate) struct ApiKeys(Option<Arc<SharedKeys>>);

struct SharedKeys {
    /// The key of `--api-key`.
    flag: Option<Fingerprint>,
    /// The file with further keys.
    file: Option<PathBuf>,
    in_force: RwLock<Vec<Fingerprint>>,
}

impl ApiKeys {
    /// The keys of `--api-key` and of the file of `--api-key-file`. Fails if the file cannot be read or holds
    /// no key.
    pub(crate) fn load(flag: Option<&Secret>, file: Option<&Path>) -> anyhow::Result<Self> {
        if flag.is_none() && file.is_none() {
            return Ok(Self(None));
        }
        let flag = flag.map(|key| fingerprint(key.expose().as_bytes()));
        let in_force = RwLock::new(all(flag, file)?);
        Ok(Self(Some(Arc::new(SharedKeys { flag, file: file.map(Path::to_owned), in_force }))))
    }

    /// Reads the file again. Returns whether the keys changed. Fails as [`ApiKeys::load`]. The old keys then
    /// stay in force.
    pub(crate) fn reload(&self) -> anyhow::Result<bool> {
        let Some(SharedKeys { flag, file: Some(file), in_force }) = self.0.as_deref() else {
            return Ok(false);
        };
        let keys = all(*flag, Some(file))?;
        let mut in_force = in_force.write().unwrap_or_else(PoisonError::into_inner);
        let changed = *in_force != keys;
        *in_force = keys;
        Ok(changed)
    }

    /// Whether some of the keys come from a file.
    pub(crate) fn has_file(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.file.is_some())
    }

    /// Whether a request with these headers may pass: it carries a key, or the server has none.
    pub(crate) fn may_pass(&self, headers: &HeaderMap) -> bool {
        let Some(shared) = &self.0 else { return true };
        let mut credentials = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
        // Of two credentials, a proxy before the server may have checked the other one.
        let (Some(credentials), None) = (credentials.next(), credentials.next()) else { return false };
        let Some((scheme, token)) = credentials.split_at_checked(b"Bearer ".len()) else {
            return false;
        };
        let (token, keys) =
            (fingerprint(token), shared.in_force.read().unwrap_or_else(PoisonError::into_inner));
        // All keys are compared, also those after the right one.
        let found = keys.iter().fold(Choice::from(0), |found, key| found | key.ct_eq(&token));
        scheme.eq_ignore_ascii_case(b"Bearer ") && found.into()
    }
}

fn fingerprint(key: &[u8]) -> Fingerprint {
    Sha256::digest(key).into()
}

fn all(flag: Option<Fingerprint>, file: Option<&Path>) -> anyhow::Result<Vec<Fingerprint>> {
    let mut keys: Vec<Fingerprint> = flag.into_iter().collect();
    if let Some(path) = file {
        let name = path.display();
        let text = read_small_file("--api-key-file", path)?;
        let text =
            String::from_utf8(text).with_context(|| format!("`--api-key-file {name}` is not UTF-8"))?;
        // Some editors begin a file with a byte order mark.
        let text = text.trim_start_matches('\u{feff}');
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(|line| fingerprint(line.as_bytes())));
        anyhow::ensure!(
            keys.len() > before,
            "`--api-key-file {name}` holds no key: give one on each line, or leave the flag out"
        );
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use std::fs;

    fn carries(keys: &ApiKeys, value: &str) -> bool {
        keys.may_pass(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]))
    }

    #[test]
    fn only_the_whole_key_as_a_bearer_token_counts() {
        let keys = ApiKeys::load(Some(&Secret::new("key-1".to_owned())), None).unwrap();
        let table = [
            ("Bearer key-1", true),
            ("bearer key-1", true),
            ("Bearer key-", false),
            ("Bearer key-12", false),
            ("Bearer  key-1", false),
            ("Bearer KEY-1", false),
            ("Bearer", false),
            ("Bearer ", false),
            ("key-1", false),
            ("Basic key-1", false),
            ("", false),
        ];
        for (value, expected) in table {
            assert_eq!(carries(&keys, value), expected, "{value}");
        }
        assert!(!keys.may_pass(&HeaderMap::new()));
        assert!(ApiKeys::load(None, None).unwrap().may_pass(&HeaderMap::new()));
    }

    #[test]
    fn of_two_credentials_none_counts() {
        let keys = ApiKeys::load(Some(&Secret::new("key-1".to_owned())), None).unwrap();
        for values in [["Bearer key-1", "Bearer key-2"], ["Basic a", "Bearer key-1"], ["Bearer key-1"; 2]] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            assert!(!keys.may_pass(&headers), "{values:?}");
        }
    }

    #[test]
    fn a_file_holds_further_keys_and_may_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, "# for the search\n one \r\n\ntwo\n").unwrap();
        let keys = ApiKeys::load(Some(&Secret::new("flag".to_owned())), Some(&path)).unwrap();
        let held = |expected: &[&str]| {
            for key in ["flag", "one", "two", "three", "four", "", "# for the search"] {
                assert_eq!(carries(&keys, &format!("Bearer {key}")), expected.contains(&key), "{key}");
            }
        };
        held(&["flag", "one", "two"]);
        assert!(!keys.reload().unwrap());
        fs::write(&path, "three").unwrap();
        assert!(keys.reload().unwrap());
        held(&["flag", "three"]);
        fs::write(&path, "\n# nobody\n").unwrap();
        let message = format!(
            "`--api-key-file {}` holds no key: give one on each line, or leave the flag out",
            path.display()
        );
        assert_eq!(keys.reload().unwrap_err().to_string(), message);
        held(&["flag", "three"]);
        fs::write(&path, "\u{feff}# nobody\nfour\n").unwrap();
        keys.reload().unwrap();
        held(&["flag", "four"]);
        fs::remove_file(&path).unwrap();
        assert!(keys.reload().is_err());
        held(&["flag", "four"]);
        assert!(ApiKeys::load(None, Some(&path)).is_err());
    }
}
