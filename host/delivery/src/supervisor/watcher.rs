//! One watcher for all groups of a host: the safe position, the groups' rows, and what blocks
//! the log.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::restart_delay;
use crate::group::{Awaited, Control};
use crate::leadership::Locks;
use event_host_core::event::{Epoch, GroupName, Position};
use event_host_core::repeats::Repeats;
use event_host_core::restart::sleep_precisely;
use event_host_core::troubles::Troubles;
use event_host_metrics::{StoreMetrics, StoreOperation};
use event_host_store::{Blocker, DeliveryStore, EventLog, GroupControl, GroupState, StoreError};

/// How often the groups' rows are read: a pause reaches a leader within this.
const CONTROL_POLL: Duration = Duration::from_millis(250);

/// How often the safe position is read while events arrive and a group waits for them.
const BUSY_POLL: Duration = Duration::from_micros(500);

/// How often it is read after [`QUIET_AFTER`] without a new event, and while every
/// group has enough to read: each look costs the server as much as many events do.
pub(super) const QUIET_POLL: Duration = Duration::from_millis(20);

/// How often the watcher asks what blocks the log.
const HOLDERS_POLL: Duration = Duration::from_secs(1);

/// Time without a new event after which the log is quiet.
const QUIET_AFTER: Duration = Duration::from_secs(1);

/// What `status` shows.
const CANNOT_WATCH: &str = "cannot watch the log";

/// What the groups of this host obey, by name.
#[derive(Default)]
pub(super) struct Controls(Mutex<HashMap<GroupName, watch::Sender<Control>>>);

impl Controls {
    /// Adds a group, with what is known of it.
    pub(super) fn add(&self, group: GroupName, control: Control) -> watch::Receiver<Control> {
        let (sender, seen) = watch::channel(control);
        self.locked().insert(group, sender);
        seen
    }

    /// Forgets a group.
    pub(super) fn remove(&self, group: &GroupName) {
        self.locked().remove(group);
    }

    /// What a group was told last, or would be told.
    pub(super) fn of(&self, group: &GroupName) -> Control {
        let known = self.locked().get(group).map(|control| *control.borrow());
        known.unwrap_or(Control { epoch: Epoch(0), state: GroupState::Running })
    }

    /// Whether the host is to run it.
    pub(super) fn contains(&self, group: &GroupName) -> bool {
        self.locked().contains_key(group)
    }

    /// Forgets the epochs of all, which were another log's.
    fn forget_epochs(&self) {
        for control in self.locked().values() {
            control.send_modify(|seen| seen.epoch = Epoch(0));
        }
    }

