//! The limits for clients: connections, time and memory.
//!
//! Input: [`DoorArgs`] and the process's limit of descriptors. Output: [`ClientLimits`]. What must hold: some
//! descriptors always remain for files and for connections that are refused; a flag that cannot be honoured
//! is an error.

use std::{num::NonZeroUsize, time::Duration};

use rustix::process::{Resource, getrlimit, setrlimit};
use text_embeddings_door::ClientLimits;

use super::ConfigError;
use crate::args::DoorArgs;

/// Enough for several times `--max-concurrent-requests` and a fleet of idle clients; 4096 half-sent heads are
/// 256 MiB.
const DEFAULT_CONNECTIONS: usize = 4096;
/// Descriptors that connections cannot have: the log, model files, the runtime, the Hub, and connections that
/// are about to be refused or closed need them.
const SPARE_DESCRIPTORS: usize = 64;

/// The fewest descriptors with which a server can work: one that serves has 12 to 16 open (streams, ports,
/// the runtime), and it opens files, connections and pipes of its own.
const MIN_DESCRIPTORS: usize = 32;

/// Checks the flags against each other and, if it is known, against the number of `descriptors`. Fails if
/// there are too few descriptors, more connections than descriptors, or less room for bodies than the largest
/// body needs.
pub(crate) fn client_limits(
    args: &DoorArgs,
    payload_limit: usize,
    descriptors: Option<usize>,
) -> Result<ClientLimits, ConfigError> {
    let [header, body, write, idle] =
        [args.header_timeout, args.body_timeout, args.write_timeout, args.idle_timeout]
            .map(|seconds| Duration::from_secs(seconds.get().into()));
    let unread_bytes = args.unread_bytes(payload_limit);
    if unread_bytes < payload_limit {
        return Err(ConfigError(format!(
            "`--max-unread-bytes {unread_bytes}` is less than one body may have: give at least `--payload-limit`, \
             {payload_limit}"
        )));
    }
    Ok(ClientLimits {
        connections: connections(args.max_connections, descriptors)?,
        header,
        body,
        write,
        idle,
        unread_bytes,
        unsent_bytes: args.max_unsent_bytes.get(),
    })
}

fn connections(asked: Option<NonZeroUsize>, descriptors: Option<usize>) -> Result<usize, ConfigError> {
    let descriptors = descriptors.unwrap_or(usize::MAX);
    if descriptors < MIN_DESCRIPTORS {
        return Err(ConfigError(format!(
            "this process may open {descriptors} files, but the server needs at least {MIN_DESCRIPTORS}: raise the \
             limit (`ulimit -n`)"
        )));
    }
    // A process with few descriptors serves few clients rather than none.
    let max = descriptors.saturating_sub(SPARE_DESCRIPTORS).max(descriptors / 4);
    match asked.map(NonZeroUsize::get) {
        Some(asked) if asked > max => Err(ConfigError(format!(
            "`--max-connections {asked}` is more than the {max} that this process has descriptors for: raise its \
             limit (`ulimit -n`), or give less"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(DEFAULT_CONNECTIONS.min(max)),
    }
}

/// Raises the process's limit of open descriptors as far as it is allowed. Returns the limit, `None` if there
/// is none.
pub(crate) fn descriptors() -> Option<usize> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let max = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
        // Some systems refuse "no limit" for descriptors. The limit then stays as it was.
        if setrlimit(Resource::Nofile, max).is_ok() {
            limit = getrlimit(Resource::Nofile);
        }
    }
    limit.current.map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use crate::args::Args;

    fn resolve(flags: &str, descriptors: Option<usize>) -> Result<ClientLimits, String> {
        let args = Args::with_flags(flags).unwrap();
        client_limits(&args.door, args.payload_limit.get(), descriptors).map_err(|error| error.to_string())
    }

    #[test]
    fn connections_leave_descriptors_to_spare() {
        let table = [
            ("", None, 4096),
            ("", Some(1 << 20), 4096),
            ("", Some(4096), 4032),
            ("", Some(1024), 960),
            ("", Some(64), 16),
            ("", Some(32), 8),
            ("--max-connections 10000", Some(20_000), 10_000),
            ("--max-connections 5", Some(64), 5),
        ];
        for (flags, descriptors, expected) in table {
            assert_eq!(resolve(flags, descriptors).unwrap().connections, expected, "{flags} {descriptors:?}");
        }
        assert_eq!(
            resolve("--max-connections 1000", Some(1024)).unwrap_err(),
            "`--max-connections 1000` is more than the 960 that this process has descriptors for: raise its limit \
             (`ulimit -n`), or give less"
        );
        assert_eq!(
            resolve("", Some(31)).unwrap_err(),
            "this process may open 31 files, but the server needs at least 32: raise the limit (`ulimit -n`)"
        );
    }

    #[test]
    fn the_largest_body_fits_into_the_room_for_bodies() {
        assert_eq!(resolve("", None).unwrap().unread_bytes, 256 << 20);
        assert_eq!(resolve("--payload-limit 1000000000", None).unwrap().unread_bytes, 1_000_000_000);
        assert_eq!(
            resolve("--max-unread-bytes 1000000", None).unwrap_err(),
            "`--max-unread-bytes 1000000` is less than one body may have: give at least `--payload-limit`, 2000000"
        );
    }
}
