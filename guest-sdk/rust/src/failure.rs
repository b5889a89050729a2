//! Why a handler did not handle an event, and how any error becomes that.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::InvalidEvent;
use crate::bindings::event_host::handler::types as raw;

/// Why a handler did not handle an event.
///
/// It is no `std::error::Error` itself, which lets `?` turn every such error
/// into one: an [`InvalidEvent`] (or an error caused by one) into a rejection,
/// any other into a retry whose reason is the error and its causes.
///
/// ```
/// use std::time::Duration;
/// use event_host_sdk::Failure;
///
/// fn port(text: &str) -> Result<u16, Failure> {
///     let port = text.parse()?;
///     if port == 0 {
///         return Err(Failure::reject("port 0 is not a port"));
///     }
///     if port == 8080 {
///         return Err(Failure::retry("in use").after(Duration::from_secs(30)));
///     }
///     Ok(port)
/// }
///
/// assert_eq!(port("x"), Err(Failure::retry("invalid digit found in string")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a failure does nothing until the handler returns it"]
pub struct Failure(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Retry { reason: String, after: Option<Duration> },
    Reject(String),
}

impl Failure {
    /// It may work later: the host tries again, until the configured attempts
    /// are used up; then the event becomes a dead letter.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self(Kind::Retry { reason: reason.into(), after: None })
    }

    /// It will never work: the event becomes a dead letter at once.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self(Kind::Reject(reason.into()))
    }

    /// The least time to wait before the next attempt, instead of what the
    /// handler's retry settings say. Means nothing to a rejection.
    pub fn after(mut self, delay: Duration) -> Self {
        if let Kind::Retry { after, .. } = &mut self.0 {
            *after = Some(delay);
        }
        self
    }

    /// The failure that an error stands for, as `?` makes it, also for errors
    /// that `?` cannot convert: `anyhow::Error`, `Box<dyn Error>`, `String`.
    ///
    /// ```
    /// # use event_host_sdk::Failure;
    /// let error = anyhow::anyhow!("no answer").context("asking for the price");
    /// assert_eq!(Failure::of(error), Failure::retry("asking for the price: no answer"));
    /// ```
    pub fn of<Form>(error: impl IntoFailure<Form>) -> Self {
        error.into_failure()
    }

    /// The failure as an error, for functions that return another error type.
    /// Whatever wraps it on the way, the host gets this failure.
    ///
    /// ```
    /// # use event_host_sdk::{Event, Failure, handler};
    /// #[handler]
    /// fn ship(event: Event) -> anyhow::Result<()> {
    ///     if event.subject().is_none() {
    ///         return Err(Failure::reject("nobody to ship to").into_error().into());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn into_error(self) -> FailureError {
        FailureError(self)
    }

    /// Whether it asks for another attempt.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        matches!(self.0, Kind::Retry { .. })
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> &str {
        match &self.0 {
            Kind::Retry { reason, .. } | Kind::Reject(reason) => reason,
        }
    }

    /// The least time to wait that [`after`](Self::after) set.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        match self.0 {
            Kind::Retry { after, .. } => after,
            Kind::Reject(_) => None,
        }
    }

    fn from_error(error: &(dyn Error + 'static)) -> Self {
        let reason = with_causes(error);
        let given = causes(error).find_map(|error| error.downcast_ref::<FailureError>());
        match given.map(|FailureError(failure)| &failure.0) {
            Some(Kind::Retry { after, .. }) => Self(Kind::Retry { reason, after: *after }),
            Some(Kind::Reject(_)) => Self::reject(reason),
            None if causes(error).any(|error| error.is::<InvalidEvent>()) => Self::reject(reason),
            None => Self::retry(reason),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::from_error(&error)
    }
}

impl From<Failure> for raw::Failure {
    fn from(failure: Failure) -> Self {
        match failure.0 {
            Kind::Retry { reason, after } => {
                Self::Retry(raw::Retry { reason, after_ms: after.map(whole_milliseconds) })
            }
            Kind::Reject(reason) => Self::Reject(reason),
        }
    }
}

/// Rounds up: it is the least time to wait.
fn whole_milliseconds(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The error and its causes in one line. Many errors already show their cause;
/// it is not shown twice.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// A [`Failure`] as a `std::error::Error`; see [`Failure::into_error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureError(Failure);

impl fmt::Display for FailureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for FailureError {}

/// An error that a handler may return.
///
/// It is implemented for [`Failure`], every `std::error::Error`,
/// `Box<dyn Error>`, `anyhow::Error` and its like, and `String`. No one type
/// parameter covers all of them, since Rust must assume that `Box<dyn Error>`
/// may one day be an `Error`; so each form is an implementation for a `Form` of
/// its own, which the compiler infers.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return the error `{Self}`",
    label = "wanted: `Failure`, a `std::error::Error`, `anyhow::Error`, `Box<dyn Error>` or `String`",
    note = "a handler looks like `fn name(event: Event) -> Result<(), Failure>`",
    note = "a batch handler looks like `fn name(events: Vec<Event>) -> Vec<Result<(), Failure>>`"
)]
pub trait IntoFailure<Form> {
    /// The failure that this error stands for.
    fn into_failure(self) -> Failure;
}

