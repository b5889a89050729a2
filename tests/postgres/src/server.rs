//! A PostgreSQL server in a temporary folder.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::Binaries;
use crate::guard::Guard;
use crate::user::{User, temporary_folder};

/// How long a server may take to start, recovery from a crash included.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// How long a server may take to stop.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// How often it is looked at while it starts or stops.
const LOOK: Duration = Duration::from_millis(10);

/// Ports that no system hands out to outgoing connections. One that it does
/// might be taken while the server is down, and a client that keeps trying
/// might even connect to itself.
const PORTS: Range<u16> = 20_000..32_000;

/// How many ports are tried; each but the first only if the one before was
/// taken between the look at it and the server's own use.
const PORTS_TRIED: u32 = 10;

/// What a server of tests has unless a test says otherwise. Without fsync the
/// data still survives every crash of the server's processes, as the system
/// keeps what they wrote; only a crash of the system would lose it.
const SETTINGS: [(&str, &str); 7] = [
    ("listen_addresses", "127.0.0.1"),
    ("max_connections", "200"),
    ("max_prepared_transactions", "64"),
    ("fsync", "off"),
    ("log_line_prefix", "%m [%p] %q%u@%d %a "),
    ("log_min_messages", "warning"),
    ("log_checkpoints", "off"),
];

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It ends every session, rolls back what is open, and writes a checkpoint.
    Fast,
    /// It ends at once, as in a crash, and recovers when it starts again.
    Immediate,
}

/// A PostgreSQL server of one's own, on 127.0.0.1, which trusts everybody who
/// connects from this machine. Its superuser is `postgres`.
///
/// Dropping it stops it and removes its data. It ends with the process that
/// started it, too, when that is killed.
#[derive(Debug)]
pub struct Server {
    binaries: Binaries,
    user: Option<User>,
    port: u16,
    process: Option<Child>,
    // Dropped before the folder, which it empties.
    _guard: Guard,
    folder: TempDir,
}

impl Server {
    /// Starts a server from the programs that [`Binaries::find`] finds, and
    /// waits until it accepts connections.
    ///
    /// `settings` are as in `postgresql.conf` and win over what a server of
    /// tests has otherwise.
    ///
    /// # Errors
    /// When there are no programs, or they do not start a server, with what
    /// they said.
    pub fn start(settings: &[(&str, &str)]) -> Result<Self> {
        Self::start_from(Binaries::find()?, settings)
    }

