//! Which groups have series of their own: so many, whatever the database has, and the first
//! that come. The others share the label [`OTHER`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The label that all groups share for which there is no room. No group can have the name.
pub const OTHER: &str = "_other";

/// The groups that have series of their own.
#[derive(Debug, Clone)]
pub struct SeriesNames(Arc<Mutex<Named>>);

#[derive(Debug)]
struct Named {
    most: usize,
    /// Groups that this process runs or has run: their counters stay until it ends.
    here: BTreeSet<String>,
    /// Other groups of the database.
    elsewhere: BTreeSet<String>,
}

impl Named {
    fn has_room(&self) -> bool {
        self.here.len() + self.elsewhere.len() < self.most
    }
}

impl SeriesNames {
    pub(crate) fn new(most: usize) -> Self {
        let (here, elsewhere) = (BTreeSet::new(), BTreeSet::new());
        Self(Arc::new(Mutex::new(Named { most, here, elsewhere })))
    }

    fn lock(&self) -> MutexGuard<'_, Named> {
        // Every change of it is whole, so a poisoned lock is fine.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how many have series of their own. Those that have them keep them.
    pub fn set_most(&self, most: usize) {
        self.lock().most = most;
    }

    /// Whether a group that runs here has series of its own.
    pub(crate) fn admit(&self, group: &str) -> bool {
        let mut named = self.lock();
        if named.here.contains(group) {
            return true;
        }
        if !named.elsewhere.remove(group) && !named.has_room() {
            return false;
        }
        named.here.insert(group.to_owned());
        true
    }

    /// The label of a group that runs here.
    pub(crate) fn label<'a>(&self, group: &'a str) -> &'a str {
        if self.admit(group) { group } else { OTHER }
    }

    /// Whether each of these groups, which are all that the database has, has series of its
    /// own. Those that have gone give their place to others, unless they ran here.
    pub(crate) fn admit_all<'a>(&self, groups: impl Iterator<Item = &'a str>) -> Vec<bool> {
        let groups: Vec<&str> = groups.collect();
        let mut named = self.lock();
        let there: BTreeSet<&str> = groups.iter().copied().collect();
        named.elsewhere.retain(|name| there.contains(name.as_str()));
        let mut admit = |group: &&str| {
            if named.here.contains(*group) || named.elsewhere.contains(*group) {
                return true;
            }
            named.has_room() && named.elsewhere.insert((*group).to_owned())
        };
        groups.iter().map(&mut admit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_keeps_its_name_and_one_that_has_gone_makes_room() {
        let names = SeriesNames::new(3);
        assert!(names.admit("here"));
        let all = |groups: &[&str]| names.admit_all(groups.iter().copied());
        assert_eq!(all(&["a", "b", "c"]), [true, true, false]);
        assert_eq!(all(&["a", "b", "c", "here"]), [true, true, false, true]);
        assert!(!names.admit("new"), "there is no room");
        assert!(names.admit("b"), "it has its name already");
        assert_eq!(all(&["c", "here"]), [true, true], "a has gone; b ran here");
        assert_eq!(all(&["d", "here"]), [true, true], "c has gone");
        assert_eq!(all(&["d", "a"]), [true, false], "what ran here stays");
    }
}
