//! Reading past open transactions: whatever they do in the end, and whenever, each
//! event that is committed is found once.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use sqlx::PgConnection;
use test_postgres::Stop;

use super::retention::enforce_all;
use super::{
    PostgresDatabase, PostgresStore, first_settlement, group, host, led, pid, publish, run,
    server_of_its_own, session_at, settings, store_at, until, value,
};
use event_host_core::event::{Attempt, Epoch, GroupName, Position, Tenant};
use event_host_store::traits::*;
use event_host_store::{
    Fetch, FetchedLate, GroupRegistration, Head, LateFetch, Settled, Settlement, Start,
    Subscription, UndecidedChange, UndecidedRange, UndecidedRanges,
};

/// A group that waits for no transaction at all: what it has handled, and what of
/// that came late.
struct Reader {
    store: PostgresStore,
    name: GroupName,
    subscription: Subscription,
    epoch: Epoch,
    settled: i64,
    cursor: Position,
    undecided: UndecidedRanges,
    handled: Vec<i64>,
    late: Vec<i64>,
    /// At most so much at once.
    max_events: usize,
    max_ranges: usize,
}

impl Reader {
    /// Leads a group of all events, from the end of the log if it is new.
    async fn new(store: PostgresStore, name: &str) -> Self {
        let group_settings = GroupRegistration { start: Start::Latest, ..settings(name) };
        store.ensure_group(&group_settings).await.unwrap();
        let mut reader = Self {
            store,
            name: group(name),
            subscription: Subscription::all(),
            epoch: Epoch(0),
            settled: 0,
            cursor: Position::ZERO,
            undecided: UndecidedRanges::NONE,
            handled: Vec::new(),
            late: Vec::new(),
            max_events: 1_000,
            max_ranges: 1_000,
        };
        reader.lead().await;
        reader
    }

    /// Begins where the group stands, as another leader would.
    async fn lead(&mut self) {
        let led = self.store.begin_leadership(&self.name, &host("one")).await.unwrap();
        (self.epoch, self.settled, self.cursor) = (led.epoch, led.settled, led.position);
        self.undecided = led.undecided;
    }

    fn fetch(&self, up_to: Position) -> Fetch<'_> {
        Fetch {
            partition: None,
            group: &self.name,
            tenant: &NOBODY,
            subscription: &self.subscription,
            after: self.cursor,
            up_to,
            max_events: self.max_events,
            max_bytes: 1 << 20,
        }
    }

    async fn look(&self, safe: Position) -> FetchedLate {
        let late = LateFetch {
            partition: None,
            group: &self.name,
            tenant: &NOBODY,
            subscription: &self.subscription,
            undecided: &self.undecided,
            safe,
            max_events: self.max_events,
        };
        self.store.fetch_late(late).await.unwrap()
    }

    /// Reads on, looks for what is late, and settles it all, unless the leader dies
    /// before. Whether there was anything.
    async fn step(&mut self, dies: bool) -> bool {
        let before = (self.cursor, self.undecided.clone());
        let safe = super::safe(&self.store).await;
        let overtake_limit = self.store.overtake_limit(Duration::ZERO).await;
        assert!(overtake_limit >= safe);
        let late = self.look(safe).await;
        self.undecided = late.undecided;
        let (mut handled, mut late): (Vec<i64>, Vec<i64>) =
            (Vec::new(), late.events.iter().map(|event| event.position.0).collect());
        if self.cursor < safe {
            let fetched = self.store.fetch(self.fetch(safe)).await.unwrap();
            handled.extend(fetched.events.iter().map(|event| event.position.0));
            self.cursor = fetched.scanned_to;
        } else if self.cursor < overtake_limit && self.undecided.len() < self.max_ranges {
            let room = self.max_ranges - self.undecided.len();
            let read =
                self.store.fetch_overtaking(self.fetch(overtake_limit), safe, room).await.unwrap();
            assert!(read.undecided.len() <= room);
            handled.extend(read.fetched.events.iter().map(|event| event.position.0));
            self.cursor = read.fetched.scanned_to;
            self.undecided = std::mem::take(&mut self.undecided).and(read.undecided);
        }
        if dies {
            self.lead().await;
            return true;
        }
        let settlement = Settlement {
            epoch: self.epoch,
            number: self.settled + 1,
            undecided: Some(UndecidedChange {
                undecided: self.undecided.clone(),
                late: late.len() as u64,
            }),
            ..first_settlement(self.name.as_str(), self.cursor.0)
        };
        assert_eq!(self.store.settle(&settlement).await.unwrap(), Settled::Committed);
        self.settled += 1;
        let did = before != (self.cursor, self.undecided.clone());
        self.handled.append(&mut handled);
        self.late.append(&mut late);
        did
    }

    async fn run(&mut self) {
        while self.step(false).await {}
    }

    /// Everything it has handled, in order.
    fn all(&self) -> Vec<i64> {
        let mut all = [&self.handled[..], &self.late].concat();
        all.sort_unstable();
        all
    }

    fn undecided(&self) -> Vec<(i64, i64)> {
        self.undecided.as_slice().iter().map(|range| (range.first.0, range.last.0)).collect()
    }
}

