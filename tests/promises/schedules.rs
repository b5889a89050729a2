//! Schedules (promise 20): each tick is published once, whatever becomes of the hosts,
//! and what was missed as the settings say.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tests::{Client, Handler, PATIENCE, Rig, Running, Settings, Store, wait_until};

tests::on_both_stores! {
    three_hosts_that_are_killed_and_frozen_publish_each_tick_once,
    what_no_host_ran_for_is_made_up_for_as_the_schedule_says,
    a_tick_reaches_its_handler_with_all_that_the_schedule_says,
    a_reload_takes_schedules_over_from_now_on,
    status_tells_the_last_and_the_next_tick_and_one_that_nobody_publishes,
    a_tick_that_is_on_its_way_is_published_by_whoever_is_left,
}

/// As a host that is frozen in the middle of a tick holds a row.
#[test]
fn a_schedule_whose_row_is_held_stops_no_other() {
    let two = format!("{EACH_SECOND}\n{}", EACH_SECOND.replace("often", "held"));
    let rig = rig(Store::Postgres, &scheduled(&two));
    let host = rig.spawn_run();
    wait_until("both tick", PATIENCE, || {
        ["often", "held"].iter().all(|name| !ticks(&rig, name).is_empty())
    });
    let mut holder = Client::new(&rig);
    holder.execute("BEGIN; SELECT FROM schedules WHERE name = 'held' FOR UPDATE");
    let before = ticks(&rig, "often").len();
    wait_until("the other goes on", PATIENCE, || ticks(&rig, "often").len() >= before + 8);
    let late = rig.number(
        "SELECT (extract(epoch FROM max(published_at - time)) * 1000)::bigint FROM events
         WHERE source = '/schedules/often'",
    );
    assert!(late < 2_500, "by up to {late} ms");
    holder.execute("COMMIT");
    let held = ticks(&rig, "held").len();
    wait_until("and so does this one", PATIENCE, || ticks(&rig, "held").len() >= held + 3);
    host.stop();
    for name in ["often", "held"] {
        check_that_none_is_missing(&ticks(&rig, name));
    }
}

/// A folder with these settings, and a database with its tables.
fn rig(store: Store, settings: &Settings) -> Rig {
    let rig = Rig::on(store, settings);
    let _ = rig.host(["migrate"]).ok();
    rig
}

/// A handler for what needs one: it takes nothing that is published here.
fn idle() -> Settings {
    Settings::of([Handler::new("idle", "tally", &["nothing"])])
}

/// Settings with schedules, as they stand in the file, and a handler.
fn scheduled(schedules: &str) -> Settings {
    Settings::of([Handler::new("idle", "tally", &["nothing"]).set(schedules)])
}

const EACH_SECOND: &str =
    "[schedules.often]\ncron = \"* * * * * *\"\ntype = \"tick\"\nmissed = \"all\"";

/// The ticks of a schedule that are in the log, in its order.
fn ticks(rig: &Rig, schedule: &str) -> Vec<Timestamp> {
    let sql =
        format!("SELECT id FROM events WHERE source = '/schedules/{schedule}' ORDER BY position");
    let prefix = format!("{schedule}:");
    let tick = |id: &String| id.strip_prefix(&prefix).expect("its id").parse().expect("a time");
    rig.texts(&sql).iter().map(tick).collect()
}

/// Each second from the first tick on was published once, in order.
fn check_that_none_is_missing(ticks: &[Timestamp]) {
    for two in ticks.windows(2) {
        assert_eq!(two[1] - two[0], SignedDuration::from_secs(1), "{ticks:?}");
    }
}

fn three_hosts_that_are_killed_and_frozen_publish_each_tick_once(store: Store) {
    /// As long as one of them is frozen: longer than its lock on a group lives.
    const FROZEN: usize = 8;
    let rig = rig(store, &scheduled(EACH_SECOND));
    let start = || {
        let host = rig.spawn_run();
        host.wait_for_log("it runs", |line| line["message"] == "starting");
        host
    };
    let mut hosts: Vec<Running> = vec![start(), start(), start()];
    wait_until("they tick", PATIENCE, || ticks(&rig, "often").len() >= 3);
    let further = |by: usize| {
        let before = ticks(&rig, "often").len();
        wait_until("it goes on", PATIENCE, || ticks(&rig, "often").len() >= before + by);
    };
    for round in 0..3_u64 {
        // Around a tick, before it, in it or after it.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..1_000)));
        hosts.remove(0).kill9();
        further(2);
        let frozen = hosts.remove(0);
        frozen.freeze();
        // One that is frozen in the middle of a write holds up a file, not a server.
        if store == Store::Postgres {
            further(if round == 0 { FROZEN } else { 1 });
        } else {
            std::thread::sleep(Duration::from_millis(fastrand::u64(500..2_000)));
        }
        frozen.thaw();
        hosts.push(frozen);
        hosts.push(start());
        further(2);
    }
    for host in hosts {
        host.stop();
    }
    let all = ticks(&rig, "often");
    check_that_none_is_missing(&all);
    assert!(all.len() >= 15, "{all:?}");
    assert!(all.last().expect("one") <= &Timestamp::now());
}

