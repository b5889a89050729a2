//! Which addresses are the public internet's, and what the others are.
//!
//! The lists are IANA's registries of special-purpose addresses (RFC 6890 and
//! what came after it). Of IPv6 only 2000::/3 is handed out at all, so that
//! everything else is refused without being listed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address is if it is not a public one, for a sentence: `is a loopback
/// address`. An IPv6 address that stands for an IPv4 address is what that is.
pub(super) fn special(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (0, ..) => "an unspecified address",
        (127, ..) => "a loopback address",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => "a private address",
        (100, 64..=127, _) => "an address of a provider's inner network",
        // Where clouds answer with their machines' credentials.
        (169, 254, _) => "a link-local address",
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => "an address for documentation",
        (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _) => "a reserved address",
        (224..=239, ..) => "a multicast address",
        (240.., ..) => "a reserved address",
        // Azure's metadata and name service, in every one of its networks.
        (168, 63, 129) if address.octets()[3] == 16 => "an address of the cloud's own",
        _ => return None,
    })
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        special_v4(Ipv4Addr::new(a, b, c, d))
    };
    Some(match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => "an unspecified address",
        [0, 0, 0, 0, 0, 0, 0, 1] => "a loopback address",
        // NAT64 and 6to4 lead to the IPv4 address inside.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            return embedded(high, low);
        }
        [0xfc00..=0xfdff, ..] => "a unique-local address",
        [0xfe80..=0xfebf, ..] => "a link-local address",
        [0xff00..=0xffff, ..] => "a multicast address",
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => "an address for documentation",
        // Teredo and other tunnels among them.
        [0x2001, 0..=0x01ff, ..] => "a reserved address",
        [0x2000..=0x3fff, ..] => return None,
        _ => "a reserved address",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_not_public_are_told_by_what_they_are() {
        for (address, expected) in [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.0.0.1", "private"),
            ("100.64.0.1", "provider"),
            ("100.127.255.255", "provider"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("168.63.129.16", "cloud"),
            ("169.254.169.254", "link-local"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.1", "reserved"),
            ("192.0.2.1", "documentation"),
            ("192.168.1.1", "private"),
            ("198.18.0.1", "reserved"),
            ("198.51.100.7", "documentation"),
            ("203.0.113.7", "documentation"),
            ("224.0.0.1", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::7f00:1", "reserved"),
            ("::ffff:10.0.0.1", "private"),
            ("::ffff:169.254.169.254", "link-local"),
            ("64:ff9b::10.0.0.1", "private"),
            ("64:ff9b::169.254.169.254", "link-local"),
            ("64:ff9b:1::1", "reserved"),
            ("100::1", "reserved"),
            ("2001::1", "reserved"),
            ("2001:1ff::1", "reserved"),
            ("2001:db8::1", "documentation"),
            ("2002:7f00:1::", "loopback"),
            ("2002:a9fe:a9fe::1", "link-local"),
            ("3fff:fff::1", "documentation"),
            ("4000::1", "reserved"),
            ("fc00::1", "unique-local"),
            ("fd00:ec2::254", "unique-local"),
            ("fe80::1", "link-local"),
            ("fec0::1", "reserved"),
            ("ff02::1", "multicast"),
        ] {
            let said = special(address.parse().unwrap());
            assert!(said.is_some_and(|said| said.contains(expected)), "{address}: {said:?}");
        }
    }

    #[test]
    fn addresses_beside_the_special_ones_are_public() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.17",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2001:200::1",
            "2002:101:101::1",
            "2606:4700:4700::1111",
            "3fff:1000::1",
        ] {
            assert_eq!(special(address.parse().unwrap()), None, "{address}");
        }
    }
}
