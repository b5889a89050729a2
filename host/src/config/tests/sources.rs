//! `[sources.NAME]`: every key, and each mistake.

use std::collections::BTreeMap;

use event_host_webhooks::{
    Algorithm, Encoding, Hmac, Key, Parts, Preset, Secret, Source, Template,
};

use super::*;

fn template(text: &str) -> Template {
    text.parse().unwrap()
}

fn secret(preset: Preset, text: &str) -> Secret {
    Secret::parse(preset, text).unwrap()
}

#[test]
fn every_setting_of_a_source_is_read() {
    let config = config(&format!(
        r#"{}
[tenants.acme]

[sources.shop]
verify = "hmac"
secrets = ["hex:${{HEX}}", "another secret"]
tenant = "acme"
type = "shop.{{json:/event}}"
id = "{{header:x-id}}"
source = "/shop/{{query:branch?}}"
subject = "{{json:/order}}"
time = "{{json:/at?}}"
partitionkey = "{{json:/customer}}"
extensions = {{ delivery = "{{header:x-delivery?}}" }}
duplicate_key = "{{body:sha256}} {{json:/event}}"
tolerance = "1h"
dedup = "2d"
rate = 12.5
max_body = "2MiB"
retired = true
allow_from = ["192.0.2.7/24", "2001:db8::1"]
origins = ["https://shop.example.com"]
require_origin = true
header = "X-Shop-Signature"
prefix = "v1="
signed = "{{header:x-time}}.{{body}}"
algorithm = "sha512"
encoding = "base64"
timestamp = "{{header:x-time}}"

[sources.github]
verify = "github"
secrets = ["${{TOKEN}}-${{TOKEN}}"]
ping = true
duplicate_key = ""

[sources.own]
verify = "token"
type = "t"
id = "{{body:sha256}}"
source = "/own"
query_token = true
"#,
        with("")
    ));
    let [shop, github, own] = &config.sources[..] else { panic!("{:?}", config.sources) };
    let hmac = Hmac {
        header: "x-shop-signature".parse().unwrap(),
        prefix: "v1=".to_owned(),
        encoding: Encoding::Base64,
        algorithm: Algorithm::Sha512,
        signed: template("{header:x-time}.{body}"),
        timestamp: Some(template("{header:x-time}")),
    };
    let parts = Parts {
        secrets: vec![
            secret(Preset::Hmac, "hex:00112233445566778899"),
            secret(Preset::Hmac, "another secret"),
        ],
        hmac: Some(hmac),
        tolerance: Some(Duration::from_secs(3600)),
        event_type: Some(template("shop.{json:/event}")),
        id: Some(template("{header:x-id}")),
        source: Some(template("/shop/{query:branch?}")),
        subject: Some(template("{json:/order}")),
        time: Some(template("{json:/at?}")),
        partitionkey: Some(template("{json:/customer}")),
        extensions: BTreeMap::from([("delivery".to_owned(), template("{header:x-delivery?}"))]),
        duplicate_key: Key::Of(template("{body:sha256} {json:/event}")),
        ..Parts::new(Preset::Hmac)
    };
    let expected = Hook {
        name: "shop".to_owned(),
        tenant: "acme".parse().unwrap(),
        source: Source::new(parts).unwrap(),
        dedup: Some(Duration::from_secs(2 * 86_400)),
        rate: Some(12.5),
        max_body: Some(2 << 20),
        retired: true,
        allow_from: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::1/128".parse().unwrap()],
        origins: vec!["https://shop.example.com".to_owned()],
        require_origin: true,
        query_token: false,
    };
    assert_eq!(*shop, expected);
    let parts = Parts {
        secrets: vec![secret(Preset::GitHub, "hunter2-hunter2")],
        ping: true,
        duplicate_key: Key::Nothing,
        ..Parts::new(Preset::GitHub)
    };
    let expected = Hook {
        name: "github".to_owned(),
        tenant: Tenant::none(),
        source: Source::new(parts).unwrap(),
        dedup: Some(Duration::from_secs(7 * 86_400)),
        rate: None,
        max_body: Some(25 << 20),
        retired: false,
        allow_from: Vec::new(),
        origins: Vec::new(),
        require_origin: false,
        query_token: false,
    };
    assert_eq!(*github, expected);
    assert!(own.query_token);
    assert_eq!((own.dedup, own.max_body), (None, None));
    let debug = format!("{config:?}");
    assert!(debug.contains("github") && !debug.contains("hunter2"), "{debug}");
}

