//! Claims a duty, and gives it back.

use super::HostSession;
use super::claims::keep_alive;
use crate::error::PostgresError;
use crate::piece::begin;
use event_host_store::Duty;

/// Of the duty `$1`, as the session with the key `$2` finds it: nothing, if it has the duty or
/// nobody has; else the key of the session that has it, and whether that is over, as with
/// groups: its lock is kept until the transaction ends.
const HOLDER: &str = "WITH holder AS MATERIALIZED (
         SELECT d.holder_key AS key FROM event_host.duties d
         WHERE d.name = $1 AND d.holder_key <> $2)
     SELECT h.key,
            CASE WHEN EXISTS (SELECT FROM event_host.hosts s WHERE s.lock_key = h.key)
                 THEN pg_try_advisory_xact_lock_shared(h.key) ELSE true END
     FROM holder h";

/// Gives the duty `$1` to the host `$3` and its session's key `$2`, where nobody has it, or
/// the session with the key `$4`, which is over. Not while somebody else has its row.
const TAKE: &str = "WITH free AS MATERIALIZED (
         SELECT d.name AS claimed FROM event_host.duties d
         WHERE d.name = $1
           AND (d.holder_key IS NULL OR d.holder_key = $2 OR d.holder_key = $4)
         FOR NO KEY UPDATE SKIP LOCKED)
     UPDATE event_host.duties d
     SET holder = $3, holder_key = $2, held_since = clock_timestamp()
     FROM free WHERE d.name = free.claimed";

impl HostSession {
    pub(super) async fn claim_a_duty(&mut self, duty: Duty) -> Result<bool, PostgresError> {
        // Another host has it nearly always: then this is all that is asked.
        if self.is_had_by_another(duty).await? {
            return Ok(false);
        }
        let mut transaction = begin(&mut self.connection).await?;
        keep_alive(&mut transaction, &self.host.id, self.key).await?;
        let holder: Option<(i64, bool)> = sqlx::query_as(HOLDER)
            .bind(duty.name())
            .bind(self.key)
            .fetch_optional(&mut *transaction)
            .await?;
        let over = holder.filter(|(_, is_over)| *is_over).map(|(key, _)| key);
        let taken = sqlx::query(TAKE)
            .bind(duty.name())
            .bind(self.key)
            .bind(&self.host.id)
            .bind(over)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(taken.rows_affected() == 1)
    }

    async fn is_had_by_another(&mut self, duty: Duty) -> Result<bool, PostgresError> {
        let holder: Option<(i64, bool)> = sqlx::query_as(HOLDER)
            .bind(duty.name())
            .bind(self.key)
            .fetch_optional(&mut self.connection)
            .await?;
        Ok(holder.is_some_and(|(_, is_over)| !is_over))
    }

    pub(super) async fn release_a_duty(&mut self, duty: Duty) -> Result<(), PostgresError> {
        sqlx::query(
            "UPDATE event_host.duties SET holder = NULL, holder_key = NULL, held_since = NULL
             WHERE name = $1 AND holder_key = $2",
        )
        .bind(duty.name())
        .bind(self.key)
        .execute(&mut self.connection)
        .await?;
        Ok(())
    }
}
