//! The task of one group: competes for it, leads, and competes again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, error, info, warn};

use super::restart_delay;
use super::watcher::OvertakeLimits;
use crate::group::{Awaited, Control, End, GroupLoop, LAST_ANSWER, Signals};
use crate::leadership::{Lease, Locks, Missing, Obstacle};
use event_host_core::event::{Epoch, GroupName, Position};
use event_host_core::repeats::Repeats;
use event_host_core::troubles::Troubles;
use event_host_metrics::Swap;
use event_host_store::{
    self, DeliveryStore, Deployed, Deployments, HostIdentity, Leadership, Settled, StoreError,
};

/// How long a host that began an attempt and lost its lock has to show that it lives: a few
/// heartbeats, on a new session.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// How often the host looks for a sign of life.
const LIFE_POLL: Duration = Duration::from_millis(100);

/// One way to run a group: its settings and its code.
pub(super) struct GroupVersion {
    /// What is written down of the group.
    pub(super) registration: event_host_store::GroupRegistration,
    /// How it is run.
    pub(super) group: GroupLoop,
    /// The version of the handler, if it is deployed.
    pub(super) deployed: Option<Deployed>,
    /// Another version is to take over.
    pub(super) replaced: CancellationToken,
}

impl GroupVersion {
    /// Whether both are the same to the database.
    fn is_registered_like(&self, other: &Self) -> bool {
        let settings = |version: &Self| {
            let settings = &version.registration;
            (settings.tenant.clone(), settings.subscription.clone(), settings.partitions)
        };
        settings(self) == settings(other)
    }
}

/// The task of one group.
pub(super) struct GroupTask {
    pub(super) name: GroupName,
    pub(super) store: Arc<dyn DeliveryStore>,
    pub(super) deployments: Option<Arc<dyn Deployments>>,
    pub(super) host: HostIdentity,
    pub(super) locks: Locks,
    pub(super) stop: CancellationToken,
    pub(super) interrupt: CancellationToken,
    pub(super) safe: watch::Receiver<Position>,
    pub(super) awaited: Arc<Awaited>,
    pub(super) overtake_limit: Arc<OvertakeLimits>,
    pub(super) control: watch::Receiver<Control>,
    /// The version that is to run.
    pub(super) versions: watch::Receiver<Arc<GroupVersion>>,
    /// A version that failed everything, and the version before it, which goes on.
    pub(super) rolled_back: Mutex<Option<RolledBack>>,
    pub(super) troubles: Troubles,
}

/// A version that failed everything as soon as it took over.
pub(super) struct RolledBack {
    from: Arc<GroupVersion>,
    to: Arc<GroupVersion>,
}

impl GroupTask {
    /// Runs the group, and again if it panics.
    pub(super) async fn supervised(self: Arc<Self>) {
        let mut panics = 0_u32;
        loop {
            let task = Arc::clone(&self);
            match tokio::spawn(async move { task.compete().await }).await {
                Ok(()) if self.stop.is_cancelled() => return,
                Err(why) if why.is_cancelled() => return,
                Ok(()) => {
                    panics = panics.saturating_add(1);
                    error!(group = %self.name, "the group's task ended, starting it again");
                    self.pause(restart_delay(panics)).await;
                }
                Err(why) => {
                    panics = panics.saturating_add(1);
                    error!(group = %self.name, "the group's task broke, starting it again: {why}");
                    self.pause(restart_delay(panics)).await;
                }
            }
        }
    }