static NOBODY: std::sync::LazyLock<Tenant> = std::sync::LazyLock::new(Tenant::none);

async fn insert(session: &mut PgConnection) -> i64 {
    value(session, "INSERT INTO event_host.events (type) VALUES ('e') RETURNING position").await
}

async fn begin(session: &mut PgConnection) -> i64 {
    run(session, "BEGIN").await;
    insert(session).await
}

/// A database, a group at the end of its log, and sessions.
async fn three() -> (PostgresDatabase, Reader, [PgConnection; 3]) {
    let database = PostgresDatabase::new().await;
    let reader = Reader::new(database.store(), "g").await;
    let sessions = [database.raw().await, database.raw().await, database.raw().await];
    (database, reader, sessions)
}

#[tokio::test]
async fn those_who_commit_in_another_order_are_each_found_once_and_at_once() {
    let (_database, mut reader, [mut a, mut b, mut c]) = three().await;
    assert_eq!((begin(&mut a).await, begin(&mut b).await, insert(&mut c).await), (1, 2, 3));
    reader.run().await;
    assert_eq!((&reader.handled[..], reader.undecided()), (&[3][..], vec![(1, 2)]));
    run(&mut b, "COMMIT").await;
    reader.run().await;
    assert_eq!((&reader.late[..], reader.undecided()), (&[2][..], vec![(1, 1)]), "a is still open");
    assert_eq!(insert(&mut a).await, 4);
    assert_eq!(insert(&mut c).await, 5);
    reader.run().await;
    assert_eq!((&reader.handled[..], reader.undecided()), (&[3, 5][..], vec![(1, 1), (4, 4)]));
    run(&mut a, "COMMIT").await;
    reader.run().await;
    assert_eq!((&reader.late[..], reader.undecided()), (&[2, 1, 4][..], vec![]));
    assert_eq!(insert(&mut c).await, 6);
    reader.run().await;
    assert_eq!(reader.all(), [1, 2, 3, 4, 5, 6]);
    let status = reader.store.group_status(&reader.name).await.unwrap();
    assert_eq!((status.late_events, status.open_ranges), (3, vec![]));
}

