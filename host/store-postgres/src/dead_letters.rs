//! Dead letters, and the way back.
//!
//! A replay takes the dead letter away and appends its copy in one transaction.
//! Row locks decide between two: who comes second waits, and finds it gone; who
//! replays all skips what somebody else has in hand.

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::PostgresStore;
use super::columns::{count, event_columns, read_log_event, time};
use super::connection::{DEADLINE, LONG_DEADLINE};
use super::error::PostgresError;
use super::on_shared::{on_shared, on_shared_patiently};
use super::piece::begin_long;
use event_host_core::digest::Digest;
use event_host_core::event::{GroupName, Position};
use event_host_store::driver::dead_letter_pages::Pages;
use event_host_store::driver::unreadable::Sifted;
use event_host_store::driver::{refusals, stored};
use event_host_store::{
    DeadLetter, DeadLetterFilter, DeadLetterId, DeadLetters, FailureRecord, Replayed, StoreError,
};

#[async_trait]
impl DeadLetters for PostgresStore {
    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let read = on_shared!(self.connections, "list dead letters", LONG_DEADLINE, |c| {
            list(c, filter)
        })?;
        Ok(self.said.tell("dead letters", read))
    }

    async fn dead_letter_ids(&self, group: &GroupName) -> Result<Vec<DeadLetterId>, StoreError> {
        on_shared!(self.connections, "list dead letters", LONG_DEADLINE, |c| { ids(c, group) })
    }

    async fn dead_letter(&self, id: DeadLetterId) -> Result<DeadLetter, StoreError> {
        on_shared!(self.connections, "read a dead letter", |c| one(c, id))
    }

    async fn replay(
        &self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        on_shared_patiently!(self.connections, "replay a dead letter", DEADLINE, |c| {
            replay(c, id, data, digest)
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
        on_shared_patiently!(self.connections, "replay dead letters", LONG_DEADLINE, |c| {
            replay_some(c, group, after, up_to, limit, digest)
        })
    }

    async fn discard(&self, id: DeadLetterId) -> Result<(), StoreError> {
        on_shared_patiently!(self.connections, "discard a dead letter", DEADLINE, |c| {
            discard(c, id)
        })
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, group_name, tenant, attempts, failure_kind, failure_text,
                    digest, dead_at, position, deliver_to,
                    type, time, event_id, source, subject,
                    datacontenttype, dataschema, partitionkey, deliver_after, extensions::text,
                    data
             FROM event_host.dead_letters ",
            $rest
        )
    };
}

fn read(row: &PgRow) -> Result<DeadLetter, PostgresError> {
    Ok(DeadLetter {
        id: DeadLetterId(row.try_get_unchecked(0)?),
        group: stored::group_name(row.try_get_unchecked(1)?)?,
        tenant: stored::tenant(row.try_get_unchecked(2)?)?,
        attempts: count(row, 3)?,
        failure: FailureRecord { kind: row.try_get_unchecked(4)?, text: row.try_get_unchecked(5)? },
        digest: row.try_get_unchecked(6)?,
        dead_at: time(row, 7)?,
        event: read_log_event(row, 8, 9, None, 10)?,
    })
}

pub(super) async fn list(
    connection: &mut PgConnection,
    filter: &DeadLetterFilter,
) -> Result<Sifted<DeadLetter>, PostgresError> {
    if let Some(group) = &filter.group {
        must_exist(connection, group).await?;
    }
    let mut transaction = begin_long(connection).await?;
    let mut pages = Pages::of(filter);
    while let Some((after, limit)) = pages.next_page() {
        let statement = match &filter.group {
            Some(group) => {
                sqlx::query(select!("WHERE group_name = $3 AND id > $1 ORDER BY id LIMIT $2"))
                    .bind(after)
                    .bind(limit)
                    .bind(group.as_str())
            }
            None => {
                sqlx::query(select!("WHERE id > $1 ORDER BY id LIMIT $2")).bind(after).bind(limit)
            }
        };
        let rows = statement.fetch_all(&mut *transaction).await?;
        for row in &rows {
            pages.add(DeadLetterId(row.try_get_unchecked(0)?), read(row));
        }
    }
    transaction.rollback().await?;
    Ok(pages.finish())
}

pub(super) async fn ids(
    connection: &mut PgConnection,
    group: &GroupName,
) -> Result<Vec<DeadLetterId>, PostgresError> {
    must_exist(connection, group).await?;
    let mut transaction = begin_long(connection).await?;
    let ids: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM event_host.dead_letters WHERE group_name = $1 ORDER BY id",
    )
    .bind(group.as_str())
    .fetch_all(&mut *transaction)
    .await?;
    transaction.rollback().await?;
    Ok(ids.into_iter().map(DeadLetterId).collect())
}

async fn must_exist(connection: &mut PgConnection, group: &GroupName) -> Result<(), PostgresError> {
    let exists: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM event_host.consumer_groups WHERE name = $1)",
    )
    .bind(group.as_str())
    .fetch_one(connection)
    .await?;
    if exists { Ok(()) } else { Err(refusals::no_group(group).into()) }
}

