//! Places in a JSON document, all of them found in one pass over it.
//!
//! A document is never turned into a tree: what nobody asks for is skipped, and a number is
//! given as it is written, however long it is.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON pointer of RFC 6901, as its reference tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pointer(Vec<String>);

impl Pointer {
    /// Reads one such as `/repository/full_name`. `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let tokens = text.strip_prefix('/')?.split('/').map(unescaped);
        tokens.collect::<Option<_>>().map(Self)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

/// A reference token without its escapes.
fn unescaped(token: &str) -> Option<String> {
    let mut pieces = token.split('~');
    let mut text = pieces.next()?.to_owned();
    for piece in pieces {
        text.push(match piece.as_bytes().first()? {
            b'0' => '~',
            b'1' => '/',
            _ => return None,
        });
        text.push_str(&piece[1..]);
    }
    Some(text)
}

/// What stands at a pointer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A string, without its escapes.
    Text(String),
    /// A number or a boolean, as it is written.
    Literal(String),
    /// An object.
    Object,
    /// An array.
    Array,
}

/// Pointers that are looked for together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Pointers(Node);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Node {
    /// The pointer that leads here, if it is one that is looked for.
    wanted: Option<Pointer>,
    members: BTreeMap<String, Node>,
}

/// What was found, by pointer. `null` counts as nothing.
pub(crate) type Values = BTreeMap<Pointer, Found>;

impl Pointers {
    /// Adds one.
    pub(crate) fn add(&mut self, pointer: &Pointer) {
        let mut node = &mut self.0;
        for token in &pointer.0 {
            node = node.members.entry(token.clone()).or_default();
        }
        node.wanted = Some(pointer.clone());
    }

    /// Whether none is looked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.members.is_empty()
    }

    /// Finds all of them. Of members with one name the last counts, as for most readers.
    ///
    /// # Errors
    /// When the text is not JSON.
    pub(crate) fn find(&self, json: &str) -> serde_json::Result<Values> {
        let mut values = Values::new();
        self.0.read(json, &mut values)?;
        Ok(values)
    }
}

impl Node {
    fn read(&self, json: &str, values: &mut Values) -> serde_json::Result<()> {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        Look { node: self, values }.deserialize(&mut deserializer)?;
        deserializer.end()
    }

    /// Forgets what an earlier member of the same name gave.
    fn forget(&self, values: &mut Values) {
        if let Some(pointer) = &self.wanted {
            values.remove(pointer);
        }
        for member in self.members.values() {
            member.forget(values);
        }
    }
}

/// Looks for the pointers of a node in one value.
struct Look<'n, 'v> {
    node: &'n Node,
    values: &'v mut Values,
}

impl<'de> DeserializeSeed<'de> for Look<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Some(pointer) = &self.node.wanted else { return deserializer.deserialize_any(self) };
        use serde::de::{Deserialize as _, Error as _};
        let raw = <&RawValue>::deserialize(deserializer)?.get();
        let found = match raw.as_bytes().first() {
            Some(b'"') => serde_json::from_str(raw).map(Found::Text).map_err(D::Error::custom)?,
            Some(b'{') => Found::Object,
            Some(b'[') => Found::Array,
            _ if raw == "null" => return Ok(()),
            _ => Found::Literal(raw.to_owned()),
        };
        self.values.insert(pointer.clone(), found);
        if !self.node.members.is_empty() {
            let below = Node { wanted: None, members: self.node.members.clone() };
            below.read(raw, self.values).map_err(D::Error::custom)?;
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Look<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match self.node.members.get(&name) {
                Some(node) => {
                    node.forget(self.values);
                    map.next_value_seed(Look { node, values: self.values })?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let more = match self.node.members.get(&index.to_string()) {
                Some(node) => items.next_element_seed(Look { node, values: self.values })?,
                None => items.next_element::<IgnoredAny>()?.map(|_| ()),
            };
            if more.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(json: &str, pointers: &[&str]) -> Result<Vec<Option<Found>>, String> {
        let pointers: Vec<_> = pointers.iter().map(|text| Pointer::parse(text).unwrap()).collect();
        let mut wanted = Pointers::default();
        pointers.iter().for_each(|pointer| wanted.add(pointer));
        let values = wanted.find(json).map_err(|error| error.to_string())?;
        Ok(pointers.iter().map(|pointer| values.get(pointer).cloned()).collect())
    }

    fn text(text: &str) -> Option<Found> {
        Some(Found::Text(text.to_owned()))
    }

    fn literal(text: &str) -> Option<Found> {
        Some(Found::Literal(text.to_owned()))
    }

    #[test]
    fn all_places_are_found_in_one_pass() {
        let json = r#" {"a": {"b": "x\u00e9\n", "n": 12345678901234567890123, "c": [10, {"d": true}]},
            "f": 1.50, "null": null, "a/b": {"~": "s"}, "": {"": "empty"}} "#;
        let found = find(
            json,
            &["/a/b", "/a/n", "/a/c/0", "/a/c/1/d", "/a/c/2", "/f", "/null", "/a~1b/~0", "//"],
        );
        assert_eq!(
            found.unwrap(),
            [
                text("xé\n"),
                literal("12345678901234567890123"),
                literal("10"),
                literal("true"),
                None,
                literal("1.50"),
                None,
                text("s"),
                text("empty"),
            ]
        );
        let both = find(json, &["/a", "/a/b", "/a/c", "/f/x", "/missing/x"]).unwrap();
        assert_eq!(both, [Some(Found::Object), text("xé\n"), Some(Found::Array), None, None]);
    }

    #[test]
    fn of_two_members_of_one_name_the_last_counts_whole() {
        let json = r#"{"a": {"b": "first"}, "a": {"c": 1}, "d": "x", "d": null}"#;
        assert_eq!(find(json, &["/a/b", "/a/c", "/d"]).unwrap(), [None, literal("1"), None]);
    }

    #[test]
    fn what_is_not_json_is_an_error_wherever_it_is() {
        for json in ["", "{", r#"{"a": 1} x"#, r#"{"b": tru}"#, r#"{"a": "\ud800"}"#, "{'a': 1}"] {
            assert!(find(json, &["/a"]).is_err(), "{json}");
        }
        for json in ["1", "null", "[]", r#""a""#] {
            assert_eq!(find(json, &["/a"]).unwrap(), [None], "{json}");
        }
    }

    #[test]
    fn a_deep_document_costs_no_stack() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        let json = format!(r#"{{"x": {}, "a": {}}}"#, deep(100_000), deep(100_000));
        assert_eq!(find(&json, &["/a"]).unwrap(), [Some(Found::Array)]);
        // Below a place that is looked for, too: there is only as much recursion as tokens.
        let json = format!(r#"{{"a": [{}]}}"#, deep(100_000));
        assert_eq!(find(&json, &["/a/0", "/a/1"]).unwrap(), [Some(Found::Array), None]);
    }

    #[test]
    fn pointers_are_told_from_other_text() {
        for good in ["/", "/a", "/a/0/b", "/~0~1", "/a b"] {
            assert_eq!(Pointer::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", "a", "a/b", "/~", "/~2", "/a~"] {
            assert_eq!(Pointer::parse(bad), None, "{bad}");
        }
    }
}
