//! What a listener is told by the settings.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use event_host_core::event::Tenant;
use ipnet::IpNet;

use crate::token::{Role, Token};

/// Everything that HTTP is told by the settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The listeners. No two have one name or one address.
    pub listeners: Vec<Listener>,
    /// The tokens. No two have one name or one hash.
    pub tokens: Vec<Token>,
    /// The tenants that the settings know; `None` where any name is one.
    pub tenants: Option<BTreeSet<Tenant>>,
}

/// A part of what the host serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Events come in.
    Ingest,
    /// Operators look and act.
    Admin,
    /// The same for browsers.
    Dashboard,
    /// Metrics are read.
    Metrics,
    /// Whether the host is well.
    Health,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 5] =
        [Self::Ingest, Self::Admin, Self::Dashboard, Self::Metrics, Self::Health];

    /// Its name in the settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Admin => "admin",
            Self::Dashboard => "dashboard",
            Self::Metrics => "metrics",
            Self::Health => "health",
        }
    }
}

impl FromStr for Part {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|part| part.name() == name).ok_or(())
    }
}

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An address and port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
    /// A socket that the service manager has opened: of this name, or the only one.
    Inherited(Option<String>),
}

/// A text that is no [`Address`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "is no address: write one such as \"127.0.0.1:8480\", \"[::1]:8480\", \"unix:/run/host/http.sock\", \"systemd\" or \"systemd:NAME\""
)]
pub struct InvalidAddress;

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("systemd", name)) if !name.is_empty() => {
                Ok(Self::Inherited(Some(name.to_owned())))
            }
            None if text == "systemd" => Ok(Self::Inherited(None)),
            _ => text.parse().map(Self::Tcp).map_err(|_| InvalidAddress),
        }
    }
}

impl Address {
    /// Whether only this machine can reach it. What the service manager opens counts as
    /// reachable from outside.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
            Self::Inherited(_) => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Inherited(None) => f.write_str("systemd"),
            Self::Inherited(Some(name)) => write!(f, "systemd:{name}"),
        }
    }
}

/// A proxy that may say whom it speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxy {
    /// Whoever connects from this network.
    Network(IpNet),
    /// Whoever connects over a Unix socket.
    Unix,
}

impl FromStr for Proxy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "unix" {
            return Ok(Self::Unix);
        }
        let network = text.parse::<IpNet>().map(|network| network.trunc());
        let network = network.or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(Self::Network).map_err(|_| ())
    }
}

/// The files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, in PEM, the host's own certificate first.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

/// One listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Listener {
    /// Its name, which logs and metrics show.
    pub name: String,
    /// Where it listens.
    pub address: Address,
    /// What it serves.
    pub serve: BTreeSet<Part>,
    /// The names by which it may be asked, beside addresses and `localhost`; in lower case.
    pub hosts: BTreeSet<String>,
    /// What all paths begin with: empty, or `/` and more, and no `/` at its end.
    pub base_path: String,
    /// With a certificate, connections are encrypted.
    pub tls: Option<TlsFiles>,
    /// Whether it may be reached from other machines without encryption.
    pub plaintext: bool,
    /// The proxies that are believed.
    pub trusted_proxies: Vec<Proxy>,
    /// What may be done without a token.
    pub anonymous: BTreeSet<Role>,
    /// How many connections it has at once.
    pub max_connections: usize,
    /// The mode of its socket in the file system.
    pub socket_mode: u32,
}

impl Listener {
    /// How many connections a listener has at once, unless the settings say otherwise.
    pub const DEFAULT_MAX_CONNECTIONS: usize = 1024;

    /// The mode of a socket in the file system, unless the settings say otherwise.
    pub const DEFAULT_SOCKET_MODE: u32 = 0o660;

    /// Where a listener listens, unless the settings say otherwise.
    pub const DEFAULT_ADDRESS: SocketAddr =
        SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8480);

    /// A listener that serves everything, with nothing else set.
    #[must_use]
    pub fn new(name: &str, address: Address) -> Self {
        Self {
            name: name.to_owned(),
            address,
            serve: Part::ALL.into(),
            hosts: BTreeSet::new(),
            base_path: String::new(),
            tls: None,
            plaintext: false,
            trusted_proxies: Vec::new(),
            anonymous: BTreeSet::new(),
            max_connections: Self::DEFAULT_MAX_CONNECTIONS,
            socket_mode: Self::DEFAULT_SOCKET_MODE,
        }
    }

    /// The address as a client writes it.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match &self.address {
            Address::Tcp(address) => format!("{scheme}://{address}{}", self.base_path),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (text, local) in [
            ("127.0.0.1:8480", true),
            ("127.8.9.10:1", true),
            ("[::1]:8480", true),
            ("0.0.0.0:8443", false),
            ("[::]:80", false),
            ("10.0.0.1:80", false),
            ("unix:/run/host/http.sock", true),
            ("unix:http.sock", true),
            ("systemd", false),
            ("systemd:edge", false),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_local(), local, "{text}");
        }
        for text in ["", "8480", ":8480", "localhost:8480", "127.0.0.1", "unix:", "systemd:", "::1"]
        {
            assert_eq!(text.parse::<Address>(), Err(InvalidAddress), "{text}");
        }
    }

    #[test]
    fn a_proxy_is_a_network_an_address_or_any_unix_peer() {
        for (text, proxy) in [
            ("unix", Proxy::Unix),
            ("10.0.0.0/8", Proxy::Network("10.0.0.0/8".parse().unwrap())),
            ("10.1.2.3/8", Proxy::Network("10.0.0.0/8".parse().unwrap())),
            ("10.1.2.3", Proxy::Network("10.1.2.3/32".parse().unwrap())),
            ("fd00::/8", Proxy::Network("fd00::/8".parse().unwrap())),
        ] {
            assert_eq!(text.parse(), Ok(proxy), "{text}");
        }
        for text in ["", "10.0.0.0/33", "proxy.example.com"] {
            assert_eq!(text.parse::<Proxy>(), Err(()), "{text}");
        }
    }
}
