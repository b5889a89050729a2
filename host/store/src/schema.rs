//! The database itself: bringing its schema up to date, and what belongs to no subject.

use async_trait::async_trait;
use serde::Serialize;

use super::StoreError;
use event_host_core::event::{GroupName, Position};

/// What an adoption did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Adopted {
    /// The cluster that the log came from, by its system identifier; none if it
    /// was at home already.
    pub from: Option<i64>,
    /// The cluster that it is in.
    pub here: i64,
    /// The groups whose epochs were raised, with their cursors: where each goes
    /// on.
    pub groups: Vec<(GroupName, Position)>,
}

/// The database itself: its schema, its home and its files.
#[async_trait]
pub trait Schema: Send + Sync + 'static {
    /// Brings the schema up to date; safe when many do it at once. Gives the
    /// names of the migrations that were applied.
    async fn migrate(&self) -> Result<Vec<String>, StoreError>;

    /// Makes the place where the log is found its home, after it was restored
    /// there from elsewhere.
    ///
    /// # Errors
    /// [`StoreError::Refused`] by a store that has no such notion.
    async fn adopt(&self) -> Result<Adopted, StoreError>;

    /// Lets go of everything that is open, at a clean end: an embedded store has all of
    /// its data in one file then. Whatever is asked for afterwards opens it again.
    ///
    /// # Errors
    /// When that could not be done. Nothing is lost by it.
    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
