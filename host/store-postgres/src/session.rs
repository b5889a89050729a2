//! What the host relies on in a session of the server's.
//!
//! An administrator may have changed any setting for the database or for the role,
//! and behind a pooler whoever had the session before may have left something. So
//! nothing is taken for granted. On a session of its own the host sets once what it
//! needs ([`SESSION`]). On one that a pooler gives it, it sets the same in every
//! transaction, for that transaction ([`begin_text`]): the next client finds nothing
//! of it. What only the administrator should change is refused by name ([`check`]).

use sqlx::{PgConnection, Row};

use super::error::PostgresError;
use event_host_store::StoreError;

/// How long a statement of a leader waits for a lock, as a literal of SQL.
macro_rules! impatient {
    () => {
        "'200ms'"
    };
}

/// How long a statement that an operator asked for waits for a lock.
macro_rules! patient {
    () => {
        "'10s'"
    };
}

/// The settings that the host's statements need, each with `$set` before it.
///
/// The time limits come first. A host may be gone, or frozen, in the middle of
/// anything, and they are what has the server end its statement, or its transaction,
/// and with it every lock: also the one on a group's row, and the one on the log,
/// which would hold up all groups. A statement that waits for a lock has one of the
/// few connections that all groups share, so it gives up soon and is tried again.
///
/// `synchronous_commit`: what was settled must not be lost in a crash of the server.
/// `row_security`: a policy that would hide events is an error. The search path: an
/// operator or a function in some schema must not stand for the server's own.
///
/// Each statement goes by its index, as all are written to: a plan that was made and
/// kept while the log was short would read the whole log for every batch once it is
/// long, until somebody analyses the table. So the plan does not depend on the
/// parameters either, and to plan again for each, as the server does where it expects
/// few rows, would take longer than to read them. Compiling a plan never pays here.
macro_rules! settings {
    ($set:literal, $lock_timeout:expr) => {
        concat!(
            $set,
            "statement_timeout = '15s'; ",
            $set,
            "lock_timeout = ",
            $lock_timeout,
            "; ",
            $set,
            "idle_in_transaction_session_timeout = '10s'; ",
            $set,
            "synchronous_commit = on; ",
            $set,
            "row_security = off; ",
            $set,
            "search_path = pg_catalog, pg_temp; ",
            $set,
            "standard_conforming_strings = on; ",
            $set,
            "transform_null_equals = off; ",
            $set,
            "exit_on_error = off; ",
            $set,
            "enable_seqscan = off; ",
            $set,
            "enable_bitmapscan = off; ",
            $set,
            "enable_indexscan = on; ",
            $set,
            "enable_indexonlyscan = on; ",
            $set,
            "enable_nestloop = on; ",
            $set,
            "enable_partition_pruning = on; ",
            $set,
            "plan_cache_mode = force_generic_plan; ",
            $set,
            "jit = off"
        )
    };
}

/// Sent before [`SESSION`].
pub(super) const FIRST: &str = "SET statement_timeout = '15s'";

/// For the sessions that are the host's own. Its statements read what is committed
/// by the time they begin, and the session may be idle for as long as it likes.
///
/// The last settings are not known to every server, or do not work on every system,
/// and each is tried by itself. They have the server notice a network that swallows
/// everything, and a host that is gone.
pub(super) const SESSION: &str = concat!(
    settings!("SET ", impatient!()),
    ";
    SET default_transaction_isolation = 'read committed';
    SET default_transaction_deferrable = off;
    DO $$
    DECLARE
        setting record;
    BEGIN
        FOR setting IN VALUES
            ('idle_session_timeout', '0'),
            ('transaction_timeout', '0'),
            ('client_connection_check_interval', '500ms'),
            ('tcp_user_timeout', '5s'),
            ('tcp_keepalives_idle', '2s'),
            ('tcp_keepalives_interval', '1s'),
            ('tcp_keepalives_count', '3')
        LOOP
            BEGIN
                PERFORM set_config(setting.column1, setting.column2, false);
            EXCEPTION WHEN OTHERS THEN
                RAISE DEBUG '% cannot be set here: %', setting.column1, SQLERRM;
            END;
        END LOOP;
    END
    $$"
);

/// The first version of the server that bounds whole transactions in time.
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;

/// How long a statement may wait for others to let go of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// For a leader, and all that happens by itself.
    Short,
    /// For an operator's request.
    Long,
}

impl Patience {
    /// Sets it on a session of the host's own.
    pub(super) fn set_text(self) -> &'static str {
        match self {
            Self::Short => concat!("SET lock_timeout = ", impatient!()),
            Self::Long => concat!("SET lock_timeout = ", patient!()),
        }
    }
}

/// What a transaction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// With each statement, what is committed by then.
    Committed,
    /// All in one snapshot; it writes nothing.
    Snapshot,
}

/// Begins a transaction that needs nothing of its session, in one round trip.
pub(super) fn begin_text(
    connection: &PgConnection,
    reads: Reads,
    patience: Patience,
) -> &'static str {
    macro_rules! begin {
        ($isolation:literal, $lock_timeout:expr, $more:literal) => {
            concat!(
                "BEGIN ISOLATION LEVEL ",
                $isolation,
                ", NOT DEFERRABLE; ",
                settings!("SET LOCAL ", $lock_timeout),
                $more
            )
        };
        ($isolation:literal, $lock_timeout:expr) => {{
            let version = connection.server_version_num();
            if version.is_some_and(|version| version >= TRANSACTION_TIMEOUT_SINCE) {
                begin!($isolation, $lock_timeout, "; SET LOCAL transaction_timeout = 0")
            } else {
                begin!($isolation, $lock_timeout, "")
            }
        }};
    }
    match (reads, patience) {
        (Reads::Committed, Patience::Short) => begin!("READ COMMITTED", impatient!()),
        (Reads::Committed, Patience::Long) => begin!("READ COMMITTED", patient!()),
        (Reads::Snapshot, _) => begin!("REPEATABLE READ, READ ONLY", impatient!()),
    }
}

/// Refuses what the host must not put right by itself: sessions that only read, as an
/// administrator has them where a disk is full, and sessions in which the server does
/// not look after the references between tables.
pub(super) async fn check(
    connection: &mut PgConnection,
    server: &str,
) -> Result<(), PostgresError> {
    let row = sqlx::query(
        "SELECT name, setting, source FROM pg_settings
         WHERE CASE name WHEN 'default_transaction_read_only'
                             THEN setting = 'on' AND NOT pg_is_in_recovery()
                         WHEN 'session_replication_role' THEN setting = 'replica' END
         LIMIT 1",
    )
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(()) };
    let (name, setting): (&str, &str) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
    let source: &str = row.try_get_unchecked(2)?;
    let set_by = match source {
        "database" | "user" | "database user" => {
            "take it back with `ALTER DATABASE … RESET` or `ALTER ROLE … RESET`"
        }
        "client" => "take it out of the URL's options",
        _ => "take it out of the server's configuration",
    };
    Err(StoreError::Unusable(format!(
        "`{name}` is `{setting}` for the sessions of this role at {server} (set by: {source}), with which the host cannot keep its promises: {set_by}"
    ))
    .into())
}