#[tokio::test]
async fn what_is_rolled_back_is_open_no_longer_than_its_transaction() {
    let (_database, mut reader, [mut a, mut b, mut c]) = three().await;
    begin(&mut a).await;
    run(&mut a, "SAVEPOINT one").await;
    insert(&mut a).await;
    run(&mut a, "ROLLBACK TO one").await;
    insert(&mut c).await;
    reader.run().await;
    assert_eq!(reader.undecided(), [(1, 2)], "nobody else knows what a has rolled back");
    run(&mut a, "ROLLBACK").await;
    reader.run().await;
    assert_eq!(reader.undecided(), []);
    // One whose client is gone, and one that failed.
    begin(&mut a).await;
    begin(&mut b).await;
    insert(&mut c).await;
    reader.run().await;
    assert_eq!(reader.undecided(), [(4, 5)]);
    let a = pid(&mut a).await;
    run(&mut c, format!("SELECT pg_terminate_backend({a}, 10000)")).await;
    let _ = super::try_to_run(&mut b, "SELECT 1 / 0").await.unwrap_err();
    // A server says that a statement failed before it lets the transaction go.
    let _ = super::try_to_run(&mut b, "SELECT 1").await.unwrap_err();
    reader.run().await;
    assert_eq!(reader.undecided(), []);
    assert_eq!(reader.all(), [3, 6]);
}

#[tokio::test]
async fn of_savepoints_what_is_kept_is_late_and_nothing_else_is() {
    let (_database, mut reader, [mut a, mut b, _]) = three().await;
    assert_eq!(begin(&mut a).await, 1);
    for (sql, position) in [
        ("SAVEPOINT one", 2),
        ("RELEASE one; SAVEPOINT two", 3),
        ("ROLLBACK TO two; SAVEPOINT three; SAVEPOINT four", 4),
    ] {
        run(&mut a, sql).await;
        assert_eq!(insert(&mut a).await, position);
    }
    assert_eq!(insert(&mut b).await, 5);
    reader.run().await;
    run(&mut a, "RELEASE three; COMMIT").await;
    reader.run().await;
    assert_eq!((&reader.late[..], reader.undecided()), (&[1, 2, 4][..], vec![]));
}

#[tokio::test]
async fn a_prepared_transaction_is_late_when_it_is_committed_whoever_asks_for_it() {
    for (end, late) in [("COMMIT", &[1][..]), ("ROLLBACK", &[])] {
        let (database, mut reader, [mut a, mut b, _]) = three().await;
        let name = database.database.name();
        begin(&mut a).await;
        insert(&mut b).await;
        reader.run().await;
        run(&mut a, format!("PREPARE TRANSACTION '{name}'")).await;
        drop(a);
        insert(&mut b).await;
        reader.run().await;
        assert_eq!((&reader.handled[..], reader.undecided()), (&[2, 3][..], vec![(1, 1)]));
        // Another host knows it by what is written down alone.
        let mut reader = Reader { late: Vec::new(), ..Reader::new(database.store(), "g").await };
        reader.run().await;
        assert_eq!(reader.undecided(), [(1, 1)]);
        let status = reader.store.group_status(&reader.name).await.unwrap();
        until("it has been open for a second", async || {
            let status = reader.store.group_status(&reader.name).await.unwrap();
            status.open_ranges_held_by.iter().any(|by| by.prepared.as_deref() == Some(name))
        })
        .await;
        assert_eq!(status.open_ranges, [UndecidedRange { first: Position(1), last: Position(1) }]);
        run(&mut b, format!("{end} PREPARED '{name}'")).await;
        reader.run().await;
        assert_eq!((&reader.late[..], reader.undecided()), (late, vec![]));
    }
}

/// The sequence is not the clients' to use; whoever owns it may all the same.
#[tokio::test]
async fn a_position_that_was_drawn_long_before_it_is_used_is_late() {
    let (_database, mut reader, [mut a, mut b, _]) = three().await;
    assert_eq!(begin(&mut a).await, 1);
    let drawn: i64 = value(&mut a, "SELECT nextval('event_host.events_position_seq')").await;
    assert_eq!(insert(&mut b).await, 3);
    reader.run().await;
    assert_eq!((&reader.handled[..], reader.undecided()), (&[3][..], vec![(1, 2)]));
    let sql = format!("INSERT INTO event_host.events (position, type) VALUES ({drawn}, 'drawn')");
    run(&mut a, sql).await;
    reader.run().await;
    run(&mut a, "COMMIT").await;
    reader.run().await;
    assert_eq!((&reader.late[..], reader.undecided()), (&[1, 2][..], vec![]));
}

