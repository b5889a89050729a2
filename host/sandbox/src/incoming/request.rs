//! From an event to the request that a handler of `wasi:http` gets it by.

use http::{HeaderName, HeaderValue, Request, Uri, header};

use super::binary;
use crate::call_input::CallInput;
use crate::settings::HttpPath;
use event_host_core::event::LogEvent;

/// The host that requests are for. It has no address: it stands for this program.
const AUTHORITY: &str = "event-host.internal";

/// What one header takes besides its name and its value, in bytes, in a table that is as
/// much as half empty.
const HEADER_BYTES: usize = 192;

/// The request for an event: a CloudEvent in binary mode, with what the handler may know
/// of the call besides.
///
/// # Errors
/// When it cannot be written. Every event of the log can.
pub(super) fn request(
    event: &LogEvent,
    input: &CallInput<'_>,
    path: &HttpPath,
) -> Result<Request<Vec<u8>>, http::Error> {
    let LogEvent { position, deliver_to, event, .. } = event;
    let uri = Uri::builder()
        .scheme("http")
        .authority(AUTHORITY)
        .path_and_query(path.of(&event.event_type))
        .build()?;
    let data = event.data.clone().unwrap_or_default();
    let mut headers = binary::headers(event)?;
    headers.try_insert(header::CONTENT_LENGTH, HeaderValue::from(data.len()))?;
    let facts = [
        ("eh-position", Some(position.to_string())),
        ("eh-attempt", Some(input.attempt.to_string())),
        ("eh-group", Some(input.group.to_string())),
        ("eh-tenant", (!input.tenant.is_none()).then(|| input.tenant.to_string())),
        ("eh-replay", deliver_to.is_some().then(|| true.to_string())),
        ("eh-late", input.is_late.then(|| true.to_string())),
    ];
    for (name, value) in facts {
        if let Some(value) = value {
            headers.try_insert(HeaderName::from_static(name), binary::encoded(&value)?)?;
        }
    }
    let mut request = Request::post(uri).body(data)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// What the host keeps of a request, in bytes.
pub(super) fn bytes(request: &Request<Vec<u8>>) -> usize {
    let headers = request.headers();
    let names = headers.keys().map(|name| name.as_str().len());
    let values = headers.values().map(|value| value.len() + HEADER_BYTES);
    names.sum::<usize>() + values.sum::<usize>() + request.body().len()
}
