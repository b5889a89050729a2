//! Thousands of groups on a few hosts: what leading them costs, and that they are spread
//! evenly whoever starts, stops, dies or is frozen (promises 3, 10 and 12).

use std::time::{Duration, Instant};

use serde_json::json;
use test_postgres::Server;
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until};

/// One group of a name of its own each.
fn groups(count: usize) -> Settings {
    Settings::of((0..count).map(|n| Handler::new(&format!("group-{n:04}"), "tally", &["a"])))
}

/// How many groups each host leads, the fewest first, by hosts that hold their locks.
const LED: &str = "
    /* this test */ SELECT count(g.name) FROM hosts h
    JOIN pg_locks l ON l.pid = h.backend_pid AND l.locktype = 'advisory' AND l.granted
    LEFT JOIN consumer_groups g ON g.leader_key = h.lock_key
    GROUP BY h.id ORDER BY 1";

fn led(rig: &Rig) -> Vec<usize> {
    let counts = format!("SELECT c.count::text FROM ({LED}) c");
    rig.texts(&counts).iter().map(|count| count.parse().expect("a number")).collect()
}

/// Waits until so many hosts lead all groups, and no two differ by more than one.
fn wait_until_shared(rig: &Rig, hosts: usize, groups: usize) {
    let (began, mut before) = (Instant::now(), Vec::new());
    wait_until("the groups are shared evenly", PATIENCE, || {
        let led = led(rig);
        if led != before {
            println!("after {:?}: {led:?} of {groups}", began.elapsed());
            before.clone_from(&led);
        }
        led.len() == hosts
            && led.iter().sum::<usize>() == groups
            && led.iter().all(|led| (groups / hosts..=groups.div_ceil(hosts)).contains(led))
    });
    println!("{groups} groups are shared by {hosts} hosts after {:?}", began.elapsed());
}

/// Each statement that was sent and how often, but those of this test.
fn statements(client: &mut Client) -> Vec<(i64, String)> {
    let rows = client.texts(
        "SELECT calls || ' ' || regexp_replace(query, '\\s+', ' ', 'g') FROM public.pg_stat_statements
         WHERE query !~ 'pg_stat_statements|this test' ORDER BY calls DESC",
    );
    let parts = rows.iter().map(|row| row.split_once(' ').expect("a number and a statement"));
    parts.map(|(calls, query)| (calls.parse().expect("a number"), query.to_owned())).collect()
}

/// Those that are about leading groups: that make them, claim them, give them back, and find
/// who else is there.
fn of_leadership(statements: &[(i64, String)]) -> i64 {
    let words = ["leader_key", "host_groups", "control_version", "subscribe", "lock_key"];
    let counted = statements.iter().filter(|(_, query)| words.iter().any(|w| query.contains(w)));
    counted.map(|(calls, _)| calls).sum()
}

/// That nothing was sent for each group by itself.
fn none_for_each_group(groups: usize, statements: &[(i64, String)], when: &str) {
    for (calls, query) in statements {
        // The first is asked for as long as it takes, for all groups at once; the other by
        // each connection, and each look of this test has one of its own.
        let is_of_time = query.contains("look_at_the_end") || query == "SELECT pg_backend_pid()";
        let few = usize::try_from(*calls).expect("a number") < groups / 2;
        assert!(few || is_of_time, "{groups} groups, {when}: {calls} times {query}");
    }
}

/// What a host sends while it leads groups that have nothing to do, from one of its heartbeats
/// to the fifth after it.
fn idle(client: &mut Client) -> Vec<(i64, String)> {
    let beats = |client: &mut Client| {
        let seen = statements(client);
        seen.iter().find(|(_, q)| q.contains("SET seen_at")).map_or(0, |(calls, _)| *calls)
    };
    client.execute("SELECT public.pg_stat_statements_reset()");
    wait_until("five heartbeats", PATIENCE, || beats(client) >= 5);
    statements(client)
}

// Promise 12.
#[test]
fn a_host_leads_two_thousand_groups_by_one_lock_and_a_few_statements() {
    let mut counted = Vec::new();
    for groups in [100, 2_000] {
        let server = Server::start(&[("shared_preload_libraries", "pg_stat_statements")])
            .expect("a server starts");
        let rig = Rig::at(&server.url("postgres"), &self::groups(groups));
        let _ = rig.host(["migrate"]).ok();
        let mut client = Client::new(&rig);
        client.execute("CREATE EXTENSION pg_stat_statements SCHEMA public");
        // The first start makes the groups, the second finds them.
        for start in ["first", "second"] {
            client.execute("SELECT public.pg_stat_statements_reset()");
            let host = rig.spawn_run();
            wait_until_shared(&rig, 1, groups);
            host.wait_until_leading(&format!("group-{:04}", groups - 1));
            let started = statements(&mut client);
            none_for_each_group(groups, &started, start);
            let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
            assert_eq!(client.number(locks), 1, "whatever it leads");
            let idle = idle(&mut client);
            none_for_each_group(groups.min(100), &idle, "idle");
            client.execute("SELECT public.pg_stat_statements_reset()");
            host.stop();
            let stopped = statements(&mut client);
            none_for_each_group(groups, &stopped, "stop");
            let counts = [&started, &idle, &stopped].map(|some| of_leadership(some));
            println!("{groups} groups, {start} start: {counts:?} statements");
            assert!(counts.iter().all(|count| *count <= 80), "{groups} groups: {counts:?}");
            let led =
                "SELECT count(*) FROM consumer_groups WHERE leader IS NOT NULL OR fruitless > 0";
            assert_eq!(client.number(led), 0, "each ended cleanly");
            counted.push(counts);
        }
    }
    // Of the same kind and the same time, whatever there is to lead.
    let [few, _, many, _] = counted[..] else { panic!("{counted:?}") };
    assert!(many[1] <= few[1] + 10, "an idle host: {counted:?}");
}

/// Hosts start together, one is killed, one is frozen for longer than others wait for it,
/// and one stops; and every group handles every event once as far as the database can tell.
#[test]
fn whatever_hosts_do_two_thousand_groups_are_shared_evenly_and_each_handles_each_event_once() {
    const GROUPS: usize = 2_000;
    let rig = Rig::on(Store::Postgres, &groups(GROUPS));
    let _ = rig.host(["migrate"]).ok();
    let mut published = 0;
    let mut publish = || {
        published += 1;
        rig.publish(&[event("a", published, json!(null))]);
        published
    };
    let [one, two, three] = [rig.spawn_run(), rig.spawn_run(), rig.spawn_run()];
    wait_until_shared(&rig, 3, GROUPS);
    publish();
    one.kill9();
    wait_until_shared(&rig, 2, GROUPS);
    publish();
    two.freeze();
    publish();
    // The other ends its session, and leads all.
    wait_until_shared(&rig, 1, GROUPS);
    two.thaw();
    wait_until_shared(&rig, 2, GROUPS);
    publish();
    three.stop();
    wait_until_shared(&rig, 1, GROUPS);
    let events = publish() as i64;
    let last = rig.number("SELECT max(position) FROM events");
    wait_until("all is handled", Duration::from_secs(300), || {
        rig.number("SELECT min(position) FROM consumer_groups") >= last
    });
    two.stop();
    let counts = rig.numbers::<3>(
        "SELECT count(*), min(convert_from(value, 'UTF8')::bigint), max(convert_from(value, 'UTF8')::bigint)
         FROM state WHERE key = 'count'",
    );
    assert_eq!(counts, [GROUPS as i64, events, events]);
    assert_eq!(rig.dead_letters(), Vec::<serde_json::Value>::new());
}
