//! The program under the name `curl`: the image has no curl, and health checks that were written for
//! text-embeddings-inference's image call it.
//!
//! Input: the arguments of `curl -f http://localhost/health`. Output: as of the command `health`. What must
//! hold: no address but a health route of this machine is asked, and any other use is refused in a sentence.

use anyhow::bail;
use reqwest::Url;

use super::health;

/// The routes that may be asked.
const ROUTES: [&str; 3] = ["/health", "/health/live", "/health/ready"];

/// Asks the health route that `arguments` name.
pub(crate) fn answer_check(arguments: &[String]) -> anyhow::Result<()> {
    match health_address(arguments) {
        Some(address) => health::ask_route(&address, false),
        None => bail!(
            "`curl` is here for health checks of this server only, such as `curl -f http://localhost:80/health`: \
             use another image for `curl {}`",
            arguments.join(" ")
        ),
    }
}

/// The address that `curl` with these arguments would ask, if that is a health route of this machine and
/// only options are given that the exit code already follows.
fn health_address(arguments: &[String]) -> Option<String> {
    let (options, addresses): (Vec<_>, Vec<_>) =
        arguments.iter().map(String::as_str).partition(|word| word.starts_with('-'));
    let [address] = addresses[..] else { return None };
    let are_known = options.into_iter().all(|option| match option.strip_prefix("--") {
        Some(name) => ["fail", "silent", "show-error"].contains(&name),
        None => option[1..].chars().all(|letter| "fsS".contains(letter)),
    });
    if !are_known {
        return None;
    }
    let address = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let url = Url::parse(&address).ok()?;
    let is_local = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]" | "0.0.0.0"));
    (url.scheme() == "http" && is_local && ROUTES.contains(&url.path())).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::health_address;

    #[test]
    fn only_health_checks_of_this_machine_are_answered() {
        for (arguments, expected) in [
            ("-f http://localhost/health", Some("http://localhost/health")),
            ("--fail http://localhost:80/health", Some("http://localhost:80/health")),
            ("-fsS http://127.0.0.1:8080/health/ready", Some("http://127.0.0.1:8080/health/ready")),
            ("-s -f localhost:3000/health", Some("http://localhost:3000/health")),
            ("http://[::1]/health/live", Some("http://[::1]/health/live")),
            ("", None),
            ("-f", None),
            ("-f http://example.com/health", None),
            ("-f http://localhost.example.com/health", None),
            ("-f http://localhost@example.com/health", None),
            ("-f http://localhost/info", None),
            ("-f http://localhost/health/../info", None),
            ("-f https://localhost/health", None),
            ("-f file:///health", None),
            ("-o /etc/passwd http://localhost/health", None),
            ("-f http://localhost/health http://localhost/health", None),
            ("-X POST http://localhost/health", None),
        ] {
            let words: Vec<String> = arguments.split_whitespace().map(Into::into).collect();
            assert_eq!(health_address(&words).as_deref(), expected, "{arguments}");
        }
    }
}
