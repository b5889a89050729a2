//! Dead letters in memory.

use async_trait::async_trait;

use super::operation::Operation;
use super::{Log, MemoryStore};
use crate::driver::refusals;
use crate::{DeadLetter, DeadLetterFilter, DeadLetterId, DeadLetters, Replayed, StoreError};
use event_host_core::digest::Digest;
use event_host_core::event::{Event, GroupName};
use event_host_core::failure::FailureKind;

#[allow(missing_docs, reason = "each is the call of the same name")]
impl Operation {
    pub const DEAD_LETTERS: Self = Self::reading("dead_letters");
    pub const DEAD_LETTER_IDS: Self = Self::reading("dead_letter_ids");
    pub const DEAD_LETTER: Self = Self::reading("dead_letter");
    pub const REPLAY: Self = Self::writing("replay");
    pub const REPLAY_SOME: Self = Self::writing("replay_some");
    pub const DISCARD: Self = Self::writing("discard");
}

#[async_trait]
impl DeadLetters for MemoryStore {
    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        self.call(Operation::DEAD_LETTERS, |log| {
            if let Some(group) = &filter.group {
                log.group(group)?;
            }
            let letters = log.dead_letters.values().filter(|letter| {
                filter.group.as_ref().is_none_or(|group| letter.group == *group)
                    && filter.after.is_none_or(|after| letter.id > after)
            });
            Ok(letters.take(filter.limit.unwrap_or(usize::MAX)).cloned().collect())
        })
        .await
    }

    async fn dead_letter_ids(&self, group: &GroupName) -> Result<Vec<DeadLetterId>, StoreError> {
        self.call(Operation::DEAD_LETTER_IDS, |log| {
            log.group(group)?;
            let letters = log.dead_letters.values().filter(|letter| letter.group == *group);
            Ok(letters.map(|letter| letter.id).collect())
        })
        .await
    }

    async fn dead_letter(&self, id: DeadLetterId) -> Result<DeadLetter, StoreError> {
        self.call(Operation::DEAD_LETTER, |log| {
            log.dead_letters.get(&id.0).cloned().ok_or_else(|| refusals::no_dead_letter(id))
        })
        .await
    }

    async fn replay(
        &self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        self.call(Operation::REPLAY, |log| log.replay(id, data, digest)).await
    }

    async fn replay_some(
        &self,
        group: &GroupName,
        after: DeadLetterId,
        up_to: DeadLetterId,
        limit: usize,
        digest: Option<&Digest>,
    ) -> Result<Vec<Replayed>, StoreError> {
        self.call(Operation::REPLAY_SOME, |log| {
            log.group(group)?;
            let ids: Vec<DeadLetterId> = log
                .dead_letters
                .values()
                .filter(|letter| letter.group == *group && letter.id > after && letter.id <= up_to)
                .filter(|letter| letter.failure.kind != FailureKind::TooLarge.label())
                .map(|letter| letter.id)
                .take(limit)
                .collect();
            ids.iter().try_for_each(|id| log.may_run(*id, digest))?;
            ids.into_iter().map(|id| log.replay(id, None, digest)).collect()
        })
        .await
    }

    async fn discard(&self, id: DeadLetterId) -> Result<(), StoreError> {
        self.call(Operation::DISCARD, |log| {
            log.dead_letters.remove(&id.0).map(|_| ()).ok_or_else(|| refusals::no_dead_letter(id))
        })
        .await
    }
}

impl Log {
    pub(super) fn dead_letters_of(&self, name: &GroupName) -> usize {
        self.dead_letters.values().filter(|letter| letter.group == *name).count()
    }

    pub(super) fn replay(
        &mut self,
        id: DeadLetterId,
        data: Option<&[u8]>,
        digest: Option<&Digest>,
    ) -> Result<Replayed, StoreError> {
        self.may_run(id, digest)?;
        let letter = self.dead_letters.remove(&id.0).ok_or_else(|| refusals::no_dead_letter(id))?;
        let mut event = Event { deliver_after: None, ..letter.event.event };
        if let Some(data) = data {
            event.data = Some(data.to_vec());
        }
        let addressee = Some(letter.group.clone());
        let position = self.append_for(&letter.tenant, addressee, digest.cloned(), event);
        Ok(Replayed { id, group: letter.group, position, digest: digest.cloned() })
    }

    /// Whether the dead letter is there, and this component its tenant's.
    pub(super) fn may_run(
        &self,
        id: DeadLetterId,
        digest: Option<&Digest>,
    ) -> Result<(), StoreError> {
        let letter = self.dead_letters.get(&id.0).ok_or_else(|| refusals::no_dead_letter(id))?;
        if letter.failure.kind == FailureKind::TooLarge.label() {
            return Err(refusals::not_whole(id));
        }
        match digest {
            Some(digest) if self.digests_of(&letter.tenant).all(|theirs| theirs != digest) => {
                Err(refusals::no_component(digest))
            }
            _ => Ok(()),
        }
    }
}
