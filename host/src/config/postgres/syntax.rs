//! The text of a PostgreSQL URL, taken apart and put together.
//!
//! Parsed here and not by a general library, because those take what is written
//! before a stray `/`, `?` or `#` of a password for the server's name, connect
//! there, and show it. Here such a URL is refused.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv6Addr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::error::InvalidPostgresUrl;
use super::parameters;

/// What a URL says, by the names of libpq's parameters. No value is empty.
#[derive(Default)]
pub(super) struct Parts(BTreeMap<&'static str, String>);

impl Parts {
    /// Takes a URL apart.
    pub(super) fn parse(url: &str) -> Result<Self, InvalidPostgresUrl> {
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => rest,
            _ => return Err(InvalidPostgresUrl::NotPostgres),
        };
        if rest.contains(|c: char| c == '#' || c.is_whitespace() || c.is_control()) {
            return Err(InvalidPostgresUrl::NotEncoded);
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if rest.contains('@') {
            return Err(InvalidPostgresUrl::NotEncoded);
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = Self::default();
        parts.read_authority(authority)?;
        parts.add("dbname", path.strip_prefix('/').unwrap_or(path))?;
        for (index, parameter) in query.split('&').enumerate() {
            if query.is_empty() {
                break;
            }
            let number = index + 1;
            let (name, value) = parameter
                .split_once('=')
                .filter(|(_, value)| !value.is_empty())
                .ok_or(InvalidPostgresUrl::NoValue(number))?;
            parts.add(parameters::known(&decoded(name)?, number)?, value)?;
        }
        parts.check()?;
        Ok(parts)
    }

    /// Reads `user:password@server:port`, each of which may be missing.
    fn read_authority(&mut self, authority: &str) -> Result<(), InvalidPostgresUrl> {
        // No server's name has an `@`, so the last one ends the password.
        let (credentials, server) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        self.add("user", user)?;
        self.add("password", password)?;
        if server.contains(',') {
            return Err(InvalidPostgresUrl::SeveralServers);
        }
        let (host, port) = match server.strip_prefix('[') {
            None => server.split_once(':').unwrap_or((server, "")),
            Some(bracketed) => {
                let (address, port) =
                    bracketed.split_once(']').ok_or(InvalidPostgresUrl::Server)?;
                if address.parse::<Ipv6Addr>().is_err() {
                    return Err(InvalidPostgresUrl::Server);
                }
                match port.strip_prefix(':') {
                    Some(port) => (address, port),
                    None if port.is_empty() => (address, port),
                    None => return Err(InvalidPostgresUrl::Server),
                }
            }
        };
        self.add("host", host)?;
        self.add("port", port)
    }

    /// Adds a value as it is written in the URL, if there is one.
    fn add(&mut self, name: &'static str, value: &str) -> Result<(), InvalidPostgresUrl> {
        if value.is_empty() {
            return Ok(());
        }
        match self.0.insert(name, decoded(value)?) {
            None => Ok(()),
            Some(_) => Err(InvalidPostgresUrl::Twice(name)),
        }
    }

    fn check(&self) -> Result<(), InvalidPostgresUrl> {
        if let Some(host) = self.get("host") {
            if host.contains(',') {
                return Err(InvalidPostgresUrl::SeveralServers);
            }
            let name = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c);
            if !host.starts_with('/') && !host.chars().all(name) && !is_ipv6(host) {
                return Err(InvalidPostgresUrl::Server);
            }
        }
        if let Some(port) = self.get("port") {
            if port.contains(',') {
                return Err(InvalidPostgresUrl::SeveralServers);
            }
            let digits = port.bytes().all(|b| b.is_ascii_digit());
            if !digits || !port.parse::<u16>().is_ok_and(|port| port > 0) {
                return Err(InvalidPostgresUrl::Port);
            }
        }
        Ok(())
    }

    /// A value.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Takes a value out.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Sets a value in place of another.
    pub(super) fn set(&mut self, name: &'static str, value: String) {
        self.0.insert(name, value);
    }

    /// Whether the server is reached by a socket in a folder.
    pub(super) fn is_socket(&self) -> bool {
        self.get("host").is_some_and(|host| host.starts_with('/'))
    }

    /// A URL that says all of it with parameters alone, which every reader takes
    /// alike: an IPv6 address needs no brackets there, nor a socket's folder an
    /// encoding of its own.
    pub(super) fn to_url(&self) -> String {
        let mut url = "postgres:///".to_owned();
        for (index, (name, value)) in self.0.iter().enumerate() {
            let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
            // Writing to a String cannot fail.
            let _ = write!(url, "{}{name}={value}", if index == 0 { '?' } else { '&' });
        }
        url
    }

    /// The URL without what is or may be a secret, for people.
    pub(super) fn shown(&self) -> String {
        /// What needs no encoding there.
        const PLAIN: AsciiSet =
            NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
        let encoded = |name| self.get(name).map(|value| utf8_percent_encode(value, &PLAIN));
        let mut url = "postgres://".to_owned();
        // Writing to a String cannot fail.
        if let Some(user) = encoded("user") {
            let _ = write!(url, "{user}@");
        }
        match self.get("host") {
            Some(host) if is_ipv6(host) => {
                let _ = write!(url, "[{host}]");
            }
            Some(host) if !self.is_socket() => url.push_str(host),
            _ => {}
        }
        if let Some(port) = self.get("port") {
            let _ = write!(url, ":{port}");
        }
        if let Some(database) = encoded("dbname") {
            let _ = write!(url, "/{database}");
        }
        let socket = self.is_socket().then_some("host");
        let harmless = ["sslmode", "sslrootcert", "sslcert", "application_name"];
        let mut separator = '?';
        for name in socket.into_iter().chain(harmless) {
            if let Some(value) = encoded(name) {
                let _ = write!(url, "{separator}{name}={value}");
                separator = '&';
            }
        }
        url
    }
}

/// Whether a URL's scheme is PostgreSQL's.
pub(in crate::config) fn is_scheme(scheme: &str) -> bool {
    ["postgres", "postgresql"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
}

fn is_ipv6(host: &str) -> bool {
    host.parse::<Ipv6Addr>().is_ok()
}

/// Decodes percent-encoding as libpq does: strictly, and `+` is itself.
fn decoded(text: &str) -> Result<String, InvalidPostgresUrl> {
    let well_formed = text.split('%').skip(1).all(|after| {
        after.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    });
    if !well_formed {
        return Err(InvalidPostgresUrl::Percent);
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(text) if !text.contains('\0') => Ok(text.into_owned()),
        _ => Err(InvalidPostgresUrl::NotText),
    }
}
