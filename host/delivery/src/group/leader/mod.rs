//! The loop itself: what the leader looks at, what it begins, and what it waits for.

mod pause;
mod settler;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use tracing::debug;

use settler::Committed;

use super::background::{BackgroundCall, ended, is_over};
use super::component::{ComponentLoader, Prepared};
use super::decide::{Step, View, decide};
use super::due::{DueAnswer, DueReader};
use super::large::Unread;
use super::late::{LateReader, Looked};
use super::outages::Operation;
use super::reader::{Loaded, Read, Reader};
use super::shared::{Halt, Shared};
use super::signals::{Seen, Waits};
use super::{BATCHES_AT_ONCE, End, GroupLoop, Progress, Signals};
use crate::admission::{Permit, Task};
use event_host_core::event::Position;
use event_host_core::handler::Worker;
use event_host_store::GroupState;

/// Longest time without a look at the time of day, which may be set.
const LONGEST_NAP: Duration = Duration::from_secs(60);

/// The leader of one group, with what it has begun and not seen the end of. Only the
/// leader writes its fields; each reader owns what it reads.
pub(super) struct Leader<'a> {
    pub(super) shared: Arc<Shared>,
    pub(super) progress: &'a mut Progress,
    /// The tasks that make attempts.
    pub(super) tasks: FuturesUnordered<Task<Option<Box<dyn Worker>>>>,
    reader: Reader,
    late: LateReader,
    due: DueReader,
    components: ComponentLoader,
    /// The settlement under way.
    pub(super) settling: Option<BackgroundCall<Committed>>,
    /// No attempt before this, because the handler could not be run.
    run_after: Option<Instant>,
    /// Whether the leader waits for a newer safe position.
    waits: Waits,
}

/// What happened while the leader waited.
enum Happened {
    Something,
    TaskEnded(Option<Box<dyn Worker>>),
    Fetched(Result<Read, Unread>),
    Loaded(Loaded),
    Looked(Looked),
    DueRead(DueAnswer),
    Committed(Box<Committed>),
    Prepared(Prepared),
}

impl<'a> Leader<'a> {
    pub(super) fn new(shared: Arc<Shared>, progress: &'a mut Progress, signals: &Signals) -> Self {
        Self {
            reader: Reader::new(Arc::clone(&shared)),
            late: LateReader::new(Arc::clone(&shared)),
            due: DueReader::new(Arc::clone(&shared)),
            components: ComponentLoader::new(Arc::clone(&shared)),
            shared,
            progress,
            tasks: FuturesUnordered::new(),
            settling: None,
            run_after: None,
            waits: Waits::new(&signals.awaited),
        }
    }

    pub(super) fn group(&self) -> &GroupLoop {
        &self.shared.group
    }