/// How an error comes, to tell the implementations of [`IntoFailure`] apart.
mod form {
    pub enum Itself {}
    pub enum Plain {}
    pub enum Boxed {}
    pub enum Wrapped {}
    pub enum Text {}
}

impl IntoFailure<form::Itself> for Failure {
    fn into_failure(self) -> Failure {
        self
    }
}

impl<E: Error + 'static> IntoFailure<form::Plain> for E {
    fn into_failure(self) -> Failure {
        Failure::from_error(&self)
    }
}

impl IntoFailure<form::Boxed> for Box<dyn Error> {
    fn into_failure(self) -> Failure {
        Failure::from_error(&*self)
    }
}

/// `anyhow::Error`, `eyre::Report`, `Box<dyn Error + Send + Sync>`.
impl<E> IntoFailure<form::Wrapped> for E
where
    E: AsRef<dyn Error + Send + Sync> + Into<Box<dyn Error + Send + Sync>>,
{
    fn into_failure(self) -> Failure {
        Failure::from_error(self.as_ref())
    }
}

impl IntoFailure<form::Text> for String {
    fn into_failure(self) -> Failure {
        Failure::retry(self)
    }
}

/// What a handler returned, with its error as a failure.
///
/// # Errors
/// The handler's.
#[doc(hidden)]
pub fn into_failure<E: IntoFailure<Form>, Form>(result: Result<(), E>) -> Result<(), Failure> {
    result.map_err(IntoFailure::into_failure)
}

/// What a handler of batches returned, with its errors as failures.
#[doc(hidden)]
pub fn into_failures<E: IntoFailure<Form>, Form>(
    results: Vec<Result<(), E>>,
) -> Vec<Result<(), Failure>> {
    results.into_iter().map(into_failure).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn io_error() -> std::io::Error {
        std::io::Error::other("line busy")
    }

    fn invalid() -> InvalidEvent {
        InvalidEvent::new("no title")
    }

    #[derive(Debug)]
    struct ShowsItsCause(std::io::Error);

    impl fmt::Display for ShowsItsCause {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "calling: {}", self.0)
        }
    }

    impl Error for ShowsItsCause {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_question_mark_takes_failures_and_errors_in_one_function() {
        fn mixed(n: u8) -> Result<(), Failure> {
            match n {
                0 => Err(Failure::reject("mine"))?,
                1 => Err(io_error())?,
                2 => Err(invalid())?,
                _ => {}
            }
            Ok(())
        }
        assert_eq!(mixed(0), Err(Failure::reject("mine")));
        assert_eq!(mixed(1), Err(Failure::retry("line busy")));
        assert_eq!(mixed(2), Err(Failure::reject("no title")));
        assert_eq!(mixed(3), Ok(()));
    }

    #[test]
    fn every_form_of_error_may_be_returned() {
        let retry = Err(Failure::retry("line busy"));
        assert_eq!(into_failure(Err(io_error())), retry);
        assert_eq!(into_failure(Err(Box::<dyn Error>::from(io_error()))), retry);
        assert_eq!(into_failure(Err(Box::<dyn Error + Send + Sync>::from(io_error()))), retry);
        assert_eq!(into_failure(Err(anyhow::Error::from(io_error()))), retry);
        assert_eq!(into_failure(Err("line busy".to_owned())), retry);
        assert_eq!(into_failure(Err(Failure::retry("line busy"))), retry);
        assert_eq!(into_failure(Ok::<(), Failure>(())), Ok(()));
    }

    #[test]
    fn an_invalid_event_is_a_rejection_however_it_is_wrapped() {
        assert_eq!(Failure::of(invalid()), Failure::reject("no title"));
        assert_eq!(Failure::of(Box::<dyn Error>::from(invalid())), Failure::reject("no title"));
        let wrapped = Err::<(), _>(invalid()).context("reading the issue").unwrap_err();
        assert_eq!(Failure::of(wrapped), Failure::reject("reading the issue: no title"));
    }

    #[test]
    fn a_failure_survives_the_way_through_other_errors() {
        let failure = Failure::retry("wait").after(Duration::from_secs(3));
        let error = anyhow::Error::from(failure.into_error()).context("calling");
        let failure = Failure::of(error);
        assert_eq!(failure, Failure::retry("calling: wait").after(Duration::from_secs(3)));
        let error = Box::<dyn Error>::from(Failure::reject("never").into_error());
        assert_eq!(Failure::of(error), Failure::reject("never"));
    }

    #[test]
    fn a_reason_has_each_cause_once() {
        assert_eq!(Failure::of(ShowsItsCause(io_error())).reason(), "calling: line busy");
        let error = anyhow::Error::from(ShowsItsCause(io_error())).context("outer");
        assert_eq!(Failure::of(error).reason(), "outer: calling: line busy");
    }

    #[test]
    fn a_delay_is_rounded_up_and_saturates() {
        let after = |delay| match Failure::retry("").after(delay).into() {
            raw::Failure::Retry(raw::Retry { after_ms, .. }) => after_ms,
            raw::Failure::Reject(_) => None,
        };
        assert_eq!(after(Duration::from_nanos(1)), Some(1));
        assert_eq!(after(Duration::from_millis(1_500)), Some(1_500));
        assert_eq!(after(Duration::MAX), Some(u64::MAX));
        assert_eq!(Failure::reject("x").after(Duration::MAX), Failure::reject("x"));
    }
}
