//! Where PostgreSQL's server programs are on this machine.
//!
//! Distributions keep them off the path, so this knows their usual places.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What a server needs; `pg_config` alone may come with a client library.
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];

/// Folders that hold one folder a version: where, how the version's folder
/// begins, and what follows it.
const PLACES: [(&str, &str, &str); 5] = [
    // Debian and Ubuntu.
    ("/usr/lib/postgresql", "", "bin"),
    // The PostgreSQL project's RPMs.
    ("/usr", "pgsql-", "bin"),
    // Homebrew, on Apple's processors, on Intel's, and on Linux.
    ("/opt/homebrew/opt", "postgresql@", "bin"),
    ("/usr/local/opt", "postgresql@", "bin"),
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql@", "bin"),
];

/// A folder with PostgreSQL's server programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Finds the programs: in the folder that `PG_BIN` names, and without it
    /// where `pg_config` says, in the usual places (the newest first), and on
    /// the path.
    ///
    /// # Errors
    /// When they are nowhere; the error says what to do.
    pub fn find() -> Result<Self, Missing> {
        if let Some(folder) = env::var_os("PG_BIN") {
            return Self::first_of(vec![folder.into()]);
        }
        let mut folders = Vec::from_iter(named_by_pg_config());
        for (place, prefix, inner) in PLACES {
            folders.extend(newest_first(Path::new(place), prefix, inner));
        }
        folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        Self::first_of(folders)
    }

    fn first_of(folders: Vec<PathBuf>) -> Result<Self, Missing> {
        let complete =
            |folder: &&PathBuf| PROGRAMS.iter().all(|program| folder.join(program).is_file());
        match folders.iter().find(complete) {
            Some(folder) => Ok(Self { folder: folder.clone() }),
            None => Err(Missing { folders }),
        }
    }

    /// The folder they are in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One of them, by name.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The server's version, such as `15.18`.
    ///
    /// # Errors
    /// When the server's program cannot be run, or says something else.
    pub fn version(&self) -> Result<String> {
        let program = self.program("postgres");
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(output.status.success(), "{} --version: {}", program.display(), output.status);
        // postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().nth(2);
        Ok(version.with_context(|| format!("not a version of PostgreSQL: {text}"))?.to_owned())
    }
}

fn named_by_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| folder.trim().into())
}

/// The folders `PLACE/PREFIX<version>/INNER`, the highest version first.
fn newest_first(place: &Path, prefix: &str, inner: &str) -> Vec<PathBuf> {
    // A place that is not there is an ordinary thing.
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let version = version_of(entry.file_name(), prefix)?;
            Some((version, entry.path().join(inner)))
        })
        .collect();
    found.sort_by(|left, right| right.cmp(left));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// The major version that a folder's name ends with.
fn version_of(name: OsString, prefix: &str) -> Option<u32> {
    name.to_str()?.strip_prefix(prefix)?.parse().ok()
}

/// PostgreSQL's server programs are not on this machine, or not where they
/// were said to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    folders: Vec<PathBuf>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found no PostgreSQL server (initdb, postgres and pg_ctl in one folder) in ")?;
        match env::join_paths(&self.folders) {
            Ok(folders) => write!(f, "{}", folders.display())?,
            // A folder with a colon in its name.
            Err(_) => write!(f, "{:?}", self.folders)?,
        }
        write!(
            f,
            ": install it (on Debian and Ubuntu: apt-get install postgresql; with Homebrew: \
             brew install postgresql@17), or name its folder in PG_BIN, or name a running \
             server in DATABASE_URL (postgres://…)"
        )
    }
}

impl std::error::Error for Missing {}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs_in(folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        for program in PROGRAMS {
            fs::write(folder.join(program), "").unwrap();
        }
    }

    #[test]
    fn the_highest_version_is_taken_by_number() {
        let place = tempfile::tempdir().unwrap();
        for folder in ["postgresql@9/bin", "postgresql@16/bin", "postgresql@17/bin", "other/bin"] {
            programs_in(&place.path().join(folder));
        }
        let found = Binaries::first_of(newest_first(place.path(), "postgresql@", "bin"));
        assert_eq!(found.unwrap().folder(), place.path().join("postgresql@17/bin"));
    }

    #[test]
    fn a_folder_that_lacks_a_program_is_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let (partial, whole) = (place.path().join("partial"), place.path().join("whole"));
        programs_in(&partial);
        programs_in(&whole);
        fs::remove_file(partial.join("initdb")).unwrap();
        let found = Binaries::first_of(vec![partial, whole.clone()]);
        assert_eq!(found.unwrap().folder(), whole);
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let missing = Binaries::first_of(vec!["/nowhere/bin".into()]).unwrap_err().to_string();
        for word in ["initdb", "/nowhere/bin", "apt-get install postgresql", "DATABASE_URL"] {
            assert!(missing.contains(word), "{missing}");
        }
    }
}
