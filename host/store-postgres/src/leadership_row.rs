//! What a new leader finds in the row of its group.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::columns::count;
use super::error::PostgresError;
use super::group_columns::{read_head, read_mark, read_open};
use event_host_core::event::{Epoch, Position};
use event_host_store::driver::stored;
use event_host_store::{GroupRow, Leadership};

/// The columns, in which the row says it.
macro_rules! leadership_columns {
    () => {
        concat!(
            "epoch, position, state, fruitless, settled, mark_begun_by, failures::text,
             tenant, subscribe, partitions::bigint, ",
            head_columns!(),
            ", ",
            open_columns!(),
            ", ",
            mark_columns!()
        )
    };
}

pub(super) use leadership_columns;

/// Reads the columns of [`leadership_columns`], the first of which stands at `first`.
pub(super) fn read_leadership(row: &PgRow, first: usize) -> Result<Leadership, PostgresError> {
    Ok(Leadership {
        epoch: Epoch(row.try_get_unchecked(first)?),
        position: Position(row.try_get_unchecked(first + 1)?),
        state: stored::group_state(row.try_get_unchecked(first + 2)?)?,
        fruitless: count(row, first + 3)?,
        settled: row.try_get_unchecked(first + 4)?,
        begun_by: row.try_get_unchecked(first + 5)?,
        failures: stored::failures(row.try_get_unchecked(first + 6)?),
        registered: GroupRow {
            tenant: row.try_get_unchecked(first + 7)?,
            subscribe: row.try_get_unchecked(first + 8)?,
            partitions: count(row, first + 9)?,
        },
        head: read_head(row, first + 10)?,
        undecided: read_open(row, first + 15)?,
        mark: read_mark(row, first + 17)?,
        may_have_redeliveries: true,
        may_have_deferred: true,
    })
}
