//! How a signature is written in a header.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// How the bytes of a signature are written in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Two digits a byte, in either case.
    Hex,
    /// Base64 with padding.
    Base64,
}

impl Encoding {
    /// What settings call them.
    pub const NAMES: [(&'static str, Self); 2] = [("hex", Self::Hex), ("base64", Self::Base64)];

    /// The bytes, if the text is nothing else.
    pub(crate) fn decode(self, text: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Hex => from_hex(text),
            Self::Base64 => STANDARD.decode(text).ok(),
        }
    }

    /// The text of bytes, in lower case where that is a choice.
    pub(crate) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => to_hex(bytes),
            Self::Base64 => STANDARD.encode(bytes),
        }
    }
}

/// Bytes as hex digits in lower case.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes that hex digits are, if there are an even number of them and nothing else.
pub(crate) fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    // Below 16, and so in a byte.
    let digit = |c: u8| char::from(c).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_nothing_else_is_read() {
        for (_, encoding) in Encoding::NAMES {
            for bytes in [&b""[..], b"\x00\xff", b"any bytes"] {
                let text = encoding.encode(bytes);
                assert_eq!(encoding.decode(text.as_bytes()).as_deref(), Some(bytes), "{text}");
            }
        }
        assert_eq!(from_hex(b"00FFaf").as_deref(), Some(&b"\x00\xff\xaf"[..]));
        for wrong in ["0", "0g", "0x00", " 00", "00 ", "é0", "+1"] {
            assert_eq!(from_hex(wrong.as_bytes()), None, "{wrong}");
        }
        for wrong in ["YQ", "YQ=", "YQ== ", "Y-==", "YR=="] {
            assert_eq!(Encoding::Base64.decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
