//! What makes attempts: as many tasks as a group makes attempts at once, each with
//! an instance of its own, for as long as there is something to run.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument, debug};

use super::commit::shown_id;
use super::outages::Operation;
use super::quota::QuotaCheck;
use super::shared::{ActiveTask, Halt, Shared, SharedState, Uncommitted};
use super::{BATCH_BYTES, BATCHES_AT_ONCE};
use crate::admission::{Permit, TenantQuota};
use crate::breaker::{Tried, Verdict};
use crate::ordering::Job;
use crate::settlement::{Circumstances, Resolution, resolve};
use event_host_core::digest::Digest;
use event_host_core::event::Attempt;
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::state::AttemptState;
use event_host_core::handler::{Call, Outcome, Report, Usage, Worker};
use event_host_metrics::{Attempted, Redelivered};

impl Shared {
    /// The next event, if one may run now, and those that go into the same call.
    fn next(&self) -> Option<(Job, Vec<Job>)> {
        // While the leader cannot settle, all further attempts would have to be repeated.
        if self.is_halted() || self.outages.is_failing(Operation::Settle) {
            return None;
        }
        let mut locked = self.lock();
        if locked.halt.is_some() || locked.is_full() {
            return None;
        }
        let had_enough = !self.should_fetch(&locked);
        let job = self.next_ready(&mut locked)?;
        let batch_mates = locked.schedule.batch_mates(&job);
        if had_enough && self.should_fetch(&locked) {
            // The leader is to read on while these events are handled.
            self.wakeup.notify_one();
        }
        Some((job, batch_mates))
    }

    /// The next event that may run and whose component is loaded. Events that wait for a
    /// component are kept aside.
    #[inline]
    pub(super) fn next_ready(&self, locked: &mut SharedState) -> Option<Job> {
        loop {
            let job = locked.schedule.next(self.group.settings.concurrency)?;
            let waits = match &job.event.digest {
                None => false,
                Some(digest) => {
                    // A component that was prepared and is no longer kept is loaded again by
                    // the attempt.
                    !locked.component_ready.remove(&job.event.position)
                        && !self.group.handler.has(digest)
                }
            };
            // No attempt is made where the process died in it, or where the event is too
            // large.
            if !waits || job.died || self.is_too_large(job.event.position) {
                return Some(job);
            }
            locked.awaiting_component.push(job);
            // The leader loads it.
            self.wakeup.notify_one();
        }
    }

    /// The component that an event waits for, the first one of several.
    pub(super) fn wanted_component(&self) -> Option<Digest> {
        self.lock().awaiting_component.first()?.event.digest.clone()
    }

    /// A component is loaded: the events that wait for it may run.
    pub(super) fn component_is_ready(&self, digest: &Digest) {
        let mut locked = self.lock();
        let aside = std::mem::take(&mut locked.awaiting_component);
        for job in aside {
            if job.event.digest.as_ref() == Some(digest) {
                locked.component_ready.insert(job.event.position);
                locked.schedule.cancel(job);
            } else {
                locked.awaiting_component.push(job);
            }
        }
    }

    /// Cancels the events that wait for a component: they have not begun.
    pub(super) fn requeue_awaiting_component(&self) {
        let mut locked = self.lock();
        for job in std::mem::take(&mut locked.awaiting_component) {
            locked.schedule.cancel(job);
        }
    }

    /// Number of events that may run; some may no longer.
    pub(super) fn may_run(&self) -> usize {
        let locked = self.lock();
        if locked.is_full() { 0 } else { locked.schedule.may_run() }
    }

    /// Whether the log is to be read on.
    pub(super) fn should_fetch(&self, locked: &SharedState) -> bool {
        let most = self.group.settings.batch.max_events;
        locked.schedule.should_fetch(
            locked.fetch_size.saturating_mul(BATCHES_AT_ONCE - 1),
            most.saturating_mul(BATCHES_AT_ONCE),
            2 * BATCH_BYTES,
        )
    }

    /// Makes attempts, batch after batch, until nothing is left to run.
    pub(super) async fn make_attempts(
        self: Arc<Self>,
        mut permit: Permit,
        mut worker: Box<dyn Worker>,
    ) -> Option<Box<dyn Worker>> {
        let mut halted = self.follow_halted();
        loop {
            let is_more = self.batch(&mut permit, &mut worker, &mut halted).await;
            worker.end_batch();
            // The memory that the permit holds was of the worker's instance: with the permit
            // it goes to others, so the instance must not be used again.
            let memory_is_given_back = permit.holds_memory();
            if !is_more {
                return (!memory_is_given_back).then_some(worker);
            }
            if memory_is_given_back {
                worker = self.group.handler.worker();
            }
            permit.release();
        }
    }

