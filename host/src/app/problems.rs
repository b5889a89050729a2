//! The problems of what a host is to run that the log has told of.

use std::collections::BTreeMap;

use event_host_core::event::{GroupName, HandlerName};

/// What can be wrong with what a host is to run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    Settings,
    Deployments,
    Handler(HandlerName),
    Group(GroupName),
    Restart(&'static str),
}

/// The problems that were told of and last.
#[derive(Debug, Default)]
pub(crate) struct Problems(pub(crate) BTreeMap<Problem, String>);

impl Problems {
    /// A problem begins or goes on. Whether to tell of it: it is new, or another than before,
    /// or a SIGHUP asks for it.
    pub(crate) fn begins(&mut self, problem: Problem, what: String, trigger: Trigger) -> bool {
        let is_new = self.0.get(&problem) != Some(&what);
        self.0.insert(problem, what);
        is_new || trigger == Trigger::Hangup
    }

    /// There is no such problem. Whether the log has told of one.
    pub(crate) fn is_over(&mut self, problem: &Problem) -> bool {
        self.0.remove(problem).is_some()
    }
}

/// Why a host looks at its files again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    Hangup,
    Files,
    Deployment,
    Again,
}