fn what_no_host_ran_for_is_made_up_for_as_the_schedule_says(store: Store) {
    let schedule = |name: &str, missed: &str| {
        format!(
            "[schedules.{name}]\ncron = \"* * * * *\"\ntype = \"tick\"\nmissed = \"{missed}\"\n"
        )
    };
    let names = ["skip", "once", "all"];
    let schedules: String = names.map(|name| schedule(name, name)).concat();
    let rig = rig(store, &scheduled(&schedules));
    let registered = || rig.number("SELECT count(*) FROM schedules") == 3;
    let host = rig.spawn_run();
    wait_until("they are registered", PATIENCE, registered);
    host.stop();
    // As if no host had run since: for three hours, and for two days.
    for (hours, expected) in [(3, 180), (48, 1_440)] {
        let mut client = Client::new(&rig);
        match store {
            Store::Sqlite => client
                .execute(&format!("UPDATE schedules SET done_to = done_to - {hours} * 3600000000")),
            Store::Postgres => client.execute(&format!(
                "UPDATE schedules SET done_to = done_to - interval '{hours} hours'"
            )),
        }
        let before = names.map(|name| ticks(&rig, name).len());
        let begun = Timestamp::now();
        let host = rig.spawn_run();
        wait_until("all is made up for", PATIENCE, || {
            ticks(&rig, "all").len() + 2 >= before[2] + expected
                && ticks(&rig, "once").len() > before[1]
        });
        host.stop();
        let on_time = |tick: &Timestamp| *tick > begun - SignedDuration::from_secs(70);
        let late = |at: usize| {
            let all = ticks(&rig, names[at]).split_off(before[at]);
            all.into_iter().filter(|tick| !on_time(tick)).collect::<Vec<_>>()
        };
        assert_eq!(late(0), [], "{hours} hours");
        let once = late(1);
        assert!(once.len() <= 1, "{hours} hours: {once:?}");
        let all = late(2);
        assert!((expected - 3..=expected).contains(&all.len()), "{hours} hours: {}", all.len());
        assert!(all.is_sorted_by(|a, b| *b - *a == SignedDuration::from_mins(1)), "{all:?}");
        let reach = begun - all[0];
        assert!(reach <= SignedDuration::from_hours(24) + SignedDuration::from_mins(1), "{reach}");
    }
}

fn a_tick_reaches_its_handler_with_all_that_the_schedule_says(store: Store) {
    let schedule = r#"
[schedules.report]
cron = "* * * * * *"
timezone = "America/St_Johns"
type = "command"
source = "/reports"
subject = "daily"
partitionkey = "acme"
data = { do = "reject", text = "seen" }
"#;
    let rig = rig(
        store,
        &Settings::of([Handler::new("chaos", "chaos", &["command"]).attempts(1).set(schedule)]),
    );
    let host = rig.spawn_run();
    wait_until("it is handled", PATIENCE, || !rig.dead_letters().is_empty());
    host.stop();
    let letters = rig.dead_letters();
    let event = &letters[letters.len() - 1]["event"];
    let time = event["time"].as_str().expect("a time");
    assert_eq!(event["id"], format!("report:{time}"));
    assert_eq!(event["source"], "/reports");
    assert_eq!(event["subject"], "daily");
    assert_eq!(event["partitionkey"], "acme");
    assert_eq!(event["datacontenttype"], "application/json");
    assert_eq!(event["data"], serde_json::json!({ "do": "reject", "text": "seen" }));
}

fn a_reload_takes_schedules_over_from_now_on(store: Store) {
    let rig = rig(store, &idle());
    let host = rig.spawn_run();
    host.wait_until_leading("idle");
    let reload = |settings: &Settings, changed: &str| {
        rig.configure(settings);
        host.hangup();
        host.wait_for_log("it is reloaded", |line| {
            line["message"] == "reloaded" && line["changed"] == changed
        });
    };
    reload(&scheduled(EACH_SECOND), "schedules.often");
    wait_until("it ticks", PATIENCE, || ticks(&rig, "often").len() >= 2);
    let begun = ticks(&rig, "often")[0];
    assert!(begun >= Timestamp::now() - SignedDuration::from_secs(60), "nothing was missed");
    // Once a year: what it had before is over.
    let slower = EACH_SECOND.replace("* * * * * *", "0 0 1 1 *");
    reload(&scheduled(&slower), "schedules.often");
    let shown = || rig.json(&["status"])["schedules"][0]["cron"] == "0 0 1 1 *";
    wait_until("it is another", PATIENCE, shown);
    let count = ticks(&rig, "often").len();
    rig.configure(&scheduled("[schedules.often]\ncron = \"0 25 * * *\"\ntype = \"tick\""));
    host.hangup();
    host.wait_for_log("it is refused", |line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.contains("`cron` is `0 25 * * *`: the hour is `25`: write 0 to 23")
    });
    assert_eq!(ticks(&rig, "often").len(), count);
    host.stop();
}

