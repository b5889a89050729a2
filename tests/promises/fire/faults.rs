//! What happens to the hosts and to the server while the writers write.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use serde_json::Value;
use test_postgres::{Server, Stop};
use tests::{Client, PATIENCE, Proxy, Rig, Running, wait_until};

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
    /// The link of all hosts to the server carries little for a while.
    SlowLink,
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

/// The faults of hosts that reach the server through proxies, one of which keeps the
/// sessions of a host open that is frozen or gone.
const DECK_BEHIND_DOORS: [Fault; 6] = [
    Fault::Kill,
    Fault::FreezeBriefly,
    Fault::Freeze,
    Fault::EndLockSession,
    Fault::EndAllSessions,
    Fault::SlowLink,
];

/// What a slow link carries, in bytes a second, and for how long it is one.
const SLOW: u64 = 1_000_000;
const SLOW_FOR: Duration = Duration::from_secs(6);

/// How many events are committed, at least, that the standby does not get.
const LOST_AT_LEAST: i64 = 20;

/// How many run at the same time.
const HOSTS: u32 = 2;

/// The one address of a server and of the standby that takes over from it: a proxy for
/// hosts and one for everybody else.
pub(super) struct Doors {
    pub(super) hosts: Proxy,
    pub(super) others: Proxy,
    standby: Server,
}

impl Doors {
    /// Before a server, which gets a standby with these settings.
    pub(super) fn before(server: &Server, settings: &[(&str, &str)]) -> Self {
        let standby = server.standby(settings).expect("a standby starts");
        let [hosts, others] = [(), ()].map(|()| Proxy::start(address(server)));
        Self { hosts, others, standby }
    }

    fn both(&self) -> [&Proxy; 2] {
        [&self.hosts, &self.others]
    }
}

fn address(server: &Server) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, server.port()).into()
}

/// What a failover came to.
pub(super) struct Failover {
    /// When clients could reach the new server.
    pub(super) at: SystemTime,
    /// The ids of events that were committed and that the new server never had.
    pub(super) lost: BTreeSet<String>,
    /// How long the new server's log was before.
    pub(super) said_before: usize,
}

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
    doors: Option<Doors>,
    keep_prepared: Arc<AtomicBool>,
    random: Rng,
    hosts: Vec<Host>,
    /// Until when the link of the hosts is slow.
    slow_until: Option<Instant>,
    /// How many hosts were started so far, for their names.
    started: u32,
    /// The log of each host that is gone.
    logs: Vec<Vec<Value>>,
}

impl<'a> Arena<'a> {
    /// `keep_prepared` keeps prepared transactions from being ended. Through `doors`, if
    /// there are any, go all that lead to the server.
    pub(super) fn new(
        rig: &'a Rig,
        server: &'a mut Server,
        doors: Option<Doors>,
        keep_prepared: Arc<AtomicBool>,
        seed: u64,
    ) -> Self {
        let random = Rng::with_seed(seed);
        let (hosts, logs) = (Vec::new(), Vec::new());
        let slow_until = None;
        let mut arena =
            Self { rig, server, doors, keep_prepared, random, hosts, slow_until, started: 0, logs };
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
                deck =
                    if self.doors.is_some() { DECK_BEHIND_DOORS.to_vec() } else { DECK.to_vec() };
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
        self.quicken();
        faults
    }

