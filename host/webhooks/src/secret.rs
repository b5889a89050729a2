//! Secrets, which are never shown.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::encoding::from_hex;
use crate::preset::Preset;

/// What a source verifies with: a key of HMAC, a public key of Ed25519, or a shared token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    pub(crate) bytes: Vec<u8>,
    pub(crate) kind: Kind,
}

/// What the bytes of a secret are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A secret that both sides know.
    Shared,
    /// A public key of Ed25519.
    Ed25519,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a text is no secret of a preset. Says nothing of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSecret(pub(crate) String);

/// Providers disagree on the padding of base64.
const ANY_PADDING: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The fewest bytes of a secret. Shorter ones are left over from a test, or guessed.
const LEAST: usize = 8;

impl Secret {
    /// Reads a secret as the provider of this preset gives it out.
    ///
    /// Most are taken as they stand. Those of `standard` are base64, with or without `whsec_`;
    /// `whpk_` begins a public key of Ed25519, and `raw:` a secret that is no base64. Those of
    /// `hmac` may begin with `base64:` or `hex:`.
    ///
    /// # Errors
    /// When it is empty or too short, or not what its beginning says.
    pub fn parse(preset: Preset, text: &str) -> Result<Self, InvalidSecret> {
        let invalid = |why: &str| Err(InvalidSecret(why.to_owned()));
        if text.is_empty() {
            return invalid("is empty: give the secret that the provider shows for this webhook");
        }
        let as_it_stands = || Some(text.as_bytes().to_vec());
        let (bytes, kind) = match preset {
            Preset::Standard => {
                if let Some(key) = text.strip_prefix("whpk_") {
                    (ANY_PADDING.decode(key).ok().filter(|key| key.len() == 32), Kind::Ed25519)
                } else if text.starts_with("whsk_") {
                    return invalid(
                        "is a private key: it belongs to the sender, and verifying takes the public one, which begins `whpk_`",
                    );
                } else if let Some(raw) = text.strip_prefix("raw:") {
                    (Some(raw.as_bytes().to_vec()), Kind::Shared)
                } else {
                    let key = text.strip_prefix("whsec_").unwrap_or(text);
                    (ANY_PADDING.decode(key).ok(), Kind::Shared)
                }
            }
            Preset::Hmac => match text.split_once(':') {
                Some(("base64", key)) => (ANY_PADDING.decode(key).ok(), Kind::Shared),
                Some(("hex", key)) => (from_hex(key.as_bytes()), Kind::Shared),
                _ => (as_it_stands(), Kind::Shared),
            },
            _ => (as_it_stands(), Kind::Shared),
        };
        let Some(bytes) = bytes else {
            return invalid(match (preset, kind) {
                (Preset::Standard, Kind::Ed25519) => {
                    "is no public key: `whpk_` is followed by 32 bytes in base64"
                }
                (Preset::Standard, Kind::Shared) => {
                    "is not base64: write `whsec_` and base64 as the provider shows it, or `raw:` before a secret that is no base64"
                }
                _ => {
                    "is not what its beginning says: write `base64:` before base64, `hex:` before hex digits, and neither before a secret that is taken as it stands"
                }
            });
        };
        if bytes.len() < LEAST {
            return Err(InvalidSecret(format!(
                "has {} bytes: a secret has at least {LEAST}, and is drawn at random",
                bytes.len()
            )));
        }
        Ok(Self { bytes, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(preset: Preset, text: &str) -> Result<Vec<u8>, String> {
        Secret::parse(preset, text).map(|secret| secret.bytes).map_err(|why| why.0)
    }

    #[test]
    fn a_secret_is_read_as_its_provider_writes_it() {
        for (preset, text, expected) in [
            (Preset::GitHub, "raw:a secret", &b"raw:a secret"[..]),
            (Preset::Stripe, "whsec_c2VjcmV0", b"whsec_c2VjcmV0"),
            (Preset::Standard, "whsec_MTIzNDU2Nzg=", b"12345678"),
            (Preset::Standard, "whsec_MTIzNDU2Nzg", b"12345678"),
            (Preset::Standard, "MTIzNDU2Nzg=", b"12345678"),
            (Preset::Standard, "raw:no base64!", b"no base64!"),
            (Preset::Hmac, "base64:MTIzNDU2Nzg=", b"12345678"),
            (Preset::Hmac, "hex:3132333435363738", b"12345678"),
            (Preset::Hmac, "12345678:90", b"12345678:90"),
        ] {
            assert_eq!(bytes(preset, text).as_deref(), Ok(expected), "{preset} {text}");
        }
        let key =
            Secret::parse(Preset::Standard, "whpk_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=");
        assert_eq!(key.unwrap().kind, Kind::Ed25519);
    }

    #[test]
    fn what_is_no_secret_is_refused_and_never_repeated() {
        for (preset, text, part) in [
            (Preset::GitHub, "", "is empty"),
            (Preset::GitHub, "hunter2", "7 bytes"),
            (Preset::Standard, "whsec_not base64", "is not base64"),
            (Preset::Standard, "whsec_aHVudGVy", "6 bytes"),
            (Preset::Standard, "whpk_aHVudGVy", "no public key"),
            (Preset::Standard, "whsk_aHVudGVy", "private key"),
            (Preset::Hmac, "hex:huntershunters", "is not what its beginning says"),
            (Preset::Hmac, "base64:hunter hunter", "is not what its beginning says"),
        ] {
            let why = bytes(preset, text).unwrap_err();
            assert!(why.contains(part), "{preset} {text}: {why}");
            assert!(!why.contains("hunter"), "{why}");
        }
        let secret = Secret::parse(Preset::GitHub, "hunter2-hunter2").unwrap();
        assert!(!format!("{secret:?}").contains("hunter"));
    }
}
