//! Claims groups, and gives them back.

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::{HostSession, is_over};
use crate::error::PostgresError;
use crate::group_columns::{head_columns, mark_columns, open_columns};
use crate::leadership_row::{leadership_columns, read_leadership};
use crate::piece::begin;
use event_host_core::event::GroupName;
use event_host_store::driver::stored;
use event_host_store::{Claim, Leadership, Release};

/// What is said of a group that is free and whose row cannot be had.
const ROW_IS_LOCKED: &str =
    "another transaction has the row of the group in event_host.consumer_groups locked";

/// Which sessions are over that lead some of the groups `$1`: not the one with the key `$2`.
/// Each lock is asked for once. Shared, so that two that ask at once both get it, and the one
/// of a session that lives stays its own; and until the transaction ends.
pub(in super::super) const OVER: &str = "WITH leaders AS MATERIALIZED (
         SELECT DISTINCT g.leader_key AS key
         FROM unnest($1::text[]) n (name)
         JOIN event_host.consumer_groups g ON g.name = n.name
         WHERE g.leader_key <> $2),
     asked AS MATERIALIZED (
         SELECT l.key,
                CASE WHEN EXISTS (SELECT FROM event_host.hosts h WHERE h.lock_key = l.key)
                     THEN pg_try_advisory_xact_lock_shared(l.key) ELSE true END AS is_over
         FROM leaders l)
     SELECT key FROM asked WHERE is_over";

/// Claims groups `$3` for the host `$1` and its session's key `$2`, where nobody leads them,
/// or a session that is over: one of the keys `$4`. In the order of their names, as everybody
/// takes several; and without the rows that others have, who may have them for long. A row
/// that changed before it was had is looked at again.
macro_rules! claim {
    () => {
        concat!(
            "WITH free AS MATERIALIZED (
                 SELECT g.name AS claimed
                 FROM unnest($3::text[]) n (name)
                 JOIN event_host.consumer_groups g ON g.name = n.name
                 WHERE g.leader_key IS NULL OR g.leader_key = $2 OR g.leader_key = ANY ($4)
                 ORDER BY g.name
                 FOR NO KEY UPDATE OF g SKIP LOCKED)
             UPDATE event_host.consumer_groups g
             SET epoch = epoch + 1, leader = $1, leader_key = $2, leader_since = clock_timestamp()
             FROM free WHERE g.name = free.claimed
             RETURNING g.name, ",
            leadership_columns!()
        )
    };
}

/// Within a transaction that claims something: until it commits, nobody finds that this
/// session is over.
///
/// # Errors
/// Where that was found before.
pub(super) async fn keep_alive(
    transaction: &mut PgConnection,
    host: &str,
    key: i64,
) -> Result<(), PostgresError> {
    sqlx::query("SELECT FROM event_host.hosts WHERE id = $1 AND lock_key = $2 FOR SHARE")
        .bind(host)
        .bind(key)
        .fetch_optional(transaction)
        .await?
        .ok_or_else(is_over)?;
    Ok(())
}

/// Of the groups whose rows were claimed those that have redeliveries, or the mark of an
/// attempt that may be one's, or deferred events; and which of the two. In a statement after
/// the one that locked the rows: the leader before settles nothing more by then, and so these
/// are as the next one will find them.
async fn with_events_that_wait(
    transaction: &mut PgConnection,
    claimed: &[PgRow],
) -> Result<HashMap<String, (bool, bool)>, PostgresError> {
    let names = claimed.iter().map(|row| row.try_get_unchecked(0));
    let names: Vec<String> = names.collect::<Result<_, _>>()?;
    let rows = sqlx::query(
        "SELECT w.name, w.redeliveries, w.deferred
         FROM (SELECT n.name,
                      g.mark_position IS NOT NULL
                      OR EXISTS (SELECT FROM event_host.redeliveries r
                                 WHERE r.group_name = n.name) AS redeliveries,
                      EXISTS (SELECT FROM event_host.deferred d
                              WHERE d.group_name = n.name) AS deferred
               FROM unnest($1::text[]) n (name)
               JOIN event_host.consumer_groups g ON g.name = n.name) w
         WHERE w.redeliveries OR w.deferred",
    )
    .bind(names)
    .fetch_all(transaction)
    .await?;
    let read = |row: &PgRow| {
        let which = (row.try_get_unchecked(1)?, row.try_get_unchecked(2)?);
        Ok((row.try_get_unchecked(0)?, which))
    };
    rows.iter().map(read).collect()
}

