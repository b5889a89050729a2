//! Every key that handlers.toml may hold, and what to say of any other.

use std::fmt::Write;

use crate::nearest::nearest;
use event_host_core::event::quoted;

/// A table of handlers.toml.
#[derive(Debug)]
pub(super) struct Place {
    /// Its name in the file; empty for the top level.
    pub(super) name: &'static str,
    /// The keys it may hold.
    pub(super) keys: &'static [&'static str],
}

/// The top level.
pub(super) const TOP: Place = Place {
    name: "",
    keys: &[
        "database",
        "lock_database",
        "migrate",
        "grace",
        "concurrency",
        "compile_memory",
        "compile_timeout",
        "retention",
        "retention_size",
        "ingest",
        "telemetry",
        "sources",
        "tenants",
        "schedules",
        "handlers",
        "listen",
        "tokens",
        "drain_delay",
    ],
};

/// One listener.
pub(super) const LISTEN: Place = Place {
    name: "listen.NAME",
    keys: &[
        "address",
        "serve",
        "hosts",
        "base_path",
        "tls",
        "plaintext",
        "trusted_proxies",
        "anonymous",
        "max_connections",
        "socket_mode",
    ],
};

/// The certificate of a listener.
pub(super) const TLS: Place = Place { name: "listen.NAME.tls", keys: &["cert", "key"] };

/// One token.
pub(super) const TOKEN: Place = Place {
    name: "tokens.NAME",
    keys: &["sha256", "roles", "tenant", "types", "sources", "rate", "payloads", "expires"],
};
/// What is told of the host.
pub(super) const TELEMETRY: Place = Place { name: "telemetry", keys: &["metrics"] };

/// How it is measured.
pub(super) const METRICS: Place =
    Place { name: "telemetry.metrics", keys: &["interval", "max_groups"] };

/// One tenant.
pub(super) const TENANT: Place = Place {
    name: "tenants.NAME",
    keys: &[
        "memory",
        "concurrency",
        "events_per_second",
        "ingested_per_second",
        "cpu",
        "emits_per_second",
        "emit_bytes_per_second",
        "http_requests_per_second",
        "http_connections",
        "log_lines_per_second",
        "dead_letters",
        "dead_letter_bytes",
        "state",
        "pinned_log",
        "http",
    ],
};

/// Events that come in by HTTP.
pub(super) const INGEST: Place = Place {
    name: "ingest",
    keys: &[
        "max_body",
        "max_event",
        "max_events",
        "queue",
        "timeout",
        "linger",
        "connections",
        "dedup",
        "dedup_max",
        "rate",
        "origins",
        "require_origin",
        "min_free",
        "max_log",
        "stamp",
    ],
};

/// One source of webhooks.
pub(super) const SOURCE: Place = Place {
    name: "sources.NAME",
    keys: &[
        "verify",
        "secrets",
        "tenant",
        "type",
        "id",
        "source",
        "subject",
        "time",
        "partitionkey",
        "extensions",
        "duplicate_key",
        "tolerance",
        "dedup",
        "rate",
        "max_body",
        "ping",
        "retired",
        "allow_from",
        "origins",
        "require_origin",
        "query_token",
        "header",
        "prefix",
        "signed",
        "algorithm",
        "encoding",
        "timestamp",
    ],
};

/// One schedule.
pub(super) const SCHEDULE: Place = Place {
    name: "schedules.NAME",
    keys: &[
        "cron",
        "timezone",
        "missed",
        "type",
        "source",
        "subject",
        "partitionkey",
        "datacontenttype",
        "data",
        "tenant",
    ],
};

/// One handler.
pub(super) const HANDLER: Place = Place {
    name: "handlers.NAME",
    keys: &[
        "component",
        "build",
        "digest",
        "subscribe",
        "group",
        "tenant",
        "ordering",
        "max_parked",
        "overtake",
        "partitions",
        "start",
        "reuse",
        "http_path",
        "retry",
        "batch",
        "breaker",
        "limits",
        "allow",
    ],
};

/// How a handler's component is made.
pub(super) const BUILD: Place =
    Place { name: "handlers.NAME.build", keys: &["lang", "command", "dir", "output", "watch"] };

/// When a handler's events are tried again.
pub(super) const RETRY: Place = Place {
    name: "handlers.NAME.retry",
    keys: &["max_attempts", "initial", "multiplier", "max", "jitter"],
};

/// How large a handler's batches get.
pub(super) const BATCH: Place =
    Place { name: "handlers.NAME.batch", keys: &["max_events", "max_time", "size", "wait"] };

/// When a handler's group trips.
pub(super) const BREAKER: Place = Place {
    name: "handlers.NAME.breaker",
    keys: &["events", "attempts_after_swap", "probe_after", "on_trip"],
};

