//! What is answered to a scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use event_host_core::event::{GroupName, Tenant};
use event_host_core::handler::Usage;

fn group(name: &str) -> GroupName {
    name.parse().unwrap()
}

fn sample(groups: impl Iterator<Item = GroupSample>) -> Sample {
    let log = LogSample { bytes: Some(8_192), hosts: Some(1), ..LogSample::default() };
    Sample { log, groups: groups.collect() }
}

fn group_sample(name: &str) -> GroupSample {
    GroupSample {
        name: name.to_owned(),
        tenant: "acme".to_owned(),
        state: "running",
        partitions: 1,
        leaders: 1,
        head: Some((2, 1.5)),
        failures: vec![("trap".to_owned(), 2), ("of-a-newer-host".to_owned(), 1)],
        pinned_bytes: 1,
        ..GroupSample::default()
    }
}

/// Counts something everywhere.
fn count_everything(metrics: &Metrics, groups: usize) {
    let second = Duration::from_secs(1);
    metrics.host.built("0.1.0", "sqlite");
    metrics.host.configured("abc");
    for gauge in [
        &metrics.host.reload_success,
        &metrics.host.reload_timestamp,
        &metrics.host.overview_here,
        &metrics.ingest.queue_events,
        &metrics.ingest.queue_bytes,
        &metrics.ingest.dedup_rows,
        &metrics.ingest.dedup_window,
    ] {
        gauge.set(1.0);
    }
    metrics.ingest.commit.observe(second);
    metrics.ingest.commit_events.observe_len(3);
    metrics.store.called(StoreOperation::Fetch, second, false);
    metrics.http.request("GET", Some("/metrics"), 200).observe(second);
    metrics.http.connections("local").add(1);
    metrics.http.auth_failures("unknown").inc();
    let source = metrics.ingest.source("events");
    source.answered(IngestMode::Binary, 202);
    source.committed(1, 0);
    source.bytes().add(10);
    source.duration().observe(second);
    source.refused(Refused::Busy, 1);
    metrics.sandbox.loaded(Compiled::Compiled, Some(second));
    let acme: Tenant = "acme".parse().unwrap();
    let permits = metrics.deliveries.permits();
    permits.set(&acme, 3, 2, 1);
    permits.tenant(&acme).waited(second);
    permits.tenant(&acme).took_cpu(second);
    let names: Vec<String> = (0..groups).map(|number| format!("g{number:05}")).collect();
    for name in &names {
        let counted = metrics.group(&group(name), &acme);
        counted.attempted(Attempted::Success, 1);
        let usage = Usage { duration: second, memory_bytes: 65_536, ..Usage::default() };
        counted.ran(&usage);
        counted.event_age.observe(second);
        counted.settlement_duration.observe(second);
        counted.settlement_events.observe_len(1);
        counted.fetch_duration.observe(second);
        counted.fetched_events.inc();
        let handler = metrics.sandbox.handler(name, "acme");
        handler.requested(GuestHttp::answered(200), Some(second));
        drop(handler.instance(1_024));
    }
    let runs = names.iter().map(|name| (name.as_str(), "sha256:0", "1".to_owned()));
    metrics.deliveries.components(runs);
    metrics.database.show(sample(names.iter().map(|name| group_sample(name))), second);
}

/// The series of an answer: the name and labels of each line, without buckets.
fn series(answer: &str) -> BTreeSet<String> {
    let lines = answer.lines().filter(|line| !line.starts_with('#') && !line.contains("le=\""));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[test]
fn an_answer_has_every_metric_of_the_table_with_its_labels_and_no_other() {
    let metrics = Metrics::default();
    count_everything(&metrics, 1);
    for format in [Format::Text, Format::OpenMetrics] {
        let answer = metrics.encode(format);
        let mut left: BTreeMap<String, &Metric> =
            metrics.table().iter().map(|metric| (metric.full_name(), *metric)).collect();
        assert_eq!(left.len(), metrics.table().len(), "a name is there twice");
        let mut kind = "";
        let known = left.clone();
        for line in answer.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                kind = described.split(' ').nth(1).unwrap();
            }
            if line.starts_with('#') {
                continue;
            }
            let name = line.split(['{', ' ']).next().unwrap();
            let base = match kind {
                "histogram" => name.rsplit_once('_').unwrap().0,
                _ => name,
            };
            let metric = known.get(base).unwrap_or_else(|| panic!("{format:?}: {line}"));
            let labels = line.split_once('{').map(|(_, rest)| rest.rsplit_once('}').unwrap().0);
            let mut named: Vec<&str> = labels
                .into_iter()
                .flat_map(|labels| labels.split(','))
                .filter_map(|label| label.split_once('=').map(|(name, _)| name))
                .filter(|name| *name != "le")
                .collect();
            named.dedup();
            assert_eq!(named, metric.labels, "{format:?}: {line}");
            left.remove(base);
        }
        assert_eq!(left.keys().collect::<Vec<_>>(), [""; 0], "{format:?}: nobody counts them");
    }
    let table = metrics.table();
    assert!(table.iter().all(|metric| !metric.help.ends_with('.') && !metric.help.is_empty()));
}