impl HostSession {
    pub(super) async fn claim_all(
        &mut self,
        groups: &[GroupName],
    ) -> Result<Vec<Claim>, PostgresError> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = groups.iter().map(GroupName::as_str).collect();
        let mut transaction = begin(&mut self.connection).await?;
        keep_alive(&mut transaction, &self.host.id, self.key).await?;
        let over: Vec<i64> = sqlx::query_scalar(OVER)
            .bind(&names)
            .bind(self.key)
            .fetch_all(&mut *transaction)
            .await?;
        let rows = sqlx::query(claim!())
            .bind(&self.host.id)
            .bind(self.key)
            .bind(&names)
            .bind(&over)
            .fetch_all(&mut *transaction)
            .await?;
        let waiting = with_events_that_wait(&mut transaction, &rows).await?;
        let (mut claims, mut unreadable) = (HashMap::with_capacity(names.len()), Vec::new());
        for row in &rows {
            let name: String = row.try_get_unchecked(0)?;
            let claim = match read_leadership(row, 1) {
                Ok(leadership) => {
                    let (may_have_redeliveries, may_have_deferred) =
                        waiting.get(&name).copied().unwrap_or_default();
                    Claim::Led(Box::new(Leadership {
                        may_have_redeliveries,
                        may_have_deferred,
                        ..leadership
                    }))
                }
                Err(why) => {
                    unreadable.push(name.clone());
                    Claim::Unavailable(why.to_string())
                }
            };
            claims.insert(name, claim);
        }
        if !unreadable.is_empty() {
            sqlx::query(
                "UPDATE event_host.consumer_groups g
                 SET leader = NULL, leader_since = NULL, leader_key = NULL
                 FROM unnest($1::text[]) n (name) WHERE g.name = n.name",
            )
            .bind(&unreadable)
            .execute(&mut *transaction)
            .await?;
        }
        if rows.len() < names.len() {
            let rest = sqlx::query(
                "SELECT g.name, g.leader_key IS NULL OR g.leader_key = $2 OR g.leader_key = ANY ($3)
                 FROM unnest($1::text[]) n (name)
                 JOIN event_host.consumer_groups g ON g.name = n.name",
            )
            .bind(&names)
            .bind(self.key)
            .bind(&over)
            .fetch_all(&mut *transaction)
            .await?;
            for row in &rest {
                let is_free: bool = row.try_get_unchecked(1)?;
                let claim = if is_free {
                    Claim::Unavailable(ROW_IS_LOCKED.to_owned())
                } else {
                    Claim::LedElsewhere
                };
                claims.entry(row.try_get_unchecked(0)?).or_insert(claim);
            }
        }
        transaction.commit().await?;
        Ok(names.iter().map(|name| claims.remove(*name).unwrap_or(Claim::Missing)).collect())
    }

    pub(super) async fn release_all(
        &mut self,
        groups: &[Release],
    ) -> Result<Vec<GroupName>, PostgresError> {
        let names: Vec<&str> = groups.iter().map(|release| release.group.as_str()).collect();
        let ended: Vec<Option<i64>> =
            groups.iter().map(|release| release.ended.map(|epoch| epoch.0)).collect();
        let done = sqlx::query(
            "WITH led AS MATERIALIZED (
                 SELECT g.name AS released, r.ended
                 FROM unnest($2::text[], $3::bigint[]) r (name, ended)
                 JOIN event_host.consumer_groups g ON g.name = r.name
                 WHERE g.leader_key = $1 OR g.epoch = r.ended
                 ORDER BY g.name
                 FOR NO KEY UPDATE OF g SKIP LOCKED)
             UPDATE event_host.consumer_groups g
             SET leader = NULL, leader_since = NULL, leader_key = NULL,
                 fruitless = CASE WHEN g.epoch = led.ended THEN 0 ELSE g.fruitless END,
                 mark_position = CASE WHEN g.epoch = led.ended THEN NULL ELSE g.mark_position END,
                 mark_attempt = CASE WHEN g.epoch = led.ended THEN NULL ELSE g.mark_attempt END
             FROM led WHERE g.name = led.released",
        )
        .bind(self.key)
        .bind(&names)
        .bind(&ended)
        .execute(&mut self.connection)
        .await?;
        if usize::try_from(done.rows_affected()).is_ok_and(|done| done == groups.len()) {
            return Ok(Vec::new());
        }
        let rest: Vec<String> = sqlx::query_scalar(
            "SELECT g.name FROM unnest($2::text[]) r (name)
             JOIN event_host.consumer_groups g ON g.name = r.name
             WHERE g.leader_key = $1",
        )
        .bind(self.key)
        .bind(&names)
        .fetch_all(&mut self.connection)
        .await?;
        rest.iter().map(|name| Ok(stored::group_name(name)?)).collect()
    }
}
