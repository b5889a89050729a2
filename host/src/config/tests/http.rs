//! Listeners and tokens.

use event_host_http::token::{Role, Scope, Token, TokenHash};
use event_host_http::{Address, Listener, Part};

use super::*;

#[test]
fn listeners_and_tokens_are_read() {
    let hash = TokenHash::of("x");
    let config = config(&with(&format!(
        r#"
[listen.local]

[listen.edge]
address = "0.0.0.0:8080"
plaintext = true
serve = ["ingest", "health"]
hosts = ["Events.Example.com"]
base_path = "/host/"
trusted_proxies = ["10.0.0.0/8", "unix"]
max_connections = 7

[listen.socket]
address = "unix:http.sock"
socket_mode = "0600"
anonymous = ["publish"]

[tokens.ci]
sha256 = "{hash}"
roles = ["publish", "read"]
tenant = "acme"
types = ["build.*"]
sources = ["/ci"]
rate = 2.5
payloads = false
expires = 2027-01-31

[tokens.root]
sha256 = "{}"
roles = ["operate"]
tenant = "*"
expires = 2027-01-31T12:00:00+01:00
"#,
        TokenHash::of("y")
    )));
    let [local, edge, socket] = &config.http.listeners[..] else { panic!("{config:?}") };
    assert_eq!(*local, Listener::new("local", "127.0.0.1:8480".parse().unwrap()));
    let expected = Listener {
        plaintext: true,
        serve: [Part::Ingest, Part::Health].into(),
        hosts: ["events.example.com".to_owned()].into(),
        base_path: "/host".to_owned(),
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap(), "unix".parse().unwrap()],
        max_connections: 7,
        ..Listener::new("edge", "0.0.0.0:8080".parse().unwrap())
    };
    assert_eq!(*edge, expected);
    assert_eq!(socket.address, Address::Unix("http.sock".into()));
    assert_eq!((socket.socket_mode, &socket.anonymous), (0o600, &[Role::Publish].into()));
    let [ci, root] = &config.http.tokens[..] else { panic!("{config:?}") };
    let expected = Token {
        name: "ci".to_owned(),
        hash,
        roles: [Role::Publish, Role::Read].into(),
        scope: Scope::One("acme".parse().unwrap()),
        types: vec!["build.*".to_owned()],
        sources: vec!["/ci".to_owned()],
        rate: Some(2.5),
        payloads: false,
        expires: Some("2027-01-31T00:00:00Z".parse().unwrap()),
    };
    assert_eq!(*ci, expected);
    assert_eq!(root.scope, Scope::All);
    assert_eq!(root.expires, Some("2027-01-31T11:00:00Z".parse().unwrap()));
    assert_eq!(config.http.tenants, None);
}

#[test]
fn each_mistake_of_a_listener_is_named_with_its_place_and_what_would_be_right() {
    let text = with(
        r#"[listen.a]
address = "localhost:80"
[listen.b]
address = "0.0.0.0:80"
[listen.c]
serve = ["ingets", "everything"]
[listen.d]
address = "127.0.0.1:1"
serve = []
hosts = ["https://x.example"]
base_path = "host"
trusted_proxies = ["proxy"]
max_connections = 0
socket_mode = "0660"
[listen.e]
address = "127.0.0.1:1"
adress = "x"
[listen.f]
address = "unix:s"
socket_mode = "999"
[listen."g h"]
address = "10.0.0.1:1"
plaintext = true
anonymous = ["publish"]
"#,
    );
    let problems = problems(&text);
    let expected = [
        r#"handlers.toml:5:11: `address` is `localhost:80`, which is no address: write one such as "127.0.0.1:8480", "[::1]:8480""#,
        "handlers.toml:7:11: `address` can be reached from other machines",
        "handlers.toml:8:9: listens at 127.0.0.1:8480, as [listen.a] does (line 4)",
        r#"handlers.toml:9:10: `serve` has `ingets`, which is no part of the host: did you mean "ingest"?"#,
        r#"handlers.toml:9:20: `serve` has `everything`, which is no part of the host: there are "ingest", "admin""#,
        "handlers.toml:12:9: `serve` is empty",
        "handlers.toml:13:10: `hosts` has `https://x.example`, which is no name of a host",
        "handlers.toml:14:13: `base_path` is `host`, which is no path",
        "handlers.toml:15:20: `trusted_proxies` has `proxy`, which is no network",
        "handlers.toml:16:19: `max_connections` is `0`",
        "handlers.toml:17:15: `socket_mode` goes with an address such as",
        "handlers.toml:18:9: listens at 127.0.0.1:1, as [listen.d] does (line 10)",
        "handlers.toml:20:1: unknown key `adress` in [listen.e]; did you mean `address`?",
        "handlers.toml:23:15: `socket_mode` is `999`, which is no mode of a file",
        "handlers.toml:24:9: `g h` is no name for a listener",
        "handlers.toml:27:13: `anonymous` lets everybody in who reaches the address",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}\n{expected}");
    }
}

