//! Takes the place of `client.rs` in a build without the feature `tls`, which has no HTTP client: no
//! [`Client`] can be made, and asking for one says why.

#![expect(clippy::unused_async, reason = "the client's methods are")]

use bytes::Bytes;

use super::super::source::HubOptions;
use super::answers::{Failure, FileMetadata, Listing};

/// In place of a connection to the Hub: it has no values.
pub(super) enum Client {}

impl Client {
    pub(super) fn new(model_id: &str, _token: Option<&str>, _options: &HubOptions) -> Result<Self, String> {
        Err(format!(
            "this server cannot fetch {model_id}, because it is built without the feature `tls`: build it with the \
             default features, or give a folder"
        ))
    }

    pub(super) fn endpoint(&self) -> &str {
        match *self {}
    }

    pub(super) async fn fetch_listing(&self, _revision: &str) -> Result<Listing, Failure> {
        match *self {}
    }

    pub(super) async fn fetch_metadata(&self, _sha: &str, _file: &str) -> Result<FileMetadata, Failure> {
        match *self {}
    }

    pub(super) async fn fetch_content(
        &self,
        _sha: &str,
        _file: &str,
        _from: u64,
    ) -> Result<(ResponseBody, u64), Failure> {
        match *self {}
    }
}

/// In place of an answer's content: it has no values.
pub(super) enum ResponseBody {}

impl ResponseBody {
    pub(super) fn announced_length(&self) -> Option<u64> {
        match *self {}
    }

    pub(super) async fn next_chunk(&mut self) -> Result<Option<Bytes>, String> {
        match *self {}
    }
}
