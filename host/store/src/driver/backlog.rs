//! What groups have before them, counted in looks that are bounded.
//!
//! The log is read from its end backwards, in parts, and each part once for all groups
//! and partitions. One part is enough to say exactly how far behind those are that are
//! less than a part behind; of all others it says that there is at least so much. Whoever
//! wants exact numbers reads part after part, down to the lowest cursor.
//!
//! Here is what all stores have in common: who receives what of a part, and what it comes
//! to. To read a part is theirs.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use crate::Subscription;
use event_host_core::event::{GroupName, Partition, Position, Tenant};

/// How many rows of each kind a status counts at most: events of the log, dead letters,
/// redeliveries.
const MOST_COUNTED: i64 = 100_000;

/// Up to how many rows of each group are counted before those groups that have more share
/// what is left to be counted.
const FEW: i64 = 1_000;

/// How many rows of each group are counted, however many groups there are.
const FEWEST: i64 = 10;

/// For how many groups, of those that are further behind than a part, the log is searched
/// for their first event.
const SEARCHES: usize = 32;

/// How exact the numbers of a status are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counting {
    /// Maximum number of rows of each kind that are read, over all groups; none for as many as
    /// there are. Each group's first row is always found.
    pub most: Option<i64>,
}

impl Counting {
    /// What a status costs does not grow with the backlog.
    pub const BOUNDED: Self = Self { most: Some(MOST_COUNTED) };

    /// All numbers are exact, however long that takes.
    pub const EXACT: Self = Self { most: None };

    /// With a bound of the caller's own, of at least 1.
    #[must_use]
    pub fn at_most(rows: u32) -> Self {
        Self { most: Some(i64::from(rows.max(1))) }
    }

    /// How many rows one part of the log has.
    pub fn part(self) -> i64 {
        self.most.unwrap_or(MOST_COUNTED)
    }

    /// Up to how many rows of each of so many groups are counted at first.
    pub fn few(self, groups: usize) -> i64 {
        let Some(most) = self.most else { return i64::MAX - 1 };
        let share = most / i64::try_from(groups.max(1)).unwrap_or(i64::MAX);
        share.clamp(FEWEST.min(most), FEW.min(most))
    }

    /// Up to how many rows of each are counted of so many groups that have more than a
    /// few, if that is worth another look.
    ///
    /// `few` rows of each were counted before.
    pub fn more(self, groups: usize, few: i64) -> Option<i64> {
        let each = self.most? / i64::try_from(groups).ok().filter(|groups| *groups > 0)?;
        (each > few).then_some(each)
    }

    /// How many rows of the log are searched for the first event of a group that is
    /// further behind than a part, when there are so many of these.
    pub fn search(self, groups: usize) -> i64 {
        const ENOUGH: i64 = 100;
        let share = self.part() / i64::try_from(groups.max(1)).unwrap_or(i64::MAX);
        share.max(ENOUGH)
    }
}

/// A number of rows, of which no more than some were counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// The number of rows.
    pub rows: i64,
    /// There may be more rows.
    pub is_at_least: bool,
}

impl Counted {
    /// What was counted, up to one row more than `most`.
    pub fn of(counted: i64, most: i64) -> Self {
        Self { rows: counted.min(most), is_at_least: counted > most }
    }
}

/// What a group or a partition has before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lag {
    /// The number of events.
    pub events: i64,
    /// When the oldest of them was published.
    pub oldest: Option<Timestamp>,
    /// There may be more of them.
    pub is_at_least: bool,
    /// There may be an older one.
    pub may_be_older: bool,
    /// When the first event above the cursor was published, whoever receives it, where that
    /// was looked for.
    pub unread: Option<Timestamp>,
}

impl Lag {
    /// The age of the oldest event, in seconds.
    pub fn seconds(&self) -> f64 {
        age(self.oldest)
    }

    /// The age of the first event above the cursor, whoever receives it, in seconds; that
    /// of the oldest event where all are known.
    pub fn unread_seconds(&self) -> f64 {
        age(self.unread).max(self.seconds())
    }
}

fn age(published_at: Option<Timestamp>) -> f64 {
    let age = |then| Timestamp::now().duration_since(then).as_secs_f64();
    published_at.map_or(0.0, age).max(0.0)
}

