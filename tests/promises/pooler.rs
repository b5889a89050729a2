//! PgBouncer between a host and the server (promises 3 and 16).

use std::time::Duration;

use serde_json::json;
use tests::{Client, Handler, PATIENCE, Pooler, Pooling, Rig, Settings, Store, event, wait_until};

use super::postgres::stands_by;

/// As many sessions as a pooler may have for a database.
const SESSIONS: usize = 20;

/// A rig whose database is on a server with a pooler before it.
struct Pooled {
    rig: Rig,
    pooler: Pooler,
}

impl Pooled {
    /// `None` where there is no pooler.
    fn new(pooling: Pooling) -> Option<Self> {
        if let Err(reason) = Pooler::version() {
            println!("skipped: {reason}");
            return None;
        }
        let rig = Rig::on(Store::Postgres, &settings());
        let _ = rig.host(["migrate"]).ok();
        let pooler = Pooler::start(rig.url(), pooling);
        Some(Self { rig, pooler })
    }

    fn url(&self) -> String {
        self.pooler.url(self.rig.url())
    }

    /// The host's database is behind the pooler from now on.
    fn go_through_the_pooler(&self, lock_database: bool) {
        let mut settings = settings().top(&format!("database = \"{}\"", self.url()));
        if lock_database {
            settings = settings.top(&format!("lock_database = \"{}\"", self.rig.url()));
        }
        self.rig.configure(&settings);
    }

    /// What a session of the pooler's has that a client did not ask for: all of
    /// its sessions are looked at.
    fn leaked(&self) -> Vec<String> {
        let mut clients: Vec<Client> =
            (0..SESSIONS).map(|_| Client::of_pooler(&self.url())).collect();
        // An open transaction keeps its session from the other clients.
        for client in &mut clients {
            client.execute("BEGIN");
        }
        let leaks = clients.iter_mut().flat_map(|client| {
            client.texts_unprepared(
                "SELECT name || ' = ' || setting FROM pg_settings
                 WHERE source = 'session'
                   AND name NOT IN ('application_name', 'client_encoding', 'DateStyle',
                                    'TimeZone', 'standard_conforming_strings')
                 UNION ALL
                 SELECT 'a lock' FROM pg_locks
                 WHERE locktype = 'advisory' AND pid = pg_backend_pid()
                 UNION ALL
                 SELECT 'a listener' FROM pg_listening_channels()",
            )
        });
        leaks.collect()
    }

    fn runs(&self) {
        let host = self.rig.spawn_run();
        host.wait_until_leading("tally");
        let other = self.rig.spawn_run();
        other.wait_for_message("another host leads; standing by");
        self.rig.publish(&[event("a", 1, json!(null))]);
        wait_until("it is handled", PATIENCE, || self.rig.state("tally", "count") == 1);
        host.stop();
        other.wait_until_leading("tally");
        self.rig.publish(&[event("a", 2, json!(null))]);
        wait_until("it is handled", PATIENCE, || self.rig.state("tally", "count") == 2);
        other.stop();
        let epoch = self.rig.number("SELECT epoch FROM consumer_groups WHERE name = 'tally'");
        assert_eq!(epoch, 2);
    }
}

fn settings() -> Settings {
    Settings::of([Handler::new("tally", "tally", &["a"])])
}

#[test]
fn pooled_by_session_a_host_runs_with_and_without_a_database_for_its_locks() {
    for lock_database in [false, true] {
        let Some(pooled) = Pooled::new(Pooling::Session) else { return };
        pooled.go_through_the_pooler(lock_database);
        pooled.runs();
        assert_eq!(pooled.leaked(), Vec::<String>::new(), "lock_database: {lock_database}");
    }
}

#[test]
fn pooled_by_transaction_a_host_is_refused_without_a_database_for_its_locks() {
    let Some(pooled) = Pooled::new(Pooling::Transaction) else { return };
    pooled.go_through_the_pooler(false);
    // A pooler keeps what the run before left behind in its sessions.
    for _ in 0..3 {
        let mut host = pooled.rig.spawn_run();
        let status = host.wait_within(Duration::from_secs(20));
        let log = host.log();
        assert_eq!(status.code(), Some(1), "{log:#?}");
        let complaint = log.last().and_then(|line| line.as_str()).unwrap_or_default();
        assert!(complaint.contains("`lock_database`"), "{log:#?}");
    }
    assert_eq!(pooled.rig.number("SELECT coalesce(max(epoch), 0) FROM consumer_groups"), 0);
}

