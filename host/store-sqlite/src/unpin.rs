//! Groups that keep more of the log from its retention than their tenant may: they let go
//! of it, and go on only with the word that accepts what is gone.

use sqlx::{Connection, Row, SqliteConnection};

use super::error::SqliteError;
use super::group_row::known;
use super::{log, retention};
use event_host_core::event::{GroupName, Position, Tenant};
use event_host_store::driver::gone::{Gone, without_what_is_gone};
use event_host_store::driver::{refusals, unpinned_reason};
use event_host_store::{Counting, LogPin, Retention, Start};

/// Pauses the group of a tenant that is furthest behind, and has it keep nothing in the log
/// any more, if it keeps more than `most` bytes.
///
/// The epoch goes up with it, so that what its leader has read and not settled is refused:
/// it may be gone before anybody resumes the group.
pub(super) async fn unpin(
    connection: &mut SqliteConnection,
    tenant: &Tenant,
    retention: &Retention,
    most: u64,
) -> Result<Option<LogPin>, SqliteError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let pin = retention::pin_of(&mut transaction, retention, Some(tenant), Counting::EXACT);
    let Some(pin) = pin.await?.filter(|pin| pin.bytes > most) else { return Ok(None) };
    sqlx::query(
        "UPDATE consumer_groups
         SET state = 'paused', reason = ?2, unpinned = 1, epoch = epoch + 1
         WHERE name = ?1 OR part_of = ?1",
    )
    .bind(pin.group.whole())
    .bind(unpinned_reason(tenant, &pin, most))
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Some(pin))
}

/// Has a group run again. One that kept nothing in the log keeps what it has before it
/// from now on; what is gone by then is refused unless that is `accepted`, and else it is
/// given.
pub(super) async fn resume(
    connection: &mut SqliteConnection,
    group: &GroupName,
    accepted: bool,
) -> Result<Option<Gone>, SqliteError> {
    // Nothing goes meanwhile.
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    if known(&mut transaction, group).await?.is_none() {
        return Err(refusals::no_group(group).into());
    }
    let row = sqlx::query(
        "SELECT max(unpinned), min(min(position, coalesce(first - 1, position)))
         FROM (SELECT g.unpinned, g.position, g.partitions, g.part_of, (
                   SELECT min(r.position) FROM redeliveries r
                   WHERE r.group_name = g.name
                     AND NOT EXISTS (SELECT 1 FROM deferred d
                                     WHERE d.group_name = r.group_name AND d.position = r.position)) AS first
               FROM consumer_groups g
               WHERE (g.name = ?1 OR g.part_of = ?1) AND (g.partition IS NULL OR g.partition < g.partitions))
         WHERE partitions = 1 OR part_of IS NOT NULL",
    )
    .bind(group.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    let is_unpinned: bool = row.try_get_unchecked(0)?;
    let place = Position(row.try_get_unchecked(1)?);
    let mut gone = None;
    if is_unpinned {
        let beginning = log::beginning(&mut transaction).await?;
        gone = beginning.gone_above(Start::Position(place), place);
        without_what_is_gone(group, gone.as_ref(), accepted)?;
    }
    let up_to = gone.as_ref().map_or(0, |gone| gone.up_to.0);
    sqlx::query(
        "UPDATE consumer_groups
         SET state = 'running', reason = NULL, unpinned = 0, epoch = epoch + unpinned
         WHERE name = ?1 OR part_of = ?1",
    )
    .bind(group.as_str())
    .execute(&mut *transaction)
    .await?;
    if up_to > 0 {
        sqlx::query(
            "UPDATE consumer_groups
             SET head_position = NULL, head_attempt = NULL, head_due_at = NULL,
                 head_failure_kind = NULL, head_failure_text = NULL
             WHERE (name = ?1 OR part_of = ?1) AND head_position <= ?2",
        )
        .bind(group.as_str())
        .bind(up_to)
        .execute(&mut *transaction)
        .await?;
        sqlx::query(
            "DELETE FROM redeliveries
             WHERE position <= ?2
               AND group_name IN (SELECT name FROM consumer_groups WHERE name = ?1 OR part_of = ?1)
               AND NOT EXISTS (SELECT 1 FROM deferred d
                               WHERE d.group_name = redeliveries.group_name
                                 AND d.position = redeliveries.position)",
        )
        .bind(group.as_str())
        .bind(up_to)
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(gone)
}
