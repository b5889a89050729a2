//! What the real program costs while nothing happens.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use sqlx::PgConnection;

use super::{Database, Effort, guest};

/// The name that the host's connections have.
const APPLICATION: &str = "bench-idle-host";

/// How long a host may take to lead its groups, or to stop.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a host looks at a quiet log.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a host with nothing to do costs.
pub(crate) struct Idle {
    /// Its groups.
    pub(crate) groups: usize,
    /// Over how long it was measured.
    pub(crate) length: Duration,
    /// Transactions a second that the server committed, each a statement.
    pub(crate) statements: f64,
    /// The host's processor time, of one core.
    pub(crate) host: f64,
    /// The same of the server's processes that serve it; `None` where they are
    /// not known to be on this machine.
    pub(crate) server: Option<f64>,
    /// The host's connections.
    pub(crate) connections: usize,
    /// How long it took from the start until it led all of them.
    pub(crate) start: Duration,
    /// How long after the host was killed another one led all.
    pub(crate) kill: Duration,
    /// How long that one took to stop.
    pub(crate) stop: Duration,
}

impl Idle {
    /// Runs a host with so many groups of one component, and stops it again.
    pub(crate) async fn measure(database: &Database, groups: usize, effort: Effort) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut watching = database.connect().await;
        let began = Instant::now();
        let mut host = Running::start(folder.path(), database.url(), groups);
        let start = host.leads_all(&mut watching, groups, began).await;
        // A session with nothing to do tells what it did up to ten seconds later,
        // and much was done at the start.
        tokio::time::sleep(Duration::from_secs(effort.pick(3, 12))).await;
        let length = Duration::from_secs(effort.pick(2, 10));
        let backends = backends(&mut watching).await;
        let server = || -> Option<Duration> {
            database.is_private().then(|| backends.iter().map(|&pid| cpu(pid)).sum())
        };
        let before = (cpu(host.pid()), server(), commits(&mut watching).await, Instant::now());
        tokio::time::sleep(length).await;
        let after = (cpu(host.pid()), server(), commits(&mut watching).await, before.3.elapsed());
        let seconds = after.3.as_secs_f64();
        let part = |before: Duration, after: Duration| (after - before).as_secs_f64() / seconds;
        let mut next = Running::start(folder.path(), database.url(), groups);
        next.is_there(&mut watching).await;
        let killed = Instant::now();
        host.0.kill().unwrap();
        let kill = next.leads_all(&mut watching, groups, killed).await;
        let stopped = Instant::now();
        drop(next);
        let stop = stopped.elapsed();
        Self {
            groups,
            length,
            statements: (after.2 - before.2) as f64 / seconds,
            host: part(before.0, after.0),
            server: before.1.zip(after.1).map(|(before, after)| part(before, after)),
            connections: backends.len(),
            start,
            kill,
            stop,
        }
    }

    /// What the least that looks as often costs, of one core: a runtime of one
    /// thread, and a connection that asks for one number and then waits.
    pub(crate) fn bare(database: &Database, effort: Effort) -> f64 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = database.connect().await;
            let length = Duration::from_secs(effort.pick(2, 10));
            let mut before = None;
            let began = Instant::now();
            while began.elapsed() < length {
                tokio::time::sleep(LOOK_EVERY).await;
                let _: i64 = sqlx::query_scalar("SELECT event_host.last_drawn()")
                    .fetch_one(&mut connection)
                    .await
                    .unwrap();
                before.get_or_insert_with(|| (thread_cpu(), Instant::now()));
            }
            let (cpu, since) = before.unwrap();
            (thread_cpu() - cpu).as_secs_f64() / since.elapsed().as_secs_f64()
        })
    }

    /// The heading of [`Idle::print`].
    pub(crate) fn print_heading() {
        println!(
            "{:>7} {:>13} {:>10} {:>12} {:>12} {:>9} {:>14} {:>9}",
            "groups",
            "statements/s",
            "host CPU",
            "server CPU",
            "connections",
            "start",
            "after a kill",
            "stop"
        );
    }

    /// One line.
    pub(crate) fn print(&self) {
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        println!(
            "{:>7} {:>13.0} {:>10} {:>12} {:>12} {:>9.2?} {:>14.2?} {:>9.2?}",
            self.groups,
            self.statements,
            percent(self.host),
            self.server.map_or_else(|| "unknown".to_owned(), percent),
            self.connections,
            self.start,
            self.kill,
            self.stop
        );
    }
}

/// A host program, which ends when it is dropped.
struct Running(Child);

impl Running {
    fn start(folder: &Path, url: &str, groups: usize) -> Self {
        let separator = if url.contains('?') { '&' } else { '?' };
        let mut toml = format!("database = \"{url}{separator}application_name={APPLICATION}\"\n");
        for group in 0..groups {
            let component = guest();
            write!(
                toml,
                "[handlers.idle-{group}]\ncomponent = {component:?}\nsubscribe = [\"bench.*\"]\n"
            )
            .unwrap();
        }
        let settings = folder.join("handlers.toml");
        std::fs::write(&settings, toml).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_host"))
            .args(["--log", "warn", "run"])
            .arg(settings)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits until it leads all groups, and says how long that took.
    async fn leads_all(
        &mut self,
        watching: &mut PgConnection,
        groups: usize,
        since: Instant,
    ) -> Duration {
        while led(watching, self.pid()).await < groups as i64 {
            assert!(self.runs() && since.elapsed() < PATIENCE, "the groups are not led");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        since.elapsed()
    }

    /// Waits until it has run for a while beside another one.
    async fn is_there(&mut self, watching: &mut PgConnection) {
        let began = Instant::now();
        let stands_by = "SELECT EXISTS (SELECT FROM event_host.hosts h
             JOIN event_host.host_groups g ON g.host = h.id WHERE h.pid = $1)";
        loop {
            let is_there: bool = sqlx::query_scalar(stands_by)
                .bind(i64::from(self.pid()))
                .fetch_one(&mut *watching)
                .await
                .unwrap();
            if is_there {
                return;
            }
            assert!(self.runs() && began.elapsed() < PATIENCE, "the host does not come");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It is our child and not waited for, so the id is still its own.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if !self.runs() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many groups a host leads.
async fn led(connection: &mut PgConnection, pid: u32) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM event_host.consumer_groups g
         JOIN event_host.hosts h ON h.lock_key = g.leader_key
         WHERE g.name LIKE 'idle-%' AND h.pid = $1",
    )
    .bind(i64::from(pid))
    .fetch_one(connection)
    .await
    .unwrap()
}

async fn commits(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
    )
    .fetch_one(connection)
    .await
    .unwrap()
}

/// The server's processes for the host's connections.
async fn backends(connection: &mut PgConnection) -> Vec<u32> {
    let pids: Vec<i32> = sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = $1",
    )
    .bind(APPLICATION)
    .fetch_all(connection)
    .await
    .unwrap();
    pids.into_iter().map(|pid| u32::try_from(pid).unwrap()).collect()
}

/// The processor time that this thread has used so far.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// The processor time that a process of this machine has used so far.
fn cpu(pid: u32) -> Duration {
    // What Linux counts in towards programs, on every machine that it runs on.
    const TICKS_A_SECOND: f64 = 100.0;
    const UTIME: usize = 11;
    const STIME: usize = 12;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name may hold anything, and ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    Duration::from_secs_f64((ticks(UTIME) + ticks(STIME)) / TICKS_A_SECOND)
}
