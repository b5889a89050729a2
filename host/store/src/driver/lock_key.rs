//! The key of a group's advisory lock.

use sha2::{Digest, Sha256};

use event_host_core::event::GroupName;

/// The advisory lock whose holder leads a group: the first 8 bytes of SHA-256
/// over `event-host` and the group's name, as a signed big-endian number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey(pub i64);

impl LockKey {
    /// The key of a group.
    #[must_use]
    pub fn of(group: &GroupName) -> Self {
        let mut digest = Sha256::new_with_prefix("event-host");
        digest.update(group.as_str());
        let mut key = [0; 8];
        key.copy_from_slice(&digest.finalize()[..8]);
        Self(i64::from_be_bytes(key))
    }
}

/// Two different groups that would share one lock, if there are any: only one of
/// them could ever be led.
pub fn colliding<'a>(
    groups: impl IntoIterator<Item = &'a GroupName>,
    key_of: impl Fn(&GroupName) -> LockKey,
) -> Option<(&'a GroupName, &'a GroupName)> {
    let mut seen = std::collections::BTreeMap::new();
    groups.into_iter().find_map(|group| {
        let other = *seen.entry(key_of(group)).or_insert(group);
        (other != group).then_some((other, group))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_on_every_host_of_every_version() {
        // Computed with `printf event-hostmail | sha256sum`.
        let key = LockKey::of(&"mail".parse().unwrap());
        assert_eq!(format!("{:016x}", key.0), KEY_OF_MAIL);
    }

    #[test]
    fn two_groups_with_one_key_are_found() {
        let names: Vec<GroupName> = ["a", "b", "c"].iter().map(|n| n.parse().unwrap()).collect();
        assert_eq!(colliding(&names, LockKey::of), None);
        assert_eq!(colliding([&names[0], &names[0]], LockKey::of), None, "the same group twice");
        let same = |group: &GroupName| LockKey(i64::from(group.as_str() == "b"));
        assert_eq!(colliding(&names, same), Some((&names[0], &names[2])));
    }

    const KEY_OF_MAIL: &str = "68c8d83433329cbe";
}
