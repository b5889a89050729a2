//! Where a handler's component comes from.

use std::fmt;
use std::path::PathBuf;

/// Where a handler's component comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Component {
    /// This file, which may not exist.
    File(PathBuf),
    /// The database, where it was deployed.
    Deployed,
}

/// What the settings call [`Component::Deployed`]. A file of this name is
/// written `./deployed`.
pub(super) const DEPLOYED: &str = "deployed";

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Deployed => f.write_str(DEPLOYED),
        }
    }
}
