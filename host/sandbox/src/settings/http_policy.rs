//! `allow.http`: which requests a handler may make, parsed once.
//!
//! Names are compared as a browser would read them: in lower case, without a
//! dot at the end, as Punycode, and with every way to write an IPv4 address
//! being that address. Whether what a name leads to may be reached is asked
//! again for the address ([`HttpPolicy::refusal_of`]).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::Uri;
use url::Host;

use super::address;

/// The requests that a handler may make. Empty by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HttpPolicy {
    rules: Vec<HttpRule>,
}

/// One entry of `allow.http`.
///
/// | written | allows |
/// | --- | --- |
/// | `https://api.example.com` | this host, port 443 |
/// | `http://api.example.com:8080` | this host, port 8080 |
/// | `https://api.example.com:*` | this host, every port |
/// | `https://*.example.com` | every name below it, and not itself |
/// | `https://*` | every host |
/// | `http://127.0.0.1:8080` | this address |
/// | `http://[::1]:8080` | this address |
/// | `http://10.0.0.0/8:8080` | every address of this network |
///
/// A name, wildcard or not, reaches public addresses only. An address that is
/// not public has to be named itself, or by its network; `localhost` names the
/// loopback addresses.
///
/// ```
/// use event_host_sandbox::settings::HttpRule;
///
/// for accepted in [
///     "https://api.example.com",
///     "http://api.example.com:8080",
///     "https://api.example.com:*",
///     "https://*.example.com",
///     "https://*",
///     "http://127.0.0.1:8080",
///     "http://[::1]:8080",
///     "http://10.0.0.0/8:8080",
///     "http://localhost",
/// ] {
///     let rule: HttpRule = accepted.parse().unwrap();
///     assert_eq!(rule.to_string(), accepted);
/// }
/// for refused in [
///     "api.example.com",
///     "ftp://example.com",
///     "https://example.com/path",
///     "https://user@example.com",
///     "https://example.com?query",
///     "https://example.com:0",
///     "https://api.*.com",
///     "https://",
///     "http://0x7f.1",
///     "http://10.0.0.1/8",
/// ] {
///     assert!(refused.parse::<HttpRule>().is_err(), "{refused}");
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRule {
    scheme: Scheme,
    host: HostRule,
    /// `None` for every port.
    port: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostRule {
    /// Every host.
    Any,
    /// Every name below this one.
    Below(String),
    /// This name.
    Name(String),
    /// Every address that begins with these bits of this one.
    Network(IpAddr, u8),
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) scheme: Scheme,
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetHost {
    /// A name, in lower case and without a dot at its end.
    Name(String),
    /// An address; never an IPv6 address that stands for an IPv4 address.
    Address(IpAddr),
}

/// An entry of `allow.http` that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRule {
    /// It does not begin with one of the two schemes.
    #[error("it must begin with `https://` or `http://`")]
    Scheme,
    /// It names a user.
    #[error("it names a user: leave out what stands before the `@`")]
    User,
    /// It goes on after the host and its port.
    #[error("it grants a host as a whole: end it after the host or its port")]
    Path,
    /// The port is none.
    #[error("the port is a number from 1 to 65535, or `*` for every port")]
    Port,
    /// A `*` stands elsewhere than in front.
    #[error("a `*` stands for everything before a name, as in `https://*.example.com`, or alone")]
    Wildcard,
    /// It is no host.
    #[error("it names no host")]
    Host,
    /// An address in another form than the usual one.
    #[error("it names the address {0}: write it like this")]
    Address(IpAddr),
    /// A network whose length or address cannot be.
    #[error("a network is its first address and the length of its prefix, as in `10.0.0.0/8`")]
    Network,
}

/// Why an address may not be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddressRefusal {
    /// What the address is, for a sentence.
    pub(crate) is: &'static str,
    /// The entry that would allow it.
    pub(crate) rule: HttpRule,
}

impl HttpPolicy {
    /// What is granted.
    pub fn rules(&self) -> impl Iterator<Item = &HttpRule> {
        self.rules.iter()
    }

    /// Whether nothing is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The first of these rules that allows what `ceiling` does not.
    #[must_use]
    pub fn beyond(&self, ceiling: &Self) -> Option<&HttpRule> {
        let within = |rule: &HttpRule| ceiling.rules.iter().any(|wider| rule.lies_within(wider));
        self.rules.iter().find(|rule| !within(rule))
    }

