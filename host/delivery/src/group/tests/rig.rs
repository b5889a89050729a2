//! The group loop under test: a leadership against the store in memory, and what it has
//! committed.

use super::*;

/// The time of day, moving with tokio's paused clock.
pub(super) struct PausedClock {
    pub(super) began: Instant,
    /// By how much it moves on with each look, as a real one does.
    pub(super) tick: Duration,
    pub(super) looks: AtomicU32,
}

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        event_host_core::clock::after(
            "2026-01-01T00:00:00.123456789Z".parse().unwrap(),
            self.began.elapsed() + self.tick * self.looks.fetch_add(1, SeqCst),
        )
    }
}

pub(super) struct Rig {
    pub(super) store: MemoryStore,
    pub(super) handler: ScriptedHandler,
    pub(super) retry: RetryPolicy,
    pub(super) ordering: Ordering,
    pub(super) concurrency: usize,
    pub(super) max_parked: usize,
    pub(super) overtake: Option<Duration>,
    pub(super) batch: BatchSettings,
    pub(super) executor: FairExecutor,
    /// How long the lock of a leadership is proved.
    pub(super) proved: Duration,
    pub(super) began: Instant,
    pub(super) tick: Duration,
    /// So long after the log, a leader is told what its group's row says.
    pub(super) tells_after: Duration,
}

/// One leadership that runs.
pub(super) struct Running {
    pub(super) task: JoinHandle<End>,
    pub(super) feeder: JoinHandle<()>,
    pub(super) stop: CancellationToken,
    pub(super) interrupt: CancellationToken,
    pub(super) lost: CancellationToken,
    pub(super) epoch: Epoch,
    pub(super) version: watch::Sender<(ScriptedHandler, CancellationToken)>,
}

impl Running {
    /// Has another version of the handler take over.
    pub(super) fn replace(&self, handler: &ScriptedHandler) {
        let next = (handler.clone(), CancellationToken::new());
        self.version.send_replace(next).1.cancel();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        self.feeder.abort();
    }
}

impl Rig {
    pub(super) async fn new(
        events: usize,
        script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static,
    ) -> Self {
        let store = MemoryStore::new();
        let rig = Self {
            store,
            handler: ScriptedHandler::new(script),
            retry: RetryPolicy { jitter: 0.0, ..RetryPolicy::default() },
            ordering: Ordering::Total,
            concurrency: 1,
            max_parked: 10_000,
            overtake: None,
            batch: BatchSettings::default(),
            executor: FairExecutor::on_this_runtime(Arc::default()),
            proved: 365 * DAY,
            began: Instant::now(),
            tick: Duration::ZERO,
            tells_after: Duration::ZERO,
        };
        rig.publish(events).await;
        let registration = GroupRegistration {
            subscription: Subscription::new(["t"]).unwrap(),
            ..GroupRegistration::new(name(), Tenant::none())
        };
        rig.store.ensure_group(&registration).await.unwrap();
        rig
    }

    pub(super) async fn publish(&self, events: usize) {
        self.store.publish(&Tenant::none(), &vec![event("t"); events]).await.unwrap();
    }

    pub(super) async fn publish_keys(&self, keys: &[Option<&str>]) {
        let keyed =
            |key: &Option<&str>| Event { partitionkey: key.map(str::to_owned), ..event("t") };
        let events: Vec<Event> = keys.iter().map(keyed).collect();
        self.store.publish(&Tenant::none(), &events).await.unwrap();
    }

    pub(super) fn clock(&self) -> PausedClock {
        PausedClock { began: self.began, tick: self.tick, looks: AtomicU32::new(0) }
    }

    pub(super) async fn leadership(&self, store: &MemoryStore) -> Leadership {
        let host = HostIdentity { id: "h".into(), hostname: "h".into(), pid: 1 };
        loop {
            if let Ok(leadership) = store.begin_leadership(&name(), &host).await {
                return leadership;
            }
        }
    }

    pub(super) async fn start(&self) -> Running {
        self.start_on(&self.store).await
    }

