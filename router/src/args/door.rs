//! The flags of connections: who may connect, over what, and how much time and memory a client may take.
//!
//! Part of [`super::Args`]. Timeouts are in seconds, budgets in bytes.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
};

use clap::builder::BoolishValueParser;

/// How clients connect, and what each of them may take.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DoorArgs {
    /// The file with further keys that clients may send, one on each line; blank lines and lines that begin with `#` are
    /// skipped. Read again on SIGHUP, and within a minute of a change [default: none].
    #[arg(long, env, value_name = "PATH", help_heading = "Network")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Want the key everywhere except for health probes: for `/metrics` on both ports, `/docs`, `/api-doc/openapi.json`,
    /// `/playground` and gRPC reflection, too.
    #[arg(long, env, value_parser = BoolishValueParser::new(), help_heading = "Network")]
    pub(crate) api_key_everywhere: bool,

    /// The certificate chain in PEM to serve HTTP and gRPC over TLS with. Read again on SIGHUP, and within a minute of a
    /// change [default: no TLS].
    #[arg(long, env, value_name = "PATH", requires = "tls_key", help_heading = "Network")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The certificate's private key in PEM, without a password.
    #[arg(long, env, value_name = "PATH", requires = "tls_cert", help_heading = "Network")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The Unix socket to listen on, in addition to `--port`: the same routes, without TLS [default: none].
    #[arg(long, env, value_name = "PATH", help_heading = "Network")]
    pub(crate) uds_path: Option<PathBuf>,

    /// The connections of all ports together. Where no place is left, the connection that has been waiting for its client
    /// the longest is closed [default: 4096, fewer if the process may not open as many descriptors].
    #[arg(long, env, help_heading = "Connections")]
    pub(crate) max_connections: Option<NonZeroUsize>,

    /// The seconds for the head of a request, counted from its first byte or from connecting, TLS included.
    #[arg(long, env, default_value = "30", value_name = "SECONDS", help_heading = "Connections")]
    pub(crate) header_timeout: NonZeroU32,

    /// The seconds for a request's body, and one more for each 16 KiB of it that have arrived; over gRPC for each message.
    #[arg(long, env, default_value = "30", value_name = "SECONDS", help_heading = "Connections")]
    pub(crate) body_timeout: NonZeroU32,

    /// The seconds that an answer may wait for a client that does not read.
    #[arg(long, env, default_value = "30", value_name = "SECONDS", help_heading = "Connections")]
    pub(crate) write_timeout: NonZeroU32,

    /// The seconds that a connection may be without a request. Longer than load balancers keep theirs: they must be the
    /// first to close, or a request meets a closed connection.
    #[arg(long, env, default_value = "660", value_name = "SECONDS", help_heading = "Connections")]
    pub(crate) idle_timeout: NonZeroU32,

    /// The bytes of unfinished request bodies of all connections. Beyond, the oldest is refused with status 503 [default:
    /// 268435456, at least `--payload-limit`].
    #[arg(long, env, value_name = "BYTES", help_heading = "Connections")]
    pub(crate) max_unread_bytes: Option<NonZeroUsize>,

    /// The bytes of answers that clients have not read yet. Beyond, the connection of the oldest is closed.
    #[arg(long, env, default_value = "268435456", value_name = "BYTES", help_heading = "Connections")]
    pub(crate) max_unsent_bytes: NonZeroUsize,
}
