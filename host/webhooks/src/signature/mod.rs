//! Who sent a request: its signature, over the raw bytes.
//!
//! Every secret is tried against every signature, and neither which of them fits nor where two
//! differ shows in the time it takes.

mod standard;
mod stripe;

use http::{HeaderMap, HeaderName};
use jiff::{SignedDuration, Timestamp};
use ring::{digest, hmac};
use subtle::ConstantTimeEq as _;

use crate::encoding::Encoding;
use crate::facts::Facts;
use crate::refusal::Refusal;
use crate::request::{Request, Twice, one_header};
use crate::secret::{Kind, Secret};
use crate::template::{Template, as_it_stands};

/// The hash function of an HMAC. There is no SHA-1: what is signed with it can be forged before
/// long, and every provider has another by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC-SHA-256.
    Sha256,
    /// HMAC-SHA-512.
    Sha512,
}

impl Algorithm {
    /// What settings call them.
    pub const NAMES: [(&'static str, Self); 2] =
        [("sha256", Self::Sha256), ("sha512", Self::Sha512)];

    fn of_ring(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }
}

/// The most signatures of one request that are looked at.
const MOST_SIGNATURES: usize = 16;

/// How a sender proves who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// One signature in a header of its own.
    Keyed(Keyed),
    /// Stripe's header with a time and signatures.
    Stripe,
    /// Standard Webhooks.
    Standard,
    /// The secret itself, in this header.
    Shared(HeaderName),
    /// A token, which the caller has checked.
    Token,
    /// Nothing.
    Unverified,
}

/// One signature in a header of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keyed {
    pub(crate) header: HeaderName,
    /// What stands before the signature.
    pub(crate) prefix: String,
    pub(crate) encoding: Encoding,
    pub(crate) algorithm: Algorithm,
    pub(crate) signed: Template,
    /// When it was signed, where that is told.
    pub(crate) timestamp: Option<Template>,
}

/// What a signature is verified with.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) secrets: &'a [Secret],
    /// How far from now the time of a signature may be.
    pub(crate) tolerance: SignedDuration,
    pub(crate) now: Timestamp,
}

impl Scheme {
    /// Whether it says when it was signed.
    pub(crate) fn has_timestamp(&self) -> bool {
        match self {
            Self::Keyed(keyed) => keyed.timestamp.is_some(),
            Self::Stripe | Self::Standard => true,
            Self::Shared(_) | Self::Token | Self::Unverified => false,
        }
    }

    /// Verifies a request.
    pub(crate) fn verify(
        &self,
        check: Check<'_>,
        request: Request<'_>,
        facts: &Facts<'_>,
    ) -> Result<(), Refusal> {
        match self {
            Self::Keyed(keyed) => keyed.verify(check, request, facts),
            Self::Stripe => stripe::verify(check, request),
            Self::Standard => standard::verify(check, request),
            Self::Shared(header) => {
                let given = required(request.headers, header)?;
                // Hashes, so that the length of the secret does not show either.
                let hash = |bytes: &[u8]| digest::digest(&digest::SHA256, bytes);
                let given = hash(given);
                let fits = any(check
                    .secrets
                    .iter()
                    .map(|secret| hash(&secret.bytes).as_ref().ct_eq(given.as_ref()).into()));
                if fits { Ok(()) } else { Err(wrong(header)) }
            }
            Self::Token if request.token.is_none() => Err(Refusal::Token),
            Self::Token | Self::Unverified => Ok(()),
        }
    }

    /// Adds to a request what its sender would: the headers of the signature, made with the
    /// first secret that can sign. What is there already stays and is signed.
    pub(crate) fn sign(
        &self,
        check: Check<'_>,
        request: Request<'_>,
    ) -> Result<Vec<(HeaderName, String)>, String> {
        let secret = check.secrets.iter().find(|secret| secret.kind == Kind::Shared);
        let secret = secret.ok_or_else(|| {
            "a public key verifies and cannot sign: only the sender has the private one".to_owned()
        });
        match self {
            Self::Keyed(keyed) => keyed.sign(secret?, check.now, request),
            Self::Stripe => Ok(stripe::sign(secret?, check.now, request)),
            Self::Standard => standard::sign(secret?, check.now, request),
            Self::Shared(header) => {
                let text = String::from_utf8_lossy(&secret?.bytes).into_owned();
                Ok(vec![(header.clone(), text)])
            }
            Self::Token => Err(
                "its requests show a token instead of a signature: add `Authorization: Bearer TOKEN`"
                    .to_owned(),
            ),
            Self::Unverified => Ok(Vec::new()),
        }
    }
}

impl Keyed {
    fn verify(
        &self,
        check: Check<'_>,
        request: Request<'_>,
        facts: &Facts<'_>,
    ) -> Result<(), Refusal> {
        let header = &self.header;
        let given = required(request.headers, header)?;
        let signature = given
            .strip_prefix(self.prefix.as_bytes())
            .and_then(|signature| self.encoding.decode(signature))
            .ok_or_else(|| self.malformed())?;
        let mut fits = Vec::with_capacity(check.secrets.len());
        for secret in check.secrets {
            let key = hmac::Key::new(self.algorithm.of_ring(), &secret.bytes);
            let mut context = hmac::Context::with_key(&key);
            // A part of what is signed that is not there makes the signature a wrong one.
            self.signed.feed(facts, |bytes| context.update(bytes)).map_err(|why| {
                Refusal::Signature(format!("what is signed is not there: {}", why.0))
            })?;
            fits.push(context.sign().as_ref().ct_eq(&signature).into());
        }
        if !any(fits.into_iter()) {
            return Err(wrong(header));
        }
        let Some(timestamp) = &self.timestamp else { return Ok(()) };
        let signed_at = timestamp.render(facts, as_it_stands).map_err(|why| {
            Refusal::Signature(format!("the time of the signature is not there: {}", why.0))
        })?;
        let signed_at = moment(&signed_at).ok_or_else(|| no_time(&timestamp.to_string()))?;
        fresh(signed_at, check)
    }

