mod fuzz;
mod http;
mod ingest;
mod schedules;
mod sources;

use std::collections::BTreeSet;
use std::env::VarError;

use proptest::prelude::*;

use super::*;
use event_host_core::digest::Digest;
use event_host_core::event::{Position, Tenant};
use event_host_core::retry::RetryPolicy;
use event_host_core::subscription::Subscription;
use event_host_delivery::admission::TenantQuota;
use event_host_delivery::breaker::{BreakerSettings, OnTrip};
use event_host_delivery::group::BatchSettings;
use event_host_delivery::ordering::Ordering;
use event_host_sandbox::settings::{Clocks, EmitPolicy, Grants, HttpRule, Limits, Reuse, names};
use event_host_store::{Retention, Start};

/// The documentation is held to what the parser does.
const DOCS: &str = include_str!("../../../../docs/handlers-toml.md");

fn environment(name: &str) -> Result<String, VarError> {
    match name {
        "TOKEN" | "DB_PASSWORD" => Ok("hunter2".to_owned()),
        "REGION" => Ok("eu".to_owned()),
        "GITHUB_SECRET" => Ok("hunter2-hunter2".to_owned()),
        "SHOP_KEY" => Ok("aHVudGVyMi1odW50ZXIy".to_owned()),
        "HEX" => Ok("00112233445566778899".to_owned()),
        "EMPTY" => Ok(String::new()),
        _ => Err(VarError::NotPresent),
    }
}

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    let path = Path::new("handlers.toml");
    Config::parse(text, path, &Overrides::default(), &environment)
}

fn config(text: &str) -> Config {
    parse(text).unwrap_or_else(|e| panic!("{text}\nwas refused:\n{e}"))
}

/// The lines of the refusal.
fn problems(text: &str) -> Vec<String> {
    match parse(text) {
        Ok(config) => panic!("{text}\nwas taken as {config:?}"),
        Err(e) => e.to_string().lines().map(str::to_owned).collect(),
    }
}

/// A handler that is complete, and has `added` from line 4 on.
fn with(added: &str) -> String {
    format!("[handlers.triage]\ncomponent = \"triage.wasm\"\nsubscribe = [\"*\"]\n{added}")
}

#[test]
fn everything_has_a_default_but_component_and_subscribe() {
    let config = config(&with(""));
    let handler = HandlerSettings {
        name: "triage".parse().unwrap(),
        group: "triage".parse().unwrap(),
        tenant: Tenant::none(),
        component: Component::File("triage.wasm".into()),
        build: None,
        digest: None,
        subscription: Subscription::all(),
        start: Start::Earliest,
        ordering: Ordering::Total,
        concurrency: 1,
        max_parked: 10_000,
        overtake: None,
        partitions: 1,
        reuse: Reuse::Usual,
        http_path: None,
        retry: RetryPolicy::default(),
        limits: Limits::default(),
        grants: Grants::default(),
        batch: BatchSettings::default(),
        breaker: BreakerSettings::default(),
    };
    let expected = Config {
        path: "handlers.toml".into(),
        database: DatabaseUrl::Sqlite("host.db".into()),
        lock_database: None,
        grace: Duration::from_secs(30),
        migrate: true,
        concurrency: None,
        compilation: Compilation::default(),
        retention: Retention::FOREVER,
        ingest: event_host_ingest::Settings::default(),
        metrics: event_host_metrics::Settings::default(),
        digest: config.digest.clone(),
        tenants: Vec::new(),
        sources: Vec::new(),
        schedules: Vec::new(),
        handlers: vec![handler],
        http: event_host_http::Settings::default(),
        drain_delay: Duration::ZERO,
    };
    assert_eq!(config, expected);
}

