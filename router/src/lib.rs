//! The process: arguments, then a command, or a server's log, runtime, start, serving and orderly end.
//!
//! What must hold: a server that cannot start, or a command that fails, tells why in one line on standard
//! error and exits with 1; SIGTERM and SIGINT end a server with 0 after the requests in flight, a second
//! signal ends it at once; a lost device ends it with 1 after the requests in flight.

mod args;
mod auth;
mod available;
#[cfg(test)]
mod cli_docs;
mod collector;
mod commands;
mod config;
mod control_groups;
mod cost;
mod current;
mod device_turn;
mod features;
mod file_versions;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "plain-http")]
mod http;
mod info;
mod machine;
mod memory;
mod models;
mod reload;
mod renewal;
mod residency;
mod serve;
mod signals;
mod startup;
mod state;
mod telemetry;
#[cfg(test)]
mod testing;
mod transports;
mod trial;
mod vector_numbers;

use std::{
    fmt::Write as _,
    io::{self, Write},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context;
use text_embeddings_core::{error::shorten_message, metrics::ModelMetrics};
use text_embeddings_door::{self as door, Certificate, Door, Listener, Reserved, ReservedPath, Stop};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args::{Args, Given, LoadTime},
    auth::ApiKeys,
    commands::{Invocation, ServeArgs},
    config::{ServerConfig, Shutdown, client_limits, descriptors},
    current::CurrentModels,
    device_turn::DeviceTurns,
    machine::Machine,
    models::{Models, PendingModel, Served},
    renewal::Renewal,
    serve::Ended,
    signals::{Parent, StopSignals},
    state::AppState,
    telemetry::{logging::Escaped, traces::Traces},
    transports::{CurrentApplications, Listeners, Transports},
};

/// Runs the program with this process's arguments.
pub fn main() -> ExitCode {
    let (ended, given) = match Invocation::from_process() {
        Invocation::Serve(args, given) => {
            let ended = match std::env::var(trial::VARIABLE) {
                Ok(name) => trial::run_trial(&args.list, &name),
                Err(_) => run_server(*args, &given),
            };
            (ended, given)
        }
        #[cfg(feature = "tls")]
        Invocation::Curl(arguments) => {
            (commands::curl::answer_check(&arguments).map(|()| ExitCode::SUCCESS), Given::default())
        }
        Invocation::Run(command, given) => (command.run().map(|()| ExitCode::SUCCESS), given),
    };
    match ended {
        Ok(code) => code,
        // The reader of the results closed the pipe because it has enough of them, as `head` does.
        Err(error) if commands::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // It may repeat a part of a file, which may be as long as the file.
            let message = shorten_message(format!("{error:#}").replace('\n', " "));
            let line = given.explained(&message);
            // If even this cannot be written, there is no other place to report it.
            let _ = writeln!(io::stderr(), "Error: {}", Escaped(&line));
            ExitCode::from(if error.is::<commands::Usage>() { 2 } else { 1 })
        }
    }
}

/// See [`http::fuzzing`].
#[cfg(feature = "fuzzing")]
pub fn fuzz_request(data: &[u8]) {
    http::fuzzing::request(data);
}

fn run_server(args: ServeArgs, given: &Given) -> anyhow::Result<ExitCode> {
    let (server, transports) = (ServerConfig::resolve(&args.server)?, Transports::resolve(&args.server)?);
    let runtime = signals::start_runtime()?;
    let _log = telemetry::logging::start(args.server.json_output, args.server.disable_spans)?;
    tracing::info!("{} {given}", info::PROGRAM);
    let traces = {
        let _on_runtime = runtime.enter();
        Traces::start(server.collector.as_ref(), &args.server.otlp_service_name)?
    };
    let ended = runtime.block_on(start_and_serve(args, server, transports, traces.clone()));
    traces.finish();
    // A model that still loads, or a batch that is still computed, must not hold the process back.
    runtime.shutdown_background();
    ended.map(ExitCode::from)
}

