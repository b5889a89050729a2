//! Events that are handled and settled one at a time: because the process may have died of
//! one of them, because the store refused a settlement with several, or as a probe.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use super::leader::Leader;
use super::outages::Operation;
use super::shared::Halt;
use super::signals::{Interrupt, Interrupts};
use super::{End, GroupLoop, Signals};
use crate::ordering::Job;
use event_host_store::{Mark, Settled};

impl Leader<'_> {
    /// Before the first attempt of the leadership: records that work has started, so that
    /// leaderships that end in a crash can be counted. True once it is recorded.
    pub(super) async fn record_work_started(&mut self, signals: &mut Signals) -> Result<bool, End> {
        if self.progress.work_recorded {
            return Ok(true);
        }
        if signals.leadership.is_lost() {
            return Err(End::Lost);
        }
        let GroupLoop { settings, store, .. } = &self.shared.group;
        let begin = store.record_work_started(
            &settings.name,
            self.progress.epoch,
            self.progress.settlement_number,
        );
        let Some(begun) = signals.answer(begin).await else { return Ok(false) };
        match begun {
            Ok(Settled::Committed) => {
                self.progress.outages.recovered(&settings.name, Operation::RecordWork);
                self.progress.work_recorded = true;
                Ok(true)
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay =
                    self.progress.outages.failed(&settings.name, Operation::RecordWork, &error);
                signals.changed(Some(delay)).await;
                Ok(false)
            }
        }
    }

    /// Handles one event and settles it before anything else begins. Whether there was one.
    pub(super) async fn one_event(&mut self, signals: &mut Signals) -> Result<bool, End> {
        if self.shared.lock().schedule.may_run() == 0 {
            return Ok(false);
        }
        let mut permit = self.group().admission.permit();
        if !signals.let_begin(self.progress.epoch, permit.ready(None)).await
            || !self.record_work_started(signals).await?
        {
            return Ok(true);
        }
        let next = {
            let mut locked = self.shared.lock();
            self.shared.next_ready(&mut locked)
        };
        let Some(job) = next else { return Ok(false) };
        let mut interrupts = Interrupts::new(signals);
        let mut guard = None;
        if self.progress.crash_guard_left > 0 && !job.died {
            match self.record_attempt_started(&job, &mut interrupts).await? {
                Some(permit) => guard = Some(permit),
                None => {
                    self.shared.lock().schedule.cancel(job);
                    self.settle_one(signals).await?;
                    return Ok(true);
                }
            }
        }
        let mut worker = self.worker();
        {
            let mut locked = self.shared.lock();
            (locked.last_verdict, locked.is_alone) = (None, true);
        }
        let job = Arc::new(job);
        let mut attempting = {
            let (shared, job) = (Arc::clone(&self.shared), Arc::clone(&job));
            self.group().admission.spawn(async move {
                let attempted = shared.attempt_alone(&job, &mut worker, &mut permit).await;
                (attempted, worker, permit)
            })
        };
        let attempted = tokio::select! {
            biased;
            attempted = &mut attempting => attempted,
            interrupt = interrupts.next() => {
                attempting.cancel().await;
                if interrupt == Interrupt::Lost {
                    return Err(End::Lost);
                }
                None
            }
        };
        // The task has ended, so this is the only handle.
        let Some(job) = Arc::into_inner(job) else { return Err(End::Stopped) };
        match attempted {
            Some((attempted, mut worker, permit)) => {
                let quota = self.group().admission.quota();
                let concluding = self.shared.conclude(job, attempted, &quota, &mut worker);
                match interrupts.answer(concluding).await {
                    Ok(()) => {
                        worker.end_batch();
                        if !permit.holds_memory() {
                            self.progress.idle.push(worker);
                        }
                    }
                    Err(Interrupt::Lost) => return Err(End::Lost),
                    Err(Interrupt::Now) => {}
                }
            }
            None => {
                debug!(group = %self.group().settings.name, "interrupted");
                self.shared.lock().schedule.cancel(job);
            }
        }
        self.shared.lock().is_alone = false;
        self.settle_one(signals).await?;
        drop(guard);
        if self.progress.tripped.is_some() {
            let verdict = {
                let mut locked = self.shared.lock();
                locked.halt.take_if(|halt| matches!(halt, Halt::Tripped(_)));
                locked.last_verdict.take()
            };
            if let Some(verdict) = verdict {
                self.probed(verdict);
            }
        }
        Ok(true)
    }

    /// Settles the effects of one event. A mark must not outlive its attempt, or the next
    /// crash would count it.
    async fn settle_one(&mut self, signals: &Signals) -> Result<(), End> {
        let has_work = self.progress.marked || self.shared.lock().schedule.has_work();
        if !has_work {
            return Ok(());
        }
        let cut = self.cut(true);
        let done = cut.done;
        let committed = self.commit(cut, signals).answer().await;
        self.committed(committed)?;
        // An event that waits for its next attempt may still kill the process.
        self.progress.crash_guard_left = self.progress.crash_guard_left.saturating_sub(done);
        self.progress.refusal_search_left = self.progress.refusal_search_left.saturating_sub(done);
        Ok(())
    }

    /// Before an event that may kill the process: waits for the crash guard and records the
    /// attempt, so that a crash is counted. `None` when something is more urgent.
    async fn record_attempt_started(
        &mut self,
        job: &Job,
        interrupts: &mut Interrupts,
    ) -> Result<Option<OwnedSemaphorePermit>, End> {
        let GroupLoop { settings, store, crash_guard, .. } = &self.shared.group;
        let permit = tokio::select! {
            biased;
            interrupt = interrupts.next() => {
                return if interrupt == Interrupt::Lost { Err(End::Lost) } else { Ok(None) };
            }
            permit = Arc::clone(crash_guard).acquire_owned() => permit,
        };
        // The semaphore is never closed.
        let Ok(permit) = permit else { return Ok(None) };
        if interrupts.is_lost() {
            return Err(End::Lost);
        }
        let mark = Mark { position: job.event.position, attempt: job.attempt };
        self.progress.marked = true;
        let begin = store.record_attempt_started(
            &settings.name,
            self.progress.epoch,
            self.progress.settlement_number,
            mark,
        );
        let begun = match interrupts.answer(begin).await {
            Ok(begun) => begun,
            Err(Interrupt::Lost) => return Err(End::Lost),
            Err(Interrupt::Now) => return Ok(None),
        };
        match begun {
            Ok(Settled::Committed) => {
                self.progress.outages.recovered(&settings.name, Operation::RecordAttempt);
                Ok(Some(permit))
            }
            Ok(Settled::NotLeader) => Err(End::Superseded),
            Err(error) => {
                let delay =
                    self.progress.outages.failed(&settings.name, Operation::RecordAttempt, &error);
                tokio::select! {
                    () = tokio::time::sleep(delay) => Ok(None),
                    interrupt = interrupts.next() => match interrupt {
                        Interrupt::Lost => Err(End::Lost),
                        Interrupt::Now => Ok(None),
                    },
                }
            }
        }
    }
}
