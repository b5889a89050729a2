//! The load: sessions that publish in every way there is, and keep account of
//! what they know to be committed.

use std::collections::BTreeSet;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgConnection};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long one thing that a writer does may take, a restart of the server
/// included.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the events of the writers, by their ids.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) committed: BTreeSet<String>,
    pub(super) undone: BTreeSet<String>,
    /// The session ended in the middle of the commit. The log knows.
    pub(super) unknown: BTreeSet<String>,
    /// Prepared transactions that were ended, one way or the other.
    pub(super) prepared: u32,
}

impl Account {
    fn add(&mut self, other: Self) {
        self.committed.extend(other.committed);
        self.undone.extend(other.undone);
        self.unknown.extend(other.unknown);
        self.prepared += other.prepared;
    }
}

/// A transaction that was prepared, and the ids of its events.
struct Prepared {
    name: String,
    ids: Vec<String>,
}

/// Writers that go on until they are stopped.
pub(super) struct Writers {
    runtime: Runtime,
    stop: Arc<AtomicBool>,
    keep_prepared: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Account>>,
    resolver: JoinHandle<Account>,
}

impl Writers {
    /// `large`: now and then an event has attributes and data as large as may be.
    pub(super) fn start(url: &str, count: u64, seed: u64, large: bool) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let options: PgConnectOptions = url.parse().expect("a URL");
        let stop = Arc::new(AtomicBool::new(false));
        let (resolve, prepared) = unbounded_channel();
        let writers = (0..count).map(|number| {
            let writer = Writer {
                number,
                sessions: Sessions(options.clone().application_name("writer")),
                random: Rng::with_seed(seed.wrapping_add(number)),
                stop: Arc::clone(&stop),
                resolve: resolve.clone(),
                made: 0,
                large,
                open: Vec::new(),
                account: Account::default(),
            };
            runtime.spawn(writer.run())
        });
        let writers = writers.collect();
        let sessions = Sessions(options.application_name("resolver"));
        let random = Rng::with_seed(seed.wrapping_add(count));
        let keep_prepared = Arc::new(AtomicBool::new(false));
        let keep = Arc::clone(&keep_prepared);
        let resolver = runtime.spawn(resolve_all(prepared, keep, sessions, random));
        Self { runtime, stop, keep_prepared, writers, resolver }
    }

    /// While this is true, what is prepared is left so.
    pub(super) fn keep_prepared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.keep_prepared)
    }

    /// Stops them, ends what they have prepared, and gives their account. The
    /// server must be up.
    pub(super) fn stop(self) -> Account {
        self.stop.store(true, Ordering::Relaxed);
        self.runtime.block_on(async {
            let mut account = Account::default();
            for writer in self.writers {
                account.add(writer.await.expect("no writer panics"));
            }
            // No writer is left, so it ends once it has ended them all.
            account.add(self.resolver.await.expect("the resolver does not panic"));
            account
        })
    }
}

/// Where sessions come from, also while the server restarts.
struct Sessions(PgConnectOptions);

impl Sessions {
    async fn open(&self, random: &mut Rng) -> PgConnection {
        loop {
            if let Ok(session) = self.0.connect().await {
                return session;
            }
            pause(random, 20, 200).await;
        }
    }
}

struct Writer {
    number: u64,
    sessions: Sessions,
    random: Rng,
    stop: Arc<AtomicBool>,
    resolve: UnboundedSender<Prepared>,
    /// How many events it has made so far, for their ids.
    made: u64,
    large: bool,
    /// The ids of the events of the transaction under way.
    open: Vec<String>,
    account: Account,
}

/// An event that is to be published.
struct New {
    id: String,
    event_type: &'static str,
    extensions: Option<&'static str>,
    data: &'static str,
    is_large: bool,
}

/// Whether a failure left it unknown what became of the transaction.
enum Failed {
    Before(sqlx::Error),
    InCommit,
}

type Done = Result<(), Failed>;

fn before(error: sqlx::Error) -> Failed {
    Failed::Before(error)
}

/// A statement that commits by itself: one that the server refused is undone.
fn alone(error: sqlx::Error) -> Failed {
    match error {
        sqlx::Error::Database(answer) if !answer.code().unwrap_or_default().starts_with("57") => {
            Failed::Before(sqlx::Error::Database(answer))
        }
        _ => Failed::InCommit,
    }
}

fn in_commit(_: sqlx::Error) -> Failed {
    Failed::InCommit
}

/// Whether the server is to blame, which restarts, and has room for so many
/// prepared transactions only; SQLSTATEs are of classes.
fn is_of_the_server(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|answer| answer.code())
        .is_none_or(|code| ["57", "53", "55"].iter().any(|class| code.starts_with(class)))
}

