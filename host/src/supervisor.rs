//! Runs the groups of a config: start, watch, stop.
//!
//! One watcher asks the database for the safe position and the groups' rows, on
//! behalf of all groups. Each group has a task of its own, which competes for
//! the lock, leads, and competes again; a task that panics is started anew.
//! Nothing here decides what is delivered.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::delivery::Handler;
use crate::delivery::backoff::RetryPolicy;
use crate::delivery::clock::Clock;
use crate::delivery::group::{
    Control, End, GroupLoop, GroupSettings, LAST_ANSWER, PASS_INTERVAL, Signals,
};
use crate::event::{Attempt, Epoch, GroupName, Position};
use crate::leadership::{Lease, Locks};
use crate::store::{self, GroupState, HostIdentity, LogHolder, Start, Store, StoreError};

/// How long a host that began an attempt and lost its lock is given to show that
/// it lives: a few of its heartbeats, on a new session.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// How often is looked for that.
const LIFE_POLL: Duration = Duration::from_millis(100);

/// How often the groups' rows are read: a pause reaches a leader within this.
const CONTROL_POLL: Duration = Duration::from_millis(250);

/// How often the safe position is read while events arrive.
const BUSY_POLL: Duration = Duration::from_micros(500);

/// How often it is read after [`QUIET_AFTER`] without a new event.
const QUIET_POLL: Duration = Duration::from_millis(20);

/// How often is asked who holds the log up.
const HOLDERS_POLL: Duration = Duration::from_secs(1);

/// Without a new event for so long, the log is quiet.
const QUIET_AFTER: Duration = Duration::from_secs(1);

/// A group to run.
pub struct Group {
    /// What it is, for delivery.
    pub settings: GroupSettings,
    /// Where it begins if it is new.
    pub start: Start,
    /// The code.
    pub handler: Arc<dyn Handler>,
}

/// What a host runs, and on what.
pub struct Supervisor {
    /// The database, with its schema up to date.
    pub store: Arc<dyn Store>,
    /// This process.
    pub host: HostIdentity,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// The groups; no two of one name.
    pub groups: Vec<Group>,
    /// How long an attempt may go on after the stop.
    pub grace: Duration,
    /// End once nothing is left to do.
    pub drain: bool,
}

impl Supervisor {
    /// Runs every group until `stop` is cancelled, or until nothing is left to do
    /// if it drains; then settles, releases the locks and returns.
    ///
    /// # Errors
    /// When a group cannot be registered in the database at the start, and when
    /// the watcher or the owner of the locks breaks: the groups are then stopped
    /// in order, because they would wait for what nobody tells them of.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StoreError> {
        let registering = async {
            self.store.check().await?;
            for group in &self.groups {
                self.store.ensure_group(&registration(group)).await?;
            }
            Ok::<_, StoreError>(())
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            registered = registering => registered?,
        }
        let interrupt = CancellationToken::new();
        let published = Arc::new(Notify::new());
        let (safe, safe_seen) = watch::channel(Position::ZERO);
        let names: Vec<GroupName> =
            self.groups.iter().map(|group| group.settings.name.clone()).collect();
        let mut controls = HashMap::new();
        let locks = Locks::start(Arc::clone(&self.store), self.host.clone());
        let suspects = Arc::new(Semaphore::new(1));
        let mut tasks = JoinSet::new();
        for group in self.groups {
            let (control, control_seen) =
                watch::channel(Control { epoch: Epoch(0), state: GroupState::Running });
            controls.insert(group.settings.name.clone(), control);
            let task = Arc::new(GroupTask {
                registration: registration(&group),
                host: self.host.clone(),
                locks: locks.clone(),
                stop: stop.clone(),
                interrupt: interrupt.clone(),
                safe: safe_seen.clone(),
                control: control_seen,
                group: GroupLoop {
                    settings: group.settings,
                    store: Arc::clone(&self.store),
                    handler: group.handler,
                    clock: Arc::clone(&self.clock),
                    suspects: Arc::clone(&suspects),
                    published: Arc::clone(&published),
                    pass_interval: if self.drain { Duration::ZERO } else { PASS_INTERVAL },
                },
            });
            tasks.spawn(task.supervised());
        }
        let mut watcher = tokio::spawn(
            Watcher { store: Arc::clone(&self.store), safe, controls, published }.run(),
        );
        let drain = async {
            if self.drain {
                drained(&*self.store, &names).await;
                info!("nothing is left to do");
            } else {
                std::future::pending::<()>().await;
            }
        };
        let broken = tokio::select! {
            () = stop.cancelled() => None,
            () = drain => None,
            Err(why) = &mut watcher => Some(format!("the watcher of the log broke: {why}")),
            () = locks.broken() => Some("the owner of the locks broke".to_owned()),
        };
        stop.cancel();
        let all = async { while tasks.join_next().await.is_some() {} };
        tokio::pin!(all);
        if tokio::time::timeout(self.grace, &mut all).await.is_err() {
            warn!("the grace period is over: interrupting the attempts that still run");
            interrupt.cancel();
            all.await;
        }
        watcher.abort();
        broken.map_or(Ok(()), |what| Err(StoreError::Unusable(what)))
    }
}

