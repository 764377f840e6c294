//! The binary as its user sees it: what it prints and how it ends when it cannot start.
#![expect(clippy::unwrap_used, reason = "a failed test should stop here")]

use std::{
    io::Write,
    net::TcpListener,
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

fn run(flags: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_text-embeddings-router"));
    command.args(flags.split_whitespace()).env_clear().envs(variables.iter().copied());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a server whose port is taken, after the shell has set a limit. Standard output is a file.
fn run_limited(limit: &str) -> Output {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    Command::new("sh")
        .args(["-c", &format!("ulimit {limit} && exec \"$@\""), "sh"])
        .args([env!("CARGO_BIN_EXE_text-embeddings-router"), "--hostname", "127.0.0.1", "--port", &port])
        .stdout(tempfile::tempfile().unwrap())
        .output()
        .unwrap()
}

#[test]
fn too_few_descriptors_are_refused_at_the_start_and_full_files_end_no_server() {
    for (limit, expected) in [
        ("-n 12", "this process may open 12 files, but the server needs at least 32: raise the limit"),
        // The first line of the log is already too much.
        ("-f 0", "cannot listen on 127.0.0.1:"),
    ] {
        let output = run_limited(limit);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{limit}: {:?} {message}", output.status);
        assert!(message.starts_with(&format!("Error: {expected}")), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn the_links_of_kubernetes_services_are_no_ports() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let links = [
        ("PROMETHEUS_PORT", "tcp://10.0.0.1:9090"),
        ("GRPC_PORT", "udp://10.0.0.2:53"),
        ("AIP_HTTP_PORT", "tcp://[fd00::1]:80"),
    ];
    let output = run(&format!("--model-id m --hostname 127.0.0.1 --port {port}"), &links);
    let message = text(&output.stderr);
    assert!(message.starts_with(&format!("Error: cannot listen on 127.0.0.1:{port} (")), "{message}");
    for (variable, _) in links {
        let warning =
            format!("the variable {variable} holds the address of a service, not a port: it is ignored");
        assert_eq!(text(&output.stdout).matches(&warning).count(), 1, "{}", text(&output.stdout));
    }
    let output = run("--model-id m", &[("PROMETHEUS_PORT", "many")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--prometheus-port"), "{}", text(&output.stderr));
}

#[test]
fn a_containers_name_in_hostname_is_no_error_and_does_not_bind() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run("--model-id m", &[("HOSTNAME", "3f2a9c"), ("PORT", &port)]);
    let message = text(&output.stderr);
    assert!(message.starts_with(&format!("Error: cannot listen on 0.0.0.0:{port} (")), "{message}");
}

#[test]
fn a_signal_ends_a_server_that_is_still_loading() {
    // A Hub that accepts the connection and never answers.
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    let cache = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Command::new(env!("CARGO_BIN_EXE_text-embeddings-router"))
            .args("--model-id a/b --hostname 127.0.0.1 --port 0 --prometheus-port 0".split(' '))
            .env_clear()
            .envs([("HF_ENDPOINT", endpoint.as_str()), ("HF_HOME", cache.path().to_str().unwrap())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let _connection = hub.accept().unwrap();
        kill_process(Pid::from_child(&server), signal).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn a_server_that_watches_standard_input_ends_with_it_while_it_is_still_loading() {
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    let cache = tempfile::tempdir().unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_text-embeddings-router"))
        .args("--model-id a/b --hostname 127.0.0.1 --port 0 --prometheus-port 0 --stop-with-stdin".split(' '))
        .env_clear()
        .envs([("HF_ENDPOINT", endpoint.as_str()), ("HF_HOME", cache.path().to_str().unwrap())])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _connection = hub.accept().unwrap();
    // More than a pipe holds: what is written is read and has no meaning.
    server.stdin.as_mut().unwrap().write_all("x".repeat(1 << 20).as_bytes()).unwrap();
    assert!(server.try_wait().unwrap().is_none());
    drop(server.stdin.take());
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn health_says_why_a_server_is_not_ready() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let flags = format!("health --url http://127.0.0.1:{nobody}/");
    let port = nobody.to_string();
    for (flags, variables) in [(flags.as_str(), ("PORT", "1")), ("health", ("PORT", port.as_str()))] {
        let output = run(flags, &[variables]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        let expected = format!("Error: no answer from http://127.0.0.1:{nobody}/health/ready");
        assert!(message.starts_with(&expected) && message.lines().count() == 1, "{message}");
    }
    assert_eq!(run("health --port many", &[]).status.code(), Some(2));
}
