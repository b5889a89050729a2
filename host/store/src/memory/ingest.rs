//! Publishing for many at once, in memory.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};

use super::log::well_formed;
use super::operation::Operation;
use super::{Log, MemoryStore};
use crate::driver::ledger::{ENTRIES_A_ROUND, Entry, LedgerKey, Requests};
use crate::{Incoming, Ingest, Ingested, Pruned, StoreError};

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const INGEST: Self = Self::writing("ingest");
    pub const PRUNE_LEDGER: Self = Self::writing("prune_ledger");
}

/// An entry of the ledger, and when it is over.
pub(super) struct Entered {
    entry: Entry,
    expires_at: Timestamp,
}

#[async_trait]
impl Ingest for MemoryStore {
    async fn ingest(&self, requests: &[Incoming]) -> Result<Vec<Ingested>, StoreError> {
        self.call(Operation::INGEST, |log| log.ingest(requests)).await
    }

    async fn prune_ledger(&self, most: Option<u64>) -> Result<Pruned, StoreError> {
        self.call(Operation::PRUNE_LEDGER, |log| Ok(log.prune_ledger(most))).await
    }

    async fn log_bytes(&self) -> Result<u64, StoreError> {
        self.call(Operation::FETCH, |log| {
            Ok(log.events.values().map(|stored| stored.event.bytes() as u64).sum())
        })
        .await
    }
}

impl Log {
    fn ingest(&mut self, requests: &[Incoming]) -> Result<Vec<Ingested>, StoreError> {
        for request in requests {
            well_formed(&request.events)?;
        }
        let now = Timestamp::now();
        let of = Requests::new(requests);
        let known: HashMap<LedgerKey, Entry> = of
            .asked()
            .keys()
            .filter_map(|key| Some((*key, self.ledger.get(key)?)))
            .filter(|(_, entered)| entered.expires_at > now)
            .map(|(key, entered)| (key, entered.entry))
            .collect();
        let resolved = of.resolve(&known);
        let mut positions = Vec::with_capacity(resolved.new.len());
        for new in &resolved.new {
            let position = self.append(new.tenant, new.event.clone());
            positions.push(position);
            for (key, asked) in new.entries() {
                let window = SignedDuration::try_from(asked.window).unwrap_or(SignedDuration::MAX);
                let expires_at = now.checked_add(window).unwrap_or(Timestamp::MAX);
                let entry = Entry { fingerprint: asked.fingerprint, position };
                self.ledger.insert(key, Entered { entry, expires_at });
            }
        }
        resolved.answers(&positions)
    }

    fn prune_ledger(&mut self, most: Option<u64>) -> Pruned {
        let now = Timestamp::now();
        let a_round = ENTRIES_A_ROUND as usize;
        let mut by_age: Vec<(Timestamp, LedgerKey)> =
            self.ledger.iter().map(|(key, entered)| (entered.expires_at, *key)).collect();
        by_age.sort_unstable();
        let over = by_age.iter().take_while(|(expires_at, _)| *expires_at <= now).count();
        let left = by_age.len() - over;
        let excess =
            most.map_or(0, |most| left.saturating_sub(usize::try_from(most).unwrap_or(usize::MAX)));
        let (gone, later) = by_age.split_at(over);
        let going = gone.iter().take(a_round).chain(later.iter().take(excess.min(a_round)));
        let mut removed = 0;
        for (_, key) in going {
            removed += u64::from(self.ledger.remove(key).is_some());
        }
        Pruned {
            removed,
            left: most.map(|_| (left - excess.min(a_round)) as u64),
            has_more: over > a_round || excess > a_round,
        }
    }
}
