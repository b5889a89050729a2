//! `[handlers.NAME]`: the settings of one handler.

mod batch;
mod breaker;
mod limits;
mod retry;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use toml::de::DeValue;

use batch::batch;
use breaker::breaker;
use limits::limits;
use retry::retry;

use super::build::{self, BuildSettings};
use super::component::{Component, DEPLOYED};
use super::document::{Document, Entry, kind};
use super::event_types::event_types;
use super::grants::grants;
use super::keys;
use super::section::Section;
use super::tenants::{self, Tenants};
use super::value::{NAME_RULE, YEAR};
use event_host_core::digest::Digest;
use event_host_core::event::time::parse_time;
use event_host_core::event::{GroupName, HandlerName, Position, Tenant, quoted};
use event_host_core::retry::RetryPolicy;
use event_host_core::subscription::Subscription;
use event_host_delivery::breaker::BreakerSettings;
use event_host_delivery::group::{BatchSettings, DEFAULT_MAX_PARKED};
use event_host_delivery::ordering::Ordering;
use event_host_sandbox::settings::{Grants, HttpPath, Limits, Reuse};
use event_host_store::Start;

/// One handler: a component plus its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerSettings {
    /// The name of its table.
    pub name: HandlerName,
    /// The consumer group that it serves alone.
    pub group: GroupName,
    /// Whose events it receives.
    pub tenant: Tenant,
    /// Where its component comes from.
    pub component: Component,
    /// How that is made, if the settings say it.
    pub build: Option<BuildSettings>,
    /// What the component must be, if that is pinned.
    pub digest: Option<Digest>,
    /// Which events it receives.
    pub subscription: Subscription,
    /// Where the group begins if it is new.
    pub start: Start,
    /// In which order events are handled.
    pub ordering: Ordering,
    /// Attempts at once.
    pub concurrency: usize,
    /// Events that wait while others of the group pass.
    pub max_parked: usize,
    /// Transactions that have been about to publish for longer than this are not
    /// waited for; `None` where all are.
    pub overtake: Option<Duration>,
    /// Into how many parts the group's events are split; 1 where they are not.
    pub partitions: u32,
    /// How long an instance lives.
    pub reuse: Reuse,
    /// Where it gets its events, if its component takes them as HTTP requests; `None` where
    /// that is left to the default.
    pub http_path: Option<HttpPath>,
    /// When to try again, and when to give up.
    pub retry: RetryPolicy,
    /// What an instance or an attempt may use.
    pub limits: Limits,
    /// What the handler may reach.
    pub grants: Grants,
    /// How large a batch gets.
    pub batch: BatchSettings,
    /// When the group trips, because the handler fails everything.
    pub breaker: BreakerSettings,
}

