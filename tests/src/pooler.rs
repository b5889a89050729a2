//! PgBouncer between clients and a PostgreSQL server.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::Killed;
use crate::{PATIENCE, wait_until};

/// How a pooler shares the server's sessions out among its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// A client keeps its session until it ends.
    Session,
    /// A client has a session for as long as a transaction lasts.
    Transaction,
}

/// A PgBouncer of a test's own, which lets everybody in. Dropping it ends it.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    _process: Killed,
    _folder: TempDir,
}

impl Pooler {
    /// The version of the program that is installed: its first two numbers.
    ///
    /// # Errors
    /// Why there is none.
    pub fn version() -> Result<(u32, u32), String> {
        let output = Command::new("pgbouncer").arg("--version").output();
        let output = output.map_err(|error| match error.kind() {
            ErrorKind::NotFound => "pgbouncer is not installed".to_owned(),
            _ => format!("pgbouncer does not run: {error}"),
        })?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = || {
            let mut numbers = text.lines().next()?.strip_prefix("PgBouncer ")?.split('.');
            Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
        };
        version().ok_or_else(|| format!("this is no version of pgbouncer: {text}"))
    }

    /// Whether the program that is installed lets a client use the statements
    /// that it has prepared, whichever session serves it.
    ///
    /// # Errors
    /// Why there is none.
    pub fn carries_statements() -> Result<bool, String> {
        Ok(Self::version()? >= (1, 21))
    }

    /// Starts one before the server of a URL, and waits until it listens.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(url: &str, pooling: Pooling) -> Self {
        let folder = TempDir::new().expect("a folder can be made");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = free.local_addr().expect("a listener has an address").port();
        drop(free);
        let (user, server) = user_and_server(url);
        let (host, server_port) = server.rsplit_once(':').expect("the URL names a port");
        let mode = match pooling {
            Pooling::Session => "session",
            Pooling::Transaction => "transaction",
        };
        // It needs another user as soon as it is started by root.
        let become_nobody = if rustix::process::geteuid().is_root() { "user = nobody" } else { "" };
        let statements = if Self::carries_statements() == Ok(true) {
            "max_prepared_statements = 200"
        } else {
            ""
        };
        let settings = format!(
            "[databases]
             * = host={host} port={server_port} user={user}
             [pgbouncer]
             listen_addr = {}
             listen_port = {port}
             unix_socket_dir =
             auth_type = any
             pool_mode = {mode}
             {become_nobody}
             {statements}
             ",
            Ipv4Addr::LOCALHOST
        );
        // Its parser wants every line at its beginning.
        let settings: String = settings.lines().map(|line| format!("{}\n", line.trim())).collect();
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("a file can be written");
        let process = Command::new("pgbouncer")
            .arg("--quiet")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let pooler =
            Self { port, _process: Killed(process.expect("pgbouncer starts")), _folder: folder };
        wait_until("the pooler listens", PATIENCE, || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        pooler
    }

    /// The URL that leads through it to the database of another one.
    #[must_use]
    pub fn url(&self, direct: &str) -> String {
        let (_, server) = user_and_server(direct);
        direct.replacen(server, &format!("{}:{}", Ipv4Addr::LOCALHOST, self.port), 1)
    }
}

/// The user, and the server with its port, of a URL.
fn user_and_server(url: &str) -> (&str, &str) {
    let (_, rest) = url.split_once("://").expect("a URL has a scheme");
    let (authority, _) = rest.split_once('/').expect("the URL names a database");
    let (user, server) = authority.rsplit_once('@').expect("the URL names a user");
    // A password is the server's affair, which asks for none.
    (user.split(':').next().unwrap_or(user), server)
}