#[test]
fn every_setting_is_read() {
    let config = config(
        r#"
database = "sqlite:data/${REGION}.db"
migrate = false
grace = "1m 30s"
concurrency = 12
compile_memory = "1GiB"
compile_timeout = "90s"
retention = "7d"
retention_size = "50GiB"

[telemetry.metrics]
interval = "5s"
max_groups = 7

[tenants.acme]
memory = "64MiB"
concurrency = 4
events_per_second = 100
ingested_per_second = 40
cpu = 0.5
emits_per_second = 200
emit_bytes_per_second = "1MB"
http_requests_per_second = 10
http_connections = 20
log_lines_per_second = 50
dead_letters = 1000
dead_letter_bytes = "256MiB"
pinned_log = "2GiB"
state = "1GiB"
http = ["https://*.example.com"]

[tenants.other]

[handlers.b]
component = "/opt/b.wasm"
build = { command = ["make", "b.wasm"], dir = "b", output = "b/out.wasm", watch = ["b/**/*.c"] }
digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
subscribe = ["issues.opened", "pull_request.*"]
group = "b.v2"
tenant = "acme"
ordering = "total"
start = 1200
reuse = 50
http_path = "/hooks/{type}"

[handlers.b.retry]
max_attempts = 3
initial = "250ms"
multiplier = 3
max = "1h"
jitter = 0.0

[handlers.b.breaker]
events = 7
attempts_after_swap = 0
probe_after = "5s"
on_trip = "rollback"

[handlers.b.batch]
max_events = 10
max_time = "2s"
size = 5
wait = "20ms"

[handlers.b.limits]
memory = "64MiB"
timeout = "5s"
concurrency = 1
fuel = 1_000_000_000
table_elements = 10
host_call = "1MiB"
log = "1KiB"
log_lines_per_second = 70
emits = 0
emit = "2KB"
emit_total = "3KB"
state_value = "4KB"
state_total = "5KB"
state_writes = 5
state_keys = 7
http_requests = 6
http_bytes = "6KB"
http_connections = 8
http_timeout = "1s"

[handlers.b.allow]
env = { REGION = "eu", TOKEN = "Bearer ${TOKEN}", PRICE = "5$ or $${TOKEN}" }
http = ["https://${REGION}.example.com"]
emit = ["issue.triaged", "audit.*"]
state = false
config = { currency = "${REGION}R" }
clocks = "fine"

[handlers.a]
component = "a.wasm"
subscribe = ["*"]
start = 2026-01-31T12:00:00+01:00
reuse = "event"
ordering = "none"
overtake = "2s"
partitions = 8
"#,
    );
    assert_eq!(config.database, DatabaseUrl::Sqlite("data/eu.db".into()));
    assert!(!config.migrate);
    assert_eq!(config.grace, Duration::from_secs(90));
    assert_eq!(config.concurrency, Some(12));
    let kept = Duration::from_secs(7 * 86_400);
    let retention = Retention { max_age: Some(kept), max_bytes: Some(50 << 30) };
    let compilation =
        Compilation { memory_bytes: Some(1 << 30), timeout: Some(Duration::from_secs(90)) };
    assert_eq!(config.compilation, compilation);
    let metrics = event_host_metrics::Settings { interval: Duration::from_secs(5), max_groups: 7 };
    assert_eq!(config.metrics, metrics);
    assert_eq!(config.retention, retention);
    let quota = TenantQuota {
        memory_bytes: Some(64 << 20),
        concurrency: Some(4),
        events_per_second: Some(100.0),
        cpu: Some(0.5),
        emits_per_second: Some(200.0),
        emit_bytes_per_second: Some(1_000_000.0),
        http_requests_per_second: Some(10.0),
        http_connections: Some(20),
        log_lines_per_second: Some(50.0),
        dead_letters: Some(1000),
        dead_letter_bytes: Some(256 << 20),
        state_bytes: Some(1 << 30),
    };
    let tenant = |name: &str, quota, http: &[&str]| TenantSettings {
        name: name.parse().unwrap(),
        quota,
        ingested_per_second: (name == "acme").then_some(40.0),
        http: (!http.is_empty())
            .then(|| http.iter().map(|rule| rule.parse::<HttpRule>().unwrap()).collect()),
        pinned_log: (name == "acme").then_some(2 << 30),
    };
    assert_eq!(
        config.tenants,
        [
            tenant("acme", quota, &["https://*.example.com"]),
            tenant("other", TenantQuota::default(), &[]),
        ]
    );
    let [b, a] = &config.handlers[..] else { panic!("{config:?}") };
    let env = [("REGION", "eu"), ("TOKEN", "Bearer hunter2"), ("PRICE", "5$ or ${TOKEN}")];
    let http: HttpRule = "https://eu.example.com".parse().unwrap();
    let expected = HandlerSettings {
        name: "b".parse().unwrap(),
        group: "b.v2".parse().unwrap(),
        tenant: "acme".parse().unwrap(),
        component: Component::File("/opt/b.wasm".into()),
        build: Some(BuildSettings {
            by: BuildBy::Command(vec!["make".to_owned(), "b.wasm".to_owned()]),
            folder: "b".into(),
            output: Some("b/out.wasm".into()),
            component: "/opt/b.wasm".into(),
            watch: Some(vec!["b/**/*.c".to_owned()]),
            root: PathBuf::new(),
        }),
        digest: Some(Digest::of(b"")),
        subscription: Subscription::new(["issues.opened", "pull_request.*"]).unwrap(),
        start: Start::Position(Position(1200)),
        ordering: Ordering::Total,
        concurrency: 1,
        max_parked: 10_000,
        overtake: None,
        partitions: 1,
        reuse: Reuse::Events(50),
        http_path: Some("/hooks/{type}".parse().unwrap()),
        retry: RetryPolicy {
            max_attempts: 3,
            initial: Duration::from_millis(250),
            multiplier: 3.0,
            max: Duration::from_secs(3600),
            jitter: 0.0,
        },
        limits: Limits {
            memory_bytes: 64 << 20,
            timeout: Duration::from_secs(5),
            fuel: Some(1_000_000_000),
            table_elements: 10,
            host_call_bytes: 1 << 20,
            log_bytes: 1 << 10,
            log_lines_per_second: 70,
            emits: 0,
            emit_bytes: 2000,
            emit_total_bytes: 3000,
            state_value_bytes: 4000,
            state_total_bytes: 5000,
            state_writes: 5,
            state_keys: 7,
            http_requests: 6,
            http_bytes: 6000,
            http_connections: 8,
            http_timeout: Duration::from_secs(1),
        },
        grants: Grants {
            env: env.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            http: [http].into_iter().collect(),
            emit: EmitPolicy::Types(Subscription::new(["issue.triaged", "audit.*"]).unwrap()),
            state: false,
            config: [("currency".to_owned(), "euR".to_owned())].into(),
            clocks: Clocks::Fine,
        },
        batch: BatchSettings {
            max_events: 10,
            max_time: Duration::from_secs(2),
            size: Some(5),
            wait: Duration::from_millis(20),
        },
        breaker: BreakerSettings {
            events: 7,
            attempts_after_swap: 0,
            probe_after: Duration::from_secs(5),
            on_trip: OnTrip::Rollback,
        },
    };
    assert_eq!(*b, expected);
    assert_eq!(a.start, Start::Time("2026-01-31T11:00:00Z".parse().unwrap()));
    assert_eq!(a.reuse, Reuse::Event);
    assert_eq!((a.ordering, a.overtake), (Ordering::None, Some(Duration::from_secs(2))));
    assert_eq!(a.partitions, 8);
}

#[test]
fn a_component_is_a_file_or_deployed() {
    for (written, component) in [
        ("deployed", Component::Deployed),
        ("./deployed", Component::File("./deployed".into())),
        ("Deployed", Component::File("Deployed".into())),
        ("deployed.wasm", Component::File("deployed.wasm".into())),
    ] {
        let config = config(&with("").replace("triage.wasm", written));
        assert_eq!(config.handlers[0].component, component, "{written}");
        assert_eq!(component.to_string(), written);
    }
}