fn status_tells_the_last_and_the_next_tick_and_one_that_nobody_publishes(store: Store) {
    let yearly = "[schedules.yearly]\ncron = \"30 2 1 7 *\"\ntimezone = \"Europe/Berlin\"\n\
                  type = \"tick\"\n";
    let rig = rig(store, &scheduled(&format!("{yearly}{EACH_SECOND}")));
    let checked = rig.host(["check"]).ok();
    assert!(checked.contains("yearly") && checked.contains("-07-01 02:30:00 +02"), "{checked}");
    let json = rig.json(&["check"]);
    let next = json.as_array().expect("a list").iter().find(|one| one["schedule"] == "yearly");
    let next = next.expect("it is there")["next_ticks"].as_array().expect("a list");
    assert_eq!(next.len(), 3);
    assert!(next[0].as_str().expect("a time").ends_with("-07-01T00:30:00Z"));

    let host = rig.spawn_run();
    wait_until("it ticks", PATIENCE, || ticks(&rig, "often").len() >= 2);
    let status = rig.json(&["status"]);
    let [often, yearly] = &status["schedules"].as_array().expect("a list")[..] else {
        panic!("{status}")
    };
    assert_eq!((&often["name"], &yearly["name"]), (&"often".into(), &"yearly".into()));
    assert_eq!(yearly["timezone"], "Europe/Berlin");
    assert!(yearly["last_tick"].is_null());
    assert_eq!(yearly["next_tick"], next[0]);
    let time = |of: &serde_json::Value| -> Timestamp {
        of.as_str().expect("a time").parse().expect("a time")
    };
    let between = time(&often["next_tick"]) - time(&often["last_tick"]);
    assert!(between >= SignedDuration::from_secs(1), "{often}");
    assert!(often["due_since"].is_null() && yearly["due_since"].is_null());
    host.stop();

    let told = rig.host(["status"]).ok();
    let row = told.lines().find(|line| line.trim_start().starts_with("yearly ")).expect("its row");
    assert!(row.contains(" 30 2 1 7 * ") && row.contains(" Europe/Berlin "), "{told}");
    assert!(row.trim_end().ends_with("-07-01 02:30:00 +02"), "{told}");
    assert!(!told.contains("no host runs it"), "{told}");
    let mut client = Client::new(&rig);
    match store {
        Store::Sqlite => client.execute("UPDATE schedules SET done_to = done_to - 120000000"),
        Store::Postgres => {
            client.execute("UPDATE schedules SET done_to = done_to - interval '2 minutes'");
        }
    }
    let told = rig.host(["status"]).ok();
    let waits = told.lines().find(|line| line.starts_with("often: a tick is due since "));
    // A row of somebody's that makes no sense hurts no other.
    client.execute(
        "INSERT INTO schedules (name, tenant, cron, timezone, done_to, seen_at)
         SELECT 'no name', tenant, cron, timezone, done_to, seen_at FROM schedules
         WHERE name = 'yearly'",
    );
    assert_eq!(rig.json(&["status"])["schedules"].as_array().map(Vec::len), Some(2));
    assert!(waits.is_some_and(|line| line.ends_with("no host runs it; `host run` does")), "{told}");
}

/// Somebody holds the row at which a host is about to publish; then the host dies.
fn a_tick_that_is_on_its_way_is_published_by_whoever_is_left(store: Store) {
    let rig = rig(store, &scheduled(EACH_SECOND));
    let dying = rig.spawn_run();
    wait_until("it ticks", PATIENCE, || !ticks(&rig, "often").is_empty());
    let mut holder = Client::new(&rig);
    match store {
        Store::Sqlite => holder.execute("BEGIN IMMEDIATE"),
        Store::Postgres => holder.execute("BEGIN; SELECT FROM schedules FOR UPDATE"),
    }
    let published = ticks(&rig, "often").len();
    let waits = || match store {
        // Nobody sees who waits for a file; a tick is due each second.
        Store::Sqlite => true,
        Store::Postgres => {
            rig.number(
                "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
            ) > 0
        }
    };
    let begun = Instant::now();
    wait_until("a tick waits for the row", PATIENCE, || {
        waits() && begun.elapsed() > Duration::from_millis(1_200)
    });
    dying.kill9();
    let heir = rig.spawn_run();
    holder.execute("COMMIT");
    wait_until("it goes on", PATIENCE, || ticks(&rig, "often").len() >= published + 3);
    heir.stop();
    check_that_none_is_missing(&ticks(&rig, "often"));
}
