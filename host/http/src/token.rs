//! Tokens: what they are made of, what they may do, and how a caller's is found.
//!
//! A token is 256 random bits. The settings have its SHA-256 alone, which is no secret: a
//! token is only accepted, never shown again. It is looked up by the first bytes of its hash
//! and compared with the whole in constant time.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use event_host_core::event::Tenant;

/// What every token begins with, so that scanners of secrets know it.
const PREFIX: &str = "ehk_";

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Publish events.
    Publish,
    /// Look at everything.
    Read,
    /// Look, and pause, resume, move, replay, discard.
    Operate,
    /// Look, and deploy components.
    Deploy,
    /// Read the metrics of all tenants.
    Metrics,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] =
        [Self::Publish, Self::Read, Self::Operate, Self::Deploy, Self::Metrics];

    /// Its name in the settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Deploy => "deploy",
            Self::Metrics => "metrics",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Role {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|role| role.name() == name).ok_or(())
    }
}

/// Whose things a caller reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Those of all tenants.
    All,
    /// Those of one; of none, for [`Tenant::none`].
    One(Tenant),
}

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

/// A text that is no SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no SHA-256, which is 64 hexadecimal digits: `host token hash` prints that of a token")]
pub struct InvalidHash;

impl TokenHash {
    /// The hash of a token.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for TokenHash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let mut hash = [0; 32];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != hash.len() || !rest.is_empty() {
            return Err(InvalidHash);
        }
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            let digit = |c: u8| char::from(c).to_digit(16).ok_or(InvalidHash);
            *byte = (digit(*high)? * 16 + digit(*low)?) as u8;
        }
        Ok(Self(hash))
    }
}

/// Makes a token.
///
/// # Errors
/// When the system gives no random bytes.
pub fn generate() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Whether a text looks like a token that [`generate`] made.
#[must_use]
pub fn is_well_formed(token: &str) -> bool {
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    token.strip_prefix(PREFIX).is_some_and(|rest| rest.len() == 43 && rest.bytes().all(is_base64))
}

/// A token of the settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its name, which logs show.
    pub name: String,
    /// Its hash.
    pub hash: TokenHash,
    /// What it may do.
    pub roles: BTreeSet<Role>,
    /// Whose things it reaches.
    pub scope: Scope,
    /// The types of events that it may publish: names, or beginnings that end with `*`.
    pub types: Vec<String>,
    /// The sources of events that it may publish, likewise.
    pub sources: Vec<String>,
    /// How many events a second it may publish.
    pub rate: Option<f64>,
    /// Whether it may read the data of events.
    pub payloads: bool,
    /// From when on it is not accepted any more.
    pub expires: Option<Timestamp>,
}

impl Token {
    /// A token that may do everything, for everybody's things, for as long as it is known.
    #[must_use]
    pub fn unlimited(name: &str, hash: TokenHash) -> Self {
        Self {
            name: name.to_owned(),
            hash,
            roles: Role::ALL.into(),
            scope: Scope::All,
            types: vec!["*".to_owned()],
            sources: vec!["*".to_owned()],
            rate: None,
            payloads: true,
            expires: None,
        }
    }

    /// Whether it may publish an event of this type.
    #[must_use]
    pub fn may_publish_type(&self, kind: &str) -> bool {
        self.types.iter().any(|pattern| matches(pattern, kind))
    }

    /// Whether it may publish an event of this source.
    #[must_use]
    pub fn may_publish_source(&self, source: &str) -> bool {
        self.sources.iter().any(|pattern| matches(pattern, source))
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => text == pattern,
    }
}

/// The tokens of the settings.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// By the first bytes of their hashes.
    by_hash: HashMap<[u8; 8], Vec<Arc<Token>>>,
}

/// What is known of a token that a caller sent.
#[derive(Debug, Clone)]
pub enum Found {
    /// It is accepted.
    Valid(Arc<Token>),
    /// It is not accepted any more.
    Expired(Arc<Token>),
    /// The settings do not have it.
    Unknown,
}

impl Tokens {
    /// These tokens.
    #[must_use]
    pub fn new(tokens: impl IntoIterator<Item = Token>) -> Self {
        let mut by_hash: HashMap<[u8; 8], Vec<Arc<Token>>> = HashMap::new();
        for token in tokens {
            by_hash.entry(first_bytes(&token.hash)).or_default().push(Arc::new(token));
        }
        Self { by_hash }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Looks a token up.
    #[must_use]
    pub fn find(&self, token: &str, now: Timestamp) -> Found {
        let hash = TokenHash::of(token);
        let alike = self.by_hash.get(&first_bytes(&hash)).map_or(&[][..], Vec::as_slice);
        match alike.iter().find(|token| bool::from(token.hash.0.ct_eq(&hash.0))) {
            None => Found::Unknown,
            Some(token) if token.expires.is_some_and(|expires| expires <= now) => {
                Found::Expired(Arc::clone(token))
            }
            Some(token) => Found::Valid(Arc::clone(token)),
        }
    }
}

fn first_bytes(hash: &TokenHash) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_random_well_formed_and_found_by_its_hash_alone() {
        let [one, other] = [generate().unwrap(), generate().unwrap()];
        assert_ne!(one, other);
        assert!(is_well_formed(&one), "{one}");
        let hash = TokenHash::of(&one);
        assert_eq!(hash.to_string().parse(), Ok(hash));
        let tokens = Tokens::new([Token::unlimited("one", hash)]);
        let now = Timestamp::now();
        assert!(matches!(tokens.find(&one, now), Found::Valid(token) if token.name == "one"));
        assert!(matches!(tokens.find(&other, now), Found::Unknown));
        assert!(matches!(tokens.find("", now), Found::Unknown));
        assert!(matches!(tokens.find(&hash.to_string(), now), Found::Unknown));
    }

    #[test]
    fn a_hash_with_the_same_first_bytes_is_another() {
        let token = generate().unwrap();
        let mut hash = TokenHash::of(&token);
        hash.0[31] ^= 1;
        let tokens = Tokens::new([Token::unlimited("one", hash)]);
        assert!(matches!(tokens.find(&token, Timestamp::now()), Found::Unknown));
    }

    #[test]
    fn an_expired_token_is_known_and_not_valid() {
        let token = generate().unwrap();
        let now = Timestamp::now();
        let expiring =
            Token { expires: Some(now), ..Token::unlimited("one", TokenHash::of(&token)) };
        let tokens = Tokens::new([expiring]);
        assert!(matches!(tokens.find(&token, now), Found::Expired(_)));
        let before = now - jiff::SignedDuration::from_secs(1);
        assert!(matches!(tokens.find(&token, before), Found::Valid(_)));
    }

    #[test]
    fn what_is_no_sha_256_is_refused() {
        let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        assert_eq!(TokenHash::of("test").to_string(), hash);
        assert_eq!(hash.to_uppercase().parse(), Ok(TokenHash::of("test")));
        for text in ["", "9f86", &hash[1..], &format!("{hash}0"), &hash.replace('9', "g")] {
            assert_eq!(text.parse::<TokenHash>(), Err(InvalidHash), "{text}");
        }
    }

    #[test]
    fn patterns_are_names_or_beginnings() {
        let mut token = Token::unlimited("one", TokenHash::of(""));
        token.types = vec!["issues.*".to_owned(), "push".to_owned()];
        for (kind, may) in
            [("issues.opened", true), ("push", true), ("pushed", false), ("issue", false)]
        {
            assert_eq!(token.may_publish_type(kind), may, "{kind}");
        }
        assert!(token.may_publish_source("/anything"));
    }
}