#[test]
fn a_place_to_start_is_read_in_each_form() {
    for (start, expected) in [
        (r#""earliest""#, Start::Earliest),
        (r#""latest""#, Start::Latest),
        ("0", Start::Position(Position(0))),
        (r#""1200""#, Start::Position(Position(1200))),
        (r#""2026-01-31T12:00:00Z""#, Start::Time("2026-01-31T12:00:00Z".parse().unwrap())),
        ("2026-01-31 12:00:00Z", Start::Time("2026-01-31T12:00:00Z".parse().unwrap())),
    ] {
        let config = config(&with(&format!("start = {start}")));
        assert_eq!(config.handlers[0].start, expected, "{start}");
    }
}

#[test]
fn each_mistake_is_named_with_its_place_and_what_would_be_right() {
    // What is added to a complete handler, or the whole file, and the message.
    let in_handler: &[(&str, &str)] = &[
        (
            "suscribe = []",
            "4:1: unknown key `suscribe` in [handlers.triage]; did you mean `subscribe`?",
        ),
        (
            "max-attempts = 3",
            "4:1: unknown key `max-attempts` in [handlers.triage]; it belongs in [handlers.triage.retry]",
        ),
        (
            "grace = \"5s\"",
            "4:1: unknown key `grace` in [handlers.triage]; it belongs at the top level",
        ),
        (
            "[handlers.triage.retry]\nbackoff = 2",
            "5:1: unknown key `backoff` in [handlers.triage.retry]; known there: `max_attempts`, `initial`, `multiplier`, `max`, `jitter`",
        ),
        (
            "[handlers.triage.limits]\ntime_out = \"5s\"",
            "5:1: unknown key `time_out` in [handlers.triage.limits]; did you mean `timeout`?",
        ),
        (
            "[handlers.triage.allow]\nfiles = [\"/etc\"]",
            "5:1: unknown key `files` in [handlers.triage.allow]; known there: `env`, `config`, `http`, `emit`, `state`, `clocks`",
        ),
        (
            "[handlers.triage.allow]\nhttp = [\"https://example.com/a\"]",
            "5:9: `http` holds `https://example.com/a`, which grants nothing: it grants a host as a whole: end it after the host or its port",
        ),
        (
            "[handlers.triage.allow]\nenv = [\"PATH\"]",
            "5:7: `env` is a list, not a table of strings: write `env = { REGION = \"eu\" }`",
        ),
        (
            "[handlers.triage.allow]\nenv = { PORT = 80 }",
            "5:16: `PORT` is an integer: put its value in quotes",
        ),
        (
            "[handlers.triage.allow]\nenv = { \"A=B\" = \"\" }",
            "5:17: `A=B` is no name for a variable: use letters, digits and `_`",
        ),
        (
            "[handlers.triage.allow]\nenv = { A = \"\\u0000\" }",
            "5:13: the variable `A` holds a NUL character, which none can",
        ),
        (
            "group = \"two words\"",
            "4:9: `two words` is no name for a group: use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit",
        ),
        ("group = 7", "4:9: `group` is an integer, not a string: write `group = \"billing\"`"),
        (
            "tenant = \"\"",
            "4:10: `` is no name for a tenant: use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit, or leave it out",
        ),
        ("ordering = \"fifo\"", "4:12: `ordering` is `fifo`: use \"total\", \"key\" or \"none\""),
        (
            "overtake = \"2s\"",
            "4:12: `overtake` is of no use with `ordering = \"total\"`, which waits for every transaction, because what it commits comes before all that was published after it: leave it out, or choose `ordering = \"key\"`",
        ),
        (
            "ordering = \"key\"\novertake = \"99ms\"",
            "5:12: `overtake` is `99ms`: it must be from 100ms to 8760h",
        ),
        (
            "partitions = 8",
            "4:14: `partitions` cannot be with `ordering = \"total\"`, which handles all events one after the other: leave it out, or choose `ordering = \"key\"`",
        ),
        (
            "ordering = \"key\"\npartitions = 257",
            "5:14: `partitions` is `257`: it must be from 1 to 256",
        ),
        ("max_parked = 0", "4:14: `max_parked` is `0`: it must be from 1 to 1000000"),
        (
            "limits.concurrency = 8",
            "4:22: `concurrency` must be 1, because with `ordering = \"total\"` events are handled one after the other: leave it out, or choose `ordering = \"key\"`",
        ),
        (
            "start = \"yesterday\"",
            "4:9: `start` is `yesterday`, which is no place in the log: write \"earliest\", \"latest\", a position such as 1200, or a time such as 2026-01-31T12:00:00Z",
        ),
        (
            "start = -1",
            "4:9: `start` is `-1`, which is no place in the log: write \"earliest\", \"latest\", a position such as 1200, or a time such as 2026-01-31T12:00:00Z",
        ),
        (
            "start = 2026-01-31T12:00:00",
            "4:9: `start` is `2026-01-31T12:00:00`, which is no place in the log: write \"earliest\", \"latest\", a position such as 1200, or a time such as 2026-01-31T12:00:00Z",
        ),
        (
            "reuse = 0",
            "4:9: `reuse` is `0`: write \"batch\", \"event\", or a number of events from 1 to 4294967295",
        ),
        (
            "reuse = true",
            "4:9: `reuse` is a boolean: write \"batch\", \"event\", or a number of events from 1 to 4294967295",
        ),
        (
            "http_path = \"events\"",
            "4:13: `http_path` is `events`: write a path that begins with `/`, such as \"/events\" or \"/hooks/{type}\", in characters of a URL and of at most 1024 bytes; `{type}`, once, stands for the event's type",
        ),
        ("limits.timeout = 5", "4:18: `timeout` needs a unit: write `timeout = \"5s\"`"),
        ("limits.timeout = \"0.5\"", "4:18: `timeout` needs a unit: write `timeout = \"0.5s\"`"),
        (
            "limits.timeout = \"5 parsecs\"",
            "4:18: `timeout` is `5 parsecs`, which is not a duration: write one such as \"5s\", \"1m 30s\" or \"250ms\"",
        ),
        (
            "limits.timeout = true",
            "4:18: `timeout` is a boolean, not a duration: write one such as \"5s\", \"1m 30s\" or \"250ms\"",
        ),
        ("limits.timeout = \"0s\"", "4:18: `timeout` is `0s`: it must be from 1ms to 8760h"),
        ("limits.memory = 64", "4:17: `memory` needs a unit: write `memory = \"64MiB\"`"),
        (
            "limits.memory = -64",
            "4:17: `memory` is an integer, not a size: write one such as \"64MiB\", \"1.5GiB\" or \"512KiB\"",
        ),
        (
            "limits.memory = \"64 potatoes\"",
            "4:17: `memory` is `64 potatoes`, which is not a size: write one such as \"64MiB\", \"1.5GiB\" or \"512KiB\"",
        ),
        ("limits.memory = \"1KiB\"", "4:17: `memory` is `1KiB`: it must be from 64KiB to 1TiB"),
        (
            "limits.emits = \"5\"",
            "4:16: `emits` is a string, not a whole number: write one from 0 to 1000000000, without quotes",
        ),
        ("retry.max_attempts = 0", "4:22: `max_attempts` is `0`: it must be from 1 to 4294967295"),
        (
            "retry.max_attempts = 99999999999999999999",
            "4:22: `max_attempts` is `99999999999999999999`: it must be from 1 to 4294967295",
        ),
        ("retry.multiplier = 0.5", "4:20: `multiplier` is `0.5`: it must be from 1 to 1000000"),
        ("retry.multiplier = nan", "4:20: `multiplier` is `nan`: it must be from 1 to 1000000"),
        (
            "retry.multiplier = \"2\"",
            "4:20: `multiplier` is a string, not a number: write `multiplier = 2.0`",
        ),
        ("batch.size = 0", "4:14: `size` is `0`: it must be from 1 to 10000"),
        (
            "batch.size = 2000",
            "4:14: `size` is 2000, and no more than `max_events` (1000 by default) are settled at once: lower `size` or raise `max_events`",
        ),
        (
            "batch = { max_events = 10, size = 11 }",
            "4:35: `size` is 11, and no more than `max_events` (10) are settled at once: lower `size` or raise `max_events`",
        ),
        (
            "batch.wait = \"501ms\"",
            "4:14: `wait` (501ms) is longer than `max_time` (500ms by default), after which what is done is settled: lower `wait` or raise `max_time`",
        ),
        ("retry.jitter = 1.5", "4:16: `jitter` is `1.5`: it must be from 0 to 1"),
        (
            "retry.initial = \"10m\"",
            "4:17: `initial` (10m) is longer than `max` (5m by default): lower `initial` or raise `max`",
        ),
        (
            "retry.max = \"1ms\"",
            "4:13: `initial` (1s by default) is longer than `max` (1ms): lower `initial` or raise `max`",
        ),
        (
            "retry = { max = \"1s\", initial = \"2s\" }",
            "4:33: `initial` (2s) is longer than `max` (1s): lower `initial` or raise `max`",
        ),
        ("retry = 5", "4:9: `retry` is an integer: write a table [handlers.triage.retry]"),
        (
            "breaker.on_trip = \"stop\"",
            "4:19: `on_trip` is `stop`: write \"pause\" or \"rollback\"",
        ),
        ("allow.clocks = \"exact\"", "4:16: `clocks` is `exact`: write \"coarse\" or \"fine\""),
        ("batch.max_events = 0", "4:20: `max_events` is `0`: it must be from 1 to 100000"),
        (
            "[handlers.copy]\ncomponent = \"c.wasm\"\nsubscribe = [\"*\"]\ngroup = \"triage\"",
            "7:9: handlers `triage` (line 1) and `copy` are both in the group `triage`: give one of them a `group` of its own",
        ),
        (
            "[handlers.\"no name\"]\ncomponent = \"c.wasm\"\nsubscribe = [\"*\"]",
            "4:11: `no name` is no name for a handler: use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit",
        ),
        ("[handlers]\nother = 5", "5:9: `other` is an integer: write a table [handlers.other]"),
    ];
    for (added, expected) in in_handler {
        assert_eq!(problems(&with(added)), [format!("handlers.toml:{expected}")], "{added}");
    }
    let whole: &[(&str, &str)] = &[
        (
            "",
            "1:1: the file has no handlers: add a table [handlers.NAME] with `component` and `subscribe`, and a name of your own",
        ),
        (
            "[handlers]",
            "1:2: `handlers` is empty: add a table [handlers.NAME] with `component` and `subscribe`, and a name of your own",
        ),
        (
            "[[handlers]]\ncomponent = \"x\"",
            "1:1: `handlers` is no table of handlers: add a table [handlers.NAME] with `component` and `subscribe`, and a name of your own",
        ),
        (
            "[handler.x]\ncomponent = \"x\"",
            "1:2: unknown key `handler` at the top level; did you mean `handlers`?",
        ),
        (
            "[handlers.a]\nsubscribe = [\"*\"]",
            "1:11: `component` is missing: name the handler's file, such as `component = \"triage.wasm\"`, or write \"deployed\" for what `host deploy` brings",
        ),
        (
            "[handlers.a]\ncomponent = \"a.wasm\"\ndigest = \"e3b0\"\nsubscribe = [\"*\"]",
            "3:10: `e3b0` is no digest: write `sha256:` and the 64 digits that `host check` or `sha256sum` shows",
        ),
        (
            "[handlers.a]\ncomponent = \"\"\nsubscribe = [\"*\"]",
            "2:13: `component` is ``, which names no file: write one such as \"triage.wasm\"",
        ),
        (
            "[handlers.a]\ncomponent = \"a.wasm\"",
            "1:11: `subscribe` is missing: name the event types to handle, such as `subscribe = [\"issues.opened\", \"pull_request.*\"]`; [\"*\"] is all of them",
        ),
        (
            "[handlers.a]\ncomponent = \"a.wasm\"\nsuscribe = [\"*\"]",
            "3:1: unknown key `suscribe` in [handlers.a]; did you mean `subscribe`?",
        ),
        (
            "[handlers.a]\ncomponent = \"a.wasm\"\nsubscribe = []",
            "3:13: `subscribe` is empty, so the handler would never run: name event types, such as [\"issues.opened\", \"pull_request.*\"]; [\"*\"] is all of them",
        ),
        (
            "[handlers.a]\ncomponent = \"a.wasm\"\nsubscribe = \"issues.*\"",
            "3:13: `subscribe` is a string, not a list: write `subscribe = [\"issues.*\"]`",
        ),
        (
            "[handlers.a]\ncomponent = \"a.wasm\"\nsubscribe = [\"a\", 5]",
            "3:19: `subscribe` holds an integer: put strings into the list, such as [\"issues.opened\", \"pull_request.*\"]",
        ),
        (
            "[handlers.a]\ncomponent = \"a.wasm\"\nsubscribe = [\"a\", \"*.b\"]",
            "3:19: `*.b` is no event type: write a type, a beginning that ends in `*`, or `*` for all",
        ),
    ];
    for (text, expected) in whole {
        assert_eq!(problems(text), [format!("handlers.toml:{expected}")], "{text}");
    }
    let at_top: &[(&str, &str)] = &[
        (
            "databse = \"sqlite:x.db\"",
            "1:1: unknown key `databse` at the top level; did you mean `database`?",
        ),
        (
            "component = \"x\"",
            "1:1: unknown key `component` at the top level; it belongs in [handlers.NAME]",
        ),
        (
            "database = \"postgres://u:${TOKEN}@h/d?sslmod=require\"",
            "1:12: `database`: has a parameter, number 1, that is not known: did you mean `sslmode`?",
        ),
        (
            "database = 5\nlock_database = \"sqlite:host.db\"",
            "1:12: `database` is an integer, not a string: write `database = \"sqlite:host.db\"`\nhandlers.toml:2:17: `lock_database`: is no PostgreSQL URL: write one such as `postgres://user@server/database`",
        ),
        (
            "database = \"postgres://h/d\"\nlock_database = 5",
            "2:17: `lock_database` is an integer, not a string: write `lock_database = \"postgres://user@server/database\"`",
        ),
        (
            "database = \"postgres://h/d\"\nlock_database = \"sqlite:host.db\"",
            "2:17: `lock_database`: is no PostgreSQL URL: write one such as `postgres://user@server/database`",
        ),
        (
            "database = \"sqlite:host.db\"\nlock_database = \"postgres://h/d\"",
            "2:17: `lock_database` goes with PostgreSQL behind a pooler: with SQLite, leave it out",
        ),
        (
            "database = \"${TOKEN}\"",
            "1:12: `database`: names no database that the host knows: write one such as `sqlite:host.db` or `postgres://user@server/database`",
        ),
        (
            "lock_database = \"postgres://h/d\"",
            "1:17: `lock_database` goes with PostgreSQL behind a pooler: with SQLite, leave it out",
        ),
        ("migrate = \"no\"", "1:11: `migrate` is a string, not a boolean: write `migrate = true`"),
        ("grace = 10", "1:9: `grace` needs a unit: write `grace = \"10s\"`"),
        (
            "grace = \"${MISSING}\"",
            "1:9: the environment has no variable `MISSING`: set it before the host starts",
        ),
        (
            "grace = \"${TOKEN}\"",
            "1:9: `grace` is `${TOKEN}`, which is not a duration: write one such as \"5s\", \"1m 30s\" or \"250ms\"",
        ),
        (
            "grace = \"${TOKEN\"",
            "1:9: `${` has no `}`: write `${NAME}` for a variable of the environment, or `$${` for these two characters",
        ),
        (
            "grace = \"${A-B}\"",
            "1:9: `${A-B}` names no variable: use letters, digits and `_`, or write `$${` for a literal `${`",
        ),
    ];
    for (added, expected) in at_top {
        let text = format!("{added}\n{}", with(""));
        assert_eq!(problems(&text).join("\n"), format!("handlers.toml:{expected}"), "{added}");
    }
}

#[test]
fn broken_toml_is_named_with_its_place() {
    for (text, expected) in [
        ("a = ", "handlers.toml:1:5: not TOML: "),
        ("[handlers.a]\n\n[handlers.a]\n", "handlers.toml:3:11: not TOML: duplicate key"),
        ("a = 1\na = 2", "handlers.toml:2:1: not TOML: duplicate key"),
        ("x = \"ü\"; y", "handlers.toml:1:8: not TOML: "),
    ] {
        let problems = problems(text);
        assert!(problems[0].starts_with(expected), "{text}: {problems:?}");
        assert!(problems.iter().all(|p| p.contains("not TOML")), "{problems:?}");
    }
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_the_file() {
    let text = "grace = 5\nfoo = 1\n[handlers.b]\nsubscribe = []\nreuse = 0\n[handlers.a]\ncomponent = 5\nsubscribe = [\"*\"]\n";
    let places: Vec<String> = problems(text)
        .iter()
        .map(|line| line.splitn(4, ':').skip(1).take(2).collect::<Vec<_>>().join(":"))
        .collect();
    assert_eq!(places, ["1:9", "2:1", "3:11", "4:13", "5:9", "7:13"]);
}

#[test]
fn a_secret_shows_neither_in_errors_nor_in_debug_output() {
    let secret = "[handlers.a]\ncomponent = \"${TOKEN}\\u0000\"\nsubscribe = [\"*${TOKEN}\"]\ngroup = \"${TOKEN}!\"\ntenant = \"${TOKEN}!\"\nordering = \"${TOKEN}\"\nstart = \"${TOKEN}\"\nreuse = \"${TOKEN}\"\nlimits.memory = \"${TOKEN}\"\nallow.env = { A = \"${TOKEN}\\u0000\" }\n";
    let problems = problems(secret);
    assert_eq!(problems.len(), 9, "{problems:#?}");
    assert!(!problems.concat().contains("hunter2"), "{problems:#?}");

    let config = config(&with("allow.env = { TOKEN = \"${TOKEN}\" }"));
    assert_eq!(config.handlers[0].grants.env["TOKEN"], "hunter2");
    let debug = format!("{config:?}");
    assert!(debug.contains("TOKEN") && !debug.contains("hunter2"), "{debug}");
}

#[test]
fn a_password_is_never_shown() {
    // `hunter2` is in each, where a password belongs and where it got by mistake.
    let urls = [
        "postgres://u:hunter2@h/d",
        "postgres://u:${TOKEN}@h/d",
        "postgres://u:%68unter2hunter2@h/d",
        "postgres://:hunter2@h/d",
        "postgres://u:p@hunter2@h/d",
        "postgres://h/d?user=u&password=hunter2",
        "postgres://h/d?password=%68unter2hunter2",
        "postgres://h/d?options=-c%20app.secret=hunter2",
        // Refused.
        "postgres://u:hunter2/x@h/d",
        "postgres://u:1/hunter2@h/d",
        "postgres://u:1?hunter2@h/d",
        "postgres://u:hunter2#x@h/d",
        "postgres://u:1#hunter2@h/d",
        "postgres://u:hunter2 x@h/d",
        "postgres://u:hunter2%zz@h/d",
        "postgres://u:hunter2%FF@h/d",
        "postgres://u:hunter2@h:port/d",
        "postgres://u:hunter2@a,b/d",
        "postgres://u:hunter2@[h/d",
        "postgres://u:hunter2",
        "postgres://h:hunter2/d",
        "postgres://h/d?hunter2",
        "postgres://h/d?hunter2=x",
        "postgres://h/d?password=a&hunter2=",
        "postgres://h/d?password=hunter2&passwort=hunter2",
        "postgres://u:hunter2@h/d?password=hunter2",
        "postgres://u:hunter2@h/d?sslmode=hunter2",
        "postgres://u:hunter2@h/d?sslmode=verify-full&sslrootcert=hunter2",
        "postgres://u:hunter2@h/d?sslcert=hunter2&sslkey=-----BEGIN%20PRIVATE%20KEY-----hunter2",
        "postgres://u:hunter2@h/d?connect_timeout=hunter2",
        "postgres:u:hunter2@h/d",
        "postgre://u:hunter2@h/d",
        "mysql://u:hunter2@h/d",
        "u:hunter2@h/d",
    ];
    let mut taken = 0;
    for url in urls {
        let expanded = url.replace("${TOKEN}", "hunter2");
        let overrides =
            Overrides { database: Some(expanded.as_str().into()), ..Overrides::default() };
        let mut said = format!("{overrides:?}");
        let one = DatabaseUrl::read(&expanded, Path::new(""), &environment);
        said += &format!("{one:?}");
        match one {
            Ok(one) => said += &one.to_string(),
            Err(e) => said += &e.to_string(),
        }
        for line in [
            format!("database = \"{url}\"\n"),
            format!("database = \"postgres://h/d\"\nlock_database = \"{url}\"\n"),
            format!("database = \"{url}\"\nlock_database = \"{url}\"\n"),
        ] {
            let result = parse(&(line + &with("")));
            said += &format!("{result:?}");
            match result {
                Ok(config) => {
                    taken += 1;
                    let lock = config.lock_database.map(|lock| format!("{lock:?}{lock}"));
                    said += &format!("{}{lock:?}", config.database);
                }
                Err(errors) => said += &errors.to_string(),
            }
        }
        let path = Path::new("handlers.toml");
        let result = Config::parse(&with(""), path, &overrides, &environment);
        said += &format!("{result:?}");
        if let Err(errors) = result {
            said += &errors.to_string();
        }
        assert!(!said.contains("hunt"), "{url}: {said}");
    }
    assert_eq!(taken, 3 * 8, "the first ones are right");
}

#[test]
fn a_server_and_its_direct_address_are_read() {
    let text = format!(
        "database = \"postgres://host:${{TOKEN}}@pooler:6432/events\"\nlock_database = \"postgres://host:${{TOKEN}}@db/events\"\n{}",
        with("")
    );
    let config = config(&text);
    let DatabaseUrl::Postgres(url) = &config.database else { panic!("{config:?}") };
    assert!(url.expose().contains("hunter2") && url.expose().contains("pooler"));
    let lock = config.lock_database.unwrap();
    assert!(lock.expose().contains("hunter2") && lock.expose().contains("host=db"));

    // Another database has other locks.
    let overrides =
        Overrides { database: Some("postgres://other/events".into()), ..Overrides::default() };
    let path = Path::new("handlers.toml");
    let config = Config::parse(&text, path, &overrides, &environment).unwrap();
    assert_eq!(config.database.to_string(), "postgres://other/events?sslmode=prefer");
    assert_eq!(config.lock_database, None);
}

#[test]
fn paths_are_relative_to_the_file_and_the_command_lines_to_the_working_directory() {
    let path = Path::new("/etc/host/handlers.toml");
    let text = with("");
    let read = |database: Option<&str>| {
        let overrides =
            Overrides { database: database.map(GivenUrl::from), ..Overrides::default() };
        Config::parse(&text, path, &overrides, &environment)
    };
    let config = read(None).unwrap();
    assert_eq!(config.database, DatabaseUrl::Sqlite("/etc/host/host.db".into()));
    let file = Component::File("/etc/host/triage.wasm".into());
    assert_eq!(config.handlers[0].component, file);
    let config = read(Some("sqlite:other.db")).unwrap();
    assert_eq!(config.database, DatabaseUrl::Sqlite("other.db".into()));
    let error = read(Some("other.db")).unwrap_err().to_string();
    assert_eq!(
        error,
        "`--database`: names no database that the host knows: write one such as `sqlite:host.db` or `postgres://user@server/database`"
    );
}

#[test]
fn the_command_lines_database_wins_over_a_broken_one() {
    let text = format!("database = \"${{MISSING}}\"\n{}", with(""));
    let overrides = Overrides { database: Some("sqlite:x.db".into()), ..Overrides::default() };
    let config = Config::parse(&text, Path::new("h.toml"), &overrides, &environment).unwrap();
    assert_eq!(config.database, DatabaseUrl::Sqlite("x.db".into()));
}

/// A tenant that has `quota` from line 2 on, in one line, and one of its
/// handlers, which has `added` from line 8 on.
fn of_tenant(quota: &str, added: &str) -> String {
    let handler = with(&format!("tenant = \"acme\"\n{added}"));
    format!("[tenants.acme]\n{quota}\n\n{handler}")
}

#[test]
fn a_handlers_own_limits_only_lower_its_tenants() {
    for (quota, added, expected) in [
        (
            "http = [\"https://*.example.com\"]",
            "allow.http = [\"https://api.example.com\", \"https://api.example.org\"]",
            "8:14: `http` grants `https://api.example.org`, which the `http` of its tenant `acme` (line 2) does not: leave it out, or grant it to the tenant",
        ),
        (
            "http = []",
            "allow.http = [\"https://api.example.com\"]",
            "8:14: `http` grants `https://api.example.com`, which the `http` of its tenant `acme` (line 2) does not: leave it out, or grant it to the tenant",
        ),
        (
            "memory = \"64MiB\"",
            "limits.memory = \"65MiB\"",
            "8:17: `memory` is 65.0 MiB, more than the `memory` of its tenant `acme`, 64.0 MiB (line 2): lower the one or raise the other",
        ),
        (
            "memory = \"64MiB\"",
            "[handlers.triage.limits]\ntimeout = \"1s\"\nmemory = \"67108865B\"",
            "10:10: `memory` is 67108865 B, more than the `memory` of its tenant `acme`, 67108864 B (line 2): lower the one or raise the other",
        ),
        (
            "state = \"1MiB\"",
            "limits = { state_total = \"2MiB\", state_value = \"1KiB\" }",
            "8:26: `state_total` is 2.0 MiB, more than the `state` of its tenant `acme`, 1.0 MiB (line 2): lower the one or raise the other",
        ),
        (
            "state = \"1MiB\"",
            "limits.state_value = \"2MiB\"",
            "8:22: `state_value` is 2.0 MiB, more than the `state` of its tenant `acme`, 1.0 MiB (line 2): lower the one or raise the other",
        ),
    ] {
        let said = problems(&of_tenant(quota, added));
        assert_eq!(said, [format!("handlers.toml:{expected}")], "{quota} {added}");
    }
    // Beside the other thing that is wrong with it.
    let said =
        problems(&of_tenant("concurrency = 4", "limits.concurrency = 8\nordering = \"key\""));
    let expected = "handlers.toml:8:22: `concurrency` is 8, more than the `concurrency` of its tenant `acme`, 4 (line 2): lower the one or raise the other";
    assert!(said.iter().any(|line| line == expected), "{said:?}");
}

#[test]
fn what_a_handler_leaves_out_is_lowered_to_what_its_tenant_has() {
    let lowered = config(&of_tenant("memory = \"64MiB\"\nstate = \"100KiB\"", ""));
    let limits = &lowered.handlers[0].limits;
    let defaults = Limits::default();
    assert_eq!(limits.memory_bytes, 64 << 20);
    assert_eq!((limits.state_value_bytes, limits.state_total_bytes), (100 << 10, 100 << 10));
    assert_eq!(limits.timeout, defaults.timeout);
    // Never raised, and one's own stays.
    let kept = config(&of_tenant("memory = \"1GiB\"", "limits.state_value = \"1KiB\""));
    assert_eq!(kept.handlers[0].limits.memory_bytes, defaults.memory_bytes);
    assert_eq!(kept.handlers[0].limits.state_value_bytes, 1 << 10);
}

#[test]
fn a_tenant_that_is_not_in_the_table_is_refused_where_there_is_a_table() {
    let handler = with("tenant = \"acme\"");
    assert_eq!(config(&handler).handlers[0].tenant.as_str(), "acme");
    for (table, expected) in [
        ("[tenants.acne]", "there is no table [tenants.acme]: did you mean `acne`?"),
        ("[tenants.other]", "there is no table [tenants.acme]: add a table [tenants.acme]"),
        ("[tenants]", "there is no table [tenants.acme]: add a table [tenants.acme]"),
    ] {
        let said = problems(&format!("{table}\n{handler}"));
        assert_eq!(said, [format!("handlers.toml:5:10: {expected}")]);
    }
    // What belongs to nobody needs no table.
    assert_eq!(config(&format!("[tenants.acme]\n{}", with(""))).tenants.len(), 1);
    for (table, expected) in [
        (
            "tenants = 5",
            "1:11: `tenants` is an integer, not a table of tenants: write a table [tenants.NAME] for each",
        ),
        ("tenants.acme = 5", "1:16: `acme` is an integer: write a table [tenants.acme]"),
        (
            "[tenants.\"a b\"]",
            "1:10: `a b` is no name for a tenant: use 1 to 128 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit",
        ),
        ("tenants.acme.cpu = 0", "1:20: `cpu` is `0`: it must be from 0.001 to 1000"),
        ("tenants.acme.concurrency = 0", "1:28: `concurrency` is `0`: it must be from 1 to 1000"),
        (
            "tenants.acme.timeout = \"1s\"",
            "1:14: unknown key `timeout` in [tenants.acme]; it belongs in [handlers.NAME.limits]",
        ),
    ] {
        let said = problems(&format!("{table}\n{}", with("")));
        assert_eq!(said, [format!("handlers.toml:{expected}")]);
    }
}

fn sqlite(path: PathBuf) -> Databases {
    Databases { database: DatabaseUrl::Sqlite(path), lock_database: None }
}

#[test]
fn a_database_is_found_while_handlers_are_broken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("handlers.toml");
    std::fs::write(&path, "database = \"sqlite:x.db\"\n[handlers.a]\ntypo = 1\n").unwrap();
    let none = Overrides::default();
    assert_eq!(Config::load_databases(&path, &none), Ok(sqlite(directory.path().join("x.db"))));
    assert!(Config::load(&path, &none).is_err());

    let missing = directory.path().join("missing.toml");
    let named = Overrides { database: Some("sqlite:y.db".into()), ..Overrides::default() };
    assert_eq!(Config::load_databases(&missing, &named), Ok(sqlite("y.db".into())));
    assert_eq!(
        Config::load_databases(&missing, &none).unwrap_err().to_string(),
        format!("{}: there is no such file: name another with `--config FILE`", missing.display())
    );
}

#[test]
fn a_file_that_is_no_text_is_refused_with_the_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("handlers.toml");
    std::fs::write(&path, b"grace = \"5s\"\nx = \"\xff\"\n").unwrap();
    assert_eq!(
        Config::load(&path, &Overrides::default()).unwrap_err().to_string(),
        format!("{}:2:6: not UTF-8 from here on, which TOML must be", path.display())
    );
    let error = Config::load(directory.path(), &Overrides::default()).unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

#[test]
fn a_limit_is_called_the_same_here_and_in_the_failures_that_it_causes() {
    let named: BTreeSet<&str> =
        names::ALL.iter().map(|name| name.strip_prefix("limits.").unwrap()).collect();
    // No attempt fails for this one: it only says how many run at once.
    let keys = keys::LIMITS.keys.iter().copied().filter(|key| *key != "concurrency");
    assert_eq!(keys.collect::<BTreeSet<_>>(), named);
}

/// The rows of the documentation's tables: a table of handlers.toml and a key.
fn documented() -> Vec<(String, String)> {
    let mut place = String::new();
    let mut keys = Vec::new();
    for line in DOCS.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            place =
                heading.split('`').nth(1).unwrap_or_default().trim_matches(['[', ']']).to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            keys.push((place.clone(), row.split('`').next().unwrap_or_default().to_owned()));
        }
    }
    keys.sort();
    keys
}

#[test]
fn the_documentation_knows_every_key_and_no_other() {
    let mut known: Vec<(String, String)> = keys::PLACES
        .iter()
        .flat_map(|place| place.keys.iter().map(|key| (place.name.to_owned(), (*key).to_owned())))
        .collect();
    known.sort();
    assert_eq!(documented(), known);
}

/// The documentation's code blocks in TOML.
fn examples() -> Vec<&'static str> {
    DOCS.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn what_may_be_emitted_is_everything_nothing_or_what_is_listed() {
    let emit = |text: &str| config(&with(text)).handlers[0].grants.emit.clone();
    assert_eq!(emit(""), EmitPolicy::Any);
    assert_eq!(emit("allow.emit = []"), EmitPolicy::Nothing);
    let listed = emit("allow.emit = [\"a\", \"b.*\"]");
    assert!(listed.allows("a") && listed.allows("b.c") && !listed.allows("ab"));
    let errors = parse(&with("allow.emit = [\"a*b\"]")).unwrap_err();
    assert!(errors.to_string().contains("`a*b` is no event type"), "{errors}");
}

#[test]
fn the_documentations_examples_are_right() {
    let examples = examples();
    assert!(examples.len() >= 2);
    // The files that they name.
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("ca.pem"), "-----BEGIN CERTIFICATE-----").unwrap();
    std::fs::write(directory.path().join("host.pem"), "-----BEGIN CERTIFICATE-----").unwrap();
    std::fs::write(directory.path().join("host.key"), "-----BEGIN PRIVATE KEY-----").unwrap();
    std::fs::write(directory.path().join("github-old.secret"), "hunter1-hunter1\n").unwrap();
    let path = directory.path().join("handlers.toml");
    for example in &examples {
        let result = Config::parse(example, &path, &Overrides::default(), &environment);
        result.unwrap_or_else(|e| panic!("{example}\nwas refused:\n{e}"));
    }
    // The last one writes out every default.
    let defaults = config(examples[examples.len() - 1]);
    let mut bare = config(&with(""));
    bare.handlers[0].subscription = defaults.handlers[0].subscription.clone();
    assert_eq!(defaults, bare);
    for place in keys::PLACES {
        for key in place.keys {
            let later =
                ["lock_database", "tenant", "tenants", "sources", "schedules", "digest", "build"];
            let later = later.contains(key);
            // A tenant is bound by nothing but what its table says, and nothing is built,
            // taken from a sender or published by the clock without its table.
            let tables =
                [keys::TENANT.name, keys::BUILD.name, keys::SOURCE.name, keys::SCHEDULE.name];
            let unbound = tables.contains(&place.name);
            let shown = examples[examples.len() - 1].contains(key);
            assert!(shown || later || unbound, "{key} is not among the defaults");
        }
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "(\\PC|\n){0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_setting_makes_the_parser_panic(
        key in proptest::sample::select(
            keys::PLACES.iter()
                .flat_map(|p| p.keys.iter().map(|key| match p.name {
                    "" => (*key).to_owned(),
                    place => format!("{}.{key}", place.replace("NAME", "triage")),
                }))
                .filter(|key| !["handlers", "handlers.triage.component", "handlers.triage.subscribe"].contains(&key.as_str()))
                .collect::<Vec<_>>()
        ),
        value in proptest::sample::select(vec![
            "\"\"", "\"x\"", "\"${TOKEN}\"", "\"${\"", "\"99999999999999999999999h\"", "\"1e400MiB\"",
            "\"٣s\"", "0", "-1", "0xff", "0b1", "9223372036854775807", "99999999999999999999", "1e400",
            "nan", "-inf", "true", "1979-05-27", "07:32:00", "1979-05-27T07:32:00-08:00",
            "9999-12-31T23:59:59Z", "[]", "[[]]", "[\"\"]", "{}", "{ a = {} }", "{ \"\" = \"\" }",
        ]),
    ) {
        let text = format!("{key} = {value}\n{}", with(""));
        if let Err(errors) = parse(&text) {
            for problem in &errors.problems {
                prop_assert!(problem.place.is_some_and(|(line, column)| line >= 1 && column >= 1));
            }
        }
    }

    #[test]
    fn half_a_file_never_makes_the_parser_panic(end in 0..1500_usize, junk in "\\PC{0,5}") {
        let whole = examples().concat();
        let mut end = end.min(whole.len());
        while !whole.is_char_boundary(end) {
            end -= 1;
        }
        let _ = parse(&format!("{}{junk}", &whole[..end]));
    }
}