#[tokio::test]
async fn no_more_is_left_open_than_there_is_room_for() {
    let (_database, mut reader, [mut a, mut b, _]) = three().await;
    reader.max_ranges = 2;
    begin(&mut a).await;
    for _ in 0..3 {
        insert(&mut b).await;
        insert(&mut a).await;
    }
    insert(&mut b).await;
    reader.run().await;
    assert_eq!((&reader.handled[..], reader.undecided()), (&[2, 4][..], vec![(1, 1), (3, 3)]));
    assert_eq!(reader.cursor, Position(4), "it waits before what would be the third");
    run(&mut a, "COMMIT").await;
    reader.run().await;
    assert_eq!((&reader.late[..], reader.undecided()), (&[1, 3][..], vec![]));
    assert_eq!(reader.all(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn a_late_transaction_of_many_events_comes_in_parts_of_which_none_is_missed() {
    let (_database, mut reader, [mut a, mut b, mut c]) = three().await;
    reader.subscription = Subscription::new(["ours", "e"]).unwrap();
    reader.max_events = 7;
    run(&mut a, "BEGIN").await;
    run(
        &mut a,
        "INSERT INTO event_host.events (type)
         SELECT CASE WHEN i % 500 = 0 THEN 'ours' ELSE 'of others' END FROM generate_series(1, 21000) i",
    )
    .await;
    // Somebody else holds the safe position before and after.
    begin(&mut c).await;
    insert(&mut b).await;
    reader.run().await;
    assert_eq!((&reader.handled[..], reader.undecided()), (&[21_002][..], vec![(1, 21_001)]));
    run(&mut a, "COMMIT").await;
    reader.run().await;
    assert_eq!(reader.late, (1..=42).map(|n| n * 500).collect::<Vec<_>>());
    assert_eq!(
        reader.undecided(),
        [(21_001, 21_001)],
        "what others receive is undecided no longer"
    );
    run(&mut c, "COMMIT").await;
    reader.run().await;
    assert_eq!((reader.late.len(), reader.undecided()), (43, vec![]));
}

#[tokio::test]
async fn a_seek_forgets_what_is_open_above_it_and_keeps_what_is_below() {
    let (_database, mut reader, [mut a, mut b, mut c]) = three().await;
    begin(&mut a).await;
    insert(&mut c).await;
    begin(&mut b).await;
    insert(&mut c).await;
    reader.run().await;
    assert_eq!(reader.undecided(), [(1, 1), (3, 3)]);
    for (to, undecided) in [(4, vec![(1, 1), (3, 3)]), (2, vec![(1, 1)]), (0, vec![])] {
        let to = Start::Position(Position(to));
        reader.store.seek(&reader.name, to).await.unwrap();
        reader.lead().await;
        assert_eq!(reader.undecided(), undecided);
    }
    run(&mut a, "COMMIT").await;
    run(&mut b, "COMMIT").await;
    reader.run().await;
    assert_eq!(&reader.handled[2..], [1, 2, 3, 4], "the log brings all of it again");
    assert_eq!((&reader.late[..], reader.undecided()), (&[][..], vec![]));
}

#[tokio::test]
async fn a_settlement_that_is_refused_changes_nothing_of_what_is_open() {
    let (_database, mut reader, [mut a, mut b, _]) = three().await;
    begin(&mut a).await;
    insert(&mut b).await;
    reader.run().await;
    let forgetting = Settlement {
        epoch: reader.epoch,
        number: reader.settled + 1,
        undecided: Some(UndecidedChange { undecided: UndecidedRanges::NONE, late: 1 }),
        ..first_settlement("g", 2)
    };
    for refused in [
        Settlement { epoch: Epoch(reader.epoch.0 - 1), ..forgetting.clone() },
        Settlement { number: forgetting.number - 1, ..forgetting.clone() },
        Settlement { number: forgetting.number + 1, ..forgetting.clone() },
    ] {
        assert_eq!(reader.store.settle(&refused).await.unwrap(), Settled::NotLeader);
    }
    let above = UndecidedChange {
        undecided: UndecidedRanges::of([UndecidedRange { first: Position(2), last: Position(3) }]),
        late: 0,
    };
    let above = Settlement { undecided: Some(above), ..forgetting };
    reader.store.settle(&above).await.unwrap_err();
    let cursor = reader.store.cursor(&reader.name).await.unwrap();
    assert_eq!((cursor.undecided, cursor.settled), (reader.undecided.clone(), reader.settled));
    assert_eq!(reader.store.group_status(&reader.name).await.unwrap().late_events, 0);
}

#[tokio::test]
async fn what_is_open_pins_the_log_until_it_is_settled() {
    let (_database, mut reader, [mut a, mut b, _]) = three().await;
    insert(&mut b).await;
    assert_eq!(begin(&mut a).await, 2);
    run(&mut b, "SELECT event_host.begin_partition(1)").await;
    let last = insert(&mut b).await;
    reader.run().await;
    assert_eq!(reader.cursor, Position(last));
    let pins = "SELECT min(position) FROM event_host.log_pins WHERE group_name = 'g'";
    assert_eq!(value::<i64>(&mut b, pins).await, 1);
    run(&mut a, "COMMIT").await;
    // Nobody is in the way any more but the group, which has not looked yet.
    let enforced = enforce_all(&reader.store).await;
    assert_eq!(enforced.dropped_up_to, None);
    assert_eq!(value::<i64>(&mut b, "SELECT count(*) FROM event_host.events").await, 3);
    reader.run().await;
    assert_eq!(reader.late, [2]);
    let enforced = enforce_all(&reader.store).await;
    assert!(enforced.dropped_up_to >= Some(Position(2)), "{enforced:?}");
}

#[tokio::test]
async fn status_names_what_is_open_and_who_holds_it_and_calls_none_of_it_safe() {
    let (_database, mut reader, [mut a, mut b, _]) = three().await;
    insert(&mut b).await;
    begin(&mut a).await;
    insert(&mut b).await;
    reader.run().await;
    let holder = i64::from(pid(&mut a).await);
    until("it has been open for a second", async || {
        let status = reader.store.status().await.unwrap();
        let [group] = &status.groups[..] else { panic!("{status:?}") };
        assert_eq!(status.safe_position, Position(1));
        assert_eq!(group.open_ranges, [UndecidedRange { first: Position(2), last: Position(2) }]);
        group.open_ranges_held_by.iter().any(|by| by.pid == Some(holder))
    })
    .await;
    run(&mut a, "COMMIT").await;
    reader.run().await;
    let status = reader.store.status().await.unwrap();
    assert_eq!((status.safe_position, status.groups[0].late_events), (Position(3), 1));
    assert_eq!(status.groups[0].open_ranges_held_by, []);
}

#[tokio::test]
async fn those_who_have_just_begun_are_waited_for() {
    let (_database, reader, [mut a, mut b, mut c]) = three().await;
    begin(&mut a).await;
    let store = &reader.store;
    let patience = Duration::from_secs(1);
    store.safe_position().await.unwrap();
    until("a is slow", async || {
        insert(&mut b).await;
        store.safe_position().await.unwrap();
        store.overtake_limit(patience).await > Position::ZERO
    })
    .await;
    let reached = begin(&mut b).await;
    insert(&mut c).await;
    for _ in 0..3 {
        store.safe_position().await.unwrap();
        assert!(store.overtake_limit(patience).await < Position(reached), "b has just begun");
    }
    run(&mut b, "COMMIT").await;
    store.safe_position().await.unwrap();
    assert!(store.overtake_limit(patience).await > Position(reached));
    assert_eq!(store.overtake_limit(Duration::from_secs(3_600)).await, Position::ZERO);
}

#[tokio::test]
async fn a_crash_of_the_server_leaves_nothing_open_but_what_is_prepared() {
    let (mut server, store) = server_of_its_own().await;
    let url = server.url("postgres");
    let mut reader = Reader::new(store, "g").await;
    let (mut a, mut b, mut c) =
        (session_at(&url).await, session_at(&url).await, session_at(&url).await);
    begin(&mut a).await;
    begin(&mut b).await;
    insert(&mut c).await;
    reader.run().await;
    assert_eq!(reader.undecided(), [(1, 2)]);
    run(&mut b, "PREPARE TRANSACTION 'kept'").await;
    drop((a, b, c));
    server.restart(Stop::Immediate).unwrap();
    let store = store_at(&url);
    until("the server is back", async || store.safe_position().await.is_ok()).await;
    let mut reader = Reader { handled: reader.handled, ..Reader::new(store, "g").await };
    let mut c = session_at(&url).await;
    insert(&mut c).await;
    reader.run().await;
    assert_eq!(reader.undecided()[0], (1, 2));
    run(&mut c, "COMMIT PREPARED 'kept'").await;
    reader.run().await;
    assert_eq!((&reader.late[..], reader.undecided()), (&[2][..], vec![]));
    assert_eq!(reader.handled.len(), 2);
}

/// Commits fall between any two statements of the group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_missed_or_found_twice_while_producers_commit_at_every_moment() {
    const PRODUCERS: usize = 4;
    const TRANSACTIONS: usize = 250;
    let database = PostgresDatabase::new().await;
    let mut reader = Reader::new(database.store(), "g").await;
    // With it open nothing is safe, so every read goes past the others.
    let mut first = database.raw().await;
    begin(&mut first).await;
    let (reads_to, read_to) = tokio::sync::watch::channel(0);
    let mut producers = tokio::task::JoinSet::new();
    for _ in 0..PRODUCERS {
        let (mut session, mut read_to) = (database.raw().await, read_to.clone());
        producers.spawn(async move {
            let mut committed = 0;
            for n in 0..TRANSACTIONS {
                let position = begin(&mut session).await;
                insert(&mut session).await;
                // 1 in 8 stays open until the reader has gone past it: the others are
                // mostly committed before the reader comes to them.
                if n % 8 == 0 {
                    let passed = read_to.wait_for(|read_to| *read_to >= position);
                    tokio::time::timeout(Duration::from_secs(30), passed)
                        .await
                        .expect("the reader goes past a transaction that is open")
                        .unwrap();
                }
                let commits = n % 10 != 0;
                run(&mut session, if commits { "COMMIT" } else { "ROLLBACK" }).await;
                committed += usize::from(commits);
            }
            committed
        });
    }
    let (mut steps, mut transactions) = (0, 0);
    while producers.try_join_next().is_none_or(|ended| {
        transactions += ended.unwrap();
        !producers.is_empty()
    }) {
        reader.step(steps % 7 == 0).await;
        reads_to.send_replace(reader.cursor.0);
        steps += 1;
    }
    assert!(!reader.late.is_empty(), "nothing was overtaken");
    run(&mut first, "COMMIT").await;
    reader.run().await;
    let committed: Vec<i64> =
        sqlx::query_scalar("SELECT position FROM event_host.events ORDER BY position")
            .fetch_all(&mut first)
            .await
            .unwrap();
    assert_eq!(committed.len(), transactions * 2 + 1);
    assert_eq!(reader.all(), committed);
    assert_eq!(reader.undecided(), []);
}

/// What a producer or the group does next.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin(usize),
    Insert(usize),
    Draw(usize),
    Use(usize),
    Savepoint(usize),
    RollBackTo(usize),
    Commit(usize),
    RollBack(usize),
    Prepare(usize),
    Read,
    Die,
    /// Another host takes over, which has seen nothing yet.
    Move,
}

const PRODUCERS: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    let producer = 0..PRODUCERS;
    prop_oneof![
        3 => producer.clone().prop_map(Step::Begin),
        6 => producer.clone().prop_map(Step::Insert),
        1 => producer.clone().prop_map(Step::Draw),
        1 => producer.clone().prop_map(Step::Use),
        2 => producer.clone().prop_map(Step::Savepoint),
        2 => producer.clone().prop_map(Step::RollBackTo),
        3 => producer.clone().prop_map(Step::Commit),
        1 => producer.clone().prop_map(Step::RollBack),
        1 => producer.prop_map(Step::Prepare),
        6 => Just(Step::Read),
        1 => Just(Step::Die),
        1 => Just(Step::Move),
    ]
}

