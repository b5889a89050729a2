//! Resources of HTTP that are made, filled and never let go.

use crate::bindings::wasi::http::types::{Fields, Method, OutgoingRequest, Scheme};

/// Which part of a request is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its method.
    Method,
    /// Its path.
    Path,
    /// Its host and port.
    Authority,
    /// Its scheme.
    Scheme,
    /// Header fields, without a request.
    Fields,
    /// Its header fields.
    Headers,
    /// Its body, of which the host takes what has room.
    Body,
}

/// Keeps `count` resources with a part of so many bytes each.
///
/// # Errors
/// When the host refuses such a part.
pub fn hoard(part: Part, count: u64, bytes: usize) -> Result<(), String> {
    let text = "x".repeat(bytes);
    let headers = |value: &str| {
        Fields::from_list(&[("x-hoard".to_owned(), value.as_bytes().to_vec())])
            .map_err(|error| format!("the fields are refused: {error:?}"))
    };
    let path = format!("/{text}");
    for _ in 0..count {
        if part == Part::Fields {
            std::mem::forget(headers(&text)?);
            continue;
        }
        let value = if part == Part::Headers { text.as_str() } else { "" };
        let request = OutgoingRequest::new(headers(value)?);
        let taken = match part {
            Part::Method => request.set_method(&Method::Other(text.clone())),
            Part::Path => request.set_path_with_query(Some(&path)),
            Part::Authority => request.set_authority(Some(&text)),
            Part::Scheme => request.set_scheme(Some(&Scheme::Other(text.clone()))),
            Part::Fields | Part::Headers | Part::Body => Ok(()),
        };
        taken.map_err(|()| format!("the {part:?} is refused"))?;
        if part == Part::Body {
            let body = request.body().map_err(|()| "there is a body already")?;
            let stream = body.write().map_err(|()| "the body is being written already")?;
            // Another piece would wait for somebody who takes this one.
            stream
                .blocking_write_and_flush(&text.as_bytes()[..bytes.min(4096)])
                .map_err(|error| format!("the body is refused: {error:?}"))?;
            std::mem::forget((body, stream));
        }
        std::mem::forget(request);
    }
    Ok(())
}
