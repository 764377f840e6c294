//! Requests to the Hub: the list of a revision's files, what it says of a file, and a file's content.
//!
//! Input: [`HubOptions`] and the token. Output: answers of status 2xx, read no further than asked. What must hold: every
//! wait ends ([`HubOptions::patience`]); an answer is bounded before it is kept; the token goes to the Hub's own host only.

use std::time::{Duration, Instant};

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue,
    LOCATION, RANGE,
};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;

use super::super::source::HubOptions;
use super::names::{blob_name, is_commit};

/// The public Hub.
const PUBLIC: &str = "https://huggingface.co";
/// The longest list of a revision's files, in bytes: several hundred thousand names.
const LONGEST_LISTING: usize = 32 << 20;
/// The most redirections of a request for what the Hub says of a file.
const MOST_REDIRECTIONS: usize = 10;
/// The fewest bytes that must come in each [`HubOptions::patience`]: 2 KiB a second.
const FEWEST_BYTES: usize = 64 << 10;

/// Why a request has no answer of status 2xx.
pub(super) enum Failure {
    /// The Hub cannot be reached, or has an error of its own. Another attempt may succeed.
    Unreachable(String),
    /// It refuses: the status, and its `X-Error-Code`.
    Refused(StatusCode, Option<String>),
    /// Its answer is none of the Hub's.
    Strange(String),
}

/// What a revision of a repository holds.
pub(super) struct Listing {
    /// Its commit.
    pub(super) sha: String,
    /// Its files. They are not checked; [`super::names::stays_below`] does that where one is fetched.
    pub(super) files: std::collections::BTreeSet<String>,
}

