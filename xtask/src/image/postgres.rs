//! The database of contrib/kubernetes/postgres: a server of the check's own, with the roles that
//! the manifests' README has people make.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use test_postgres::{Binaries, Server};

use super::PATIENCE;
use super::pod::Pod;

/// Owns the schema, and migrates.
const OWNER: &str = "events_owner";

/// Runs handlers.
const HOST: &str = "host";

const DATABASE: &str = "events";

/// A server with the two roles and the database.
pub(super) struct Database(Server);

impl Database {
    /// Starts it; `None`, with a line that says so, where PostgreSQL is not here.
    pub(super) fn start() -> Result<Option<Self>> {
        let binaries = match Binaries::find() {
            Ok(binaries) => binaries,
            Err(why) => {
                println!("image-check: leaves out the host on PostgreSQL: {why}");
                return Ok(None);
            }
        };
        let database = Self(Server::start_from(binaries, &[])?);
        let made = format!(
            "CREATE ROLE {OWNER} LOGIN;\nCREATE ROLE {HOST} LOGIN;\n\
             CREATE DATABASE {DATABASE} OWNER {OWNER};\n"
        );
        database.psql(&database.0.url("postgres"), &made)?;
        Ok(Some(database))
    }

    /// Has two pods migrate at the same time, as the first ones of a Deployment do, gives the
    /// host's role its rights, and leaves the pod with that role.
    pub(super) fn migrate(&self, pod: &mut Pod) -> Result<()> {
        let owner = self.url_of(OWNER);
        pod.set("DATABASE_URL", &owner);
        let command = ["/host", "migrate", "--log-format", "json"];
        let mut pods = [pod.start(&command, "migrate-1")?, pod.start(&command, "migrate-2")?];
        for migrating in &mut pods {
            let (code, log) = migrating.end(PATIENCE)?;
            ensure!(code == Some(0), "the migration ended with {code:?}:\n{log}");
        }
        println!("image-check: two pods have migrated at the same time, as {OWNER}");
        let grants = pod.finish(&["/host", "grants", "--role", HOST, "--as", "host"])?;
        self.psql(&owner, &grants)?;
        pod.set("DATABASE_URL", &self.url_of(HOST));
        Ok(())
    }

    fn url_of(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{DATABASE}", self.0.port())
    }

    /// Runs SQL, statement by statement, until one fails.
    fn psql(&self, url: &str, sql: &str) -> Result<()> {
        let mut psql = Command::new(self.0.binaries().program("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname", url]);
        let mut running = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        running.stdin.take().context("stdin is piped")?.write_all(sql.as_bytes())?;
        let status = running.wait()?;
        ensure!(status.success(), "psql failed: {status}");
        Ok(())
    }
}