/// A producer's session, and where it is.
struct Producer {
    session: PgConnection,
    is_open: bool,
    /// Positions that it has drawn and not used. Only with the lock of an insert.
    drawn: Vec<i64>,
    has_inserted: bool,
    savepoints: usize,
    prepared: Vec<String>,
}

impl Producer {
    async fn take(&mut self, step: Step, name: String) {
        let session = &mut self.session;
        match step {
            Step::Begin(_) if !self.is_open => {
                run(session, "BEGIN").await;
                (self.is_open, self.has_inserted, self.savepoints) = (true, false, 0);
            }
            Step::Insert(_) => {
                insert(session).await;
                // Before a savepoint, so that its rollback leaves the lock.
                self.has_inserted |= self.is_open && self.savepoints == 0;
            }
            Step::Draw(_) if self.has_inserted => {
                let sql = "SELECT nextval('event_host.events_position_seq')";
                self.drawn.push(value(session, sql).await);
            }
            Step::Use(_) if self.has_inserted => {
                if let Some(position) = self.drawn.pop() {
                    run(
                        session,
                        format!(
                            "INSERT INTO event_host.events (position, type) VALUES ({position}, 'e')"
                        ),
                    )
                    .await;
                }
            }
            Step::Savepoint(_) if self.is_open => {
                run(session, "SAVEPOINT s").await;
                self.savepoints += 1;
            }
            Step::RollBackTo(_) if self.savepoints > 0 => run(session, "ROLLBACK TO s").await,
            Step::Commit(_) => match self.prepared.pop() {
                Some(prepared) if !self.is_open => {
                    run(session, format!("COMMIT PREPARED '{prepared}'")).await;
                }
                prepared => {
                    self.prepared.extend(prepared);
                    self.end("COMMIT").await;
                }
            },
            Step::RollBack(_) => match self.prepared.pop() {
                Some(prepared) if !self.is_open => {
                    run(session, format!("ROLLBACK PREPARED '{prepared}'")).await;
                }
                prepared => {
                    self.prepared.extend(prepared);
                    self.end("ROLLBACK").await;
                }
            },
            Step::Prepare(_) if self.is_open => {
                self.end(&format!("PREPARE TRANSACTION '{name}'")).await;
                self.prepared.push(name);
            }
            _ => {}
        }
    }

