//! A parsed file: its values with their places, and every problem that was found in it.

use std::cell::RefCell;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Problem, place};
use super::variables::Variables;
use event_host_core::event::quoted;

/// A parsed file, and what is wrong with it.
pub(super) struct Document<'a> {
    text: &'a str,
    pub(super) variables: Variables<'a>,
    /// The byte that a problem points at, and its message.
    problems: RefCell<Vec<(usize, String)>>,
}

impl<'a> Document<'a> {
    /// Nothing wrong yet.
    pub(super) fn new(text: &'a str, variables: Variables<'a>) -> Self {
        Self { text, variables, problems: RefCell::default() }
    }

    /// Notes a problem.
    pub(super) fn problem(&self, at: usize, message: impl Into<String>) {
        self.problems.borrow_mut().push((at, message.into()));
    }

    /// The line of a byte, for messages that name a second place.
    pub(super) fn line(&self, at: usize) -> usize {
        place(self.text, at).0
    }

    /// Every problem, in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|(at, _)| *at);
        problems
            .into_iter()
            .map(|(at, message)| Problem { place: Some(place(self.text, at)), message })
            .collect()
    }
}

/// A string of the file.
pub(super) struct Text<'a> {
    /// Its place, as a byte of the file.
    pub(super) at: usize,
    /// As it is written, for messages: variables may hold secrets.
    pub(super) raw: &'a str,
    /// With its variables replaced.
    pub(super) value: String,
}

impl Text<'_> {
    /// For a message.
    pub(super) fn quoted(&self) -> String {
        quoted(self.raw)
    }
}

/// A key with its value.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    /// The key.
    pub(super) key: &'a str,
    /// The place of the value; for a table, of its name.
    pub(super) at: usize,
    /// The value.
    pub(super) value: &'a DeValue<'a>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(
        key: &'a Spanned<toml::de::DeString<'a>>,
        value: &'a Spanned<DeValue<'a>>,
    ) -> Self {
        let place = if value.get_ref().is_table() { key.span() } else { value.span() };
        Self { key: key.get_ref(), at: place.start, value: value.get_ref() }
    }

    /// What is in a table at a path of keys, if it is there.
    pub(super) fn below(self, path: &[&str]) -> Option<Self> {
        path.iter().try_fold(self, |entry, key| match entry.value {
            DeValue::Table(table) => {
                table.get_key_value(*key).map(|(key, value)| Self::new(key, value))
            }
            _ => None,
        })
    }
}

/// What a table holds, in the order of the file.
pub(super) fn entries<'a>(table: &'a DeTable<'a>) -> Vec<Entry<'a>> {
    let mut entries: Vec<_> = table.iter().map(|(key, value)| Entry::new(key, value)).collect();
    entries.sort_by_key(|entry| entry.at);
    entries
}

/// A value's type, for a sentence.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
