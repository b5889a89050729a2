//! Generated rules and URLs. What a policy lets through is what is
//! connected to: the same host, port and scheme for the check, the look-up, the connection
//! and the server.

use proptest::prelude::*;
use proptest::sample::select;
use url::{Host, Url};

use super::*;
use crate::settings::{HttpRule, Scheme, TargetHost};
use event_host_core::fuzz;

/// A host in one of the ways to write one, or what looks like one.
fn host() -> impl Strategy<Value = String> {
    let forms = |address: u32| {
        let [a, b, c, d] = address.to_be_bytes();
        vec![
            format!("{a}.{b}.{c}.{d}"),
            format!("{a}.{b}.{c}.{d}."),
            format!("{a}.{b}.{c}.{d}.."),
            format!("{address}"),
            format!("{address:#x}"),
            format!("0{address:o}"),
            format!("{a:#X}.{b}.0{c:o}.{d}"),
            format!("{a}.{}", address & 0xff_ffff),
            format!("{a}.{b}.{}", address & 0xffff),
            format!("[::ffff:{a}.{b}.{c}.{d}]"),
            format!("[::{a}.{b}.{c}.{d}]"),
            format!("[64:ff9b::{a}.{b}.{c}.{d}]"),
        ]
    };
    let v4 = prop_oneof![4 => any::<u32>(), 1 => Just(0x7f00_0001)].prop_map(forms);
    prop_oneof![
        6 => v4.prop_flat_map(select),
        3 => any::<u128>().prop_map(|v6| format!("[{}]", std::net::Ipv6Addr::from_bits(v6))),
        1 => select(vec!["[::1]", "[::]", "[::1%25lo]", "[v1.x]", "[]", "[::1", "localhost", "LocalHost."])
            .prop_map(str::to_owned),
        6 => "([a-zA-Z0-9_-]{1,6}[.]){0,3}[a-zA-Z0-9-]{1,6}[.]{0,2}",
        3 => "[a-z0-9.%_~!$&'()*+,;=-]{1,12}",
        2 => "(%[0-9a-fA-F]{2}|[a-z.]){1,8}",
        2 => "(xn--[a-z0-9-]{1,9}|[a-z\u{e9}\u{df}\u{3002}\u{ff0e}\u{130}\u{200d}.]{1,6})",
        1 => fuzz::odd_text(),
    ]
}

fn port() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just(String::new()),
        6 => any::<u16>().prop_map(|port| format!(":{port}")),
        2 => select(vec![":", ":0", ":00080", ":65536", ":+80", ":-1", ":8 0", ":80:80", ":*", ":443@x"])
            .prop_map(str::to_owned),
    ]
}

fn scheme() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => select(vec!["http://", "https://"]).prop_map(str::to_owned),
        1 => select(vec!["HTTP://", "hTTps://", "ftp://", "http:/", "http:", "//", "", "ws://"])
            .prop_map(str::to_owned),
    ]
}

fn url() -> impl Strategy<Value = String> {
    let user = prop_oneof![
        16 => Just(String::new()),
        1 => "[a-z:%@.]{0,6}@",
    ];
    let rest = prop_oneof![
        4 => Just(String::new()),
        8 => "/[a-zA-Z0-9/._~%@:?&=-]{0,12}",
        1 => "[/?#\\\\][ -~]{0,6}",
    ];
    (scheme(), user, host(), port(), rest)
        .prop_map(|(scheme, user, host, port, rest)| format!("{scheme}{user}{host}{port}{rest}"))
}

fn rule() -> impl Strategy<Value = String> {
    let host = prop_oneof![6 => host(), 2 => host().prop_map(|host| format!("*.{host}")), 1 => Just("*".to_owned())];
    let bits = prop_oneof![8 => Just(String::new()), 2 => "/[0-9]{1,3}", 1 => "/[ -~]{0,4}"];
    (scheme(), host, bits, port())
        .prop_map(|(scheme, host, bits, port)| format!("{scheme}{host}{bits}{port}"))
}

fn policy(rule: &HttpRule) -> HttpPolicy {
    std::iter::once(rule.clone()).collect()
}

