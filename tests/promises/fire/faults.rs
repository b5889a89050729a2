//! What happens to the hosts and to the server while the writers write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::Value;
use test_postgres::{Server, Stop};
use tests::{Client, PATIENCE, Rig, Running, wait_until};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    /// Shorter than a host may be silent.
    FreezeBriefly,
    /// So long that another host takes over.
    Freeze,
    EndLockSession,
    EndAllSessions,
    Restart(Stop),
}

/// Every fault once; they come in an order of chance, and then again.
const DECK: [Fault; 7] = [
    Fault::Kill,
    Fault::FreezeBriefly,
    Fault::Freeze,
    Fault::EndLockSession,
    Fault::EndAllSessions,
    Fault::Restart(Stop::Fast),
    Fault::Restart(Stop::Immediate),
];

/// How many run at the same time.
const HOSTS: u32 = 2;

/// A host, and what the server calls its sessions.
struct Host {
    name: String,
    running: Running,
    thaw_at: Option<Instant>,
}

/// The hosts and the server, under fire.
pub(super) struct Arena<'a> {
    rig: &'a Rig,
    server: &'a mut Server,
    keep_prepared: Arc<AtomicBool>,
    random: Rng,
    hosts: Vec<Host>,
    /// How many hosts were started so far, for their names.
    started: u32,
    /// The log of each host that is gone.
    logs: Vec<Vec<Value>>,
}

impl<'a> Arena<'a> {
    /// `keep_prepared` keeps prepared transactions from being ended.
    pub(super) fn new(
        rig: &'a Rig,
        server: &'a mut Server,
        keep_prepared: Arc<AtomicBool>,
        seed: u64,
    ) -> Self {
        let random = Rng::with_seed(seed);
        let (hosts, logs) = (Vec::new(), Vec::new());
        let mut arena = Self { rig, server, keep_prepared, random, hosts, started: 0, logs };
        for _ in 0..HOSTS {
            arena.start_host();
        }
        arena
    }

    /// Fires for so long, and gives the number of faults.
    pub(super) fn fire(&mut self, duration: Duration) -> u64 {
        let begun = Instant::now();
        let mut faults = 0;
        let mut deck = Vec::new();
        while begun.elapsed() < duration {
            let pause = Duration::from_millis(self.random.u64(1_500..4_500));
            self.wait_until(Instant::now() + pause);
            if deck.is_empty() {
                deck = DECK.to_vec();
                self.random.shuffle(&mut deck);
            }
            if let Some(fault) = deck.pop() {
                println!("{:5.1} s: {fault:?}", begun.elapsed().as_secs_f64());
                self.strike(fault);
                faults += 1;
            }
        }
        for host in &mut self.hosts {
            host.thaw();
        }
        faults
    }

    /// Lets all hosts end well, and gives the log of every host there was.
    pub(super) fn stop(mut self) -> Vec<Vec<Value>> {
        for mut host in self.hosts {
            host.running.sigterm();
            let status = host.running.wait();
            let log = host.running.log();
            assert!(status.success(), "{status}: {log:#?}");
            self.logs.push(log);
        }
        self.logs
    }

    /// Lets time pass, and hosts thaw whose time has come.
    fn wait_until(&mut self, moment: Instant) {
        loop {
            let now = Instant::now();
            for host in &mut self.hosts {
                if host.thaw_at.is_some_and(|at| at <= now) {
                    host.thaw();
                }
            }
            let next = self.hosts.iter().filter_map(|host| host.thaw_at).fold(moment, Instant::min);
            if now >= moment {
                return;
            }
            std::thread::sleep(next.saturating_duration_since(now));
        }
    }

    fn strike(&mut self, fault: Fault) {
        let victim = self.victim();
        match fault {
            Fault::Kill => {
                let Host { running, .. } = self.hosts.swap_remove(victim);
                self.logs.push(running.log());
                running.kill9();
                self.start_host();
            }
            Fault::FreezeBriefly => {
                let time = Duration::from_millis(self.random.u64(500..3_000));
                self.hosts[victim].freeze(time);
            }
            Fault::Freeze => self.hosts[victim].freeze(Duration::from_millis(8_500)),
            Fault::EndLockSession => {
                self.end_sessions(
                    "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)",
                );
            }
            Fault::EndAllSessions => {
                let name = &self.hosts[victim].name;
                self.end_sessions(&format!("application_name = '{name}'"));
            }
            Fault::Restart(how) => {
                // What was prepared before a restart has another name after it.
                self.keep_prepared.store(true, Ordering::Relaxed);
                let mut client = self.client();
                wait_until("something is prepared", PATIENCE, || {
                    client.number("SELECT count(*) FROM pg_prepared_xacts") > 0
                });
                self.server.restart(how).expect("the server restarts");
                self.keep_prepared.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Mostly one that leads a group, as there is more to break.
    fn victim(&mut self) -> usize {
        let leading = self.client().texts(
            "SELECT application_name FROM pg_stat_activity
             WHERE pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)",
        );
        let leader = self.hosts.iter().position(|host| leading.contains(&host.name));
        let any = self.random.usize(..self.hosts.len());
        leader.filter(|_| self.random.u8(..4) > 0).unwrap_or(any)
    }

    fn client(&self) -> Client {
        Client::of_url(&url_for(self.server, "tests"))
    }

    fn end_sessions(&self, which: &str) {
        self.client().execute(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name LIKE 'host-%' AND {which}"
        ));
    }

    fn start_host(&mut self) {
        self.started += 1;
        let name = format!("host-{}", self.started);
        let url = url_for(self.server, &name);
        let running = self.rig.spawn(&["run", "--database", &url]);
        self.hosts.push(Host { name, running, thaw_at: None });
    }
}

impl Host {
    fn freeze(&mut self, time: Duration) {
        self.running.freeze();
        self.thaw_at = Some(Instant::now() + time);
    }

    fn thaw(&mut self) {
        if self.thaw_at.take().is_some() {
            self.running.thaw();
        }
    }
}

/// The URL of the database, for sessions of this name.
pub(super) fn url_for(server: &Server, name: &str) -> String {
    format!("{}?application_name={name}", server.url("postgres"))
}