#[test]
fn the_number_of_series_is_bounded_whatever_groups_there_are() {
    let few = Metrics::new(&Settings { max_groups: 10, ..Settings::default() });
    count_everything(&few, 10);
    let bound = series(&few.encode(Format::Text)).len();
    let many = Metrics::new(&Settings { max_groups: 10, ..Settings::default() });
    count_everything(&many, 5_000);
    let found = series(&many.encode(Format::Text));
    let of_groups = |name: &str| found.iter().filter(|one| one.contains(name)).count();
    assert_eq!(of_groups("group=\"g00010\""), 0, "the eleventh has none of its own");
    // The others have as many together as one group has.
    let of_others = of_groups("group=\"_other\"");
    assert!(of_others > 20, "{of_others}");
    assert!(found.len() <= bound + of_others, "{} against {bound} + {of_others}", found.len());
    let answer = many.encode(Format::Text);
    assert!(
        answer.contains("event_host_attempts_total{group=\"_other\",outcome=\"success\"} 4990\n"),
        "they are counted together"
    );
    // Listed methods and routes alone are labels.
    for number in 0..5_000 {
        many.http.request(&format!("M{number}"), None, 200).observe(Duration::ZERO);
    }
    let found = series(&many.encode(Format::Text)).len();
    assert!(found <= bound + of_others + 2, "{found}");
}

#[test]
fn a_look_at_the_database_is_shown_until_it_is_old_and_then_only_its_age() {
    let interval = Duration::from_millis(40);
    let metrics = Metrics::new(&Settings { interval, ..Settings::default() });
    let shows = |name: &str| metrics.encode(Format::Text).contains(&format!("\n{name}"));
    assert!(!shows("event_host_group_lag_seconds"), "nobody has looked");
    metrics.database.show(sample([group_sample("g")].into_iter()), Duration::ZERO);
    assert!(shows("event_host_group_lag_seconds{group=\"g\",tenant=\"acme\"} 0"));
    assert!(shows("event_host_group_failures_total{group=\"g\",kind=\"other\"} 1"));
    assert!(shows("event_host_group_state{group=\"g\",state=\"running\"} 1"));
    let began = std::time::Instant::now();
    while shows("event_host_group_lag_seconds{") {
        assert!(began.elapsed() < Duration::from_secs(10), "it is still shown");
        std::thread::yield_now();
    }
    assert!(began.elapsed() >= 2 * interval);
    assert!(shows("event_host_overview_age_seconds "), "its age grows on");
    metrics.database.leave_out();
    assert!(!shows("event_host_overview_age_seconds "), "another host looks");
}

#[test]
fn a_histogram_counts_what_is_at_its_bound_within_it() {
    let metrics = Metrics::default();
    let took = |micros| metrics.ingest.commit.observe(Duration::from_micros(micros));
    for micros in [1, 100, 101, 60_000_000, 60_000_001] {
        took(micros);
    }
    let answer = metrics.encode(Format::OpenMetrics);
    let has = |line: &str| assert!(answer.contains(line), "{line}: {answer}");
    has("event_host_ingest_commit_seconds_bucket{le=\"0.0001\"} 2\n");
    has("event_host_ingest_commit_seconds_bucket{le=\"0.001\"} 3\n");
    has("event_host_ingest_commit_seconds_bucket{le=\"60.0\"} 4\n");
    has("event_host_ingest_commit_seconds_bucket{le=\"+Inf\"} 5\n");
    has("event_host_ingest_commit_seconds_count 5\n");
    assert!(answer.ends_with("# EOF\n"));
    assert!(answer.contains("# UNIT event_host_ingest_commit_seconds seconds\n"));
}

