//! Which database: `sqlite:PATH` or `postgres://…`.

use std::fmt;
use std::path::{Path, PathBuf};

use super::postgres::{self, InvalidPostgresUrl, PostgresUrl};
use super::variables::Environment;

/// A database, by its URL. `Debug` and `Display` leave its password out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A file of SQLite's, created if it is missing.
    Sqlite(PathBuf),
    /// A server of PostgreSQL's.
    Postgres(PostgresUrl),
}

/// A text that names no database. It may hold a password, so the sentence never
/// repeats it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDatabase {
    /// A URL of PostgreSQL's with a mistake in it.
    #[error(transparent)]
    Postgres(#[from] InvalidPostgresUrl),
    /// A scheme that is none of ours, or none at all.
    #[error(
        "names no database that the host knows: write one such as `sqlite:host.db` or `postgres://user@server/database`"
    )]
    Unknown,
    /// No file.
    #[error("names no file: write one such as `sqlite:host.db`")]
    NoFile,
    /// A database that would be gone with its connection.
    #[error(
        "keeps nothing, because a database in memory ends with its connection: name a file, such as `sqlite:host.db`"
    )]
    Memory,
    /// Query parameters.
    #[error(
        "has parameters, of which SQLite takes none here: leave out the `?` and what follows it"
    )]
    Parameters,
}

impl DatabaseUrl {
    /// The database that is used when none is named: `host.db` in `directory`.
    pub(super) fn default_in(directory: &Path) -> Self {
        Self::Sqlite(directory.join("host.db"))
    }

    /// Which kind of database it is, in a word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }

    /// Reads a URL; a relative path is taken from `directory`.
    ///
    /// # Errors
    /// When it names no database that the host can use.
    pub fn parse(url: &str, directory: &Path) -> Result<Self, InvalidDatabase> {
        Self::read(url, directory, &|name| std::env::var(name))
    }

    /// As [`DatabaseUrl::parse`], in a given environment.
    pub(super) fn read(
        url: &str,
        directory: &Path,
        environment: &Environment<'_>,
    ) -> Result<Self, InvalidDatabase> {
        let (scheme, rest) = url.split_once(':').ok_or(InvalidDatabase::Unknown)?;
        match scheme.to_ascii_lowercase().as_str() {
            "sqlite" => {
                let path = rest.strip_prefix("//").unwrap_or(rest);
                let (path, query) = path.split_once('?').unwrap_or((path, ""));
                match path {
                    ":memory:" => Err(InvalidDatabase::Memory),
                    "" => Err(InvalidDatabase::NoFile),
                    _ if !query.is_empty() || rest.ends_with('?') => {
                        Err(InvalidDatabase::Parameters)
                    }
                    _ => Ok(Self::Sqlite(directory.join(path))),
                }
            }
            scheme if postgres::is_scheme(scheme) => {
                Ok(Self::Postgres(PostgresUrl::read(url, directory, environment)?))
            }
            _ => Err(InvalidDatabase::Unknown),
        }
    }
}

/// The URL of a database as somebody gave it, not read yet. `Debug` hides it,
/// because it may hold a password anywhere.
#[derive(Clone)]
pub struct GivenUrl(String);

impl GivenUrl {
    /// The URL as it was given.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for GivenUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl From<&str> for GivenUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl fmt::Debug for GivenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenUrl(…)")
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_from_the_directory_unless_it_is_absolute() {
        for (url, expected) in [
            ("sqlite:host.db", "/etc/host/host.db"),
            ("sqlite://data/host.db", "/etc/host/data/host.db"),
            ("sqlite:/var/host.db", "/var/host.db"),
            ("sqlite:///var/host.db", "/var/host.db"),
            ("SQLite:a b.db", "/etc/host/a b.db"),
        ] {
            let database = DatabaseUrl::parse(url, Path::new("/etc/host"));
            assert_eq!(database, Ok(DatabaseUrl::Sqlite(expected.into())), "{url}");
        }
    }

    #[test]
    fn what_names_no_usable_database_is_refused() {
        for (url, expected) in [
            ("", InvalidDatabase::Unknown),
            ("host.db", InvalidDatabase::Unknown),
            ("mysql://u:secret@h/d", InvalidDatabase::Unknown),
            ("postgre://u:secret@h/d", InvalidDatabase::Unknown),
            ("postgres:u:secret@h/d", InvalidPostgresUrl::NotPostgres.into()),
            ("postgresql://u:secret@h:port/d", InvalidPostgresUrl::Port.into()),
            ("sqlite:", InvalidDatabase::NoFile),
            ("sqlite://", InvalidDatabase::NoFile),
            ("sqlite:?mode=ro", InvalidDatabase::NoFile),
            ("sqlite::memory:", InvalidDatabase::Memory),
            ("sqlite://:memory:", InvalidDatabase::Memory),
            ("sqlite:host.db?mode=ro", InvalidDatabase::Parameters),
            ("sqlite:host.db?", InvalidDatabase::Parameters),
        ] {
            let error = DatabaseUrl::parse(url, Path::new("")).unwrap_err();
            assert_eq!(error, expected, "{url}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