/// What a handler may use.
pub(super) const LIMITS: Place = Place {
    name: "handlers.NAME.limits",
    keys: &[
        "memory",
        "timeout",
        "concurrency",
        "fuel",
        "table_elements",
        "host_call",
        "log",
        "log_lines_per_second",
        "emits",
        "emit",
        "emit_total",
        "state_value",
        "state_total",
        "state_writes",
        "state_keys",
        "http_requests",
        "http_bytes",
        "http_connections",
        "http_timeout",
    ],
};

/// What a handler may reach.
pub(super) const ALLOW: Place = Place {
    name: "handlers.NAME.allow",
    keys: &["env", "config", "http", "emit", "state", "clocks"],
};

/// Every table with keys of its own.
pub(super) const PLACES: [&Place; 17] = [
    &TOP, &HANDLER, &BUILD, &RETRY, &BATCH, &BREAKER, &LIMITS, &ALLOW, &TENANT, &INGEST, &SOURCE,
    &LISTEN, &TLS, &TOKEN, &SCHEDULE, &TELEMETRY, &METRICS,
];

impl Place {
    /// The table's header as it is written in the file, with the name of its handler
    /// or tenant.
    pub(super) fn header(&self, named: Option<&str>) -> String {
        let named = named.map_or("NAME".to_owned(), key_in_toml);
        format!("[{}]", self.name.replace("NAME", &named))
    }

    /// The place of a key of this table, for a sentence.
    fn location(&self, named: Option<&str>) -> String {
        if self.name.is_empty() {
            "at the top level".to_owned()
        } else {
            format!("in {}", self.header(named))
        }
    }

    /// Whether both are tables of one handler, or of one tenant.
    fn is_beside(&self, other: &Self) -> bool {
        let root = |place: &Self| place.name.split('.').next();
        root(self) == root(other)
    }
}

/// A name as TOML writes it in a header.
fn key_in_toml(name: &str) -> String {
    let bare = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if bare { name.to_owned() } else { format!("{:?}", quoted(name).trim_matches('`')) }
}

/// The key of the same table that is most probably meant.
pub(super) fn closest(place: &'static Place, key: &str) -> Option<&'static str> {
    nearest(&normalised(key), place.keys.iter().copied())
}

/// The sentence for a key that a table must not hold. `named` is the handler or
/// the tenant that the table is of.
pub(super) fn unknown(place: &'static Place, key: &str, named: Option<&str>) -> String {
    let mut message = format!("unknown key {} {}; ", quoted(key), place.location(named));
    let known = normalised(key);
    let mut homes = PLACES.into_iter().filter(|other| other.keys.contains(&known.as_str()));
    let elsewhere = homes.clone().find(|home| home.is_beside(place)).or_else(|| homes.next());
    // Writing to a String cannot fail.
    let _ = match (elsewhere, closest(place, key)) {
        (Some(other), _) if other.name != place.name => {
            write!(
                message,
                "it belongs {}",
                other.location(named.filter(|_| other.is_beside(place)))
            )
        }
        (_, Some(known)) => write!(message, "did you mean `{known}`?"),
        (_, None) => write!(message, "known there: `{}`", place.keys.join("`, `")),
    };
    message
}

/// As the key would be written here: lower case, with underscores.
fn normalised(key: &str) -> String {
    key.to_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but `emit`: how large, and which.
    #[test]
    fn no_key_stands_in_two_tables_of_a_handler_so_that_a_misplaced_one_has_one_home() {
        for place in PLACES {
            let beside = PLACES.iter().filter(|other| other.is_beside(place));
            let keys: Vec<&str> = beside.flat_map(|other| other.keys.iter().copied()).collect();
            for (at, key) in keys.iter().enumerate() {
                assert!(*key == "emit" || !keys[..at].contains(key), "{key}");
            }
        }
    }

    #[test]
    fn a_misplaced_key_is_sent_to_the_nearest_table_that_knows_it() {
        for (place, key, named, expected) in [
            (&HANDLER, "concurrency", Some("a"), "it belongs in [handlers.a.limits]"),
            (&TOP, "memory", None, "it belongs in [handlers.NAME.limits]"),
            (&TENANT, "timeout", Some("acme"), "it belongs in [handlers.NAME.limits]"),
            (&LIMITS, "cpu", Some("a"), "it belongs in [tenants.NAME]"),
        ] {
            let said = unknown(place, key, named);
            assert!(said.ends_with(expected), "{said}");
        }
    }

    #[test]
    fn a_header_is_shown_as_toml_writes_it() {
        assert_eq!(RETRY.header(Some("a-b")), "[handlers.a-b.retry]");
        assert_eq!(RETRY.header(Some("a.b")), "[handlers.\"a.b\".retry]");
        assert_eq!(RETRY.header(None), "[handlers.NAME.retry]");
    }
}
