//! The transports of this build, and which of them answers on which port.
//!
//! Input: the flags, then an [`AppState`] and open listeners. Output: the [`OpenPort`]s to serve. What must
//! hold: the first port has HTTP if the build has it; every request gets its id, whatever its transport.

use std::io;

use axum::{Router, middleware};
use text_embeddings_door::Listener;

#[cfg(feature = "grpc")]
use crate::grpc;
#[cfg(feature = "http")]
use crate::http;
use crate::{
    args::Args, config::ConfigError, serve::OpenPort, state::AppState, telemetry::requests::identified,
};

/// Where clients connect.
pub(crate) struct Listeners {
    /// The port of `--port`.
    pub(crate) first: Listener,
    /// The port of `--grpc-port`, which only a build with both transports has.
    pub(crate) second: Option<Listener>,
    /// The socket of `--uds-path`, with the first port's transport.
    pub(crate) socket: Option<Listener>,
}

/// The settings of the transports.
#[derive(Debug, Clone)]
pub(crate) struct Transports {
    #[cfg(feature = "http")]
    http: http::HttpSettings,
}

impl Transports {
    /// Checks the flags that concern one transport alone.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first flag that cannot be served.
    #[cfg_attr(
        not(feature = "http"),
        expect(clippy::unnecessary_wraps, unused_variables, reason = "gRPC has no flags of its own")
    )]
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        Ok(Self {
            #[cfg(feature = "http")]
            http: http::HttpSettings::resolve(args)?,
        })
    }

    /// The application of each listener.
    ///
    /// # Errors
    ///
    /// If a transport cannot be set up.
    pub(crate) fn open_ports(&self, state: &AppState, listeners: Listeners) -> io::Result<Vec<OpenPort>> {
        let Listeners { first, second, socket } = listeners;
        let mut ports = vec![self.first_port(state, first)];
        #[cfg(feature = "grpc")]
        if let Some(listener) = second {
            ports.push(grpc_port(state, listener));
        }
        #[cfg(not(feature = "grpc"))]
        drop(second);
        ports.extend(socket.map(|listener| self.first_port(state, listener)));
        ports.into_iter().collect()
    }

    #[cfg(feature = "http")]
    #[expect(clippy::unnecessary_wraps, reason = "gRPC can fail")]
    fn first_port(&self, state: &AppState, listener: Listener) -> io::Result<OpenPort> {
        let app = with_ids(http::all_routes(state, &self.http));
        Ok(OpenPort { listener, protocol: http::PROTOCOL, app })
    }

    #[cfg(not(feature = "http"))]
    #[expect(clippy::unused_self, reason = "HTTP has settings")]
    fn first_port(&self, state: &AppState, listener: Listener) -> io::Result<OpenPort> {
        grpc_port(state, listener)
    }
}

#[cfg(feature = "grpc")]
fn grpc_port(state: &AppState, listener: Listener) -> io::Result<OpenPort> {
    Ok(OpenPort { listener, protocol: grpc::PROTOCOL, app: with_ids(grpc::all_services(state)?) })
}

fn with_ids(app: Router) -> Router {
    app.layer(middleware::from_fn(identified))
}
