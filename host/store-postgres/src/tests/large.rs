//! Events that are large, links that are slow, and what nobody can read.

use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::{PostgresDatabase, PostgresStore, all_after, event, group, led, run, store_at};
use event_host_core::event::{Event, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{Fetch, Fetched, StoreError};

/// A way to the server on which answers take their time. When it goes, so does every
/// connection through it.
struct Slow {
    url: String,
    _serving: JoinSet<()>,
}

impl Slow {
    async fn to(url: &str, bytes_a_second: usize) -> Self {
        let options: PgConnectOptions = url.parse().unwrap();
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url.replace(&server, &listener.local_addr().unwrap().to_string());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                connections.spawn(serve(client, server, bytes_a_second));
            }
        });
        Self { url, _serving: serving }
    }
}

async fn serve(client: TcpStream, server: TcpStream, bytes_a_second: usize) {
    let (mut requests, mut to_client) = client.into_split();
    let (mut answers, mut to_server) = server.into_split();
    let asked = async {
        let _ = copy(&mut requests, &mut to_server).await;
    };
    let answered = async {
        let mut chunk = vec![0; bytes_a_second / 20];
        while let Ok(length @ 1..) = answers.read(&mut chunk).await {
            let takes = Duration::from_secs(1).mul_f64(length as f64 / bytes_a_second as f64);
            tokio::time::sleep(takes).await;
            if to_client.write_all(&chunk[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(asked, answered);
}

/// Lets anything into the log, as a log that is older than its rules.
async fn without_rules(database: &PostgresDatabase) {
    let mut owner = database.raw().await;
    run(&mut owner, "ALTER TABLE event_host.events DROP CONSTRAINT it_is_an_event").await;
}

async fn fetch(store: &PostgresStore, after: i64, up_to: i64) -> Result<Fetched, StoreError> {
    let fetch = all_after(&GROUP, Position(after), Position(up_to));
    store.fetch(Fetch { max_bytes: 16 << 20, ..fetch }).await
}

static GROUP: std::sync::LazyLock<event_host_core::event::GroupName> =
    std::sync::LazyLock::new(|| group("g"));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_brings_a_part_and_then_the_rest() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let data = Some(vec![7; 1 << 20]);
    let events: Vec<Event> = (0..40).map(|_| Event { data: data.clone(), ..event("a") }).collect();
    store.publish(&Tenant::none(), &events).await.unwrap();
    // What is asked for at once would take half a minute.
    let slow = Slow::to(database.database.url(), 600_000).await;
    let far = store_at(&slow.url);
    let began = Instant::now();
    let first = fetch(&far, 0, 40).await.unwrap();
    assert!((1..16).contains(&first.events.len()), "{}", first.events.len());
    assert_eq!(first.scanned_to, first.events.last().unwrap().position);
    assert!(first.events.iter().all(|event| event.event.data == data));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // And nothing of the rest is in the way of what is asked next.
    let began = Instant::now();
    far.cursor(&group("g")).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // Events that are parked are read in the same way.
    led(&store, "g").await;
    let positions: Vec<Position> = (1..=40).map(Position).collect();
    let found = far.fetch_at(&group("g"), &positions, 16 << 20).await.unwrap();
    assert!((1..16).contains(&found.events.len()), "{}", found.events.len());
    assert_eq!(found.looked_to, found.events.last().unwrap().position);
}

#[tokio::test]
async fn attributes_count_to_what_is_read_at_once() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    without_rules(&database).await;
    let mut owner = database.raw().await;
    // Nothing that could be made smaller.
    run(
        &mut owner,
        "INSERT INTO event_host.events (type, subject)
         SELECT 'a', (SELECT string_agg(md5(n::text || m::text), '') FROM generate_series(1, 65536) n)
         FROM generate_series(1, 20) m",
    )
    .await;
    let mut after = 0;
    let mut events = 0;
    while after < 20 {
        let fetched = fetch(&store, after, 20).await.unwrap();
        let bytes: usize = fetched.events.iter().map(|event| event.bytes()).sum();
        assert!(bytes <= (16 << 20) + (3 << 20), "{bytes}");
        events += fetched.events.len();
        after = fetched.scanned_to.0;
    }
    assert_eq!(events, 20);
    led(&store, "g").await;
    let positions: Vec<Position> = (1..=20).map(Position).collect();
    let found = store.fetch_at(&group("g"), &positions, 4 << 20).await.unwrap();
    assert_eq!((found.events.len(), found.looked_to), (2, Position(2)));
}

#[tokio::test]
async fn what_comes_before_an_event_that_nobody_can_read_is_read() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    without_rules(&database).await;
    led(&store, "g").await;
    let mut owner = database.raw().await;
    // As text its extensions have more than a gigabyte.
    run(
        &mut owner,
        "INSERT INTO event_host.events (type) SELECT 'a' FROM generate_series(1, 3);
         INSERT INTO event_host.events (type, id, subject, extensions)
         VALUES ('b', repeat('i', 5000), repeat('s', 5000), (SELECT jsonb_object_agg('k' || n, 1e131000) FROM generate_series(1, 8400) n));
         INSERT INTO event_host.events (type) VALUES ('c')",
    )
    .await;
    let before = fetch(&store, 0, 5).await.unwrap();
    assert_eq!((before.events.len(), before.scanned_to), (3, Position(3)));
    let next = || all_after(&GROUP, Position(3), Position(5));
    let refused = store.fetch_one(next()).await;
    assert!(matches!(&refused, Err(StoreError::Refused(_))), "{refused:?}");
    let sketch = store.sketch(next()).await.unwrap().unwrap();
    assert_eq!(sketch.event.position, Position(4));
    assert_eq!((sketch.event.event.event_type.as_str(), sketch.event.event.id.len()), ("b", 1_024));
    assert_eq!((&sketch.event.event.subject, &sketch.event.event.data), (&None, &None));
    assert!(sketch.bytes > 10_000, "{}", sketch.bytes);
    assert_eq!(fetch(&store, 4, 5).await.unwrap().events.len(), 1);
    let positions: Vec<Position> = (1..=5).map(Position).collect();
    let found = store.fetch_at(&group("g"), &positions, usize::MAX).await.unwrap();
    assert_eq!((found.events.len(), found.looked_to), (3, Position(3)));
    assert_eq!(store.sketch(all_after(&GROUP, Position(5), Position(5))).await.unwrap(), None);
}
