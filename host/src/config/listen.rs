//! `[listen.NAME]`: where the host is reached by HTTP, and what it serves there.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use event_host_core::event::quoted;
use event_host_http::token::Role;
use event_host_http::{Address, Listener, Part, Proxy, TlsFiles};
use toml::de::DeValue;

use super::document::{self, Document, Entry, Text, kind};
use super::keys;
use super::section::Section;
use super::value::NAME_RULE;

/// The name of the listener that `--http` stands for.
const LOCAL: &str = "local";

/// Reads every listener. `asked` is the address that the command line asks for: that of
/// the listener `local`, which is there then.
pub(super) fn listeners<'a>(
    top: &mut Section<'a>,
    document: &'a Document<'a>,
    asked: Option<SocketAddr>,
    directory: &Path,
) -> Vec<Listener> {
    let mut found: Vec<(Entry<'a>, Listener)> = Vec::new();
    if let Some(entry) = top.entry("listen") {
        let DeValue::Table(table) = entry.value else {
            top.problem(
                entry.at,
                format!(
                    "`listen` is {}, not a table of listeners: write a table [listen.NAME] for each",
                    kind(entry.value)
                ),
            );
            return Vec::new();
        };
        for entry in document::entries(table) {
            let listener = listener(document, entry, directory);
            let same = found.iter().find(|(_, other)| other.address == listener.address);
            if let Some((other, _)) = same {
                document.problem(
                    entry.at,
                    format!(
                        "listens at {}, as [listen.{}] does (line {}): give it an address of its own",
                        listener.address,
                        other.key,
                        document.line(other.at)
                    ),
                );
            }
            found.push((entry, listener));
        }
    }
    let mut listeners: Vec<Listener> = found.into_iter().map(|(_, listener)| listener).collect();
    if let Some(asked) = asked {
        let address = Address::Tcp(asked);
        let is_there = listeners.iter().any(|listener| listener.address == address);
        match listeners.iter_mut().find(|listener| listener.name == LOCAL) {
            _ if is_there => {}
            Some(local) => local.address = address,
            None => listeners.push(Listener::new(LOCAL, address)),
        }
    }
    listeners
}

fn listener<'a>(document: &'a Document<'a>, entry: Entry<'a>, directory: &Path) -> Listener {
    let mut section = Section::named(document, entry, &keys::LISTEN);
    if !is_name(entry.key) {
        section.problem(
            entry.at,
            format!("{} is no name for a listener: {NAME_RULE}", quoted(entry.key)),
        );
    }
    let default = Listener::new(entry.key, Address::Tcp(Listener::DEFAULT_ADDRESS));
    let text = section.text("address", "\"127.0.0.1:8480\"");
    let address = text.as_ref().and_then(|text| match text.value.parse() {
        Ok(address) => Some(address),
        Err(why) => {
            section.problem(text.at, format!("`address` is {}, which {why}", text.quoted()));
            None
        }
    });
    let address: Address = address.unwrap_or_else(|| default.address.clone());
    let at = text.map_or(section.at(), |text| text.at);
    let tls = tls(&mut section, &address, directory);
    let has_tls = section.has("tls");
    let plaintext = section.boolean("plaintext").unwrap_or(false);
    if matches!(address, Address::Tcp(_)) && !address.is_local() && !plaintext && !has_tls {
        section.problem(
            at,
            "`address` can be reached from other machines, and nothing that goes there is encrypted: give it a certificate, `tls = { cert = \"…\", key = \"…\" }`, or write `plaintext = true` if that is so by intent, behind a proxy for example",
        );
    }
    let serve = serve(&mut section).unwrap_or_else(|| default.serve.clone());
    let hosts = hosts(&mut section);
    let base_path = base_path(&mut section);
    let trusted_proxies = proxies(&mut section);
    let anonymous = anonymous(&mut section, &address);
    let max_connections = section.integer("max_connections", 1..=1_000_000);
    let socket_mode = socket_mode(&mut section, &address);
    section.finish();
    Listener {
        address,
        serve,
        hosts,
        base_path,
        tls,
        plaintext,
        trusted_proxies,
        anonymous,
        max_connections: max_connections.unwrap_or(default.max_connections),
        socket_mode: socket_mode.unwrap_or(default.socket_mode),
        ..default
    }
}

/// The files of a certificate. What is in them is read when the listener is opened.
fn tls(section: &mut Section<'_>, address: &Address, directory: &Path) -> Option<TlsFiles> {
    let mut tls = section.section("tls", &keys::TLS);
    if tls.is_there() && matches!(address, Address::Unix(_)) {
        tls.problem(
            tls.at(),
            "`tls` goes with connections over a network, which a socket in the file system has none of: leave it out",
        );
    }
    let [cert, key] = ["cert", "key"].map(|key| {
        let path = tls.text(key, "\"host.pem\"").map(|text| directory.join(text.value));
        if path.is_none() && tls.lacks(key) {
            tls.problem(
                tls.at(),
                format!(
                    "`tls` lacks `{key}`: a certificate takes `cert` and `key`, each a file in PEM"
                ),
            );
        }
        path
    });
    tls.finish();
    Some(TlsFiles { cert: cert?, key: key? })
}

