//! What PostgreSQL can answer, told so that somebody can act on it.

use std::fmt;

use sqlx::error::DatabaseError;

use event_host_store::StoreError;

/// Why an operation broke off: by an answer that is ready for the caller, or
/// by an error that still lacks the words of where and what.
#[derive(Debug)]
pub(super) enum PostgresError {
    /// An answer for the caller.
    Told(StoreError),
    /// What sqlx said.
    Sql(sqlx::Error),
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(told) => told.fmt(f),
            Self::Sql(error) => error.fmt(f),
        }
    }
}

impl From<StoreError> for PostgresError {
    fn from(error: StoreError) -> Self {
        Self::Told(error)
    }
}

impl From<sqlx::Error> for PostgresError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// What `RAISE EXCEPTION` gives where it names no other: so an operator's trigger refuses
/// a row. The host's own functions name others.
const RAISED: &str = "P0001";

impl PostgresError {
    /// Whether a statement gave up on a lock: the session is well, and the
    /// transaction, if there is one, is to be rolled back.
    pub(super) fn waited_in_vain(&self) -> bool {
        matches!(self, Self::Sql(sqlx::Error::Database(answer))
            if answer.code().as_deref() == Some("55P03"))
    }

    /// Of a statement that stores what events came to: an error for what it holds is
    /// told as that.
    pub(super) fn of_what_is_stored(self) -> Self {
        match self {
            Self::Sql(sqlx::Error::Database(answer))
                if answer.code().is_some_and(|code| {
                    code == RAISED || matches!(code.get(..2), Some("22" | "23" | "54"))
                }) =>
            {
                StoreError::Unstorable(answer.message().to_owned()).into()
            }
            Self::Sql(sqlx::Error::Encode(why)) => StoreError::Unstorable(why.to_string()).into(),
            other => other,
        }
    }

    /// Whether there is no session any more: the network broke, or the server
    /// stopped, or somebody ended it.
    pub(super) fn ended_the_session(&self) -> bool {
        match self {
            Self::Sql(sqlx::Error::Io(_)) => true,
            Self::Sql(sqlx::Error::Database(answer)) => {
                matches!(answer.code().as_deref(), Some("57P01" | "57P02" | "57P03" | "57P05"))
            }
            Self::Sql(_) | Self::Told(_) => false,
        }
    }

    /// The answer for the caller: `what` was to be done at `server`.
    pub(super) fn told(self, what: &str, server: &str) -> StoreError {
        let error = match self {
            Self::Told(told) => return told,
            Self::Sql(error) => error,
        };
        let unavailable = |why: String| StoreError::Unavailable(format!("cannot {what}: {why}"));
        let unusable = |why: String| StoreError::Unusable(format!("cannot {what}: {why}"));
        match &error {
            sqlx::Error::Database(answer) => answered(answer.as_ref(), what, server),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                unusable(format!("{server} holds what this version cannot read: {error}"))
            }
            sqlx::Error::Tls(why) => unusable(format!(
                "no encrypted connection to {server} ({why}): see `sslmode` and `sslrootcert` of the URL"
            )),
            sqlx::Error::Configuration(why) => unusable(format!("{server}: {why}")),
            sqlx::Error::Io(why) => unavailable(format!("{server} cannot be reached ({why})")),
            _ => unavailable(format!("the connection to {server} broke ({error})")),
        }
    }
}

/// What an SQLSTATE means here; the codes are listed in appendix A of
/// PostgreSQL's manual.
fn answered(error: &dyn DatabaseError, what: &str, server: &str) -> StoreError {
    let message = error.message();
    let unavailable = |why: String| StoreError::Unavailable(format!("cannot {what}: {why}"));
    let busy = |why: String| StoreError::Busy(format!("cannot {what}: {why}"));
    let unusable = |why: String| StoreError::Unusable(format!("cannot {what}: {why}"));
    let code = error.code().unwrap_or_default();
    match &*code {
        // The server has undone these.
        "57014" => busy(format!("{server} took too long ({message})")),
        "55P03" => busy(format!("somebody else holds what it needs locked ({message})")),
        "40001" | "40P01" => busy(format!("others stood in the way ({message})")),
        "25006" => busy(format!(
            "{server} only reads ({message}): the host needs the primary server, not a standby, and sessions for which `default_transaction_read_only` is off"
        )),
        "42P01" | "3F000" | "42883" | "42703" => unusable(format!(
            "{server} has no tables of event-host, or older ones ({message}): run `host migrate`"
        )),
        "26000" | "42P05" => unusable(format!("{} ({message})", statements_are_lost(server))),
        "42501" => unusable(format!(
            "this role may not do that at {server} ({message}): `host grants` prints the rights that a role needs"
        )),
        "3D000" | "28000" | "28P01" => unusable(format!("{server} lets nobody in ({message})")),
        RAISED => StoreError::Refused(format!("cannot {what}: {message}")),
        "54000" | "54001" | "22001" => {
            StoreError::Refused(format!("cannot {what}: a value is too large ({message})"))
        }
        _ => match code.get(..2).unwrap_or_default() {
            "23" => StoreError::Refused(format!("cannot {what}: {message}")),
            // Connections, disk, memory.
            "53" => busy(format!("{server}: {message}")),
            // The network, an operator's doing, system errors.
            "08" | "57" | "58" => unavailable(format!("{server}: {message}")),
            "22" => StoreError::Refused(format!("cannot {what}: {message}")),
            _ => unusable(format!("{server} says: {message} ({code})")),
        },
    }
}

/// Where prepared statements are not those of the client.
pub(super) fn statements_are_lost(server: &str) -> String {
    format!(
        "{server} is a pooler that shares its sessions out by the transaction and does not carry prepared statements from one to the next: pool by session, or use PgBouncer 1.21 or later with `max_prepared_statements` above 0; either way give a direct connection to the server as `lock_database`"
    )
}
