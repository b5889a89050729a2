//! What a reload is to switch to: of each handler what was loaded, or what runs of it now
//! while that is being loaded or is refused.

use std::collections::BTreeMap;

use tracing::{debug, error};

use super::loading::Loaded;
use crate::config::{Config, HandlerSettings};
use event_host_core::event::{GroupName, HandlerName};
use event_host_core::handler::Handler as _;

/// What is said of a handler while its component is loaded.
pub(super) const UNDER_WAY: &str = "what it is to run now is being loaded";

/// What a reload is to switch to.
pub(super) struct Plan {
    pub(super) wanted: BTreeMap<HandlerName, Loaded>,
    /// What `status` is to show of the groups that do not run as the files say.
    pub(super) notes: BTreeMap<GroupName, String>,
    /// Whether there is nothing to try again.
    pub(super) all: bool,
}

impl Plan {
    /// Nothing, until it is planned.
    pub(super) fn new() -> Self {
        Self { wanted: BTreeMap::new(), notes: BTreeMap::new(), all: true }
    }

    /// Plans a handler whose component is still being loaded: what runs of it goes on.
    pub(super) fn keep_while_loading(
        &mut self,
        settings: &HandlerSettings,
        config: &Config,
        running: &BTreeMap<HandlerName, Loaded>,
    ) {
        debug!(handler = %settings.name, "{UNDER_WAY}");
        // Under another name, if the settings have it no more.
        let is_gone = |one: &&Loaded| {
            one.settings.group == settings.group
                && config.handlers.iter().all(|kept| kept.name != one.settings.name)
        };
        let before = running.get(&settings.name).or_else(|| running.values().find(is_gone));
        let group = before.map_or(&settings.group, |before| &before.settings.group);
        self.notes.insert(group.clone(), UNDER_WAY.to_owned());
        if let Some(before) = before {
            self.wanted.insert(before.settings.name.clone(), before.clone());
        }
    }

    /// Plans a handler that does not load: what runs of it goes on. That is said where it
    /// is news.
    pub(super) fn keep_where_refused(
        &mut self,
        settings: &HandlerSettings,
        why: &str,
        is_news: bool,
        running: &BTreeMap<HandlerName, Loaded>,
    ) {
        let Some(before) = running.get(&settings.name) else {
            if is_news {
                error!(handler = %settings.name, "does not load, and is not run: {why}");
            }
            return;
        };
        if is_news {
            error!(
                handler = %settings.name,
                running = before.handler.digest(),
                "does not load, and goes on as before: {why}"
            );
        }
        let note = format!("what it is to run now does not load: {why}");
        self.notes.insert(before.settings.group.clone(), note);
        self.wanted.insert(settings.name.clone(), before.clone());
    }
}
