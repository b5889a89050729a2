//! `[tenants.NAME]`: what the handlers of one tenant may use together, and that
//! none of them asks for more than its tenant has.

use std::collections::BTreeSet;

use toml::de::DeValue;

use super::document::{self, Document, Entry, kind};
use super::grants::http;
use super::keys;
use super::section::Section;
use super::value::{NAME_RULE, show_size};
use crate::nearest::nearest;
use event_host_core::event::{Tenant, quoted};
use event_host_delivery::admission::{MAX_CONCURRENCY, TenantQuota};
use event_host_sandbox::settings::{HttpPolicy, Limits};

/// One tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantSettings {
    /// The name of its table.
    pub name: Tenant,
    /// What its handlers may use together.
    pub quota: TenantQuota,
    /// Events a second that may come in for it by HTTP; `None` is any number.
    pub ingested_per_second: Option<f64>,
    /// What its handlers may be allowed by HTTP; `None` is everything.
    pub http: Option<HttpPolicy>,
    /// Bytes of events that its groups may keep in the log beyond its retention; `None`
    /// is all that they have not handled.
    pub pinned_log: Option<u64>,
}

/// A tenant of the file, and its place.
struct Found<'a> {
    settings: TenantSettings,
    entry: Entry<'a>,
}

/// The tenants of a file.
pub(super) struct Tenants<'a> {
    document: &'a Document<'a>,
    /// `None` without a table `tenants`: any name is then a tenant.
    found: Option<Vec<Found<'a>>>,
}

/// A limit that a tenant's handlers share, and the handler's own of the same kind.
struct Shared {
    /// What the tenant calls it.
    tenant_key: &'static str,
    ceiling: fn(&TenantQuota) -> Option<usize>,
    /// What `[handlers.NAME.limits]` calls it.
    key: &'static str,
    limit: fn(&mut Limits) -> &mut usize,
}

const SHARED: [Shared; 3] = [
    Shared {
        tenant_key: "memory",
        ceiling: |quota| quota.memory_bytes,
        key: "memory",
        limit: |limits| &mut limits.memory_bytes,
    },
    Shared {
        tenant_key: "state",
        ceiling: |quota| quota.state_bytes,
        key: "state_value",
        limit: |limits| &mut limits.state_value_bytes,
    },
    Shared {
        tenant_key: "state",
        ceiling: |quota| quota.state_bytes,
        key: "state_total",
        limit: |limits| &mut limits.state_total_bytes,
    },
];

impl<'a> Tenants<'a> {
    /// Reads every tenant.
    pub(super) fn read(top: &mut Section<'a>, document: &'a Document<'a>) -> Self {
        let found = top.entry("tenants").map(|entry| {
            let DeValue::Table(table) = entry.value else {
                top.problem(
                    entry.at,
                    format!(
                        "`tenants` is {}, not a table of tenants: write a table [tenants.NAME] for each",
                        kind(entry.value)
                    ),
                );
                return Vec::new();
            };
            document::entries(table)
                .into_iter()
                .filter_map(|entry| tenant(document, entry))
                .collect()
        });
        Self { document, found }
    }

    /// A handler's limits within those of its tenant: what the handler leaves out
    /// is lowered, what it says must fit.
    pub(super) fn bound(&self, tenant: &Tenant, handler: Entry<'_>, mut limits: Limits) -> Limits {
        let Some(found) = self.found.as_deref().filter(|_| !tenant.is_none()) else {
            return limits;
        };
        let Some(owner) = found.iter().find(|found| found.settings.name == *tenant) else {
            self.unknown(found, tenant, handler);
            return limits;
        };
        let quota = &owner.settings.quota;
        for shared in SHARED {
            let Some(ceiling) = (shared.ceiling)(quota) else { continue };
            let limit = (shared.limit)(&mut limits);
            let Some(said) = handler.below(&["limits", shared.key]) else {
                *limit = ceiling.min(*limit);
                continue;
            };
            if *limit > ceiling {
                let [limit, ceiling] = show_apart(*limit, ceiling);
                self.too_much(owner, said, &limit, &ceiling, shared.tenant_key);
            }
        }
        if let (Some(ceiling), Some(said)) =
            (quota.concurrency, handler.below(&["limits", "concurrency"]))
            && let DeValue::Integer(limit) = said.value
            && let Ok(limit) = usize::from_str_radix(limit.as_str(), limit.radix())
            && limit > ceiling
        {
            let (limit, ceiling) = (limit.to_string(), ceiling.to_string());
            self.too_much(owner, said, &limit, &ceiling, "concurrency");
        }
        if let Some(ceiling) = quota.http_connections {
            match handler.below(&["limits", "http_connections"]) {
                Some(said) if limits.http_connections > ceiling => {
                    let (limit, ceiling) =
                        (limits.http_connections.to_string(), ceiling.to_string());
                    self.too_much(owner, said, &limit, &ceiling, "http_connections");
                }
                Some(_) => {}
                None => limits.http_connections = ceiling.min(limits.http_connections),
            }
        }
        limits
    }

    /// Whoever names a tenant names one of the file, if the file has any.
    pub(super) fn check_known(&self, tenant: &Tenant, entry: Entry<'_>) {
        if let Some(found) = self.found.as_deref()
            && !found.iter().any(|found| found.settings.name == *tenant)
        {
            self.unknown(found, tenant, entry);
        }
    }

    /// Reads the key `tenant` of a thing that may be of no tenant, whichever the file has.
    pub(super) fn named_in(&self, section: &mut Section<'_>, entry: Entry<'_>) -> Tenant {
        let tenant = named(section);
        if !tenant.is_none() {
            self.check_known(&tenant, entry);
        }
        tenant
    }