#[test]
fn each_mistake_of_a_token_is_named_and_what_may_be_a_secret_is_not_repeated() {
    let hash = TokenHash::of("x");
    let text = with(&format!(
        r#"[tokens.a]
[tokens.b]
sha256 = "ehk_hunter2hunter2"
roles = ["pubish"]
[tokens.c]
sha256 = "{hash}"
roles = []
tenant = "a b"
types = ["*.x"]
expires = "tomorrow"
[tokens.d]
sha256 = "{hash}"
roles = ["read"]
sources = ["/x"]
expires = 2027-01-31T12:00:00
[tenants.acme]
[tokens.e]
sha256 = "{}"
roles = ["read"]
tenant = "acmee"
[tokens.f]
sha256 = "{}"
roles = ["metrics"]
"#,
        TokenHash::of("z"),
        TokenHash::of("f")
    ));
    let problems = problems(&text);
    let expected = [
        "handlers.toml:4:9: lacks `sha256`: `host token new` makes a token",
        "handlers.toml:4:9: lacks `roles`",
        "handlers.toml:6:10: `sha256` is no SHA-256",
        r#"handlers.toml:7:10: `roles` has `pubish`, which is no role: did you mean "publish"?"#,
        "handlers.toml:10:9: `roles` is empty",
        "handlers.toml:11:10: `tenant` is `a b`, which is no name",
        "handlers.toml:12:9: `types` says what may be published, which takes the role",
        "handlers.toml:12:10: `types` has `*.x`",
        "handlers.toml:13:11: `expires` is a string",
        "handlers.toml:14:9: has the `sha256` of [tokens.c] (line 8)",
        "handlers.toml:17:11: `sources` says what may be published",
        "handlers.toml:18:11: `expires` is 2027-01-31T12:00:00, which names no instant",
        "handlers.toml:23:10: there is no table [tenants.acmee]: did you mean `acme`?",
        "handlers.toml:24:9: `roles` has `metrics`, which tell of all tenants",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}\n{expected}");
        assert!(!problem.contains("hunter2"), "{problem}");
    }
}

#[test]
fn the_command_line_adds_a_listener_or_moves_the_one_of_its_name() {
    let listeners = |text: &str| {
        let asked = Some("127.0.0.1:9000".parse().unwrap());
        let overrides = Overrides { http: asked, ..Overrides::default() };
        let path = Path::new("handlers.toml");
        let config = Config::parse(&with(text), path, &overrides, &environment).unwrap();
        let shown = config.http.listeners.iter().map(|l| format!("{} {}", l.name, l.address));
        shown.collect::<Vec<_>>().join(", ")
    };
    for (text, expected) in [
        ("", "local 127.0.0.1:9000"),
        ("[listen.local]", "local 127.0.0.1:9000"),
        ("[listen.a]", "a 127.0.0.1:8480, local 127.0.0.1:9000"),
        ("[listen.a]\naddress = \"127.0.0.1:9000\"", "a 127.0.0.1:9000"),
    ] {
        assert_eq!(listeners(text), expected, "{text}");
    }
}

#[test]
fn a_file_without_handlers_will_do_for_one_who_needs_none() {
    let path = Path::new("handlers.toml");
    let none = Overrides { needs_no_handlers: true, ..Overrides::default() };
    let config = Config::parse("[listen.local]", path, &none, &environment).unwrap();
    assert!(config.handlers.is_empty());
    assert!(parse("[listen.local]").is_err());
}
