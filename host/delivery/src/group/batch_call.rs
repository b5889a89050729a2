//! One call with several events, for a handler that takes batches.
//!
//! What a call emits and writes cannot be told apart by event. So it counts when every
//! event of it succeeded; else nothing of it does, not even as an attempt, and each of
//! its events is attempted by itself.

use std::sync::Arc;

use tracing::{Instrument, info};

use super::shared::{Halt, Shared, Uncommitted};
use crate::admission::{Permit, TenantQuota};
use crate::breaker::Verdict;
use crate::ordering::Job;
use crate::settlement::Effects;
use event_host_core::event::LogEvent;
use event_host_core::failure::storable;
use event_host_core::handler::state::AttemptState;
use event_host_core::handler::{BatchCall, BatchReport, Outcome, Report, Worker};
use event_host_metrics::{Attempted, Redelivered};

/// Maximum length, in bytes, of a handler's failure text in the log.
const WHY_BYTES: usize = 200;

impl Shared {
    /// Makes one call for several events, and records its end.
    pub(super) async fn handle_batch(
        &self,
        jobs: Vec<Job>,
        quota: &TenantQuota,
        worker: &mut Box<dyn Worker>,
        permit: &mut Permit,
    ) {
        let Some((first, others)) = jobs.split_first() else { return };
        let settings = &self.group.settings;
        if jobs.iter().any(|job| self.is_too_large(job.event.position)) {
            return self.split_batch(jobs, "one of its events is too large to be read");
        }
        permit.charge_events(others.len());
        let state = first.state.attempt(Arc::clone(&self.committed_state));
        let span = tracing::error_span!(
            "batch",
            group = %settings.name,
            position = first.event.position.0,
            events = jobs.len(),
        );
        let events: Vec<&LogEvent> = jobs.iter().map(|job| &*job.event).collect();
        let call = BatchCall {
            group: &self.name,
            tenant: &settings.tenant,
            events: &events,
            state: Arc::clone(&state),
        };
        let report = permit.run(worker.attempt_all(call).instrument(span)).await;
        self.group.metrics.ran(&report.usage);
        self.conclude_batch(jobs, report, &state, quota, worker).await;
    }

    async fn conclude_batch(
        &self,
        jobs: Vec<Job>,
        report: BatchReport,
        state: &Arc<AttemptState>,
        quota: &TenantQuota,
        worker: &mut Box<dyn Worker>,
    ) {
        let BatchReport { outcomes, emits, usage } = report;
        let is_whole = outcomes.len() == jobs.len();
        let mut report = Report { outcome: overall(outcomes), emits, usage };
        // Held until what was found to fit is in the shared state.
        let mut known = None;
        if report.outcome == Outcome::Success && self.may_exceed(quota, state, &report) {
            let known = known.insert(self.known_state.lock().await);
            report.outcome = self.within_state_quota(known, quota, state).await;
            if report.outcome != Outcome::Success {
                // The instance believes that what it wrote is kept.
                *worker = self.group.handler.worker();
            }
        }
        let (Some(lane), events) = (jobs.first().map(|job| job.state.clone()), jobs.len()) else {
            return;
        };
        let writes = match report.outcome {
            Outcome::Success if is_whole => lane.accept(state),
            Outcome::Success => return self.split_batch(jobs, "it answered for other events"),
            Outcome::Failure(failure) => return self.split_batch(jobs, &failure.text),
            Outcome::NotRun(why) => {
                self.group.metrics.attempted(Attempted::Interrupted, events as u64);
                let mut locked = self.lock();
                locked.schedule.cancel_all(jobs);
                locked.halt.get_or_insert(Halt::NotRun(why));
                return;
            }
        };
        self.group.metrics.attempted(Attempted::Success, events as u64);
        let mut locked = self.lock();
        locked.unsettled = locked.unsettled.plus(Uncommitted::of(&writes));
        let effects = Effects { emits: report.emits, writes, dead_letter: None };
        locked.schedule.batch_done(jobs, effects);
        self.record_verdict(&mut locked, Verdict::Success, events as u64);
        locked.last_verdict = Some(Verdict::Success);
        locked.breaker.succeeded();
    }

    /// Discards a call: its events are attempted one at a time.
    fn split_batch(&self, jobs: Vec<Job>, why: &str) {
        info!(
            group = %self.group.settings.name,
            events = jobs.len(),
            why = storable(why, WHY_BYTES),
            "a call with several events failed: they are handled one by one"
        );
        for _ in &jobs {
            self.group.metrics.redelivered(Redelivered::Alone);
        }
        let mut locked = self.lock();
        locked.schedule.split_batch(jobs);
        if locked.schedule.take_woken() {
            self.wakeup.notify_one();
        }
        drop(locked);
        // It could be run.
        self.handler_ran();
    }
}

/// The outcome of a call: that it could not be run, else the first failure.
fn overall(outcomes: Vec<Outcome>) -> Outcome {
    let mut first = Outcome::Success;
    for outcome in outcomes {
        match outcome {
            Outcome::Success => {}
            Outcome::NotRun(_) => return outcome,
            Outcome::Failure(_) if first == Outcome::Success => first = outcome,
            Outcome::Failure(_) => {}
        }
    }
    first
}
