//! The store: everything that must outlive a process, in the glossary's words.
//!
//! A store is a trait a subject, one file each: [`EventLog`], [`Leases`], [`Settlements`]
//! and [`StateStore`] are what delivery needs of a database, together [`DeliveryStore`];
//! with [`Ingest`], which takes events in, [`Schedules`], which publishes by the clock, and
//! [`DeadLetters`], [`Groups`], [`Deployments`] and [`Schema`], which operators need, it is
//! a [`Store`]. Each database is a crate of its own beside this one, and no other crate
//! contains SQL. A store decides nothing: it records settlements that delivery computed,
//! and guards them by the epoch and by their numbers.
//!
//! Whatever the store, these hold, and the module `suite` tests them:
//! - a settlement commits whole or not at all, only under the group's current
//!   epoch, and only as the one after the group's last;
//! - nothing at or below the safe position can appear in the log any more;
//! - a group that read past it remembers, with its cursor, where something still can;
//! - a redelivery stands at or below its group's cursor: the log brings what is
//!   above it;
//! - an event that is deferred is kept whole until it is handled or given up, though
//!   the log lets it go;
//! - no event goes that a group has not settled, and no position comes again;
//! - a dead letter is replayed or discarded once, whoever asks at once;
//! - what is ingested twice within its window stands in the log once;
//! - each tick of a schedule is published once, whoever does it at once, and not before
//!   its time;
//! - of a handler's versions one is active from the first deployment on, its
//!   component is there, whole, and no other tenant's.

mod dead_letters;
mod deferred;
mod deployments;
pub mod driver;
mod error;
mod groups;
mod ingest;
mod leases;
mod log;
#[cfg(any(test, feature = "memory"))]
pub mod memory;
mod overtaking;
mod retention;
pub mod schedules;
mod schema;
mod settlements;
mod state;
mod status;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
mod undecided;

pub use dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterId, DeadLetters, Replayed};
pub use deferred::{Deferral, Due, DueFetch, MOST_COUNTED};
pub use deployments::{
    Deployed, Deployment, Deployments, NewVersion, Version, VersionNumber, VersionState,
};
pub use driver::backlog::Counting;
pub use driver::gone::{Gone, Sought};
pub use driver::redelivery::Redelivery;
pub use driver::repartition::PartitionStatus;
pub use error::{Missing, StoreError};
pub use groups::{Groups, Removed};
pub use ingest::{Incoming, Ingest, Ingested, Placed, Pruned};
pub use leases::{
    Claim, Duty, GroupControl, GroupRegistration, GroupRow, GroupState, HostIdentity, InvalidStart,
    Leadership, Leases, LockSession, Mark, Release, Roster, Runners, Start,
};
pub use log::{Blocker, EventLog, Fetch, Fetched, Found, Sketch, StoreLimits};
pub use overtaking::{FetchedLate, LateEvent, LateFetch, OvertakingFetch, UndecidedChange};
pub use retention::{Enforced, LogPin, Retention};
pub use schedules::{Registered, ScheduleRegistration, ScheduleStatus, Schedules, Ticked, Ticks};
pub use schema::{Adopted, Schema};
pub use settlements::{
    Cursor, FailureCounts, FailureRecord, Head, NewDeadLetter, Settled, Settlement, Settlements,
    dead_letter_bytes,
};
pub use state::StateStore;
pub(crate) use status::is_exact;
pub use status::{GroupStatus, HostStatus, Leader, LogStatus};
pub use undecided::{UndecidedRange, UndecidedRanges};

pub use event_host_core::handler::state::StateWrite;
pub use event_host_core::subscription::Subscription;

/// What delivery needs of a database.
pub trait DeliveryStore: EventLog + Leases + Settlements + StateStore {}

impl<T: EventLog + Leases + Settlements + StateStore> DeliveryStore for T {}

/// All that a host needs of a database: what delivery needs, and what operators do.
pub trait Store:
    DeliveryStore + Ingest + Schedules + DeadLetters + Groups + Deployments + Schema
{
}

impl<T: DeliveryStore + Ingest + Schedules + DeadLetters + Groups + Deployments + Schema> Store
    for T
{
}

/// Every trait of a store, to call its methods on a type of which they are known.
pub mod traits {
    pub use super::{
        DeadLetters, DeliveryStore, Deployments, EventLog, Groups, Ingest, Leases, Schedules,
        Schema, Settlements, StateStore, Store,
    };
}
