//! Whether everything is done, for a host that drains.

use tracing::debug;

use super::watcher::{Controls, QUIET_POLL};
use event_host_core::clock::Clock;
use event_host_core::event::Position;
use event_host_store::{DeliveryStore, DueFetch, GroupState, StoreError};

/// Returns once every group that is to be run has done everything in the log but
/// what is to be delivered later. Gives how many deliveries that are, counted up to
/// [`MOST_COUNTED`](event_host_store::MOST_COUNTED) a group.
pub(super) async fn drained(
    store: &dyn DeliveryStore,
    groups: &Controls,
    clock: &dyn Clock,
) -> i64 {
    loop {
        match is_drained(store, groups, clock).await {
            Ok(Some(delayed)) => return delayed,
            Ok(None) => {}
            // The groups and the watcher say so.
            Err(why) => debug!("cannot see whether something is left to do: {why}"),
        }
        tokio::time::sleep(QUIET_POLL).await;
    }
}

async fn is_drained(
    store: &dyn DeliveryStore,
    groups: &Controls,
    clock: &dyn Clock,
) -> Result<Option<i64>, StoreError> {
    let (mut lowest, mut lowest_open, mut led) = (None, None, Vec::new());
    let mut controls = store.group_states().await?;
    controls
        .retain(|control| control.state == GroupState::Running && groups.contains(&control.name));
    // While something is before one of them, which is nearly always, that is all that is
    // asked: to read a cursor for certain locks its row, and there may be thousands.
    if let Some(lowest) = controls.iter().map(|control| control.position).min()
        && lowest < store.safe_position().await?
    {
        return Ok(None);
    }
    for control in controls {
        let cursor = store.cursor(&control.name).await?;
        if cursor.head.is_some() {
            return Ok(None);
        }
        let due = DueFetch {
            group: &control.name,
            now: clock.now(),
            after: None,
            up_to: cursor.position,
            max_events: 1,
        };
        // In this order: what is due and fails meanwhile is a redelivery then.
        if !store.due(due).await?.events.is_empty()
            || !store.redeliveries(&control.name).await?.is_empty()
        {
            return Ok(None);
        }
        lowest_open = [lowest_open, cursor.undecided.first()].into_iter().flatten().min();
        let position = cursor.position;
        lowest = Some(lowest.map_or(position, |lowest: Position| lowest.min(position)));
        led.push(control.name);
    }
    // Read after the cursors, so that what a group emitted meanwhile shows.
    let is_drained = match lowest {
        Some(lowest) => {
            let safe = store.safe_position().await?;
            // What is still open is waited for no more than what lies above.
            lowest >= safe && lowest_open.is_none_or(|open: Position| open > safe)
        }
        None => true,
    };
    if !is_drained {
        return Ok(None);
    }
    let mut delayed = 0_i64;
    for group in &led {
        delayed = delayed.saturating_add(store.deferred(group).await?);
    }
    Ok(Some(delayed))
}
