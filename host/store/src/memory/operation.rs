//! The calls of a store that a test can make fail, and count.

use std::fmt;

/// A call of a store, or of its lock session. Each subject names its own, beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation {
    name: &'static str,
    /// Whether it changes what others can see.
    pub(super) writes: bool,
}

impl Operation {
    pub(super) const fn reading(name: &'static str) -> Self {
        Self { name, writes: false }
    }

    pub(super) const fn writing(name: &'static str) -> Self {
        Self { name, writes: true }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