    async fn end(&mut self, how: &str) {
        if self.is_open {
            run(&mut self.session, how).await;
        }
        self.is_open = false;
        self.has_inserted = false;
        self.savepoints = 0;
        self.drawn.clear();
    }
}

async fn hold_to_the_model(
    database: &PostgresDatabase,
    case: u32,
    limits: (usize, usize),
    steps: &[Step],
) -> TestCaseResult {
    let mut producers = Vec::new();
    for _ in 0..PRODUCERS {
        producers.push(Producer {
            session: database.raw().await,
            is_open: false,
            drawn: Vec::new(),
            has_inserted: false,
            savepoints: 0,
            prepared: Vec::new(),
        });
    }
    let mut reader = Reader::new(database.store(), &format!("g{case}")).await;
    (reader.max_events, reader.max_ranges) = limits;
    let begun_at = reader.cursor.0;
    for (number, &step) in steps.iter().enumerate() {
        match step {
            Step::Begin(n)
            | Step::Insert(n)
            | Step::Draw(n)
            | Step::Use(n)
            | Step::Savepoint(n)
            | Step::RollBackTo(n)
            | Step::Commit(n)
            | Step::RollBack(n)
            | Step::Prepare(n) => {
                let name = format!("{}-{case}-{number}", database.database.name());
                producers[n].take(step, name).await;
            }
            Step::Read => drop(reader.step(false).await),
            Step::Die => drop(reader.step(true).await),
            Step::Move => {
                reader.store = database.store();
                reader.lead().await;
            }
        }
    }
    for producer in &mut producers {
        producer.end("COMMIT").await;
        for prepared in std::mem::take(&mut producer.prepared) {
            run(&mut producer.session, format!("COMMIT PREPARED '{prepared}'")).await;
        }
    }
    reader.run().await;
    let committed: Vec<i64> =
        sqlx::query_scalar("SELECT position FROM event_host.events WHERE position > $1 ORDER BY 1")
            .bind(begun_at)
            .fetch_all(&mut producers[0].session)
            .await
            .unwrap();
    prop_assert_eq!(reader.all(), committed, "each once, and nothing else");
    prop_assert_eq!(reader.undecided(), vec![]);
    prop_assert!(reader.handled.is_sorted());
    let late = BTreeSet::from_iter(&reader.late);
    prop_assert_eq!(late.len(), reader.late.len());
    Ok(())
}

