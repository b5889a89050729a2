//! Which lock a host holds for a group.
//!
//! A group's key stands in its row and may be replaced, where somebody who is no host
//! holds it. The lock session takes the lock, and a shared connection begins to lead:
//! in between the key may have become another one. So the store begins to lead only
//! with the key that the session holds, and tells the session where that is not the
//! group's any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use event_host_core::event::GroupName;
use event_host_store::driver::lock_key::LockKey;

/// The keys that the lock sessions of a store hold, by the ids of their hosts.
#[derive(Debug, Default)]
pub(super) struct HeldKeys(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    held: BTreeMap<(String, GroupName), Held>,
    /// Locks that turned out to be their group's no more.
    replaced: BTreeSet<(String, GroupName)>,
}

#[derive(Debug)]
struct Held {
    key: LockKey,
    /// The session that holds it: a host may have had another before.
    session: String,
}

impl HeldKeys {
    /// A session holds the lock of a group.
    pub(super) fn take(&self, host: &str, session: &str, group: &GroupName, key: LockKey) {
        let held = Held { key, session: session.to_owned() };
        self.books().held.insert((host.to_owned(), group.clone()), held);
    }

    /// It holds it no longer.
    pub(super) fn give_back(&self, host: &str, session: &str, group: &GroupName) {
        let of = (host.to_owned(), group.clone());
        let mut books = self.books();
        if books.held.get(&of).is_some_and(|held| held.session == session) {
            books.held.remove(&of);
            books.replaced.remove(&of);
        }
    }

    /// The key that a host holds for a group, if it holds one.
    pub(super) fn of(&self, host: &str, group: &GroupName) -> Option<LockKey> {
        self.books().held.get(&(host.to_owned(), group.clone())).map(|held| held.key)
    }

    /// Takes note that a group has another key than this one, if a host still holds it.
    pub(super) fn is_replaced(&self, host: &str, group: &GroupName, key: LockKey) {
        let of = (host.to_owned(), group.clone());
        let mut books = self.books();
        if books.held.get(&of).is_some_and(|held| held.key == key) {
            books.replaced.insert(of);
        }
    }

    /// A group whose lock a host holds in vain, if there is one.
    pub(super) fn held_in_vain(&self, host: &str) -> Option<GroupName> {
        let books = self.books();
        books.replaced.iter().find(|(of, _)| of == host).map(|(_, group)| group.clone())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Each change of them is whole, whoever panicked beside it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_in_vain_until_its_session_gives_it_back() {
        let keys = HeldKeys::default();
        let group: GroupName = "g".parse().unwrap();
        keys.take("one", "first", &group, LockKey(1));
        keys.is_replaced("one", &group, LockKey(1));
        assert_eq!(keys.held_in_vain("one"), Some(group.clone()));
        assert_eq!(keys.held_in_vain("two"), None);
        keys.give_back("one", "first", &group);
        assert_eq!((keys.held_in_vain("one"), keys.of("one", &group)), (None, None));
        // An answer that comes late says nothing of the session that is there by then,
        // nor does an earlier session give back what is another's.
        keys.is_replaced("one", &group, LockKey(1));
        keys.take("one", "second", &group, LockKey(2));
        keys.is_replaced("one", &group, LockKey(1));
        keys.give_back("one", "first", &group);
        assert_eq!(keys.held_in_vain("one"), None);
        assert_eq!(keys.of("one", &group), Some(LockKey(2)));
    }
}
