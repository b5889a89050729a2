//! Looks at the database on behalf of all hosts, and exports what it sees.
//!
//! One host at a time does: whichever has the duty [`Duty::Overview`], which is had and moves
//! like the lead of a group. So lag is there also for a group that nobody runs, and the database is
//! asked once an interval, however many hosts there are. A host whose listeners serve no
//! metrics does not compete: what it saw would be shown to nobody.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::parts::Parts;
use event_host_core::leadership_proof::LeadershipProof;
use event_host_core::repeats::Repeats;
use event_host_delivery::leadership::Locks;
use event_host_http::Part;
use event_host_metrics::{GroupSample, LogSample, Metrics, Sample, StoreOperation};
use event_host_store::{Duty, GroupStatus, Groups, LogStatus};

/// Looks at the database, while this host is the one that does.
pub(crate) struct OverviewTask {
    /// The database.
    pub(crate) store: Arc<dyn Groups>,
    /// Where what is seen is exported.
    pub(crate) metrics: Arc<Metrics>,
    /// What the listeners of this host serve.
    pub(crate) served: watch::Receiver<Parts>,
}

impl OverviewTask {
    /// Looks at an interval until the stop, whenever this host has the duty.
    pub(crate) async fn run(self, locks: oneshot::Receiver<Locks>, stop: CancellationToken) {
        self.metrics.host.overview_here.set(0.0);
        tokio::select! {
            () = stop.cancelled() => {}
            () = async {
                // A supervisor that ends before it has locks ends the host.
                if let Ok(locks) = locks.await {
                    self.compete(&locks, &stop).await;
                }
            } => {}
        }
        self.metrics.host.overview_here.set(0.0);
        self.metrics.database.leave_out();
    }

    /// Looks whenever this host has the duty, as long as a listener of its serves metrics.
    async fn compete(&self, locks: &Locks, stop: &CancellationToken) {
        let mut served = self.served.clone();
        loop {
            // Its sender goes with the listeners: then nothing is served any more.
            if served.wait_for(|parts| parts.contains(&Part::Metrics)).await.is_err() {
                return stop.cancelled().await;
            }
            // What was seen before the duty was lost is shown for a while, as long as nobody
            // is known to look: the duty is lost whenever the database cannot be reached.
            let another_looks = || self.metrics.database.leave_out();
            let lease = tokio::select! {
                lease = locks.take_duty(Duty::Overview, another_looks) => lease,
                () = unserved(&mut served) => continue,
            };
            let Some(lease) = lease else { return stop.cancelled().await };
            self.metrics.host.overview_here.set(1.0);
            debug!("looking at the database for all hosts");
            tokio::select! {
                () = lease.proof().lost() => {}
                () = unserved(&mut served) => self.metrics.database.leave_out(),
                () = self.look_again_and_again(lease.proof()) => {}
            }
            self.metrics.host.overview_here.set(0.0);
        }
    }

    async fn look_again_and_again(&self, proof: &LeadershipProof) {
        let mut failures = Repeats::default();
        loop {
            let began = Instant::now();
            let seen = self.store.status().await;
            let took = began.elapsed();
            self.metrics.store.called(StoreOperation::Overview, took, seen.is_ok());
            if proof.is_lost() {
                return;
            }
            match seen {
                Ok(status) => {
                    if failures.over() {
                        info!("the database can be looked at again");
                    }
                    self.metrics.database.show(sample(&status), took);
                }
                Err(why) if failures.is_news(&why) => {
                    warn!("cannot look at the database for the metrics, and tries again: {why}");
                }
                Err(why) => debug!("the database is not looked at: {why}"),
            }
            // A slow database is looked at half of the time at most. The interval may change
            // meanwhile: that is for the next look.
            let rest = self.metrics.database.interval().saturating_sub(took).max(took);
            tokio::time::sleep(rest).await;
        }
    }
}

/// Waits until no listener serves metrics.
async fn unserved(served: &mut watch::Receiver<Parts>) {
    // An error is that the listeners are gone.
    let _ = served.wait_for(|parts| !parts.contains(&Part::Metrics)).await;
}

