//! What a handler is to run: its file, or what is deployed.

use event_host_store::Deployed;

/// What a handler is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The handler's file, whose digest was this.
    File(String),
    /// A version that is deployed.
    Deployed(Deployed),
}

impl Wanted {
    /// The digest of what is to run.
    pub(crate) fn digest(&self) -> &str {
        match self {
            Self::File(digest) => digest,
            Self::Deployed(deployed) => deployed.digest.as_str(),
        }
    }
}