    fn tell(&self, row: &GroupControl) {
        let controls = self.locked();
        let Some(control) = controls.get(&row.name) else { return };
        let now = Control { epoch: row.epoch, state: row.state };
        control.send_if_modified(|seen| {
            let modified = *seen != now;
            if modified && seen.state != now.state {
                info!(group = %row.name, state = now.state.as_str(), "state changed");
            }
            *seen = now;
            modified
        });
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<GroupName, watch::Sender<Control>>> {
        // Every change of the map is whole, so a poisoned lock is fine.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far groups may read that do not wait for slow transactions, by how long they
/// do wait.
#[derive(Default)]
pub(super) struct OvertakeLimits(Mutex<HashMap<Duration, watch::Sender<Position>>>);

impl OvertakeLimits {
    /// Follows the limit for a group that overtakes transactions older than this. For a group
    /// that waits for all of them nothing ever comes.
    pub(super) fn follow(&self, overtake: Option<Duration>) -> watch::Receiver<Position> {
        match overtake {
            Some(longer_than) => {
                let unknown = || watch::Sender::new(Position::ZERO);
                self.locked().entry(longer_than).or_insert_with(unknown).subscribe()
            }
            None => watch::Sender::new(Position::ZERO).subscribe(),
        }
    }

    /// The ages that groups follow. Those that no group follows any more are forgotten.
    fn followed(&self) -> Vec<Duration> {
        let mut senders = self.locked();
        senders.retain(|_, sender| sender.receiver_count() > 0);
        senders.keys().copied().collect()
    }

    /// Forgets how far that is.
    fn forget(&self) {
        for sender in self.locked().values() {
            sender.send_replace(Position::ZERO);
        }
    }

    fn tell(&self, longer_than: Duration, position: Position) {
        if let Some(sender) = self.locked().get(&longer_than) {
            sender.send_if_modified(|seen| {
                let modified = position > *seen;
                *seen = position.max(*seen);
                modified
            });
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Duration, watch::Sender<Position>>> {
        // Every change of the map is whole, so a poisoned lock is fine.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads, for all groups, what they wait for.
pub(super) struct Watcher {
    pub(super) store: Arc<dyn DeliveryStore>,
    pub(super) safe: watch::Sender<Position>,
    pub(super) awaited: Arc<Awaited>,
    pub(super) overtake_limit: Arc<OvertakeLimits>,
    pub(super) controls: Arc<Controls>,
    pub(super) published: Arc<Notify>,
    pub(super) locks: Locks,
    pub(super) troubles: Troubles,
    /// What its calls of the database count with.
    pub(super) metrics: StoreMetrics,
}

impl Watcher {
    /// Watches until it is aborted.
    pub(super) async fn run(self) -> Infallible {
        let mut last_event = Instant::now();
        let mut controls = Seen::default();
        let mut holders = Holders::default();
        let mut failures = 0_u32;
        let mut reasons = Repeats::default();
        loop {
            let looked = match self.look(&mut controls).await {
                Ok(news) => holders.look(&*self.store).await.map(|()| news),
                Err(why) => Err(why),
            };
            match looked {
                Ok(news) => {
                    failures = 0;
                    if reasons.over() {
                        self.troubles.clear(CANNOT_WATCH);
                        info!("the database answers again");
                    }
                    if news {
                        last_event = Instant::now();
                    }
                }
                // At once, unless the log changes again and again.
                Err(StoreError::Changed(why)) if failures == 0 => {
                    self.forget(&why);
                    controls = Seen::default();
                    failures = 1;
                    continue;
                }
                Err(why) => {
                    if let StoreError::Changed(why) = &why {
                        self.forget(why);
                        controls = Seen::default();
                    } else {
                        self.troubles.set(CANNOT_WATCH, &why);
                        if reasons.is_news(&why) {
                            error!("{CANNOT_WATCH}: {why}; trying again");
                        } else {
                            debug!("still {CANNOT_WATCH}: {why}");
                        }
                    }
                    failures = failures.saturating_add(1);
                    tokio::time::sleep(restart_delay(failures)).await;
                    continue;
                }
            }
            let awaited = self.awaited.is_any();
            let quiet = last_event.elapsed() >= QUIET_AFTER || !awaited;
            let pause = async {
                if quiet {
                    tokio::time::sleep(QUIET_POLL).await
                } else {
                    sleep_precisely(BUSY_POLL).await
                }
            };
            tokio::select! {
                () = self.published.notified(), if awaited => {}
                () = self.store.wait_for_hint(), if awaited => {}
                () = self.awaited.begun() => {}
                () = pause => {}
            }
        }
    }

    /// The log is another one: forgets all that is known of the old one, and ends every
    /// leadership, so that each group is led again from the cursor that is there.
    fn forget(&self, why: &str) {
        warn!("{why}; stepping down from all groups");
        // The safe position first, so that a new leader reads nothing of the old log.
        self.safe.send_replace(Position::ZERO);
        self.overtake_limit.forget();
        self.controls.forget_epochs();
        self.locks.step_down(why);
    }

    /// Whether there is a new event.
    async fn look(&self, controls: &mut Seen) -> Result<bool, StoreError> {
        if controls.looked.is_none_or(|looked| looked.elapsed() >= CONTROL_POLL) {
            // The version first: what changes after it is read is news the next time.
            let asked = Instant::now();
            let version = self.store.control_version().await;
            let is_news = match &version {
                Ok(version) => version.is_none() || *version != controls.version,
                Err(_) => false,
            };
            let rows = if is_news { Some(self.store.group_states().await) } else { None };
            let is_told = version.is_ok() && !matches!(rows, Some(Err(_)));
            self.metrics.called(StoreOperation::Control, asked.elapsed(), is_told);
            let version = version?;
            if let Some(rows) = rows {
                for row in rows? {
                    self.controls.tell(&row);
                }
                controls.version = version;
            }
            controls.looked = Some(Instant::now());
        }
        let asked = Instant::now();
        let safe = self.store.safe_position().await;
        self.metrics.called(StoreOperation::Control, asked.elapsed(), safe.is_ok());
        let safe = safe?;
        for longer_than in self.overtake_limit.followed() {
            self.overtake_limit.tell(longer_than, self.store.overtake_limit(longer_than).await);
        }
        Ok(self.safe.send_if_modified(|seen| {
            let modified = safe > *seen;
            if modified {
                *seen = safe;
            }
            modified
        }))
    }
}

/// What was seen of the groups' rows.
#[derive(Default)]
struct Seen {
    looked: Option<Instant>,
    /// As of which they were read.
    version: Option<i64>,
}

/// Logs what blocks the log, once for each.
#[derive(Default)]
struct Holders {
    asked: Option<Instant>,
    said: Vec<String>,
}

impl Holders {
    async fn look(&mut self, store: &dyn EventLog) -> Result<(), StoreError> {
        if self.asked.is_some_and(|asked| asked.elapsed() < HOLDERS_POLL) {
            return Ok(());
        }
        self.asked = Some(Instant::now());
        let holders = store.blockers().await?;
        for holder in &holders {
            if !self.said.contains(&holder.name()) {
                warn!(
                    "the log is held up by {holder}: nothing that was published since it began to publish is delivered until it ends, but to groups that `overtake` it"
                );
            }
        }
        if holders.is_empty() && !self.said.is_empty() {
            info!("the log is no longer held up");
        }
        self.said = holders.iter().map(Blocker::name).collect();
        Ok(())
    }
}
