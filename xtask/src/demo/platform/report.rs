//! What was measured, as it is shown, and what of it must be within a bound.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::ceilings::{
    HOSTILE_CONCURRENCY, HOSTILE_CPU, HOSTILE_DEAD_LETTERS, HOSTILE_INGESTED, HOSTILE_LOG_LINES,
    HOSTILE_MEMORY, NOISY_ATTEMPTS, NOISY_CONCURRENCY, NOISY_INGESTED, NOISY_MEMORY,
};
use super::count;
use super::figures::{Checks, LATENCY_BOUNDS, Latencies, ms, table};
use super::scrape::Scrape;
use super::tenants::{Answers, MISDEEDS, READINGS};
use crate::http::Answer;

/// The tenants with their groups.
const TENANTS: [(&str, &str); 3] =
    [("quiet", "readings"), ("noisy", "orders"), ("hostile", "miner")];

/// The highest values that were seen of what a tenant uses at one moment.
#[derive(Debug)]
pub(super) struct Peaks {
    begun: Instant,
    permits: BTreeMap<&'static str, f64>,
    memory: BTreeMap<&'static str, f64>,
    /// When the hostile tenant's group was seen to be paused.
    paused_after: Option<Duration>,
}

impl Peaks {
    pub(super) fn from(begun: Instant) -> Self {
        let (permits, memory) = (BTreeMap::new(), BTreeMap::new());
        Self { begun, permits, memory, paused_after: None }
    }

    pub(super) fn see(&mut self, scrape: &Scrape) -> Result<()> {
        let paused = [("group", "miner"), ("state", "paused")];
        if self.paused_after.is_none() && scrape.sum("event_host_group_state", &paused)? > 0.0 {
            self.paused_after = Some(self.begun.elapsed());
        }
        for (tenant, _) in TENANTS {
            let seen = |name: &str| scrape.sum(name, &[("tenant", tenant)]);
            raise(&mut self.permits, tenant, seen("event_host_permits_in_use")?);
            raise(&mut self.memory, tenant, seen("event_host_sandbox_reserved_bytes")?);
        }
        Ok(())
    }
}

fn raise(peaks: &mut BTreeMap<&'static str, f64>, tenant: &'static str, seen: f64) {
    let peak = peaks.entry(tenant).or_default();
    *peak = peak.max(seen);
}

/// What somebody asked for in vain.
pub(super) struct Refusal {
    what: String,
    status: u16,
    problem: String,
    detail: String,
}

impl Refusal {
    pub(super) fn of(what: &str, answer: &Answer) -> Result<Self> {
        let problem = answer.json()?;
        let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            what: what.to_owned(),
            status: answer.status,
            problem: text("type"),
            detail: text("detail"),
        })
    }
}

/// All that was measured.
pub(super) struct Figures {
    /// Events of the quiet tenant, the one included that is not measured.
    pub(super) published: u64,
    pub(super) alone: Latencies,
    pub(super) beside: Latencies,
    pub(super) refusals: Vec<Refusal>,
    pub(super) noisy: Answers,
    pub(super) hostile: Answers,
    /// From when the others began to the last look at the metrics.
    pub(super) lasted: Duration,
    pub(super) peaks: Peaks,
    /// Connections to an address that no handler may reach.
    pub(super) visitors: u64,
    /// What `/livez` answered at the end.
    pub(super) health: u16,
    pub(super) status: Value,
    pub(super) scrape: Scrape,
    /// The dead letters of the hostile tenant.
    pub(super) letters: Value,
    /// Lines of its handler in the host's log.
    pub(super) log_lines: u64,
}

/// A group, as `host status --json` tells of it.
pub(super) fn group<'a>(status: &'a Value, name: &str) -> Result<&'a Value> {
    let groups = status["groups"].as_array().context("the status has no groups")?;
    let group = groups.iter().find(|group| group["name"] == name);
    group.with_context(|| format!("the status has no group {name}"))
}

impl Figures {
    /// What is shown of them.
    pub(super) fn shown(&self) -> Result<String> {
        let mut text = String::from(
            "\nThe quiet tenant's events, from the request to the commit of what its handler did:\n\n",
        );
        let mut rows = Vec::new();
        for (when, latencies) in [("alone", &self.alone), ("beside the others", &self.beside)] {
            rows.push([
                when.to_owned(),
                latencies.events().to_string(),
                ms(latencies.percentile(50)?),
                ms(latencies.percentile(99)?),
            ]);
        }
        text.push_str(&table(["", "events", "p50", "p99"], &rows));
        text.push_str("\nWhat was answered by HTTP:\n\n");
        text.push_str(&self.answers());
        text.push_str(
            "\nWhat became of the hostile tenant's jobs, each a dead letter after one attempt:\n\n",
        );
        text.push_str(&self.misdeeds()?);
        text.push_str("\nWhat the metrics say of each tenant:\n\n");
        text.push_str(&self.metrics()?);
        Ok(text)
    }