#[test]
fn the_format_is_what_the_client_prefers() {
    let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                      application/openmetrics-text;version=0.0.1;q=0.5,\
                      text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for (accept, format) in [
        (prometheus, Format::OpenMetrics),
        ("Application/OpenMetrics-Text; Version=1.0.0", Format::OpenMetrics),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", Format::Text),
        ("application/openmetrics-text;q=0", Format::Text),
        ("application/openmetrics-text;version=2.0.0", Format::Text),
        ("text/plain", Format::Text),
        ("*/*", Format::Text),
        ("", Format::Text),
    ] {
        assert_eq!(Format::accepted(accept), format, "{accept}");
    }
}

#[test]
fn what_is_counted_for_as_long_as_it_lives_ends_when_it_is_dropped() {
    let metrics = Metrics::default();
    let counted = metrics.group(&group("g").partition(3), &Tenant::none());
    let (one, other) = (counted.leads(), counted.leads());
    let shows = |line: &str| assert!(metrics.encode(Format::Text).contains(line), "{line}");
    shows("event_host_leading{group=\"g\"} 2\n");
    one.lost();
    drop(other);
    shows("event_host_leading{group=\"g\"} 0\n");
    shows("event_host_leaderships_total{group=\"g\",event=\"lost\"} 1\n");
    shows("event_host_leaderships_total{group=\"g\",event=\"ended\"} 1\n");
    let handler = metrics.sandbox.handler("g", "");
    let instance = handler.instance(1_024);
    shows("event_host_sandbox_reserved_bytes 1024\n");
    drop(instance);
    shows("event_host_sandbox_reserved_bytes 0\n");
}

#[test]
fn a_tenant_whose_cpu_time_is_not_counted_has_no_figure_of_it() {
    let metrics = Metrics::default();
    let permits = metrics.deliveries.permits();
    let (acme, other): (Tenant, Tenant) = ("acme".parse().unwrap(), "other".parse().unwrap());
    permits.tenant(&other).waited(Duration::from_secs(1));
    let counted = permits.tenant(&acme);
    counted.took_cpu(Duration::from_secs(1));
    permits.tenant(&acme).took_cpu(Duration::from_secs(2));
    let answer = metrics.encode(Format::Text);
    let cpu =
        answer.lines().filter(|line| line.starts_with("event_host_handler_cpu_seconds_total"));
    let cpu: Vec<&str> = cpu.collect();
    assert_eq!(cpu, ["event_host_handler_cpu_seconds_total{tenant=\"acme\"} 3.0"]);
}

/// The table of the documents, as the registry has it.
fn documented_table() -> String {
    let metrics = Metrics::default();
    let rows = metrics.table().iter().map(|metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, scope) = (metric.full_name(), metric.kind.as_str(), metric.scope.as_str());
        format!("| `{name}` | {kind} | {} | {scope} | {} |\n", labels.join(", "), metric.help)
    });
    let head = "| name | type | labels | scope | meaning |\n| --- | --- | --- | --- | --- |\n";
    std::iter::once(head.to_owned()).chain(rows).collect()
}

#[test]
fn the_documents_have_the_table_of_the_registry() {
    const DOCS: &str = include_str!("../../../docs/metrics.md");
    let table = documented_table();
    let found = DOCS.split_once("## Every metric\n\n").unwrap().1;
    assert!(found == table, "docs/metrics.md is to end with:\n{table}");
}

/// The names of metrics in the expressions of a file.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| {
        let beginnings = ["event_host_", "process_", "http_server_"];
        beginnings.iter().any(|beginning| word.starts_with(beginning))
    });
    ours.collect()
}

#[test]
fn rules_and_dashboard_ask_for_metrics_that_there_are() {
    let rules = include_str!("../../../contrib/prometheus/rules.yml");
    let tests = include_str!("../../../contrib/prometheus/rules.test.yml");
    let dashboard = include_str!("../../../contrib/grafana/host.json");
    let metrics = Metrics::default();
    let mut known = BTreeSet::new();
    for metric in metrics.table() {
        let name = metric.full_name();
        match metric.kind {
            Kind::Histogram => {
                known.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
            }
            _ => drop(known.insert(name)),
        }
    }
    for (file, text) in [("rules", rules), ("tests", tests), ("dashboard", dashboard)] {
        let asked = named(text);
        assert!(asked.len() > 10, "{file}: {asked:?}");
        let unknown: Vec<_> = asked.iter().filter(|name| !known.contains(**name)).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}