    /// A handler may reach no more by HTTP than its tenant.
    pub(super) fn check_http(&self, tenant: &Tenant, handler: Entry<'_>, http: &HttpPolicy) {
        let owner = self.found.iter().flatten().find(|found| found.settings.name == *tenant);
        let Some(owner) = owner else { return };
        let Some(ceiling) = &owner.settings.http else { return };
        let Some(rule) = http.beyond(ceiling) else { return };
        let at = handler.below(&["allow", "http"]).map_or(handler.at, |said| said.at);
        let ceiling_at = owner.entry.below(&["http"]).map_or(owner.entry.at, |said| said.at);
        self.document.problem(
            at,
            format!(
                "`http` grants `{rule}`, which the `http` of its tenant `{}` (line {}) does not: leave it out, or grant it to the tenant",
                owner.settings.name,
                self.document.line(ceiling_at),
            ),
        );
    }

    /// The names of the tenants; `None` where any name is one.
    pub(super) fn names(&self) -> Option<BTreeSet<Tenant>> {
        let found = self.found.as_ref()?;
        Some(found.iter().map(|found| found.settings.name.clone()).collect())
    }

    fn too_much(
        &self,
        owner: &Found<'_>,
        said: Entry<'_>,
        limit: &str,
        ceiling: &str,
        tenant_key: &'static str,
    ) {
        let ceiling_at = owner.entry.below(&[tenant_key]).map_or(owner.entry.at, |said| said.at);
        self.document.problem(
            said.at,
            format!(
                "`{}` is {limit}, more than the `{tenant_key}` of its tenant `{}`, {ceiling} (line {}): lower the one or raise the other",
                said.key,
                owner.settings.name,
                self.document.line(ceiling_at),
            ),
        );
    }

    fn unknown(&self, found: &[Found<'_>], tenant: &Tenant, handler: Entry<'_>) {
        let at = handler.below(&["tenant"]).map_or(handler.at, |said| said.at);
        let names = found.iter().map(|found| found.settings.name.as_str());
        let header = keys::TENANT.header(Some(tenant.as_str()));
        let hint = match nearest(tenant.as_str(), names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("add a table {header}"),
        };
        self.document.problem(at, format!("there is no table {header}: {hint}"));
    }

    /// The tenants, in the order of the file.
    pub(super) fn into_settings(self) -> Vec<TenantSettings> {
        self.found.unwrap_or_default().into_iter().map(|found| found.settings).collect()
    }
}

/// Reads whose a thing is, in its key `tenant`: nobody's, where that is left out or no name.
pub(super) fn named(section: &mut Section<'_>) -> Tenant {
    let Some(text) = section.text("tenant", "\"acme\"") else { return Tenant::none() };
    match text.value.parse::<Tenant>() {
        Ok(tenant) if !tenant.is_none() => tenant,
        _ => {
            section.problem(
                text.at,
                format!("{} is no name for a tenant: {NAME_RULE}, or leave it out", text.quoted()),
            );
            Tenant::none()
        }
    }
}

/// Writes two sizes so that they can be told apart.
fn show_apart(one: usize, other: usize) -> [String; 2] {
    let shown = [one, other].map(show_size);
    if shown[0] == shown[1] { [one, other].map(|bytes| format!("{bytes} B")) } else { shown }
}

/// Reads one tenant. `None` only after a problem.
fn tenant<'a>(document: &'a Document<'a>, entry: Entry<'a>) -> Option<Found<'a>> {
    let mut section = Section::tenant(document, entry);
    let name = entry.key.parse().ok().filter(|name: &Tenant| !name.is_none());
    if name.is_none() {
        section.problem(
            entry.at,
            format!("{} is no name for a tenant: {}", quoted(entry.key), NAME_RULE),
        );
    }
    let quota = TenantQuota {
        memory_bytes: section.size("memory", "64KiB"..="1TiB"),
        concurrency: section.integer("concurrency", 1..=MAX_CONCURRENCY),
        events_per_second: section.number("events_per_second", 0.001..=1_000_000_000.0, "100"),
        cpu: section.number("cpu", 0.001..=1_000.0, "0.5"),
        emits_per_second: section.number("emits_per_second", 0.001..=1_000_000_000.0, "100"),
        emit_bytes_per_second: section
            .size("emit_bytes_per_second", "1B"..="1TiB")
            .map(|bytes| bytes as f64),
        http_requests_per_second: section.number(
            "http_requests_per_second",
            0.001..=1_000_000_000.0,
            "10",
        ),
        http_connections: section.integer("http_connections", 1..=1_000_000),
        log_lines_per_second: section.number(
            "log_lines_per_second",
            0.001..=1_000_000_000.0,
            "100",
        ),
        dead_letters: section.integer("dead_letters", 0..=1_000_000_000),
        dead_letter_bytes: section
            .size("dead_letter_bytes", "0B"..="1PiB")
            .map(|bytes| bytes as u64),
        state_bytes: section.size("state", "0B"..="1TiB"),
    };
    let ingested_per_second = section.number("ingested_per_second", 0.001..=1_000_000_000.0, "100");
    let http = http(&mut section);
    let pinned_log = section.size("pinned_log", "64KiB"..="1PiB").map(|bytes| bytes as u64);
    section.finish();
    let settings = TenantSettings { name: name?, quota, ingested_per_second, http, pinned_log };
    Some(Found { settings, entry })
}
