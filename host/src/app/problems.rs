//! The problems of what a host is to run that the log has told of.

use std::collections::BTreeMap;

use tracing::{info, warn};

use event_host_core::event::{GroupName, HandlerName};

/// What can be wrong with what a host is to run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    Settings,
    Deployments,
    Listeners,
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

    /// Tells of settings that take a restart: those that are another now than this host runs
    /// with.
    pub(crate) fn say_what_takes_a_restart(
        &mut self,
        settings: impl IntoIterator<Item = (&'static str, bool, String)>,
        trigger: Trigger,
    ) {
        for (setting, is_another, value) in settings {
            let problem = Problem::Restart(setting);
            if !is_another {
                if self.is_over(&problem) {
                    info!("`{setting}` is again what this host runs with");
                }
            } else if self.begins(problem, value, trigger) {
                warn!("`{setting}` changed: that takes a restart of the host");
            }
        }
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
