//! Events of many senders in one transaction, each once.
//!
//! A sender that had no answer sends again. So each event is entered in the ledger with the
//! position that it got: by its tenant, its source and its id, for a while. What comes again
//! meanwhile is answered with that position, and stands in the log once.

use std::time::Duration;

use async_trait::async_trait;

use super::StoreError;
use event_host_core::event::{Event, Position, Tenant};

/// The events of one request, which are published together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// Whose they are.
    pub tenant: Tenant,
    /// In the order in which they come to stand in the log.
    pub events: Vec<Event>,
    /// For how long the ledger knows them; `None` enters nothing, and looks nothing up.
    pub window: Option<Duration>,
    /// What each is known by besides its source and id: for senders of which anybody could
    /// change those on the way. Empty, or one for each event.
    pub also_known_as: Vec<String>,
}

/// What became of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ingested {
    /// All of its events are in the log: one entry for each, in their order.
    Committed(Vec<Placed>),
    /// One of them has the tenant, the source and the id of another event, and other
    /// content. Nothing of the request was published.
    Reused {
        /// Which one, from 0.
        event: usize,
        /// Where the other is; `None` where it is one of the same request.
        position: Option<Position>,
    },
}

/// Where an event of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its position.
    pub position: Position,
    /// It was there before, or stands twice in the request.
    pub is_duplicate: bool,
}

/// What one round of upkeep of the ledger did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many entries went.
    pub removed: u64,
    /// How many are left, where they were counted.
    pub left: Option<u64>,
    /// There are more that are to go.
    pub has_more: bool,
}

/// Publishing for many at once, without duplicates.
#[async_trait]
pub trait Ingest: Send + Sync + 'static {
    /// Publishes the events of several requests in one transaction, in the order of the
    /// requests, and says of each what became of it. It has committed by then.
    ///
    /// A duplicate is known by the ledger: an event with the tenant, source and id of one that
    /// was ingested within its window. It is the same if its type, subject, content type and
    /// data are; else its request is refused, and the others go on. One that is known by
    /// [`Incoming::also_known_as`] is a duplicate in any case. Whoever ingests the same at
    /// the same time waits, and no group waits for that: no position is drawn meanwhile.
    ///
    /// # Errors
    /// An error is of all requests. [`StoreError::Refused`] is of something in one of them, and
    /// the others pass without it; after [`StoreError::Unavailable`] nobody knows whether it was
    /// published, and to ingest the same again within its window tells.
    async fn ingest(&self, requests: &[Incoming]) -> Result<Vec<Ingested>, StoreError>;

    /// How many calls of [`Ingest::ingest`] are carried out at once. At least 1.
    fn ingests_at_once(&self) -> usize {
        1
    }

    /// One round of upkeep: lets go of entries whose window is over, some thousands at once.
    /// With `most`, and once no more have expired, counts the others, and lets the oldest go that are more than so many: what
    /// comes again then is published again. Safe when several do it at once.
    async fn prune_ledger(&self, most: Option<u64>) -> Result<Pruned, StoreError>;

    /// What the log takes on disk, in bytes, with what belongs to it.
    async fn log_bytes(&self) -> Result<u64, StoreError>;
}
