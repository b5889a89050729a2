//! A listing of dead letters, page by page.
//!
//! One that cannot be read is left out, and another takes its place: whoever asks for
//! ten gets ten, as long as there are so many.

use std::fmt::Display;

use super::unreadable::Sifted;
use crate::{DeadLetter, DeadLetterFilter, DeadLetterId};

/// What is still to be asked for, and what has come.
pub struct Pages {
    after: i64,
    limit: Option<usize>,
    /// How many were asked for last, and how many rows have come of them.
    asked: i64,
    came: i64,
    rows: Vec<(String, Result<DeadLetter, String>)>,
    read: usize,
    begun: bool,
}

impl Pages {
    /// Begins with the first page of what the filter lets through.
    pub fn of(filter: &DeadLetterFilter) -> Self {
        Self {
            after: filter.after.map_or(0, |after| after.0),
            limit: filter.limit,
            asked: 0,
            came: 0,
            rows: Vec::new(),
            read: 0,
            begun: false,
        }
    }

    /// Above which id to go on, and with at most how many; none once it is done.
    pub fn next_page(&mut self) -> Option<(i64, i64)> {
        if self.begun && (self.came < self.asked || self.limit.is_none()) {
            return None;
        }
        let left = match self.limit {
            Some(limit) => i64::try_from(limit.saturating_sub(self.read)).unwrap_or(i64::MAX),
            None => i64::MAX,
        };
        if left == 0 {
            return None;
        }
        (self.begun, self.asked, self.came) = (true, left, 0);
        Some((self.after, left))
    }

    /// Takes the next row.
    pub fn add<E: Display>(&mut self, id: DeadLetterId, row: Result<DeadLetter, E>) {
        self.after = id.0;
        self.came += 1;
        self.read += usize::from(row.is_ok());
        self.rows.push((format!("dead letter {id}"), row.map_err(|why| why.to_string())));
    }

    /// The dead letters of all pages, and the rows that could not be read.
    pub fn finish(self) -> Sifted<DeadLetter> {
        Sifted::of(self.rows)
    }
}