    fn malformed(&self) -> Refusal {
        let how = match self.encoding {
            Encoding::Hex => "hex digits",
            Encoding::Base64 => "base64",
        };
        let prefix = match &*self.prefix {
            "" => String::new(),
            prefix => format!("`{prefix}` and "),
        };
        Refusal::Signature(format!(
            "the header `{}` holds no signature: it is {prefix}{how}",
            self.header
        ))
    }

    fn sign(
        &self,
        secret: &Secret,
        now: Timestamp,
        request: Request<'_>,
    ) -> Result<Vec<(HeaderName, String)>, String> {
        let mut added = Vec::new();
        let mut headers = request.headers.clone();
        let time_header = self.timestamp.as_ref().and_then(Template::only_header);
        if let Some(name) = time_header.filter(|name| !headers.contains_key(*name)) {
            let seconds = now.as_second();
            headers.insert(name.clone(), seconds.into());
            added.push((name.clone(), seconds.to_string()));
        }
        let facts = Facts::unread(Request { headers: &headers, ..request });
        let key = hmac::Key::new(self.algorithm.of_ring(), &secret.bytes);
        let mut context = hmac::Context::with_key(&key);
        self.signed.feed(&facts, |bytes| context.update(bytes)).map_err(|why| why.0)?;
        let signature = self.encoding.encode(context.sign().as_ref());
        added.push((self.header.clone(), format!("{}{signature}", self.prefix)));
        Ok(added)
    }
}

/// Whether one of them is true; all of them are computed.
fn any(fits: impl Iterator<Item = bool>) -> bool {
    fits.fold(false, |any, fits| any | fits)
}

/// Computes the HMAC-SHA-256 of the parts, one after the other, under each secret, and whether
/// one of them is one of the signatures.
fn any_fits(secrets: &[Secret], parts: &[&[u8]], signatures: &[Vec<u8>]) -> bool {
    any(secrets.iter().filter(|secret| secret.kind == Kind::Shared).map(|secret| {
        let tag = tag(secret, parts);
        any(signatures.iter().map(|signature| tag.as_ref().ct_eq(signature).into()))
    }))
}

fn tag(secret: &Secret, parts: &[&[u8]]) -> hmac::Tag {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret.bytes);
    let mut context = hmac::Context::with_key(&key);
    parts.iter().for_each(|part| context.update(part));
    context.sign()
}

/// A header that must be there, once.
fn required<'r>(headers: &'r HeaderMap, name: &HeaderName) -> Result<&'r [u8], Refusal> {
    match one_header(headers, name) {
        Ok(Some(value)) if !value.is_empty() => Ok(value),
        Ok(_) => Err(Refusal::Signature(format!(
            "the header `{name}` is missing, which proves who sent the request: set the secret at the provider"
        ))),
        Err(Twice) => {
            Err(Refusal::Signature(format!("the header `{name}` is there twice: send it once")))
        }
    }
}

fn wrong(header: &HeaderName) -> Refusal {
    Refusal::Signature(format!(
        "what the header `{header}` holds does not fit the request and any of the secrets: compare the secret at the provider with that of this source, and send the body as it was signed"
    ))
}

fn no_time(place: &str) -> Refusal {
    Refusal::Signature(format!("`{place}` holds no time: it is the seconds since 1970"))
}

/// The seconds since 1970, and nothing else.
fn unix_seconds(text: &[u8]) -> Option<Timestamp> {
    let digits = std::str::from_utf8(text).ok()?;
    let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    Timestamp::from_second(digits.parse().ok().filter(|_| all_digits)?).ok()
}

/// From here on a number of seconds since 1970 is one of milliseconds: the year 5138 in the
/// one, 1973 in the other.
const MILLISECONDS: i64 = 100_000_000_000;

/// A time as providers write them: seconds or milliseconds since 1970, or RFC 3339.
pub(crate) fn moment(text: &str) -> Option<Timestamp> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        let number: i64 = text.parse().ok()?;
        return match number {
            MILLISECONDS.. => Timestamp::from_millisecond(number).ok(),
            _ => Timestamp::from_second(number).ok(),
        };
    }
    text.parse().ok()
}

/// Whether something was signed near enough to now.
fn fresh(signed_at: Timestamp, check: Check<'_>) -> Result<(), Refusal> {
    let age = check.now.duration_since(signed_at);
    if age.abs() <= check.tolerance {
        return Ok(());
    }
    let (seconds, which) = match age.is_negative() {
        true => (age.abs().as_secs(), "after"),
        false => (age.as_secs(), "before"),
    };
    Err(Refusal::Stale(format!(
        "the request was signed at {signed_at}, {seconds} s {which} now, and {} s are allowed: sign it anew each time it is sent, and compare the clocks",
        check.tolerance.as_secs()
    )))
}
