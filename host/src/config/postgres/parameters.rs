//! The parameters of a PostgreSQL URL, by libpq's names: those that are
//! honoured, and those that are refused because the host could only ignore them.
//!
//! The names are those of libpq's documentation, "Parameter Key Words". What the
//! client library takes beside them, such as `ssl-mode`, is refused, so that a
//! URL which works here works in `psql` too.

use super::error::InvalidPostgresUrl;
use super::honoured::KNOWN;
use crate::nearest::nearest;

/// What libpq knows beside it, with what to do instead.
const UNSUPPORTED: &[(&[&str], &str)] = &[
    (&["hostaddr"], "write the address as the server's name"),
    (
        &["target_session_attrs", "load_balance_hosts"],
        "leave it out; the host takes one server, and makes sure itself that it is the primary",
    ),
    (
        &["channel_binding", "require_auth"],
        "leave it out; `sslmode=verify-full` makes sure of the server",
    ),
    (
        &[
            "keepalives",
            "keepalives_idle",
            "keepalives_interval",
            "keepalives_count",
            "tcp_user_timeout",
        ],
        "leave it out; the host waits for no answer without a deadline of its own",
    ),
    (&["fallback_application_name"], "write `application_name`"),
    (&["passfile"], "set `PGPASSFILE` in the host's environment"),
    (&["service", "servicefile"], "write out what the service says"),
    (&["client_encoding"], "leave it out; it is UTF-8"),
    (&["ssl", "requiressl"], "write `sslmode`"),
    (&["sslpassword"], "name a key without a passphrase with `sslkey`"),
    (
        &[
            "gssdelegation",
            "gssencmode",
            "gsslib",
            "krbsrvname",
            "max_protocol_version",
            "min_protocol_version",
            "oauth_client_id",
            "oauth_client_secret",
            "oauth_issuer",
            "oauth_scope",
            "replication",
            "requirepeer",
            "scram_client_key",
            "scram_server_key",
            "ssl_max_protocol_version",
            "ssl_min_protocol_version",
            "sslcertmode",
            "sslcompression",
            "sslcrl",
            "sslcrldir",
            "sslkeylogfile",
            "sslnegotiation",
            "sslsni",
        ],
        "leave it out",
    ),
];

/// The parameter of this name; `number` says which of the URL's it is.
pub(super) fn known(name: &str, number: usize) -> Result<&'static str, InvalidPostgresUrl> {
    if let Some(known) = KNOWN.into_iter().find(|known| *known == name) {
        return Ok(known);
    }
    for (names, instead) in UNSUPPORTED {
        if let Some(name) = names.iter().find(|unsupported| **unsupported == name) {
            return Err(InvalidPostgresUrl::Unsupported { name, instead });
        }
    }
    Err(InvalidPostgresUrl::Unknown { number, suggestion: closest(name) })
}

fn closest(name: &str) -> Option<&'static str> {
    nearest(&name.to_lowercase(), KNOWN)
}
