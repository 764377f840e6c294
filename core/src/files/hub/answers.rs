//! The Hub's answers.

use std::collections::BTreeSet;

use http::StatusCode;

/// Why a request has no answer of status 2xx.
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no client that could fail"))]
pub(in crate::files) enum Failure {
    /// The Hub cannot be reached, or failed itself. Another attempt may succeed.
    Unreachable(String),
    /// The Hub refuses: the status, and its `X-Error-Code`.
    Refused(StatusCode, Option<String>),
    /// The answer does not look like the Hub's.
    Strange(String),
}

/// The files of a revision of a repository.
pub(in crate::files) struct Listing {
    pub(in crate::files) sha: String,
    /// Its files. The names are not checked here; `names::stays_below` does that before one is
    /// fetched.
    pub(super) files: BTreeSet<String>,
}

/// The Hub's metadata of a file.
pub(super) struct FileMetadata {
    /// The name of its content in the cache.
    pub(super) blob: String,
    /// Its length in bytes.
    pub(super) length: Option<u64>,
    /// The SHA-256 of its content. The Hub only says it of large files (LFS).
    pub(super) sha256: Option<[u8; 32]>,
}