    pub(super) async fn start_on(&self, store: &MemoryStore) -> Running {
        let leadership = self.leadership(store).await;
        let epoch = leadership.epoch;
        let mut group = GroupLoop {
            settings: GroupSettings {
                subscription: Subscription::new(["t"]).unwrap(),
                ordering: self.ordering,
                concurrency: self.concurrency,
                max_parked: self.max_parked,
                overtake: self.overtake,
                retry: self.retry.clone(),
                batch: self.batch,
                ..GroupSettings::new(name(), Tenant::none())
            },
            store: Arc::new(store.clone()),
            handler: Arc::new(self.handler.clone()),
            clock: Arc::new(self.clock()),
            crash_guard: Arc::new(Semaphore::new(1)),
            admission: self
                .executor
                .admission()
                .register(&Tenant::none(), Demand { concurrency: self.concurrency, ..demand() }),
            published: Arc::new(Notify::new()),
            pass_interval: PASS_INTERVAL,
            troubles: Troubles::default(),
            metrics: GroupMetrics::default(),
        };
        let (safe, safe_seen) = watch::channel(Position::ZERO);
        let (overtake_limit, overtake_limit_seen) = watch::channel(Position::ZERO);
        let overtake = self.overtake;
        let (control, control_seen) =
            watch::channel(Control { epoch: Epoch(0), state: GroupState::Running });
        let lost = CancellationToken::new();
        let (_, proven_until) = watch::channel(Instant::now() + self.proved);
        let signals = Signals {
            stop: CancellationToken::new(),
            interrupt: CancellationToken::new(),
            replaced: CancellationToken::new(),
            leadership: LeadershipProof::new(lost.clone(), proven_until),
            safe: safe_seen,
            overtake_limit: overtake_limit_seen,
            control: control_seen,
            awaited: Arc::default(),
        };
        // A handle without faults: what it watches is not what is tested.
        let watched = store.another_host();
        let mut changes = watched.changes();
        let mut tells_after = self.tells_after;
        let feeder = tokio::spawn(async move {
            loop {
                changes.mark_unchanged();
                let position = watched.safe_position().await.unwrap();
                safe.send_if_modified(|seen| std::mem::replace(seen, position) != position);
                if let Some(longer_than) = overtake {
                    let position = watched.overtake_limit(longer_than).await;
                    overtake_limit
                        .send_if_modified(|seen| std::mem::replace(seen, position) != position);
                }
                tokio::time::sleep(std::mem::take(&mut tells_after)).await;
                for row in watched.group_states().await.unwrap() {
                    let now = Control { epoch: row.epoch, state: row.state };
                    control.send_if_modified(|seen| std::mem::replace(seen, now) != now);
                }
                // As a watcher does, a little later.
                let _ = changes.changed().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let (version, mut versions) =
            watch::channel((self.handler.clone(), signals.replaced.clone()));
        let mut current = versions.borrow_and_update().clone();
        let (stop, interrupt) = (signals.stop.clone(), signals.interrupt.clone());
        let task = tokio::spawn(async move {
            let mut progress = group.begin_leading(leadership);
            loop {
                let replaced = current.1.clone();
                match group.lead(&mut progress, Signals { replaced, ..signals.clone() }).await {
                    End::Replaced => {}
                    end => return end,
                }
                current = versions.borrow_and_update().clone();
                group.handler = Arc::new(current.0.clone());
                group.swap_component(&mut progress);
            }
        });
        Running { stop, interrupt, lost, task, feeder, epoch, version }
    }

    /// The events of each call that had several.
    pub(super) fn batch_calls(&self) -> Vec<Vec<i64>> {
        self.handler.0.batch_calls.borrow().clone()
    }

    pub(super) fn calls(&self) -> Vec<(i64, u32)> {
        self.handler.0.calls.borrow().clone()
    }

    /// Waits until the handler has been called so often.
    pub(super) async fn called(&self, times: usize) {
        let mut calls = self.handler.0.calls.subscribe();
        let called = calls.wait_for(|calls| calls.len() >= times);
        tokio::time::timeout(DAY, called).await.expect("never called").unwrap();
    }

    /// Waits until the database has been asked for this.
    pub(super) async fn asked(&self, operation: Operation) {
        let asked = async {
            while self.store.calls(operation) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(DAY / 2, asked).await.expect("never asked");
    }

    /// Waits until the cursor is committed at or beyond a position.
    pub(super) async fn settled(&self, position: i64) {
        self.until(|_, cursor, head| cursor >= Position(position) && head.is_none()).await;
    }

    /// Waits until the cursor is there and no event comes again.
    pub(super) async fn all_over(&self, position: i64) {
        let watched = self.store.another_host();
        let waited = async {
            loop {
                let cursor = watched.cursor(&name()).await.unwrap();
                // In this order: a deferred event that fails is a redelivery then.
                let deferred = watched.deferred(&name()).await.unwrap();
                let parked = watched.redeliveries(&name()).await.unwrap();
                if cursor.position >= Position(position)
                    && cursor.head.is_none()
                    && parked.is_empty()
                    && deferred == 0
                    && cursor.undecided.is_empty()
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(60 * MINUTE, waited).await.expect("never over");
    }

    /// Waits until the group is paused.
    pub(super) async fn paused(&self) {
        let waited = async {
            while self.store.group_status(&name()).await.unwrap().state != GroupState::Paused {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(MINUTE, waited).await.expect("never paused");
    }

    pub(super) async fn parked(&self) -> Vec<(i64, u32)> {
        let parked = self.store.another_host().redeliveries(&name()).await.unwrap();
        parked.iter().map(|again| (again.position.0, again.attempt.0)).collect()
    }

    pub(super) async fn until(&self, mut fits: impl FnMut(Epoch, Position, Option<Head>) -> bool) {
        let watched = self.store.another_host();
        let waited = async {
            loop {
                let cursor = watched.cursor(&name()).await.unwrap();
                if fits(cursor.epoch, cursor.position, cursor.head) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DAY, waited).await.expect("never settled");
    }

    /// Waits until no attempt is recorded as begun.
    pub(super) async fn unmarked(&self) {
        let unmarked = async {
            while self.cursor().await.mark.is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DAY, unmarked).await.expect("it stays marked");
    }

    pub(super) async fn cursor(&self) -> Cursor {
        self.store.another_host().cursor(&name()).await.unwrap()
    }

    pub(super) async fn count(&self) -> usize {
        self.count_in("").await
    }

    pub(super) async fn count_in(&self, scope: &str) -> usize {
        let value = self.store.another_host().state_get(&name(), scope, "count").await.unwrap();
        value.map_or(0, |bytes| bytes[0] as usize * 256 + bytes[1] as usize)
    }

    /// Positions whose success is committed, in the order of their emits.
    pub(super) async fn seen(&self) -> Vec<i64> {
        let subscription = Subscription::new(["seen"]).unwrap();
        let store = self.store.another_host();
        let fetched = store
            .fetch(Fetch {
                partition: None,
                group: &name(),
                tenant: &Tenant::none(),
                subscription: &subscription,
                after: Position::ZERO,
                up_to: store.safe_position().await.unwrap(),
                max_events: 100_000,
                max_bytes: usize::MAX,
            })
            .await
            .unwrap();
        let ids = fetched.events.iter().map(|event| event.event.id.clone());
        ids.map(|id| id.strip_prefix("seen-").unwrap().parse().unwrap()).collect()
    }

    pub(super) async fn dead(&self) -> Vec<(i64, u32, String)> {
        let store = self.store.another_host();
        let letters = store.dead_letters(&DeadLetterFilter::default()).await.unwrap();
        letters.into_iter().map(|d| (d.event.position.0, d.attempts, d.failure.kind)).collect()
    }
}

pub(super) fn demand() -> Demand {
    Demand { concurrency: 1, memory_bytes: 64 << 20 }
}

pub(super) fn name() -> GroupName {
    "g".parse().unwrap()
}
