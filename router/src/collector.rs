//! The collector of traces: an address that may hold a password.
//!
//! Input: the value of `--otlp-endpoint`. Output: a [`Collector`]. What must hold: a user name and a password
//! in the address are sent as credentials and never shown, not even in the error about the address.

use std::{convert::Infallible, fmt, str::FromStr};

use axum::http::{Uri, uri::Scheme};
use base64::{Engine, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use text_embeddings_core::secret::Secret;

/// The value of `--otlp-endpoint`. Its `Debug` and `Display` hide everything before an `@`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Endpoint(String);

/// A collector that takes traces in OTLP over gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector {
    /// `http://host:port`, without credentials.
    pub(crate) address: String,
    /// The value of the `authorization` metadata.
    pub(crate) authorization: Option<Secret>,
}

impl FromStr for Endpoint {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, credentials, rest) = self.parts();
        let credentials = if credentials.is_some() { "<redacted>@" } else { "" };
        write!(f, "{scheme}{credentials}{rest}")
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Endpoint {
    /// `http://`, the credentials if there are any, and the rest.
    fn parts(&self) -> (&str, Option<&str>, &str) {
        let start = self.0.find("://").map_or(0, |at| at + "://".len());
        let (scheme, rest) = self.0.split_at(start);
        // Everything before the last `@` could be part of a password that was not escaped.
        match rest.rsplit_once('@') {
            Some((credentials, rest)) => (scheme, Some(credentials), rest),
            None => (scheme, None, rest),
        }
    }

    /// The collector; absent if the value is empty, as a variable may be. The error is the problem of the
    /// address, and what to give instead.
    pub(crate) fn resolve(&self) -> Result<Option<Collector>, &'static str> {
        const ADVICE: &str = "is not an address of a collector: give one such as `http://localhost:4317`";
        if self.0.is_empty() {
            return Ok(None);
        }
        let (scheme, credentials, rest) = self.parts();
        let scheme = if scheme.is_empty() { "http://" } else { scheme };
        let uri: Uri = format!("{scheme}{rest}").parse().map_err(|_| ADVICE)?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(
                "asks for encryption, which is not supported: give the `http://` address of a collector \
                 nearby",
            );
        }
        if uri.scheme() != Some(&Scheme::HTTP) || uri.host().is_none_or(str::is_empty) || uri.path() != "/" {
            return Err(ADVICE);
        }
        let address = format!("http://{}", rest.trim_end_matches('/'));
        let authorization = credentials.map(|credentials| {
            let bytes: Vec<u8> = percent_decode_str(credentials).collect();
            Secret::new(format!("Basic {}", BASE64_STANDARD.encode(bytes)))
        });
        Ok(Some(Collector { address, authorization }))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn an_address_may_lack_its_scheme_and_have_credentials() {
        // "me:p@ss" is bWU6cEBzcw== in base64.
        let table = [
            ("http://localhost:4317", "http://localhost:4317", None, "http://localhost:4317"),
            ("collector:4317/", "http://collector:4317", None, "collector:4317/"),
            ("http://[::1]:4317", "http://[::1]:4317", None, "http://[::1]:4317"),
            ("http://me:p%40ss@a:1", "http://a:1", Some("Basic bWU6cEBzcw=="), "http://<redacted>@a:1"),
            ("http://me:p@ss@a:1", "http://a:1", Some("Basic bWU6cEBzcw=="), "http://<redacted>@a:1"),
            ("me:p@ss@a:1", "http://a:1", Some("Basic bWU6cEBzcw=="), "<redacted>@a:1"),
        ];
        for (text, address, authorization, shown) in table {
            let endpoint: Endpoint = text.parse().unwrap();
            let collector = endpoint.resolve().unwrap().unwrap();
            assert_eq!(collector.address, address);
            assert_eq!(collector.authorization.as_ref().map(Secret::expose), authorization, "{text}");
            assert_eq!(
                (endpoint.to_string(), format!("{endpoint:?}")),
                (shown.to_owned(), format!("\"{shown}\""))
            );
        }
        assert_eq!("".parse::<Endpoint>().unwrap().resolve(), Ok(None));
    }

    #[test]
    fn other_addresses_are_refused() {
        for (text, problem) in [
            ("https://a:4317", "encryption"),
            ("https://me:secret@a:4317", "encryption"),
            ("grpc://a:4317", "not an address"),
            ("http://", "not an address"),
            ("http://a b", "not an address"),
            ("http://a:4317/v1/traces", "not an address"),
            ("http://me:secret@", "not an address"),
        ] {
            let message = text.parse::<Endpoint>().unwrap().resolve().unwrap_err();
            assert!(message.contains(problem) && message.contains("http://"), "{text}: {message}");
        }
    }
}