/// What the Hub says of a file.
pub(super) struct Metadata {
    /// The name of its content in the cache.
    pub(super) blob: String,
    /// Its length in bytes.
    pub(super) length: Option<u64>,
}

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
    /// # Errors
    ///
    /// A sentence, where the endpoint is no URL or the token cannot be sent.
    pub(super) fn new(model_id: &str, token: Option<&str>, options: &HubOptions) -> Result<Self, String> {
        let endpoint = options.endpoint.as_deref().unwrap_or(PUBLIC).trim_end_matches('/').to_owned();
        let url = Url::parse(&endpoint).map_err(|error| format!("`{endpoint}` is no URL ({error})"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("`{endpoint}` does not begin with https:// or http://"));
        }
        let build = |policy| {
            let builder = reqwest::Client::builder().redirect(policy).connect_timeout(options.patience);
            builder.user_agent(&options.user_agent).build().map_err(|error| causes(&error))
        };
        let token = match token {
            None => None,
            Some(token) => {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                let mut value = value.map_err(|_| "the token has characters that no token has".to_owned())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self {
            following: build(Policy::limited(MOST_REDIRECTIONS))?,
            direct: build(Policy::none())?,
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

    /// Asks which commit a revision is and which files it has.
    pub(super) async fn listing(&self, revision: &str) -> Result<Listing, Failure> {
        #[derive(Deserialize)]
        struct Answer {
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
        while let Some(chunk) = body.next().await.map_err(Failure::Unreachable)? {
            text.extend_from_slice(chunk.as_ref());
            if text.len() > LONGEST_LISTING {
                let longest = LONGEST_LISTING >> 20;
                return Err(Failure::Strange(format!("its list of files is longer than {longest} MiB")));
            }
        }
        let answer: Answer = serde_json::from_slice(&text)
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

    /// Asks what a file is. The Hub's answer to that is often a redirection, which is followed only where it says nothing
    /// of the file.
    pub(super) async fn metadata(&self, sha: &str, file: &str) -> Result<Metadata, Failure> {
        const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
        const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
        let own = self.file_url(sha, file)?;
        let mut url = own.clone();
        for _ in 0..MOST_REDIRECTIONS {
            let request = || {
                let request = self.direct.request(Method::HEAD, url.clone());
                let request = request.header(ACCEPT_ENCODING, "identity");
                if url.origin() == own.origin() { self.with_token(request) } else { request }
            };
            let response = self.send(request).await?;
            let headers = response.headers();
            let etag = text(headers, &LINKED_ETAG).or_else(|| text(headers, &ETAG));
            if response.status().is_redirection() {
                let location = text(headers, &LOCATION).unwrap_or_default();
                // A model that was renamed is at another path of the same host; large files are elsewhere.
                let is_relative = Url::parse(location).is_err() && !location.starts_with("//");
                if etag.is_none() || is_relative {
                    let next = url.join(location).ok().filter(|next| *next != url);
                    let nowhere = || Failure::Strange("it redirects to no other address".to_owned());
                    url = next.ok_or_else(nowhere)?;
                    continue;
                }
            }
            let is_redirection = response.status().is_redirection();
            let response = if is_redirection { response } else { accepted(response)? };
            let headers = response.headers();
            let etag = text(headers, &LINKED_ETAG).or_else(|| text(headers, &ETAG)).unwrap_or_default();
            let Some(blob) = blob_name(etag) else {
                let reason = format!("its ETag is {etag:?}, which cannot be the name of a file in the cache");
                return Err(Failure::Strange(reason));
            };
            let own_length = text(headers, &CONTENT_LENGTH).filter(|_| !is_redirection);
            let length = text(headers, &LINKED_SIZE).or(own_length).and_then(|length| length.parse().ok());
            return Ok(Metadata { blob: blob.to_owned(), length });
        }
        Err(Failure::Strange("it redirects without end".to_owned()))
    }

    /// Asks for a file's content from the byte `from` on. Gives it with the byte at which it really starts: 0 where the
    /// server does not send parts.
    pub(super) async fn content(&self, sha: &str, file: &str, from: u64) -> Result<(Body, u64), Failure> {
        let url = self.file_url(sha, file)?;
        let request = || {
            let request = self.with_token(self.following.get(url.clone()));
            let request = request.header(ACCEPT_ENCODING, "identity");
            if from > 0 { request.header(RANGE, format!("bytes={from}-")) } else { request }
        };
        let response = accepted(self.send(request).await?)?;
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

    /// ENDPOINT/BEFORE/MODEL/PARTS; each part is one of the path, whatever its characters.
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

    /// Sends a request, again where the connection or the server fails for the moment.
    async fn send(&self, request: impl Fn() -> RequestBuilder) -> Result<Response, Failure> {
        let HubOptions { attempts, pause, patience, .. } = self.options;
        let mut attempt = 1;
        loop {
            let failure = match tokio::time::timeout(patience, request().send()).await {
                Err(_) => return Err(Failure::Unreachable(format!("no answer in {patience:?}"))),
                Ok(Ok(response)) if !is_momentary(response.status()) => return Ok(response),
                Ok(Ok(response)) => Failure::Unreachable(format!("it answers {}", response.status())),
                Ok(Err(error)) => Failure::Unreachable(causes(&error.without_url())),
            };
            if attempt >= attempts {
                return Err(failure);
            }
            tokio::time::sleep(pause * attempt as u32).await;
            attempt += 1;
        }
    }

    fn body(&self, response: Response) -> Body {
        Body { response, patience: self.options.patience, since: Instant::now(), bytes: 0 }
    }
}

/// The content of an answer, which ends by itself or with an error.
pub(super) struct Body {
    response: Response,
    patience: Duration,
    /// Since when [`Self::bytes`] are counted.
    since: Instant,
    bytes: usize,
}

impl Body {
    /// Its length in bytes, as announced.
    pub(super) fn length(&self) -> Option<u64> {
        text(self.response.headers(), &CONTENT_LENGTH)?.parse().ok()
    }

    /// The next bytes; none at the end. An error where the connection breaks off, stands still, or is so slow that the
    /// download would hardly end.
    pub(super) async fn next(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, String> {
        let patience = self.patience;
        let chunk = tokio::time::timeout(patience, self.response.chunk()).await;
        let chunk = chunk.map_err(|_| format!("no byte came in {patience:?}"))?;
        let chunk = chunk.map_err(|error| causes(&error.without_url()))?;
        self.bytes += chunk.as_deref().map_or(0, <[u8]>::len);
        if chunk.is_some() && self.since.elapsed() > patience {
            if self.bytes < FEWEST_BYTES {
                return Err(format!("only {} bytes came in {patience:?}", self.bytes));
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

/// Whether another attempt may be answered otherwise.
fn is_momentary(status: StatusCode) -> bool {
    status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// An error with its causes, which `reqwest` keeps apart from its own words.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    text
}
