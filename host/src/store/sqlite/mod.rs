//! The embedded store: SQLite.
//!
//! One file, in write-ahead mode, shared by as many processes as like. Every
//! write takes the write lock before it reads (`BEGIN IMMEDIATE`, or a single
//! statement, which does the same), so it never finds what it read outdated,
//! and reaches the disk before it is told of (`synchronous = FULL`).
//!
//! `open` finds and checks the file, `connection` shares the connections out
//! and bounds everything in time, `files` notices when they are not those at the path
//! any more, `schema` holds the migrations, `locks` says
//! who leads; the rest is SQL, by subject.

mod columns;
mod connection;
mod dead_letters;
mod deferred;
mod deployments;
mod error;
mod files;
mod groups;
mod lag;
mod locks;
mod log;
mod modes;
mod open;
mod redeliveries;
mod repartition;
mod retention;
mod schema;
mod settle;
mod status;
mod tenants;
#[cfg(test)]
mod tests;
mod unpin;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::repartition::parts as parts_of;
use super::unreadable::Said;
use super::{
    Adopted, Counting, Cursor, DeadLetter, DeadLetterFilter, DeadLetterId, Deployed, Deployment,
    Due, DueFetch, Enforced, Fetch, Fetched, Found, Gone, GroupControl, GroupRegistration,
    GroupState, GroupStatus, HostIdentity, Leadership, LockSession, LogPin, LogStatus, Mark,
    NewVersion, Redelivery, Removed, Replayed, Retention, Settled, Settlement, Sought, Start,
    Store, StoreError, StoreLimits, Version, VersionNumber, deployment, refusals,
};
use crate::digest::Digest;
use crate::event::{Epoch, Event, GroupName, HandlerName, Position, Tenant};
use connection::{Connections, LONG_DEADLINE, READERS, on_reader, on_writer};

pub use open::{OpenOptions, database_path};

/// How long it may take to close the database at the end: a process shall not hang then.
const CLOSING: Duration = Duration::from_secs(5);

/// How long a lock session that is asked for waits at most for the watcher to forget what
/// it knew of another database.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(2);

/// Whoever asks for exact numbers waits for them.
const EXACT_DEADLINE: Duration = Duration::from_secs(3_600);

/// Exact numbers take as long as there is to count.
fn deadline(counting: Counting) -> Duration {
    if counting == Counting::EXACT { EXACT_DEADLINE } else { LONG_DEADLINE }
}

/// The store in a SQLite file. A clone shares its connections.
#[derive(Clone)]
pub struct SqliteStore {
    connections: Arc<Connections>,
    said: Arc<Said>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the database that a URL or a path names; see [`database_path`].
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for what is not a usable database file: a folder,
    /// a file of another kind, a missing or read-only file or folder, a schema
    /// that is newer than this version or, with
    /// [`OpenOptions::require_schema`], missing or older.
    pub async fn open(database: &str, options: OpenOptions) -> Result<Self, StoreError> {
        let connections = open::open(database, options).await?;
        Ok(Self { connections: Arc::new(connections), said: Arc::default() })
    }

    /// The database file: absolute, and without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.connections.path()
    }

    async fn led_parts(&self, group: &GroupName) -> Result<Vec<GroupName>, StoreError> {
        on_reader!(self.connections, "read a group", |c| groups::led_parts(c, group))
    }

    /// Closes the connections, so that SQLite tidies up the files beside the
    /// database. What is asked for afterwards opens them again.
    ///
    /// # Errors
    /// When SQLite cannot, within the usual time.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.connections.within("close the database", CLOSING, self.connections.close()).await
    }
}

