//! Groups that keep more of the log from its retention than their tenant may: they let go
//! of it, and go on only with the word that accepts what is gone.

use sqlx::{Connection, Executor, PgConnection, Row};

use super::error::PostgresError;
use super::group_row::{keep_all_events, known};
use super::piece::LONG_STATEMENT;
use super::{log, repartition, retention};
use event_host_core::event::{GroupName, Position, Tenant};
use event_host_store::driver::gone::{Gone, without_what_is_gone};
use event_host_store::driver::{refusals, unpinned_reason};
use event_host_store::{LogPin, Retention, Start};

/// Pauses the group of a tenant that is furthest behind, and has it keep nothing in the log
/// any more, if it keeps more than `most` bytes.
///
/// The epoch goes up in the same statement, so that what its leader has read and not
/// settled is refused: it may be gone before anybody resumes the group.
pub(super) async fn unpin(
    connection: &mut PgConnection,
    tenant: &Tenant,
    retention: &Retention,
    most: u64,
) -> Result<Option<LogPin>, PostgresError> {
    let too_much = async |connection: &mut PgConnection| {
        let pin = retention::pin_of(connection, retention, Some(tenant)).await?;
        Ok::<_, PostgresError>(pin.filter(|pin| pin.bytes > most))
    };
    let Some(pin) = too_much(connection).await? else { return Ok(None) };
    let group = pin.group.group();
    let mut transaction = connection.begin().await?;
    repartition::lock_rows(&mut transaction, &group).await?;
    // What was settled before the lock. Another group's turn comes with the next look.
    let Some(pin) = too_much(&mut transaction).await?.filter(|pin| pin.group.group() == group)
    else {
        return Ok(None);
    };
    sqlx::query(
        "UPDATE event_host.consumer_groups
         SET state = 'paused', reason = $2, unpinned = true, epoch = epoch + 1
         WHERE name = $1 OR part_of = $1",
    )
    .bind(group.as_str())
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
    connection: &mut PgConnection,
    group: &GroupName,
    accepted: bool,
) -> Result<Option<Gone>, PostgresError> {
    if known(connection, group).await?.is_none() {
        return Err(refusals::no_group(group).into());
    }
    // Nothing goes meanwhile.
    let mut transaction = keep_all_events(connection).await?;
    transaction.execute(LONG_STATEMENT).await?;
    repartition::lock_rows(&mut transaction, group).await?;
    let row = sqlx::query(
        "SELECT bool_or(g.unpinned), min(least(
                    CASE WHEN g.partitions = 1 OR g.part_of IS NOT NULL THEN g.position END,
                    lower(g.open_ranges) - 1,
                    (SELECT min(r.position) - 1 FROM event_host.redeliveries r
                     WHERE r.group_name = g.name
                       AND NOT EXISTS (SELECT FROM event_host.deferred d
                                       WHERE d.group_name = r.group_name AND d.position = r.position))))
         FROM event_host.consumer_groups g
         WHERE (g.name = $1 OR g.part_of = $1) AND (g.partition IS NULL OR g.partition < g.partitions)",
    )
    .bind(group.as_str())
    .fetch_one(&mut *transaction)
    .await?;
    let is_unpinned: bool = row.try_get_unchecked(0)?;
    let place = Position(row.try_get_unchecked::<Option<i64>, _>(1)?.unwrap_or(0));
    let mut gone = None;
    if is_unpinned {
        let beginning = log::beginning(&mut transaction).await?;
        gone = beginning.gone_above(Start::Position(place), place);
        without_what_is_gone(group, gone.as_ref(), accepted)?;
    }
    let up_to = gone.as_ref().map_or(0, |gone| gone.up_to.0);
    sqlx::query(
        "UPDATE event_host.consumer_groups
         SET state = 'running', reason = NULL, unpinned = false,
             epoch = epoch + CASE WHEN unpinned THEN 1 ELSE 0 END,
             open_ranges = CASE WHEN $2 > 0
                 THEN nullif(open_ranges - int8multirange(int8range(1, $2 + 1)), '{}')
                 ELSE open_ranges END
         WHERE name = $1 OR part_of = $1",
    )
    .bind(group.as_str())
    .bind(up_to)
    .execute(&mut *transaction)
    .await?;
    if up_to > 0 {
        sqlx::query(
            "UPDATE event_host.consumer_groups
             SET head_position = NULL, head_attempt = NULL, head_due_at = NULL,
                 head_failure_kind = NULL, head_failure_text = NULL
             WHERE (name = $1 OR part_of = $1) AND head_position <= $2",
        )
        .bind(group.as_str())
        .bind(up_to)
        .execute(&mut *transaction)
        .await?;
        sqlx::query(
            "DELETE FROM event_host.redeliveries r
             WHERE r.position <= $2
               AND r.group_name IN (SELECT name FROM event_host.consumer_groups
                                    WHERE name = $1 OR part_of = $1)
               AND NOT EXISTS (SELECT FROM event_host.deferred d
                               WHERE d.group_name = r.group_name AND d.position = r.position)",
        )
        .bind(group.as_str())
        .bind(up_to)
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(gone)
}
