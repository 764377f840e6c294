//! From the flags that need no model to the configuration of the server: defaults, and checks of one flag
//! against another.
//!
//! Input: [`Args`]. Output: [`ServerConfig`], which is checked before anything is loaded. What must hold:
//! pure functions of their input; a setting that is not served is an error that names it.

mod clients;

use std::{net::SocketAddr, time::Duration};

pub(crate) use self::clients::{client_limits, descriptors};
use crate::{
    args::{Args, MESSAGE_LIMIT, parse_hostname},
    collector::{Collector, Endpoint},
};

/// TEI's default.
const DEFAULT_PROMETHEUS_PORT: u16 = 9000;

/// A flag, or flags together, that cannot be served: the sentence says what to give instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(pub(crate) String);

/// Where to listen, and for which clients. Needs no model.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// The addresses to try in turn.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The same for gRPC in addition to HTTP; absent without `--grpc-port`.
    pub(crate) grpc_addresses: Option<Vec<SocketAddr>>,
    /// The collector of traces; absent if none are sent.
    pub(crate) collector: Option<Collector>,
    /// The second port for metrics; absent if it would be the first port, which serves them anyway.
    pub(crate) prometheus: Option<PrometheusPort>,
    /// The most bytes of a body.
    pub(crate) payload_limit: usize,
    /// The most bytes of a message over gRPC.
    pub(crate) message_limit: usize,
    /// Whether token ids from `OpenAI`'s SDK are taken as ids of the model's vocabulary.
    #[cfg_attr(not(feature = "plain-http"), expect(dead_code, reason = "gRPC has no routes of OpenAI"))]
    pub(crate) accept_openai_token_ids: bool,
    /// Whether all routes except probes require the key.
    pub(crate) key_everywhere: bool,
    /// Whether unknown fields of a body are refused (`--strict-fields`).
    #[cfg_attr(not(feature = "plain-http"), expect(dead_code, reason = "gRPC drops unknown fields"))]
    pub(crate) strict_fields: bool,
    /// How the server ends.
    pub(crate) shutdown: Shutdown,
}

/// How the server ends after it is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shutdown {
    /// How long it still serves while it is not ready.
    pub(crate) delay: Duration,
    /// How long requests in flight may then take.
    pub(crate) drain: Duration,
}

/// The second port for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrometheusPort {
    pub(crate) port: u16,
    /// Whether the user gave it: then it must be free.
    pub(crate) explicit: bool,
}

impl ServerConfig {
    /// Checks the flags that need no model, including those that are not supported.
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        if args.api_key.as_ref().is_some_and(|key| key.expose().is_empty()) {
            let message = "`--api-key` is empty: give a key, or leave the flag and the variable API_KEY out";
            return Err(ConfigError(message.to_owned()));
        }
        if args.door.api_key_everywhere && args.api_key.is_none() && args.door.api_key_file.is_none() {
            let message = "`--api-key-everywhere` needs a key: give `--api-key` or `--api-key-file`";
            return Err(ConfigError(message.to_owned()));
        }
        let addresses = parse_hostname(&args.hostname).ok_or_else(|| {
            ConfigError(format!(
                "`--hostname {}` is not an address: give an IPv4 or IPv6 address, or `localhost`",
                args.hostname
            ))
        })?;
        let at = |port| addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
        let listen = args.aip_http_port.unwrap_or(args.port);
        let collector = args.otlp_endpoint.as_ref().map(collector).transpose()?.flatten();
        let prometheus = PrometheusPort {
            port: args.prometheus_port.unwrap_or(DEFAULT_PROMETHEUS_PORT),
            explicit: args.prometheus_port.is_some(),
        };
        // The first port serves the metrics anyway, over HTTP.
        let is_first = cfg!(feature = "plain-http") && prometheus.port == listen && listen != 0;
        Ok(Self {
            addresses: at(listen),
            grpc_addresses: args.grpc_port.map(at),
            collector,
            prometheus: (!is_first).then_some(prometheus),
            payload_limit: args.payload_limit.get(),
            message_limit: args.payload_limit.get().max(MESSAGE_LIMIT),
            accept_openai_token_ids: args.accept_openai_token_ids,
            key_everywhere: args.door.api_key_everywhere,
            strict_fields: args.strict_fields,
            shutdown: Shutdown {
                delay: Duration::from_secs(args.shutdown_delay.into()),
                drain: Duration::from_secs(args.drain_timeout.into()),
            },
        })
    }

    /// The same for models whose memory has room for requests of `fitting` bytes, if that is known.
    pub(crate) fn for_payload(self, fitting: Option<usize>) -> Self {
        let fitting = fitting.unwrap_or(usize::MAX);
        let (payload_limit, message_limit) =
            (self.payload_limit.min(fitting), self.message_limit.min(fitting));
        if payload_limit < self.payload_limit {
            tracing::warn!(
                "`--payload-limit` is {payload_limit} instead of {}: a single request of more bytes may not fit the \
                 memory; give the server more of it, or a smaller `--payload-limit`",
                self.payload_limit
            );
        }
        Self { payload_limit, message_limit, ..self }
    }
}