fn registration(group: &Group) -> store::GroupSettings {
    store::GroupSettings {
        name: group.settings.name.clone(),
        tenant: group.settings.tenant.clone(),
        subscription: group.settings.subscription.clone(),
        start: group.start,
    }
}

struct GroupTask {
    registration: store::GroupSettings,
    host: HostIdentity,
    locks: Locks,
    stop: CancellationToken,
    interrupt: CancellationToken,
    safe: watch::Receiver<Position>,
    control: watch::Receiver<Control>,
    group: GroupLoop,
}

impl GroupTask {
    /// Runs the group, and again if it panics.
    async fn supervised(self: Arc<Self>) {
        let mut panics = 0_u32;
        loop {
            let task = Arc::clone(&self);
            match tokio::spawn(async move { task.compete().await }).await {
                Ok(()) => return,
                Err(why) if why.is_cancelled() => return,
                Err(why) => {
                    panics = panics.saturating_add(1);
                    error!(group = %self.name(), "the group's task broke, starting it anew: {why}");
                    self.pause(restart_delay(panics)).await;
                }
            }
        }
    }

    /// Competes for the lock, leads, and competes again, until the stop.
    async fn compete(&self) {
        let standing_by = || info!(group = %self.name(), "another host leads; standing by");
        loop {
            let lease = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                lease = self.locks.lock(self.name(), standing_by) => lease,
            };
            // Without an owner of the locks there is nothing to compete for, and
            // the host is about to stop.
            let Some(lease) = lease else { return self.stop.cancelled().await };
            self.lead(&lease).await;
            lease.release().await;
        }
    }

    /// Leads under one lock, for as many epochs as it takes.
    async fn lead(&self, lease: &Lease) {
        let signals = Signals {
            stop: self.stop.clone(),
            interrupt: self.interrupt.clone(),
            lost: lease.lost().clone(),
            safe: self.safe.clone(),
            control: self.control.clone(),
        };
        let mut failures = 0_u32;
        while !signals.stop.is_cancelled() && !signals.lost.is_cancelled() {
            let Some(begun) = signals.answer(self.begin()).await else { continue };
            let mut leadership = match begun {
                Ok(leadership) => leadership,
                Err(why) => {
                    if failures == 0 {
                        error!(group = %self.name(), "cannot begin to lead: {why}");
                    }
                    failures = failures.saturating_add(1);
                    self.pause(restart_delay(failures)).await;
                    continue;
                }
            };
            failures = 0;
            let epoch = leadership.epoch;
            info!(
                group = %self.name(),
                epoch = epoch.0,
                position = leadership.position.0,
                handler = self.group.handler.digest(),
                "leading"
            );
            self.look_for_signs_of_life(&mut leadership, &signals).await;
            let mut end = self.group.lead(leadership, signals.clone()).await;
            if end == End::Superseded {
                lease.prove().await;
                if signals.lost.is_cancelled() {
                    end = End::Lost;
                }
            }
            match end {
                End::Stopped => {
                    self.end(epoch, &signals).await;
                    debug!(group = %self.name(), "stopped");
                    return;
                }
                End::Superseded => {
                    info!(group = %self.name(), "the cursor was moved by somebody else; reading it anew");
                }
                End::Lost => {
                    error!(group = %self.name(), epoch = epoch.0, "no longer leader; nothing more was committed");
                    return;
                }
            }
        }
    }

    async fn begin(&self) -> Result<store::Leadership, StoreError> {
        self.group.store.ensure_group(&self.registration).await?;
        self.group.store.begin_leadership(self.name(), &self.host).await
    }

    /// Records a clean end, unless the database does not answer in time.
    async fn end(&self, epoch: Epoch, signals: &Signals) {
        let patience = async {
            signals.interrupt.cancelled().await;
            tokio::time::sleep(LAST_ANSWER).await;
        };
        let ended = tokio::select! {
            ended = self.group.store.end_leadership(self.name(), epoch) => ended,
            () = signals.lost.cancelled() => return,
            () = patience => Err(StoreError::Unavailable("no answer in time".to_owned())),
        };
        if let Err(why) = ended {
            warn!(group = %self.name(), "cannot record the end of the leadership: {why}");
        }
    }

    /// An attempt that is recorded as begun is a crash if the host that began it
    /// is dead. One that only lost its lock shows itself soon: then the attempt
    /// counts for nothing.
    async fn look_for_signs_of_life(&self, leadership: &mut store::Leadership, signals: &Signals) {
        let store::Leadership { head: Some(head), begun_by: Some(begun_by), .. } = leadership
        else {
            return;
        };
        if !head.in_flight {
            return;
        }
        let until = Instant::now() + SIGN_OF_LIFE;
        let mut lives = *begun_by == self.host.id;
        while !lives && Instant::now() < until {
            let asked = self.group.store.has_shown_itself(begun_by, self.name());
            match signals.answer(asked).await {
                Some(Ok(true)) => lives = true,
                Some(Ok(false)) => {}
                Some(Err(why)) => debug!(group = %self.name(), "{why}"),
                None => return,
            }
            if !lives {
                self.pause(LIFE_POLL).await;
            }
        }
        if lives {
            info!(
                group = %self.name(),
                position = head.position.0,
                "the host that began this attempt lost its lock and lives: no attempt is counted"
            );
            head.in_flight = false;
        }
    }

    fn name(&self) -> &GroupName {
        &self.group.settings.name
    }

    async fn pause(&self, delay: Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(delay) => {}
        }
    }
}

