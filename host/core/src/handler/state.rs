//! A group's state between the store and the settlement.
//!
//! Three layers, each seen through the one above it: what is committed, what
//! successful attempts wrote that is not committed yet, what the attempt under way
//! wrote. An attempt's writes join those before it when it succeeds and vanish when
//! it fails; they are recorded with the settlement that takes the attempt, and
//! forgotten here once that is committed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

/// Why committed state could not be read. Trying again may help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StateUnreadable(pub String);

/// A value that a handler set, or `None` where it deleted the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateWrite {
    /// The state scope: empty for a group with total order.
    pub scope: String,
    /// The key within the scope.
    pub key: String,
    /// The new value.
    pub value: Option<Vec<u8>>,
}

/// Where committed state is read from.
#[async_trait]
pub trait CommittedState: Send + Sync + 'static {
    /// The committed value of a key.
    async fn get(&self, scope: &str, key: &str) -> Result<Option<Vec<u8>>, StateUnreadable>;

    /// The first `limit` committed keys with this prefix, by bytes.
    async fn keys(
        &self,
        scope: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<String>, StateUnreadable>;
}

/// No committed state at all.
#[derive(Debug, Clone, Copy, Default)]
pub struct EmptyState;

#[async_trait]
impl CommittedState for EmptyState {
    async fn get(&self, _: &str, _: &str) -> Result<Option<Vec<u8>>, StateUnreadable> {
        Ok(None)
    }

    async fn keys(&self, _: &str, _: &str, _: usize) -> Result<Vec<String>, StateUnreadable> {
        Ok(Vec::new())
    }
}

type Writes = BTreeMap<String, Option<Vec<u8>>>;

/// What successful attempts wrote within one scope and is not committed yet.
///
/// Clones share it: attempts of one scope run one at a time, and each sees what
/// those before it wrote, also while that is being settled.
#[derive(Debug, Clone, Default)]
pub struct BatchState(Arc<Scope>);

#[derive(Debug, Default)]
struct Scope {
    name: String,
    /// It is of one event alone, which nobody reads it after.
    ends_with_its_attempt: bool,
    uncommitted: Mutex<Uncommitted>,
}

#[derive(Debug, Default)]
struct Uncommitted {
    /// Attempts that wrote something.
    accepted: u64,
    writes: BTreeMap<String, LastWrite>,
}

#[derive(Debug)]
struct LastWrite {
    /// The attempt that wrote it last.
    by: u64,
    value: Option<Vec<u8>>,
}

/// One write of a successful attempt, to be settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Which of the scope's attempts that wrote something.
    pub by: u64,
    /// What it wrote.
    pub write: StateWrite,
}

impl BatchState {
    /// Nothing written yet.
    #[must_use]
    pub fn new(scope: impl Into<String>) -> Self {
        Self(Arc::new(Scope { name: scope.into(), ..Scope::default() }))
    }

    /// The state of an event that shares its own with none. What an attempt writes there
    /// it can read itself; then it is nobody's: what an attempt that failed wrote is
    /// dropped, and after one that succeeded there is no other. So it is never kept.
    #[must_use]
    pub fn of_one_event() -> Self {
        Self(Arc::new(Scope { ends_with_its_attempt: true, ..Scope::default() }))
    }

    fn scope(&self) -> &str {
        &self.0.name
    }

    fn lock(&self) -> MutexGuard<'_, Uncommitted> {
        // Each critical section leaves a whole map behind.
        self.0.uncommitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state as the next attempt sees it.
    #[must_use]
    pub fn attempt(&self, committed: Arc<dyn CommittedState>) -> Arc<AttemptState> {
        let committed = if self.0.ends_with_its_attempt { Arc::new(EmptyState) } else { committed };
        Arc::new(AttemptState { committed, batch: self.clone(), writes: Mutex::default() })
    }

    /// Takes over what a successful attempt wrote, and gives it, one write a key.
    pub fn accept(&self, attempt: &AttemptState) -> Vec<Accepted> {
        let writes = std::mem::take(&mut *attempt.lock());
        if writes.is_empty() || self.0.ends_with_its_attempt {
            return Vec::new();
        }
        let mut uncommitted = self.lock();
        uncommitted.accepted += 1;
        let by = uncommitted.accepted;
        let mut accepted = Vec::with_capacity(writes.len());
        for (key, value) in writes {
            uncommitted.writes.insert(key.clone(), LastWrite { by, value: value.clone() });
            let write = StateWrite { scope: self.scope().to_owned(), key, value };
            accepted.push(Accepted { by, write });
        }
        accepted
    }