fn collector(endpoint: &Endpoint) -> Result<Option<Collector>, ConfigError> {
    endpoint.resolve().map_err(|problem| ConfigError(format!("`--otlp-endpoint {endpoint}` {problem}")))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;

    fn args(flags: &str) -> Args {
        Args::with_flags(flags).unwrap()
    }

    #[test]
    fn the_port_of_vertex_ai_takes_the_place_of_the_servers() {
        for (flags, expected) in [("", 3000), ("--port 80", 80), ("--port 80 --aip-http-port 8080", 8080)] {
            assert_eq!(ServerConfig::resolve(&args(flags)).unwrap().addresses[0].port(), expected, "{flags}");
        }
    }

    #[test]
    fn a_request_is_never_larger_than_the_memory_has_room_for() {
        for (fitting, expected) in [
            (None, [3_000_000, 4 << 20]),
            (Some(8 << 20), [3_000_000, 4 << 20]),
            (Some(3_500_000), [3_000_000, 3_500_000]),
            (Some(70_000), [70_000, 70_000]),
        ] {
            let server =
                ServerConfig::resolve(&args("--payload-limit 3000000")).unwrap().for_payload(fitting);
            assert_eq!([server.payload_limit, server.message_limit], expected, "{fitting:?}");
        }
        let server = ServerConfig::resolve(&args("--payload-limit 5000000")).unwrap();
        assert_eq!(server.message_limit, 5_000_000);
    }

    #[test]
    fn what_is_not_served_is_named() {
        let table = [
            (
                "--otlp-endpoint https://me:s3cret@a:4317",
                "`--otlp-endpoint https://<redacted>@a:4317` asks for encryption, which is not supported: give the \
                 `http://` address of a collector nearby",
            ),
            (
                "--api-key=",
                "`--api-key` is empty: give a key, or leave the flag and the variable API_KEY out",
            ),
            (
                "--hostname 300.1.1.1",
                "`--hostname 300.1.1.1` is not an address: give an IPv4 or IPv6 address, or `localhost`",
            ),
        ];
        for (flags, expected) in table {
            assert_eq!(ServerConfig::resolve(&args(flags)).unwrap_err().to_string(), expected, "{flags}");
        }
    }

    #[test]
    fn a_hostname_is_an_address_or_localhost() {
        let table = [
            ("", vec!["0.0.0.0:3000"]),
            ("--hostname ::", vec!["[::]:3000"]),
            ("--hostname [::1] -p 80", vec!["[::1]:80"]),
            ("--hostname localhost", vec!["127.0.0.1:3000", "[::1]:3000"]),
            ("--hostname 127.0.0.1 --dtype float32", vec!["127.0.0.1:3000"]),
        ];
        for (flags, expected) in table {
            let addresses = ServerConfig::resolve(&args(flags)).unwrap().addresses;
            assert_eq!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{flags}");
        }
    }

    #[test]
    fn grpc_has_the_same_addresses_as_http() {
        let resolve = |flags| ServerConfig::resolve(&args(flags)).unwrap().grpc_addresses;
        assert_eq!(resolve(""), None);
        let expected = ["127.0.0.1:50051", "[::1]:50051"].map(|address| address.parse().unwrap()).to_vec();
        assert_eq!(resolve("--hostname localhost --grpc-port 50051"), Some(expected));
    }

    #[test]
    fn the_metrics_port_is_opened_where_it_differs() {
        let table = [
            ("", Some((9000, false))),
            ("--prometheus-port 9000", Some((9000, true))),
            ("--port 9000", None),
            ("--port 8080 --prometheus-port 8080", None),
            ("--port 0 --prometheus-port 0", Some((0, true))),
            ("--aip-http-port 9000", None),
        ];
        for (flags, expected) in table {
            let expected = expected.map(|(port, explicit)| PrometheusPort { port, explicit });
            assert_eq!(ServerConfig::resolve(&args(flags)).unwrap().prometheus, expected, "{flags}");
        }
    }
}