    /// The server dies, and a standby takes over that has not got all that was committed.
    /// `forget` is called while there is no server.
    pub(super) fn fail_over(&mut self, forget: impl FnOnce()) -> Failover {
        self.quicken();
        for host in &mut self.hosts {
            host.thaw();
            // One that has just been started gives up without a server.
            host.running.wait_for_log("the host runs", |line| {
                let said = line["message"].as_str().unwrap_or_default();
                said == "leading" || said.ends_with("standing by")
            });
        }
        // Whatever is ended now is so on both servers.
        self.keep_prepared.store(true, Ordering::Relaxed);
        let doors = self.doors.as_mut().expect("there is a standby");
        let mut before = Client::of_url(&self.server.url("postgres"));
        let mut standby = Client::of_url(&doors.standby.url("postgres"));
        wait_until("nobody ends what is prepared", PATIENCE, || {
            before.number(
                "SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'resolver' AND state = 'active'",
            ) == 0
        });
        standby.execute("ALTER SYSTEM SET primary_conninfo = ''");
        standby.execute("SELECT pg_reload_conf()");
        wait_until("the standby follows no more", PATIENCE, || {
            standby.number("SELECT count(*) FROM pg_stat_wal_receiver") == 0
                && standby.number(
                    "SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::bigint",
                ) <= 0
        });
        let known = "SELECT count(*) FROM event_host.events";
        let most = standby.number(known);
        wait_until("the server has what the standby has not", PATIENCE, || {
            before.number(known) >= most + LOST_AT_LEAST
        });
        drop((before, standby));

        doors.both().into_iter().for_each(Proxy::refuse);
        self.server.stop(Stop::Immediate).expect("the server stops");
        doors.both().into_iter().for_each(Proxy::drop_all);
        forget();
        let said_before = doors.standby.log().expect("its log can be read").len();
        doors.standby.promote().expect("the standby takes over");
        let at = SystemTime::now();
        for door in doors.both() {
            door.lead_to(address(&doors.standby));
            door.accept();
        }
        std::mem::swap(self.server, &mut doors.standby);

        // The server that was, for itself.
        doors.standby.resume().expect("it starts again");
        let ids = |server: &Server| -> BTreeSet<String> {
            let sql = "SELECT id FROM event_host.events WHERE type IN ('work', 'command')";
            Client::of_url(&server.url("postgres")).texts(sql).into_iter().collect()
        };
        let lost = ids(&doors.standby).difference(&ids(self.server)).cloned().collect();
        doors.standby.stop(Stop::Fast).expect("it stops again");
        self.keep_prepared.store(false, Ordering::Relaxed);
        Failover { at, lost, said_before }
    }

    /// The link of the hosts is as quick as it can be.
    fn quicken(&mut self) {
        if self.slow_until.take().is_some()
            && let Some(doors) = &self.doors
        {
            doors.hosts.throttle(None);
        }
    }

    /// Lets all hosts end well, and gives the log of every host there was, and the doors.
    pub(super) fn stop(mut self) -> (Vec<Vec<Value>>, Option<Doors>) {
        for mut host in self.hosts {
            host.running.sigterm();
            let status = host.running.wait();
            let log = host.running.log();
            assert!(status.success(), "{status}: {log:#?}");
            self.logs.push(log);
        }
        (self.logs, self.doors)
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
            if self.slow_until.is_some_and(|until| until <= now) {
                self.quicken();
            }
            let moments = self.hosts.iter().filter_map(|host| host.thaw_at).chain(self.slow_until);
            let next = moments.fold(moment, Instant::min);
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
                // A host that cannot reach the server when it starts gives up.
                self.quicken();
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
            Fault::SlowLink => {
                if let Some(doors) = &self.doors {
                    doors.hosts.throttle(Some(SLOW));
                    self.slow_until = Some(Instant::now() + SLOW_FOR);
                }
            }
        }
    }

    /// Mostly one that leads a group, as there is more to break.
    fn victim(&mut self) -> usize {
        let leading = self.client().texts(
            "SELECT application_name FROM pg_stat_activity
             WHERE pid IN (SELECT h.backend_pid FROM event_host.hosts h
                           JOIN event_host.consumer_groups g ON g.leader_key = h.lock_key)",
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
        let running = match &self.doors {
            None => self.rig.spawn(&["run", "--database", &url_for(self.server, &name)]),
            Some(doors) => {
                let url = url_at(doors.hosts.port(), &name);
                if self.started.is_multiple_of(2) {
                    self.rig.spawn(&["run", "--database", &url])
                } else {
                    // It takes the proxy for a pooler, and sets nothing on its sessions.
                    let file = format!("{name}.toml");
                    let settings = super::settings()
                        .top(&format!("database = \"{url}\""))
                        .top(&format!("lock_database = \"{url}\""));
                    self.rig.write(&file, settings.to_toml());
                    self.rig.spawn(&["run", &file])
                }
            }
        };
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

/// The same, through a proxy on this port.
pub(super) fn url_at(port: u16, name: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres?application_name={name}")
}