    /// Whether a request may go there, as far as the URL tells.
    pub(crate) fn allows(&self, target: &Target) -> bool {
        self.rules.iter().any(|rule| rule.covers(target) && rule.host.matches(&target.host))
    }

    /// Why a request to this target may not go to this address, if it may not.
    pub(crate) fn refusal_of(&self, target: &Target, address: IpAddr) -> Option<AddressRefusal> {
        let address = address.to_canonical();
        let is = address::special(address)?;
        let named = self.rules.iter().any(|rule| {
            rule.covers(target)
                && match &rule.host {
                    HostRule::Network(network, bits) => contains(*network, *bits, address),
                    // RFC 6761: this name means this machine and nothing else.
                    HostRule::Name(name) => {
                        name == "localhost"
                            && address.is_loopback()
                            && target.host == TargetHost::Name("localhost".to_owned())
                    }
                    HostRule::Any | HostRule::Below(_) => false,
                }
        });
        if named {
            return None;
        }
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let host = HostRule::Network(address, bits);
        let rule = HttpRule { scheme: target.scheme, host, port: Some(target.port) };
        Some(AddressRefusal { is, rule })
    }
}

impl FromIterator<HttpRule> for HttpPolicy {
    fn from_iter<I: IntoIterator<Item = HttpRule>>(rules: I) -> Self {
        Self { rules: rules.into_iter().collect() }
    }
}

impl HttpRule {
    /// Whether `wider` allows everything that this one does.
    fn lies_within(&self, wider: &Self) -> bool {
        self.scheme == wider.scheme
            && (wider.port.is_none() || self.port == wider.port)
            && self.host.lies_within(&wider.host)
    }

    fn covers(&self, target: &Target) -> bool {
        self.scheme == target.scheme && self.port.is_none_or(|port| port == target.port)
    }
}

impl HostRule {
    fn lies_within(&self, wider: &Self) -> bool {
        match (self, wider) {
            (Self::Network(network, bits), Self::Network(wider, fewer)) => {
                bits >= fewer && contains(*wider, *fewer, *network)
            }
            // An address that is named is reached whether it is public or not,
            // and a wildcard reaches public ones alone.
            (Self::Network(address, bits), Self::Any) => {
                let all = if address.is_ipv4() { 32 } else { 128 };
                *bits == all && address::special(*address).is_none()
            }
            (Self::Name(name), Self::Any) => name != "localhost",
            (Self::Any | Self::Below(_), Self::Any) => true,
            (Self::Name(name), Self::Below(parent)) => is_below(name, parent),
            (Self::Below(name), Self::Below(parent)) => name == parent || is_below(name, parent),
            (Self::Name(name), Self::Name(wider)) => name == wider,
            _ => false,
        }
    }

    fn matches(&self, host: &TargetHost) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(name), TargetHost::Name(host)) => name == host,
            (Self::Below(parent), TargetHost::Name(host)) => is_below(host, parent),
            (Self::Network(network, bits), TargetHost::Address(address)) => {
                contains(*network, *bits, *address)
            }
            _ => false,
        }
    }
}

fn is_below(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|below| below.len() > 1 && below.ends_with('.'))
}

/// Whether an address lies in a network. Both are canonical.
fn contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let apart = network.to_bits() ^ address.to_bits();
            apart.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let apart = network.to_bits() ^ address.to_bits();
            apart.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl FromStr for HttpRule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (scheme, rest) = text.split_once("://").ok_or(InvalidRule::Scheme)?;
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(InvalidRule::Scheme),
        };
        if rest.contains('@') {
            return Err(InvalidRule::User);
        }
        // An address of IPv6 has colons of its own.
        let host_end = match rest.strip_prefix('[') {
            Some(inner) => inner.find(']').ok_or(InvalidRule::Host)? + 2,
            None => rest.find([':', '/', '?', '#']).unwrap_or(rest.len()),
        };
        let (host, rest) = rest.split_at(host_end);
        let (prefix, port) = match rest.split_once(':') {
            Some((prefix, port)) => (prefix, Some(port)),
            None => (rest, None),
        };
        let port = match port {
            None => Some(scheme.port()),
            Some("*") => None,
            Some(port) => Some(port_of(port)?),
        };
        Ok(Self { scheme, host: host_rule(host, prefix)?, port })
    }
}

fn port_of(text: &str) -> Result<u16, InvalidRule> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 && text[digits..].starts_with(['/', '?', '#']) {
        return Err(InvalidRule::Path);
    }
    // `parse` alone would take a sign.
    let number = (digits == text.len()).then(|| text.parse().ok()).flatten();
    number.filter(|port| *port > 0).ok_or(InvalidRule::Port)
}

