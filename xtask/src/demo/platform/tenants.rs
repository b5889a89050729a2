//! What each tenant does to the host: one publishes an event a second, one floods it, one
//! has its handler do all that no handler should.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::scrape::{Operator, Scrape};
use crate::http::{Answer, Http};

/// How long an event of the quiet tenant may take until the demonstration gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many connections the noisy tenant floods.
const FLOODS: u64 = 4;

/// How many events one of its requests brings, and how long after the one before.
const FLOOD_EVENTS: u64 = 10;
const FLOOD_PERIOD: Duration = Duration::from_millis(40);

/// How many events a second that comes to.
pub(super) const FLOOD: u64 = FLOODS * FLOOD_EVENTS * 1_000 / FLOOD_PERIOD.as_millis() as u64;

/// What the hostile tenant's handler does with an event of the type, and the kinds of failure
/// that each time it must be. On a machine that is busy, to spin may take too long before it
/// takes too many instructions.
pub(super) const MISDEEDS: &[(&str, &[&str])] = &[
    ("job.trap", &["trap"]),
    ("job.spin", &["fuel", "timeout"]),
    ("job.wait", &["timeout"]),
    ("job.allocate", &["memory-limit"]),
    ("job.recurse", &["stack-limit"]),
    ("job.log", &["log-limit"]),
    ("job.emit", &["emit-limit"]),
    ("job.state", &["state-limit"]),
    ("job.reach", &["reject"]),
    ("job.requests", &["http-request-limit"]),
];

/// How often a round spins; everything else it does once. So it asks for several times the
/// CPU time that it may have.
const SPINS: usize = 5;

/// How many jobs a round has.
pub(super) const ROUND: u64 = (MISDEEDS.len() + SPINS - 1) as u64;

/// A token, and a connection.
pub(super) struct Sender {
    http: Http,
    authorization: String,
}

impl Sender {
    pub(super) fn connect(address: SocketAddr, token: &str) -> Result<Self> {
        Ok(Self { http: Http::connect(address)?, authorization: format!("Bearer {token}") })
    }

    /// Sends events, as a batch, to a path.
    pub(super) fn send(&mut self, path: &str, events: &[Value]) -> Result<Answer> {
        let headers = [
            ("Authorization", self.authorization.as_str()),
            ("Content-Type", "application/cloudevents-batch+json"),
        ];
        self.http.post(path, &headers, &Value::from(events).to_string())
    }

    /// Sends events to where events go.
    pub(super) fn publish(&mut self, events: &[Value]) -> Result<Answer> {
        self.send("/v1/events", events)
    }
}

/// An event of a tenant.
pub(super) fn event(tenant: &str, event_type: &str, id: &str, data: Value) -> Value {
    json!({
        "specversion": "1.0",
        "id": id,
        "source": format!("/demo/{tenant}"),
        "type": event_type,
        "data": data,
    })
}

/// What a tenant was answered.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Requests that were taken, and the events in them.
    pub(super) taken: u64,
    pub(super) events: u64,
    /// Those that were refused: how many, by status and problem, with what was said first.
    pub(super) refused: BTreeMap<(u16, String), (u64, String)>,
    /// How long it went on.
    pub(super) lasted: Duration,
}

impl Answers {
    fn add(&mut self, answer: &Answer, events: u64) -> Result<()> {
        if answer.status == 202 {
            self.taken += 1;
            self.events += events;
            return Ok(());
        }
        let problem = answer.json()?;
        let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        let said = self.refused.entry((answer.status, text("type"))).or_default();
        said.0 += 1;
        if said.1.is_empty() {
            said.1 = text("detail");
        }
        Ok(())
    }

    /// What another connection of the same tenant was answered.
    fn join(&mut self, other: Self) {
        self.taken += other.taken;
        self.events += other.events;
        self.lasted = self.lasted.max(other.lasted);
        for (what, (times, detail)) in other.refused {
            let said = self.refused.entry(what).or_insert((0, detail));
            said.0 += times;
        }
    }

    /// How often it was refused with this.
    pub(super) fn times(&self, status: u16, problem: &str) -> u64 {
        self.refused.get(&(status, problem.to_owned())).map_or(0, |(times, _)| *times)
    }

    /// How often it was refused with anything else.
    pub(super) fn others(&self, status: u16, problem: &str) -> u64 {
        let all: u64 = self.refused.values().map(|(times, _)| times).sum();
        all - self.times(status, problem)
    }
}