pub(super) async fn one(
    connection: &mut PgConnection,
    id: DeadLetterId,
) -> Result<DeadLetter, PostgresError> {
    let row = sqlx::query(select!("WHERE id = $1"))
        .bind(id.0)
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| refusals::no_dead_letter(id))?;
    read(&row)
}

/// Takes the dead letters whose ids are in `$1` away and appends a copy of each
/// in the order of the ids, to be delivered at once. Who else deletes one of them is waited for, and then
/// it is gone. `$2` is the component that is to handle the copies, or null; a
/// dead letter of a tenant that it was not deployed for stays where it is.
macro_rules! give_back {
    ($data:literal, $returning:literal) => {
        concat!(
            "WITH dead AS (
                 DELETE FROM event_host.dead_letters l
                 WHERE id = ANY ($1) AND failure_kind <> 'too-large' AND ($2::text IS NULL OR EXISTS (
                     SELECT FROM event_host.deployments d
                     WHERE d.tenant = l.tenant AND d.digest = $2))
                 RETURNING *)
             INSERT INTO event_host.events (tenant, deliver_to, digest, ",
            event_columns!(),
            ") SELECT tenant, group_name, $2, type, time, event_id, source, subject,
                      datacontenttype, dataschema, partitionkey, NULL, extensions, ",
            $data,
            " FROM dead ORDER BY id RETURNING ",
            $returning
        )
    };
}

/// One statement, which commits by itself.
pub(super) async fn replay(
    connection: &mut PgConnection,
    id: DeadLetterId,
    data: Option<&[u8]>,
    digest: Option<&Digest>,
) -> Result<Replayed, PostgresError> {
    let row = sqlx::query(give_back!("CASE WHEN $3 THEN $4 ELSE data END", "position, deliver_to"))
        .bind(vec![id.0])
        .bind(digest.map(Digest::as_str))
        .bind(data.is_some())
        .bind(data)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else {
        // It was gone, or is not whole, or its tenant has no such component.
        return Err(match (kind(connection, id).await?.as_deref(), digest) {
            (Some("too-large"), _) => refusals::not_whole(id),
            (Some(_), Some(digest)) => refusals::no_component(digest),
            _ => refusals::no_dead_letter(id),
        }
        .into());
    };
    Ok(Replayed {
        id,
        digest: digest.cloned(),
        position: Position(row.try_get_unchecked(0)?),
        group: stored::group_name(row.try_get_unchecked(1)?)?,
    })
}

/// The kind of a dead letter's failure, if it is there.
async fn kind(
    connection: &mut PgConnection,
    id: DeadLetterId,
) -> Result<Option<String>, PostgresError> {
    Ok(sqlx::query_scalar("SELECT failure_kind FROM event_host.dead_letters WHERE id = $1")
        .bind(id.0)
        .fetch_optional(connection)
        .await?)
}

pub(super) async fn replay_some(
    connection: &mut PgConnection,
    group: &GroupName,
    after: DeadLetterId,
    up_to: DeadLetterId,
    limit: usize,
    digest: Option<&Digest>,
) -> Result<Vec<Replayed>, PostgresError> {
    must_exist(connection, group).await?;
    let mut transaction = begin_long(connection).await?;
    let mut ids: Vec<i64> = sqlx::query_scalar(
        "SELECT id FROM event_host.dead_letters
         WHERE group_name = $1 AND id > $2 AND id <= $3 AND failure_kind <> 'too-large'
         ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED",
    )
    .bind(group.as_str())
    .bind(after.0)
    .bind(up_to.0)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(&mut *transaction)
    .await?;
    ids.sort_unstable();
    let positions: Vec<i64> = sqlx::query_scalar(give_back!("data", "position"))
        .bind(&ids)
        .bind(digest.map(Digest::as_str))
        .fetch_all(&mut *transaction)
        .await?;
    if positions.len() != ids.len() {
        // They are locked, so nobody else can have taken one.
        if let Some(digest) = digest {
            return Err(refusals::no_component(digest).into());
        }
        return Err(StoreError::Unusable(format!(
            "{} dead letters were to be replayed, and {} were",
            ids.len(),
            positions.len()
        ))
        .into());
    }
    transaction.commit().await?;
    let replayed = ids.into_iter().zip(positions).map(|(id, position)| Replayed {
        id: DeadLetterId(id),
        group: group.clone(),
        position: Position(position),
        digest: digest.cloned(),
    });
    Ok(replayed.collect())
}

pub(super) async fn discard(
    connection: &mut PgConnection,
    id: DeadLetterId,
) -> Result<(), PostgresError> {
    let done = sqlx::query("DELETE FROM event_host.dead_letters WHERE id = $1")
        .bind(id.0)
        .execute(connection)
        .await?;
    if done.rows_affected() == 0 { Err(refusals::no_dead_letter(id).into()) } else { Ok(()) }
}
