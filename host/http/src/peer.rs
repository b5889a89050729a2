//! Who is at the other end of a connection, and whom it speaks for.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};

use crate::settings::Proxy;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Somebody at this address.
    Address(IpAddr),
    /// A process of this user, over a Unix socket; `None` where the system does not tell.
    User(Option<u32>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(Some(uid)) => write!(f, "uid {uid}"),
            Self::User(None) => f.write_str("unix"),
        }
    }
}

impl Peer {
    /// Whether it is on this machine.
    #[must_use]
    pub fn is_local(self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback(),
            Self::User(_) => true,
        }
    }

    /// Whether the settings believe it as a proxy.
    #[must_use]
    pub fn is_trusted(self, proxies: &[Proxy]) -> bool {
        proxies.iter().any(|proxy| match (proxy, self) {
            (Proxy::Network(network), Self::Address(address)) => network.contains(&address),
            (Proxy::Unix, Self::User(_)) => true,
            _ => false,
        })
    }

    /// What its failures are counted by: an IPv6 peer has a network of 64 bits to itself.
    #[must_use]
    pub(crate) fn counted(self) -> Self {
        match self {
            Self::Address(IpAddr::V6(address)) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Self::Address(Ipv6Addr::from_bits(network).into())
            }
            other => other,
        }
    }
}

/// The address of a socket's other end. IPv4 through an IPv6 socket is IPv4.
pub(crate) fn address_of(address: SocketAddr) -> Peer {
    Peer::Address(address.ip().to_canonical())
}

/// Of a client of which nobody trusted tells the address. It is no address of this machine.
const UNKNOWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// What a trusted proxy says of the request that it passes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// Whom it speaks for.
    pub(crate) client: Option<IpAddr>,
    /// Whether the client's connection is encrypted.
    pub(crate) is_encrypted: Option<bool>,
    /// The host that the client asked for.
    pub(crate) host: Option<String>,
}

impl Forwarded {
    /// Reads `Forwarded`, or else `X-Forwarded-For`, `-Proto` and `-Host`. Each proxy adds
    /// its client at the end: the client is the last that is no trusted proxy itself.
    ///
    /// A proxy writes one of the two and may pass on the other as its client wrote it. With
    /// both there, neither is believed.
    pub(crate) fn read(headers: &HeaderMap, proxies: &[Proxy]) -> Self {
        let standard = list(headers, &http::header::FORWARDED, ';');
        let clients = list(headers, &HeaderName::from_static("x-forwarded-for"), ',');
        if !standard.is_empty() && !clients.is_empty() {
            return Self { client: Some(UNKNOWN), ..Self::default() };
        }
        if !standard.is_empty() {
            return Self::of_standard(&standard, proxies);
        }
        let last = |name: &'static str| {
            list(headers, &HeaderName::from_static(name), ',').pop().filter(|v| !v.is_empty())
        };
        let said = !clients.is_empty();
        let client = client(clients.iter().map(String::as_str), proxies);
        Self {
            client: client.or(said.then_some(UNKNOWN)),
            is_encrypted: last("x-forwarded-proto")
                .map(|proto| proto.eq_ignore_ascii_case("https")),
            host: last("x-forwarded-host"),
        }
    }

    fn of_standard(lines: &[String], proxies: &[Proxy]) -> Self {
        let elements: Vec<Vec<(String, String)>> = lines
            .iter()
            .flat_map(|line| split_quoted(line, ','))
            .map(|element| {
                let pairs = split_quoted(&element, ';').into_iter();
                pairs
                    .filter_map(|pair| {
                        let (name, value) = pair.split_once('=')?;
                        let value = value.trim().trim_matches('"').to_owned();
                        Some((name.trim().to_ascii_lowercase(), value))
                    })
                    .collect()
            })
            .collect();
        let of = |element: &[(String, String)], wanted: &str| {
            element.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
        };
        // An element without `for` ends the look, as one does that names no address.
        let clients: Vec<String> =
            elements.iter().map(|element| of(element, "for").unwrap_or_default()).collect();
        let last = elements.last().map_or(&[][..], Vec::as_slice);
        Self {
            client: client(clients.iter().map(String::as_str), proxies).or(Some(UNKNOWN)),
            is_encrypted: of(last, "proto").map(|proto| proto.eq_ignore_ascii_case("https")),
            host: of(last, "host"),
        }
    }
}

