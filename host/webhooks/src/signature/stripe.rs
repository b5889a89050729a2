//! Stripe's header: `t=1492774577,v1=5257a8…,v0=6ffbb5…`, with a signature for each secret
//! that is valid at present. Schemes other than `v1` are for tests, and count for nothing.

use http::HeaderName;
use jiff::Timestamp;

use super::{Check, MOST_SIGNATURES, any_fits, fresh, no_time, required, tag, unix_seconds, wrong};
use crate::encoding::{from_hex, to_hex};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::secret::Secret;

const HEADER: HeaderName = HeaderName::from_static("stripe-signature");

pub(super) fn verify(check: Check<'_>, request: Request<'_>) -> Result<(), Refusal> {
    let header = required(request.headers, &HEADER)?;
    let mut time: Option<&[u8]> = None;
    let mut signatures = Vec::new();
    for item in header.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
        if let Some(value) = item.strip_prefix(b"t=") {
            if time.replace(value).is_some() {
                return Err(Refusal::Signature(format!(
                    "the header `{HEADER}` has two times: it has one `t=`"
                )));
            }
        } else if let Some(value) = item.strip_prefix(b"v1=")
            && signatures.len() < MOST_SIGNATURES
        {
            signatures.extend(from_hex(value));
        }
    }
    let (Some(time), false) = (time, signatures.is_empty()) else {
        return Err(Refusal::Signature(format!(
            "the header `{HEADER}` holds no signature: it is `t=`, the seconds since 1970, and `,v1=` with hex digits"
        )));
    };
    if !any_fits(check.secrets, &[time, b".", request.body], &signatures) {
        return Err(wrong(&HEADER));
    }
    fresh(unix_seconds(time).ok_or_else(|| no_time("t"))?, check)
}

pub(super) fn sign(
    secret: &Secret,
    now: Timestamp,
    request: Request<'_>,
) -> Vec<(HeaderName, String)> {
    let time = now.as_second().to_string();
    let tag = tag(secret, &[time.as_bytes(), b".", request.body]);
    vec![(HEADER, format!("t={time},v1={}", to_hex(tag.as_ref())))]
}