    /// A write is committed: from now on the store has it, unless a later attempt
    /// has written the key again.
    pub fn forget(&self, key: &str, by: u64) {
        let mut uncommitted = self.lock();
        if uncommitted.writes.get(key).is_some_and(|written| written.by == by) {
            uncommitted.writes.remove(key);
        }
    }

    /// Whether everything written is committed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().writes.is_empty()
    }
}

/// By how many bytes keys and values grow; negative where they shrink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Growth {
    /// By one attempt.
    pub own: i64,
    /// By the open batch, this attempt included.
    pub whole: i64,
}

/// How many keys an attempt wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// Those that have a value from it.
    pub set: usize,
    /// Those that it deleted, whether they had a value or not.
    pub deleted: usize,
}

/// What a key and its value take; nothing where there is none.
fn bytes_of(key: &str, value: Option<&[u8]>) -> usize {
    value.map_or(0, |value| key.len() + value.len())
}

fn difference(after: usize, before: usize) -> i64 {
    let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    signed(after) - signed(before)
}

/// The state as one attempt sees it.
pub struct AttemptState {
    committed: Arc<dyn CommittedState>,
    batch: BatchState,
    writes: Mutex<Writes>,
}

impl std::fmt::Debug for AttemptState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttemptState").field("batch", &self.batch).finish_non_exhaustive()
    }
}

impl AttemptState {
    fn lock(&self) -> MutexGuard<'_, Writes> {
        // Each critical section is one map operation, so a poisoned map is whole.
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing of what the attempt writes outlives it.
    fn is_not_kept(&self) -> bool {
        self.batch.0.ends_with_its_attempt
    }

    /// The bytes of all keys and values that the attempt set: at least what the
    /// state grows by.
    #[must_use]
    pub fn written(&self) -> usize {
        if self.is_not_kept() {
            return 0;
        }
        let own = self.lock();
        own.iter().map(|(key, value)| bytes_of(key, value.as_deref())).sum()
    }

    /// How many keys the attempt set, and how many it deleted.
    #[must_use]
    pub fn touched(&self) -> Touched {
        if self.is_not_kept() {
            return Touched { set: 0, deleted: 0 };
        }
        let own = self.lock();
        let set = own.values().filter(|value| value.is_some()).count();
        Touched { set, deleted: own.len() - set }
    }