#[test]
fn each_mistake_of_a_source_is_named_with_its_place_and_what_would_be_right() {
    // What stands in the table, after its header in line 4.
    for (added, expected) in [
        (
            "",
            "4:10: nothing says how requests are verified: write `verify = \"github\"`, or another of \"github\", \"stripe\", \"standard\", \"slack\", \"shopify\", \"gitlab\", \"hmac\", \"token\", \"unverified\"",
        ),
        ("verify = \"git-hub\"", "5:10: `verify` is `git-hub`: did you mean \"github\"?"),
        ("verify = 5", "5:10: `verify` is an integer, not a string: write `verify = \"github\"`"),
        (
            "verify = \"github\"",
            "4:10: `secrets` is missing: `verify = \"github\"` needs what the provider signs with, such as `secrets = [\"${SECRET}\"]`",
        ),
        (
            "verify = \"github\"\nsecret = [\"${TOKEN}-${TOKEN}\"]",
            "4:10: `secrets` is missing: `verify = \"github\"` needs what the provider signs with, such as `secrets = [\"${SECRET}\"]`\nhandlers.toml:6:1: unknown key `secret` in [sources.s]; did you mean `secrets`?",
        ),
        (
            "verify = \"github\"\nsecrets = []",
            "6:11: `secrets` is empty: give what the provider signs with, such as `secrets = [\"${SECRET}\"]`",
        ),
        (
            "verify = \"github\"\nsecrets = \"${TOKEN}\"",
            "6:11: `secrets` is a string, not a list: write `secrets = [\"${TOKEN}\"]`",
        ),
        (
            "verify = \"github\"\nsecrets = [\"${TOKEN}\"]",
            "6:12: one of `secrets` has 7 bytes: a secret has at least 8, and is drawn at random",
        ),
        (
            "verify = \"standard\"\nsecrets = [\"whsec_${TOKEN}!\"]",
            "6:12: one of `secrets` is not base64: write `whsec_` and base64 as the provider shows it, or `raw:` before a secret that is no base64",
        ),
        (
            "verify = \"unverified\"\ntype = \"t\"\nid = \"{body:sha256}\"",
            "4:10: `source` is missing: `verify = \"unverified\"` knows nothing of the requests, so write how it is made of them, such as `source = \"https://example.com/shop\"`",
        ),
        (
            "verify = \"gitlab\"\nsecrets = [\"hunter2-hunter2\"]\nid = \"{headers:x}\"",
            "7:6: `id`: `{headers:x}` stands for nothing: there are `{header:NAME}`, `{json:/pointer}`, `{query:NAME}` and `{body:sha256}`",
        ),
        (
            "verify = \"gitlab\"\nsecrets = [\"hunter2-hunter2\"]\nid = 5",
            "7:6: `id` is an integer, not a string: write `id = \"{header:x-event-id}\"`",
        ),
        (
            "verify = \"gitlab\"\nsecrets = [\"hunter2-hunter2\"]\nextensions = { Delivery = \"x\" }",
            "7:1: `extensions`: `Delivery` is not the name of an extension attribute: use only lower-case letters a to z and digits",
        ),
        (
            "verify = \"gitlab\"\nsecrets = [\"hunter2-hunter2\"]\ntolerance = \"1m\"",
            "7:13: `tolerance` is for signatures with a time, and `gitlab` has none: leave it out",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\ntolerance = \"2d\"",
            "7:13: `tolerance` is `2d`: it must be from 1s to 24h",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\nheader = \"x-signature\"",
            "7:10: `header` goes with `verify = \"hmac\"`, and \"stripe\" knows its own: leave it out",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\nallow_from = [\"example.com\"]",
            "7:15: `allow_from` holds `example.com`, which is no network: write one such as \"192.0.2.0/24\" or \"2001:db8::/32\"",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\nrequire_origin = true",
            "7:18: `require_origin` needs `origins`, or no request is ever taken: write `origins = [\"https://sender.example.com\"]`, or `[\"*\"]` for any",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\nquery_token = true",
            "7:15: `query_token` goes with `verify = \"token\"`, and not with \"stripe\": leave it out",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\nmax_body = \"1B\"",
            "7:12: `max_body` is `1B`: it must be from 1KiB to 1GiB",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\nmax_body = \"65MiB\"",
            "7:12: `max_body` (65.0 MiB) is larger than `queue` of [ingest] (64.0 MiB), which is all that requests take together: lower `max_body` or raise `queue`",
        ),
        (
            "verify = \"stripe\"\nsecrets = [\"hunter2-hunter2\"]\ntenant = \"\"",
            "7:10: `` is no name for a tenant: use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit, or leave it out",
        ),
        (
            "verify = \"hmac\"\nsecrets = [\"hunter2-hunter2\"]\ntype = \"t\"\nid = \"{json:/id}\"\nsource = \"/s\"",
            "4:10: `header` is missing: `verify = \"hmac\"` needs the name of the header with the signature, such as `header = \"x-signature\"`",
        ),
        (
            "verify = \"hmac\"\nsecrets = [\"hunter2-hunter2\"]\nheader = \"x-s\"\nalgorithm = \"sha1\"",
            "8:13: `algorithm` is `sha1`: use \"sha256\" or \"sha512\": SHA-1 can be forged, and every provider has a better signature by now",
        ),
        (
            "verify = \"hmac\"\nsecrets = [\"hunter2-hunter2\"]\nheader = \"x-s\"\ntype = \"t\"\nid = \"{json:/id}\"\nsource = \"/s\"\ntimestamp = \"{header:x-t}\"",
            "11:13: `timestamp` is `{header:x-t}`, which `signed` does not hold: whoever captures a request could send it again with another time, so sign it or leave it out",
        ),
    ] {
        let text = format!("{}\n[sources.s]\n{added}", with("").trim_end());
        let problems = problems(&text).join("\n");
        assert_eq!(problems, format!("handlers.toml:{expected}"), "{added}");
        assert!(!problems.contains("hunter2"), "{problems}");
    }
    let text = format!(
        "[sources.\"a b\"]\nverify = \"github\"\nsecrets = [\"hunter2-hunter2\"]\n{}",
        with("")
    );
    assert!(problems(&text)[0].starts_with("handlers.toml:1:10: `a b` is no name for a source"));
    let text = format!(
        "[tenants.acme]\n[sources.s]\nverify = \"github\"\nsecrets = [\"hunter2-hunter2\"]\ntenant = \"acne\"\n{}",
        with("")
    );
    assert_eq!(
        problems(&text),
        ["handlers.toml:5:10: there is no table [tenants.acne]: did you mean `acme`?"]
    );
    assert!(problems(&format!("sources = 5\n{}", with("")))[0].contains("not a table of sources"));
}

#[test]
fn what_verifies_nothing_is_not_open_to_other_machines() {
    let file = |address: &str, serve: &str, more: &str| {
        format!(
            "[listen.edge]\naddress = \"{address}\"\nserve = [\"{serve}\"]\nplaintext = true\n\
             [sources.s]\nverify = \"unverified\"\ntype = \"t\"\nid = \"{{body:sha256}}\"\nsource = \"/s\"\n{more}\n{}",
            with("")
        )
    };
    assert_eq!(
        problems(&file("0.0.0.0:8480", "ingest", "")),
        [
            "handlers.toml:6:10: `verify = \"unverified\"` has anybody publish who reaches the listener `edge`, and other machines do: name the networks of the sender in `allow_from`, or verify its requests"
        ]
    );
    config(&file("0.0.0.0:8480", "ingest", "allow_from = [\"192.0.2.0/24\"]"));
    config(&file("0.0.0.0:8480", "health", ""));
    config(&file("127.0.0.1:8480", "ingest", "").replace("plaintext = true\n", ""));
}
