//! The transports of this build, and which of them answers on which port.
//!
//! Input: the flags, then an [`AppState`] and open listeners. Output: the [`OpenPort`]s to serve. What must
//! hold: the first port has HTTP if the build has it; every request gets its id, whatever its transport;
//! while ports and connections stay, other models can take over from one request to the next.

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
};

use axum::{Router, extract::Request, middleware};
use text_embeddings_door::{Listener, Protocol};
use tower_service::Service;

#[cfg(feature = "grpc")]
use crate::grpc;
#[cfg(feature = "plain-http")]
use crate::http;
use crate::{
    args::Args, config::ConfigError, current::Applications, serve::OpenPort, state::AppState,
    telemetry::requests::identified,
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
    #[cfg(feature = "plain-http")]
    http: http::HttpSettings,
}

impl Transports {
    /// Checks the flags that concern one transport alone.
    #[cfg_attr(
        not(feature = "plain-http"),
        expect(clippy::unnecessary_wraps, unused_variables, reason = "gRPC has no flags of its own")
    )]
    pub(crate) fn resolve(args: &Args) -> Result<Self, ConfigError> {
        Ok(Self {
            #[cfg(feature = "plain-http")]
            http: http::HttpSettings::resolve(args)?,
        })
    }

    /// The applications for these models.
    #[cfg_attr(not(feature = "plain-http"), expect(clippy::unused_self, reason = "HTTP has settings"))]
    #[cfg_attr(not(feature = "grpc"), expect(clippy::unnecessary_wraps, reason = "gRPC can fail"))]
    fn make_applications(&self, state: &AppState, has_second: bool) -> io::Result<Applications> {
        Ok(Applications {
            #[cfg(feature = "plain-http")]
            first: http::all_routes(state, &self.http),
            #[cfg(not(feature = "plain-http"))]
            first: grpc::all_services(state)?,
            #[cfg(feature = "grpc")]
            second: if has_second { Some(grpc::all_services(state)?) } else { None },
            #[cfg(not(feature = "grpc"))]
            second: if has_second { Some(Router::new()) } else { None },
        })
    }
}

/// The applications that answer now. Cheap to clone; all clones change together.
#[derive(Clone)]
pub(crate) struct CurrentApplications {
    transports: Transports,
    has_second: bool,
    now: Arc<RwLock<Applications>>,
}

impl CurrentApplications {
    /// Those for the models of `state`, on one port or on two.
    pub(crate) fn from_state(transports: Transports, state: &AppState, has_second: bool) -> io::Result<Self> {
        let now = Arc::new(RwLock::new(transports.make_applications(state, has_second)?));
        Ok(Self { transports, has_second, now })
    }

    /// The applications that answer now.
    pub(crate) fn read_now(&self) -> Applications {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the models of `state` answer later requests. Fails if a transport cannot be set up. The earlier
    /// models answer on.
    pub(crate) fn replace_models(&self, state: &AppState) -> io::Result<()> {
        let next = self.transports.make_applications(state, self.has_second)?;
        let before = std::mem::replace(&mut *self.now.write().unwrap_or_else(PoisonError::into_inner), next);
        // The last use of a model may end here, which takes time: not under the lock.
        drop(before);
        Ok(())
    }

    /// The application of each listener.
    pub(crate) fn open_ports(&self, listeners: Listeners) -> Vec<OpenPort> {
        let Listeners { first, second, socket } = listeners;
        let mut ports = vec![self.first_port(first)];
        #[cfg(feature = "grpc")]
        if let Some(listener) = second {
            let app = self.app_of_now(|applications| applications.second.clone().unwrap_or_default());
            ports.push(OpenPort { listener, protocol: Protocol::Grpc, app });
        }
        #[cfg(not(feature = "grpc"))]
        drop(second);
        ports.extend(socket.map(|listener| self.first_port(listener)));
        ports
    }

    fn first_port(&self, listener: Listener) -> OpenPort {
        let protocol = if cfg!(feature = "plain-http") { Protocol::Http } else { Protocol::Grpc };
        OpenPort { listener, protocol, app: self.app_of_now(|applications| applications.first.clone()) }
    }

    /// An application that has each request answered by the one of now.
    fn app_of_now(&self, choose: fn(&Applications) -> Router) -> Router {
        let now = Arc::clone(&self.now);
        let app = Router::new().fallback(async move |request: Request| {
            let mut app = choose(&now.read().unwrap_or_else(PoisonError::into_inner));
            let Ok(response) = app.call(request).await;
            response
        });
        app.layer(middleware::from_fn(identified))
    }
}