impl SqliteStore {
    /// Waits until the watcher has been told that another database is open, a moment at
    /// most: the next session is asked for again anyway.
    async fn wait_until_forgotten(&self) {
        let deadline = tokio::time::Instant::now() + FORGOTTEN_WITHIN;
        while self.connections.has_change() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn close(&self) -> Result<(), StoreError> {
        Self::close(self).await
    }

    async fn migrate(&self) -> Result<Vec<String>, StoreError> {
        on_writer!(self.connections, "bring the schema up to date", |c| schema::migrate(
            c,
            self.path()
        ))
    }

    /// The log is one file, which is wherever it is, and its locks and positions
    /// are the system's and SQLite's own. A cursor beyond it is refused with its
    /// group.
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn adopt(&self) -> Result<Adopted, StoreError> {
        Err(StoreError::Refused(format!(
            "{} is a file of SQLite's, which is at home wherever it lies: there is nothing to adopt",
            self.path().display()
        )))
    }

    async fn publish(
        &self,
        tenant: &Tenant,
        events: &[Event],
    ) -> Result<Vec<Position>, StoreError> {
        on_writer!(self.connections, "publish", |c| log::publish(c, tenant, events))
    }

    async fn safe_position(&self) -> Result<Position, StoreError> {
        if let Some(why) = self.connections.take_change() {
            return Err(StoreError::Changed(why));
        }
        on_reader!(self.connections, "read the safe position", |c| log::last_position(c))
    }

    async fn enforce_retention(&self, retention: &Retention) -> Result<Enforced, StoreError> {
        retention::enforce_retention(&self.connections, retention).await
    }

    async fn unpin(
        &self,
        tenant: &Tenant,
        retention: &Retention,
        most: u64,
    ) -> Result<Option<LogPin>, StoreError> {
        // Most looks find nothing, and have no need of the write lock for that.
        let pin = on_reader!(self.connections, "see what a tenant keeps in the log", |c| {
            retention::pin_of(c, retention, Some(tenant), Counting::EXACT)
        })?;
        if pin.is_none_or(|pin| pin.bytes <= most) {
            return Ok(None);
        }
        on_writer!(self.connections, "have a group keep nothing in the log", |c| {
            unpin::unpin(c, tenant, retention, most)
        })
    }

    fn limits(&self) -> StoreLimits {
        StoreLimits { reads: READERS, writes: 1 }
    }

    async fn fetch(&self, fetch: Fetch<'_>) -> Result<Fetched, StoreError> {
        // The log that was replaced by this one may have been longer.
        let is_first = self.connections.times_replaced() == 0;
        on_reader!(self.connections, "fetch events", |c| async {
            if is_first {
                return log::fetch(c, &fetch).await;
            }
            let up_to = fetch.up_to.min(log::last_position(c).await?);
            log::fetch(c, &Fetch { up_to, ..fetch.clone() }).await
        })
    }

    async fn lock_session(&self, host: &HostIdentity) -> Result<Box<dyn LockSession>, StoreError> {
        // A host that lost its session comes here: the files may be why.
        open::again(&self.connections).await?;
        if self.connections.has_change() {
            // Whoever led before that would read the new log up to where the old one was safe.
            self.wait_until_forgotten().await;
            return Err(StoreError::Unavailable(format!(
                "another database is at {} now: what was known of the one before is forgotten first",
                self.path().display()
            )));
        }
        Ok(Box::new(locks::FileLocks::new(Arc::clone(&self.connections), host)))
    }

    async fn ensure_group(&self, settings: &GroupRegistration) -> Result<(), StoreError> {
        // Held, if at all, until the group is repartitioned.
        let mut vacancies = None;
        if on_reader!(self.connections, "read a group", |c| {
            groups::is_split_otherwise(c, settings)
        })? {
            let mut affected = self.led_parts(&settings.name).await?;
            affected.extend(parts_of(&settings.name, settings.partitions));
            vacancies = locks::Vacancy::of_all(self.path(), &affected).await?;
            if vacancies.is_none() {
                return Err(refusals::still_led_somewhere(&settings.name));
            }
        }
        let is_vacant = vacancies.is_some();
        on_writer!(self.connections, "make a group", LONG_DEADLINE, |c| {
            groups::ensure(c, settings, is_vacant)
        })
    }

    async fn begin_leadership(
        &self,
        group: &GroupName,
        host: &HostIdentity,
    ) -> Result<Leadership, StoreError> {
        on_writer!(self.connections, "lead a group", |c| groups::begin_leadership(c, group, host))
    }

    async fn end_leadership(&self, group: &GroupName, epoch: Epoch) -> Result<(), StoreError> {
        on_writer!(self.connections, "end the leadership of a group", |c| {
            groups::end_leadership(c, group, epoch)
        })
    }

    async fn record_work_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "record the begin of work", |c| {
            groups::record_work_started(c, group, epoch, settled)
        })
    }

    async fn record_attempt_started(
        &self,
        group: &GroupName,
        epoch: Epoch,
        settled: i64,
        mark: Mark,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "record the begin of an attempt", |c| {
            groups::record_attempt_started(c, group, epoch, settled, mark)
        })
    }

    async fn withdraw_attempt(
        &self,
        group: &GroupName,
        epoch: Epoch,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "forget the begin of an attempt", |c| {
            groups::withdraw_attempt(c, group, epoch)
        })
    }

    async fn settle(&self, settlement: &Settlement) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "settle", |c| settle::settle(c, settlement))
    }

    /// Read on the connection that writes: a settlement whose outcome is unknown
    /// is over by then, one way or the other.
    async fn cursor(&self, group: &GroupName) -> Result<Cursor, StoreError> {
        on_writer!(self.connections, "read a cursor", |c| groups::cursor(c, group))
    }

    async fn redeliveries(&self, group: &GroupName) -> Result<Vec<Redelivery>, StoreError> {
        on_reader!(self.connections, "list redeliveries", |c| redeliveries::list(c, group))
    }

    async fn due(&self, due: DueFetch<'_>) -> Result<Due, StoreError> {
        on_reader!(self.connections, "read what is due", |c| deferred::due(c, &due))
    }

    async fn deferred(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_reader!(self.connections, "count what is deferred", LONG_DEADLINE, |c| {
            deferred::count(c, group)
        })
    }

    async fn fetch_at(
        &self,
        group: &GroupName,
        positions: &[Position],
        max_bytes: usize,
    ) -> Result<Found, StoreError> {
        on_reader!(self.connections, "fetch events again", |c| {
            redeliveries::events(c, group, positions, max_bytes)
        })
    }

    async fn group_states(&self) -> Result<Vec<GroupControl>, StoreError> {
        let read = on_reader!(self.connections, "read the states of the groups", |c| {
            groups::group_states(c)
        })?;
        Ok(self.said.tell("groups", read))
    }

    async fn state_get(
        &self,
        group: &GroupName,
        scope: &str,
        key: &str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        on_reader!(self.connections, "read state", |c| settle::state_get(c, group, scope, key))
    }

    async fn state_keys(
        &self,
        group: &GroupName,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        on_reader!(self.connections, "list state", |c| {
            settle::state_keys(c, group, scope, prefix, limit)
        })
    }

    async fn state_key_count(&self, group: &GroupName) -> Result<i64, StoreError> {
        on_reader!(self.connections, "count the keys of a state", LONG_DEADLINE, |c| {
            settle::state_key_count(c, group)
        })
    }

    async fn status_counted(&self, counting: Counting) -> Result<LogStatus, StoreError> {
        on_reader!(self.connections, "read the status", deadline(counting), |c| {
            status::log_and_groups(c, self.path(), counting)
        })
    }

    async fn group_status_counted(
        &self,
        group: &GroupName,
        counting: Counting,
    ) -> Result<GroupStatus, StoreError> {
        on_reader!(self.connections, "read a group", deadline(counting), |c| {
            status::group(c, self.path(), group, counting)
        })
    }

    async fn set_note(&self, groups: &[GroupName], note: Option<&str>) -> Result<(), StoreError> {
        on_writer!(self.connections, "say something of groups", |c| {
            groups::set_note(c, groups, note)
        })
    }

    async fn record_trip(
        &self,
        group: &GroupName,
        epoch: Epoch,
        reason: Option<&str>,
    ) -> Result<Settled, StoreError> {
        on_writer!(self.connections, "record that a group tripped", |c| {
            groups::record_trip(c, group, epoch, reason)
        })
    }

    async fn pause(&self, group: &GroupName, reason: &str) -> Result<(), StoreError> {
        on_writer!(self.connections, "pause a group", |c| {
            groups::set_state(c, group, GroupState::Paused, Some(reason))
        })
    }

    async fn resume(&self, group: &GroupName) -> Result<(), StoreError> {
        on_writer!(self.connections, "resume a group", |c| { unpin::resume(c, group, false) })
            .map(drop)
    }

    async fn resume_without_what_is_gone(
        &self,
        group: &GroupName,
    ) -> Result<Option<Gone>, StoreError> {
        on_writer!(self.connections, "resume a group", |c| unpin::resume(c, group, true))
    }

    async fn seek_to(
        &self,
        group: &GroupName,
        to: Start,
        exactly: bool,
    ) -> Result<Sought, StoreError> {
        on_writer!(self.connections, "move a cursor", LONG_DEADLINE, |c| {
            groups::seek(c, group, to, exactly)
        })
    }

    async fn remove_group(
        &self,
        group: &GroupName,
        with_dead_letters: bool,
    ) -> Result<Removed, StoreError> {
        let leader = on_reader!(self.connections, "read a group", |c| groups::leader(c, group))?;
        let parts = self.led_parts(group).await?;
        let Some(_vacancies) = locks::Vacancy::of_all(self.path(), &parts).await? else {
            return Err(refusals::still_led(group, leader.as_ref()));
        };
        on_writer!(self.connections, "remove a group", LONG_DEADLINE, |c| {
            groups::remove(c, group, with_dead_letters)
        })
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let read = on_reader!(self.connections, "list dead letters", LONG_DEADLINE, |c| {
            dead_letters::list(c, filter)
        })?;
        Ok(self.said.tell("dead letters", read))
    }

    async fn dead_letter_ids(&self, group: &GroupName) -> Result<Vec<DeadLetterId>, StoreError> {
        on_reader!(self.connections, "list dead letters", LONG_DEADLINE, |c| {
            dead_letters::ids(c, group)
        })
    }

    async fn dead_letter(&self, id: DeadLetterId) -> Result<DeadLetter, StoreError> {
        on_reader!(self.connections, "read a dead letter", |c| dead_letters::one(c, id))
    }

    async fn replay(
        &self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        on_writer!(self.connections, "replay a dead letter", |c| {
            dead_letters::replay(c, id, data, digest)
        })
    }

    async fn replay_some(
        &self,
        group: &GroupName,
        after: DeadLetterId,
        up_to: DeadLetterId,
        limit: usize,
        digest: Option<&Digest>,
    ) -> Result<Vec<Replayed>, StoreError> {
        on_writer!(self.connections, "replay dead letters", LONG_DEADLINE, |c| {
            dead_letters::replay_some(c, group, after, up_to, limit, digest)
        })
    }

    async fn discard(&self, id: DeadLetterId) -> Result<(), StoreError> {
        on_writer!(self.connections, "discard a dead letter", |c| dead_letters::discard(c, id))
    }

    async fn deploy(&self, new: NewVersion<'_>) -> Result<Deployment, StoreError> {
        let digest = Digest::of(new.component);
        on_writer!(self.connections, "deploy a component", LONG_DEADLINE, |c| {
            deployments::deploy(c, new, &digest)
        })
    }

    async fn rollback(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
        from: Option<VersionNumber>,
    ) -> Result<Version, StoreError> {
        on_writer!(self.connections, "roll a handler back", |c| {
            deployments::rollback(c, tenant, handler, from)
        })
    }

    async fn versions(
        &self,
        tenant: &Tenant,
        handler: &HandlerName,
    ) -> Result<Vec<Version>, StoreError> {
        on_reader!(self.connections, "list the versions of a handler", |c| {
            deployments::versions(c, tenant, handler)
        })
    }

    async fn deployed(&self) -> Result<Vec<Deployed>, StoreError> {
        let read =
            on_reader!(self.connections, "see what is deployed", |c| deployments::deployed(c))?;
        Ok(self.said.tell("deployments", read))
    }

    async fn component(&self, tenant: &Tenant, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        let bytes = on_reader!(self.connections, "read a component", LONG_DEADLINE, |c| {
            deployments::component(c, tenant, digest)
        })?;
        deployment::intact(digest, bytes).await
    }

    async fn digests(
        &self,
        tenant: &Tenant,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<Digest>, StoreError> {
        on_reader!(self.connections, "look for components", |c| {
            deployments::digests(c, tenant, prefix, limit)
        })
    }

    async fn tenant_dead_letters(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_reader!(self.connections, "count dead letters", LONG_DEADLINE, |c| {
            tenants::dead_letters(c, tenant)
        })
    }

    async fn tenant_dead_letter_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_reader!(self.connections, "measure dead letters", LONG_DEADLINE, |c| {
            tenants::dead_letter_bytes(c, tenant)
        })
    }

    async fn tenant_state_bytes(&self, tenant: &Tenant) -> Result<i64, StoreError> {
        on_reader!(self.connections, "measure state", LONG_DEADLINE, |c| {
            tenants::state_bytes(c, tenant)
        })
    }
}
