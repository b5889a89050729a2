//! Dead letters, and the way back.
//!
//! A replay takes the dead letter away and appends its copy in one transaction.
//! SQLite has one writer at a time, so of two who replay the same dead letter
//! the second finds it gone.

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};

use super::SqliteStore;
use super::columns::{count, event_columns, read_log_event, text, time};
use super::connection::{LONG_DEADLINE, on_reader, on_writer};
use super::error::SqliteError;
use event_host_core::digest::Digest;
use event_host_core::event::{GroupName, Position};
use event_host_store::driver::dead_letter_pages::Pages;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::driver::{refusals, stored};
use event_host_store::{
    DeadLetter, DeadLetterFilter, DeadLetterId, DeadLetters, FailureRecord, Replayed, StoreError,
};

#[async_trait]
impl DeadLetters for SqliteStore {
    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let read = on_reader!(self.connections, "list dead letters", LONG_DEADLINE, |c| {
            list(c, filter)
        })?;
        Ok(self.said.tell("dead letters", read))
    }

    async fn dead_letter_ids(&self, group: &GroupName) -> Result<Vec<DeadLetterId>, StoreError> {
        on_reader!(self.connections, "list dead letters", LONG_DEADLINE, |c| { ids(c, group) })
    }

    async fn dead_letter(&self, id: DeadLetterId) -> Result<DeadLetter, StoreError> {
        on_reader!(self.connections, "read a dead letter", |c| one(c, id))
    }

    async fn replay(
        &self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        on_writer!(self.connections, "replay a dead letter", |c| { replay(c, id, data, digest) })
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
            replay_some(c, group, after, up_to, limit, digest)
        })
    }

    async fn discard(&self, id: DeadLetterId) -> Result<(), StoreError> {
        on_writer!(self.connections, "discard a dead letter", |c| discard(c, id))
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT dead_letters.id, group_name, tenant, attempts, failure_kind, failure_text,
                    digest, dead_at, position, deliver_to,
                    type, time, event_id, source, subject,
                    datacontenttype, dataschema, partitionkey, deliver_after, extensions, data
             FROM dead_letters ",
            $rest
        )
    };
}

fn read(row: &SqliteRow) -> Result<DeadLetter, SqliteError> {
    Ok(DeadLetter {
        id: DeadLetterId(row.try_get_unchecked(0)?),
        group: stored::group_name(&text(row, 1)?)?,
        tenant: stored::tenant(&text(row, 2)?)?,
        attempts: count(row, 3)?,
        failure: FailureRecord { kind: text(row, 4)?, text: text(row, 5)? },
        digest: text(row, 6)?,
        dead_at: time(row, 7)?,
        event: read_log_event(row, 8, 9, None, 10)?,
    })
}

pub(super) async fn list(
    connection: &mut SqliteConnection,
    filter: &DeadLetterFilter,
) -> Result<Sifted<DeadLetter>, SqliteError> {
    if let Some(group) = &filter.group {
        must_exist(connection, group).await?;
    }
    let mut pages = Pages::of(filter);
    while let Some((after, limit)) = pages.next_page() {
        let statement = match &filter.group {
            Some(group) => {
                sqlx::query(select!("WHERE group_name = ? AND id > ? ORDER BY id LIMIT ?"))
                    .bind(group.as_str())
                    .bind(after)
                    .bind(limit)
            }
            None => {
                sqlx::query(select!("WHERE id > ? ORDER BY id LIMIT ?")).bind(after).bind(limit)
            }
        };
        let rows = statement.fetch_all(&mut *connection).await?;
        for row in &rows {
            pages.add(DeadLetterId(row.try_get_unchecked(0)?), read(row));
        }
    }
    Ok(pages.finish())
}

pub(super) async fn ids(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<Vec<DeadLetterId>, SqliteError> {
    must_exist(connection, group).await?;
    let ids: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM dead_letters WHERE group_name = ? ORDER BY id")
            .bind(group.as_str())
            .fetch_all(connection)
            .await?;
    Ok(ids.into_iter().map(DeadLetterId).collect())
}

async fn must_exist(
    connection: &mut SqliteConnection,
    group: &GroupName,
) -> Result<(), SqliteError> {
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM consumer_groups WHERE name = ?)")
            .bind(group.as_str())
            .fetch_one(connection)
            .await?;
    if exists { Ok(()) } else { Err(refusals::no_group(group).into()) }
}

