//! The ledger of what was ingested: its keys, and what becomes of requests by what it knows.
//!
//! The store reads and writes the entries; what they mean is decided here, for all stores
//! alike.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::{Incoming, Ingested, Placed, StoreError};
use event_host_core::event::{Event, Position, Tenant};

/// How many entries one round of upkeep removes for one reason at most.
pub const ENTRIES_A_ROUND: u32 = 10_000;

/// By what an event is known: the first 16 bytes of SHA-256 over tenant, source and id, each
/// after its length in 8 bytes. So no two of them run together, and a sender that chooses ids
/// for others' to be taken for its own finds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LedgerKey(pub [u8; 16]);

impl LedgerKey {
    /// The key of an event.
    #[must_use]
    pub fn of(tenant: &Tenant, event: &Event) -> Self {
        Self::over(&[tenant.as_str(), &event.source, &event.id])
    }

    /// The key of what an event is known by besides its source and id.
    #[must_use]
    pub fn also_of(tenant: &Tenant, also_known_as: &str) -> Self {
        // No source and no id is empty, so it is no event's first key.
        Self::over(&[tenant.as_str(), "", "", also_known_as])
    }

    fn over(texts: &[&str]) -> Self {
        let mut digest = Sha256::new();
        for text in texts {
            part(&mut digest, Some(text.as_bytes()));
        }
        let mut key = [0; 16];
        key.copy_from_slice(&digest.finalize()[..16]);
        Self(key)
    }

    /// In hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

/// What tells two events of one key apart, in 8 bytes: a hash of type, subject, content type
/// and data. The time is none of it, which a sender may give anew when it sends again.
#[must_use]
pub fn fingerprint(event: &Event) -> i64 {
    let mut digest = Sha256::new();
    part(&mut digest, Some(event.event_type.as_bytes()));
    part(&mut digest, event.subject.as_deref().map(str::as_bytes));
    part(&mut digest, event.datacontenttype.as_deref().map(str::as_bytes));
    part(&mut digest, event.data.as_deref());
    let mut fingerprint = [0; 8];
    fingerprint.copy_from_slice(&digest.finalize()[..8]);
    i64::from_be_bytes(fingerprint)
}

/// What is not there is told from what is empty.
fn part(digest: &mut Sha256, bytes: Option<&[u8]>) {
    let length = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
    digest.update(length.to_be_bytes());
    digest.update(bytes.unwrap_or_default());
}

/// What the ledger knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// [`fingerprint`] of the event.
    pub fingerprint: i64,
    /// Where it is.
    pub position: Position,
}

/// What is to be entered, if it is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// [`fingerprint`] of the event.
    pub fingerprint: i64,
    /// How long it is known.
    pub window: Duration,
}

/// Requests, with the keys and fingerprints of their events, each computed once.
#[derive(Debug)]
pub struct Requests<'a> {
    requests: &'a [Incoming],
    /// For each request with a window, what each event is known by.
    known_by: Vec<Option<Vec<KnownBy>>>,
}

/// What an event is known by.
#[derive(Debug, Clone, Copy)]
struct KnownBy {
    key: LedgerKey,
    fingerprint: i64,
    also: Option<LedgerKey>,
}

/// An event that is new.
#[derive(Debug, Clone, Copy)]
pub struct New<'a> {
    /// Whose it is.
    pub tenant: &'a Tenant,
    /// The event.
    pub event: &'a Event,
    entries: [Option<(LedgerKey, Asked)>; 2],
}

impl New<'_> {
    /// Its entries in the ledger; none where there is none to be made.
    pub fn entries(&self) -> impl Iterator<Item = (LedgerKey, Asked)> {
        self.entries.into_iter().flatten()
    }
}

/// Where an answer finds the position of an event.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// This one of the new events.
    New(usize),
    /// The same event as this one of the new events.
    SameAs(usize),
    /// In the log before.
    There(Position),
}

#[derive(Debug)]
enum Verdict {
    Accepted(Vec<Place>),
    Refused { event: usize, other: Option<Place> },
}

/// What becomes of requests.
#[derive(Debug)]
pub struct Resolved<'a> {
    /// What is to be appended to the log, in this order.
    pub new: Vec<New<'a>>,
    verdicts: Vec<Verdict>,
}

impl<'a> Requests<'a> {
    /// Computes the keys.
    #[must_use]
    pub fn new(requests: &'a [Incoming]) -> Self {
        let known_by = requests.iter().map(|request| {
            request.window.map(|_| {
                let of = |(index, event): (usize, &Event)| KnownBy {
                    key: LedgerKey::of(&request.tenant, event),
                    fingerprint: fingerprint(event),
                    also: request
                        .also_known_as
                        .get(index)
                        .map(|also| LedgerKey::also_of(&request.tenant, also)),
                };
                request.events.iter().enumerate().map(of).collect()
            })
        });
        Self { requests, known_by: known_by.collect() }
    }

