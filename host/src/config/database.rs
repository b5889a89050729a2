//! Which database: `sqlite:PATH`.

use std::fmt;
use std::path::{Path, PathBuf};

/// A database, by its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// A file of SQLite's, created if it is missing.
    Sqlite(PathBuf),
}

/// A text that names no database. It may hold a password, so the sentence never
/// repeats it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDatabase {
    /// Not of this version.
    #[error("PostgreSQL comes with a later version: use SQLite for now, such as `sqlite:host.db`")]
    Postgres,
    /// A scheme that is none of ours, or none at all.
    #[error("names no database that the host knows: write one such as `sqlite:host.db`")]
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

    /// Reads a URL; a relative path is taken from `directory`.
    ///
    /// # Errors
    /// When it names no database that this version can use.
    pub fn parse(url: &str, directory: &Path) -> Result<Self, InvalidDatabase> {
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
            "postgres" | "postgresql" => Err(InvalidDatabase::Postgres),
            _ => Err(InvalidDatabase::Unknown),
        }
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
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
    fn what_this_version_cannot_use_is_refused() {
        for (url, expected) in [
            ("", InvalidDatabase::Unknown),
            ("host.db", InvalidDatabase::Unknown),
            ("mysql://u:secret@h/d", InvalidDatabase::Unknown),
            ("postgres://u:secret@h/d", InvalidDatabase::Postgres),
            ("postgresql:///d", InvalidDatabase::Postgres),
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
