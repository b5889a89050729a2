//! What an event costs its producer: transactions a second of many producers
//! that each insert one event.
//!
//! Three ways beside each other: a plain INSERT into the log, the function
//! `event_host.publish`, and an INSERT into a bare table, which has an identity
//! and two columns and nothing else. Each producer has its own connection and
//! prepared statement, and commits each event durably. The ways take turns in
//! short rounds; the figures are medians, and the ratios medians of the rounds'
//! ratios.
//!
//! Producers and server share this machine, so where the processor is the limit
//! the figures are lower than those of a server of its own, and the ratios
//! nearer to 1.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod postgres;

use std::time::{Duration, Instant};

use postgres::{Database, median, percentile};
use sqlx::{Executor, PgConnection};
use tokio::task::JoinSet;

const PRODUCERS: usize = 16;

/// A way to publish: its name, and the statement, which takes the event's type
/// and its data, as text or as bytes.
struct Way {
    name: &'static str,
    sql: &'static str,
    takes_text: bool,
}

const WAYS: [Way; 3] = [
    Way {
        name: "bare table",
        sql: "INSERT INTO bare (type, data) VALUES ($1, $2)",
        takes_text: false,
    },
    Way {
        name: "INSERT",
        sql: "INSERT INTO event_host.events (type, data) VALUES ($1, $2)",
        takes_text: false,
    },
    Way {
        name: "publish()",
        sql: "SELECT event_host.publish($1, $2::text::jsonb)",
        takes_text: true,
    },
];

const BARE: &str = "CREATE TABLE bare (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text, data bytea)";

/// What the producers of one round did.
struct Round {
    /// Transactions a second, of all of them together.
    rate: f64,
    /// The median time of a transaction, in milliseconds.
    each: f64,
}

async fn round(
    producers: Vec<PgConnection>,
    way: &'static Way,
    length: Duration,
) -> (Vec<PgConnection>, Round) {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for producer in producers {
        tasks.spawn(produce(producer, way, began + length));
    }
    let mut producers = Vec::new();
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (producer, its_times) = done.unwrap();
        producers.push(producer);
        times.extend(its_times);
    }
    let took = began.elapsed();
    let rate = times.len() as f64 / took.as_secs_f64();
    times.sort_unstable();
    let each = percentile(&times, 0.5).as_secs_f64() * 1e3;
    (producers, Round { rate, each })
}

async fn produce(
    mut connection: PgConnection,
    way: &'static Way,
    until: Instant,
) -> (PgConnection, Vec<Duration>) {
    let data = String::from_utf8(postgres::event(0).data.unwrap()).unwrap();
    let mut times = Vec::new();
    let mut began = Instant::now();
    while began < until {
        let query = sqlx::query(way.sql).bind("bench.event");
        let query = if way.takes_text { query.bind(&data) } else { query.bind(data.as_bytes()) };
        query.execute(&mut connection).await.unwrap();
        let now = Instant::now();
        times.push(now - began);
        began = now;
    }
    (connection, times)
}

fn main() {
    let Some(effort) = postgres::called() else { return };
    let (rounds, length) = (effort.pick(2, 10), Duration::from_millis(effort.pick(200, 1_000)));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database = Database::create().await;
        let mut producers = Vec::new();
        for _ in 0..PRODUCERS {
            producers.push(database.connect().await);
        }
        producers[0].execute(BARE).await.unwrap();
        println!(
            "publish_postgres: {PRODUCERS} producers, one event of {} bytes a transaction, medians of {rounds} rounds of {length:?}",
            postgres::DATA
        );
        let mut figures: [Vec<Round>; 3] = Default::default();
        // The first round prepares the statements.
        for number in 0..=rounds {
            for turn in 0..WAYS.len() {
                let way = (number + turn) % WAYS.len();
                let (back, done) = round(producers, &WAYS[way], length).await;
                producers = back;
                if number > 0 {
                    figures[way].push(done);
                }
            }
        }
        print(&figures);
        drop(producers);
    });
}

fn print(figures: &[Vec<Round>; 3]) {
    println!(
        "{:<12} {:>15} {:>12} {:>17}",
        "", "transactions/s", "each p50 ms", "of the bare table"
    );
    let bare = &figures[0];
    for (way, rounds) in WAYS.iter().zip(figures) {
        let rates: Vec<f64> = rounds.iter().map(|round| round.rate).collect();
        let times: Vec<f64> = rounds.iter().map(|round| round.each).collect();
        let ratios: Vec<f64> =
            rounds.iter().zip(bare).map(|(round, bare)| round.rate / bare.rate).collect();
        println!(
            "{:<12} {:>15.0} {:>12.2} {:>17.2}",
            way.name,
            median(&rates),
            median(&times),
            median(&ratios)
        );
    }
}
