//! How an attempt can fail: a closed list of kinds with stable labels.
//!
//! The labels stand in dead letters, in JSON and in metrics; operators write
//! alerts on them. A label is never renamed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::foreign::clean;

/// The longest text that a failure keeps, in bytes.
pub const MAX_TEXT_BYTES: usize = 16 * 1024;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $label:literal,)*) => {
        /// The kind of a failed attempt.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum FailureKind {
            $($(#[$doc])* $variant,)*
        }

        impl FailureKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable label.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self { $(Self::$variant => $label,)* }
            }
        }
    };
}

kinds! {
    /// The handler asked for another attempt.
    Retry = "retry",
    /// The handler said that the event can never be handled.
    Reject = "reject",
    /// The handler trapped.
    Trap = "trap",
    /// The handler called WASI's exit.
    Exit = "exit",
    /// The attempt took longer than `limits.timeout`.
    Timeout = "timeout",
    /// The instance wanted more than `limits.memory`, all its memories together.
    MemoryLimit = "memory-limit",
    /// The attempt used more than `limits.fuel`.
    Fuel = "fuel",
    /// The guest's stack was used up.
    StackLimit = "stack-limit",
    /// The instance wanted more table elements than it may have.
    TableLimit = "table-limit",
    /// A host call carried more than it may, or left too many resources open.
    HostCallLimit = "host-call-limit",
    /// More log output than an attempt may write.
    LogLimit = "log-limit",
    /// More emits, or larger ones, than an attempt may make.
    EmitLimit = "emit-limit",
    /// More state writes, or larger ones, than an attempt may make, or more state
    /// than its tenant may keep.
    StateLimit = "state-limit",
    /// More keys in the group's state than `limits.state_keys`.
    StateKeysLimit = "state-keys-limit",
    /// More HTTP requests than an attempt may make.
    HttpRequestLimit = "http-request-limit",
    /// More bytes by HTTP than an attempt may send and receive.
    HttpByteLimit = "http-byte-limit",
    /// An HTTP request took longer than `limits.http_timeout`.
    HttpTimeout = "http-timeout",
    /// The answer does not fit the contract.
    BadAnswer = "bad-answer",
    /// A handler of HTTP requests returned without an answer.
    NoAnswer = "no-answer",
    /// The process died while this event was handled.
    Crash = "crash",
    /// The component that a replay named cannot be run.
    NotLoaded = "not-loaded",
    /// The database refuses what the attempt came to.
    NotStored = "not-stored",
    /// The event is too large to be read.
    TooLarge = "too-large",
}

impl FailureKind {
    /// Whether no further attempt is made, whatever the settings.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Reject | Self::NotLoaded | Self::TooLarge)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

impl FromStr for FailureKind {
    type Err = UnknownKind;

    fn from_str(label: &str) -> Result<Self, UnknownKind> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.label() == label)
            .ok_or_else(|| UnknownKind(label.to_owned()))
    }
}

/// A label that no failure kind has: written by a newer host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a failure kind that this version knows")]
pub struct UnknownKind(pub String);

/// Why one attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// One storable text: [clean], at most [`MAX_TEXT_BYTES`].
    pub text: String,
    /// The least delay that the handler asked for.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure with a text made storable.
    #[must_use]
    pub fn new(kind: FailureKind, text: &str) -> Self {
        Self { kind, text: storable(text, MAX_TEXT_BYTES), retry_after: None }
    }
}

/// Cuts a guest's text to `max` bytes at a character's edge and [cleans](clean) it: what a
/// database refuses or a terminal obeys is replaced.
#[must_use]
pub fn storable(text: &str, max: usize) -> String {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut clean = clean(&text[..end]).into_owned();
    if end < text.len() {
        clean.push_str(&format!("… ({} bytes in all)", text.len()));
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_labels_are_alike_and_each_parses_back() {
        for (i, kind) in FailureKind::ALL.iter().enumerate() {
            assert_eq!(kind.label().parse::<FailureKind>().as_ref(), Ok(kind));
            assert!(FailureKind::ALL[..i].iter().all(|other| other.label() != kind.label()));
        }
    }

    #[test]
    fn every_kind_is_explained_in_the_guarantees() {
        let guarantees = include_str!("../../../docs/guarantees.md");
        for kind in FailureKind::ALL {
            assert!(guarantees.contains(&format!("\n| `{kind}` | ")), "{kind}");
        }
    }

    #[test]
    fn a_guests_text_is_cut_and_cleaned() {
        assert_eq!(storable("a\0b\x1b[31m\nc", 100), "a\u{fffd}b\u{fffd}[31m\nc");
        let long = "é".repeat(10);
        assert_eq!(storable(&long, 5), "éé… (20 bytes in all)");
    }
}