    fn answers(&self) -> String {
        let mut rows = Vec::new();
        for (tenant, answers) in [("noisy", &self.noisy), ("hostile", &self.hostile)] {
            let taken = format!("{} events", answers.events);
            rows.push([tenant.to_owned(), answers.taken.to_string(), "202".to_owned(), taken]);
            for ((status, problem), (times, detail)) in &answers.refused {
                let why = format!("{problem}: {}", shortened(detail));
                rows.push([tenant.to_owned(), times.to_string(), status.to_string(), why]);
            }
        }
        for Refusal { what, status, problem, detail } in &self.refusals {
            let why = format!("{problem}: {}", shortened(detail));
            rows.push([what.clone(), "1".to_owned(), status.to_string(), why]);
        }
        table(["who", "requests", "status", "answer"], &rows)
    }

    fn misdeeds(&self) -> Result<String> {
        let mut rows = Vec::new();
        for ((event_type, kind), (times, text)) in self.dead_letters()? {
            rows.push([event_type, kind, times.to_string(), shortened(&text)]);
        }
        Ok(table(["job", "failure", "times", "as the dead letter says it"], &rows))
    }

    /// How often an event of each type failed in each way, and what the first said.
    fn dead_letters(&self) -> Result<BTreeMap<(String, String), (u64, String)>> {
        let mut found = BTreeMap::new();
        for letter in self.letters.as_array().context("the dead letters are no list")? {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let what = (text(&letter["event"]["type"]), text(&letter["failure"]["kind"]));
            let said = found.entry(what).or_insert((0, text(&letter["failure"]["text"])));
            said.0 += 1;
        }
        Ok(found)
    }

    fn metrics(&self) -> Result<String> {
        let mut rows = Vec::new();
        for (tenant, group) in TENANTS {
            let attempts = |outcome: &str| {
                let labels = [("tenant", tenant), ("outcome", outcome)];
                self.scrape.count("event_host_attempts_total", &labels)
            };
            let denied = self.scrape.count("event_host_denied_total", &[("group", group)])?;
            let lag = self.scrape.count("event_host_group_lag_events", &[("group", group)])?;
            let memory = self.peaks.memory.get(tenant).copied().unwrap_or_default();
            rows.push([
                tenant.to_owned(),
                attempts("success")?.to_string(),
                attempts("dead_letter")?.to_string(),
                denied.to_string(),
                lag.to_string(),
                format!("{}", self.peaks.permits.get(tenant).copied().unwrap_or_default()),
                format!("{:.0} MiB", memory / MIB),
            ]);
        }
        let heads =
            ["tenant", "handled", "dead", "denied", "still to do", "at once", "memory reserved"];
        Ok(table(heads, &rows))
    }

    /// Every figure that must be within a bound.
    pub(super) fn checks(&self) -> Result<Checks> {
        let mut checks = Checks::default();
        self.check_quiet(&mut checks)?;
        self.check_noisy(&mut checks)?;
        self.check_hostile(&mut checks)?;
        self.check_misdeeds(&mut checks)?;
        for Refusal { what, status, problem, .. } in &self.refusals {
            let wanted = match what.as_str() {
                "noisy: an event of 65 KiB" => "413 /problems/too-large",
                "noisy: an event for the quiet tenant" => "404 /problems/not-found",
                "somebody with a token of nobody" => "401 /problems/unauthenticated",
                _ => "403 /problems/forbidden",
            };
            checks.exactly(what, format!("{status} {problem}"), wanted.to_owned());
        }
        checks.exactly("host: /livez", self.health, 200);
        Ok(checks)
    }

    fn check_quiet(&self, checks: &mut Checks) -> Result<()> {
        let quiet = group(&self.status, "readings")?;
        checks.exactly("quiet: events handled", count(quiet, "handled_events")?, self.published);
        checks.exactly("quiet: events given up", count(quiet, "dead_events")?, 0);
        checks.exactly("quiet: events left", count(quiet, "lag_events")?, 0);
        let attempts = self.scrape.count("event_host_attempts_total", &READINGS)?;
        checks.exactly("quiet: attempts, none of them a second one", attempts, self.published);
        let emitted = self.scrape.count("event_host_emits_total", &READINGS)?;
        checks.exactly("quiet: events that its handler emitted", emitted, self.published);
        for bound in &LATENCY_BOUNDS {
            let what = format!("quiet: p{} beside the others", bound.percent);
            let figure = self.beside.percentile(bound.percent)?;
            let most = bound.beside(&self.alone)?;
            checks.at_most(&what, milliseconds(figure), milliseconds(most), "ms");
        }
        Ok(())
    }

    fn check_noisy(&self, checks: &mut Checks) -> Result<()> {
        let labels = [("tenant", "noisy")];
        let events = most_of(NOISY_INGESTED, self.noisy.lasted);
        checks.some("noisy: requests refused for its rate", self.noisy.times(429, RATE));
        checks.exactly(
            "noisy: requests refused for anything else",
            self.noisy.others(429, RATE),
            0,
        );
        checks.at_most("noisy: events let in", self.noisy.events as f64, events, "");
        let attempts = self.scrape.count("event_host_attempts_total", &labels)?;
        let most = most_of(NOISY_ATTEMPTS, self.lasted);
        checks.at_most("noisy: attempts", attempts as f64, most, "");
        checks.some("noisy: attempts, for it is served", attempts);
        let waiting = count(group(&self.status, "orders")?, "lag_events")?;
        checks.some("noisy: events that wait for their attempt", waiting);
        self.check_peaks(checks, "noisy", NOISY_CONCURRENCY, NOISY_MEMORY);
        Ok(())
    }