/// Reserves the ports first, so that a port in use is an error before a model is loaded, and opens them when
/// the model is ready.
async fn start_and_serve(
    ServeArgs { server: args, list, file }: ServeArgs,
    server: ServerConfig,
    transports: Transports,
    traces: Traces,
) -> anyhow::Result<Ended> {
    log_notices(&args);
    let keys = ApiKeys::load(args.api_key.as_ref(), args.door.api_key_file.as_deref())?;
    let door = Door::new(client_limits(&args.door, server.payload_limit, descriptors())?);
    let mut machine = Machine::from_args(&args)?;
    // A models file may get more of them.
    if list.models.len() > 1 || file.is_some() {
        machine.turns = Some(DeviceTurns::default());
    }
    let names: Vec<ModelMetrics> =
        list.models.iter().map(|args| machine.metrics_of(args.model_name())).collect();
    let metrics = telemetry::metrics::start(&names, door.clone())?;
    let ports = Ports::take(&args, &server)?;
    if let Some(port) = server.prometheus {
        let keys = if server.key_everywhere { keys.clone() } else { ApiKeys::default() };
        telemetry::metrics::listen(port, ports.first.address().ip(), metrics.clone(), keys)?;
    }
    let signals = StopSignals::listen();
    let hangups = file.as_ref().map(|_| signal(SignalKind::hangup())).transpose()?;
    let parent =
        Parent::watch(args.stop_with_stdin).context("the system gives no thread to watch standard input")?;
    tokio::spawn(reload::watch(keys.clone(), ports.certificate.clone()));
    let (at_start, later): (Vec<Args>, Vec<Args>) =
        list.models.iter().cloned().partition(|model| model.load == LoadTime::AtStart);
    let started = tokio::select! {
        started = tokio::spawn(start_models(at_start, machine.clone())) => started.context("the start broke off")??,
        () = signals.clone().received(1) => return Ok(Ended::Asked),
        () = parent.clone().gone() => return Ok(Ended::Asked),
    };
    let pending = later.iter().map(|args| Arc::new(PendingModel::from_args(args))).collect();
    let models = Models::new(started, &list.cascades, pending)?;
    metrics.watch(&models);
    let summaries = models.all_models().iter().map(|served| served.summary.as_str());
    let summary = summaries.collect::<Vec<_>>().join("; ");
    memory::give_back().context("the system gives no thread to look after memory")?;
    let drain = server.shutdown.drain;
    let stop = stop_when_asked(signals.clone(), parent, server.shutdown);
    let patience = startup::flags::device_timeout(&args);
    let max_waiting = args.max_concurrent_requests.get();
    let (current, orders) = CurrentModels::from_models(models.clone(), max_waiting, patience);
    let fitting = models.all_models().iter().filter_map(|served| served.max_payload).min();
    let server = Arc::new(server.for_payload(fitting));
    let state =
        AppState { models, current: current.clone(), server, keys, metrics, traces, stop: stop.clone() };
    let listeners = ports.listen(&summary)?;
    let applications = CurrentApplications::from_state(transports, &state, listeners.second.is_some())
        .context("a transport cannot be set up")?;
    let ports = applications.open_ports(listeners);
    if let (Some(file), Some(hangups)) = (file, hangups) {
        tokio::spawn(
            Renewal { file, list, machine, state, applications, patience }.run_renewal(hangups, orders),
        );
    }
    let ended = tokio::select! {
        ended = serve::serve(&current, &stop, ports, &door, drain) => ended,
        () = signals.received(2) => {
            tracing::warn!("a second signal: requests in flight are dropped");
            Ended::Asked
        }
    };
    // Dropping a model would wait for its batch, or for a load that hangs.
    std::mem::forget(current);
    Ok(ended)
}

/// The end of the server, which a signal or the end of the parent asks for.
fn stop_when_asked(signals: StopSignals, parent: Parent, Shutdown { delay, drain }: Shutdown) -> Stop {
    let asked = async move {
        let reason = tokio::select! {
            () = signals.received(1) => "",
            () = parent.gone() => "standard input ended, ",
        };
        let first = if delay.is_zero() {
            String::new()
        } else {
            format!("serving on for {delay:?}, not ready; then ")
        };
        tracing::info!(
            "{reason}stopping: {first}no new connections, up to {drain:?} for the requests in flight"
        );
    };
    Stop::on(asked, delay)
}

