//! Sees to it that a host that only seems to live keeps nothing, and says so.

use std::collections::BTreeMap;

use sqlx::Row;
use sqlx::postgres::PgRow;
use tracing::warn;

use super::HostSession;
use crate::error::PostgresError;

/// A leader whose last heartbeat is older than this, in seconds, has stepped
/// down by itself if it can still do anything: its session may be ended.
const SILENT_AFTER: f64 = 7.0;

impl HostSession {
    /// Sees to it that whoever only seems to live keeps no group.
    pub(super) async fn contest(&mut self) -> Result<(), PostgresError> {
        let rows = sqlx::query(
            "SELECT hostname, host_pid, silent_seconds, groups, group_name, pid, is_its_own,
                    prepared, application, username, ended, is_over
             FROM event_host.contest_hosts($1, $2)",
        )
        .bind(&self.host.id)
        .bind(SILENT_AFTER)
        .fetch_all(&mut self.connection)
        .await?;
        let mut held = BTreeMap::new();
        for row in &rows {
            let holder = Holder::read(row)?;
            held.insert(holder.key(), holder);
        }
        self.said.retain(|said| held.contains_key(said));
        for (key, holder) in held {
            if self.said.insert(key) {
                holder.tell();
            }
        }
        Ok(())
    }
}

/// A host, who holds its lock, and whether something was done about that.
pub(super) type HolderKey = (String, i64, Option<i32>, Option<String>, bool);

/// A host whose session is over though its row says otherwise, and who holds its lock.
struct Holder {
    hostname: String,
    pid: i64,
    silent_seconds: f64,
    /// How many groups it led, and one of them.
    groups: i64,
    group: Option<String>,
    process: Option<i32>,
    is_its_own: bool,
    prepared: Option<String>,
    application: String,
    user: String,
    ended: bool,
    is_over: bool,
}

impl Holder {
    fn read(row: &PgRow) -> Result<Self, PostgresError> {
        Ok(Self {
            hostname: row.try_get_unchecked(0)?,
            pid: row.try_get_unchecked(1)?,
            silent_seconds: row.try_get_unchecked(2)?,
            groups: row.try_get_unchecked(3)?,
            group: row.try_get_unchecked(4)?,
            process: row.try_get_unchecked(5)?,
            is_its_own: row.try_get_unchecked(6)?,
            prepared: row.try_get_unchecked(7)?,
            application: row.try_get_unchecked(8)?,
            user: row.try_get_unchecked(9)?,
            ended: row.try_get_unchecked(10)?,
            is_over: row.try_get_unchecked(11)?,
        })
    }

    /// By which it is told from others, and from itself once something else was done
    /// about it.
    fn key(&self) -> HolderKey {
        let done = self.ended || self.is_over;
        (self.hostname.clone(), self.pid, self.process, self.prepared.clone(), done)
    }

    fn tell(self) {
        let Self { hostname, pid, silent_seconds, groups, group, process, .. } = self;
        let Self { prepared, application, user, is_its_own, .. } = self;
        let done = match (self.ended, self.is_over) {
            (true, _) => "its session was ended",
            (false, true) => {
                "this role may not end its session, so its groups are claimed all the same; if hosts connect as several roles, grant them each other or pg_signal_backend"
            }
            (false, false) => {
                "this role may not end its session, and the row of the host is locked, too: end it as a superuser with pg_terminate_backend"
            }
        };
        if !is_its_own {
            warn!(
                process,
                prepared,
                application,
                user,
                hostname,
                pid,
                group,
                groups,
                "somebody else holds the lock of a host that is gone: {done}"
            );
        } else if self.ended {
            warn!(
                hostname,
                pid,
                backend = process,
                silent_seconds,
                group,
                groups,
                "ended the lock session of a host that has been silent for too long"
            );
        } else {
            warn!(
                hostname,
                pid,
                backend = process,
                silent_seconds,
                user,
                group,
                groups,
                "a host that has been silent for too long leads groups: {done}"
            );
        }
    }
}