/// `prefix` is what stands between the host and its port.
fn host_rule(host: &str, prefix: &str) -> Result<HostRule, InvalidRule> {
    let whole = |rule| if prefix.is_empty() { Ok(rule) } else { Err(InvalidRule::Path) };
    if host == "*" {
        return whole(HostRule::Any);
    }
    let (below, name) = match host.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, host),
    };
    if name.contains('*') {
        return Err(InvalidRule::Wildcard);
    }
    match host_of(name).ok_or(InvalidRule::Host)? {
        TargetHost::Name(name) if below => whole(HostRule::Below(name)),
        TargetHost::Name(name) => whole(HostRule::Name(name)),
        TargetHost::Address(_) if below => Err(InvalidRule::Wildcard),
        TargetHost::Address(address) => {
            if name.trim_matches(['[', ']']).parse::<IpAddr>().is_err() {
                return Err(InvalidRule::Address(address));
            }
            network(address, prefix)
        }
    }
}

fn network(address: IpAddr, prefix: &str) -> Result<HostRule, InvalidRule> {
    let most = if address.is_ipv4() { 32 } else { 128 };
    if prefix.is_empty() {
        return Ok(HostRule::Network(address, most));
    }
    let bits = prefix.strip_prefix('/').ok_or(InvalidRule::Path)?;
    if bits.is_empty() || !bits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(InvalidRule::Path);
    }
    let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or(InvalidRule::Network)?;
    // An address with bits beyond the prefix is a mistake in one of the two.
    let is_first = match address {
        IpAddr::V4(v4) => v4.to_bits().checked_shl(u32::from(bits)).unwrap_or(0) == 0,
        IpAddr::V6(v6) => v6.to_bits().checked_shl(u32::from(bits)).unwrap_or(0) == 0,
    };
    if is_first { Ok(HostRule::Network(address, bits)) } else { Err(InvalidRule::Network) }
}

/// The most bytes of a name, and of each of its parts (RFC 1035).
const NAME_BYTES: usize = 253;
const LABEL_BYTES: usize = 63;

/// Whether a name server can have such a name. A browser takes more for one, such as `*`,
/// which in the advice to grant what was refused would be every host.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    name.len() <= NAME_BYTES && name.split('.').all(is_label)
}

/// Reads a host as a browser would.
fn host_of(text: &str) -> Option<TargetHost> {
    Some(match Host::parse(text).ok()? {
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(&name);
            is_name(name).then(|| TargetHost::Name(name.to_owned()))?
        }
        Host::Ipv4(address) => TargetHost::Address(address.into()),
        Host::Ipv6(address) => TargetHost::Address(IpAddr::from(address).to_canonical()),
    })
}

impl Target {
    /// Where a request with this URL goes; `None` if that cannot be told for
    /// certain, as when it names a user.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let scheme = match uri.scheme_str()? {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let authority = uri.authority()?;
        let (host, port) = (authority.host(), authority.port());
        let rest = authority.as_str().strip_prefix(host)?;
        let port = match &port {
            Some(port) if rest.strip_prefix(':')? == port.as_str() => {
                port_of(port.as_str()).ok()?
            }
            None if rest.is_empty() => scheme.port(),
            _ => return None,
        };
        Some(Self { scheme, host: host_of(host)?, port })
    }

    /// Host and port as a request's `Host` header has them.
    pub(crate) fn authority(&self) -> String {
        let port =
            if self.port == self.scheme.port() { String::new() } else { format!(":{}", self.port) };
        format!("{}{port}", self.host)
    }
}

impl Scheme {
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Target {
    /// As the entry of `allow.http` that would allow it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority())
    }
}

