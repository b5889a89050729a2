//! The name of a component by its content.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "sha256:";

/// What a component's bytes are known by: `sha256:` and 64 hex digits, as
/// `sha256sum` prints them of its file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Digest(Arc<str>);

/// A text that is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a digest is `sha256:` and 64 of the digits 0 to 9 and a to f")]
pub struct InvalidDigest;

impl Digest {
    /// The digest of these bytes. Takes a while for large ones.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use fmt::Write as _;
        let mut text = String::from(PREFIX);
        for byte in Sha256::digest(bytes) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text.into())
    }

    /// The digest as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As much of it as tells one from another at a glance.
    #[must_use]
    pub fn short(&self) -> &str {
        // It is longer than that, and of one byte a character.
        &self.0[..PREFIX.len() + 12]
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let digits = text.strip_prefix(PREFIX).ok_or(InvalidDigest)?;
        let fits = digits.len() == 64
            && digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
        if fits { Ok(Self(text.into())) } else { Err(InvalidDigest) }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_what_sha256sum_prints() {
        let empty = Digest::of(b"");
        let known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(empty.as_str(), known);
        assert_eq!(known.parse(), Ok(empty.clone()));
        assert_eq!(empty.short(), "sha256:e3b0c44298fc");
    }

    #[test]
    fn what_only_looks_like_a_digest_is_none() {
        let good = Digest::of(b"").to_string();
        let upper = format!("sha256:{}", good[7..].to_uppercase());
        let other = good.replace("sha256", "sha512");
        for bad in ["", "sha256:", &good[..70], &good[7..], &upper, &other, &format!("{good}0")] {
            assert_eq!(bad.parse::<Digest>(), Err(InvalidDigest), "{bad}");
        }
    }
}
