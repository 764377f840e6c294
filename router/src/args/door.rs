//! The flags of connections: who may connect, over what, and the limits on each client's time and memory.
//!
//! Part of [`super::Args`]. Timeouts are in seconds, budgets in bytes.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
};

use clap::builder::BoolishValueParser;

use super::values::at_least_one;

/// The default of `--max-unread-bytes`, unless one body may be larger.
const DEFAULT_UNREAD_BYTES: usize = 256 << 20;

/// How clients connect, and the limits on each of them.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(next_help_heading = "Connections")]
pub(crate) struct DoorArgs {
    /// The file with further keys that clients may send, one on each line [default: none].
    ///
    /// Blank lines and lines that begin with `#` are skipped. The file is read again on SIGHUP, and within a
    /// minute of a change.
    #[arg(long, env, value_name = "PATH", help_heading = "Network")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Require the key for everything except health probes.
    ///
    /// That includes `/metrics` on both ports, `/docs`, `/api-doc/openapi.json`, `/playground` and gRPC
    /// reflection.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Network")]
    pub(crate) api_key_everywhere: bool,

    /// The certificate chain in PEM with which HTTP and gRPC are served over TLS [default: no TLS].
    ///
    /// It is read again on SIGHUP, and within a minute of a change.
    #[arg(long, env, value_name = "PATH", requires = "tls_key", help_heading = "Network")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The certificate's private key in PEM, without a password.
    #[arg(long, env, value_name = "PATH", requires = "tls_cert", help_heading = "Network")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The Unix socket to listen on, in addition to `--port`: the same routes, without TLS [default: none].
    #[arg(long, env, value_name = "PATH", help_heading = "Network")]
    pub(crate) uds_path: Option<PathBuf>,

    /// The most connections of all ports together [default: 4096, fewer if the process may not open as many
    /// descriptors].
    ///
    /// If there are more, the connection that has been waiting for its client the longest is closed.
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) max_connections: Option<NonZeroUsize>,

    /// The most seconds for the head of a request.
    ///
    /// Counted from its first byte, or from connecting, TLS included.
    #[arg(long, env, default_value = "30", value_parser = at_least_one::<NonZeroU32>, value_name = "SECONDS")]
    pub(crate) header_timeout: NonZeroU32,

    /// The most seconds for a request's body, plus one for each 16 KiB that have arrived; over gRPC for each
    /// message.
    #[arg(long, env, default_value = "30", value_parser = at_least_one::<NonZeroU32>, value_name = "SECONDS")]
    pub(crate) body_timeout: NonZeroU32,

    /// The most seconds that an answer waits for a client that reads nothing of it, over HTTP/1.1, HTTP/2 and
    /// gRPC. Then the connection is closed.
    #[arg(long, env, default_value = "30", value_parser = at_least_one::<NonZeroU32>, value_name = "SECONDS")]
    pub(crate) write_timeout: NonZeroU32,

    /// The most seconds that a connection may stay without a request.
    ///
    /// It should be longer than the idle timeout of load balancers: if the server closes first, a request may
    /// meet a closed connection.
    #[arg(
        long, env, default_value = "660", value_parser = at_least_one::<NonZeroU32>, value_name = "SECONDS"
    )]
    pub(crate) idle_timeout: NonZeroU32,

    /// The most bytes of request bodies and gRPC messages that are not admitted yet, of all connections
    /// [default: 268435456, at least `--payload-limit`].
    ///
    /// Those that still arrive count, and complete ones that wait to be parsed or for a permit. If there are
    /// more, the oldest request is refused with status 503, or `RESOURCE_EXHAUSTED` over gRPC.
    #[arg(long, env, value_parser = at_least_one::<NonZeroUsize>, value_name = "BYTES")]
    pub(crate) max_unread_bytes: Option<NonZeroUsize>,

    /// The most bytes of answers that clients have not read yet.
    ///
    /// If there are more, the connection of the oldest answer is closed.
    #[arg(
        long, env, default_value = "268435456", value_parser = at_least_one::<NonZeroUsize>,
        value_name = "BYTES"
    )]
    pub(crate) max_unsent_bytes: NonZeroUsize,
}

impl DoorArgs {
    /// The most bytes of unread requests, if a body may have `payload_limit` bytes.
    pub(crate) fn unread_bytes(&self, payload_limit: usize) -> usize {
        self.max_unread_bytes.map_or_else(|| DEFAULT_UNREAD_BYTES.max(payload_limit), NonZeroUsize::get)
    }
}
