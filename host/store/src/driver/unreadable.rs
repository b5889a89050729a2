//! Rows that cannot be read, in listings that hold rows of many owners.
//!
//! Names, states and digests are written by this program alone, so one that makes no
//! sense is the work of another client, or of a newer version. It must hurt nobody but
//! its owner: a listing leaves the row out, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use tracing::{info, warn};

/// What was read of such a listing.
pub struct Sifted<T> {
    /// The rows that make sense.
    pub read: Vec<T>,
    /// One sentence for each of the others: whose it is, and what is wrong.
    pub unreadable: Vec<String>,
}

impl<T> Sifted<T> {
    /// Sorts rows by whether they could be read; each comes with whose it is.
    pub fn of<E: Display>(rows: impl IntoIterator<Item = (String, Result<T, E>)>) -> Self {
        let mut sifted = Self { read: Vec::new(), unreadable: Vec::new() };
        for (whose, row) in rows {
            match row {
                Ok(row) => sifted.read.push(row),
                Err(why) => sifted.unreadable.push(format!("{whose} cannot be read: {why}")),
            }
        }
        sifted
    }
}

/// What a handle has said of such rows: a listing that is read four times a second
/// must not fill the log.
#[derive(Default)]
pub struct Said {
    by_listing: Mutex<BTreeMap<&'static str, BTreeSet<String>>>,
}

impl Said {
    /// Gives what could be read, and says what could not, once for as long as it is so.
    pub fn tell<T>(&self, listing: &'static str, sifted: Sifted<T>) -> Vec<T> {
        let now: BTreeSet<String> = sifted.unreadable.into_iter().collect();
        let mut by_listing = self.by_listing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = by_listing.entry(listing).or_default();
        for row in now.difference(before) {
            warn!("{row}; it is left out, and all others go on");
        }
        for _ in before.difference(&now) {
            info!("a row of the {listing} that could not be read is gone, or can be read again");
        }
        *before = now;
        sifted.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_out_with_a_sentence() {
        let rows = [("a", Ok(1)), ("b", Err("it is no number")), ("c", Ok(3))];
        let sifted = Sifted::of(rows.map(|(whose, row)| (whose.to_owned(), row)));
        assert_eq!(sifted.read, [1, 3]);
        assert_eq!(sifted.unreadable, ["b cannot be read: it is no number"]);
        assert_eq!(Said::default().tell("rows", sifted), [1, 3]);
    }
}