    /// Makes the attempts of one batch. Whether there may be more when it is over.
    async fn batch(
        &self,
        permit: &mut Permit,
        worker: &mut Box<dyn Worker>,
        halted: &mut watch::Receiver<bool>,
    ) -> bool {
        let quota = &self.group.admission.quota();
        let began = Instant::now();
        let batch = self.group.settings.batch;
        let mut left = batch.max_events;
        let mut active = None;
        while left > 0 && began.elapsed() < batch.max_time {
            if !permit.is_ready() {
                if !permit.is_uncontended() {
                    // What is done is settled while this task waits.
                    active = None;
                    self.wakeup.notify_one();
                }
                let is_ready = tokio::select! {
                    biased;
                    _ = halted.wait_for(|halted| *halted) => false,
                    ready = permit.ready(None) => ready,
                };
                if !is_ready {
                    return false;
                }
            }
            active.get_or_insert_with(|| ActiveTask::begin(self));
            let Some((job, batch_mates)) = self.next() else { return false };
            left = left.saturating_sub(1 + batch_mates.len());
            if batch_mates.is_empty() {
                let report = self.attempt(&job, worker, permit).await;
                self.conclude(job, report, quota, worker).await;
            } else {
                let jobs = std::iter::once(job).chain(batch_mates).collect();
                // Apart, so that other handlers' tasks do not carry its future.
                Box::pin(self.handle_batch(jobs, quota, worker, permit)).await;
            }
        }
        true
    }

    /// Makes one attempt.
    pub(super) async fn attempt(
        &self,
        job: &Job,
        worker: &mut Box<dyn Worker>,
        permit: &mut Permit,
    ) -> (Report, Arc<AttemptState>) {
        let settings = &self.group.settings;
        let state = job.state.attempt(Arc::clone(&self.committed_state));
        if job.died {
            return (crash_report(), state);
        }
        if let Some(report) = self.too_large(job.event.position) {
            return (report, state);
        }
        let span = tracing::error_span!(
            "attempt",
            group = %settings.name,
            position = job.event.position.0,
            event_id = %shown_id(&job.event.event),
            attempt = job.attempt.0,
        );
        let call = Call {
            group: &self.name,
            tenant: &settings.tenant,
            event: &job.event,
            attempt: job.attempt,
            is_late: job.late,
            state: Arc::clone(&state),
        };
        if let Some(reason) = redelivered(job) {
            self.group.metrics.redelivered(reason);
        }
        let report = permit.run(worker.attempt(call).instrument(span)).await;
        self.group.metrics.ran(&report.usage);
        (report, state)
    }

    /// Makes one attempt, unless the database refused what the event came to before.
    pub(super) async fn attempt_alone(
        &self,
        job: &Job,
        worker: &mut Box<dyn Worker>,
        permit: &mut Permit,
    ) -> (Report, Arc<AttemptState>) {
        let refused = self.lock().refused.failure(job.event.position);
        match refused {
            Some(report) => (report, job.state.attempt(Arc::clone(&self.committed_state))),
            None => self.attempt(job, worker, permit).await,
        }
    }

