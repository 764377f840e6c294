//! What only HTTP is told by flags: who may call from a browser, and what the hosting platform wants.
//!
//! Input: [`Args`]. Output: [`Settings`]. What must hold: a flag that cannot be honoured is refused by name before
//! anything is loaded.

use axum::http::{
    HeaderValue, Method,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use super::platform::Platform;
use crate::{args::Args, config::ConfigError};

/// What the route table is made from, beside the model.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The origins that may call from a browser; none stands for any.
    origins: Option<Vec<HeaderValue>>,
    /// What the hosting platform wants of the routes.
    pub(super) platform: Platform,
}

impl Settings {
    /// Checks the flags.
    ///
    /// # Errors
    ///
    /// For an origin that is none, or a route that is no path or is taken.
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        Ok(Self { origins: origins(&args.cors_allow_origin)?, platform: Platform::resolve(args)? })
    }

    /// What tells browsers whose pages may call.
    pub(super) fn cors(&self) -> CorsLayer {
        let origins = match &self.origins {
            Some(origins) => AllowOrigin::list(origins.iter().cloned()),
            None => Any.into(),
        };
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers([AUTHORIZATION, CONTENT_TYPE])
    }
}

fn origins(origins: &[String]) -> Result<Option<Vec<HeaderValue>>, ConfigError> {
    if origins.is_empty() || origins.iter().any(|origin| origin == "*") {
        return Ok(None);
    }
    let parse = |origin: &String| {
        let value = HeaderValue::from_str(origin).ok().filter(|_| origin.contains("://"));
        value.ok_or_else(|| ConfigError::Value {
            flag: "--cors-allow-origin",
            value: origin.clone(),
            problem: "is no origin: give scheme and host such as `https://example.org`, or `*`".to_owned(),
        })
    };
    origins.iter().map(parse).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    #[test]
    fn a_star_among_the_origins_means_any() {
        for (flags, expected) in [
            ("", None),
            ("--cors-allow-origin * --cors-allow-origin http://a", None),
            ("--cors-allow-origin http://a --cors-allow-origin https://b:8", Some(2)),
        ] {
            let start = ["text-embeddings-router", "--model-id", "m"];
            let args = Args::try_from(start.into_iter().chain(flags.split_whitespace())).unwrap();
            let origins = Settings::resolve(&args).unwrap().origins;
            assert_eq!(origins.map(|origins| origins.len()), expected, "{flags}");
        }
    }
}