    /// Leads until something ends it. Nothing that it began runs on afterwards.
    pub(super) async fn run(mut self, signals: &mut Signals) -> End {
        let end = loop {
            match self.turn(signals).await {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        self.shared.set_halted(true);
        self.interrupt().await;
        BackgroundCall::end(self.settling.take()).await;
        self.reader.end().await;
        BackgroundCall::end(self.late.looking.take()).await;
        BackgroundCall::end(self.due.reading.take()).await;
        BackgroundCall::end(self.components.preparing.take()).await;
        end
    }

    /// Looks at everything once, begins what can begin, and waits.
    async fn turn(&mut self, signals: &mut Signals) -> Result<(), End> {
        let looked_at = Instant::now();
        if signals.leadership.is_lost() {
            return Err(End::Lost);
        }
        let control = *signals.control.borrow_and_update();
        if control.epoch > self.progress.epoch {
            return Err(End::Superseded);
        }
        let safe = *signals.safe.borrow_and_update();
        let overtake_limit = *signals.overtake_limit.borrow_and_update();
        self.waits.set(self.is_through_soon(safe));
        let seen = signals.seen();
        if seen.interrupt && !self.tasks.is_empty() {
            self.interrupt().await;
        }
        let state = self.progress.state(control);
        if self.progress.unrecorded.is_none() {
            self.follow_trip(state);
        }
        let view = self.view(state, seen);
        self.shared.set_halted(!view.lets_attempts_begin());
        if view.idles() {
            self.shared.requeue_awaiting_component();
        }
        self.settle(!view.lets_attempts_begin(), view.settles_passed(), signals);
        let step = decide(&View { is_settling: self.settling.is_some(), ..view });
        match step {
            Step::End(end) => return Err(end),
            Step::HandleHalt => return self.handle_halt(signals).await,
            Step::RecordTrip => return self.record_trip(signals).await.map(|_| ()),
            Step::Idle => {}
            Step::Read | Step::OneEvent | Step::Dispatch => {
                self.shared
                    .report_held_back(&mut self.progress.held_back, safe, overtake_limit, signals)
                    .await;
                self.reader.fetch(safe, overtake_limit);
                self.late.look(safe);
                self.due.read();
                self.reader.load();
                self.components.prepare();
            }
        }
        let looks_again = match step {
            Step::Dispatch => !self.dispatch(signals).await?,
            Step::OneEvent => self.one_event(signals).await?,
            _ => false,
        };
        if looks_again {
            return Ok(());
        }
        self.wait(self.next_look(looked_at, view.idles()), seen, signals).await
    }

    /// What the leader sees now.
    fn view(&self, state: GroupState, seen: Seen) -> View {
        View {
            stops: seen.stop,
            is_replaced: seen.replaced,
            is_paused: state == GroupState::Paused,
            is_halted: self.shared.lock().halt.is_some(),
            awaits_probe: self.progress.tripped.as_ref().is_some_and(|t| t.due > Instant::now()),
            has_unrecorded_trip: self.progress.unrecorded.is_some(),
            awaits_retry: !is_over(self.run_after),
            goes_one_at_a_time: self.goes_one_at_a_time(),
            has_attempts: !self.tasks.is_empty(),
            is_settling: self.settling.is_some(),
        }
    }

    /// Whether the next few reads may come to the safe position, so that the leader waits
    /// for a newer one.
    fn is_through_soon(&self, safe: Position) -> bool {
        let most = self.group().settings.batch.max_events.saturating_mul(BATCHES_AT_ONCE);
        let soon = i64::try_from(most).unwrap_or(i64::MAX);
        safe.0.saturating_sub(self.shared.lock().schedule.scanned_to().0) <= soon
    }

    /// Whether events are handled and settled one at a time.
    fn goes_one_at_a_time(&self) -> bool {
        self.progress.crash_guard_left > 0
            || self.progress.refusal_search_left > 0
            || self.progress.tripped.is_some()
            || self.progress.mark.is_some()
    }

    /// Cancels all attempts; they count for nothing.
    async fn interrupt(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        if tasks.is_empty() {
            return;
        }
        debug!(group = %self.group().settings.name, "interrupted");
        let ended = join_all(tasks.into_iter().map(Task::cancel)).await;
        self.progress.idle.extend(ended.into_iter().flatten().flatten());
    }

    /// Waits until there may be something to do, and takes what has ended.
    async fn wait(
        &mut self,
        until: Option<Instant>,
        seen: Seen,
        signals: &mut Signals,
    ) -> Result<(), End> {
        let Self { shared, tasks, reader, late, due, components, settling, .. } = self;
        let happened = tokio::select! {
            () = signals.news(seen, until) => Happened::Something,
            () = shared.wakeup.notified() => Happened::Something,
            Some(ended) = tasks.next() => Happened::TaskEnded(ended.flatten()),
            fetched = ended(&mut reader.fetching) => Happened::Fetched(fetched),
            loaded = ended(&mut reader.loading) => Happened::Loaded(loaded),
            looked = ended(&mut late.looking) => Happened::Looked(looked),
            due = ended(&mut due.reading) => Happened::DueRead(due),
            committed = ended(settling) => Happened::Committed(Box::new(committed)),
            prepared = ended(&mut components.preparing) => Happened::Prepared(prepared),
        };
        match happened {
            Happened::Something => {}
            Happened::TaskEnded(worker) => self.progress.idle.extend(worker),
            Happened::Fetched(fetched) => self.reader.fetched(fetched),
            Happened::Loaded(loaded) => self.reader.loaded(loaded),
            Happened::Looked(looked) => self.late.looked(looked),
            Happened::DueRead(due) => self.due.answered(due),
            Happened::Committed(committed) => self.committed(*committed)?,
            Happened::Prepared(prepared) => self.components.prepared(prepared),
        }
        Ok(())
    }

    /// When the leader looks again though nothing wakes it, after a look that began at
    /// `looked_at`. That look saw what was due by then, and perhaps not what has become due
    /// since: for that the leader looks again at once.
    fn next_look(&self, looked_at: Instant, idles: bool) -> Option<Instant> {
        let locked = self.shared.lock();
        let batch = self.group().settings.batch;
        // No attempt wakes the leader when the first event of a settlement is done.
        let done_since = locked.done_since.or((!self.tasks.is_empty()).then_some(looked_at));
        let moments = [
            done_since.map(|since| since + batch.max_time),
            locked
                .schedule
                .passes()
                .then(|| self.progress.last_commit + self.group().pass_interval),
            self.progress.tripped.as_ref().map(|tripped| tripped.due),
            self.run_after,
            self.reader.fetch_after,
            self.reader.load_after,
            self.due.read_after,
            self.components.prepare_after,
            self.late
                .look_after
                .filter(|_| self.late.looking.is_none() && locked.schedule.undecided_ranges() > 0),
        ];
        let news = moments.into_iter().flatten().filter(|moment| *moment > looked_at);
        // What was due when the look came to it runs or is loaded.
        let waits = !idles && self.reader.loading.is_none() && is_over(self.reader.load_after);
        let due = waits.then(|| locked.schedule.next_due()).flatten();
        let reads = !idles && is_over(self.due.read_after);
        let deferred = reads.then(|| locked.schedule.next_deferred()).flatten();
        let due = [due, deferred].into_iter().flatten().min().map(|due| {
            let wait = Duration::try_from(due.duration_since(self.group().clock.now()));
            Instant::now() + wait.unwrap_or_default().min(LONGEST_NAP)
        });
        news.chain(due).min()
    }

    /// Has as many tasks make attempts as there are events to handle. False when the
    /// leader has something else to look at first.
    async fn dispatch(&mut self, signals: &mut Signals) -> Result<bool, End> {
        // While the leader cannot settle, all further attempts would have to be repeated.
        if self.progress.outages.is_failing(Operation::Settle) {
            return Ok(true);
        }
        let ready = self.shared.may_run();
        let free = self.group().settings.concurrency.saturating_sub(self.tasks.len());
        let mut wanted = ready.min(free);
        if wanted > 0 && !self.progress.work_recorded {
            // The record names the last settlement.
            if self.settling.is_some() {
                return Ok(true);
            }
            let mut permit = self.group().admission.permit();
            if !signals.let_begin(self.progress.epoch, permit.ready(None)).await
                || !self.record_work_started(signals).await?
            {
                return Ok(false);
            }
            self.spawn(permit);
            wanted -= 1;
        }
        for _ in 0..wanted {
            let permit = self.group().admission.permit();
            self.spawn(permit);
        }
        Ok(true)
    }

    fn spawn(&mut self, permit: Permit) {
        let worker = self.worker();
        let attempts = Arc::clone(&self.shared).make_attempts(permit, worker);
        self.tasks.push(self.group().admission.spawn(attempts));
    }

    pub(super) fn worker(&mut self) -> Box<dyn Worker> {
        self.progress.idle.pop().unwrap_or_else(|| self.group().handler.worker())
    }

    /// Does what the attempts were halted for.
    async fn handle_halt(&mut self, signals: &mut Signals) -> Result<(), End> {
        let halt = self.shared.lock().halt.take();
        match halt {
            Some(Halt::NotRun(why)) => {
                let delay =
                    self.progress.outages.failed(&self.group().settings.name, Operation::Run, &why);
                self.run_after = Some(Instant::now() + delay);
                Ok(())
            }
            Some(Halt::Tripped(why)) => self.trip(why),
            Some(Halt::QuotaExceeded(no_room)) => {
                let reason = self.quota_reason(no_room);
                self.pause(&reason, signals).await;
                Ok(())
            }
            Some(Halt::Unstorable(reason)) => {
                self.pause(&reason, signals).await;
                Ok(())
            }
            None => Ok(()),
        }
    }
}
