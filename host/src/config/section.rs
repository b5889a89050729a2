//! One table as typed values: reads its keys one by one, notes every problem instead of
//! stopping at the first, and in the end names the keys that no setting has.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::document::{Document, Entry, Text, kind};
use super::keys::{self, Place};
use super::value;
use event_host_core::event::quoted;

/// What a setting that takes a unit is called, and how it is written.
struct Unit {
    what: &'static str,
    default: &'static str,
    examples: &'static str,
}

const DURATION: Unit =
    Unit { what: "a duration", default: "s", examples: "\"5s\", \"1m 30s\" or \"250ms\"" };

const SIZE: Unit =
    Unit { what: "a size", default: "MiB", examples: "\"64MiB\", \"1.5GiB\" or \"512KiB\"" };

/// One table of the file, or one that is not there, in which no key is set.
pub(super) struct Section<'a> {
    document: &'a Document<'a>,
    place: &'static Place,
    /// The handler, or the tenant, that it belongs to.
    named: Option<&'a str>,
    /// The place of its name.
    at: usize,
    table: Option<&'a DeTable<'a>>,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// The top level of a file.
    pub(super) fn top(document: &'a Document<'a>, table: &'a DeTable<'a>) -> Self {
        let place = &keys::TOP;
        Self { document, place, named: None, at: 0, table: Some(table), asked: Vec::new() }
    }

    /// The table of one handler.
    pub(super) fn handler(document: &'a Document<'a>, entry: Entry<'a>) -> Self {
        Self::named(document, entry, &keys::HANDLER)
    }

    /// The table of one tenant.
    pub(super) fn tenant(document: &'a Document<'a>, entry: Entry<'a>) -> Self {
        Self::named(document, entry, &keys::TENANT)
    }

    /// The table of one source.
    pub(super) fn source(document: &'a Document<'a>, entry: Entry<'a>) -> Self {
        Self::named(document, entry, &keys::SOURCE)
    }

    /// A table with a name of its owner's choice, such as one listener.
    pub(super) fn named(
        document: &'a Document<'a>,
        entry: Entry<'a>,
        place: &'static Place,
    ) -> Self {
        let table = match entry.value {
            DeValue::Table(table) => Some(table),
            other => {
                let name = place.header(Some(entry.key));
                document.problem(
                    entry.at,
                    format!("{} is {}: write a table {name}", quoted(entry.key), kind(other)),
                );
                None
            }
        };
        let named = Some(entry.key);
        Self { document, place, named, at: entry.at, table, asked: Vec::new() }
    }

    /// The table `key` of this one.
    pub(super) fn section(&mut self, key: &'static str, place: &'static Place) -> Self {
        let entry = self.entry(key);
        let table = entry.and_then(|entry| match entry.value {
            DeValue::Table(table) => Some(table),
            other => {
                self.problem(
                    entry.at,
                    format!(
                        "`{key}` is {}: write a table {}",
                        kind(other),
                        place.header(self.named)
                    ),
                );
                None
            }
        });
        let at = entry.map_or(self.at, |entry| entry.at);
        let (document, named) = (self.document, self.named);
        Self { document, place, named, at, table, asked: Vec::new() }
    }

    /// Whether the file has the table.
    pub(super) fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the table has the key.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// The place of the table's name.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Notes a problem.
    pub(super) fn problem(&self, at: usize, message: impl Into<String>) {
        self.document.problem(at, message);
    }

    /// The value of a key, if it is set.
    pub(super) fn entry(&mut self, key: &'static str) -> Option<Entry<'a>> {
        debug_assert!(self.place.keys.contains(&key), "{key} is missing in keys.rs");
        self.asked.push(key);
        self.table?.get_key_value(key).map(|(key, value)| Entry::new(key, value))
    }

    /// Whether a table that is there lacks a key, and no other key looks like a
    /// misspelling of it, which is named anyway.
    pub(super) fn lacks(&self, key: &'static str) -> bool {
        self.table.is_some_and(|table| {
            !table.keys().any(|found| {
                let found: &str = found.get_ref();
                found == key
                    || (!self.place.keys.contains(&found)
                        && keys::closest(self.place, found) == Some(key))
            })
        })
    }

    /// Names the keys that the table must not hold. Comes last.
    pub(super) fn finish(self) {
        debug_assert!(self.place.keys.iter().all(|key| self.asked.contains(key)));
        let table = self.table.into_iter().flat_map(DeTable::keys);
        for key in table {
            let name: &str = key.get_ref();
            if !self.place.keys.contains(&name) {
                self.problem(key.span().start, keys::unknown(self.place, name, self.named));
            }
        }
    }

    fn wrong_type(&self, entry: Entry<'_>, wanted: &str, example: &str) {
        self.problem(
            entry.at,
            format!(
                "`{key}` is {}, not {wanted}: write `{key} = {example}`",
                kind(entry.value),
                key = entry.key
            ),
        );
    }

    /// A string with its variables replaced, of which nothing is said in a message.
    pub(super) fn expanded(&self, at: usize, raw: &str) -> Option<String> {
        self.document.variables.expand(raw).map_err(|problem| self.problem(at, problem)).ok()
    }

    /// Replaces the variables in a string.
    fn expand(&self, at: usize, raw: &'a str) -> Option<Text<'a>> {
        match self.document.variables.expand(raw) {
            Ok(value) => Some(Text { at, raw, value }),
            Err(problem) => {
                self.problem(at, problem);
                None
            }
        }
    }

    /// A string. `example` is one as TOML writes it.
    pub(super) fn text(&mut self, key: &'static str, example: &str) -> Option<Text<'a>> {
        let entry = self.entry(key)?;
        self.text_of(entry, example)
    }

    /// An entry as a string.
    pub(super) fn text_of(&self, entry: Entry<'a>, example: &str) -> Option<Text<'a>> {
        match entry.value {
            DeValue::String(raw) => self.expand(entry.at, raw),
            _ => {
                self.wrong_type(entry, "a string", example);
                None
            }
        }
    }

    /// A list of strings, with the place of the list.
    pub(super) fn texts(
        &mut self,
        key: &'static str,
        example: &str,
    ) -> Option<(usize, Vec<Option<Text<'a>>>)> {
        let entry = self.entry(key)?;
        let items = match entry.value {
            DeValue::Array(items) => items,
            DeValue::String(one) => {
                self.problem(
                    entry.at,
                    format!(
                        "`{key}` is a string, not a list: write `{key} = [\"{}\"]`",
                        quoted(one).trim_matches('`')
                    ),
                );
                return None;
            }
            _ => {
                self.wrong_type(entry, "a list of strings", example);
                return None;
            }
        };
        let texts = items.iter().map(|item| match item.get_ref() {
            DeValue::String(raw) => self.expand(item.span().start, raw),
            other => {
                self.problem(
                    item.span().start,
                    format!(
                        "`{key}` holds {}: put strings into the list, such as {example}",
                        kind(other)
                    ),
                );
                None
            }
        });
        Some((entry.at, texts.collect()))
    }

    /// A table of strings whose keys are free.
    pub(super) fn text_table(
        &mut self,
        key: &'static str,
        example: &str,
    ) -> Option<BTreeMap<&'a str, Text<'a>>> {
        let entry = self.entry(key)?;
        let DeValue::Table(table) = entry.value else {
            self.wrong_type(entry, "a table of strings", example);
            return None;
        };
        let texts = table.iter().filter_map(|(key, value)| {
            let entry = Entry::new(key, value);
            let text = match entry.value {
                DeValue::String(raw) => self.expand(entry.at, raw),
                other => {
                    self.problem(
                        entry.at,
                        format!(
                            "{} is {}: put its value in quotes",
                            quoted(entry.key),
                            kind(other)
                        ),
                    );
                    None
                }
            };
            text.map(|text| (entry.key, text))
        });
        Some(texts.collect())
    }

    /// A boolean.
    pub(super) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        let entry = self.entry(key)?;
        let value = entry.value.as_bool();
        if value.is_none() {
            self.wrong_type(entry, "a boolean", "true");
        }
        value
    }

    /// A whole number within bounds.
    pub(super) fn integer<N>(&mut self, key: &'static str, allowed: RangeInclusive<N>) -> Option<N>
    where
        N: TryFrom<i64> + PartialOrd + Display,
    {
        let entry = self.entry(key)?;
        let DeValue::Integer(integer) = entry.value else {
            self.problem(
                entry.at,
                format!(
                    "`{key}` is {}, not a whole number: write one from {} to {}, without quotes",
                    kind(entry.value),
                    allowed.start(),
                    allowed.end()
                ),
            );
            return None;
        };
        let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.and_then(|n| N::try_from(n).ok()).filter(|n| allowed.contains(n));
        if number.is_none() {
            self.out_of_bounds(
                entry,
                &quoted(&integer.to_string()),
                allowed.start(),
                allowed.end(),
            );
        }
        number
    }

    /// A number, with or without a fraction, within bounds.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        allowed: RangeInclusive<f64>,
        example: &str,
    ) -> Option<f64> {
        let entry = self.entry(key)?;
        let (shown, number) = match entry.value {
            DeValue::Integer(integer) if integer.radix() == 10 => {
                (integer.to_string(), integer.as_str().parse().ok())
            }
            DeValue::Float(float) => (float.to_string(), float.as_str().parse().ok()),
            _ => {
                self.wrong_type(entry, "a number", example);
                return None;
            }
        };
        let number = number.filter(|n| allowed.contains(n));
        if number.is_none() {
            self.out_of_bounds(entry, &quoted(&shown), allowed.start(), allowed.end());
        }
        number
    }

    /// A duration within bounds.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        allowed: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let entry = self.entry(key)?;
        let (shown, duration) = self.with_unit(entry, &DURATION, value::duration)?;
        if allowed.contains(&duration) {
            return Some(duration);
        }
        let [least, most] = [allowed.start(), allowed.end()].map(|d| value::show_duration(*d));
        self.out_of_bounds(entry, &shown, &least, &most);
        None
    }

    /// A size in bytes within bounds, which are given as they are written.
    pub(super) fn size(
        &mut self,
        key: &'static str,
        allowed: RangeInclusive<&'static str>,
    ) -> Option<usize> {
        let entry = self.entry(key)?;
        let (shown, bytes) = self.with_unit(entry, &SIZE, value::size)?;
        let bound = |text: &str| value::size(text).unwrap_or_default();
        let within = (bound(allowed.start())..=bound(allowed.end())).contains(&bytes);
        let bytes = usize::try_from(bytes).ok().filter(|_| within);
        if bytes.is_none() {
            self.out_of_bounds(entry, &shown, allowed.start(), allowed.end());
        }
        bytes
    }

    /// Reads what is written with a unit, and gives it beside how it is written.
    fn with_unit<T>(
        &self,
        entry: Entry<'a>,
        unit: &Unit,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<(String, T)> {
        let (key, at) = (entry.key, entry.at);
        let needs_unit = |number: &str| {
            self.problem(
                at,
                format!("`{key}` needs a unit: write `{key} = \"{number}{}\"`", unit.default),
            );
        };
        match entry.value {
            DeValue::Integer(n) if value::is_bare_number(n.as_str()) && n.radix() == 10 => {
                needs_unit(n.as_str());
            }
            DeValue::Float(n) if value::is_bare_number(n.as_str()) => needs_unit(n.as_str()),
            DeValue::String(raw) => {
                let text = self.expand(at, raw)?;
                match parse(&text.value) {
                    Some(value) => return Some((text.quoted(), value)),
                    None if value::is_bare_number(raw) => needs_unit(raw),
                    None => self.problem(
                        at,
                        format!(
                            "`{key}` is {}, which is not {}: write one such as {}",
                            text.quoted(),
                            unit.what,
                            unit.examples
                        ),
                    ),
                }
            }
            other => self.problem(
                at,
                format!(
                    "`{key}` is {}, not {}: write one such as {}",
                    kind(other),
                    unit.what,
                    unit.examples
                ),
            ),
        }
        None
    }

    fn out_of_bounds(
        &self,
        entry: Entry<'_>,
        shown: &str,
        least: &impl Display,
        most: &impl Display,
    ) {
        self.problem(
            entry.at,
            format!("`{}` is {shown}: it must be from {least} to {most}", entry.key),
        );
    }
}