    /// All keys in their order, each once, with what the first event would enter.
    #[must_use]
    pub fn asked(&self) -> BTreeMap<LedgerKey, Asked> {
        let mut asked = BTreeMap::new();
        for (request, known_by) in self.requests.iter().zip(&self.known_by) {
            let (Some(window), Some(known_by)) = (request.window, known_by) else { continue };
            for KnownBy { key, fingerprint, also } in known_by {
                for key in [Some(key), also.as_ref()].into_iter().flatten() {
                    asked.entry(*key).or_insert(Asked { fingerprint: *fingerprint, window });
                }
            }
        }
        asked
    }

    /// Decides, by what the ledger knew before.
    #[must_use]
    pub fn resolve(&self, known: &HashMap<LedgerKey, Entry>) -> Resolved<'a> {
        let mut new: Vec<New<'a>> = Vec::new();
        // What the requests before enter: its fingerprint, and which of the new ones it is.
        let mut entered: HashMap<LedgerKey, (i64, usize)> = HashMap::new();
        let mut verdicts = Vec::with_capacity(self.requests.len());
        for (request, known_by) in self.requests.iter().zip(&self.known_by) {
            let first = new.len();
            let tenant = &request.tenant;
            let mut places = Vec::with_capacity(request.events.len());
            let mut refused = None;
            for (index, event) in request.events.iter().enumerate() {
                let by = known_by.as_ref().and_then(|known_by| known_by.get(index)).copied();
                let Some((KnownBy { key, fingerprint, also }, window)) = by.zip(request.window)
                else {
                    places.push(Place::New(new.len()));
                    new.push(New { tenant, event, entries: [None; 2] });
                    continue;
                };
                let look_up = |key| match (known.get(&key), entered.get(&key)) {
                    (Some(entry), _) => Some((entry.fingerprint, Place::There(entry.position))),
                    (None, Some((theirs, of))) => Some((*theirs, Place::SameAs(*of))),
                    (None, None) => None,
                };
                let known_otherwise =
                    || also.and_then(look_up).map(|(_, place)| (fingerprint, place));
                match look_up(key).or_else(known_otherwise) {
                    Some((theirs, place)) if theirs == fingerprint => places.push(place),
                    Some((_, place)) => {
                        let ours = matches!(place, Place::SameAs(of) if of >= first);
                        refused = Some((index, (!ours).then_some(place)));
                        break;
                    }
                    None => {
                        let asked = Asked { fingerprint, window };
                        let entries = [Some(key), also].map(|key| Some((key?, asked)));
                        for (key, _) in entries.into_iter().flatten() {
                            entered.insert(key, (fingerprint, new.len()));
                        }
                        places.push(Place::New(new.len()));
                        new.push(New { tenant, event, entries });
                    }
                }
            }
            verdicts.push(match refused {
                None => Verdict::Accepted(places),
                Some((event, other)) => {
                    for taken_out in new.drain(first..) {
                        for (key, _) in taken_out.entries() {
                            entered.remove(&key);
                        }
                    }
                    Verdict::Refused { event, other }
                }
            });
        }
        Resolved { new, verdicts }
    }
}

