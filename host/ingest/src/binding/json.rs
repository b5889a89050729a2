//! Batched mode: a JSON array of events.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use event_host_core::event::Event;
use event_host_core::event::json::{not_json, utf8};

use crate::refusal::{Reason, Refusal};

/// The elements of an array, as they stand: `most` of them, and how many there are.
struct Elements<'a> {
    first: Vec<&'a RawValue>,
    count: usize,
}

/// More than any limit.
const MOST_KEPT: usize = 100_000;

impl<'de: 'a, 'a> Deserialize<'de> for Elements<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Elements<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Elements<'de>, A::Error> {
                let mut first = Vec::new();
                while first.len() < MOST_KEPT
                    && let Some(element) = list.next_element()?
                {
                    first.push(element);
                }
                let mut count = first.len();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Elements { first, count })
            }
        }

        deserializer.deserialize_seq(List)
    }
}

pub(super) fn batch(body: &[u8], most: usize) -> Result<Vec<Event>, Refusal> {
    let invalid = |error| Refusal::invalid(&error);
    let json = utf8(body).map_err(invalid)?;
    if json.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return Err(Refusal::new(
            Reason::InvalidEvent,
            "an object stands where a batch is expected, a JSON array: send one event as `application/cloudevents+json`",
        ));
    }
    let Elements { first, count } =
        serde_json::from_str(json).map_err(|error| invalid(not_json(&error)))?;
    if count > most {
        return Err(Refusal::new(
            Reason::TooLarge,
            format!("the batch has {count} events; the most is {most}: send it in parts"),
        )
        .limit(most));
    }
    let events = first.iter().enumerate().map(|(index, one)| {
        Event::from_json(one.get()).map_err(|error| Refusal::invalid(&error).event(index))
    });
    events.collect()
}
