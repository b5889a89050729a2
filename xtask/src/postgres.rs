//! The PostgreSQL server that the tests share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use test_postgres::{Binaries, Missing, Server};

use crate::debian;

/// Names the server, to the tests and to us.
const VARIABLE: &str = "DATABASE_URL";

/// Debian's settings for the servers that its packages set up by themselves.
const CLUSTER_SETTINGS: &str = "/etc/postgresql-common/createcluster.conf";

/// Where the tests find a server.
pub(crate) enum Postgres {
    /// The one that `DATABASE_URL` names already.
    Given,
    /// One of our own, made from these programs when it is needed.
    Private(Binaries),
}

/// A server that is there for the tests. Dropping it ends it if it is ours.
pub(crate) struct Running(Option<Server>);

impl Postgres {
    /// Finds out where the server comes from, and makes the programs ready if it
    /// is to be ours, so that what is missing is said before anything is built.
    pub(crate) fn find() -> Result<Self> {
        match std::env::var(VARIABLE) {
            Ok(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Self::Given)
            }
            _ => Ok(Self::Private(Binaries::find().or_else(install)?)),
        }
    }

    /// Starts the server if it is ours.
    pub(crate) fn start(self) -> Result<Running> {
        let Self::Private(binaries) = self else {
            println!("PostgreSQL: the server that {VARIABLE} names, for the tests");
            return Ok(Running(None));
        };
        let version = binaries.version()?;
        let server = Server::start_from(binaries, &[])?;
        println!(
            "PostgreSQL {version} from {} on port {}, for the tests",
            server.binaries().folder().display(),
            server.port()
        );
        Ok(Running(Some(server)))
    }
}

impl Running {
    /// The server's URL, with a database to connect to.
    pub(crate) fn url(&self) -> Result<String> {
        match &self.0 {
            Some(server) => Ok(server.url("postgres")),
            None => std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is no text")),
        }
    }

    /// Tells a command where the server is.
    pub(crate) fn name_to(&self, command: &mut Command) {
        if let Some(server) = &self.0 {
            command.env(VARIABLE, server.url("postgres"));
        }
    }
}

/// Installs the programs on Debian as root; elsewhere says what is missing.
fn install(missing: Missing) -> Result<Binaries> {
    let chosen = std::env::var_os("PG_BIN").is_some();
    if chosen || !debian::is_here() || !debian::we_are_root() {
        return Err(missing.into());
    }
    let without_main = WithoutMainCluster::begin()?;
    debian::install("PostgreSQL", &["postgresql"])?;
    drop(without_main);
    Ok(Binaries::find()?)
}

/// Keeps Debian's package from starting a server at its installation, which
/// nobody asked for, on a machine that has had no other.
struct WithoutMainCluster(Option<PathBuf>);

impl WithoutMainCluster {
    fn begin() -> Result<Self> {
        let settings = Path::new(CLUSTER_SETTINGS);
        if settings.exists() {
            return Ok(Self(None));
        }
        // The settings that the package brings include this folder.
        let folder = settings.with_file_name("createcluster.d");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let file = folder.join("for-tests.conf");
        fs::write(&file, "create_main_cluster = false\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self(Some(file)))
    }
}

impl Drop for WithoutMainCluster {
    fn drop(&mut self) {
        if let Some(file) = &self.0
            && let Err(error) = fs::remove_file(file)
        {
            eprintln!("cannot remove {}: {error}", file.display());
        }
    }
}