/// An event, as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The position in the log.
    pub position: Position,
    /// When the event was published.
    pub published_at: Timestamp,
    /// What its partition is found by: see [`Partition::hash`].
    pub hash: u64,
}

/// What events have in common that the same groups receive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Class {
    /// The tenant of the events.
    pub tenant: String,
    /// The one group that receives them; none for all.
    pub deliver_to: Option<String>,
    /// Their type.
    pub event_type: String,
}

/// A part of the log.
#[derive(Debug, Default)]
pub struct Part {
    classes: HashMap<Class, Vec<Seen>>,
    events: i64,
    lowest: Option<Position>,
}

impl Part {
    /// Adds one event.
    pub fn add(&mut self, class: Class, seen: Seen) {
        self.add_all(class, std::iter::once(seen));
    }

    /// Adds events of one class.
    pub fn add_all(&mut self, class: Class, seen: impl Iterator<Item = Seen>) {
        let events = self.classes.entry(class).or_default();
        for one in seen {
            self.events += 1;
            self.lowest = Some(self.lowest.map_or(one.position, |low| low.min(one.position)));
            events.push(one);
        }
    }
}

/// A group, and its cursors.
struct Reader {
    tenant: Tenant,
    subscription: Subscription,
    /// Of how many partitions these are; 1 where it is not split.
    of: u32,
    /// By the numbers of the partitions.
    cursors: BTreeMap<u32, (Position, Lag)>,
}

/// The groups, and what is known so far of what they have before them.
pub struct Backlog {
    readers: BTreeMap<String, Reader>,
    /// Everything above this has been read.
    read_down_to: Position,
    part: i64,
}

impl Backlog {
    /// Nothing is counted yet.
    pub fn new(counting: Counting) -> Self {
        let (readers, read_down_to) = (BTreeMap::new(), Position(i64::MAX));
        Self { readers, read_down_to, part: counting.part() }
    }

    /// Adds a group that is not split, or a partition of one that is.
    pub fn add(
        &mut self,
        name: &GroupName,
        tenant: &Tenant,
        subscription: &Subscription,
        partition: Option<Partition>,
        cursor: Position,
    ) {
        let reader = self.readers.entry(name.whole().to_owned()).or_insert_with(|| Reader {
            tenant: tenant.clone(),
            subscription: subscription.clone(),
            of: partition.map_or(1, |partition| partition.of.max(1)),
            cursors: BTreeMap::new(),
        });
        let number = partition.map_or(0, |partition| partition.number);
        reader.cursors.insert(number, (cursor, Lag::default()));
    }

    /// Whether it matters in which partition an event is.
    pub fn is_split(&self) -> bool {
        self.readers.values().any(|reader| reader.of > 1)
    }

    /// The next part to read: the last so many events above the first position and at or
    /// below the second. None once all is read.
    pub fn next(&self) -> Option<(Position, Position, i64)> {
        let cursors = self.readers.values().flat_map(|reader| reader.cursors.values());
        let lowest = cursors.map(|(cursor, _)| *cursor).min()?;
        (lowest < self.read_down_to).then_some((lowest, self.read_down_to, self.part))
    }

    /// Takes the part that [`Backlog::next`] named.
    pub fn take(&mut self, part: Part) {
        self.read_down_to = match part.lowest {
            Some(lowest) if part.events >= self.part => Position(lowest.0 - 1),
            _ => Position::ZERO,
        };
        for (class, mut events) in part.classes {
            events.sort_unstable_by_key(|event| event.position);
            // Of each event, when the oldest from it on was published.
            let mut oldest = vec![Timestamp::MAX; events.len()];
            let mut least = Timestamp::MAX;
            for (oldest, event) in oldest.iter_mut().zip(&events).rev() {
                least = least.min(event.published_at);
                *oldest = least;
            }
            for (name, reader) in &mut self.readers {
                if reader.receives(name, &class) {
                    reader.take(&events, &oldest);
                }
            }
        }
    }

