//! Which lock a host holds for a group.
//!
//! A group's key stands in its row and may be replaced, where somebody who is no host
//! holds it. The lock session takes the lock, and a shared connection begins to lead:
//! in between the key may have become another one. So the store begins to lead only
//! with the key that the session holds, and tells the session where that is not the
//! group's any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::GroupName;
use crate::store::lock_key::LockKey;

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

    /// Takes note that a group has another key than the one that a host holds for it.
    pub(super) fn is_replaced(&self, host: &str, group: &GroupName) {
        self.books().replaced.insert((host.to_owned(), group.clone()));
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
