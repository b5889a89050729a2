//! What a host is troubled by at present, from all of its tasks, for `status`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::failure::storable;

/// How much is told of one trouble, in bytes.
const ONE: usize = 500;

/// How many are told of.
const MOST: usize = 20;

/// The present troubles of one host. A clone has the same.
#[derive(Debug, Clone, Default)]
pub struct Troubles(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By what does not work: why.
    present: Mutex<BTreeMap<String, String>>,
    changed: watch::Sender<()>,
}

impl Troubles {
    /// Something does not work, or for another reason than before.
    pub fn set(&self, what: &str, why: &dyn fmt::Display) {
        let why = storable(&why.to_string(), ONE);
        let before = self.locked().insert(what.to_owned(), why.clone());
        if before != Some(why) {
            self.0.changed.send_replace(());
        }
    }

    /// It works, or nobody tries any more.
    pub fn clear(&self, what: &str) {
        if self.locked().remove(what).is_some() {
            self.0.changed.send_replace(());
        }
    }

    /// All of them, one a line; `None` when there is none.
    pub fn told(&self) -> Option<String> {
        let present = self.locked();
        let lines = present.iter().take(MOST).map(|(what, why)| format!("{what}: {why}"));
        let mut lines: Vec<String> = lines.collect();
        if present.len() > MOST {
            lines.push(format!("and {} more", present.len() - MOST));
        }
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Tells when they change.
    pub fn follow(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        // Each change of it is whole, whoever panicked beside it.
        self.0.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_present() {
        let troubles = Troubles::default();
        let mut changes = troubles.follow();
        assert_eq!(troubles.told(), None);
        troubles.set("cannot watch the log", &"no answer");
        troubles.set("cannot settle", &"it only reads");
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        troubles.set("cannot settle", &"it only reads");
        assert!(!changes.has_changed().unwrap(), "it is as it was");
        let told = "cannot settle: it only reads\ncannot watch the log: no answer";
        assert_eq!(troubles.clone().told().as_deref(), Some(told));
        troubles.clear("cannot settle");
        assert!(changes.has_changed().unwrap());
        for n in 0..50 {
            troubles.set(&format!("cannot do {n}"), &"no answer");
        }
        assert!(troubles.told().unwrap().ends_with("\nand 31 more"));
    }
}
