//! Every metric of the process, a file a subject.

mod delivery;
mod host;
mod http;
mod ingest;
mod sandbox;
mod store;

use std::array;

use crate::family::Family;
use crate::values::Buckets;

pub use delivery::{
    Attempted, CountedLeadership, Deliveries, GroupMetrics, Leaderships, Permits, Redelivered,
    SettledAs, Swap, TenantPermits, Trip,
};
pub use host::HostMetrics;
pub use http::HttpMetrics;
pub use ingest::{IngestMetrics, IngestMode, IngestSource, Ingested, Refused};
pub use sandbox::{AliveInstance, Compiled, Denied, GuestHttp, HandlerMetrics, SandboxMetrics};
pub use store::{StoreMetrics, StoreOperation};

/// Labels out of a closed list: an enum whose variants are the places of an array.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// Every label, in the order of the variants.
            pub const LABELS: [&'static str; [$($label),*].len()] = [$($label),*];

            /// As it stands in the series.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}
pub(crate) use labels;

/// The handles of one family for each label of a closed list, after other labels.
fn each<V: Clone, const N: usize>(
    family: &Family<V>,
    before: &[&str],
    labels: [&'static str; N],
) -> [V; N] {
    array::from_fn(|place| {
        let all: Vec<&str> = before.iter().copied().chain([labels[place]]).collect();
        family.with(&all)
    })
}

/// 100 µs to 60 s: what a call takes, of a handler, the database or another server.
const DURATIONS: Buckets = Buckets::times(&[
    100, 1_000, 5_000, 25_000, 100_000, 500_000, 2_000_000, 10_000_000, 60_000_000,
]);

/// 1 ms to an hour: how long something waits.
const WAITS: Buckets = Buckets::times(&[
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    60_000_000,
    600_000_000,
    3_600_000_000,
]);

/// How many events are committed together.
const BATCHES: Buckets = Buckets::counts(&[1, 3, 10, 30, 100, 300, 1_000, 3_000]);

/// 64 KiB to 1 GiB.
const MEMORY: Buckets = Buckets::counts(&[
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
]);