    /// By how many keys the attempt makes the state grow; negative where it
    /// shrinks. Reads of the store only what neither the attempt nor the open
    /// batch wrote before.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn new_keys(&self) -> Result<i64, StateUnreadable> {
        if self.is_not_kept() {
            return Ok(0);
        }
        let own = self.lock().clone();
        let mut new = 0;
        for (key, value) in &own {
            let written = self.batch.lock().writes.get(key).map(|w| w.value.is_some());
            let before = match written {
                Some(is_there) => is_there,
                None => self.is_committed(key).await?,
            };
            new += i64::from(value.is_some()) - i64::from(before);
        }
        Ok(new)
    }

    /// By how many keys the successful attempts of the open batch make the state
    /// grow; negative where they shrink it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn new_keys_of_the_batch(&self) -> Result<i64, StateUnreadable> {
        let written: Vec<(String, bool)> = {
            let uncommitted = self.batch.lock();
            uncommitted.writes.iter().map(|(key, w)| (key.clone(), w.value.is_some())).collect()
        };
        let mut new = 0;
        for (key, is_there) in written {
            new += i64::from(is_there) - i64::from(self.is_committed(&key).await?);
        }
        Ok(new)
    }

    async fn is_committed(&self, key: &str) -> Result<bool, StateUnreadable> {
        // Unlike `get` it reads no value, and a key is the first of those that
        // begin like it.
        let first = self.committed.keys(self.batch.scope(), key, 1).await?;
        Ok(first.first().is_some_and(|first| first == key))
    }

    /// By how many bytes the attempt makes the state grow, and by how many it will
    /// have grown in all, the open batch included. Negative where it shrinks.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn growth(&self) -> Result<Growth, StateUnreadable> {
        if self.is_not_kept() {
            return Ok(Growth::default());
        }
        // What each key takes: written by those before, and by this attempt.
        let mut keys: BTreeMap<String, (Option<usize>, Option<usize>)> = BTreeMap::new();
        for (key, written) in &self.batch.lock().writes {
            keys.entry(key.clone()).or_default().0 = Some(bytes_of(key, written.value.as_deref()));
        }
        for (key, value) in &*self.lock() {
            keys.entry(key.clone()).or_default().1 = Some(bytes_of(key, value.as_deref()));
        }
        let mut growth = Growth::default();
        for (key, (before, after)) in keys {
            let committed = self.committed.get(self.batch.scope(), &key).await?;
            let committed = bytes_of(&key, committed.as_deref());
            let before = before.unwrap_or(committed);
            let after = after.unwrap_or(before);
            growth.own += difference(after, before);
            growth.whole += difference(after, committed);
        }
        Ok(growth)
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StateUnreadable> {
        if let Some(value) = self.lock().get(key) {
            return Ok(value.clone());
        }
        if let Some(written) = self.batch.lock().writes.get(key) {
            return Ok(written.value.clone());
        }
        self.committed.get(self.batch.scope(), key).await
    }

    /// Gives a key a value.
    pub fn set(&self, key: String, value: Vec<u8>) {
        self.lock().insert(key, Some(value));
    }

    /// Removes a key.
    pub fn delete(&self, key: String) {
        self.lock().insert(key, None);
    }

    /// The first `limit` keys that start with `prefix`, by bytes.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn keys(&self, prefix: &str, limit: usize) -> Result<Vec<String>, StateUnreadable> {
        let mut over: BTreeMap<String, bool> = BTreeMap::new();
        {
            let fits = |key: &str| key.starts_with(prefix);
            let batch = self.batch.lock();
            let before = batch.writes.range(prefix.to_owned()..).take_while(|(key, _)| fits(key));
            over.extend(before.map(|(key, written)| (key.clone(), written.value.is_some())));
            let own = self.lock();
            let own = own.range(prefix.to_owned()..).take_while(|(key, _)| fits(key));
            over.extend(own.map(|(key, value)| (key.clone(), value.is_some())));
        }
        // Each deletion can hide one committed key, so read that many more.
        let hidden = over.values().filter(|set| !**set).count();
        let committed =
            self.committed.keys(self.batch.scope(), prefix, limit.saturating_add(hidden)).await?;
        for key in committed {
            over.entry(key).or_insert(true);
        }
        Ok(over.into_iter().filter(|(_, set)| *set).map(|(key, _)| key).take(limit).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(&'static [&'static str]);

    #[async_trait]
    impl CommittedState for Fixed {
        async fn get(&self, _: &str, key: &str) -> Result<Option<Vec<u8>>, StateUnreadable> {
            Ok(self.0.contains(&key).then(|| key.as_bytes().to_vec()))
        }

        async fn keys(
            &self,
            _: &str,
            prefix: &str,
            limit: usize,
        ) -> Result<Vec<String>, StateUnreadable> {
            let fits = self.0.iter().filter(|key| key.starts_with(prefix));
            Ok(fits.take(limit).map(|key| (*key).to_owned()).collect())
        }
    }

    #[tokio::test]
    async fn an_attempt_reads_its_own_writes_over_the_batch_over_the_store() {
        let committed: Arc<dyn CommittedState> = Arc::new(Fixed(&["a", "b", "c"]));
        let batch = BatchState::new("");
        let first = batch.attempt(Arc::clone(&committed));
        first.set("a".into(), b"1".to_vec());
        first.delete("b".into());
        batch.accept(&first);

        let second = batch.attempt(Arc::clone(&committed));
        assert_eq!(second.get("a").await.unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(second.get("b").await.unwrap(), None);
        assert_eq!(second.get("c").await.unwrap().as_deref(), Some(&b"c"[..]));
        second.set("a".into(), b"2".to_vec());
        assert_eq!(second.get("a").await.unwrap().as_deref(), Some(&b"2"[..]));
    }

    #[tokio::test]
    async fn the_state_of_one_event_is_read_by_its_attempt_and_never_kept() {
        let committed: Arc<dyn CommittedState> = Arc::new(Fixed(&["a"]));
        let alone = BatchState::of_one_event();
        let attempt = alone.attempt(Arc::clone(&committed));
        assert_eq!(attempt.get("a").await.unwrap(), None, "nothing was there before");
        attempt.set("a".into(), b"1".to_vec());
        attempt.delete("b".into());
        assert_eq!(attempt.get("a").await.unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(attempt.keys("", 10).await.unwrap(), ["a"]);
        assert_eq!((attempt.written(), attempt.new_keys().await.unwrap()), (0, 0));
        assert_eq!(attempt.touched(), Touched { set: 0, deleted: 0 });
        assert_eq!(attempt.growth().await.unwrap(), Growth::default());
        assert_eq!(alone.accept(&attempt), []);
        assert!(alone.is_empty());
    }

    #[tokio::test]
    async fn the_writes_of_a_failed_attempt_vanish() {
        let committed: Arc<dyn CommittedState> = Arc::new(EmptyState);
        let batch = BatchState::new("");
        let failed = batch.attempt(Arc::clone(&committed));
        failed.set("a".into(), b"1".to_vec());
        drop(failed);
        assert_eq!(batch.attempt(committed).get("a").await.unwrap(), None);
        assert!(batch.is_empty());
    }

    #[tokio::test]
    async fn what_is_committed_is_read_from_the_store_unless_it_was_written_again() {
        // Each key is its own value there.
        let committed: Arc<dyn CommittedState> = Arc::new(Fixed(&["a", "b"]));
        let batch = BatchState::new("s");
        let first = batch.attempt(Arc::clone(&committed));
        first.set("a".into(), b"1".to_vec());
        first.set("b".into(), b"1".to_vec());
        let written = batch.accept(&first);
        let keys: Vec<_> =
            written.iter().map(|w| (w.write.scope.as_str(), &*w.write.key)).collect();
        assert_eq!(keys, [("s", "a"), ("s", "b")]);
        let second = batch.attempt(Arc::clone(&committed));
        second.set("b".into(), b"2".to_vec());
        batch.accept(&second);
        for written in written {
            batch.forget(&written.write.key, written.by);
        }
        let third = batch.attempt(committed);
        assert_eq!(third.get("a").await.unwrap().as_deref(), Some(&b"a"[..]));
        assert_eq!(third.get("b").await.unwrap().as_deref(), Some(&b"2"[..]));
    }

    #[tokio::test]
    async fn growth_is_what_the_state_takes_more_once_it_is_committed() {
        // Each key is its own value there.
        let committed: Arc<dyn CommittedState> = Arc::new(Fixed(&["aa", "bb", "cc"]));
        let batch = BatchState::new("");
        let first = batch.attempt(Arc::clone(&committed));
        first.set("aa".into(), vec![0; 12]);
        first.set("new".into(), vec![0; 7]);
        first.delete("bb".into());
        assert_eq!(first.written(), 14 + 10);
        assert_eq!(first.growth().await.unwrap(), Growth { own: 10 + 10 - 4, whole: 16 });
        batch.accept(&first);
        let second = batch.attempt(committed);
        assert_eq!(second.growth().await.unwrap(), Growth { own: 0, whole: 16 });
        second.set("aa".into(), vec![]);
        second.set("bb".into(), vec![0; 2]);
        second.delete("new".into());
        second.delete("none".into());
        assert_eq!(second.growth().await.unwrap(), Growth { own: -12 + 4 - 10, whole: -2 });
    }

    #[tokio::test]
    async fn a_key_is_new_where_the_layers_below_have_none() {
        // The prefix of a key that is there is none itself.
        let committed: Arc<dyn CommittedState> = Arc::new(Fixed(&["aa", "bb", "cc"]));
        let batch = BatchState::new("");
        let first = batch.attempt(Arc::clone(&committed));
        for key in ["aa", "a", "new"] {
            first.set(key.into(), vec![]);
        }
        first.delete("bb".into());
        first.delete("none".into());
        assert_eq!(first.touched(), Touched { set: 3, deleted: 2 });
        assert_eq!(first.new_keys().await.unwrap(), 2 - 1);
        batch.accept(&first);
        let second = batch.attempt(committed);
        assert_eq!(second.touched(), Touched { set: 0, deleted: 0 });
        assert_eq!(second.new_keys().await.unwrap(), 0);
        for key in ["bb", "aa", "none"] {
            second.set(key.into(), vec![]);
        }
        for key in ["new", "cc", "cc"] {
            second.delete(key.into());
        }
        assert_eq!(second.new_keys().await.unwrap(), 2 - 2);
        assert_eq!(second.new_keys_of_the_batch().await.unwrap(), 1);
    }

    #[tokio::test]
    async fn keys_merge_the_layers_and_skip_what_was_deleted() {
        let committed: Arc<dyn CommittedState> = Arc::new(Fixed(&["k1", "k2", "k4", "x"]));
        let batch = BatchState::new("");
        let first = batch.attempt(Arc::clone(&committed));
        first.delete("k1".into());
        first.set("k3".into(), vec![]);
        batch.accept(&first);
        let second = batch.attempt(committed);
        second.set("k0".into(), vec![]);
        second.delete("k2".into());
        assert_eq!(second.keys("k", 10).await.unwrap(), ["k0", "k3", "k4"]);
        assert_eq!(second.keys("k", 2).await.unwrap(), ["k0", "k3"]);
    }
}
