//! How the server goes about what is asked often: by an index, whatever it knew
//! of the log when it made its plan.

use sqlx::PgConnection;

use super::{PostgresDatabase, group, led, publish, run, value};
use crate::deferred::{DEFER, DUE};
use crate::lag::BEGINNINGS;
use crate::log::{FETCH, FETCH_OF_PARTITION};
use crate::overtaking::{GAPS, LATE};
use crate::redeliveries::EVENTS;
use event_host_core::event::{Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{Fetch, Subscription};

/// As many rows as are read before it is plain that a statement reads them all.
const MANY: i64 = 200_000;

async fn fill(owner: &mut PgConnection) {
    run(
        owner,
        format!(
            "ALTER TABLE event_host.events_0 SET (autovacuum_enabled = off);
             INSERT INTO event_host.events (type)
             SELECT CASE WHEN i % 50000 = 0 THEN 'rare' ELSE 'common' END
             FROM generate_series(1, {MANY}) i"
        ),
    )
    .await;
}

/// Prepares statements whose plans know nothing of their arguments, and read by an index if
/// they can.
async fn prepare_without_scans(owner: &mut PgConnection, analyzed: bool, statements: &str) {
    if analyzed {
        run(owner, "ANALYZE event_host.events").await;
    }
    let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off;
                    SET plan_cache_mode = force_generic_plan";
    run(owner, format!("{settings}; {statements}")).await;
}

async fn explained(owner: &mut PgConnection, explain: String) -> String {
    let plan: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(explain)).fetch_all(owner).await.unwrap();
    plan.join("\n")
}

/// How many rows of the log the server has read in whole-table scans.
async fn rows_read_without_an_index(owner: &mut PgConnection) -> i64 {
    run(owner, "SELECT pg_stat_clear_snapshot()").await;
    value(
        owner,
        "SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'events%'",
    )
    .await
}

#[tokio::test]
async fn a_plan_that_was_kept_from_when_the_log_was_short_does_not_read_the_whole_of_it() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    let mut owner = database.raw().await;
    publish(&store, "common").await;
    run(&mut owner, "ANALYZE event_host.events").await;
    let (name, tenant) = (group("g"), Tenant::none());
    let rare = Subscription::new(["rare"]).unwrap();
    let fetch = |after: i64, up_to: i64| {
        store.fetch(Fetch {
            partition: None,
            group: &name,
            tenant: &tenant,
            subscription: &rare,
            after: Position(after),
            up_to: Position(up_to),
            max_events: 1_000,
            max_bytes: usize::MAX,
        })
    };
    // The server keeps a plan from the sixth time on.
    for _ in 0..8 {
        assert_eq!(fetch(0, 1).await.unwrap().events, []);
    }
    fill(&mut owner).await;
    let before = rows_read_without_an_index(&mut owner).await;
    let mut after = 0;
    let mut found = 0;
    let mut fetches = 0;
    while after <= MANY {
        let fetched = fetch(after, MANY + 1).await.unwrap();
        after = fetched.scanned_to.0;
        found += fetched.events.len();
        fetches += 1;
    }
    assert_eq!((found, fetches), (4, 5));
    // Statistics are sent when a session ends, or a little later.
    drop(store);
    super::until("the sessions end", async || {
        value::<i64>(
            &mut owner,
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'event-host'",
        )
        .await
            == 0
    })
    .await;
    assert_eq!(rows_read_without_an_index(&mut owner).await, before);
}

#[tokio::test]
async fn a_fetch_reads_in_the_order_of_the_log_and_stops_at_its_limit() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    fill(&mut owner).await;
    for analyzed in [false, true] {
        if analyzed {
            run(&mut owner, "ANALYZE event_host.events").await;
        }
        let of_all = ("all", FETCH, "", "");
        let of_partition = ("partition", FETCH_OF_PARTITION, ", bigint, bigint", ", 0, 1");
        for (mode, (of, fetch, types, values)) in ["force_generic_plan", "force_custom_plan"]
            .into_iter()
            .flat_map(|mode| [(mode, of_all), (mode, of_partition)])
        {
            let name = format!("{mode}_{of}_{analyzed}");
            run(
                &mut owner,
                format!(
                    "SET enable_seqscan = off; SET enable_bitmapscan = off;
                     SET plan_cache_mode = {mode};
                     PREPARE {name} (text, text, text, text[], text[], bigint, bigint, bigint,
                                     bigint{types})
                     AS {fetch}"
                ),
            )
            .await;
            let explain = format!(
                "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)
                 EXECUTE {name} ('g', '', '%', '{{}}', '{{}}', 1000, 51000, 100, 1000000{values})"
            );
            let plan = explained(&mut owner, explain).await;
            // In every other partition it does not even look.
            assert_eq!(plan.matches("Scan").count(), 1, "{name}: {plan}");
            assert!(!plan.contains("Sort Method"), "{name}: {plan}");
            assert!(plan.contains("Index Scan using events_0_pkey on events_0"), "{name}: {plan}");
            let read = plan.lines().find(|line| line.contains("Index Scan")).unwrap();
            assert!(read.contains("(actual rows=100"), "{name}: {plan}");
        }
    }
}

