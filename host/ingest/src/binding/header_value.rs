//! Values of attributes in headers: the percent-encoding of the binding, section 3.1.3.2.

use std::fmt::Write as _;

/// What is wrong with a value, for the end of a sentence that begins with its header's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A `%` without two hexadecimal digits after it.
    Percent,
    /// Bytes that are no UTF-8.
    NotUtf8,
}

impl Broken {
    pub(super) const fn told(self) -> &'static str {
        match self {
            Self::Percent => {
                "holds a `%` without two hexadecimal digits after it: write `%25` for the character itself"
            }
            Self::NotUtf8 => "is not UTF-8: percent-encode the bytes of its UTF-8",
        }
    }
}

/// Undoes a quoted string, which older senders send, and then percent-encoding, once.
///
/// # Errors
/// For what is not encoded as the binding says. Needless encoding is fine.
pub fn decode(value: &[u8]) -> Result<String, Broken> {
    let value = value.trim_ascii();
    let unquoted = unquote(value);
    let value = unquoted.as_deref().unwrap_or(value);
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(Broken::Percent) };
        // Two digits are a byte.
        decoded.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    String::from_utf8(decoded).map_err(|_| Broken::NotUtf8)
}

/// What a quoted string holds; `None` for what is none.
fn unquote(value: &[u8]) -> Option<Vec<u8>> {
    let inside = value.strip_prefix(b"\"")?;
    let mut unquoted = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => unquoted.push(*bytes.next()?),
            b'"' => return bytes.as_slice().is_empty().then_some(unquoted),
            _ => unquoted.push(*byte),
        }
    }
    None
}

/// Encodes a value as the binding says: what is no printable ASCII, a space, a double quote and
/// a percent sign.
#[must_use]
pub fn encode(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' | ..=b' ' | 0x7f.. => {
                // Writing to a string cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
            _ => encoded.push(char::from(byte)),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_example_of_the_binding_and_every_vector_of_percent_encoding() {
        for (header, value) in [
            // Those of the binding.
            ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
            // As it was sent.
            ("plain", "plain"),
            ("  around \t", "around"),
            ("in between", "in between"),
            ("", ""),
            ("/a/b?c=d&e#f", "/a/b?c=d&e#f"),
            ("a\"b", "a\"b"),
            ("a\\b", "a\\b"),
            // Needless encoding, and digits of either case.
            ("%41%62%63", "Abc"),
            ("%e2%82%ac", "€"),
            ("%E2%82%ac", "€"),
            // Once, and not twice.
            ("%2541", "%41"),
            ("%2520", "%20"),
            ("100%25", "100%"),
            ("%00", "\0"),
            // Quoted strings of older senders.
            ("\"quoted\"", "quoted"),
            ("\"a \\\"b\\\" \\\\ c\"", "a \"b\" \\ c"),
            ("\"%41 \\%41\"", "A A"),
            ("\"\"", ""),
            // No quoted strings.
            ("\"open", "\"open"),
            ("\"a\" b", "\"a\" b"),
            ("\"a\\\"", "\"a\\\""),
            ("\"", "\""),
        ] {
            assert_eq!(decode(header.as_bytes()), Ok(value.to_owned()), "{header}");
        }
        assert_eq!(decode("é€😀".as_bytes()), Ok("é€😀".to_owned()), "UTF-8 that is not encoded");
    }

    #[test]
    fn what_is_not_encoded_as_it_should_be_is_refused() {
        for bad in ["%", "a%", "%4", "%4g", "%zz", "%%41", "% 41", "%\u{e9}1", "%+1", "100% sure"] {
            assert_eq!(decode(bad.as_bytes()), Err(Broken::Percent), "{bad}");
        }
        for bad in [
            // Not the shortest form of `/`, of NUL and of the euro sign.
            &b"%C0%AF"[..],
            b"%c0%80",
            b"%E0%80%AF",
            b"%F0%82%82%AC",
            // Halves of surrogate pairs, alone and together.
            b"%ED%A0%80",
            b"%ED%B0%80",
            b"%ED%A0%BD%ED%B8%80",
            // Beyond U+10FFFF, cut off, out of order, and bytes that are in no UTF-8.
            b"%F4%90%80%80",
            b"%E2%82",
            b"%82%AC",
            b"%FF",
            b"%FE",
            b"\xff",
            b"\xe2\x82",
            b"a\xc3",
        ] {
            assert_eq!(decode(bad), Err(Broken::NotUtf8), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn what_is_encoded_is_what_the_binding_says() {
        assert_eq!(encode("Euro € 😀"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(encode("!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"), "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~");
        assert_eq!(encode("\"%\u{7f}"), "%22%25%7F");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_again(value in any::<String>()) {
            let encoded = encode(&value);
            prop_assert!(encoded.bytes().all(|byte| (0x21..0x7f).contains(&byte) && byte != b'"'));
            prop_assert_eq!(decode(encoded.as_bytes()), Ok(value));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in any::<Vec<u8>>()) {
            let _ = decode(&bytes);
        }
    }
}