impl Resolved<'_> {
    /// The answers, once the new events have these positions, in their order.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] where there are not as many.
    pub fn answers(&self, positions: &[Position]) -> Result<Vec<Ingested>, StoreError> {
        if positions.len() != self.new.len() {
            return Err(StoreError::Unusable(format!(
                "the database gave {} positions for {} events",
                positions.len(),
                self.new.len()
            )));
        }
        let placed = |place: &Place| match *place {
            Place::New(of) => Placed { position: positions[of], is_duplicate: false },
            Place::SameAs(of) => Placed { position: positions[of], is_duplicate: true },
            Place::There(position) => Placed { position, is_duplicate: true },
        };
        let answers = self.verdicts.iter().map(|verdict| match verdict {
            Verdict::Accepted(places) => Ingested::Committed(places.iter().map(placed).collect()),
            Verdict::Refused { event, other } => Ingested::Reused {
                event: *event,
                position: other.as_ref().map(|other| placed(other).position),
            },
        });
        Ok(answers.collect())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn event(id: &str, data: &str) -> Event {
        Event {
            data: Some(data.as_bytes().to_vec()),
            ..Event::new(id, "/shop", "paid", Timestamp::UNIX_EPOCH)
        }
    }

    fn request(events: &[(&str, &str)]) -> Incoming {
        Incoming {
            tenant: Tenant::none(),
            events: events.iter().map(|(id, data)| event(id, data)).collect(),
            window: Some(Duration::from_secs(60)),
            also_known_as: Vec::new(),
        }
    }

    #[test]
    fn keys_and_fingerprints_are_the_same_on_every_host_of_every_version() {
        let tenant: Tenant = "acme".parse().unwrap();
        // Of Python's hashlib, over the same parts.
        assert_eq!(LedgerKey::of(&tenant, &event("7", "x")).hex(), KEY);
        assert_eq!(format!("{:016x}", fingerprint(&event("7", "x"))), FINGERPRINT);
    }

    const KEY: &str = "2721ec400ab3f391ee64b8a7b42b02b4";
    const FINGERPRINT: &str = "df2cca14e11cba81";

    #[test]
    fn neither_runs_two_texts_together() {
        let with = |source: &str, id: &str| Event::new(id, source, "t", Timestamp::UNIX_EPOCH);
        let key = |event| LedgerKey::of(&Tenant::none(), &event);
        assert_ne!(key(with("/a", "bc")), key(with("/ab", "c")));
        let bare = with("/a", "b");
        let empty = Event { data: Some(Vec::new()), ..bare.clone() };
        assert_ne!(fingerprint(&bare), fingerprint(&empty), "no data is not empty data");
        let later = Event { time: Timestamp::MAX, ..bare.clone() };
        assert_eq!(fingerprint(&bare), fingerprint(&later));
    }

    #[test]
    fn a_request_that_is_refused_leaves_its_events_to_those_after_it() {
        let known_key = LedgerKey::of(&Tenant::none(), &event("old", ""));
        let known = [(known_key, Entry { fingerprint: 0, position: Position(4) })].into();
        let requests = [
            request(&[("a", "x"), ("old", "other")]),
            request(&[("a", "y"), ("a", "y"), ("b", "y")]),
            request(&[("b", "z")]),
            request(&[("c", "1"), ("c", "2")]),
        ];
        let requests = Requests::new(&requests);
        let resolved = requests.resolve(&known);
        let new: Vec<&str> = resolved.new.iter().map(|new| new.event.id.as_str()).collect();
        assert_eq!(new, ["a", "b"]);
        let placed = |position, is_duplicate| Placed { position: Position(position), is_duplicate };
        assert_eq!(
            resolved.answers(&[Position(5), Position(6)]).unwrap(),
            [
                Ingested::Reused { event: 1, position: Some(Position(4)) },
                Ingested::Committed(vec![placed(5, false), placed(5, true), placed(6, false)]),
                Ingested::Reused { event: 0, position: Some(Position(6)) },
                Ingested::Reused { event: 1, position: None },
            ]
        );
        resolved.answers(&[Position(5)]).unwrap_err();
    }

    #[test]
    fn what_is_known_otherwise_is_a_duplicate_whatever_its_id_is() {
        let also = |id: &str, data: &str, also: &str| Incoming {
            also_known_as: vec![also.to_owned()],
            ..request(&[(id, data)])
        };
        let requests = [
            also("1", "body", "hash"),
            also("2", "body", "hash"),
            also("2", "other", "other hash"),
            also("1", "other", "hash"),
        ];
        let of = Requests::new(&requests);
        assert_eq!(of.asked().len(), 4);
        let resolved = of.resolve(&HashMap::new());
        let entered: Vec<LedgerKey> =
            resolved.new.iter().flat_map(New::entries).map(|(key, _)| key).collect();
        assert_eq!(entered.len(), 4, "the id that came with a known body is not known by it");
        let placed = |position, is_duplicate| {
            Ingested::Committed(vec![Placed { position: Position(position), is_duplicate }])
        };
        assert_eq!(
            resolved.answers(&[Position(1), Position(2)]).unwrap(),
            [
                placed(1, false),
                placed(1, true),
                placed(2, false),
                Ingested::Reused { event: 0, position: Some(Position(1)) },
            ]
        );
    }

    proptest! {
        /// However requests are put together, it is as if they had come one by one.
        #[test]
        fn together_is_as_one_by_one(
            requests in proptest::collection::vec(
                (proptest::collection::vec((0..5_u8, 0..2_u8), 0..5), any::<bool>()), 0..8)
        ) {
            let requests: Vec<Incoming> = requests
                .iter()
                .map(|(events, knows)| Incoming {
                    tenant: Tenant::none(),
                    events: events.iter().map(|(id, data)| event(&id.to_string(), &data.to_string())).collect(),
                    window: knows.then_some(Duration::from_secs(1)),
                    // Some of those that have one id differ in it, and some of others do not.
                    also_known_as: events.iter().map(|(id, data)| format!("{}", (id + data) % 3)).collect(),
                })
                .collect();
            let mut ledger = HashMap::new();
            let mut log = 0_i64;
            let mut ingest = |requests: &[Incoming]| {
                let of = Requests::new(requests);
                let resolved = of.resolve(&ledger);
                let positions: Vec<Position> = resolved.new.iter().map(|_| { log += 1; Position(log) }).collect();
                for (new, position) in resolved.new.iter().zip(&positions) {
                    for (key, asked) in new.entries() {
                        ledger.insert(key, Entry { fingerprint: asked.fingerprint, position: *position });
                    }
                }
                resolved.answers(&positions).unwrap()
            };
            let alone: Vec<Ingested> = requests.iter().flat_map(|request| ingest(std::slice::from_ref(request))).collect();
            ledger.clear();
            log = 0;
            let ingest = |requests: &[Incoming]| {
                let of = Requests::new(requests);
                let resolved = of.resolve(&ledger);
                let positions: Vec<Position> = (1..).take(resolved.new.len()).map(|n| Position(log + n)).collect();
                resolved.answers(&positions).unwrap()
            };
            prop_assert_eq!(ingest(&requests), alone);
        }
    }
}
