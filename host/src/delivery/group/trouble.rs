//! Troubles that are waited out: said once, with a delay that grows.

use std::fmt;
use std::time::Duration;

use tracing::{debug, error, info};

use crate::delivery::backoff::RetryPolicy;
use crate::event::{Attempt, GroupName};

/// What a leader tries again until it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Read,
    BeginWork,
    Mark,
    Run,
    Settle,
    Trip,
    Pause,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read the log",
            Self::BeginWork => "record the begin of work",
            Self::Mark => "record the begin of an attempt",
            Self::Run => "run the handler",
            Self::Settle => "settle",
            Self::Trip => "record that the group tripped",
            Self::Pause => "pause",
        })
    }
}

/// The trouble that a leader is in, if it is in any. It ends when the very thing
/// works again: that the log can be read says nothing of the handler.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    with: Option<(Doing, u32)>,
}

impl Trouble {
    /// Says that something does not work, unless it was said before, and how
    /// long to wait.
    pub(super) fn met(
        &mut self,
        group: &GroupName,
        doing: Doing,
        why: &dyn fmt::Display,
    ) -> Duration {
        let before = match self.with {
            Some((same, times)) if same == doing => times,
            _ => 0,
        };
        if before == 0 {
            error!(%group, "cannot {doing}: {why}; trying again, no attempt is counted");
        } else {
            debug!(%group, "still cannot {doing}: {why}");
        }
        let times = before.saturating_add(1);
        self.with = Some((doing, times));
        let policy = RetryPolicy {
            max_attempts: u32::MAX,
            initial: Duration::from_millis(50),
            max: Duration::from_secs(5),
            ..RetryPolicy::default()
        };
        policy.delay(Attempt(times), None, fastrand::f64())
    }

    /// Something works.
    pub(super) fn over(&mut self, group: &GroupName, doing: Doing) {
        if self.with.is_some_and(|(what, _)| what == doing) {
            info!(%group, "can {doing} again");
            self.with = None;
        }
    }
}