/// Whether a name is as all names are.
pub(super) fn is_name(name: &str) -> bool {
    name.parse::<event_host_core::event::HandlerName>().is_ok()
}

fn serve(section: &mut Section<'_>) -> Option<BTreeSet<Part>> {
    let known = Part::ALL.map(Part::name);
    let (at, texts) = section.texts("serve", "\"ingest\"")?;
    if texts.is_empty() {
        section.problem(at, format!("`serve` is empty: name some of `{}`", known.join("`, `")));
    }
    Some(each(section, texts, "serve", "part of the host", &known, |text| text.parse().ok()))
}

/// Reads each text of a list, as one of what is known.
pub(super) fn each<T: Ord>(
    section: &Section<'_>,
    texts: Vec<Option<Text<'_>>>,
    key: &str,
    what: &str,
    known: &[&str],
    parse: impl Fn(&str) -> Option<T>,
) -> BTreeSet<T> {
    let mut found = BTreeSet::new();
    for text in texts.into_iter().flatten() {
        match parse(&text.value) {
            Some(value) => drop(found.insert(value)),
            None => {
                let hint = match crate::nearest::nearest(&text.value, known.iter().copied()) {
                    Some(name) => format!("did you mean \"{name}\"?"),
                    None => format!("there are \"{}\"", known.join("\", \"")),
                };
                section.problem(
                    text.at,
                    format!("`{key}` has {}, which is no {what}: {hint}", text.quoted()),
                );
            }
        }
    }
    found
}

fn hosts(section: &mut Section<'_>) -> BTreeSet<String> {
    let Some((_, texts)) = section.texts("hosts", "\"events.example.com\"") else {
        return BTreeSet::new();
    };
    let mut hosts = BTreeSet::new();
    for text in texts.into_iter().flatten() {
        let name = text.value.to_ascii_lowercase();
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if name.split('.').all(is_label) {
            hosts.insert(name);
        } else {
            section.problem(
                text.at,
                format!(
                    "`hosts` has {}, which is no name of a host: write one without scheme, port and path, such as \"events.example.com\"",
                    text.quoted()
                ),
            );
        }
    }
    hosts
}

fn base_path(section: &mut Section<'_>) -> String {
    let Some(text) = section.text("base_path", "\"/host\"") else { return String::new() };
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    let trimmed = text.value.strip_suffix('/').unwrap_or(&text.value);
    let segments = trimmed.strip_prefix('/').map(|path| path.split('/'));
    let is_path = trimmed.is_empty() && text.value == "/"
        || segments.is_some_and(|mut segments| {
            segments.all(|segment| {
                !segment.is_empty()
                    && segment.bytes().all(is_plain)
                    && !matches!(segment, "." | "..")
            })
        });
    if is_path {
        return trimmed.to_owned();
    }
    section.problem(
        text.at,
        format!(
            "`base_path` is {}, which is no path: write one such as \"/host\", of letters, digits, `-`, `_`, `.` and `~`",
            text.quoted()
        ),
    );
    String::new()
}

fn proxies(section: &mut Section<'_>) -> Vec<Proxy> {
    let Some((_, texts)) = section.texts("trusted_proxies", "\"10.0.0.0/8\"") else {
        return Vec::new();
    };
    let mut proxies = Vec::new();
    for text in texts.into_iter().flatten() {
        match text.value.parse() {
            Ok(proxy) => proxies.push(proxy),
            Err(()) => section.problem(
                text.at,
                format!(
                    "`trusted_proxies` has {}, which is no network: write one such as \"10.0.0.0/8\" or \"10.0.0.1\", or \"unix\" for whoever comes over a Unix socket",
                    text.quoted()
                ),
            ),
        }
    }
    proxies
}

fn anonymous(section: &mut Section<'_>, address: &Address) -> BTreeSet<Role> {
    let known = Role::ALL.map(Role::name);
    let Some((at, texts)) = section.texts("anonymous", "\"publish\"") else {
        return BTreeSet::new();
    };
    if !texts.is_empty() && !address.is_local() {
        section.problem(
            at,
            "`anonymous` lets everybody in who reaches the address, so it goes with loopback and Unix sockets alone: leave it out, and use [tokens]",
        );
    }
    each(section, texts, "anonymous", "role", &known, |text| text.parse().ok())
}

fn socket_mode(section: &mut Section<'_>, address: &Address) -> Option<u32> {
    let text = section.text("socket_mode", "\"0660\"")?;
    if !matches!(address, Address::Unix(_)) {
        section.problem(
            text.at,
            "`socket_mode` goes with an address such as \"unix:/run/host/http.sock\": leave it out",
        );
        return None;
    }
    let mode = u32::from_str_radix(&text.value, 8).ok().filter(|mode| *mode <= 0o777);
    if mode.is_none() {
        section.problem(
            text.at,
            format!(
                "`socket_mode` is {}, which is no mode of a file: write one such as \"0660\"",
                text.quoted()
            ),
        );
    }
    mode
}
