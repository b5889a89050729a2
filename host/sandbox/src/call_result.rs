//! What a guest returned, and how that ends an attempt.

use std::time::Duration;

use super::bindings::event_host::handler::types::Failure as GuestFailure;
use event_host_core::failure::{Failure, FailureKind};
use event_host_core::handler::Outcome;

/// What a guest returned for one event.
pub(super) type EventResult = Result<(), GuestFailure>;

/// What a guest returned.
pub(super) enum CallResult {
    One(EventResult),
    /// As many as there were events.
    Each(Vec<EventResult>),
}

impl CallResult {
    pub(super) fn is_success(&self) -> bool {
        match self {
            Self::One(answered) => answered.is_ok(),
            Self::Each(all) => all.iter().all(Result::is_ok),
        }
    }

    /// How the call ended for its one event.
    pub(super) fn into_outcome(self) -> Outcome {
        match self {
            Self::One(answered) => outcome_of(answered),
            Self::Each(all) => all.into_iter().next().map_or(Outcome::Success, outcome_of),
        }
    }

    pub(super) fn into_outcomes(self) -> Vec<Outcome> {
        match self {
            Self::One(answered) => vec![outcome_of(answered)],
            Self::Each(all) => all.into_iter().map(outcome_of).collect(),
        }
    }
}

fn outcome_of(answered: EventResult) -> Outcome {
    match answered {
        Ok(()) => Outcome::Success,
        Err(failure) => Outcome::Failure(guest_failure(failure)),
    }
}

fn guest_failure(failure: GuestFailure) -> Failure {
    match failure {
        GuestFailure::Retry(retry) => Failure {
            retry_after: retry.after_ms.map(Duration::from_millis),
            ..Failure::new(FailureKind::Retry, &retry.reason)
        },
        GuestFailure::Reject(reason) => Failure::new(FailureKind::Reject, &reason),
    }
}
