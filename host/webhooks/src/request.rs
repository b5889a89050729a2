//! A request as it came.

use http::header::AsHeaderName;
use http::{HeaderMap, HeaderValue};

/// A request, before anything is known of it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What follows the `?` of its address.
    pub query: Option<&'a str>,
    /// Its body, as it was sent.
    pub body: &'a [u8],
    /// The name of the token that the sender has shown, which the caller has checked already.
    /// A source of the preset `token` takes no request without one.
    pub token: Option<&'a str>,
}

/// A header that is there twice, of which none can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Twice;

/// The one value of a header, without the blanks around it.
pub(crate) fn one_header(
    headers: &HeaderMap,
    name: impl AsHeaderName,
) -> Result<Option<&[u8]>, Twice> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::as_bytes).map(<[u8]>::trim_ascii);
    if values.next().is_some() { Err(Twice) } else { Ok(first) }
}
