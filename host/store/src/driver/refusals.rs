//! What every store refuses, in the same words.

use crate::{DeadLetterId, GroupRegistration, Leader, Missing, StoreError, VersionNumber};
use event_host_core::digest::Digest;
use event_host_core::event::{GroupName, HandlerName, Position, Tenant};

/// The group belongs to somebody else.
pub fn other_tenant(settings: &GroupRegistration, owner: &Tenant) -> StoreError {
    let GroupRegistration { name, tenant, .. } = settings;
    StoreError::Refused(format!(
        "group `{name}` belongs to {}, not to {}: give the group of this handler another name, or remove group `{name}` first",
        named(owner),
        named(tenant),
    ))
}

fn named(tenant: &Tenant) -> String {
    if tenant.is_none() { "no tenant".to_owned() } else { format!("tenant `{tenant}`") }
}

/// Somebody asks for a place that the log does not have yet.
pub fn place_beyond_the_log(place: Position, last: Position) -> StoreError {
    StoreError::Refused(format!(
        "position {place} is beyond the log, which ends at {last}: use `latest`, or a position up to {last}"
    ))
}

/// A cursor that would wait for ever, as after the log was put back to an older
/// state, or its positions were.
pub fn cursor_beyond_the_log(group: &GroupName, cursor: Position, last: Position) -> StoreError {
    StoreError::Refused(format!(
        "the cursor of group `{group}` stands at {cursor}, beyond the log, which ends at {last}: the log is not the one that the group read, and what is published next would stand below the cursor, where it is never handled; move the cursor with `host groups seek {group} --to earliest`, which handles all that the log holds, to a position up to {last}, which handles what is above it, or to `latest`, which leaves out all that is there now"
    ))
}

/// A settlement that would put a cursor where it skips what is published next.
pub fn settled_beyond_the_log(group: &GroupName, position: Position, last: Position) -> StoreError {
    StoreError::Changed(format!(
        "group `{group}` cannot settle up to position {position}, because the log ends at {last}: what it read is not in the log any more; it goes on from its cursor"
    ))
}

/// A redelivery that the log would bring too.
pub fn redelivery_above_the_cursor(
    group: &GroupName,
    position: Position,
    cursor: Position,
) -> StoreError {
    StoreError::Refused(format!(
        "group `{group}` cannot have the event at position {position} delivered again with its cursor at {cursor}: the log brings what is above the cursor"
    ))
}

/// A leadership cannot begin beside another one.
pub fn led_by_another(group: &GroupName) -> StoreError {
    StoreError::Unavailable(format!("cannot lead a group: another host leads `{group}`"))
}

/// A group cannot be removed under its leader.
pub fn still_led(group: &GroupName, leader: Option<&Leader>) -> StoreError {
    let by = leader.map_or_else(String::new, |leader| {
        format!(" by process {} on {}", leader.host.pid, leader.host.hostname)
    });
    StoreError::Refused(format!(
        "group `{group}` is led{by} at this moment: take its handler out of what runs there, then remove it"
    ))
}

/// A group cannot be repartitioned under a leader.
pub fn still_led_somewhere(group: &GroupName) -> StoreError {
    StoreError::Refused(format!(
        "group `{group}` cannot be split into another number of partitions while a part of it is led: stop every host that runs it, then start them with the new number"
    ))
}

/// A group cannot be repartitioned while what it has passed is open: whose that will be is
/// not known.
pub fn part_with_open_ranges(part: &GroupName) -> StoreError {
    let group = part.whole();
    StoreError::Refused(format!(
        "group `{group}` cannot be split into another number of partitions: `{part}` has passed transactions that were open, and what they commit is still to be found; run it with the number of partitions that it has until they have ended"
    ))
}

/// A group cannot be repartitioned where too much would come again.
pub fn too_far_apart(group: &GroupName, most: i64) -> StoreError {
    StoreError::Refused(format!(
        "group `{group}` cannot be split into another number of partitions: its cursors are more than {most} events apart; run it with the number of partitions that it has until they are closer"
    ))
}

/// A group cannot be removed with what it gave up on, unless told.
pub fn dead_letters_remain(group: &GroupName, count: i64) -> StoreError {
    let letters = if count == 1 { "dead letter" } else { "dead letters" };
    StoreError::Refused(format!(
        "group `{group}` still has {count} {letters}: replay or discard them first, or ask to remove them too"
    ))
}

/// No such group.
pub fn no_group(name: &GroupName) -> StoreError {
    StoreError::NotFound(Missing::Group(name.clone()))
}

/// No such dead letter, or somebody else has it.
pub fn no_dead_letter(id: DeadLetterId) -> StoreError {
    StoreError::NotFound(Missing::DeadLetter(id))
}

/// A dead letter that has not all of its event.
pub fn not_whole(id: DeadLetterId) -> StoreError {
    StoreError::Refused(format!(
        "dead letter {id} has not the whole event, which was too large to be read, so it cannot be replayed: publish what is of use of it anew, then discard it"
    ))
}

/// No such component, or none of this tenant's.
pub fn no_component(digest: &Digest) -> StoreError {
    StoreError::NotFound(Missing::Component(digest.clone()))
}

/// A component is not what it was when it was deployed.
pub fn damaged(digest: &Digest, found: &Digest) -> StoreError {
    StoreError::Unusable(format!(
        "what the database keeps as component {digest} is damaged (it is {found}): deploy the same file again to put it right"
    ))
}

/// There is nothing to go back from.
pub fn nothing_deployed(handler: &HandlerName) -> StoreError {
    StoreError::Refused(format!(
        "nothing is deployed for handler `{handler}`: `host deploy {handler} FILE` does that"
    ))
}

/// There is nothing to go back to.
pub fn no_version_before(handler: &HandlerName, active: VersionNumber) -> StoreError {
    StoreError::Refused(format!(
        "handler `{handler}` has no version before version {active} to go back to: deploy another with `host deploy {handler} FILE`"
    ))
}

/// Somebody else deployed, or rolled back, meanwhile.
pub fn other_version_active(
    handler: &HandlerName,
    from: VersionNumber,
    active: VersionNumber,
) -> StoreError {
    StoreError::Refused(format!(
        "handler `{handler}` runs version {active}, not version {from}: nothing was rolled back"
    ))
}