/// The quiet tenant, and the metrics by which it is seen what became of its events.
pub(super) struct Quiet {
    sender: Sender,
    operator: Operator,
    /// How many events it has published.
    pub(super) published: u64,
}

impl Quiet {
    pub(super) fn new(sender: Sender, operator: Operator) -> Self {
        Self { sender, operator, published: 0 }
    }

    /// Publishes an event, and gives the time from its request to the commit of what its
    /// handler made of it: the handler emits one event for each, and emits are counted
    /// when they are committed.
    pub(super) fn reading(&mut self) -> Result<Duration> {
        let number = self.published + 1;
        let reading = event("quiet", "reading.taken", &number.to_string(), json!({ "level": 3 }));
        let begun = Instant::now();
        let answer = self.sender.publish(&[reading])?;
        ensure!(answer.status == 202, "the quiet tenant: {} {}", answer.status, answer.body);
        self.published = number;
        loop {
            let emitted = self.operator.scrape()?.count("event_host_emits_total", &READINGS)?;
            ensure!(emitted <= number, "{number} events were published, and {emitted} handled");
            if emitted == number {
                return Ok(begun.elapsed());
            }
            ensure!(begun.elapsed() < PATIENCE, "not handled within {PATIENCE:?}: {number}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Publishes so many events, one a second, and looks at the metrics in between.
    pub(super) fn readings(
        &mut self,
        events: usize,
        mut look: impl FnMut(&Scrape) -> Result<()>,
    ) -> Result<Vec<Duration>> {
        let begun = Instant::now();
        let mut latencies = Vec::new();
        for second in 1..=events {
            latencies.push(self.reading()?);
            let next = begun + Duration::from_secs(second as u64);
            while let Some(left) = next.checked_duration_since(Instant::now()) {
                look(&self.operator.scrape()?)?;
                thread::sleep(left.min(Duration::from_millis(100)));
            }
        }
        Ok(latencies)
    }

    pub(super) fn scrape(&mut self) -> Result<Scrape> {
        self.operator.scrape()
    }
}

/// The labels of the quiet tenant's group.
pub(super) const READINGS: [(&str, &str); 1] = [("group", "readings")];

/// Floods the host until `stop`: the same number of requests a second, whatever is answered.
pub(super) fn be_noisy(address: SocketAddr, token: &str, stop: &AtomicBool) -> Result<Answers> {
    let flood = |connection: u64| -> Result<Answers> {
        let mut sender = Sender::connect(address, token)?;
        let mut answers = Answers::default();
        let begun = Instant::now();
        let mut next = begun;
        for request in 0_u64.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let orders: Vec<Value> = (0..FLOOD_EVENTS)
                .map(|order| {
                    let id = format!("{connection}-{request}-{order}");
                    let mut placed = event("noisy", "order.placed", &id, json!({ "cents": 250 }));
                    placed["partitionkey"] = format!("customer-{order}").into();
                    placed
                })
                .collect();
            answers.add(&sender.publish(&orders)?, FLOOD_EVENTS)?;
            next = (next + FLOOD_PERIOD).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        answers.lasted = begun.elapsed();
        Ok(answers)
    };
    thread::scope(|scope| {
        let floods: Vec<_> = (0..FLOODS).map(|n| scope.spawn(move || flood(n))).collect();
        let mut answers = Answers::default();
        for flood in floods {
            answers.join(joined(flood)?);
        }
        Ok(answers)
    })
}

/// Has everything done that no handler should, two rounds a second, until `stop`. Its
/// handler is to reach `targets`.
pub(super) fn be_hostile(
    address: SocketAddr,
    token: &str,
    targets: &[String],
    stop: &AtomicBool,
) -> Result<Answers> {
    let mut sender = Sender::connect(address, token)?;
    let mut answers = Answers::default();
    let begun = Instant::now();
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let spins = std::iter::repeat_n("job.spin", SPINS - 1);
        let types = MISDEEDS.iter().map(|(event_type, _)| *event_type).chain(spins);
        let jobs: Vec<Value> = types
            .enumerate()
            .map(|(job, event_type)| {
                let id = format!("{round}-{job}");
                event("hostile", event_type, &id, json!({ "urls": targets }))
            })
            .collect();
        answers.add(&sender.publish(&jobs)?, ROUND)?;
        thread::sleep(Duration::from_millis(500));
    }
    answers.lasted = begun.elapsed();
    Ok(answers)
}

/// What a thread gave.
pub(super) fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().ok().context("a sender panicked")?
}
