//! `[ingest]`: every key, and each mistake.

use super::*;
use event_host_ingest::Settings;

#[test]
fn every_key_is_read() {
    let config = config(&with(
        "[ingest]\nmax_body = \"2MiB\"\nmax_event = \"512KiB\"\nmax_events = 10\nqueue = \"8MiB\"\n\
         timeout = \"3s\"\nlinger = \"5ms\"\nconnections = 4\ndedup = \"2d\"\ndedup_max = 5000\n\
         rate = 12.5\norigins = [\"a.example.com\"]\nrequire_origin = true\nmin_free = \"0B\"\n\
         max_log = \"1GiB\"\nstamp = true",
    ));
    let expected = Settings {
        max_body: 2 << 20,
        max_event: 512 << 10,
        max_events: 10,
        queue: 8 << 20,
        timeout: Duration::from_secs(3),
        linger: Duration::from_millis(5),
        connections: 4,
        dedup: Some(Duration::from_secs(2 * 86_400)),
        dedup_max: 5_000,
        rate: Some(12.5),
        tenant_rates: [].into(),
        origins: vec!["a.example.com".to_owned()],
        require_origin: true,
        min_free: 0,
        max_log: Some(1 << 30),
        stamp: true,
    };
    assert_eq!(config.ingest, expected);
    let off = super::config(&with("[ingest]\ndedup = \"0s\""));
    assert_eq!(off.ingest, Settings { dedup: None, ..Settings::default() });
    let rates = "[tenants.acme]\ningested_per_second = 3\n[tenants.other]\n";
    let config = super::config(&format!("{rates}{}", with("")));
    assert_eq!(config.ingest.tenant_rates, [("acme".parse().unwrap(), 3.0)].into());
}

#[test]
fn each_mistake_is_named_with_what_would_be_right() {
    for (line, part) in [
        ("max_bodi = \"1MiB\"", "did you mean `max_body`?"),
        ("max_body = 5", "needs a unit"),
        ("max_events = 0", "1"),
        ("connections = 17", "16"),
        ("timeout = \"1ms\"", "100"),
        ("linger = \"1m\"", "1"),
        ("rate = 0", "0.001"),
        ("origins = \"a\"", "list"),
        ("stamp = \"yes\"", "boolean"),
        ("max_event = \"32MiB\"", "is larger than `max_body`"),
        ("max_body = \"512KiB\"", "lower `max_event` or raise `max_body`"),
        ("queue = \"1MiB\"", "lower `max_body` or raise `queue`"),
        ("require_origin = true", "lets nobody send without `origins`"),
    ] {
        let errors = parse(&with(&format!("[ingest]\n{line}"))).expect_err(line).to_string();
        assert!(errors.contains(part), "{line}: {errors}");
        assert!(errors.contains("handlers.toml:"), "{line}: {errors}");
    }
}