fn restart_delay(times: u32) -> Duration {
    let policy = RetryPolicy {
        initial: Duration::from_millis(100),
        max: Duration::from_secs(5),
        ..RetryPolicy::default()
    };
    policy.delay(Attempt(times), None, fastrand::f64())
}

/// Reads, for all groups, what they wait for.
struct Watcher {
    store: Arc<dyn Store>,
    safe: watch::Sender<Position>,
    controls: HashMap<GroupName, watch::Sender<Control>>,
    published: Arc<Notify>,
}

impl Watcher {
    async fn run(self) -> Infallible {
        let mut last_event = Instant::now();
        let mut next_control = Instant::now();
        let mut holders = Holders::default();
        let mut failures = 0_u32;
        loop {
            let looked = match self.look(&mut next_control).await {
                Ok(news) => holders.look(&*self.store).await.map(|()| news),
                Err(why) => Err(why),
            };
            match looked {
                Ok(news) => {
                    if failures > 0 {
                        info!("the database answers again");
                        failures = 0;
                    }
                    if news {
                        last_event = Instant::now();
                    }
                }
                Err(why) => {
                    if failures == 0 {
                        error!("cannot watch the log: {why}; trying again");
                    }
                    failures = failures.saturating_add(1);
                    tokio::time::sleep(restart_delay(failures)).await;
                    continue;
                }
            }
            let quiet = last_event.elapsed() >= QUIET_AFTER;
            let pause = async {
                if quiet { tokio::time::sleep(QUIET_POLL).await } else { nap(BUSY_POLL).await }
            };
            tokio::select! {
                () = self.published.notified() => {}
                () = self.store.hint() => {}
                () = pause => {}
            }
        }
    }

    /// Whether there is a new event.
    async fn look(&self, next_control: &mut Instant) -> Result<bool, StoreError> {
        if Instant::now() >= *next_control {
            for row in self.store.controls().await? {
                let Some(control) = self.controls.get(&row.name) else { continue };
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
            *next_control = Instant::now() + CONTROL_POLL;
        }
        let safe = self.store.safe_position().await?;
        Ok(self.safe.send_if_modified(|seen| {
            let modified = safe > *seen;
            if modified {
                *seen = safe;
            }
            modified
        }))
    }
}

/// Sleeps for less than the runtime's timer can, whose step is a millisecond and
/// which so takes up to two for one.
async fn nap(time: Duration) {
    if tokio::task::spawn_blocking(move || std::thread::sleep(time)).await.is_err() {
        // The runtime takes no more work of this kind: it is going down.
        tokio::time::sleep(time).await;
    }
}

/// Says who holds the log up, once for each.
#[derive(Default)]
struct Holders {
    asked: Option<Instant>,
    said: Vec<String>,
}

impl Holders {
    async fn look(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        if self.asked.is_some_and(|asked| asked.elapsed() < HOLDERS_POLL) {
            return Ok(());
        }
        self.asked = Some(Instant::now());
        let holders = store.log_holders().await?;
        for holder in &holders {
            if !self.said.contains(&holder.name()) {
                warn!(
                    "the log is held up by {holder}: nothing that was published since it began to publish is delivered until it ends"
                );
            }
        }
        if holders.is_empty() && !self.said.is_empty() {
            info!("the log is no longer held up");
        }
        self.said = holders.iter().map(LogHolder::name).collect();
        Ok(())
    }
}

/// Returns once every group that is to be run has done everything in the log.
async fn drained(store: &dyn Store, groups: &[GroupName]) {
    loop {
        match is_drained(store, groups).await {
            Ok(true) => return,
            Ok(false) => {}
            // The groups and the watcher say so.
            Err(why) => debug!("cannot see whether something is left to do: {why}"),
        }
        tokio::time::sleep(QUIET_POLL).await;
    }
}

async fn is_drained(store: &dyn Store, groups: &[GroupName]) -> Result<bool, StoreError> {
    let mut lowest = None;
    for control in store.controls().await? {
        if control.state != GroupState::Running || !groups.contains(&control.name) {
            continue;
        }
        let cursor = store.cursor(&control.name).await?;
        if cursor.head.is_some() {
            return Ok(false);
        }
        let position = cursor.position;
        lowest = Some(lowest.map_or(position, |lowest: Position| lowest.min(position)));
    }
    // Read after the cursors, so that what a group emitted meanwhile shows.
    Ok(match lowest {
        Some(lowest) => lowest >= store.safe_position().await?,
        None => true,
    })
}
