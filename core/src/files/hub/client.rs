//! Requests to the Hub: the list of a revision's files, the metadata of a file, and its content.
//!
//! Input: [`HubOptions`] and the token. Output: answers of status 2xx, read only as far as the caller asks.
//! What must hold: every wait ends ([`HubOptions::patience`]); an answer is bounded before it is kept; the
//! token is sent to the Hub's own host only.

use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue,
    LOCATION, RANGE,
};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use text_embeddings_backend_core::amount;
use tokio::time::Instant;

use super::super::names::is_commit;
use super::super::source::HubOptions;
use super::answers::{Failure, FileMetadata, Listing};

const PUBLIC: &str = "https://huggingface.co";
/// The longest list of a revision's files, in bytes: several hundred thousand names.
const MAX_LISTING: usize = 32 << 20;
/// The most redirections of a request for a file's metadata.
const MAX_REDIRECTIONS: usize = 10;
/// The longest `ETag`: a SHA-256 in hexadecimal digits.
const MAX_ETAG: usize = 64;
/// The fewest bytes that must arrive in each [`HubOptions::patience`]: 2 KiB a second.
const FEWEST_BYTES: usize = 64 << 10;

/// A connection to the Hub for one model.
pub(super) struct Client {
    following: reqwest::Client,
    direct: reqwest::Client,
    /// Without a slash at its end.
    endpoint: String,
    model_id: String,
    token: Option<HeaderValue>,
    options: HubOptions,
}

