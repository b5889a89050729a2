//! Of calls of the database.

use std::time::Duration;

use super::{DURATIONS, each, labels};
use crate::family::Family;
use crate::metric::{Kind, Metric};
use crate::table::Table;
use crate::values::{Counter, Histogram};

static OPERATIONS: Metric = Metric::process(
    Kind::Histogram,
    "event_host_store_operations_seconds",
    &["operation"],
    "How long calls of the database took, whatever came of them",
);
static ERRORS: Metric = Metric::process(
    Kind::Counter,
    "event_host_store_errors",
    &["operation"],
    "Calls of the database that failed, each try of one that is repeated",
);
labels! {
    /// What the database is asked for.
    StoreOperation {
        /// The log is read, or events of it that are parked or late.
        Fetch = "fetch",
        /// A settlement is committed.
        Settle = "settle",
        /// Locks are asked for and proved.
        Lock = "lock",
        /// The safe position and the groups' rows are read.
        Control = "control",
        /// The overview is read.
        Overview = "overview",
    }
}

/// Metrics of calls of the database.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    times: [Histogram; StoreOperation::LABELS.len()],
    errors: [Counter; StoreOperation::LABELS.len()],
}

impl Default for StoreMetrics {
    /// Counts for nobody.
    fn default() -> Self {
        Self::register(&mut Table::default())
    }
}

impl StoreMetrics {
    pub(crate) fn register(table: &mut Table) -> Self {
        let times = table.add(Family::of(&OPERATIONS, DURATIONS));
        let errors = table.add(Family::new(&ERRORS));
        Self {
            times: each(&times, &[], StoreOperation::LABELS),
            errors: each(&errors, &[], StoreOperation::LABELS),
        }
    }

    /// Counts one call.
    pub fn called(&self, operation: StoreOperation, time: Duration, succeeded: bool) {
        self.times[operation as usize].observe(time);
        if !succeeded {
            self.errors[operation as usize].inc();
        }
    }
}