/// The values of a header; those with commas in them as several, unless another separator
/// is asked for, which leaves each line whole.
fn list(headers: &HeaderMap, name: &HeaderName, separator: char) -> Vec<String> {
    let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lines
        .flat_map(|line| match separator {
            ',' => line.split(',').map(|part| part.trim().to_owned()).collect(),
            _ => vec![line.to_owned()],
        })
        .collect()
}

/// Splits outside of quotes. Where a quote does not end, nothing is known: it may have
/// swallowed what a proxy added.
fn split_quoted(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        quoted ^= c == '"';
        if c == separator && !quoted {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    if quoted { vec![String::new()] } else { parts }
}

/// The last of these addresses that is no trusted proxy. What is no address ends the look:
/// nobody vouches for what stands before it.
fn client<'a>(
    addresses: impl DoubleEndedIterator<Item = &'a str>,
    proxies: &[Proxy],
) -> Option<IpAddr> {
    let mut found = None;
    for text in addresses.rev() {
        let Some(address) = address_in(text) else { break };
        found = Some(address);
        if !Peer::Address(address).is_trusted(proxies) {
            break;
        }
    }
    found
}

/// An address, with or without its port and brackets.
fn address_in(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|a| a.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), http::HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_client_is_the_last_that_no_trusted_proxy_vouched_for() {
        let proxies = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        for (pairs, client) in [
            (&[][..], None),
            (&[("x-forwarded-for", "192.0.2.1")][..], Some("192.0.2.1")),
            (&[("x-forwarded-for", "6.6.6.6, 192.0.2.1, 10.0.0.7")], Some("192.0.2.1")),
            (
                &[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.1")],
                Some("192.0.2.1"),
            ),
            (&[("x-forwarded-for", "6.6.6.6, nonsense, 10.0.0.7")], Some("10.0.0.7")),
            (&[("x-forwarded-for", "192.0.2.1:4711")], Some("192.0.2.1")),
            (&[("forwarded", "for=192.0.2.1;proto=https")], Some("192.0.2.1")),
            (
                &[(
                    "forwarded",
                    "for=6.6.6.6, for=\"[2001:db8::1]:47\"; by=10.0.0.1, for=10.0.0.7",
                )],
                Some("2001:db8::1"),
            ),
            (&[("x-forwarded-for", "unknown")], Some("0.0.0.0")),
            (&[("forwarded", "for=unknown")], Some("0.0.0.0")),
            (&[("forwarded", "for=6.6.6.6, proto=https")], Some("0.0.0.0")),
            // What the client wrote must not become what the proxy says.
            (&[("forwarded", "for=127.0.0.1"), ("x-forwarded-for", "192.0.2.1")], Some("0.0.0.0")),
            (&[("forwarded", "for=127.0.0.1;x=\", for=192.0.2.1")], Some("0.0.0.0")),
        ] {
            let found = Forwarded::read(&headers(pairs), &proxies).client;
            assert_eq!(found, client.map(|client| client.parse().unwrap()), "{pairs:?}");
        }
    }

    #[test]
    fn host_and_encryption_are_those_that_the_nearest_proxy_saw() {
        let read = |pairs: &[_]| Forwarded::read(&headers(pairs), &[]);
        let said =
            read(&[("x-forwarded-proto", "https"), ("x-forwarded-host", "a.example, b.example")]);
        assert_eq!((said.is_encrypted, said.host.as_deref()), (Some(true), Some("b.example")));
        let said = read(&[("forwarded", "host=\"a.example:8443\";proto=HTTPS;for=1.2.3.4")]);
        assert_eq!((said.is_encrypted, said.host.as_deref()), (Some(true), Some("a.example:8443")));
    }

    #[test]
    fn an_ipv6_network_is_counted_as_one_peer() {
        let at = |text: &str| Peer::Address(text.parse().unwrap());
        assert_eq!(at("2001:db8::1").counted(), at("2001:db8:0:0:ffff::1").counted());
        assert_ne!(at("2001:db8::1").counted(), at("2001:db8:0:1::1").counted());
        assert_eq!(at("192.0.2.1").counted(), at("192.0.2.1"));
    }
}