    /// Competes for the group, leads, and competes again, until the stop.
    async fn compete(&self) {
        loop {
            let lease = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                lease = self.claim() => lease,
            };
            // Without the owner of the lock session there is nothing to compete for, and the
            // host is about to stop.
            let Some(mut lease) = lease else { return self.stop.cancelled().await };
            let ended = self.lead(&mut lease).await;
            self.troubles.clear(&self.cannot_lead());
            self.give_back(lease, ended).await;
        }
    }

    /// Waits until this host leads the group. One that has no row gets one.
    async fn claim(&self) -> Option<Lease> {
        let mut failures = 0_u32;
        let mut reasons = Repeats::default();
        loop {
            let told = |obstacle| match obstacle {
                Obstacle::LedElsewhere => {
                    info!(group = %self.name, "another host leads; standing by");
                }
                Obstacle::Unavailable(why) => {
                    self.troubles.set(&self.cannot_lead(), &why);
                    error!(group = %self.name, "cannot begin to lead: {why}; trying again");
                }
            };
            match self.locks.lead(&self.name, told).await? {
                Ok(lease) => return Some(lease),
                Err(Missing) => {
                    let version = Arc::clone(&self.versions.borrow());
                    if let Err(why) = self.store.ensure_group(&version.registration).await {
                        self.cannot(&mut reasons, &why);
                        failures = failures.saturating_add(1);
                        self.pause(restart_delay(failures)).await;
                    }
                }
            }
        }
    }

    /// Says why it cannot lead.
    fn cannot(&self, reasons: &mut Repeats, why: &StoreError) {
        self.troubles.set(&self.cannot_lead(), why);
        if reasons.is_news(why) {
            error!(group = %self.name, "cannot begin to lead: {why}");
        } else {
            debug!(group = %self.name, "still cannot begin to lead: {why}");
        }
    }

    /// Gives the group back, with the clean end of its last leadership if it had one, unless
    /// the database does not answer in time.
    async fn give_back(&self, lease: Lease, ended: Option<Epoch>) {
        let patience = async {
            self.interrupt.cancelled().await;
            tokio::time::sleep(LAST_ANSWER).await;
        };
        let returns = !self.stop.is_cancelled();
        tokio::select! {
            () = lease.release(ended, returns) => {}
            () = patience => {
                warn!(group = %self.name, "cannot record the end of the leadership: no answer in time");
            }
        }
    }

    /// What `status` shows.
    fn cannot_lead(&self) -> String {
        format!("cannot begin to lead group `{}`", self.name)
    }

    /// Leads under one lease, for as many epochs as it takes. Gives the last one if it ended
    /// cleanly.
    async fn lead(&self, lease: &mut Lease) -> Option<Epoch> {
        let mut failures = 0_u32;
        let mut reasons = Repeats::default();
        // The task also stops, and gives the group back, when another host is to lead it.
        let stop = self.stop.child_token();
        let _recall = {
            let (wanted_back, stop) = (lease.wanted_back().clone(), stop.clone());
            AbortOnDropHandle::new(tokio::spawn(async move {
                wanted_back.cancelled().await;
                stop.cancel();
            }))
        };
        while !stop.is_cancelled() && !lease.proof().is_lost() {
            let wanted = Arc::clone(&self.versions.borrow());
            let version = self.version_for(&wanted);
            let signals = self.signals(lease, &wanted, &stop);
            let claimed = lease.take_leadership();
            let Some(begun) = signals.answer(self.begin(&version, claimed)).await else { continue };
            let mut leadership = match begun {
                Ok(leadership) => leadership,
                Err(why) => {
                    self.cannot(&mut reasons, &why);
                    failures = failures.saturating_add(1);
                    self.pause(restart_delay(failures)).await;
                    continue;
                }
            };
            failures = 0;
            let counted = version.group.metrics.leads();
            if reasons.over() {
                self.troubles.clear(&self.cannot_lead());
            }
            let epoch = leadership.epoch;
            info!(
                group = %self.name,
                epoch = epoch.0,
                position = leadership.position.0,
                handler = version.group.handler.digest(),
                "leading"
            );
            // The version that goes on with the head needs to know.
            let patient = Signals { replaced: CancellationToken::new(), ..signals.clone() };
            if !self.look_for_signs_of_life(&mut leadership, &patient).await {
                continue;
            }
            let mut end = self.lead_epoch(leadership, wanted, version, signals, lease, &stop).await;
            if end == End::Superseded {
                lease.prove().await;
                if lease.proof().is_lost() {
                    end = End::Lost;
                }
            }
            match end {
                End::Stopped => {
                    debug!(group = %self.name, "stopped");
                    return Some(epoch);
                }
                End::Replaced | End::RolledBack => {
                    info!(group = %self.name, "the group changed; beginning again");
                }
                End::Superseded => {
                    info!(group = %self.name, "the cursor was moved by a seek or another leader; reading it again");
                }
                End::Lost => {
                    counted.lost();
                    error!(group = %self.name, epoch = epoch.0, "no longer leader; nothing more was committed");
                    return None;
                }
            }
        }
        None
    }

    /// Leads one epoch, with one version of the group after the other. Returns how it ended.
    async fn lead_epoch(
        &self,
        leadership: Leadership,
        mut wanted: Arc<GroupVersion>,
        mut version: Arc<GroupVersion>,
        signals: Signals,
        lease: &Lease,
        stop: &CancellationToken,
    ) -> End {
        let mut progress = version.group.begin_leading(leadership);
        let mut end = version.group.lead(&mut progress, signals).await;
        let mut before = None;
        loop {
            match end {
                End::Replaced => {
                    let next = Arc::clone(&self.versions.borrow());
                    if !next.is_registered_like(&version) {
                        return end;
                    }
                    info!(
                        group = %self.name,
                        handler = next.group.handler.digest(),
                        before = version.group.handler.digest(),
                        "another version takes over"
                    );
                    let outgoing = std::mem::replace(&mut version, Arc::clone(&next));
                    wanted = next;
                    if version.group.handler.digest() == outgoing.group.handler.digest() {
                        version.group.resume(&mut progress);
                    } else {
                        version.group.metrics.swapped(Swap::Swapped);
                        if !progress.is_unproven() {
                            before = Some(outgoing);
                        }
                        version.group.swap_component(&mut progress);
                    }
                }
                End::RolledBack => {
                    // Only a version that took over from one is rolled back.
                    let Some(good) = before.take() else { return end };
                    let bad = std::mem::replace(&mut version, good);
                    version.group.metrics.swapped(Swap::RolledBack);
                    self.roll_back(bad, &version, lease).await;
                    version.group.resume(&mut progress);
                }
                End::Stopped | End::Superseded | End::Lost => return end,
            }
            end = version.group.lead(&mut progress, self.signals(lease, &wanted, stop)).await;
        }
    }

    /// The version to run: the one before the wanted one, where that was rolled back.
    fn version_for(&self, wanted: &Arc<GroupVersion>) -> Arc<GroupVersion> {
        match &*self.rolled_back() {
            Some(rolled_back) if Arc::ptr_eq(&rolled_back.from, wanted) => {
                Arc::clone(&rolled_back.to)
            }
            _ => Arc::clone(wanted),
        }
    }

    async fn roll_back(&self, bad: Arc<GroupVersion>, good: &Arc<GroupVersion>, lease: &Lease) {
        info!(
            group = %self.name,
            handler = good.group.handler.digest(),
            before = bad.group.handler.digest(),
            "rolled back"
        );
        let deployed = bad.deployed.clone();
        *self.rolled_back() = Some(RolledBack { from: bad, to: Arc::clone(good) });
        let (Some(Deployed { tenant, handler, version, .. }), Some(deployments)) =
            (deployed, &self.deployments)
        else {
            return;
        };
        // For all hosts, also for those that start later. Where another host was faster, or
        // the store is away, this host goes on without; and a store that does not answer
        // holds up neither a stop nor a step-down.
        let rolled_back = tokio::select! {
            rolled_back = deployments.rollback(&tenant, &handler, Some(version)) => rolled_back,
            () = self.stop.cancelled() => return,
            () = lease.proof().lost() => return,
        };
        match rolled_back {
            Ok(active) => {
                info!(%handler, from = %version, to = %active.version, "the deployment is rolled back");
            }
            Err(why) => {
                warn!(%handler, from = %version, "the deployment is not rolled back: {why}");
            }
        }
    }

    fn rolled_back(&self) -> MutexGuard<'_, Option<RolledBack>> {
        // Every change of it is whole, so a poisoned lock is fine.
        self.rolled_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signals(&self, lease: &Lease, version: &GroupVersion, stop: &CancellationToken) -> Signals {
        Signals {
            stop: stop.clone(),
            interrupt: self.interrupt.clone(),
            replaced: version.replaced.clone(),
            leadership: lease.proof().clone(),
            safe: self.safe.clone(),
            awaited: Arc::clone(&self.awaited),
            overtake_limit: self.overtake_limit.follow(version.group.settings.overtake),
            control: self.control.clone(),
        }
    }

    /// Begins a leadership: the one that came with the claim of the group, if the group is
    /// written down as this version has it.
    async fn begin(
        &self,
        version: &GroupVersion,
        claimed: Option<Leadership>,
    ) -> Result<Leadership, StoreError> {
        match claimed {
            Some(leadership) if leadership.registered.is_as(&version.registration) => {
                Ok(leadership)
            }
            _ => {
                self.store.ensure_group(&version.registration).await?;
                self.store.begin_leadership(&self.name, &self.host).await
            }
        }
    }

    /// An attempt that is recorded as begun is a crash if the host that began it
    /// is dead. One that only lost its lock shows itself soon: then the attempt
    /// counts for nothing, for this leader and, because that is recorded, for all later
    /// ones, who could not know it any more. Whether the leadership goes on.
    async fn look_for_signs_of_life(&self, leadership: &mut Leadership, signals: &Signals) -> bool {
        let Leadership { epoch, mark: Some(mark), begun_by: Some(begun_by), .. } = leadership
        else {
            return true;
        };
        let until = Instant::now() + SIGN_OF_LIFE;
        let mut lives = *begun_by == self.host.id;
        while !lives && Instant::now() < until {
            let asked = self.store.is_alive_since(begun_by, &self.name);
            match signals.answer(asked).await {
                Some(Ok(true)) => lives = true,
                Some(Ok(false)) => {}
                Some(Err(why)) => debug!(group = %self.name, "{why}"),
                None => return false,
            }
            if !lives {
                self.pause(LIFE_POLL).await;
            }
        }
        if lives {
            info!(
                group = %self.name,
                position = mark.position.0,
                "the host that began this attempt lost its lock and lives: no attempt is counted"
            );
            if !self.withdraw(*epoch, signals).await {
                return false;
            }
            leadership.mark = None;
        }
        true
    }

    /// Has the attempt that is recorded as begun forgotten. Whether that is committed:
    /// the leadership is over otherwise.
    async fn withdraw(&self, epoch: Epoch, signals: &Signals) -> bool {
        let mut failures = 0_u32;
        loop {
            match signals.answer(self.store.withdraw_attempt(&self.name, epoch)).await {
                Some(Ok(Settled::Committed)) => return true,
                Some(Ok(Settled::NotLeader)) | None => return false,
                Some(Err(why)) => {
                    if failures == 0 {
                        error!(group = %self.name, "cannot begin to lead: {why}");
                    }
                    failures = failures.saturating_add(1);
                    self.pause(restart_delay(failures)).await;
                }
            }
        }
    }

    async fn pause(&self, delay: Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(delay) => {}
        }
    }
}
