//! Upkeep of the ledger: what is over goes, and the oldest beyond `dedup_max`.
//!
//! Who ingests does it, so that the ledger of a host that only takes events in is kept too.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use event_host_core::repeats::Repeats;
use event_host_store::StoreError;

use crate::shared::Shared;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How often the ledger is counted while it is small; a large one takes seconds to count, and
/// is counted the less often for that.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// Each time there are this many entries more, it is a further [`COUNT_EVERY`] from one count to the next.
const ENTRIES_A_COUNT: u64 = 1_000_000;

/// Begins with the first request: a host that takes nothing in leaves the ledger to others.
pub(crate) async fn keep(shared: Arc<Shared>) {
    shared.begun.wait().await;
    let mut failures = Repeats::default();
    let mut counts_at = Instant::now();
    loop {
        match round(&shared, &mut counts_at).await {
            Ok(()) => {
                if failures.over() {
                    info!("the ledger of ingested events is kept again");
                }
            }
            Err(why) if failures.is_news(&why) => {
                warn!("cannot keep the ledger of ingested events, and tries again: {why}");
            }
            Err(why) => debug!("the ledger of ingested events is not kept: {why}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn round(shared: &Shared, counts_at: &mut Instant) -> Result<(), StoreError> {
    let settings = shared.settings();
    if settings.max_log.is_some() {
        shared.disk.log_takes(shared.store.log_bytes().await?);
    }
    let mut most = (Instant::now() >= *counts_at).then_some(settings.dedup_max);
    loop {
        let pruned = shared.store.prune_ledger(most).await?;
        if pruned.removed > 0 {
            debug!(removed = pruned.removed, "entries of the ledger went");
        }
        if let Some(left) = pruned.left {
            shared.metrics.dedup_rows.set_count(left);
            let rounds = u32::try_from(1 + left / ENTRIES_A_COUNT).unwrap_or(u32::MAX);
            *counts_at = Instant::now() + COUNT_EVERY.saturating_mul(rounds);
            // To count takes seconds: what is left to remove has expired, and needs no count.
            if left <= settings.dedup_max {
                most = None;
            }
        }
        if !pruned.has_more {
            return Ok(());
        }
    }
}
