//! How large an event is, and how large each of its attributes may be.
//!
//! The same numbers stand in the constraints of `migrations/`, because a client of the
//! database inserts events without this program. Each is of bytes in UTF-8.
//!
//! They are small enough for every index of a store: a key of the state is the name of a
//! group, the `partitionkey` and a name within it, and all of them together fit an entry
//! of a B-tree of PostgreSQL, which has 2,704 bytes at most.

use std::collections::BTreeMap;

use super::{Event, ExtensionValue, GroupName, LogEvent};

/// The most of `id`, `source`, `type` and `partitionkey`, in bytes.
pub const SHORT_BYTES: usize = 1_024;

/// The most of `subject`, `datacontenttype` and `dataschema`, in bytes.
pub const LONG_BYTES: usize = 8_192;

/// The most of all extensions together, in bytes of JSON as PostgreSQL prints it: with
/// their names, and a space after each colon and comma.
pub const EXTENSIONS_BYTES: usize = 65_536;

/// What all extensions come to as JSON.
pub(super) fn json_bytes(extensions: &BTreeMap<String, ExtensionValue>) -> usize {
    let members = extensions.iter().map(|(name, value)| {
        let value = match value {
            ExtensionValue::Boolean(true) => 4,
            ExtensionValue::Boolean(false) => 5,
            ExtensionValue::Integer(value) => value.to_string().len(),
            ExtensionValue::Text(text) => quoted_bytes(text),
        };
        quoted_bytes(name) + ": ".len() + value
    });
    let commas = ", ".len() * extensions.len().saturating_sub(1);
    "{}".len() + members.sum::<usize>() + commas
}

/// A text in quotes, where what must be escaped is.
fn quoted_bytes(text: &str) -> usize {
    let escaped = text.bytes().map(|b| match b {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    });
    escaped.sum::<usize>() + "\"\"".len()
}

impl Event {
    /// What it takes to hold or to send it, in bytes: its data and all its attributes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = [&self.id, &self.source, &self.event_type].map(String::len);
        let optional = [&self.subject, &self.datacontenttype, &self.dataschema, &self.partitionkey];
        let optional = optional.into_iter().flatten().map(String::len);
        let extensions = self.extensions.iter().map(|(name, value)| {
            name.len()
                + match value {
                    ExtensionValue::Boolean(_) | ExtensionValue::Integer(_) => 4,
                    ExtensionValue::Text(text) => text.len(),
                }
        });
        let data = self.data.as_ref().map_or(0, Vec::len);
        texts.iter().sum::<usize>() + optional.sum::<usize>() + extensions.sum::<usize>() + data
    }
}

impl LogEvent {
    /// The same, with the name of the group that it is for alone.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let deliver_to =
            self.deliver_to.as_ref().map_or(0, |group: &GroupName| group.as_str().len());
        self.event.bytes() + deliver_to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_as_long_as_postgresql_prints_them() {
        let extensions = BTreeMap::from([
            ("a".to_owned(), ExtensionValue::Text("x\"\\é".to_owned())),
            ("b".to_owned(), ExtensionValue::Integer(-17)),
            ("c".to_owned(), ExtensionValue::Boolean(false)),
        ]);
        let printed = r#"{"a": "x\"\\é", "b": -17, "c": false}"#;
        assert_eq!(json_bytes(&extensions), printed.len());
        assert_eq!(json_bytes(&BTreeMap::new()), 2);
    }

    #[test]
    fn the_constraints_of_both_stores_have_these_numbers() {
        let migrations = [
            include_str!("../../../../migrations/postgres/0001_log_and_groups.sql"),
            include_str!("../../../../migrations/sqlite/0001_log_and_groups.sql"),
        ];
        for migration in migrations {
            for (attribute, most) in [
                ("type", SHORT_BYTES),
                ("id", SHORT_BYTES),
                ("source", SHORT_BYTES),
                ("partitionkey", SHORT_BYTES),
                ("subject", LONG_BYTES),
                ("datacontenttype", LONG_BYTES),
                ("dataschema", LONG_BYTES),
            ] {
                let name = format!("{attribute}_has_{most}_bytes_at_most");
                assert!(migration.contains(&name), "{name}");
            }
            let name = format!("extensions_have_{EXTENSIONS_BYTES}_bytes_of_json_at_most");
            assert!(migration.contains(&name), "{name}");
        }
    }
}