impl Client {
    pub(super) fn new(model_id: &str, token: Option<&str>, options: &HubOptions) -> Result<Self, String> {
        let endpoint = options.endpoint.as_deref().unwrap_or(PUBLIC).trim_end_matches('/').to_owned();
        let url = Url::parse(&endpoint).map_err(|error| format!("`{endpoint}` is not a URL ({error})"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("`{endpoint}` does not begin with https:// or http://"));
        }
        let token = match token {
            None => None,
            Some(token) => {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                let mut value =
                    value.map_err(|_| "the token has characters that a token cannot have".to_owned())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self {
            following: build_client(options, Policy::limited(MAX_REDIRECTIONS))?,
            direct: build_client(options, Policy::none())?,
            endpoint,
            model_id: model_id.to_owned(),
            token,
            options: options.clone(),
        })
    }

    /// The Hub's address.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Fetches the commit of a revision, and the list of its files.
    pub(super) async fn fetch_listing(&self, revision: &str) -> Result<Listing, Failure> {
        #[derive(Deserialize)]
        struct HubAnswer {
            sha: Option<String>,
            siblings: Option<Vec<Sibling>>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let mut url = self.url(&["api", "models"], ["revision", revision].into_iter())?;
        url.query_pairs_mut().append_pair("expand", "sha").append_pair("expand", "siblings");
        let response = self.send(|| self.with_token(self.following.get(url.clone()))).await?;
        let mut body = self.body(accepted(response)?);
        let mut text = Vec::new();
        while let Some(chunk) = body.next_chunk().await.map_err(Failure::Unreachable)? {
            text.extend_from_slice(chunk.as_ref());
            if text.len() > MAX_LISTING {
                let max_megabytes = MAX_LISTING >> 20;
                return Err(Failure::Strange(format!(
                    "its list of files is longer than {max_megabytes} MiB"
                )));
            }
        }
        let answer: HubAnswer = serde_json::from_slice(&text)
            .map_err(|error| Failure::Strange(format!("its answer is not the Hub's: {error}")))?;
        let (Some(sha), Some(siblings)) = (answer.sha, answer.siblings) else {
            return Err(Failure::Strange("its answer has no commit or no list of files".to_owned()));
        };
        if !is_commit(&sha) {
            let reason = format!("it calls the commit {sha:?}, which is not 40 hexadecimal digits");
            return Err(Failure::Strange(reason));
        }
        Ok(Listing { sha, files: siblings.into_iter().map(|sibling| sibling.rfilename).collect() })
    }

    /// Fetches the metadata of a file. The Hub's answer is often a redirection, which is followed only if it
    /// has no metadata itself.
    pub(super) async fn fetch_metadata(&self, sha: &str, file: &str) -> Result<FileMetadata, Failure> {
        const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
        const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
        let own = self.file_url(sha, file)?;
        let mut url = own.clone();
        for _ in 0..MAX_REDIRECTIONS {
            let response = self.send(|| {
                let request = self.direct.request(Method::HEAD, url.clone());
                let request = request.header(ACCEPT_ENCODING, "identity");
                if url.origin() == own.origin() { self.with_token(request) } else { request }
            });
            let response = response.await?;
            let headers = response.headers();
            let etag = text(headers, &LINKED_ETAG).or_else(|| text(headers, &ETAG));
            if response.status().is_redirection() {
                let location = text(headers, &LOCATION).unwrap_or_default();
                // A model that was renamed is at another path of the same host; large files are on other
                // hosts.
                let is_relative = Url::parse(location).is_err() && !location.starts_with("//");
                if etag.is_none() || is_relative {
                    let next = url.join(location).ok().filter(|next| *next != url);
                    url =
                        next.ok_or_else(|| Failure::Strange("it redirects to no other address".to_owned()))?;
                    continue;
                }
            }
            let is_redirection = response.status().is_redirection();
            let response = if is_redirection { response } else { accepted(response)? };
            let headers = response.headers();
            let linked = text(headers, &LINKED_ETAG);
            let etag = linked.or_else(|| text(headers, &ETAG)).unwrap_or_default();
            let Some(blob) = blob_name(etag) else {
                let reason = format!("its ETag is {etag:?}, which cannot be the name of a file in the cache");
                return Err(Failure::Strange(reason));
            };
            let own_length = if is_redirection { None } else { text(headers, &CONTENT_LENGTH) };
            let length = text(headers, &LINKED_SIZE).or(own_length).and_then(|length| length.parse().ok());
            let sha256 = linked.and_then(|_| parse_sha256(blob));
            return Ok(FileMetadata { blob: blob.to_owned(), length, sha256 });
        }
        Err(Failure::Strange("it redirects without end".to_owned()))
    }

    /// Fetches a file's content from the byte `from` on. Returns it with the byte at which it really starts:
    /// 0 if the server does not send parts.
    pub(super) async fn fetch_content(
        &self,
        sha: &str,
        file: &str,
        from: u64,
    ) -> Result<(ResponseBody, u64), Failure> {
        let url = self.file_url(sha, file)?;
        let response = self.send(|| {
            let request = self.with_token(self.following.get(url.clone()));
            let request = request.header(ACCEPT_ENCODING, "identity");
            if from > 0 { request.header(RANGE, format!("bytes={from}-")) } else { request }
        });
        let response = accepted(response.await?)?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Ok((self.body(response), 0));
        }
        let range = text(response.headers(), &CONTENT_RANGE).unwrap_or_default();
        let start = range.strip_prefix("bytes ").and_then(|range| range.split('-').next()?.parse().ok());
        if start != Some(from) {
            return Err(Failure::Strange(format!(
                "it was asked for bytes from {from} on and sends {range:?}"
            )));
        }
        Ok((self.body(response), from))
    }

    fn file_url(&self, sha: &str, file: &str) -> Result<Url, Failure> {
        self.url(&[], ["resolve", sha].into_iter().chain(file.split('/')))
    }

    /// ENDPOINT/BEFORE/MODEL/PARTS. Each part is one segment of the path, whatever its characters.
    fn url<'a>(&self, before: &[&str], parts: impl Iterator<Item = &'a str>) -> Result<Url, Failure> {
        let mut url = Url::parse(&self.endpoint).map_err(|error| Failure::Strange(error.to_string()))?;
        url.path_segments_mut()
            .map_err(|()| Failure::Strange("the Hub's address has no path".to_owned()))?
            .pop_if_empty()
            .extend(before)
            .extend(self.model_id.split('/'))
            .extend(parts);
        Ok(url)
    }

