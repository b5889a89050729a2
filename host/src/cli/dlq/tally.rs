//! Several dead letters that are dealt with one after the other.

use crate::cli::AlreadySaid;
use crate::cli::interrupt::Interrupt;
use crate::telemetry;
use event_host_store::{DeadLetterId, StoreError};

/// What became of several dead letters that are dealt with one after the other.
pub(super) struct Tally {
    /// What is done to them, as in "3 of 5 were …".
    what: &'static str,
    of: usize,
    pub(super) done: usize,
    failures: usize,
    /// Why the others are not tried.
    stopped: Option<&'static str>,
    not_tried: Vec<DeadLetterId>,
    interrupt: Interrupt,
}

impl Tally {
    pub(super) fn of(what: &'static str, of: usize) -> anyhow::Result<Self> {
        let (done, failures, stopped, not_tried) = (0, 0, None, Vec::new());
        Ok(Self { what, of, done, failures, stopped, not_tried, interrupt: Interrupt::listen()? })
    }

    /// Whether the next one is to be tried.
    pub(super) fn goes_on(&mut self) -> bool {
        if self.stopped.is_none() && self.interrupt.came() {
            self.stopped = Some("interrupted");
        }
        self.stopped.is_none()
    }

    pub(super) fn not_tried(&mut self, id: DeadLetterId) {
        self.not_tried.push(id);
    }

    pub(super) fn failed(&mut self, id: DeadLetterId, error: &StoreError) {
        self.failures += 1;
        let said = match error {
            StoreError::Unavailable(_) => {
                format!("whether dead letter {id} was {} is not known: {error}", self.what)
            }
            StoreError::Busy(_) => format!("dead letter {id} was not {}: {error}", self.what),
            error => error.to_string(),
        };
        if matches!(error, StoreError::Unavailable(_) | StoreError::Busy(_)) {
            // What comes next would fail alike, each after its deadline.
            self.stopped = Some("stopped");
        }
        telemetry::say(&format!("error: {said}"));
    }

    pub(super) fn end(self) -> anyhow::Result<()> {
        /// More are only counted.
        const NAMED: usize = 10;
        let Self { what, of, done, failures, stopped, not_tried, .. } = self;
        if failures == 0 && stopped.is_none() {
            return Ok(());
        }
        if of > 1 {
            let named: Vec<String> =
                not_tried.iter().take(NAMED).map(ToString::to_string).collect();
            let more = match not_tried.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let left = match named.is_empty() {
                true => String::new(),
                false => format!("; not tried: {}{more}", named.join(", ")),
            };
            let why = stopped.map(|why| format!("{why}: ")).unwrap_or_default();
            telemetry::say(&format!("error: {why}{done} of {of} dead letters were {what}{left}"));
        }
        Err(AlreadySaid.into())
    }
}
