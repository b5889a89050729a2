//! Commits settlements: one after the other, each until its outcome is known.

use std::borrow::Cow;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, warn};

use super::outages::{Operation, Outages};
use super::signals::{Interrupt, Interrupts};
use super::{End, GroupLoop, Signals};
use event_host_core::event::Event;
use event_host_core::failure::storable;
use event_host_core::foreign::clean;
use event_host_metrics::{SettledAs, StoreOperation};
use event_host_store::{NewDeadLetter, Settled, Settlement, StoreError};

/// How long a leader waits that read what the log does not hold any more: until the
/// watcher has found out, it would only read the same again.
const CHANGED: Duration = Duration::from_secs(1);

/// Why a settlement is not committed.
#[derive(Debug)]
pub(super) enum NotCommitted {
    /// The leadership is over.
    Ended(End),
    /// The database refuses what it holds, for this reason.
    Refused(String),
}

impl From<End> for NotCommitted {
    fn from(end: End) -> Self {
        Self::Ended(end)
    }
}

/// What came of a try, as it is counted.
fn settled_as(answer: &Result<Settled, StoreError>) -> SettledAs {
    match answer {
        Ok(Settled::Committed) => SettledAs::Committed,
        Ok(Settled::NotLeader) => SettledAs::NotLeader,
        Err(StoreError::Unstorable(_)) => SettledAs::Refused,
        Err(_) => SettledAs::Error,
    }
}

impl GroupLoop {
    /// Commits a settlement: again and again while the database is away, until
    /// it is known to be committed, or to be refused for what it holds, or the
    /// leadership is over.
    pub(super) async fn commit(
        &self,
        settlement: &Settlement,
        outages: &Outages,
        signals: &Signals,
    ) -> Result<(), NotCommitted> {
        let mut interrupts = Interrupts::new(signals);
        let mut unknown = false;
        let began = Instant::now();
        loop {
            if signals.leadership.is_lost() {
                return Err(End::Lost.into());
            }
            let settling = async {
                let _permit = self.admission.acquire_write(self.store.limits().writes).await;
                let began = Instant::now();
                let settled = if unknown {
                    self.settle_unless_committed(settlement).await
                } else {
                    self.store.settle(settlement).await
                };
                let is_answered = settled.is_ok();
                self.metrics.store.called(StoreOperation::Settle, began.elapsed(), is_answered);
                settled
            };
            let answer = interrupts.answer(settling).await;
            if let Ok(answer) = &answer {
                self.metrics.settled(settled_as(answer));
            }
            let interrupt = match answer {
                Ok(Ok(Settled::Committed)) => break,
                Ok(Ok(Settled::NotLeader)) => return Err(End::Superseded.into()),
                // It would be refused again: what was read is not in the log any more.
                Ok(Err(StoreError::Changed(why))) => {
                    let delay = outages.failed(&self.settings.name, Operation::Settle, &why);
                    tokio::select! {
                        () = tokio::time::sleep(delay.max(CHANGED)) => {}
                        _ = interrupts.next() => {}
                    }
                    return Err(End::Superseded.into());
                }
                // An earlier try of it may still be on its way, with the number that the
                // next settlement would have: another epoch decides.
                Ok(Err(StoreError::Unstorable(_))) if unknown => {
                    return Err(End::Superseded.into());
                }
                Ok(Err(StoreError::Unstorable(why))) => {
                    return Err(NotCommitted::Refused(why));
                }
                Ok(Err(error)) => {
                    unknown = true;
                    let delay = outages.failed(&self.settings.name, Operation::Settle, &error);
                    tokio::select! {
                        () = tokio::time::sleep(delay) => continue,
                        interrupt = interrupts.next() => interrupt,
                    }
                }
                Err(interrupt) => interrupt,
            };
            if interrupt == Interrupt::Lost {
                return Err(End::Lost.into());
            }
            error!(
                group = %self.settings.name,
                position = settlement.position.0,
                "stopping without the last settlement: its events come again"
            );
            return Err(End::Stopped.into());
        }
        outages.recovered(&self.settings.name, Operation::Settle);
        let (handled, dead) = (settlement.handled, settlement.dead_letters.len());
        let handled = usize::try_from(handled).unwrap_or(usize::MAX);
        self.metrics.settlement_duration.observe(began.elapsed());
        self.metrics.settlement_events.observe_len(handled.saturating_add(dead));
        self.metrics.emits.add_len(settlement.emits.len());
        if !settlement.emits.is_empty() {
            self.published.notify_one();
        }
        for dead in &settlement.dead_letters {
            self.log_dead_letter(dead);
        }
        Ok(())
    }

    /// After a failed settlement: reads whether it was committed, and settles again if not.
    async fn settle_unless_committed(
        &self,
        settlement: &Settlement,
    ) -> Result<Settled, StoreError> {
        if let Some(known) = self.what_became_of(settlement).await? {
            return Ok(known);
        }
        match self.store.settle(settlement).await? {
            Settled::Committed => Ok(Settled::Committed),
            // Its earlier try, which was still under way, may have been committed in between.
            Settled::NotLeader => {
                Ok(self.what_became_of(settlement).await?.unwrap_or(Settled::NotLeader))
            }
        }
    }

    /// What became of a settlement; `None` while it may still be under way, because the one
    /// before it is the group's last. No other leader settles under this epoch, so the number
    /// tells.
    async fn what_became_of(&self, settlement: &Settlement) -> Result<Option<Settled>, StoreError> {
        let cursor = self.store.cursor(&settlement.group).await?;
        Ok(if cursor.epoch != settlement.epoch {
            Some(Settled::NotLeader)
        } else if cursor.settled == settlement.number {
            Some(Settled::Committed)
        } else if cursor.settled == settlement.number - 1 {
            None
        } else {
            // The database was put back, or its row was changed by hand: what the
            // leader holds of it is of no use.
            Some(Settled::NotLeader)
        })
    }

    fn log_dead_letter(&self, dead: &NewDeadLetter) {
        warn!(
            group = %self.settings.name,
            position = dead.event.position.0,
            event_id = %shown_id(&dead.event.event),
            attempts = dead.attempts,
            kind = dead.failure.kind,
            reason = storable(&dead.failure.text, 200),
            "dead letter"
        );
    }
}

/// Bytes of an event's id in the log: each line of an attempt carries it.
const ID_BYTES: usize = 64;

/// An event's id as the log shows it. The position names the event where it is cut.
pub(super) fn shown_id(event: &Event) -> Cow<'_, str> {
    match clean(&event.id) {
        // The usual case, for each attempt.
        Cow::Borrowed(id) if id.len() <= ID_BYTES => Cow::Borrowed(id),
        _ => Cow::Owned(storable(&event.id, ID_BYTES)),
    }
}
