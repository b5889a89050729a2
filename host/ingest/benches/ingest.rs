//! What group commit is worth: events a second of 64 senders, who each send one event after
//! another, against one commit a request, and what the ledger costs.
//!
//! Three ways take turns in short rounds, on each store: `alone` commits each request by
//! itself, as a plain publish does; `grouped` is ingest as it is; `unknown` is the same
//! without the ledger (`dedup = "0s"`). The figures are medians, and the ratios medians of
//! the rounds' ratios. Then the latency of a lone sender beside that of its commit.
//!
//! `cargo bench -p event-host-ingest --bench ingest`; with `--profile dev` it takes what the tests
//! have built, and the figures are a part of those of a release. Everything shares the machine, so where processors are the limit the figures are
//! lower than those of servers of their own.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use event_host_core::event::{Event, Tenant};
use event_host_ingest::{Intake, Settings, Submission};
use event_host_metrics::Metrics;
use event_host_store::traits::*;
use event_host_store_postgres::PostgresStore;
use event_host_store_sqlite::{OpenOptions, SqliteStore};
use tokio::task::JoinSet;

const SENDERS: u64 = 64;
const DATA: usize = 1_024;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Alone,
    Grouped,
    Unknown,
}

const WAYS: [Way; 3] = [Way::Alone, Way::Grouped, Way::Unknown];

static NEXT: AtomicU64 = AtomicU64::new(0);

fn event() -> Event {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    Event {
        data: Some(vec![b'x'; DATA]),
        ..Event::new(id.to_string(), "/bench", "bench.event", jiff::Timestamp::now())
    }
}

async fn send(store: &Arc<dyn Store>, intake: &Intake, way: Way) {
    let events = vec![event()];
    if way == Way::Alone {
        store.publish(&Tenant::none(), &events).await.unwrap();
        return;
    }
    let settings = intake.settings();
    let submission = Submission {
        tenant: Tenant::none(),
        events,
        window: settings.dedup.filter(|_| way == Way::Grouped),
        also_known_as: Vec::new(),
        max_event: None,
        rates: Vec::new(),
        room: intake.room(DATA).unwrap(),
    };
    intake.publish(submission).await.unwrap();
}

/// Events a second, and how long each took, in order.
async fn round(
    store: &Arc<dyn Store>,
    intake: &Intake,
    (way, senders): (Way, u64),
    length: Duration,
) -> (f64, Vec<Duration>) {
    let began = Instant::now();
    let mut sending = JoinSet::new();
    for _ in 0..senders {
        let (store, intake) = (store.clone(), intake.clone());
        sending.spawn(async move {
            let mut times = Vec::new();
            while began.elapsed() < length {
                let begun = Instant::now();
                send(&store, &intake, way).await;
                times.push(begun.elapsed());
            }
            times
        });
    }
    let mut times = sending.join_all().await.concat();
    times.sort_unstable();
    (times.len() as f64 / began.elapsed().as_secs_f64(), times)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of[of.len() / 2]
}

fn at(times: &[Duration], part: f64) -> f64 {
    times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3
}

async fn measure(name: &str, store: Arc<dyn Store>, rounds: usize, length: Duration) {
    let metrics = Metrics::new(&event_host_metrics::Settings::default());
    let intake = Intake::start(store.clone(), None, Settings::default(), metrics.ingest.clone());
    let mut rates: [Vec<f64>; 3] = Default::default();
    for number in 0..=rounds {
        for turn in 0..WAYS.len() {
            let way = (number + turn) % WAYS.len();
            let (rate, _) = round(&store, &intake, (WAYS[way], SENDERS), length).await;
            // The first round warms up.
            if number > 0 {
                rates[way].push(rate);
            }
        }
    }
    let ratio = |of: usize, to: usize| {
        median(rates[of].iter().zip(&rates[to]).map(|(of, to)| of / to).collect())
    };
    println!(
        "{name:<10} alone {:>8.0}/s   grouped {:>8.0}/s ({:.1} times)   without the ledger {:>8.0}/s (the ledger leaves {:.2})",
        median(rates[0].clone()),
        median(rates[1].clone()),
        ratio(1, 0),
        median(rates[2].clone()),
        ratio(1, 2),
    );
    let (mut lone_commit, mut lone) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        lone_commit.extend(round(&store, &intake, (Way::Alone, 1), length / 4).await.1);
        lone.extend(round(&store, &intake, (Way::Grouped, 1), length / 4).await.1);
    }
    // On a machine that does other work too, the median jumps from a quick flush to a slow one.
    let mean = |times: &[Duration]| {
        times.iter().sum::<Duration>().as_secs_f64() * 1e3 / times.len() as f64
    };
    let (_, full) = round(&store, &intake, (Way::Grouped, SENDERS), length).await;
    println!(
        "{name:<10} a lone sender waits {:.2} ms (mean), its commit alone {:.2} ms; with {SENDERS}: {:.2} ms (p50), {:.2} ms (p99)",
        mean(&lone),
        mean(&lone_commit),
        at(&full, 0.5),
        at(&full, 0.99),
    );
    intake.stop().await;
}

fn main() {
    // `cargo test` builds benches and calls them too; there one short round says that it runs.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let (rounds, length) =
        if is_bench { (5, Duration::from_secs(2)) } else { (1, Duration::from_millis(100)) };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!("ingest: {SENDERS} senders, one event of {DATA} bytes a request, medians of {rounds} rounds of {length:?}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bench.db");
        let sqlite = SqliteStore::open(path.to_str().unwrap(), OpenOptions::to_migrate());
        let sqlite = sqlite.await.unwrap();
        sqlite.migrate().await.unwrap();
        measure("SQLite", Arc::new(sqlite), rounds, length).await;
        // As servers are set up: a commit is on the disk.
        let settings = ["fsync", "synchronous_commit", "full_page_writes"].map(|name| (name, "on"));
        match test_postgres::Server::start(&settings) {
            Ok(server) => {
                let url = server.url("postgres");
                let postgres = PostgresStore::new(url.as_str().into(), None).unwrap();
                postgres.migrate().await.unwrap();
                measure("PostgreSQL", Arc::new(postgres), rounds, length).await;
            }
            Err(why) => println!("PostgreSQL is left out: {why:#}"),
        }
    });
}