impl fmt::Display for HttpRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        match &self.host {
            HostRule::Any => f.write_str("*")?,
            HostRule::Below(name) => write!(f, "*.{name}")?,
            HostRule::Name(name) => f.write_str(name)?,
            HostRule::Network(address, bits) => {
                TargetHost::Address(*address).fmt(f)?;
                let most = if address.is_ipv4() { 32 } else { 128 };
                if *bits < most {
                    write!(f, "/{bits}")?;
                }
            }
        }
        match self.port {
            None => f.write_str(":*"),
            Some(port) if port == self.scheme.port() => Ok(()),
            Some(port) => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &[&str]) -> HttpPolicy {
        rules.iter().map(|rule| rule.parse::<HttpRule>().unwrap()).collect()
    }

    fn allows(rule: &str, url: &str) -> bool {
        let target = Target::of(&url.parse().unwrap());
        target.is_some_and(|target| policy(&[rule]).allows(&target))
    }

    #[test]
    fn a_policy_lies_within_another_only_if_it_allows_nothing_more() {
        let beyond = |rule: &str, ceiling: &[&str]| {
            policy(&[rule]).beyond(&policy(ceiling)).map(ToString::to_string)
        };
        for (rule, ceiling) in [
            ("https://api.example.com", "https://api.example.com"),
            ("https://api.example.com", "https://*.example.com"),
            ("https://*.eu.example.com", "https://*.example.com"),
            ("https://*.example.com", "https://*.example.com"),
            ("https://*.example.com", "https://*"),
            ("https://*", "https://*"),
            ("https://api.example.com:8443", "https://api.example.com:*"),
            ("http://10.1.0.0/16", "http://10.0.0.0/8"),
            ("http://10.1.2.3", "http://10.0.0.0/8"),
            ("https://1.1.1.1", "https://*"),
        ] {
            assert_eq!(beyond(rule, &[ceiling]), None, "{rule} within {ceiling}");
            assert_eq!(beyond(rule, &["http://other.example", ceiling]), None, "{rule}");
        }
        for (rule, ceiling) in [
            ("http://api.example.com", "https://api.example.com"),
            ("https://example.com", "https://*.example.com"),
            ("https://badexample.com", "https://*.example.com"),
            ("https://*.example.com", "https://api.example.com"),
            ("https://*", "https://*.example.com"),
            ("https://api.example.com:*", "https://api.example.com"),
            ("https://api.example.com:8443", "https://api.example.com"),
            ("http://10.0.0.0/8", "http://10.1.0.0/16"),
            // What is not public is not what a wildcard means.
            ("http://10.1.2.3", "http://*"),
            ("http://0.0.0.0/0", "http://*"),
            ("http://169.254.169.254", "http://*"),
            ("http://localhost", "http://*"),
        ] {
            assert_eq!(beyond(rule, &[ceiling]).as_deref(), Some(rule), "{rule} within {ceiling}");
        }
        assert_eq!(beyond("https://*", &[]).as_deref(), Some("https://*"));
        assert_eq!(policy(&[]).beyond(&policy(&[])), None);
    }

    #[test]
    fn a_rule_allows_its_scheme_host_and_port_and_nothing_else() {
        for (rule, url) in [
            ("https://api.example.com", "https://api.example.com/path?query"),
            ("https://api.example.com", "https://api.example.com:443"),
            ("https://api.example.com", "https://API.Example.COM"),
            ("https://api.example.com", "https://api.example.com."),
            ("https://API.example.com", "https://api.example.com"),
            ("https://bücher.example", "https://xn--bcher-kva.example"),
            ("https://api.example.com:*", "https://api.example.com:8443"),
            ("https://*.example.com", "https://api.example.com"),
            ("https://*.example.com", "https://a.b.example.com"),
            ("https://*", "https://anything.example"),
            ("https://*", "https://1.1.1.1"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://127.0.0.1:8080", "http://2130706433:8080"),
            ("http://127.0.0.1:8080", "http://[::ffff:127.0.0.1]:8080"),
            ("http://[::1]", "http://[::1]"),
            ("http://[::1]", "http://[0:0:0:0:0:0:0:1]"),
            ("http://10.0.0.0/8:*", "http://10.255.0.1:99"),
            ("http://[fd00::]/8", "http://[fdff::1]"),
            ("http://0.0.0.0/0", "http://8.8.8.8"),
        ] {
            assert!(allows(rule, url), "{rule} does not allow {url}");
        }
        for (rule, url) in [
            ("https://api.example.com", "http://api.example.com"),
            ("https://api.example.com", "http://api.example.com:443"),
            ("https://api.example.com", "https://api.example.com:444"),
            ("https://api.example.com", "https://api.example.com.evil.com"),
            ("https://api.example.com", "https://evil.com/api.example.com"),
            ("https://api.example.com", "https://evil-api.example.com"),
            ("https://api.example.com", "https://api.example.com@evil.com"),
            ("https://api.example.com", "https://user@api.example.com"),
            ("https://api.example.com", "https://api.example.com:443@evil.com"),
            ("https://api.example.com", "https://api.example.com.."),
            ("https://api.example.com:*", "https://api.example.com:+443"),
            ("https://api.example.com:*", "https://api.example.com:0"),
            ("https://*", "https://*"),
            ("https://*", "https://*.example.com"),
            ("https://*.example.com", "https://example.com"),
            ("https://*.example.com", "https://evilexample.com"),
            ("https://*.example.com", "https://.example.com"),
            ("https://*.example.com", "https://example.com.evil.com"),
            ("http://127.0.0.1:8080", "http://127.0.0.1"),
            ("http://127.0.0.1:8080", "http://localhost:8080"),
            ("http://127.0.0.1:8080", "http://127.0.0.2:8080"),
            ("http://10.0.0.0/8", "http://11.0.0.0"),
            ("http://[fd00::]/8", "http://[fe80::1]"),
            ("http://localhost", "http://127.0.0.1"),
        ] {
            assert!(!allows(rule, url), "{rule} allows {url}");
        }
    }

    #[test]
    fn an_address_that_is_not_public_must_be_named_itself() {
        let refused = |rules: &[&str], url: &str, address: &str| {
            let target = Target::of(&url.parse().unwrap()).unwrap();
            let address = address.parse().unwrap();
            policy(rules).refusal_of(&target, address).map(|refusal| refusal.rule.to_string())
        };
        let name = "http://billing.internal:8080";
        let url = "http://billing.internal:8080/pay";
        assert_eq!(refused(&[name], url, "1.1.1.1"), None);
        let rule = refused(&[name], url, "10.0.0.5");
        assert_eq!(rule.as_deref(), Some("http://10.0.0.5:8080"));
        assert_eq!(refused(&[name, "http://10.0.0.5:8080"], url, "10.0.0.5"), None);
        assert_eq!(refused(&[name, "http://10.0.0.0/8:8080"], url, "::ffff:10.0.0.5"), None);
        assert!(refused(&[name, "http://10.0.0.5:80"], url, "10.0.0.5").is_some());
        assert!(refused(&[name, "https://10.0.0.5:8080"], url, "10.0.0.5").is_some());
        assert!(refused(&["http://*:*"], url, "10.0.0.5").is_some());
        let rule = refused(&["http://*:*"], url, "fd00::1");
        assert_eq!(rule.as_deref(), Some("http://[fd00::1]:8080"));

        assert_eq!(refused(&["http://localhost"], "http://localhost", "127.0.0.1"), None);
        assert_eq!(refused(&["http://localhost"], "http://localhost", "::1"), None);
        assert!(refused(&["http://localhost"], "http://localhost", "10.0.0.1").is_some());
        assert!(refused(&["http://localhost", "http://*"], "http://x.example", "::1").is_some());
    }

    #[test]
    fn an_entry_that_cannot_be_is_told_what_is_wrong() {
        for (text, expected) in [
            ("example.com", InvalidRule::Scheme),
            ("HTTPS://example.com", InvalidRule::Scheme),
            ("ws://example.com", InvalidRule::Scheme),
            ("https://a:b@example.com", InvalidRule::User),
            ("https://example.com/", InvalidRule::Path),
            ("https://example.com/8", InvalidRule::Path),
            ("https://example.com:443/x", InvalidRule::Path),
            ("https://example.com#x", InvalidRule::Path),
            ("https://example.com:", InvalidRule::Port),
            ("https://example.com:+1", InvalidRule::Port),
            ("https://example.com:65536", InvalidRule::Port),
            ("https://*example.com", InvalidRule::Wildcard),
            ("https://*.*.com", InvalidRule::Wildcard),
            ("https://*.127.0.0.1", InvalidRule::Wildcard),
            ("https://", InvalidRule::Host),
            ("https://:443", InvalidRule::Host),
            ("https://.example.com", InvalidRule::Host),
            ("https://example.com..", InvalidRule::Host),
            ("https://127.0.0.1..", InvalidRule::Host),
            ("https://a$b.com", InvalidRule::Host),
            ("https://a\"b.com", InvalidRule::Host),
            (format!("https://{}.com", "a".repeat(64)).as_str(), InvalidRule::Host),
            (format!("https://{}", ["a"; 128].join(".")).as_str(), InvalidRule::Host),
            ("https://[::1", InvalidRule::Host),
            ("https://exa mple.com", InvalidRule::Host),
            ("https://127.1", InvalidRule::Address([127, 0, 0, 1].into())),
            ("https://10.0.0.0/33", InvalidRule::Network),
            ("https://10.0.0.1/8", InvalidRule::Network),
        ] {
            assert_eq!(text.parse::<HttpRule>(), Err(expected), "{text}");
        }
    }
}
