//! How the server is made sure of: libpq's TLS parameters, turned into those
//! that the client library must get so that they mean what libpq says.
//!
//! The library differs from libpq where it is silent about it: `allow` is no TLS
//! at all, `require` never looks at `sslrootcert`, and what `sslrootcert` names
//! is trusted beside the system's authorities, not instead of them.

use std::path::{Path, PathBuf, absolute};

use super::error::InvalidPostgresUrl;
use super::syntax::Parts;
use crate::config::variables::Environment;

const CERTIFICATE: &[&str] = &["-----BEGIN CERTIFICATE-----"];

/// What the client library reads; not a key that needs a passphrase.
const KEY: &[&str] = &[
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----",
];

/// A setting, from the URL or from the environment as libpq reads it.
struct Given<'a> {
    /// What it is called there.
    name: &'static str,
    value: String,
    /// Where a relative path begins.
    directory: &'a Path,
}

/// Checks the parameters for TLS and writes what they come to into `parts`.
pub(super) fn resolve(
    parts: &mut Parts,
    directory: &Path,
    environment: &Environment<'_>,
) -> Result<(), InvalidPostgresUrl> {
    let mut given = |name, variable| match parts.take(name) {
        Some(value) => Some(Given { name, value, directory }),
        None => environment(variable).ok().filter(|value| !value.is_empty()).map(|value| Given {
            name: variable,
            value,
            directory: Path::new(""),
        }),
    };
    let mode = given("sslmode", "PGSSLMODE");
    let root = given("sslrootcert", "PGSSLROOTCERT");
    let certificate = given("sslcert", "PGSSLCERT");
    let key = given("sslkey", "PGSSLKEY");

    let mode = mode.as_ref().map(checked_mode).transpose()?;
    if parts.is_socket() {
        // As with libpq, a socket never has TLS, whatever is asked for.
        parts.set("sslmode", "disable".to_owned());
        return Ok(());
    }
    let mode = match root {
        None => mode.unwrap_or("prefer"),
        Some(root) if root.value == "system" => {
            if !matches!(mode, None | Some("verify-full")) {
                return Err(InvalidPostgresUrl::SystemAuthorities);
            }
            if environment("PGSSLROOTCERT").is_ok() {
                return Err(InvalidPostgresUrl::SystemAndOthers);
            }
            "verify-full"
        }
        Some(root) => {
            let path = root.pem(CERTIFICATE, "holds no certificate in PEM form")?;
            let mode = match mode {
                None | Some("prefer") => {
                    return Err(InvalidPostgresUrl::UnusedAuthority(root.name));
                }
                // libpq's rule.
                Some("require" | "verify-ca") if trusted_alone(&path, environment) => "verify-ca",
                Some("require" | "verify-ca") => return Err(InvalidPostgresUrl::NameUnchecked),
                Some(other) => other,
            };
            parts.set("sslrootcert", path);
            mode
        }
    };
    if mode == "verify-ca" && parts.get("sslrootcert").is_none() {
        return Err(InvalidPostgresUrl::NameUnchecked);
    }
    parts.set("sslmode", mode.to_owned());
    match (certificate, key) {
        (None, None) => {}
        (Some(certificate), Some(key)) => {
            let path = certificate.pem(CERTIFICATE, "holds no certificate in PEM form")?;
            parts.set("sslcert", path);
            let path = key.pem(KEY, "holds no key in PEM form, or one with a passphrase")?;
            parts.set("sslkey", path);
        }
        _ => return Err(InvalidPostgresUrl::HalfCertificate),
    }
    Ok(())
}

fn checked_mode(given: &Given<'_>) -> Result<&'static str, InvalidPostgresUrl> {
    const MODES: [&str; 5] = ["disable", "prefer", "require", "verify-ca", "verify-full"];
    if given.value == "allow" {
        return Err(InvalidPostgresUrl::Allow(given.name));
    }
    let mode = MODES.into_iter().find(|mode| *mode == given.value);
    mode.ok_or(InvalidPostgresUrl::Mode(given.name))
}

/// Whether the environment replaces the system's authorities by this file. The
/// client library knows no other way.
fn trusted_alone(path: &str, environment: &Environment<'_>) -> bool {
    let set = |name| environment(name).ok().filter(|value| !value.is_empty());
    let same = |file: String| match (std::fs::canonicalize(file), std::fs::canonicalize(path)) {
        (Ok(file), Ok(path)) => file == path,
        _ => false,
    };
    set("SSL_CERT_DIR").is_none() && set("SSL_CERT_FILE").is_some_and(same)
}

impl Given<'_> {
    /// The absolute path of a file that holds one of these lines.
    fn pem(&self, lines: &[&str], otherwise: &str) -> Result<String, InvalidPostgresUrl> {
        let fail = |problem: String| Err(InvalidPostgresUrl::File { name: self.name, problem });
        let path = match absolute(self.directory.join(&self.value)).map(PathBuf::into_os_string) {
            Ok(path) => path,
            Err(why) => return fail(format!("has no absolute path: {why}")),
        };
        let Ok(path) = path.into_string() else {
            return fail("stands in a folder whose name is not UTF-8".to_owned());
        };
        // Opening another kind of file, such as a pipe, might wait for ever.
        let contents = match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => std::fs::read(&path),
            Ok(_) => return fail("is no regular file".to_owned()),
            Err(why) => Err(why),
        };
        match contents {
            Err(why) => fail(format!("cannot be read: {why}")),
            Ok(contents) => {
                let contents = String::from_utf8_lossy(&contents);
                if lines.iter().any(|line| contents.contains(line)) {
                    Ok(path)
                } else {
                    fail(otherwise.to_owned())
                }
            }
        }
    }
}
