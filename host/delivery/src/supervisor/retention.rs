//! Keeps the log for as long as the settings say, and no longer.
//!
//! Every host runs this task; the store keeps them from disturbing each other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use event_host_core::event::{GroupName, Tenant};
use event_host_core::repeats::Repeats;
use event_host_store::driver::unpinned_reason;
use event_host_store::traits::*;
use event_host_store::{Enforced, Retention, StoreError};

/// How often the task looks for events to drop.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Looks within the time that events are kept, so that a short one is kept too.
const LOOKS_WHILE_KEPT: u32 = 16;

/// No more often than this.
const SHORTEST: Duration = Duration::from_millis(250);

/// How long events stay in the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Which events may go once no group needs them.
    pub retention: Retention,
    /// Bytes that the groups of a tenant may keep beyond that; without an entry, the
    /// groups keep all that they have not handled.
    pub pinned_log: Vec<(Tenant, u64)>,
}

/// Drops old events of the log, on behalf of one host.
#[derive(Clone)]
pub struct RetentionTask {
    /// The database.
    pub store: Arc<dyn EventLog>,
    /// For how long events stay, as the settings say now.
    pub settings: watch::Receiver<RetentionSettings>,
}

impl RetentionTask {
    /// Looks at an interval until the stop. The first look comes after one interval, when
    /// the new groups are registered.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut pinned_by = None;
        let mut failures = Repeats::default();
        loop {
            let RetentionSettings { retention, pinned_log } =
                self.settings.borrow_and_update().clone();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval(&retention)) => {}
                // A closed channel means that the settings no longer change.
                Ok(()) = self.settings.changed() => continue,
            }
            let keep = async {
                // First, so that what it frees goes in the same round.
                for (tenant, most) in &pinned_log {
                    unpin(&*self.store, tenant, &retention, *most).await?;
                }
                self.store.enforce_retention(&retention).await
            };
            let enforced = tokio::select! {
                () = stop.cancelled() => return,
                enforced = keep => enforced,
            };
            match enforced {
                Ok(enforced) => {
                    tell(&enforced, &mut pinned_by);
                    if failures.over() {
                        info!("old events can be let go of again");
                    }
                }
                Err(why) if failures.is_news(&why) => {
                    warn!("cannot let go of old events, and tries again: {why}");
                }
                Err(why) => debug!("the log is not kept: {why}"),
            }
        }
    }
}

/// Has the groups of a tenant keep no more in the log than it may, the one that is furthest
/// behind first.
async fn unpin(
    store: &dyn EventLog,
    tenant: &Tenant,
    retention: &Retention,
    most: u64,
) -> Result<(), StoreError> {
    while let Some(pin) = store.unpin(tenant, retention, most).await? {
        warn!(
            group = %pin.group.group(),
            %tenant,
            position = pin.position.0,
            bytes = pin.bytes,
            "paused, and what it has not handled goes: {}",
            unpinned_reason(tenant, &pin, most)
        );
    }
    Ok(())
}

fn interval(retention: &Retention) -> Duration {
    let part = retention.max_age.map_or(LOOK_EVERY, |age| age / LOOKS_WHILE_KEPT);
    part.clamp(SHORTEST, LOOK_EVERY)
}

fn tell(enforced: &Enforced, pinned_by: &mut Option<GroupName>) {
    if let Some(position) = enforced.dropped_up_to {
        info!(up_to = position.0, "old events were dropped");
    }
    if enforced.postponed {
        debug!("somebody else uses the log; the rest of its upkeep comes later");
    }
    if enforced.pinned_by != *pinned_by {
        match &enforced.pinned_by {
            Some(group) => warn!(%group, "old events stay, because the group has not handled them"),
            None => info!("no group keeps old events any more"),
        }
        pinned_by.clone_from(&enforced.pinned_by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_host_core::event::Event;
    use event_host_store::memory::{Fault, MemoryStore, Operation};

    fn event() -> Event {
        Event::new("1", "/tests", "a", jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_short_retention_is_looked_after_more_often() {
        let seconds = |age| Retention { max_age: Some(Duration::from_secs(age)), max_bytes: None };
        assert_eq!(interval(&seconds(1)), SHORTEST);
        assert_eq!(interval(&seconds(16)), Duration::from_secs(1));
        assert_eq!(interval(&seconds(604_800)), LOOK_EVERY);
        assert_eq!(interval(&Retention::FOREVER), LOOK_EVERY);
    }

    #[tokio::test(start_paused = true)]
    async fn the_log_is_kept_through_failures_and_changed_settings_until_the_stop() {
        let store = MemoryStore::new();
        store.publish(&Tenant::none(), &[event()]).await.unwrap();
        let (settings, retention) = watch::channel(RetentionSettings::default());
        let stop = CancellationToken::new();
        let task = RetentionTask { store: Arc::new(store.clone()), settings: retention };
        let running = tokio::spawn(task.run(stop.clone()));
        let mut changes = store.changes();
        while store.calls(Operation::ENFORCE_RETENTION) < 3 {
            changes.changed().await.unwrap();
        }
        assert_eq!(store.status().await.unwrap().events, 1, "it is kept for ever");
        store.fail(Operation::ENFORCE_RETENTION, Fault::Before, 2);
        let retention = Retention { max_age: Some(Duration::ZERO), max_bytes: None };
        settings.send_replace(RetentionSettings { retention, ..RetentionSettings::default() });
        while store.status().await.unwrap().events == 1 {
            changes.changed().await.unwrap();
        }
        assert_eq!(store.faults_left(Operation::ENFORCE_RETENTION), 0);
        drop(settings);
        let calls = store.calls(Operation::ENFORCE_RETENTION);
        while store.calls(Operation::ENFORCE_RETENTION) < calls + 3 {
            changes.changed().await.unwrap();
        }
        stop.cancel();
        running.await.unwrap();
    }
}