    fn check_hostile(&self, checks: &mut Checks) -> Result<()> {
        let labels = [("tenant", "hostile")];
        let miner = group(&self.status, "miner")?;
        let events = most_of(HOSTILE_INGESTED, self.hostile.lasted);
        checks.some("hostile: requests refused for its rate", self.hostile.times(429, RATE));
        checks.exactly(
            "hostile: requests refused for anything else",
            self.hostile.others(429, RATE),
            0,
        );
        checks.at_most("hostile: jobs let in", self.hostile.events as f64, events, "");
        let dead = count(miner, "dead_letters")?;
        checks.exactly("hostile: dead letters, when it was paused", dead, HOSTILE_DEAD_LETTERS);
        checks.exactly("hostile: jobs that succeeded", count(miner, "handled_events")?, 0);
        let cpu = self.scrape.sum("event_host_handler_cpu_seconds_total", &labels)?;
        // What was under way when it had none left goes on to its end.
        let most = HOSTILE_CPU * (self.lasted.as_secs_f64() + 1.0) + 1.0;
        checks.at_most("hostile: CPU", cpu, most, "s");
        let before = self.peaks.paused_after.unwrap_or(self.lasted).as_secs_f64();
        checks.at_least(
            "hostile: CPU, for it asks for all it may have",
            cpu,
            HOSTILE_CPU * before / 2.0,
            "s",
        );
        let floods = self.dead_letters()?;
        let floods = floods.iter().filter(|((job, _), _)| job == "job.log");
        let floods: u64 = floods.map(|(_, (times, _))| times).sum();
        // One flood after the other finds what a second lets through, and a bit more while
        // it lasts; limits.log alone would let 46 lines through.
        let most = (floods * HOSTILE_LOG_LINES * 3 / 2) as f64;
        let what = format!("hostile: lines in the log, of {floods} floods");
        checks.at_most(&what, self.log_lines as f64, most, "");
        checks.some("hostile: lines in the log, for some are let through", self.log_lines);
        let denied = [("group", "miner"), ("what", "http")];
        let denied = self.scrape.count("event_host_denied_total", &denied)?;
        checks.some("hostile: HTTP requests denied", denied);
        checks.exactly("hostile: connections to what it may not reach", self.visitors, 0);
        let emitted = self.scrape.count("event_host_emits_total", &[("group", "miner")])?;
        checks.exactly("hostile: events that its handler emitted", emitted, 0);
        self.check_peaks(checks, "hostile", HOSTILE_CONCURRENCY, HOSTILE_MEMORY);
        Ok(())
    }

    fn check_peaks(&self, checks: &mut Checks, tenant: &str, permits: u64, memory: u64) {
        let seen = |peaks: &BTreeMap<_, f64>| peaks.get(tenant).copied().unwrap_or_default();
        let what = format!("{tenant}: attempts at once");
        checks.at_most(&what, seen(&self.peaks.permits), permits as f64, "");
        let what = format!("{tenant}: memory reserved");
        checks.at_most(&what, seen(&self.peaks.memory) / MIB, memory as f64, "MiB");
    }

    /// Each job ended as it had to.
    fn check_misdeeds(&self, checks: &mut Checks) -> Result<()> {
        let letters = self.dead_letters()?;
        for (event_type, kinds) in MISDEEDS {
            let of_type = letters.iter().filter(|((of, _), _)| of == event_type);
            let mut found: Vec<&str> = of_type.map(|((_, kind), _)| kind.as_str()).collect();
            found.sort_by_key(|kind| kinds.iter().position(|wanted| wanted == kind));
            let is_right = !found.is_empty() && found.iter().all(|kind| kinds.contains(kind));
            let wanted = if is_right { found.join(", ") } else { kinds.join(", ") };
            checks.exactly(&format!("hostile: {event_type} ended by"), found.join(", "), wanted);
        }
        let fuel = letters.iter().filter(|((_, kind), _)| kind == "fuel");
        checks.some("hostile: jobs out of fuel", fuel.map(|(_, (times, _))| times).sum());
        Ok(())
    }
}

impl Checks {
    /// As a table.
    pub(super) fn shown(&self) -> String {
        let rows = table(["figure", "was", "must be", ""], self.rows());
        format!("\nEvery figure with its bound:\n\n{rows}")
    }
}

/// What `429` is called.
const RATE: &str = "/problems/rate";

const MIB: f64 = 1_048_576.0;

/// What a rate lets through in this time: what was not used is kept for a second.
fn most_of(per_second: u64, time: Duration) -> f64 {
    per_second as f64 * (time.as_secs_f64() + 1.0)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A sentence of the host's, short enough for a table.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= LONGEST {
        return line.to_owned();
    }
    let kept: String = line.chars().take(LONGEST - 1).collect();
    format!("{kept}…")
}
