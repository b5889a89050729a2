//! Reading rows for as long as there is time.
//!
//! Events may be large and a link slow: what has come by then is of use, because it is
//! the beginning of what was asked for. A read that threw it away would ask for the same
//! again, and never get further.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use sqlx::postgres::PgRow;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long rows are waited for once there is one: less than the deadline of the whole
/// operation.
const TIME: Duration = Duration::from_secs(10);

/// How long one read goes on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    until: Instant,
}

/// A part of what was asked for, from its beginning.
#[derive(Debug)]
pub(super) struct Part<T> {
    pub(super) read: T,
    /// All of it came, so that nothing is left on the connection.
    pub(super) is_whole: bool,
}

impl<T> Part<T> {
    pub(super) fn whole(read: T) -> Self {
        Self { read, is_whole: true }
    }
}

/// What comes next.
pub(super) enum Next {
    Row(PgRow),
    End,
    /// There is no more time, or no more comes, and something came before.
    Late,
    PostgresError(sqlx::Error),
}

impl Reading {
    pub(super) fn begin() -> Self {
        Self { until: Instant::now() + TIME }
    }

    pub(super) fn rows(self, rows: BoxStream<'_, sqlx::Result<PgRow>>) -> Rows<'_> {
        Rows { rows, late: Box::pin(sleep_until(self.until)) }
    }
}

/// Rows as they come.
pub(super) struct Rows<'a> {
    rows: BoxStream<'a, sqlx::Result<PgRow>>,
    late: Pin<Box<Sleep>>,
}

impl Rows<'_> {
    /// The next row. Where it `is_first`, nothing is of use without it: it is waited for
    /// for as long as the caller waits.
    pub(super) async fn next(&mut self, is_first: bool) -> Next {
        let Self { rows, late } = self;
        // Most rows are there already, and need no clock.
        let next = match rows.next().now_or_never() {
            Some(next) => next,
            None => tokio::select! {
                biased;
                next = rows.next() => next,
                () = late, if !is_first => return Next::Late,
            },
        };
        match next {
            None => Next::End,
            Some(Ok(row)) => Next::Row(row),
            Some(Err(why)) if is_first => Next::PostgresError(why),
            Some(Err(why)) => {
                // The next read begins with what broke this one, and says so.
                tracing::debug!("a read ends early: {why}");
                Next::Late
            }
        }
    }
}
