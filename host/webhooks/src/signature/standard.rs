//! Standard Webhooks 1.0.0: id, time and body are signed together. A header has several
//! signatures with a space between them, `v1,` for HMAC-SHA-256 and `v1a,` for Ed25519. Svix,
//! where the specification comes from, has the same under names of its own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use ring::signature::{ED25519, UnparsedPublicKey};

use super::{
    Check, MOST_SIGNATURES, any, any_fits, fresh, no_time, required, tag, unix_seconds, wrong,
};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::secret::{Kind, Secret};

/// The names of the three headers.
struct Names {
    id: HeaderName,
    timestamp: HeaderName,
    signature: HeaderName,
}

const STANDARD_NAMES: Names = Names {
    id: HeaderName::from_static("webhook-id"),
    timestamp: HeaderName::from_static("webhook-timestamp"),
    signature: HeaderName::from_static("webhook-signature"),
};

const SVIX_NAMES: Names = Names {
    id: HeaderName::from_static("svix-id"),
    timestamp: HeaderName::from_static("svix-timestamp"),
    signature: HeaderName::from_static("svix-signature"),
};

/// The names that a request uses. Who sends both kinds is judged by the standard's own.
fn names(headers: &HeaderMap) -> Names {
    let standard = [&STANDARD_NAMES.id, &STANDARD_NAMES.signature];
    let svix = !standard.iter().any(|name| headers.contains_key(*name))
        && headers.contains_key(&SVIX_NAMES.signature);
    if svix { SVIX_NAMES } else { STANDARD_NAMES }
}

pub(super) fn verify(check: Check<'_>, request: Request<'_>) -> Result<(), Refusal> {
    let names = names(request.headers);
    let id = required(request.headers, &names.id)?;
    let time = required(request.headers, &names.timestamp)?;
    let header = required(request.headers, &names.signature)?;
    let mut with_hmac = Vec::new();
    let mut with_ed25519 = Vec::new();
    for item in header.split(|b| *b == b' ').take(MOST_SIGNATURES) {
        if let Some(signature) = item.strip_prefix(b"v1,") {
            with_hmac.extend(STANDARD.decode(signature).ok());
        } else if let Some(signature) = item.strip_prefix(b"v1a,") {
            with_ed25519.extend(STANDARD.decode(signature).ok());
        }
    }
    if with_hmac.is_empty() && with_ed25519.is_empty() {
        return Err(Refusal::Signature(format!(
            "the header `{}` holds no signature: it is `v1,` or `v1a,` with base64, and a space between several",
            names.signature
        )));
    }
    let parts = [id, b".", time, b".", request.body];
    let keyed = any_fits(check.secrets, &parts, &with_hmac);
    let keys = check.secrets.iter().filter(|secret| secret.kind == Kind::Ed25519);
    let signed = !with_ed25519.is_empty() && {
        // Ed25519 needs what is signed in one piece.
        let message = parts.concat();
        any(keys.map(|key| {
            let key = UnparsedPublicKey::new(&ED25519, &key.bytes);
            any(with_ed25519.iter().map(|signature| key.verify(&message, signature).is_ok()))
        }))
    };
    if !(keyed | signed) {
        return Err(wrong(&names.signature));
    }
    fresh(unix_seconds(time).ok_or_else(|| no_time(names.timestamp.as_str()))?, check)
}

pub(super) fn sign(
    secret: &Secret,
    now: Timestamp,
    request: Request<'_>,
) -> Result<Vec<(HeaderName, String)>, String> {
    let Names { id: id_name, timestamp, signature } = names(request.headers);
    let mut added = Vec::new();
    let id = match request.headers.get(&id_name) {
        Some(id) => id.to_str().map_err(|_| format!("`{id_name}` is not ASCII"))?.to_owned(),
        None => {
            let id = format!("msg_{}", uuid::Uuid::new_v4().simple());
            added.push((id_name, id.clone()));
            id
        }
    };
    let time = match request.headers.get(&timestamp) {
        Some(time) => time.to_str().map_err(|_| format!("`{timestamp}` is not ASCII"))?.to_owned(),
        None => {
            let time = now.as_second().to_string();
            added.push((timestamp, time.clone()));
            time
        }
    };
    let tag = tag(secret, &[id.as_bytes(), b".", time.as_bytes(), b".", request.body]);
    added.push((signature, format!("v1,{}", STANDARD.encode(tag.as_ref()))));
    Ok(added)
}
