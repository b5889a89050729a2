//! The URL of a PostgreSQL server, checked whole when the settings are read.
//!
//! It promises that its password is never shown, and that whatever it asks for
//! is done or was refused: libpq's URLs mean here what they mean in `psql`. Who
//! connects by it is left to the store.

mod error;
mod honoured;
mod parameters;
mod syntax;
#[cfg(test)]
mod tests;
mod tls;

use std::fmt;
use std::path::Path;
use std::time::Duration;

pub use error::InvalidPostgresUrl;
use syntax::Parts;
pub(super) use syntax::is_scheme;

use super::variables::Environment;

/// The URL of a PostgreSQL server. `Debug` and `Display` leave its secrets out.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    secret: String,
    shown: String,
    connect_timeout: Option<Duration>,
}

impl PostgresUrl {
    /// Reads a URL `postgres://…`; the relative path of a certificate or a key is
    /// taken from `directory`. Settings for TLS that it leaves out are taken from
    /// the environment, as libpq does (`PGSSLMODE` and the like).
    ///
    /// # Errors
    /// When it is no URL of PostgreSQL's, or asks for what cannot be done.
    pub fn parse(url: &str, directory: &Path) -> Result<Self, InvalidPostgresUrl> {
        Self::read(url, directory, &|name| std::env::var(name))
    }

    /// As [`PostgresUrl::parse`], in a given environment.
    pub(super) fn read(
        url: &str,
        directory: &Path,
        environment: &Environment<'_>,
    ) -> Result<Self, InvalidPostgresUrl> {
        let mut parts = Parts::parse(url)?;
        let connect_timeout = parts.take("connect_timeout").map(seconds).transpose()?;
        tls::resolve(&mut parts, directory, environment)?;
        Ok(Self { secret: parts.to_url(), shown: parts.shown(), connect_timeout })
    }

    /// The URL with its password, to connect by and for nothing else. It holds
    /// only parameters that `sqlx` reads, says the mode of TLS outright, and names
    /// files by absolute paths.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.secret
    }

    /// How long opening a connection may take, if the URL says so
    /// (`connect_timeout`). It is not part of [`PostgresUrl::expose`].
    #[must_use]
    pub fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }
}

fn seconds(text: String) -> Result<Duration, InvalidPostgresUrl> {
    match text.parse() {
        Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err(InvalidPostgresUrl::ConnectTimeout),
    }
}

/// The URL without password, key and `options`.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresUrl").field(&self.shown).finish()
    }
}