impl Writer {
    async fn run(mut self) -> Account {
        let mut session = None;
        while !self.stop.load(Ordering::Relaxed) {
            let mut open = match session.take() {
                Some(open) => open,
                None => self.sessions.open(&mut self.random).await,
            };
            let done = timeout(PATIENCE, self.act(&mut open)).await;
            let ids = take(&mut self.open);
            match done.expect("the server answers, or the connection breaks") {
                Ok(()) => {
                    self.account.committed.extend(ids);
                    session = Some(open);
                }
                // Without a session the server undoes what was open in it.
                Err(Failed::Before(why)) => {
                    assert!(is_of_the_server(&why), "the load is at fault: {why}");
                    self.account.undone.extend(ids);
                }
                Err(Failed::InCommit) => self.account.unknown.extend(ids),
            }
            pause(&mut self.random, 20, 150).await;
        }
        self.account
    }

    /// Does one thing. What it published is committed when it returns `Ok`, or
    /// has been accounted for.
    async fn act(&mut self, session: &mut PgConnection) -> Done {
        match self.random.u8(..100) {
            0..25 => self.insert(session, 1).await.map_err(alone),
            25..40 => self.publish(session).await.map_err(alone),
            40..55 => {
                let rows = self.random.usize(2..20);
                self.insert(session, rows).await.map_err(alone)
            }
            55..77 => self.transaction(session).await,
            77..88 => self.savepoints(session).await,
            88..92 => self.prepare(session).await,
            92..94 => self.take_long(session).await,
            94..97 => self.be_refused(session).await,
            97.. => self.publish_nothing(session).await,
        }
    }

    fn make(&mut self) -> New {
        let (kind, event_type, extensions, data) = match self.random.u8(..100) {
            0..70 => ("work", "work", Some(r#"{"seen": true}"#), "null"),
            70..90 => (
                "plain",
                "command",
                None,
                r#"[{"do": "log", "line": "attempt"}, {"do": "count", "key": "count"},
                    {"do": "report", "type": "reported"}]"#,
            ),
            90..97 => (
                "flaky",
                "command",
                None,
                r#"[{"do": "log", "line": "attempt"}, {"do": "count", "key": "count"},
                    {"do": "report", "type": "reported"},
                    {"do": "fail-until-attempt", "attempt": 2}]"#,
            ),
            97.. => (
                "rejected",
                "command",
                None,
                r#"[{"do": "log", "line": "attempt"}, {"do": "count", "key": "count"},
                    {"do": "report", "type": "reported"}, {"do": "reject", "text": "on purpose"}]"#,
            ),
        };
        self.made += 1;
        let id = format!("{}-{}-{kind}", self.number, self.made);
        self.open.push(id.clone());
        let is_large = self.large && kind == "work" && self.random.u8(..100) == 0;
        New { id, event_type, extensions, data, is_large }
    }

    async fn insert(&mut self, session: &mut PgConnection, rows: usize) -> sqlx::Result<()> {
        let events: Vec<New> = (0..rows).map(|_| self.make()).collect();
        sqlx::query(
            "INSERT INTO event_host.events (id, type, extensions, data, subject, partitionkey)
             SELECT id, type,
                    CASE WHEN is_large
                         THEN extensions::jsonb || jsonb_build_object('long', repeat('x', 60000))
                         ELSE extensions::jsonb END,
                    CASE WHEN is_large THEN convert_to(to_json(repeat('y', 400000))::text, 'UTF8')
                         ELSE convert_to(data, 'UTF8') END,
                    CASE WHEN is_large THEN repeat('s', 8000) END,
                    CASE WHEN is_large THEN repeat('k', 1000) END
             FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[])
                  AS e (id, type, extensions, data, is_large)",
        )
        .bind(events.iter().map(|event| event.id.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.event_type).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.extensions).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.data).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.is_large).collect::<Vec<_>>())
        .execute(session)
        .await
        .map(drop)
    }

    async fn publish(&mut self, session: &mut PgConnection) -> sqlx::Result<()> {
        let New { id, event_type, extensions, data, .. } = self.make();
        sqlx::query("SELECT event_host.publish($1, $2::jsonb, id => $3, extensions => $4::jsonb)")
            .bind(event_type)
            .bind(data)
            .bind(id)
            .bind(extensions)
            .execute(session)
            .await
            .map(drop)
    }

    async fn transaction(&mut self, session: &mut PgConnection) -> Done {
        session.execute("BEGIN").await.map_err(before)?;
        for _ in 0..self.random.u8(1..4) {
            self.insert(session, 1).await.map_err(before)?;
            pause(&mut self.random, 0, 30).await;
        }
        if self.random.u8(..4) == 0 {
            session.execute("ROLLBACK").await.map_err(before)?;
            self.account.undone.extend(self.open.drain(..));
            return Ok(());
        }
        session.execute("COMMIT").await.map(drop).map_err(in_commit)
    }

    async fn savepoints(&mut self, session: &mut PgConnection) -> Done {
        session.execute("BEGIN").await.map_err(before)?;
        self.insert(session, 1).await.map_err(before)?;
        for _ in 0..self.random.u8(1..4) {
            session.execute("SAVEPOINT here").await.map_err(before)?;
            let kept = self.open.len();
            let rows = self.random.usize(1..3);
            self.insert(session, rows).await.map_err(before)?;
            pause(&mut self.random, 0, 10).await;
            if self.random.bool() {
                session.execute("ROLLBACK TO here").await.map_err(before)?;
                self.account.undone.extend(self.open.drain(kept..));
            } else {
                session.execute("RELEASE here").await.map_err(before)?;
            }
        }
        self.publish(session).await.map_err(before)?;
        session.execute("COMMIT").await.map(drop).map_err(in_commit)
    }

    /// Leaves a prepared transaction behind, which another session ends.
    async fn prepare(&mut self, session: &mut PgConnection) -> Done {
        session.execute("BEGIN").await.map_err(before)?;
        self.insert(session, 2).await.map_err(before)?;
        let name = format!("{}-{}", self.number, self.made);
        let sql = format!("PREPARE TRANSACTION '{name}'");
        let prepared = session.execute(AssertSqlSafe(sql)).await;
        // Also where it is not known whether there is one.
        let ids = take(&mut self.open);
        self.resolve.send(Prepared { name, ids }).expect("the resolver outlives the writers");
        prepared.map(drop).map_err(before)
    }

    async fn take_long(&mut self, session: &mut PgConnection) -> Done {
        session.execute("BEGIN").await.map_err(before)?;
        self.insert(session, 1).await.map_err(before)?;
        pause(&mut self.random, 500, 2_000).await;
        self.insert(session, 1).await.map_err(before)?;
        session.execute("COMMIT").await.map(drop).map_err(in_commit)
    }

    /// Draws a position that nothing comes of.
    async fn be_refused(&mut self, session: &mut PgConnection) -> Done {
        let sql = "INSERT INTO event_host.events (type) VALUES ('')";
        match session.execute(sql).await {
            Err(sqlx::Error::Database(refusal))
                if refusal.constraint() == Some("type_is_not_empty") =>
            {
                Ok(())
            }
            Err(error) => Err(before(error)),
            Ok(_) => panic!("an event without a type was published"),
        }
    }

    /// Is open for long, writes something, and no event.
    async fn publish_nothing(&mut self, session: &mut PgConnection) -> Done {
        session.execute("BEGIN").await.map_err(before)?;
        session
            .execute("CREATE TEMPORARY TABLE mine (n int) ON COMMIT DROP")
            .await
            .map_err(before)?;
        session.execute("SELECT count(*) FROM event_host.consumer_groups").await.map_err(before)?;
        pause(&mut self.random, 500, 3_000).await;
        session.execute("COMMIT").await.map(drop).map_err(before)
    }
}

