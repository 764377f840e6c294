//! The flags that concern only HTTP: pages that may call from a browser, and routes of the hosting platform.
//!
//! Input: [`Args`]. Output: [`HttpSettings`]. What must hold: a flag that cannot be honoured is refused by
//! name before anything is loaded.

use axum::http::{HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::platform::Platform;
use crate::{args::Args, config::ConfigError};

/// The settings that the router is made from.
#[derive(Debug, Clone)]
pub(crate) struct HttpSettings {
    /// The origins whose pages may call from a browser; `None` stands for any origin.
    origins: Option<Vec<HeaderValue>>,
    /// The routes that the hosting platform adds.
    pub(super) platform: Platform,
}

impl HttpSettings {
    /// Checks the flags.
    ///
    /// # Errors
    ///
    /// If an origin is not an origin, or a route is not a path or is taken.
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        Ok(Self { origins: origins(&args.cors_allow_origin)?, platform: Platform::resolve(args)? })
    }

    /// The headers that tell browsers which pages may call. A page may send any header, because clients have
    /// headers of their own (`OpenAI`'s a dozen), and may read every header of an answer.
    pub(super) fn cors(&self) -> CorsLayer {
        let origins = match &self.origins {
            Some(origins) => AllowOrigin::list(origins.iter().cloned()),
            None => Any.into(),
        };
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(Any)
    }
}

fn origins(origins: &[String]) -> Result<Option<Vec<HeaderValue>>, ConfigError> {
    if origins.is_empty() || origins.iter().any(|origin| origin == "*") {
        return Ok(None);
    }
    origins
        .iter()
        .map(|origin| {
            let value = if origin.contains("://") { HeaderValue::from_str(origin).ok() } else { None };
            value.ok_or_else(|| {
                ConfigError(format!(
                    "`--cors-allow-origin {origin}` is not an origin: give scheme and host such as \
                     `https://example.org`, or `*`"
                ))
            })
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn an_origin_that_is_not_one_is_named() {
        let args = ["text-embeddings-router", "--model-id", "m", "--cors-allow-origin", "example.org"];
        let error = HttpSettings::resolve(&Args::try_from(args).unwrap()).unwrap_err().to_string();
        let expected = "`--cors-allow-origin example.org` is not an origin: give scheme and host such as \
                        `https://example.org`, or `*`";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_star_among_the_origins_means_any() {
        for (flags, expected) in [
            ("", None),
            ("--cors-allow-origin * --cors-allow-origin http://a", None),
            ("--cors-allow-origin http://a --cors-allow-origin https://b:8", Some(2)),
        ] {
            let args = Args::with_flags(flags).unwrap();
            let origins = HttpSettings::resolve(&args).unwrap().origins;
            assert_eq!(origins.map(|origins| origins.len()), expected, "{flags}");
        }
    }
}