    fn with_token(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.header(AUTHORIZATION, token.clone()),
            None => request,
        }
    }

    /// Sends a request, and sends it again if the connection or the server fails temporarily.
    async fn send(&self, request: impl Fn() -> RequestBuilder) -> Result<Response, Failure> {
        let HubOptions { attempts, pause, patience, .. } = self.options;
        let mut attempt = 1;
        loop {
            let failure = match tokio::time::timeout(patience, request().send()).await {
                Err(_) => return Err(Failure::Unreachable(format!("no answer in {patience:?}"))),
                Ok(Ok(response)) if !is_momentary(response.status()) => return Ok(response),
                Ok(Ok(response)) => Failure::Unreachable(format!("it answers {}", response.status())),
                Ok(Err(error)) => Failure::Unreachable(cause(&error.without_url())),
            };
            if attempt >= attempts {
                return Err(failure);
            }
            tokio::time::sleep(pause * attempt as u32).await;
            attempt += 1;
        }
    }

    fn body(&self, response: Response) -> ResponseBody {
        ResponseBody { response, patience: self.options.patience, since: Instant::now(), bytes: 0 }
    }
}

/// The content of an answer. Reading it ends, at the end or with an error.
pub(super) struct ResponseBody {
    response: Response,
    patience: Duration,
    /// The time since which [`Self::bytes`] are counted.
    since: Instant,
    bytes: usize,
}

impl ResponseBody {
    /// The announced length in bytes.
    pub(super) fn announced_length(&self) -> Option<u64> {
        text(self.response.headers(), &CONTENT_LENGTH)?.parse().ok()
    }

    /// The next bytes; absent at the end. An error if the connection breaks off, stalls, or is so slow that
    /// the download would hardly end.
    pub(super) async fn next_chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, String> {
        let patience = self.patience;
        let chunk = tokio::time::timeout(patience, self.response.chunk()).await;
        let chunk = chunk.map_err(|_| format!("no byte came in {patience:?}"))?;
        let chunk = chunk.map_err(|error| cause(&error.without_url()))?;
        self.bytes += chunk.as_deref().map_or(0, <[u8]>::len);
        if chunk.is_some() && self.since.elapsed() > patience {
            if self.bytes < FEWEST_BYTES {
                return Err(format!("only {} came in {patience:?}", amount(self.bytes, "byte")));
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(chunk)
    }
}

/// The answer if its status is 2xx.
fn accepted(response: Response) -> Result<Response, Failure> {
    if response.status().is_success() {
        return Ok(response);
    }
    let code = text(response.headers(), &HeaderName::from_static("x-error-code")).map(str::to_owned);
    Err(Failure::Refused(response.status(), code))
}

/// Whether another attempt may succeed.
fn is_momentary(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The name of a file among the cache's blobs, made from an `ETag` header as in `huggingface_hub`: without
/// `W/` and quotes. Absent if the rest has other characters than letters, digits and `-`.
fn blob_name(etag: &str) -> Option<&str> {
    let name = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_plain && (1..=MAX_ETAG).contains(&name.len())).then_some(name)
}

/// The SHA-256 that 64 hexadecimal digits write, as in the `X-Linked-ETag` of a large file.
fn parse_sha256(name: &str) -> Option<[u8; 32]> {
    let mut sum = [0; 32];
    if name.len() != 64 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in sum.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&name[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(sum)
}

fn build_client(options: &HubOptions, redirects: Policy) -> Result<reqwest::Client, String> {
    let builder = reqwest::Client::builder().redirect(redirects).connect_timeout(options.patience);
    builder.user_agent(&options.user_agent).build().map_err(|error| cause(&error))
}

/// The innermost cause of an error, which says what happened: the outer ones only repeat that a request
/// failed.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(inner) = innermost.source() {
        innermost = inner;
    }
    // The resolver's words for every kind of failure.
    let words = innermost.to_string();
    words.strip_prefix("failed to lookup address information: ").unwrap_or(&words).to_owned()
}

#[cfg(test)]
mod tests {
    use super::blob_name;

    #[test]
    fn only_plain_etags_become_names() {
        let sha256 = "a".repeat(64);
        let table = [
            ("\"abc-12\"", Some("abc-12")),
            ("W/\"abc\"", Some("abc")),
            (sha256.as_str(), Some(sha256.as_str())),
            ("", None),
            ("\"\"", None),
            ("W/", None),
            ("..", None),
            ("\"../../../.bashrc\"", None),
            ("a/b", None),
            ("a.b", None),
            ("a\\b", None),
            ("a\0", None),
            ("é", None),
        ];
        for (etag, expected) in table {
            assert_eq!(blob_name(etag), expected, "{etag}");
        }
        assert_eq!(blob_name(&"a".repeat(65)), None);
    }
}