/// Producers and a group on a real server, one step after the other, as random as
/// can be.
#[test]
fn every_committed_event_is_found_once_whatever_producers_and_leaders_do() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(PostgresDatabase::new());
    let cases = std::cell::Cell::new(0_u32);
    let config = ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() };
    let limits = (1..20_usize, 1..6_usize);
    proptest!(config, |(steps in proptest::collection::vec(step(), 1..80), limits in limits)| {
        cases.set(cases.get() + 1);
        runtime.block_on(hold_to_the_model(&database, cases.get(), limits, &steps))?;
    });
}

/// What is retried may stand above the cursor, which alone remembers what it passed.
#[tokio::test]
async fn a_split_does_not_leap_over_what_is_open_to_a_retried_event() {
    let database = PostgresDatabase::new().await;
    let store = database.store();
    publish(&store, "first").await;
    led(&store, "g").await;
    let mut producer = database.raw().await;
    run(&mut producer, "BEGIN; INSERT INTO event_host.events (type) VALUES ('open')").await;
    let retried = publish(&store, "retried").await;
    assert_eq!(retried, Position(3));
    let due_at = jiff::Timestamp::UNIX_EPOCH;
    let head = Head { position: retried, attempt: Attempt(2), due_at, failure: None };
    let settled = Settlement { head: Some(head), ..first_settlement("g", 1) };
    assert_eq!(store.settle(&settled).await.unwrap(), Settled::Committed);
    let split = GroupRegistration { partitions: 2, ..settings("g") };
    let error = store.ensure_group(&split).await.unwrap_err();
    super::says(&error, &["group `g` cannot be split", "transactions that were open"]);
    assert_eq!(store.cursor(&group("g")).await.unwrap().position, Position(1));

    run(&mut producer, "COMMIT").await;
    store.ensure_group(&split).await.unwrap();
    let mut waiting = Vec::new();
    for number in [0, 1] {
        let part = group("g").partition(number);
        waiting.extend(store.redeliveries(&part).await.unwrap());
        assert_eq!(store.cursor(&part).await.unwrap().position, retried);
    }
    waiting.sort_by_key(|one| one.position);
    let waiting: Vec<(i64, u32)> =
        waiting.iter().map(|one| (one.position.0, one.attempt.0)).collect();
    assert_eq!(waiting, [(2, 1), (3, 2)], "the one that was open is not lost");
}