    /// Records the end of an attempt.
    pub(super) async fn conclude(
        &self,
        job: Job,
        (mut report, state): (Report, Arc<AttemptState>),
        quota: &TenantQuota,
        worker: &mut Box<dyn Worker>,
    ) {
        // Keeps the tenant's size locked until what this attempt wrote is in the schedule.
        let mut quota_guard = None;
        if self.may_exceed(quota, &state, &report) {
            let known = quota_guard.insert(self.known_state.lock().await);
            let succeeded = report.outcome == Outcome::Success;
            match self.within_quota(known, quota, &job, &state, report).await {
                QuotaCheck::Within(checked) => report = checked,
                QuotaCheck::QuotaExceeded(no_room) => {
                    *worker = self.group.handler.worker();
                    let mut locked = self.lock();
                    locked.schedule.cancel(job);
                    locked.halt.get_or_insert(Halt::QuotaExceeded(no_room));
                    return;
                }
            }
            if succeeded && report.outcome != Outcome::Success {
                // The instance believes that what it wrote is kept.
                *worker = self.group.handler.worker();
            }
        }
        let succeeded = report.outcome == Outcome::Success;
        let circumstances = || Circumstances {
            retry: &self.group.settings.retry,
            digest: job.event.digest.as_ref().map_or(self.group.handler.digest(), Digest::as_str),
            now: self.group.clock.now(),
            random: fastrand::f64(),
        };
        let resolution = resolve(&job.event, job.attempt, report, circumstances);
        let writes = if succeeded { job.state.accept(&state) } else { Vec::new() };
        // A replay that names another component says nothing of the group's handler, and
        // neither does an event that could not be read.
        let counts_for_breaker =
            job.event.digest.is_none() && !self.is_too_large(job.event.position);
        let tried = Tried {
            position: job.event.position,
            attempt: job.attempt,
            is_replay: job.event.deliver_to.is_some(),
        };
        self.group.metrics.attempted(attempted(&resolution), 1);
        let mut locked = self.lock();
        let verdict = match resolution {
            Resolution::Handled(mut effects) => {
                locked.unsettled = locked.unsettled.plus(Uncommitted::of(&writes));
                effects.writes = writes;
                locked.schedule.done(job, None, effects);
                Verdict::Success
            }
            Resolution::GivenUp(kind, effects) => {
                locked.schedule.done(job, Some(kind), effects);
                Verdict::GaveUp
            }
            Resolution::Retry(kind, again, delay) => {
                debug!(
                    group = %self.group.settings.name,
                    position = job.event.position.0,
                    attempt = job.attempt.0,
                    ?delay,
                    "failed, waits for its next attempt"
                );
                locked.schedule.retry(job, kind, again);
                // The leader does not know yet when it is due.
                self.wakeup.notify_one();
                Verdict::Failed
            }
            Resolution::NotRun(why) => {
                locked.schedule.cancel(job);
                locked.halt.get_or_insert(Halt::NotRun(why));
                return;
            }
        };
        self.record_verdict(&mut locked, verdict, 1);
        if counts_for_breaker {
            locked.last_verdict = Some(verdict);
            let settings = &self.group.settings.breaker;
            if let Some(why) = locked.breaker.record(verdict, tried, settings) {
                locked.halt.get_or_insert(Halt::Tripped(why));
            }
        }
    }

    /// Ends the outage `Run`, if there was one.
    pub(super) fn handler_ran(&self) {
        self.outages.recovered(&self.group.settings.name, Operation::Run);
    }

    /// Records how an attempt ended, or one call with this number of events.
    pub(super) fn record_verdict(&self, locked: &mut SharedState, verdict: Verdict, events: u64) {
        self.handler_ran();
        if verdict != Verdict::Failed {
            locked.concluded += events;
        }
        if locked.done_since.is_none() && (verdict != Verdict::Failed || locked.schedule.has_gaps())
        {
            locked.done_since = Some(Instant::now());
        }
        if locked.schedule.take_woken() {
            self.wakeup.notify_one();
        }
        let (done, most) =
            (locked.schedule.done_so_far() as u64, self.group.settings.batch.max_events);
        // The count was below the limit before this attempt.
        let is_enough = done >= most as u64 && done - events.min(done) < most as u64;
        if is_enough || locked.schedule.done_bytes() >= BATCH_BYTES {
            self.wakeup.notify_one();
        }
    }
}

/// Why this delivery is not the ordinary first one, if it is not.
fn redelivered(job: &Job) -> Option<Redelivered> {
    if job.attempt > Attempt::FIRST {
        Some(Redelivered::Retry)
    } else if job.event.deliver_to.is_some() {
        Some(Redelivered::Replay)
    } else if job.late {
        Some(Redelivered::Late)
    } else {
        job.event.event.deliver_after.map(|_| Redelivered::Delayed)
    }
}

/// What became of an event, as it is counted.
fn attempted(resolution: &Resolution) -> Attempted {
    match resolution {
        Resolution::Handled(_) => Attempted::Success,
        Resolution::GivenUp(..) => Attempted::DeadLetter,
        Resolution::Retry(..) => Attempted::Retry,
        Resolution::NotRun(_) => Attempted::Interrupted,
    }
}

/// The report of an attempt in which the process died.
fn crash_report() -> Report {
    Report {
        outcome: Outcome::Failure(Failure::new(
            FailureKind::Crash,
            "the host process died while it handled this event",
        )),
        emits: Vec::new(),
        usage: Usage::default(),
    }
}
