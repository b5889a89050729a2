//! The notes of groups that do not run as the files say, for `host status`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::warn;

use event_host_core::event::GroupName;
use event_host_store::Settlements;

/// The notes that the store has of one host's groups.
pub(crate) struct Notes {
    store: Arc<dyn Settlements>,
    stored: BTreeMap<GroupName, String>,
}

impl Notes {
    /// Of a store in which this host has set none.
    pub(crate) fn new(store: Arc<dyn Settlements>) -> Self {
        Self { store, stored: BTreeMap::new() }
    }

    /// Removes the notes that an earlier host left of these groups.
    pub(crate) async fn clear(&self, groups: &[GroupName]) {
        self.store(groups, None).await;
    }

    /// Has the store show these notes of these groups, and of no others any more. A note
    /// that cannot be stored is stored at the next reload.
    pub(crate) async fn set(&mut self, notes: BTreeMap<GroupName, String>) {
        let mut changes: BTreeMap<Option<&str>, Vec<GroupName>> = BTreeMap::new();
        for group in self.stored.keys().filter(|group| !notes.contains_key(*group)) {
            changes.entry(None).or_default().push(group.clone());
        }
        for (group, note) in &notes {
            if self.stored.get(group) != Some(note) {
                changes.entry(Some(note)).or_default().push(group.clone());
            }
        }
        let mut stored = Vec::new();
        for (note, groups) in changes {
            if self.store(&groups, note).await {
                stored.extend(groups.into_iter().map(|group| (group, note.map(str::to_owned))));
            }
        }
        for (group, note) in stored {
            match note {
                Some(note) => self.stored.insert(group, note),
                None => self.stored.remove(&group),
            };
        }
    }

    async fn store(&self, groups: &[GroupName], note: Option<&str>) -> bool {
        let stored = self.store.set_note(groups, note).await;
        if let Err(why) = &stored {
            warn!("`host status` cannot be told: {why}");
        }
        stored.is_ok()
    }
}
