//! What is wrong with what a host is to run, and was said to be.

use std::collections::BTreeMap;

use crate::event::{GroupName, HandlerName};

/// What can be wrong with what a host is to run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    Settings,
    Deployments,
    Handler(HandlerName),
    Group(GroupName),
    Restart(&'static str),
}

/// What was said to be wrong and is still so.
#[derive(Debug, Default)]
pub(super) struct Said(pub(super) BTreeMap<About, String>);

impl Said {
    /// Something is wrong. Whether that is to be said: it was not, or not so, or somebody
    /// asks.
    pub(super) fn begins(&mut self, about: About, what: String, trigger: Trigger) -> bool {
        let is_new = self.0.get(&about) != Some(&what);
        self.0.insert(about, what);
        is_new || trigger == Trigger::Hangup
    }

    /// Something is right. Whether it was said to be wrong.
    pub(super) fn is_over(&mut self, about: &About) -> bool {
        self.0.remove(about).is_some()
    }
}

/// Why a host looks at its files again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    Hangup,
    Files,
    Deployment,
    Again,
}
