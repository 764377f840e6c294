//! Takes the place of `tls.rs` in a build without the feature `tls`.

use std::{convert::Infallible, io, path::Path};

use tokio::net::TcpStream;

use crate::protocol::Protocol;

pub(crate) type TlsStream = TcpStream;

/// A certificate, which this build never has.
#[derive(Clone)]
pub struct Certificate(Infallible);

impl Certificate {
    /// Refuses the files of `--tls-cert` and `--tls-key`.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn load(_certificate: &Path, _key: &Path) -> anyhow::Result<Self> {
        anyhow::bail!("`--tls-cert` needs the feature `tls`, without which this server is built")
    }

    /// Never called.
    ///
    /// # Errors
    ///
    /// None.
    pub fn reload(&self) -> anyhow::Result<bool> {
        match self.0 {}
    }

    #[expect(clippy::unused_async, reason = "it has the signature of the other build")]
    pub(crate) async fn accept(&self, _stream: TcpStream, _protocol: Protocol) -> io::Result<TlsStream> {
        match self.0 {}
    }
}
