//! What `host check` says of HTTP: each listener, what it serves, who may, whether it is
//! encrypted, and what ends soon.

use event_host_http::token::{Scope, Token};
use event_host_http::{Address, Listener, Settings, tls};
use jiff::{SignedDuration, Timestamp};

/// What ends within this is told of.
const SOON: SignedDuration = SignedDuration::from_hours(14 * 24);

/// What is exposed.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    /// For people, line by line.
    pub(super) lines: Vec<String>,
    /// What a listener would not be opened with.
    pub(super) wrong: Vec<String>,
}

/// What is exposed by these settings.
pub(super) fn of(settings: &Settings) -> Exposed {
    let mut exposed = Exposed::default();
    let now = Timestamp::now();
    for listener in &settings.listeners {
        let Listener { name, serve, anonymous, .. } = listener;
        let serve: Vec<&str> = serve.iter().map(|part| part.name()).collect();
        exposed.lines.push(format!("\nlisten.{name}  {}", listener.url()));
        exposed.lines.push(format!("  serves     {}", serve.join(", ")));
        exposed.lines.push(format!("  reached by {}", reached_by(listener)));
        match listener.tls.as_ref().map(tls::check) {
            None => {}
            Some(Err(why)) => {
                exposed.wrong.push(format!("error: [listen.{name}]: {why}"));
            }
            Some(Ok(certificate)) => {
                let ends = certificate.expires;
                let line = ends.map_or_else(|| "cannot be read".to_owned(), |at| ending(at, now));
                exposed.lines.push(format!("  ends       {line}"));
            }
        }
        if !anonymous.is_empty() {
            let roles: Vec<&str> = anonymous.iter().map(|role| role.name()).collect();
            exposed.lines.push(format!("  no token   {}", roles.join(", ")));
        }
    }
    if settings.listeners.is_empty() {
        return exposed;
    }
    for token in &settings.tokens {
        exposed.lines.push(format!("\ntokens.{}  {}", token.name, may(token)));
        if let Some(at) = token.expires {
            exposed.lines.push(format!("  ends       {}", ending(at, now)));
        }
    }
    if settings.tokens.is_empty() {
        let local = settings.listeners.iter().any(|listener| listener.address.is_local());
        exposed.lines.push(format!(
            "\ntokens: none: {}",
            if local {
                "`host run` shows one that may do everything, which listeners that only this machine reaches take"
            } else {
                "nothing that takes one can be done"
            }
        ));
    }
    exposed
}

fn reached_by(listener: &Listener) -> &'static str {
    let encrypted = listener.tls.is_some();
    match &listener.address {
        Address::Unix(_) => "processes of this machine that the socket's mode lets in",
        Address::Inherited(_) if encrypted => {
            "whoever reaches the service manager's socket, encrypted"
        }
        Address::Inherited(_) => "whoever reaches the service manager's socket, not encrypted",
        address if address.is_local() => "processes of this machine",
        _ if encrypted => "other machines, encrypted",
        _ => "other machines, NOT encrypted",
    }
}

fn may(token: &Token) -> String {
    let roles: Vec<&str> = token.roles.iter().map(|role| role.name()).collect();
    let scope = match &token.scope {
        Scope::All => "of all tenants".to_owned(),
        Scope::One(tenant) if tenant.is_none() => "of no tenant".to_owned(),
        Scope::One(tenant) => format!("of `{tenant}`"),
    };
    format!("{}, {scope}", roles.join(", "))
}

/// When something ends, and that this is soon.
fn ending(at: Timestamp, now: Timestamp) -> String {
    let left = at.duration_since(now);
    if left.is_negative() {
        format!("WARNING: it ended {at}")
    } else if left < SOON {
        format!("WARNING: {at}, in {} days", left.as_hours() / 24)
    } else {
        at.to_string()
    }
}
