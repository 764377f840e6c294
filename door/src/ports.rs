//! The server's ports and its Unix socket: reserved at the start, opened when the model is ready.
//!
//! Input: the addresses to try, or a path. Output: a [`Reserved`] port or a [`ReservedPath`], then a
//! listener. What must hold: a port in use fails before the model is loaded; until [`Reserved::listen`]
//! clients are refused instead of left waiting; a path has one server at a time, and no server removes the
//! file of another.

use std::{
    fs::{File, TryLockError},
    io::ErrorKind,
    net::SocketAddr,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 1024;

/// A port that is reserved but not open.
pub struct Reserved {
    socket: TcpSocket,
    address: SocketAddr,
    flag: &'static str,
}

/// Reserves the first of `addresses` that the machine has. An address that it has but that is in use ends the
/// search: otherwise a client that tries the same addresses would reach the other process. `flag` is the flag
/// for another port.
///
/// # Errors
///
/// If none of them can be reserved.
pub fn reserve_port(addresses: &[SocketAddr], flag: &'static str) -> anyhow::Result<Reserved> {
    let mut lacking = None;
    for &address in addresses {
        match bind_port(address, flag) {
            Ok(reserved) => return Ok(reserved),
            Err(error) if matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::Unsupported) => {
                lacking = lacking.or_else(|| Some(bind_advice(&error, address, flag)));
            }
            Err(error) => return Err(bind_advice(&error, address, flag)),
        }
    }
    Err(lacking.unwrap_or_else(|| anyhow::anyhow!("there is no address to listen on: give `--hostname`")))
}

fn bind_port(address: SocketAddr, flag: &'static str) -> std::io::Result<Reserved> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The port of a server that just stopped can be bound only with this option.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(Reserved { address: socket.local_addr()?, socket, flag })
}

fn bind_advice(error: &std::io::Error, address: SocketAddr, flag: &str) -> anyhow::Error {
    if error.kind() == ErrorKind::PermissionDenied {
        return anyhow::anyhow!(
            "cannot listen on {address} ({error}): a port below 1024 needs root or CAP_NET_BIND_SERVICE; \
             give another `{flag}`"
        );
    }
    anyhow::anyhow!("cannot listen on {address} ({error}): give a free `{flag}`, or another `--hostname`")
}

impl Reserved {
    /// The reserved address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens the port.
    ///
    /// # Errors
    ///
    /// If another process opened it in the meantime.
    pub fn listen(self) -> anyhow::Result<TcpListener> {
        let Self { socket, address, flag } = self;
        socket.listen(BACKLOG).map_err(|error| bind_advice(&error, address, flag))
    }
}

/// The file of a Unix socket, removed in the end.
pub struct SocketFile {
    path: PathBuf,
    /// Its device and its inode.
    identity: (u64, u64),
    /// The file `PATH.lock`, which stays. Between bind and listen, nothing else tells other processes that
    /// the path is taken.
    _lock: File,
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may be gone, and another process may have made one in its place.
        if identity_of(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity_of(path: &Path) -> std::io::Result<(u64, u64)> {
    path.symlink_metadata().map(|found| (found.dev(), found.ino()))
}

/// A Unix socket that is reserved but not open.
pub struct ReservedPath {
    socket: UnixSocket,
    file: SocketFile,
}

/// Reserves the path of `--uds-path`. A file that a killed server left is replaced.
///
/// # Errors
///
/// If another process listens there, if the file is not a socket, or if it cannot be made.
pub fn reserve_path(path: &Path) -> anyhow::Result<ReservedPath> {
    let problem = |problem: &str| {
        anyhow::anyhow!("cannot listen on `--uds-path {}`: {problem}; give another path", path.display())
    };
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock = File::options().create(true).append(true).open(&lock_path);
    let lock = lock.map_err(|error| problem(&format!("`{}`: {error}", lock_path.display())))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => problem("another process does"),
        TryLockError::Error(error) => problem(&format!("`{}`: {error}", lock_path.display())),
    })?;
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            return Err(problem("there is a file that is not a socket"));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(problem("another process does"));
        }
        std::fs::remove_file(path)
            .map_err(|error| problem(&format!("an old one cannot be removed ({error})")))?;
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path).map_err(|error| problem(&error.to_string()))?;
    let file = SocketFile { path: path.to_owned(), identity: identity_of(path)?, _lock: lock };
    Ok(ReservedPath { socket, file })
}

impl ReservedPath {
    /// Opens the socket.
    ///
    /// # Errors
    ///
    /// If the system does not let it.
    pub fn listen(self) -> anyhow::Result<(UnixListener, SocketFile)> {
        let Self { socket, file } = self;
        let listener = socket.listen(BACKLOG).map_err(|error| {
            anyhow::anyhow!(
                "cannot listen on `--uds-path {}` ({error}): give another path",
                file.path.display()
            )
        })?;
        Ok((listener, file))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed test should stop here")]
    use super::*;
    use tokio::net::TcpStream;

    fn addresses(text: &[&str]) -> Vec<SocketAddr> {
        text.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_reserved_port_refuses_until_it_is_opened() {
        let reserved = reserve_port(&addresses(&["127.0.0.1:0"]), "--port").unwrap();
        let address = reserved.address();
        assert!(TcpStream::connect(address).await.is_err());
        let listener = reserved.listen().unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        TcpStream::connect(address).await.unwrap();
    }

    #[tokio::test]
    async fn a_socket_is_taken_from_the_dead_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let message = || reserve_path(&path).err().unwrap().to_string();
        let about = format!("cannot listen on `--uds-path {}`: ", path.display());
        std::fs::write(&path, "x").unwrap();
        assert_eq!(message(), format!("{about}there is a file that is not a socket; give another path"));
        std::fs::remove_file(&path).unwrap();
        // A process that is killed leaves its file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let reserved = reserve_path(&path).unwrap();
        assert!(UnixStream::connect(&path).is_err(), "not open yet");
        assert_eq!(message(), format!("{about}another process does; give another path"));
        let listening = reserved.listen().unwrap();
        assert_eq!(message(), format!("{about}another process does; give another path"));
        drop(listening);
        assert!(!path.exists());
        // Somebody removed the file of a server, and another one made its own.
        let earlier = reserve_path(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(earlier);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        for flag in ["--port", "--grpc-port"] {
            let message = reserve_port(&[address], flag).err().unwrap().to_string();
            let advice = format!("): give a free `{flag}`, or another `--hostname`");
            assert!(
                message.starts_with(&format!("cannot listen on {address} (")) && message.ends_with(&advice),
                "{message}"
            );
        }
    }

    #[test]
    fn a_port_that_needs_permission_says_which() {
        let message =
            bind_advice(&ErrorKind::PermissionDenied.into(), addresses(&["0.0.0.0:80"])[0], "--port")
                .to_string();
        let expected = "a port below 1024 needs root or CAP_NET_BIND_SERVICE; give another `--port`";
        assert!(
            message.starts_with("cannot listen on 0.0.0.0:80 (") && message.ends_with(expected),
            "{message}"
        );
    }

    #[tokio::test]
    async fn the_next_address_stands_in_for_one_that_the_machine_lacks() {
        let reserved = reserve_port(&addresses(&["192.0.2.1:0", "127.0.0.1:0"]), "--port").unwrap();
        assert!(reserved.address().ip().is_loopback());
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert!(reserve_port(&[taken.local_addr().unwrap(), "[::1]:0".parse().unwrap()], "--port").is_err());
    }
}
