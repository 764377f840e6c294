//! Variables of the environment that a container platform sets for other purposes than this server's flags.
//!
//! Input: the command line before it is parsed, or a flag's value. Output: the same without those variables,
//! and their names or values, for the log. What must hold: a flag on the command line is never set aside.

use std::{env, ffi::OsString, net::IpAddr};

use clap::{Command, Id};

/// Ignores the variables of ports that hold a service link. Gives their names. Kubernetes describes each
/// service to each pod in such a variable: for a service `prometheus`, it sets
/// `PROMETHEUS_PORT=tcp://10.0.0.1:9090`.
pub(crate) fn set_aside_service_links(mut command: Command) -> (Command, Vec<String>) {
    let links = command.get_arguments().filter(|argument| argument.get_id().as_str().ends_with("port"));
    let links: Vec<(Id, OsString)> = links
        .filter_map(|argument| Some((argument.get_id().clone(), argument.get_env()?.to_owned())))
        .filter(|(_, variable)| env::var(variable).is_ok_and(|value| is_service_link(&value)))
        .collect();
    for (id, _) in &links {
        command = command.mut_arg(id, |argument| argument.env(None::<&'static str>));
    }
    (command, links.into_iter().map(|(_, variable)| variable.to_string_lossy().into_owned()).collect())
}

fn is_service_link(value: &str) -> bool {
    value.split_once("://").is_some_and(|(scheme, _)| ["tcp", "udp", "sctp"].contains(&scheme))
}

/// Every container runtime sets `HOSTNAME` to the container's name, which does not mean that the server
/// should listen on that address only. The variable counts if it holds an address or `localhost`. Otherwise
/// `hostname` becomes every address, and its value is returned.
pub(super) fn set_aside_container_name(hostname: &mut String) -> Option<String> {
    let is_name = parse_hostname(hostname).is_none();
    is_name.then(|| std::mem::replace(hostname, "0.0.0.0".to_owned()))
}

/// The addresses of a hostname, the preferred one first: for `localhost` both, because a machine may lack
/// IPv4 or IPv6.
pub(crate) fn parse_hostname(hostname: &str) -> Option<Vec<IpAddr>> {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if hostname.eq_ignore_ascii_case("localhost") {
        return Some(vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    }
    let unbracketed = hostname.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(hostname);
    unbracketed.parse().ok().map(|address| vec![address])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_name_in_the_variable_is_set_aside() {
        let mut container = "3f2a9c".to_owned();
        assert_eq!(set_aside_container_name(&mut container).as_deref(), Some("3f2a9c"));
        assert_eq!(container, "0.0.0.0");
        let mut address = "127.0.0.1".to_owned();
        assert_eq!(set_aside_container_name(&mut address), None);
        assert_eq!(address, "127.0.0.1");
    }
}
