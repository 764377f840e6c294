//! TLS: a certificate and its key, which may be replaced while the server runs.
//!
//! Input: two files in PEM. Output: a [`Certificate`], whose newest version each new connection gets. What
//! must hold: files that are not a certificate and its key are an error at the start; later they leave the
//! old version in force.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::Context;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::{files::read_small_file, protocol::Protocol};

pub(crate) type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// The most certificates of a chain. Each new connection is sent all of them.
const MAX_CHAIN: usize = 16;

/// The bytes of the two files. A comparison shows whether they changed.
type Files = (Vec<u8>, Vec<u8>);

/// The certificate in force. Cheap to clone; all clones change together.
#[derive(Clone)]
pub struct Certificate(Arc<SharedCertificate>);

struct SharedCertificate {
    certificate: PathBuf,
    key: PathBuf,
    in_force: RwLock<InForce>,
}

struct InForce {
    files: Files,
    http: Arc<ServerConfig>,
    grpc: Arc<ServerConfig>,
}

impl Certificate {
    /// Reads the files of `--tls-cert` and `--tls-key`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or if the files are not a certificate and its key.
    pub fn load(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let in_force = InForce::from_files(read_files(certificate, key)?).with_context(|| {
            format!("`--tls-cert {}` and `--tls-key {}` cannot be used", certificate.display(), key.display())
        })?;
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        Ok(Self(Arc::new(SharedCertificate { certificate, key, in_force: RwLock::new(in_force) })))
    }

    /// Reads the files again. Returns whether they changed.
    ///
    /// # Errors
    ///
    /// As [`Certificate::load`]. The old certificate then stays in force.
    pub fn reload(&self) -> anyhow::Result<bool> {
        let files = read_files(&self.0.certificate, &self.0.key)?;
        if self.0.in_force.read().unwrap_or_else(PoisonError::into_inner).files == files {
            return Ok(false);
        }
        let in_force = InForce::from_files(files)?;
        *self.0.in_force.write().unwrap_or_else(PoisonError::into_inner) = in_force;
        Ok(true)
    }

    /// Encrypts a new connection. Fails if the client and the server agree on no encryption.
    pub(crate) async fn accept(&self, stream: TcpStream, protocol: Protocol) -> std::io::Result<TlsStream> {
        let config = {
            let in_force = self.0.in_force.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(match protocol {
                Protocol::Http => &in_force.http,
                Protocol::Grpc => &in_force.grpc,
            })
        };
        TlsAcceptor::from(config).accept(stream).await
    }
}

fn read_files(certificate: &Path, key: &Path) -> anyhow::Result<Files> {
    Ok((read_small_file("--tls-cert", certificate)?, read_small_file("--tls-key", key)?))
}

impl InForce {
    fn from_files(files: Files) -> anyhow::Result<Self> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&files.0)
            .collect::<Result<_, _>>()
            .context("the certificate is not PEM")?;
        anyhow::ensure!(!chain.is_empty(), "the first file holds no certificate in PEM");
        anyhow::ensure!(
            chain.len() <= MAX_CHAIN,
            "the first file holds {} certificates: give the server's own and those that signed it, at most \
             {MAX_CHAIN}",
            chain.len()
        );
        let key = PrivateKeyDer::from_pem_slice(&files.1)
            .context("the second file holds no private key in PEM that is not encrypted")?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("the key does not belong to the certificate")?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let grpc = Arc::new(config.clone());
        config.alpn_protocols.push(b"http/1.1".to_vec());
        Ok(Self { files, http: Arc::new(config), grpc })
    }
}