/// Logs consequences of the build and of flags that the user may not have meant.
fn log_notices(args: &Args) {
    for notice in features::notices() {
        tracing::info!("{notice}");
    }
    if args.model.hub.hf_api_token.is_some() {
        tracing::warn!("`--hf-api-token` is deprecated, as in text-embeddings-inference: give `--hf-token`");
    }
    if let Some(name) = &args.ignored_hostname {
        tracing::warn!("the variable HOSTNAME holds a name ({name}), not an address: listening on 0.0.0.0");
    }
    for variable in &args.ignored_variables {
        tracing::warn!("the variable {variable} holds the address of a service, not a port: it is ignored");
    }
}

/// The address of the server for a browser on this machine.
fn browser_address(address: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    if address.ip().is_unspecified() {
        format!("{scheme}://localhost:{}", address.port())
    } else {
        format!("{scheme}://{address}")
    }
}

/// Loads the models one after the other.
async fn start_models(models: Vec<Args>, machine: Machine) -> anyhow::Result<Vec<Arc<Served>>> {
    if let ([only], None) = (&models[..], &machine.turns) {
        return Ok(vec![Arc::new(startup::start(only, &machine).await?)]);
    }
    let mut started = Vec::with_capacity(models.len());
    for args in models {
        let name = args.model_name();
        tracing::info!("Loading the model `{name}`");
        let served = startup::start(&args, &machine).await;
        started.push(Arc::new(served.with_context(|| format!("model `{name}`"))?));
    }
    Ok(started)
}

/// The server's ports, reserved but not open.
struct Ports {
    first: Reserved,
    second: Option<Reserved>,
    socket: Option<ReservedPath>,
    certificate: Option<Certificate>,
}

impl Ports {
    fn take(args: &Args, server: &ServerConfig) -> anyhow::Result<Self> {
        let files = args.door.tls_cert.as_deref().zip(args.door.tls_key.as_deref());
        let certificate = files.map(|(certificate, key)| Certificate::load(certificate, key)).transpose()?;
        let first = door::reserve_port(&server.addresses, "--port")?;
        let second = server.grpc_addresses.as_deref();
        let second = second.map(|addresses| door::reserve_port(addresses, "--grpc-port")).transpose()?;
        let socket = args.door.uds_path.as_deref().map(door::reserve_path).transpose()?;
        Ok(Self { first, second, socket, certificate })
    }

    /// Opens all of them, and logs it with the `summary` of the model.
    fn listen(self, summary: &str) -> anyhow::Result<Listeners> {
        let Self { first, second, socket, certificate } = self;
        let (tls, at) = (if certificate.is_some() { " with TLS" } else { "" }, first.address());
        let mut ready = format!("Ready: listening on {at}");
        if let Some(second) = &second {
            write!(ready, ", gRPC on {}", second.address())?;
        }
        ready.push_str(tls);
        let open = |reserved: Reserved| -> anyhow::Result<Listener> {
            let listener = reserved.listen()?;
            Ok(match &certificate {
                Some(certificate) => Listener::Tls(listener, certificate.clone()),
                None => Listener::Tcp(listener),
            })
        };
        let (first, second) = (open(first)?, second.map(open).transpose()?);
        let socket = socket.map(ReservedPath::listen).transpose()?;
        if let Some((_, file)) = &socket {
            write!(ready, ", and on {}", file.path().display())?;
        }
        tracing::info!("{ready}; {} serves {summary}", info::PROGRAM);
        if cfg!(feature = "plain-http") {
            let page = browser_address(at, certificate.is_some());
            tracing::info!("Try it in a browser: {page}/playground; {page}/docs lists the routes");
        }
        let socket = socket.map(|(listener, file)| Listener::Unix(listener, file));
        Ok(Listeners { first, second, socket })
    }
}