pub(super) async fn one(
    connection: &mut SqliteConnection,
    id: DeadLetterId,
) -> Result<DeadLetter, SqliteError> {
    let row = sqlx::query(select!("WHERE id = ?"))
        .bind(id.0)
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| refusals::no_dead_letter(id))?;
    read(&row)
}

pub(super) async fn replay(
    connection: &mut SqliteConnection,
    id: DeadLetterId,
    data: Option<&[u8]>,
    digest: Option<&Digest>,
) -> Result<Replayed, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let replayed = give_back(&mut transaction, id, data, digest).await?;
    transaction.commit().await?;
    Ok(replayed)
}

pub(super) async fn replay_some(
    connection: &mut SqliteConnection,
    group: &GroupName,
    after: DeadLetterId,
    up_to: DeadLetterId,
    limit: usize,
    digest: Option<&Digest>,
) -> Result<Vec<Replayed>, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    must_exist(&mut transaction, group).await?;
    let ids: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM dead_letters
         WHERE group_name = ? AND id > ? AND id <= ? AND failure_kind <> 'too-large'
         ORDER BY id LIMIT ?",
    )
    .bind(group.as_str())
    .bind(after.0)
    .bind(up_to.0)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut *transaction)
    .await?;
    let mut replayed = Vec::with_capacity(ids.len());
    for id in ids {
        replayed.push(give_back(&mut transaction, DeadLetterId(id), None, digest).await?);
    }
    transaction.commit().await?;
    Ok(replayed)
}

/// Within a transaction that has the write lock. The copy is delivered at once.
async fn give_back(
    connection: &mut SqliteConnection,
    id: DeadLetterId,
    data: Option<&[u8]>,
    digest: Option<&Digest>,
) -> Result<Replayed, SqliteError> {
    let appended = sqlx::query(concat!(
        "INSERT INTO events (tenant, deliver_to, digest, published_at, ",
        event_columns!(),
        ") SELECT tenant, group_name, ?1, ?2, type, time, event_id, source, subject,
                  datacontenttype, dataschema, partitionkey, NULL, extensions,
                  CASE WHEN ?3 THEN ?4 ELSE data END
           FROM dead_letters l
           WHERE id = ?5 AND failure_kind <> 'too-large' AND (?1 IS NULL OR EXISTS (
               SELECT 1 FROM deployments d WHERE d.tenant = l.tenant AND d.digest = ?1))"
    ))
    .bind(digest.map(Digest::as_str))
    .bind(Timestamp::now().as_microsecond())
    .bind(data.is_some())
    .bind(data)
    .bind(id.0)
    .execute(&mut *connection)
    .await?;
    if appended.rows_affected() == 0 {
        return Err(match (kind(connection, id).await?.as_deref(), digest) {
            (Some("too-large"), _) => refusals::not_whole(id),
            (Some(_), Some(digest)) => refusals::no_component(digest),
            _ => refusals::no_dead_letter(id),
        }
        .into());
    }
    let row = sqlx::query("DELETE FROM dead_letters WHERE id = ? RETURNING group_name")
        .bind(id.0)
        .fetch_one(&mut *connection)
        .await?;
    let group = stored::group_name(&text(&row, 0)?)?;
    Ok(Replayed {
        id,
        group,
        position: Position(appended.last_insert_rowid()),
        digest: digest.cloned(),
    })
}

/// The kind of a dead letter's failure, if it is there.
async fn kind(
    connection: &mut SqliteConnection,
    id: DeadLetterId,
) -> Result<Option<String>, SqliteError> {
    Ok(sqlx::query_scalar("SELECT failure_kind FROM dead_letters WHERE id = ?")
        .bind(id.0)
        .fetch_optional(connection)
        .await?)
}

pub(super) async fn discard(
    connection: &mut SqliteConnection,
    id: DeadLetterId,
) -> Result<(), SqliteError> {
    let done =
        sqlx::query("DELETE FROM dead_letters WHERE id = ?").bind(id.0).execute(connection).await?;
    if done.rows_affected() == 0 { Err(refusals::no_dead_letter(id).into()) } else { Ok(()) }
}