/// Reads every handler. `directory` is where relative paths begin.
pub(super) fn handlers(
    document: &Document<'_>,
    handlers: &[Entry<'_>],
    tenants: &Tenants<'_>,
    directory: &Path,
) -> Vec<HandlerSettings> {
    let mut settings = Vec::new();
    let mut groups: BTreeMap<GroupName, Entry<'_>> = BTreeMap::new();
    for entry in handlers {
        let mut section = Section::handler(document, *entry);
        let group = group(&mut section, *entry);
        if let Some((group, at)) = &group {
            let first = groups.entry(group.clone()).or_insert(*entry);
            if first.key != entry.key {
                section.problem(
                    *at,
                    format!(
                        "handlers {} (line {}) and {} are both in the group `{group}`: give one of them a `group` of its own",
                        quoted(first.key),
                        document.line(first.at),
                        quoted(entry.key),
                    ),
                );
            }
        }
        let group = group.map(|(group, _)| group);
        settings.extend(handler(section, *entry, group, tenants, directory));
    }
    settings
}

/// Reads one handler, all but its group. `None` only after a problem.
fn handler(
    mut section: Section<'_>,
    entry: Entry<'_>,
    group: Option<GroupName>,
    tenants: &Tenants<'_>,
    directory: &Path,
) -> Option<HandlerSettings> {
    let component = component(&mut section, directory);
    let build = build::build(section.section("build", &keys::BUILD), component.as_ref(), directory);
    let digest = digest(&mut section);
    let subscription = subscription(&mut section);
    let tenant = tenants::named(&mut section);
    let start = start(&mut section);
    let ordering = ordering(&mut section);
    let reuse = reuse(&mut section);
    let http_path = http_path(&mut section);
    let retry = retry(section.section("retry", &keys::RETRY));
    let batch = batch(section.section("batch", &keys::BATCH));
    let breaker = breaker(section.section("breaker", &keys::BREAKER));
    let max_parked = section.integer("max_parked", 1..=1_000_000).unwrap_or(DEFAULT_MAX_PARKED);
    let overtake = overtake(&mut section, ordering);
    let partitions = partitions(&mut section, ordering);
    let (limits, concurrency) = limits(section.section("limits", &keys::LIMITS), ordering);
    let limits = tenants.bound(&tenant, entry, limits);
    let grants = grants(section.section("allow", &keys::ALLOW));
    tenants.check_http(&tenant, entry, &grants.http);
    section.finish();
    Some(HandlerSettings {
        // One that is none was named with the group.
        name: entry.key.parse().ok()?,
        group: group?,
        tenant,
        component: component?,
        build,
        digest,
        subscription: subscription?,
        start,
        ordering: ordering?,
        concurrency,
        max_parked,
        overtake,
        partitions,
        reuse,
        http_path,
        retry,
        limits,
        grants,
        batch,
        breaker,
    })
}

/// The group's name, and where it comes from.
fn group(section: &mut Section<'_>, entry: Entry<'_>) -> Option<(GroupName, usize)> {
    let by_handler = entry.key.parse().map(|name| (name, entry.at));
    if by_handler.is_err() {
        section.problem(
            entry.at,
            format!("{} is no name for a handler: {NAME_RULE}", quoted(entry.key)),
        );
    }
    let Some(named) = section.entry("group") else { return by_handler.ok() };
    let text = section.text_of(named, "\"billing\"")?;
    let group = text.value.parse();
    if group.is_err() {
        section.problem(text.at, format!("{} is no name for a group: {NAME_RULE}", text.quoted()));
    }
    Some((group.ok()?, text.at))
}

fn component(section: &mut Section<'_>, directory: &Path) -> Option<Component> {
    if section.lacks("component") {
        section.problem(
            section.at(),
            "`component` is missing: name the handler's file, such as `component = \"triage.wasm\"`, or write \"deployed\" for what `host deploy` brings",
        );
    }
    let text = section.text("component", "\"triage.wasm\"")?;
    if text.value.is_empty() || text.value.contains('\0') {
        section.problem(
            text.at,
            format!(
                "`component` is {}, which names no file: write one such as \"triage.wasm\"",
                text.quoted()
            ),
        );
        return None;
    }
    if text.value == DEPLOYED {
        return Some(Component::Deployed);
    }
    Some(Component::File(directory.join(text.value)))
}

fn digest(section: &mut Section<'_>) -> Option<Digest> {
    let text = section.text("digest", "\"sha256:…\"")?;
    let digest = text.value.parse().ok();
    if digest.is_none() {
        section.problem(
            text.at,
            format!(
                "{} is no digest: write `sha256:` and the 64 digits that `host check` or `sha256sum` shows",
                text.quoted()
            ),
        );
    }
    digest
}

fn subscription(section: &mut Section<'_>) -> Option<Subscription> {
    const EXAMPLE: &str = "[\"issues.opened\", \"pull_request.*\"]";
    if section.lacks("subscribe") {
        section.problem(
            section.at(),
            format!(
                "`subscribe` is missing: name the event types to handle, such as `subscribe = {EXAMPLE}`; [\"*\"] is all of them"
            ),
        );
    }
    let (at, texts) = section.texts("subscribe", EXAMPLE)?;
    if texts.is_empty() {
        section.problem(
            at,
            format!(
                "`subscribe` is empty, so the handler would never run: name event types, such as {EXAMPLE}; [\"*\"] is all of them"
            ),
        );
        return None;
    }
    event_types(section, texts)
}

fn start(section: &mut Section<'_>) -> Start {
    let Some(entry) = section.entry("start") else { return Start::Earliest };
    let (shown, start) = match entry.value {
        DeValue::String(_) => match section.text_of(entry, "\"latest\"") {
            Some(text) => (text.quoted(), text.value.parse().ok()),
            None => return Start::Earliest,
        },
        DeValue::Integer(n) => {
            let position = i64::from_str_radix(n.as_str(), n.radix()).ok().filter(|p| *p >= 0);
            (quoted(&n.to_string()), position.map(|p| Start::Position(Position(p))))
        }
        // Without an offset it is no instant, and does not parse as one.
        DeValue::Datetime(time) => {
            let time = time.to_string();
            (quoted(&time), parse_time("start", &time).ok().map(Start::Time))
        }
        other => (kind(other).to_owned(), None),
    };
    start.unwrap_or_else(|| {
        section.problem(
            entry.at,
            format!(
                "`start` is {shown}, which is no place in the log: write \"earliest\", \"latest\", a position such as 1200, or a time such as 2026-01-31T12:00:00Z"
            ),
        );
        Start::Earliest
    })
}

/// `None` after a problem.
fn ordering(section: &mut Section<'_>) -> Option<Ordering> {
    let Some(entry) = section.entry("ordering") else { return Some(Ordering::default()) };
    let text = section.text_of(entry, "\"key\"")?;
    match text.value.as_str() {
        "total" => Some(Ordering::Total),
        "key" => Some(Ordering::Key),
        "none" => Some(Ordering::None),
        _ => {
            section.problem(
                text.at,
                format!("`ordering` is {}: use \"total\", \"key\" or \"none\"", text.quoted()),
            );
            None
        }
    }
}

/// The shortest patience with transactions that are about to publish: shorter, and
/// those that are just committing would be passed.
const LEAST_OVERTAKE: Duration = Duration::from_millis(100);

/// `ordering` is `None` where it has a problem of its own.
fn overtake(section: &mut Section<'_>, ordering: Option<Ordering>) -> Option<Duration> {
    let entry = section.entry("overtake")?;
    let overtake = section.duration("overtake", LEAST_OVERTAKE..=YEAR);
    if ordering == Some(Ordering::Total) {
        section.problem(
            entry.at,
            "`overtake` is of no use with `ordering = \"total\"`, which waits for every transaction, because what it commits comes before all that was published after it: leave it out, or choose `ordering = \"key\"`",
        );
        return None;
    }
    overtake
}

/// How many partitions a group may have: each has a row that its leader writes, and
/// reads the log for itself.
const MOST_PARTITIONS: usize = 256;

/// `ordering` is `None` where it has a problem of its own.
fn partitions(section: &mut Section<'_>, ordering: Option<Ordering>) -> u32 {
    let Some(entry) = section.entry("partitions") else { return 1 };
    let partitions = section.integer("partitions", 1..=MOST_PARTITIONS).unwrap_or(1);
    if partitions > 1 && ordering == Some(Ordering::Total) {
        section.problem(
            entry.at,
            "`partitions` cannot be with `ordering = \"total\"`, which handles all events one after the other: leave it out, or choose `ordering = \"key\"`",
        );
        return 1;
    }
    u32::try_from(partitions).unwrap_or(u32::MAX)
}

fn reuse(section: &mut Section<'_>) -> Reuse {
    let Some(entry) = section.entry("reuse") else { return Reuse::default() };
    let (shown, reuse) = match entry.value {
        DeValue::String(_) => match section.text_of(entry, "\"batch\"") {
            Some(text) => {
                let reuse = match text.value.as_str() {
                    "batch" => Some(Reuse::Batch),
                    "event" => Some(Reuse::Event),
                    _ => None,
                };
                (text.quoted(), reuse)
            }
            None => return Reuse::default(),
        },
        DeValue::Integer(n) => {
            let events = u32::from_str_radix(n.as_str(), n.radix()).ok().filter(|n| *n >= 1);
            (quoted(&n.to_string()), events.map(Reuse::Events))
        }
        other => (kind(other).to_owned(), None),
    };
    reuse.unwrap_or_else(|| {
        section.problem(
            entry.at,
            format!(
                "`reuse` is {shown}: write \"batch\", \"event\", or a number of events from 1 to {}",
                u32::MAX
            ),
        );
        Reuse::default()
    })
}

fn http_path(section: &mut Section<'_>) -> Option<HttpPath> {
    let text = section.text("http_path", "\"/events\"")?;
    let path = text.value.parse();
    if let Err(rule) = &path {
        section.problem(text.at, format!("`http_path` is {}: {rule}", text.quoted()));
    }
    path.ok()
}