    /// [`Server::start`], from programs of one's choice.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_from(binaries: Binaries, settings: &[(&str, &str)]) -> Result<Self> {
        let mut server = Self::folder_of_its_own(binaries)?;
        server.create_data()?;
        server.configure(settings)?;
        server.start_on_a_free_port()?;
        Ok(server)
    }

    /// A server without data yet.
    fn folder_of_its_own(binaries: Binaries) -> Result<Self> {
        let user = User::needed()?;
        let parent = temporary_folder(user)?;
        let folder = tempfile::Builder::new()
            .prefix("test-postgres-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot create a folder in {}", parent.display()))?;
        if let Some(user) = user {
            user.own(folder.path())?;
        }
        let guard = Guard::over(folder.path(), &binaries.program("pg_ctl"), user)?;
        Ok(Self { binaries, user, port: 0, process: None, _guard: guard, folder })
    }

    fn start_on_a_free_port(&mut self) -> Result<()> {
        for _ in 0..PORTS_TRIED {
            self.port = free_port()?;
            match self.try_to_start()? {
                Started::Ready => return Ok(()),
                Started::PortTaken => {}
            }
        }
        bail!("{PORTS_TRIED} ports were free and then taken")
    }

    /// Starts a standby that follows this server, and waits until it lets readers in.
    /// `settings` are as in `postgresql.conf`.
    ///
    /// # Errors
    /// When it cannot be copied, or does not start, with what was said.
    pub fn standby(&self, settings: &[(&str, &str)]) -> Result<Self> {
        let mut server = Self::folder_of_its_own(self.binaries.clone())?;
        let mut command = server.command("pg_basebackup");
        command.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        command.args(["--username=postgres", "--host"]).arg(self.folder.path());
        command.arg("--port").arg(self.port.to_string());
        let output = command.output().with_context(|| server.cannot_run("pg_basebackup"))?;
        ensure!(
            output.status.success(),
            "pg_basebackup failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        server.configure(settings)?;
        server.start_on_a_free_port()?;
        Ok(server)
    }

    /// Makes a standby the primary, and waits until it takes writes.
    ///
    /// # Errors
    /// When it does not become one.
    pub fn promote(&self) -> Result<()> {
        let mut command = self.command("pg_ctl");
        command.args(["promote", "--wait", "--silent"]);
        let output = command.output().with_context(|| self.cannot_run("pg_ctl"))?;
        ensure!(
            output.status.success(),
            "pg_ctl promote failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// A URL of one of its databases; `postgres` always exists.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1; it stays through restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server's first process, the postmaster; `None`
    /// while it is stopped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The programs that it runs.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The folder of its Unix-domain socket.
    #[must_use]
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Everything it has logged so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        let bytes = fs::read(self.log_file()).context("cannot read the server's log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a file into the data directory as the server's own, which none
    /// but the server reads: a certificate's key, or another `pg_hba.conf`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, name: &str, contents: &str) -> Result<()> {
        let file = self.data().join(name);
        let mut new = tempfile::NamedTempFile::new_in(self.data())
            .with_context(|| format!("cannot write {}", file.display()))?;
        new.write_all(contents.as_bytes())
            .with_context(|| format!("cannot write {}", file.display()))?;
        if let Some(user) = self.user {
            user.own(new.path())?;
        }
        new.persist(&file).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(())
    }

    /// Stops it and waits for its end. Stopping what is stopped does nothing.
    ///
    /// # Errors
    /// When it does not stop within half a minute; then it is killed, and its
    /// sessions end when they notice.
    pub fn stop(&mut self, how: Stop) -> Result<()> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        if ended(&mut process)?.is_some() {
            return Ok(());
        }
        let signal = match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        // It is our child and not waited for, so the id is still its own.
        kill_process(pid_of(&process)?, signal).context("cannot signal the server")?;
        let begun = Instant::now();
        while ended(&mut process)?.is_none() {
            if begun.elapsed() > STOPS_WITHIN {
                process.kill().context("cannot kill the server")?;
                process.wait().context("cannot wait for the server")?;
                bail!("the server did not stop within {STOPS_WITHIN:?}; its log:\n{}", self.log()?);
            }
            sleep(LOOK);
        }
        Ok(())
    }

    /// Starts it after a stop, with the same port and data, and waits until it
    /// accepts connections. Starting what runs does nothing.
    ///
    /// # Errors
    /// When it does not start, with its log.
    pub fn resume(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && ended(process)?.is_none()
        {
            return Ok(());
        }
        match self.try_to_start()? {
            Started::Ready => Ok(()),
            Started::PortTaken => bail!("port {} was taken while the server was down", self.port),
        }
    }

    /// Stops it, and starts it again with the same port and data.
    ///
    /// # Errors
    /// When it does not stop, or not start.
    pub fn restart(&mut self, how: Stop) -> Result<()> {
        self.stop(how)?;
        self.resume()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// One of the programs, as the server's user and out of reach of Ctrl-C.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.program(program));
        command.arg("-D").arg(self.data()).current_dir(self.folder.path());
        command.stdin(Stdio::null()).process_group(0);
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        command
    }

    fn create_data(&self) -> Result<()> {
        let mut command = self.command("initdb");
        command.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
        command.arg("--no-sync");
        let output = command.output().with_context(|| self.cannot_run("initdb"))?;
        ensure!(
            output.status.success(),
            "initdb failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    fn configure(&self, settings: &[(&str, &str)]) -> Result<()> {
        let folder = self.folder.path().to_str().context("the folder's name is not UTF-8")?;
        let mut text = String::from("\n");
        for (name, value) in
            [("unix_socket_directories", folder)].iter().chain(&SETTINGS).chain(settings)
        {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        }
        // The last one of a name wins.
        let file = self.data().join("postgresql.conf");
        let mut file = File::options()
            .append(true)
            .open(&file)
            .with_context(|| format!("cannot open {}", file.display()))?;
        file.write_all(text.as_bytes()).context("cannot write postgresql.conf")
    }

    fn try_to_start(&mut self) -> Result<Started> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .context("cannot open the server's log")?;
        let said_before = log.metadata().context("cannot look at the server's log")?.len();
        let mut command = self.command("postgres");
        command.arg("-p").arg(self.port.to_string());
        command.stdout(log.try_clone().context("cannot share the server's log")?).stderr(log);
        let mut process = command.spawn().with_context(|| self.cannot_run("postgres"))?;
        let begun = Instant::now();
        loop {
            if let Some(status) = ended(&mut process)? {
                let log = self.log()?;
                let said = log.get(usize::try_from(said_before)?..).unwrap_or(&log);
                if said.contains("Address already in use") {
                    return Ok(Started::PortTaken);
                }
                bail!("the server did not start ({status}); its log:\n{said}");
            }
            if self.is_ready(process.id()) {
                self.process = Some(process);
                return Ok(Started::Ready);
            }
            if begun.elapsed() > STARTS_WITHIN {
                process.kill().context("cannot kill the server")?;
                process.wait().context("cannot wait for the server")?;
                bail!("no server within {STARTS_WITHIN:?}; its log:\n{}", self.log()?);
            }
            sleep(LOOK);
        }
    }

    /// Whether the server says in its pid file that it accepts connections. To
    /// connect would prove less: another server may have the port.
    fn is_ready(&self, pid: u32) -> bool {
        const STATUS_LINE: usize = 7;
        let Ok(text) = fs::read_to_string(self.data().join("postmaster.pid")) else {
            return false;
        };
        let line = |number: usize| text.lines().nth(number).map(str::trim);
        line(0) == Some(pid.to_string().as_str())
            && matches!(line(STATUS_LINE), Some("ready" | "standby"))
    }

    fn cannot_run(&self, program: &str) -> String {
        let as_user = if self.user.is_some() { " as a user other than root" } else { "" };
        format!("cannot run {}{as_user}", self.binaries.program(program).display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Stop::Immediate) {
            eprintln!("a PostgreSQL server of a test: {error:#}");
        }
    }
}

enum Started {
    Ready,
    PortTaken,
}

fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let port = fastrand::u16(PORTS);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port between {} and {}", PORTS.start, PORTS.end)
}

fn ended(process: &mut Child) -> Result<Option<ExitStatus>> {
    process.try_wait().context("cannot wait for the server")
}

fn pid_of(process: &Child) -> Result<Pid> {
    let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
    pid.context("the server has no process id")
}