#[test]
fn pooled_by_transaction_a_host_runs_with_a_database_for_its_locks_and_leaves_no_trace() {
    let Some(pooled) = Pooled::new(Pooling::Transaction) else { return };
    pooled.go_through_the_pooler(true);
    if Pooler::carries_statements() == Ok(true) {
        pooled.runs();
    } else {
        for _ in 0..3 {
            let complaint = pooled.rig.host(["run", "--drain"]).failed(1);
            assert!(complaint.contains("max_prepared_statements"), "{complaint}");
        }
        assert_eq!(pooled.rig.number("SELECT coalesce(max(epoch), 0) FROM consumer_groups"), 0);
    }
    assert_eq!(pooled.leaked(), Vec::<String>::new());
}

/// How long a frozen host's transaction is left open, the ending of its lock session,
/// and a loaded machine.
const FREED_WITHIN: Duration = Duration::from_secs(20);

/// Freezes a host in the middle of a settlement that emits, when it has its group's row
/// and the lock of an insert on the log, and holds what others need of both against it.
fn a_frozen_host_lets_go(rig: &Rig) {
    let mut client = Client::new(rig);
    client.execute(
        "CREATE TABLE public.held ();
         INSERT INTO public.held DEFAULT VALUES;
         CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             WHILE EXISTS (SELECT FROM public.held) LOOP
                 PERFORM pg_sleep(0.01);
             END LOOP;
             RETURN NEW;
         END $$;
         CREATE TRIGGER hold BEFORE INSERT ON event_host.events
         FOR EACH ROW WHEN (NEW.type = 'out') EXECUTE FUNCTION public.hold()",
    );
    let leader = rig.spawn_run();
    leader.wait_until_leading("chaos");
    let standby = rig.spawn_run();
    standby.wait_for_log("it stands by", stands_by);
    let emits = json!([{ "do": "count", "key": "count" }, { "do": "report", "type": "out" }]);
    rig.publish(&[event("command", 1, emits)]);
    wait_until("it is in the middle of its settlement", PATIENCE, || {
        client.number(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event = 'PgSleep'",
        ) == 1
    });
    leader.freeze();
    client.execute("DELETE FROM public.held");
    // Another's event, and another leader.
    rig.publish(&[event("a", 2, json!(null))]);
    standby.wait_for_log_within(FREED_WITHIN, "the standby leads", |line| {
        line["message"] == "leading" && line["group"] == "chaos"
    });
    wait_until("the safe position moves", FREED_WITHIN, || rig.state("tally", "count") == 1);
    wait_until("the event is handled", PATIENCE, || rig.state("chaos", "count") == 1);
    assert_eq!(rig.data_of("out").len(), 1);
    leader.thaw();
    leader.wait_for_message("no longer leader; nothing more was committed");
    leader.stop();
    standby.stop();
    assert_eq!(rig.state("chaos", "count"), 1);
}

fn chaos_and_tally() -> Settings {
    let chaos = Handler::new("chaos", "chaos", &["command"]).attempts(1);
    Settings::of([chaos, Handler::new("tally", "tally", &["a"])])
}

// Promises 1, 3 and 10.
#[test]
fn a_frozen_host_that_sets_nothing_on_its_sessions_holds_nothing_for_long() {
    let rig = Rig::on(Store::Postgres, &chaos_and_tally());
    let _ = rig.host(["migrate"]).ok();
    // There need be no pooler for that.
    let lock_database = format!("lock_database = \"{}\"", rig.url());
    rig.configure(&chaos_and_tally().top(&lock_database));
    a_frozen_host_lets_go(&rig);
}

// Promises 1, 3 and 10.
#[test]
fn a_frozen_host_behind_a_pooler_holds_nothing_for_long() {
    for pooling in [Pooling::Session, Pooling::Transaction] {
        let Some(pooled) = Pooled::new(pooling) else { return };
        if pooling == Pooling::Transaction && Pooler::carries_statements() != Ok(true) {
            continue;
        }
        let behind = chaos_and_tally()
            .top(&format!("database = \"{}\"", pooled.url()))
            .top(&format!("lock_database = \"{}\"", pooled.rig.url()));
        pooled.rig.configure(&behind);
        a_frozen_host_lets_go(&pooled.rig);
    }
}