proptest! {
    #![proptest_config(fuzz::cases(5_000))]

    #[test]
    fn a_rule_that_is_read_is_written_as_what_reads_back_as_itself(text in rule()) {
        let Ok(rule) = text.parse::<HttpRule>() else { return Ok(()) };
        let written = rule.to_string();
        prop_assert_eq!(written.parse::<HttpRule>(), Ok(rule.clone()), "{} of {}", written, text);
        prop_assert!(policy(&rule).beyond(&policy(&rule)).is_none());
        // As a URL, it is one that it allows, unless it stands for several.
        if !written.contains('*') && !written[8..].contains('/') {
            let target = written.parse().ok().and_then(|uri| Target::of(&uri));
            prop_assert!(target.is_some_and(|target| policy(&rule).allows(&target)), "{}", written);
        }
    }

    #[test]
    fn a_url_is_taken_for_the_host_that_others_take_it_for(text in url()) {
        let Some(target) = text.parse::<Uri>().ok().and_then(|uri| Target::of(&uri)) else {
            return Ok(());
        };
        // What a refusal advises to grant is just what was refused.
        let advised = target.to_string().parse::<HttpRule>();
        prop_assert!(advised.is_ok_and(|rule| policy(&rule).allows(&target)), "{}", target);
        let again = target.to_string().parse().ok().and_then(|uri| Target::of(&uri));
        prop_assert_eq!(again.as_ref(), Some(&target));
        // As the standard of browsers has it.
        let url = Url::parse(&text);
        prop_assert!(url.is_ok(), "{}: {:?}", text, url);
        let url = url.unwrap();
        let scheme = if target.scheme == Scheme::Http { "http" } else { "https" };
        prop_assert_eq!(url.scheme(), scheme);
        prop_assert_eq!(url.port_or_known_default(), Some(target.port));
        prop_assert!(url.username().is_empty() && url.password().is_none(), "{}", text);
        let host = match url.host() {
            Some(Host::Domain(name)) => TargetHost::Name(name.strip_suffix('.').unwrap_or(name).to_owned()),
            Some(Host::Ipv4(address)) => TargetHost::Address(address.into()),
            Some(Host::Ipv6(address)) => TargetHost::Address(IpAddr::from(address).to_canonical()),
            None => panic!("{text} has no host"),
        };
        prop_assert_eq!(&target.host, &host);
    }
}

/// Takes every name for this machine, and keeps what it was asked.
#[derive(Default)]
struct Everything {
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl Resolve for Everything {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.to_owned());
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    }
}

/// Whether a request would leave this machine, which no test's does.
fn leads_out(target: &Target) -> bool {
    matches!(target.host, TargetHost::Address(address) if !address.is_loopback())
}

#[tokio::test]
async fn what_is_let_through_arrives_at_the_host_that_was_checked() {
    let server = Server::answering(HELLO).await;
    let port = server.address.port();
    let names = Arc::new(Everything::default());
    let limits = Limits { http_requests: 1_000_000, ..Limits::default() };
    let client = Client::with_resolver(Arc::clone(&names) as Arc<dyn Resolve>);
    let mut caller = Caller::new(&["http://*:*", "http://127.0.0.1:*"], limits, client);
    let path = prop_oneof![Just(String::new()), "/[a-zA-Z0-9/._~%@:?&=-]{0,12}"];
    let mut arrived = 0;
    for (host, path) in fuzz::samples(1_500, &(host(), path)) {
        let url = format!("http://{host}:{port}{path}");
        let Ok(uri) = url.parse::<Uri>() else { continue };
        let target = Target::of(&uri);
        if target.as_ref().is_some_and(leads_out) {
            continue;
        }
        let answer = caller.get(&url).await;
        let (heads, asked) = (
            std::mem::take(&mut *server.heads.lock().unwrap()),
            std::mem::take(&mut *names.asked.lock().unwrap()),
        );
        let Some(target) = target else {
            assert!(answer.is_err() && heads.is_empty() && asked.is_empty(), "{url}: {answer:?}");
            continue;
        };
        if answer.is_err() {
            assert!(heads.is_empty(), "{url}: {answer:?}");
            continue;
        }
        arrived += 1;
        let expected: Vec<String> = match &target.host {
            TargetHost::Name(name) => vec![name.clone()],
            TargetHost::Address(_) => Vec::new(),
        };
        assert_eq!(asked, expected, "{url}");
        let [head] = &heads[..] else { panic!("{url}: {heads:?}") };
        let path = if path.is_empty() { "/" } else { &path };
        assert!(head.starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{url}: {head}");
        let host = format!("\r\nhost: {}\r\n", target.authority());
        assert!(head.to_ascii_lowercase().contains(&host.to_ascii_lowercase()), "{url}: {head}");
    }
    assert!(arrived > 300, "{arrived}");
}
