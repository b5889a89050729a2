//! Certificates: read from their files, and read again at each reload.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use x509_cert::der::Decode as _;

use crate::settings::TlsFiles;

/// In this time the two ends must have agreed on keys.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CannotEncrypt {
    /// A file cannot be read, or holds nothing of what it should.
    #[error("{file}: {why}: it must hold {wanted} in PEM")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
        /// What it must hold.
        wanted: &'static str,
    },
    /// The key is not that of the certificate, or is of a kind that is not known.
    #[error("{cert} and {key} do not go together: {why}")]
    Pair {
        /// The file of the certificate.
        cert: String,
        /// The file of the key.
        key: String,
        /// What is wrong with them.
        why: String,
    },
}

/// The certificates of a chain, the host's own first.
///
/// # Errors
/// When the file cannot be read, or has none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CannotEncrypt> {
    let failed = |why: String| CannotEncrypt::File {
        file: path.display().to_string(),
        why,
        wanted: "the certificate and those that vouch for it",
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|why| failed(explain(&why)));
    let chain = chain?;
    if chain.is_empty() { Err(failed("it has no certificate".to_owned())) } else { Ok(chain) }
}

/// What is known of a certificate that can be used.
#[derive(Debug, Clone, Copy)]
pub struct Certificate {
    /// From when on it does not count any more; `None` where that cannot be read.
    pub expires: Option<Timestamp>,
}

/// Reads a certificate and its key, as a listener would.
///
/// # Errors
/// When one of the files cannot be read, or they do not go together.
pub fn check(files: &TlsFiles) -> Result<Certificate, CannotEncrypt> {
    acceptor(files)?;
    let chain = certificates(&files.cert)?;
    let own = chain.first().and_then(|own| x509_cert::Certificate::from_der(own).ok());
    let expires = own.and_then(|own| {
        let seconds = own.tbs_certificate.validity.not_after.to_unix_duration().as_secs();
        Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
    });
    Ok(Certificate { expires })
}

/// Reads a certificate and its key.
///
/// # Errors
/// When one of the files cannot be read, or they do not go together.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, CannotEncrypt> {
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|why| CannotEncrypt::File {
        file: files.key.display().to_string(),
        why: explain(&why),
        wanted: "the private key of the certificate",
    })?;
    let pair = |why: rustls::Error| CannotEncrypt::Pair {
        cert: files.cert.display().to_string(),
        key: files.key.display().to_string(),
        why: why.to_string(),
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn explain(why: &rustls::pki_types::pem::Error) -> String {
    use rustls::pki_types::pem::Error;
    match why {
        Error::Io(why) => format!("cannot be read: {why}"),
        Error::NoItemsFound => "has none".to_owned(),
        // The others quote lines of the file, which may be a key.
        _ => "is no PEM".to_owned(),
    }
}

/// Agrees on keys with a peer.
pub(crate) async fn accept(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let accepted = tokio::time::timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await;
    accepted.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Agrees on keys with a listener of this machine, which must show the certificate of these
/// files. Its name and its end do not matter: that file says who it is.
///
/// # Errors
/// When the file cannot be read, and when what answers shows another certificate or no proof
/// that it has the key.
pub async fn connect(
    files: &TlsFiles,
    stream: TcpStream,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let chain = certificates(&files.cert).map_err(io::Error::other)?;
    let provider = Arc::new(default_provider());
    let known = OwnCertificate { chain, algorithms: provider.signature_verification_algorithms };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(known))
        .with_no_client_auth();
    let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Accepts one certificate, from whoever has its key.
#[derive(Debug)]
struct OwnCertificate {
    chain: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for OwnCertificate {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.chain.first().is_some_and(|own| own == shown) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General(
            "it shows another certificate than the settings name; one that was renewed is shown after a reload".to_owned(),
        ))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