/// What is exported of a look.
fn sample(status: &LogStatus) -> Sample {
    let holders = status.held_up_by.iter();
    let oldest = holders.filter_map(|holder| holder.age_seconds).fold(0.0, f64::max);
    let pinned = |group: &GroupStatus| {
        let pin = status.pinned_by.as_ref().filter(|pin| pin.group.whole() == group.name.as_str());
        pin.map_or(0, |pin| pin.bytes)
    };
    Sample {
        log: LogSample {
            events: count(status.events),
            bytes: Some(status.bytes),
            last_position: status.last_position.0,
            safe_position: status.safe_position.0,
            holders: status.held_up_by.len() as u64,
            holder_age_seconds: oldest,
            // An embedded store has no list of them.
            hosts: (!status.hosts.is_empty()).then_some(status.hosts.len() as u64),
        },
        groups: status.groups.iter().map(|group| of_group(group, pinned(group))).collect(),
    }
}

fn of_group(group: &GroupStatus, pinned_bytes: u64) -> GroupSample {
    let due_in = |due_at: Timestamp| due_at.duration_since(Timestamp::now()).as_secs_f64();
    let led = group.partitions.iter().filter(|partition| partition.leader.is_some()).count();
    let (partitions, leaders) = match group.partitions.len() {
        0 => (1, usize::from(group.leader.is_some())),
        partitions => (partitions, led),
    };
    GroupSample {
        name: group.name.to_string(),
        tenant: group.tenant.as_str().to_owned(),
        // Where its first event was not found, the first of anybody's: it is no younger.
        lag_seconds: match group.lag_seconds_is_at_least {
            true => group.unread_seconds,
            false => group.lag_seconds,
        },
        lag_events: count(group.lag_events),
        lag_is_at_least: group.lag_events_is_at_least,
        position: group.position.0,
        state: group.state.as_str(),
        partitions: partitions as u64,
        leaders: leaders as u64,
        retries_pending: count(group.retries_pending),
        parked: count(group.parked),
        dead_letters: count(group.dead_letters),
        open_ranges: group.open_ranges.len() as u64,
        head: group
            .head
            .as_ref()
            .map(|head| (u64::from(head.attempt.0), due_in(head.due_at).max(0.0))),
        failures: group.failures.iter().map(|(kind, count)| (kind.clone(), *count)).collect(),
        handled_total: count(group.handled_events),
        dead_total: count(group.dead_events),
        late_total: count(group.late_events),
        pinned_bytes,
    }
}