#[tokio::test]
async fn events_at_their_positions_are_looked_up_and_not_searched_for() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    fill(&mut owner).await;
    for analyzed in [false, true] {
        let prepare = format!("PREPARE at_{analyzed} (text, bigint[], text) AS {EVENTS}");
        prepare_without_scans(&mut owner, analyzed, &prepare).await;
        let explain = format!(
            "EXPLAIN (COSTS OFF) EXECUTE at_{analyzed} ('g', '{{7, 100000, 199999}}', 'g')"
        );
        let plan = explained(&mut owner, explain).await;
        // In each partition by its index: an array says nothing of which it is in.
        for partition in ["events_0", "events_1", "events_elsewhere"] {
            assert!(plan.contains(&format!("Index Scan using {partition}_pkey")), "{plan}");
        }
        assert!(!plan.contains("Seq Scan"), "{plan}");
        assert_eq!(plan.matches("Index Cond: (\"position\" = ANY ($2))").count(), 3, "{plan}");
    }
}

#[tokio::test]
async fn what_is_open_is_looked_for_in_its_ranges_alone() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    fill(&mut owner).await;
    for analyzed in [false, true] {
        let prepare = format!(
            "PREPARE gaps_{analyzed} (bigint, bigint, bigint) AS {GAPS};
             PREPARE late_{analyzed} (text, text, text, text[], text[], bigint[], bigint[], bigint, bigint, bigint)
             AS {LATE}"
        );
        prepare_without_scans(&mut owner, analyzed, &prepare).await;
        for (execute, rows) in [
            (format!("gaps_{analyzed} (150000, 150100, 10)"), 100),
            (
                format!(
                    "late_{analyzed} ('g', '', '%', '{{}}', '{{}}', '{{7, 150000}}', '{{9, 199999}}', 50, NULL, NULL)"
                ),
                3 + 50,
            ),
        ] {
            let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE {execute}");
            let plan = explained(&mut owner, explain).await;
            assert!(!plan.contains("Seq Scan"), "{plan}");
            let read: u32 = plan
                .lines()
                .filter(|line| line.contains("using events_0_pkey"))
                .map(|line| {
                    // Of one loop, rounded.
                    let number = |after: &str| -> f64 {
                        let rest = line.split_once(after).unwrap().1;
                        let end = rest.find([' ', ')']).unwrap();
                        rest[..end].parse().unwrap()
                    };
                    (number("rows=") * number("loops=")).round() as u32
                })
                .sum();
            assert!(read.abs_diff(rows) <= 2, "{read} rows: {plan}");
        }
    }
}

#[tokio::test]
async fn what_is_due_is_read_and_nothing_of_what_waits() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    led(&database.store(), "g").await;
    fill(&mut owner).await;
    // One a second, of which the first ten are due.
    run(
        &mut owner,
        format!(
            "ALTER TABLE event_host.deferred SET (autovacuum_enabled = off);
             INSERT INTO event_host.deferred (group_name, position, due_at, time, type, id, source)
             SELECT 'g', i, to_timestamp(i), now(), 't', i::text, '/t'
             FROM generate_series(1, {MANY}) i"
        ),
    )
    .await;
    for analyzed in [false, true] {
        if analyzed {
            run(&mut owner, "ANALYZE event_host.deferred; ANALYZE event_host.events").await;
        }
        let prepare = format!(
            "SET enable_seqscan = off; SET enable_bitmapscan = off;
             SET plan_cache_mode = force_generic_plan;
             PREPARE due_{analyzed} (text, timestamptz, bigint, timestamptz, bigint, bigint)
             AS {DUE};
             PREPARE defer_{analyzed} (text, bigint[], timestamptz[], boolean[]) AS {DEFER}"
        );
        prepare_without_scans(&mut owner, analyzed, &prepare).await;
        for (execute, most) in [
            (format!("due_{analyzed} ('g', 'epoch', 0, to_timestamp(10), 200000, 1000)"), 11),
            (
                format!("defer_{analyzed} ('g', '{{7, 150000}}', ARRAY[now(), now()], '{{f, f}}')"),
                8,
            ),
        ] {
            let explain = format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE {execute}");
            let plan = explained(&mut owner, explain).await;
            assert!(!plan.contains("Seq Scan"), "{plan}");
            let read = plan.lines().filter(|line| line.contains("Index")).filter_map(|line| {
                let rows = line.split_once("rows=")?.1;
                rows[..rows.find([' ', ')'])?].parse::<f64>().ok()
            });
            let read: f64 = read.sum();
            assert!(read <= f64::from(most), "{read} rows: {plan}");
        }
    }
}

#[tokio::test]
async fn the_first_events_of_groups_are_looked_up_and_nothing_behind_them_is_read() {
    let database = PostgresDatabase::new().await;
    let mut owner = database.raw().await;
    fill(&mut owner).await;
    for analyzed in [false, true] {
        let prepare = format!("PREPARE beginnings_{analyzed} (bigint[], boolean) AS {BEGINNINGS}");
        prepare_without_scans(&mut owner, analyzed, &prepare).await;
        let explain = format!(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)
             EXECUTE beginnings_{analyzed} ('{{0, 7, 100000, {MANY}}}', true)"
        );
        let plan = explained(&mut owner, explain).await;
        assert!(!plan.contains("Seq Scan") && !plan.contains("Sort Method"), "{plan}");
        let reads: Vec<&str> = plan.lines().filter(|line| line.contains("events_0_pkey")).collect();
        assert_eq!(reads.len(), 1, "{plan}");
        // Of the four, one has nothing before it.
        assert!(reads[0].contains("loops=4"), "{plan}");
        let rows = reads[0].split_once("rows=").unwrap().1;
        let rows: f64 = rows[..rows.find(' ').unwrap()].parse().unwrap();
        assert!(rows <= 1.0, "{plan}");
    }
}
