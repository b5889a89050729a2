//! TLS for the requests of handlers: who is trusted, and why there may be none.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::ErrorKind;
use tokio_rustls::TlsConnector;

/// Whether the host has run out of what a connection takes.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    error.raw_os_error().is_some_and(|raw| exhausted.iter().any(|one| one.raw_os_error() == raw))
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoTls {
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
    /// Not for good: it is tried again with the next request.
    #[error("the system's certificate authorities cannot be read now: {0}")]
    Exhausted(String),
}

/// TLS that trusts whom the system trusts, as the connection to the database
/// does.
pub(super) fn connector() -> Result<TlsConnector, NoTls> {
    let found = rustls_native_certs::load_native_certs();
    let exhausted = found
        .errors
        .iter()
        .find(|error| matches!(&error.kind, ErrorKind::Io { inner, .. } if is_exhausted(inner)));
    if let Some(error) = exhausted {
        return Err(NoTls::Exhausted(error.to_string()));
    }
    for error in &found.errors {
        tracing::warn!("some of the system's certificate authorities cannot be read: {error}");
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::warn!(
            "the system has no certificate authorities, so that handlers can reach nothing by https"
        );
    }
    Ok(trusting(roots)?)
}

pub(super) fn trusting(roots: RootCertStore) -> Result<TlsConnector, rustls::Error> {
    // The one that the connection to the database uses.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