/// Ends prepared transactions, some time after each was prepared, until there
/// will be no more.
async fn resolve_all(
    mut prepared: UnboundedReceiver<Prepared>,
    keep: Arc<AtomicBool>,
    sessions: Sessions,
    mut random: Rng,
) -> Account {
    let mut account = Account::default();
    let mut session = sessions.open(&mut random).await;
    while let Some(Prepared { name, ids }) = prepared.recv().await {
        pause(&mut random, 0, 80).await;
        while keep.load(Ordering::Relaxed) {
            pause(&mut random, 5, 10).await;
        }
        let commit = random.u8(..4) > 0;
        let how = if commit { "COMMIT" } else { "ROLLBACK" };
        let mut tried = false;
        loop {
            let sql = format!("{how} PREPARED '{name}'");
            match session.execute(AssertSqlSafe(sql)).await {
                Ok(_) => {
                    account.prepared += 1;
                    let fate = if commit { &mut account.committed } else { &mut account.undone };
                    fate.extend(ids);
                    break;
                }
                // There is none of this name: it was never prepared, or an
                // earlier try of ours has ended it.
                Err(sqlx::Error::Database(answer)) if answer.code().as_deref() == Some("42704") => {
                    let fate = if tried { &mut account.unknown } else { &mut account.undone };
                    fate.extend(ids);
                    break;
                }
                Err(_) => {
                    tried = true;
                    session = sessions.open(&mut random).await;
                    // So that hosts meet what was prepared before a restart.
                    pause(&mut random, 500, 1_500).await;
                }
            }
        }
    }
    account
}

async fn pause(random: &mut Rng, least: u64, most: u64) {
    sleep(Duration::from_millis(random.u64(least..=most))).await;
}
