//! Templates: an attribute made of what a request holds.
//!
//! `{header:NAME}`, `{query:NAME}`, `{json:/pointer}` and `{body:sha256}` stand for what the
//! request has there; `|` parts several places, of which the first that is there counts, and a
//! `?` at the end lets all of them be missing: then the place is left out, with the dot before
//! it. `{{` and `}}` are braces. There is nothing more: whoever needs it writes a handler.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use event_host_core::event::quoted;
use http::HeaderName;

use crate::facts::{Facts, Unusable};
use crate::place::Place;
use crate::pointers::Pointers;

/// How an attribute is made of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Hole { places: Vec<Place>, optional: bool },
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}"))?,
                Part::Hole { places, optional } => {
                    let places: Vec<_> = places.iter().map(ToString::to_string).collect();
                    let mark = if *optional { "?" } else { "" };
                    write!(f, "{{{}{mark}}}", places.join("|"))?;
                }
            }
        }
        Ok(())
    }
}

/// Why a text is no template, in one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidTemplate(String);

impl FromStr for Template {
    type Err = InvalidTemplate;

    fn from_str(text: &str) -> Result<Self, InvalidTemplate> {
        let invalid = |why: String| Err(InvalidTemplate(why));
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(after) = rest.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = rest.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let Some((inside, after)) = after.split_once('}') else {
                    return invalid(format!(
                        "{} has no `}}`: write `{{{{` for a brace that is meant as one",
                        quoted(rest)
                    ));
                };
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(hole(inside)?);
                rest = after;
            } else {
                return invalid(
                    "`}` closes nothing: write `}}` for a brace that is meant as one".to_owned(),
                );
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        if parts.is_empty() {
            return invalid("is empty: leave the key out".to_owned());
        }
        Ok(Self { parts })
    }
}

fn hole(inside: &str) -> Result<Part, InvalidTemplate> {
    let (places, optional) = match inside.strip_suffix('?') {
        Some(places) => (places, true),
        None => (inside, false),
    };
    let places = places.split('|').map(Place::parse).collect::<Result<_, _>>();
    let places = places.map_err(InvalidTemplate)?;
    Ok(Part::Hole { places, optional })
}

impl Template {
    /// The places that it names.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.parts.iter().flat_map(|part| match part {
            Part::Text(_) => &[][..],
            Part::Hole { places, .. } => places.as_slice(),
        })
    }

    /// Its text, if it stands for nothing of a request.
    pub(crate) fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The headers that it names.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.places().filter_map(|place| match place {
            Place::Header(name) => Some(name),
            _ => None,
        })
    }

    /// The header that it is, if it is one and nothing else.
    pub(crate) fn only_header(&self) -> Option<&HeaderName> {
        match self.parts.as_slice() {
            [Part::Hole { places, optional: false }] => match places.as_slice() {
                [Place::Header(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether it holds this place whatever the request has, and nothing instead of it.
    pub(crate) fn always_holds(&self, wanted: &Place) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Hole { places, optional: false } => places.as_slice() == [wanted.clone()],
            _ => false,
        })
    }

    /// Adds the places in the body's JSON that it needs.
    pub(crate) fn add_to(&self, pointers: &mut Pointers) {
        for place in self.places() {
            if let Place::Json(pointer) = place {
                pointers.add(pointer);
            }
        }
    }

    /// The text that it makes of a request; `encode` is applied to what comes from there.
    pub(crate) fn render(
        &self,
        facts: &Facts<'_>,
        encode: impl Fn(&str) -> Cow<'_, str>,
    ) -> Result<String, Unusable> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Hole { places, optional } => match first(places, facts)? {
                    Some(value) => text.push_str(&encode(&value)),
                    None if *optional => {
                        if text.ends_with('.') {
                            text.pop();
                        }
                    }
                    None => return Err(facts.lacks(places)),
                },
            }
        }
        Ok(text)
    }

    /// The bytes that it makes of a request, given to `update` one after the other, so that a
    /// large body is copied nowhere.
    pub(crate) fn feed(
        &self,
        facts: &Facts<'_>,
        mut update: impl FnMut(&[u8]),
    ) -> Result<(), Unusable> {
        for part in &self.parts {
            match part {
                Part::Text(literal) => update(literal.as_bytes()),
                Part::Hole { places, .. } if matches!(places.as_slice(), [Place::Body]) => {
                    update(facts.body());
                }
                Part::Hole { places, optional } => match first(places, facts)? {
                    Some(value) => update(value.as_bytes()),
                    None if *optional => {}
                    None => return Err(facts.lacks(places)),
                },
            }
        }
        Ok(())
    }
}

/// Encodes nothing.
pub(crate) fn as_it_stands(text: &str) -> Cow<'_, str> {
    Cow::Borrowed(text)
}

/// The value of the first place that has one.
fn first<'f>(places: &[Place], facts: &'f Facts<'_>) -> Result<Option<Cow<'f, str>>, Unusable> {
    for place in places {
        if let Some(value) = facts.value(place)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}