    /// The groups and partitions of which something has not been read, with their cursors:
    /// what was found of them is the least that there is. Of each, the first event above its
    /// cursor is to be looked up ([`Backlog::first`]), whoever receives it: a look at an
    /// index, so that it can be done for all.
    pub fn far(&self) -> Vec<(GroupName, Position)> {
        let far = self.readers.iter().flat_map(|(name, reader)| {
            let far = reader.cursors.iter().filter(|(_, (cursor, _))| *cursor < self.read_down_to);
            far.map(move |(number, (cursor, _))| (reader.name_of(name, *number), *cursor))
        });
        far.collect()
    }

    /// Takes the first event above the cursor of one that is far behind; none where there
    /// is none any more.
    pub fn first(&mut self, name: &GroupName, first: Option<(Class, Seen)>) {
        let Some((class, seen)) = first else { return self.begins(name, None) };
        let receives = self.readers.get(name.whole()).is_some_and(|reader| {
            let number = name.partition_number();
            let is_in = number
                .is_none_or(|number| seen.hash % u64::from(reader.of.max(1)) == u64::from(number));
            is_in && reader.receives(name.whole(), &class)
        });
        self.begins(name, receives.then_some(seen.published_at));
        if let Some(lag) = self.lag_mut(name) {
            lag.unread = Some(seen.published_at);
        }
    }

    /// Those of them whose first event is still not known, in which the log is to be
    /// searched for it ([`Counting::search`], [`Backlog::begins`]): no more than a few, those
    /// that are furthest behind.
    pub fn unknown(&self) -> Vec<GroupName> {
        let mut unknown: Vec<(Position, GroupName)> = self
            .far()
            .into_iter()
            .filter(|(name, _)| self.lag(name).may_be_older)
            .map(|(name, cursor)| (cursor, name))
            .collect();
        unknown.sort_unstable();
        unknown.truncate(SEARCHES);
        unknown.into_iter().map(|(_, name)| name).collect()
    }

    /// The first event was found of one that is far behind, or none in the rows that
    /// were looked at.
    pub fn begins(&mut self, name: &GroupName, first: Option<Timestamp>) {
        let lag = self.lag_mut(name);
        let Some(lag) = lag else { return };
        lag.is_at_least = true;
        match first {
            Some(first) => {
                lag.may_be_older = false;
                lag.oldest = Some(first);
                lag.events = lag.events.max(1);
            }
            None => lag.may_be_older = true,
        }
    }

    /// What one has before it. One that was not added has nothing.
    pub fn lag(&self, name: &GroupName) -> Lag {
        let number = name.partition_number().unwrap_or(0);
        let reader = self.readers.get(name.whole());
        reader.and_then(|reader| reader.cursors.get(&number)).map_or_else(Lag::default, |one| one.1)
    }

    fn lag_mut(&mut self, name: &GroupName) -> Option<&mut Lag> {
        let number = name.partition_number().unwrap_or(0);
        let reader = self.readers.get_mut(name.whole())?;
        reader.cursors.get_mut(&number).map(|(_, lag)| lag)
    }
}

impl Reader {
    fn receives(&self, name: &str, class: &Class) -> bool {
        self.tenant.as_str() == class.tenant
            && match &class.deliver_to {
                Some(only) => only == name,
                None => self.subscription.matches(&class.event_type),
            }
    }

    fn name_of(&self, name: &str, number: u32) -> GroupName {
        let group = GroupName::shown(name);
        if self.of > 1 { group.partition(number) } else { group }
    }

    /// Takes events in the order of their positions, with when the oldest from each on
    /// was published.
    fn take(&mut self, events: &[Seen], oldest: &[Timestamp]) {
        if self.of > 1 {
            return self.take_by_partition(events);
        }
        for (cursor, lag) in self.cursors.values_mut() {
            let first = events.partition_point(|event| event.position <= *cursor);
            lag.events += i64::try_from(events.len() - first).unwrap_or(i64::MAX);
            lag.oldest = lag.oldest.into_iter().chain(oldest.get(first).copied()).min();
        }
    }

    fn take_by_partition(&mut self, events: &[Seen]) {
        for event in events {
            // Below `of`, and so in range.
            let number = u32::try_from(event.hash % u64::from(self.of)).unwrap_or(0);
            let Some((cursor, lag)) = self.cursors.get_mut(&number) else { continue };
            if event.position > *cursor {
                lag.events += 1;
                lag.oldest = lag.oldest.into_iter().chain([event.published_at]).min();
            }
        }
    }
}