/// A number that is never negative, unless somebody wrote it.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use event_host_core::event::{Event, Tenant};
    use event_host_core::troubles::Troubles;
    use event_host_metrics::{Format, Settings, StoreMetrics};
    use event_host_store::memory::{Fault, MemoryStore, Operation};
    use event_host_store::traits::*;
    use event_host_store::{GroupRegistration, HostIdentity};

    /// A host that runs no group.
    struct Host {
        metrics: Arc<Metrics>,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
        store: MemoryStore,
        locks: Locks,
        serve: watch::Sender<Parts>,
    }

    impl Host {
        fn start(store: &MemoryStore, name: &str) -> Self {
            let store = store.another_host();
            let interval = Duration::from_millis(20);
            let metrics = Arc::new(Metrics::new(&Settings { interval, ..Settings::default() }));
            let identity = HostIdentity { id: name.to_owned(), hostname: name.to_owned(), pid: 1 };
            let locks = Locks::start(
                Arc::new(store.clone()),
                identity,
                Troubles::default(),
                StoreMetrics::default(),
            );
            let (give, given) = oneshot::channel();
            assert!(give.send(locks.clone()).is_ok());
            let (serve, served) = watch::channel(Parts::from([Part::Metrics]));
            let task = OverviewTask {
                store: Arc::new(store.clone()),
                metrics: Arc::clone(&metrics),
                served,
            };
            let stop = CancellationToken::new();
            let task = tokio::spawn(task.run(given, stop.clone()));
            Self { metrics, stop, task, store, locks, serve }
        }

        fn shows(&self, line: &str) -> bool {
            self.metrics.encode(Format::Text).lines().any(|shown| shown.starts_with(line))
        }

        fn looks(&self) -> bool {
            self.shows("event_host_overview_here 1")
        }
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
        assert!(waited.is_ok(), "{what}: not within 20 s");
    }

    async fn with_a_group() -> MemoryStore {
        let store = MemoryStore::new();
        let tenant: Tenant = "acme".parse().unwrap();
        let group = GroupRegistration::new("left".parse().unwrap(), tenant.clone());
        store.ensure_group(&group).await.unwrap();
        let event = Event::new("1", "/tests", "a", Timestamp::UNIX_EPOCH);
        store.publish(&tenant, &[event]).await.unwrap();
        store
    }

    #[tokio::test]
    async fn lag_is_there_when_no_host_runs_the_group() {
        let mut host = Host::start(&with_a_group().await, "one");
        let lag = "event_host_group_lag_events{group=\"left\",tenant=\"acme\"} 1";
        until("the lag is shown", || host.shows(lag)).await;
        assert!(host.shows("event_host_group_lag_seconds{group=\"left\",tenant=\"acme\"} "));
        assert!(host.shows("event_host_group_leaders{group=\"left\"} 0"));
        assert!(host.shows("event_host_group_state{group=\"left\",state=\"running\"} 1"));
        host.stop.cancel();
        (&mut host.task).await.unwrap();
        assert!(!host.shows(lag) && !host.looks(), "a host that stops shows nothing of it");
    }

    #[tokio::test]
    async fn one_host_and_no_other_shows_what_is_of_the_database() {
        let store = with_a_group().await;
        let hosts = [Host::start(&store, "one"), Host::start(&store, "two")];
        until("one looks", || hosts.iter().any(Host::looks)).await;
        let [mut one, mut two] = hosts;
        if two.looks() {
            std::mem::swap(&mut one, &mut two);
        }
        let of_database = "event_host_group_lag_events{";
        until("it shows the database", || one.shows(of_database)).await;
        assert!(!two.looks() && !two.shows(of_database) && !two.shows("event_host_log_events"));
        assert!(two.shows("event_host_overview_here 0"), "it says that it does not look");
        // Its process ends, and with it its lock session.
        one.task.abort();
        drop((one.locks, one.store));
        until("the other looks", || two.looks() && two.shows(of_database)).await;
    }

    #[tokio::test]
    async fn a_host_that_serves_no_metrics_leaves_the_look_to_one_that_does() {
        let store = with_a_group().await;
        let one = Host::start(&store, "one");
        until("the only one looks", || one.looks()).await;
        let two = Host::start(&store, "two");
        until("the other waits", || two.shows("event_host_overview_here 0")).await;
        one.serve.send_replace(Parts::new());
        until("the other looks", || two.looks()).await;
        assert!(!one.looks() && !one.shows("event_host_group_lag_events{"));
        two.serve.send_replace(Parts::new());
        until("nobody looks", || !two.looks()).await;
        one.serve.send_replace(Parts::from([Part::Metrics]));
        until("the first one looks again", || one.looks()).await;
    }

    #[tokio::test]
    async fn a_database_that_is_away_ends_what_is_shown_of_it_and_nothing_else() {
        let host = Host::start(&with_a_group().await, "one");
        until("the lag is shown", || host.shows("event_host_group_lag_events{")).await;
        host.store.fail(Operation::STATUS, Fault::Before, 1_000);
        until("the lag is old", || !host.shows("event_host_group_lag_events{")).await;
        assert!(host.looks() && host.shows("event_host_overview_age_seconds "));
        assert!(host.shows("event_host_store_errors_total{operation=\"overview\"} "));
        host.store.heal();
        until("the lag is shown again", || host.shows("event_host_group_lag_events{")).await;
    }
}
