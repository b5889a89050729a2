//! Positions that the group passed while transactions were open: looks for events that were
//! committed there since, and waits where too many ranges are undecided.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::background::{BackgroundCall, is_over};
use super::outages::Operation;
use super::shared::Shared;
use super::{GroupLoop, HeldBack, Signals};
use event_host_core::event::Position;
use event_host_metrics::StoreOperation;
use event_host_store::{FetchedLate, LateFetch, StoreError, UndecidedRanges};

/// How often the leader looks for events that were committed late. It cannot be told of them:
/// the transaction may have ended before any host saw it.
const LATE_POLL: Duration = Duration::from_millis(100);

/// Maximum number of late events that are adopted at once, so that a transaction of a million
/// events comes in parts.
const LATE_AT_ONCE: usize = 1_000;

/// Maximum number of undecided ranges of a group, which then waits. They are written with
/// each settlement that changes them.
pub(super) const MAX_UNDECIDED_RANGES: usize = 1_000;

/// The result of a look at the undecided ranges.
pub(super) struct Looked {
    at: UndecidedRanges,
    answer: Result<FetchedLate, StoreError>,
}

/// Looks for events that were committed late. Only this reader writes its fields.
pub(super) struct LateReader {
    shared: Arc<Shared>,
    /// The look under way.
    pub(super) looking: Option<BackgroundCall<Looked>>,
    /// No look before this.
    pub(super) look_after: Option<Instant>,
}

impl LateReader {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, looking: None, look_after: None }
    }

    /// Looks whether something has appeared where the group had passed.
    pub(super) fn look(&mut self, safe: Position) {
        if self.looking.is_some() || !is_over(self.look_after) {
            return;
        }
        let Some((at, room)) = self.shared.lock().schedule.late_search(safe, MAX_UNDECIDED_RANGES)
        else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        self.looking = Some(BackgroundCall::spawn(async move {
            let GroupLoop { settings, store, admission, metrics, .. } = &shared.group;
            let _permit = admission.acquire_read(store.limits().reads).await;
            let late = LateFetch {
                group: &settings.name,
                tenant: &settings.tenant,
                subscription: &settings.subscription,
                partition: settings.partition,
                undecided: &at,
                safe,
                max_events: room.min(LATE_AT_ONCE),
            };
            let asked = Instant::now();
            let answer = store.fetch_late(late).await;
            metrics.store.called(StoreOperation::Fetch, asked.elapsed(), answer.is_ok());
            Looked { at, answer }
        }));
    }

    pub(super) fn looked(&mut self, Looked { at, answer }: Looked) {
        let shared = Arc::clone(&self.shared);
        let (name, now) = (&shared.group.settings.name, shared.group.clock.now());
        match answer {
            Ok(late) => {
                self.shared.outages.recovered(name, Operation::Read);
                if !late.events.is_empty() {
                    info!(group = %name, events = late.events.len(), "events were committed late");
                }
                self.look_after = (!late.has_more).then(|| Instant::now() + LATE_POLL);
                let schedule = &mut shared.lock().schedule;
                schedule.admit_late(&at, late, now);
                if schedule.undecided_ranges() == 0 {
                    info!(group = %name, "nothing is open any more of what was passed");
                }
            }
            Err(error) => {
                let delay = self.shared.outages.failed(name, Operation::Read, &error);
                self.look_after = Some(Instant::now() + delay);
            }
        }
    }
}

impl Shared {
    /// Logs and notes that the group reads no further, because as many events are parked, or
    /// as much is undecided, as may be; and that this is over. `reported` is what was
    /// reported last.
    pub(super) async fn report_held_back(
        &self,
        reported: &mut Option<HeldBack>,
        safe: Position,
        overtake_limit: Position,
        signals: &Signals,
    ) {
        let now = self.group.clock.now();
        let held_back = {
            let schedule = &self.lock().schedule;
            if schedule.is_held_back(safe.max(overtake_limit), now) {
                Some(HeldBack::Parked)
            } else if schedule.undecided_ranges() >= MAX_UNDECIDED_RANGES
                && schedule.scanned_to() < overtake_limit
            {
                Some(HeldBack::Undecided)
            } else {
                None
            }
        };
        if held_back == *reported {
            return;
        }
        let GroupLoop { settings, store, .. } = &self.group;
        let note = held_back.map(|held_back| match held_back {
            HeldBack::Parked => format!(
                "{} events or more wait for their next attempt, or behind one that does, as many as `max_parked` lets: the group reads no further until some are handled or given up",
                settings.max_parked
            ),
            HeldBack::Undecided => format!(
                "open transactions may still commit something in {MAX_UNDECIDED_RANGES} places that the group has passed, as many as it leaves behind: it waits until some of them end"
            ),
        });
        match (&note, *reported) {
            (Some(note), _) => warn!(group = %settings.name, "{note}"),
            (None, Some(HeldBack::Undecided)) => {
                info!(group = %settings.name, "less is open: the group reads on");
            }
            (None, _) => info!(group = %settings.name, "fewer events wait: the group reads on"),
        }
        *reported = held_back;
        let names = [settings.name.clone()];
        if let Some(Err(why)) = signals.answer(store.set_note(&names, note.as_deref())).await {
            debug!(group = %settings.name, "`status` is not told: {why}");
        }
    }
}
