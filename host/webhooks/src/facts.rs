//! What a request holds, for templates.

use std::borrow::Cow;
use std::cell::OnceCell;

use event_host_core::event::quoted;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use percent_encoding::percent_decode_str;
use ring::digest;

use crate::encoding::to_hex;
use crate::place::Place;
use crate::pointers::{Found, Values};
use crate::request::{Request, Twice, one_header};

/// Why a template makes nothing of a request, as what follows the attribute's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unusable(pub(crate) String);

/// What a request holds. The JSON of the body is looked into only once the request is known to
/// be its sender's.
pub(crate) struct Facts<'a> {
    request: Request<'a>,
    json: Values,
    body_sha256: OnceCell<String>,
}

impl<'a> Facts<'a> {
    /// Of a request whose body nobody has looked into.
    pub(crate) fn unread(request: Request<'a>) -> Self {
        Self { request, json: Values::new(), body_sha256: OnceCell::new() }
    }

    /// The same, with what was found in the body.
    pub(crate) fn with_json(self, json: Values) -> Self {
        Self { json, ..self }
    }

    pub(crate) fn body(&self) -> &'a [u8] {
        self.request.body
    }

    /// What is at a place. Empty text counts as nothing, because no attribute can be empty.
    pub(crate) fn value(&self, place: &Place) -> Result<Option<Cow<'_, str>>, Unusable> {
        let value = match place {
            Place::Header(name) => match one_header(self.request.headers, name) {
                Ok(None) => None,
                Ok(Some(value)) => match std::str::from_utf8(value) {
                    Ok(value) => Some(Cow::Borrowed(value)),
                    Err(_) => {
                        return Err(Unusable(format!("the header `{name}` is not UTF-8")));
                    }
                },
                Err(Twice) => {
                    return Err(Unusable(format!(
                        "the header `{name}` is there twice: send it once"
                    )));
                }
            },
            Place::Query(name) => self.query(name)?.map(Cow::Owned),
            Place::Json(pointer) => match self.json.get(pointer) {
                None => None,
                Some(Found::Text(text) | Found::Literal(text)) => Some(Cow::Borrowed(&**text)),
                Some(composite) => {
                    let what = if *composite == Found::Object { "an object" } else { "an array" };
                    return Err(Unusable(format!(
                        "the body has {what} at `{pointer}`, of which no text can be made"
                    )));
                }
            },
            Place::BodySha256 => {
                let hash = || to_hex(digest::digest(&digest::SHA256, self.request.body).as_ref());
                Some(Cow::Borrowed(&**self.body_sha256.get_or_init(hash)))
            }
            Place::Body => std::str::from_utf8(self.request.body).ok().map(Cow::Borrowed),
        };
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// The one parameter of this name, decoded.
    fn query(&self, name: &str) -> Result<Option<String>, Unusable> {
        let decoded = |text: &str| {
            percent_decode_str(&text.replace('+', " ")).decode_utf8().map(Cow::into_owned).ok()
        };
        let mut found = None;
        for pair in self.request.query.unwrap_or_default().split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if decoded(key).as_deref() != Some(name) {
                continue;
            }
            let Some(value) = decoded(value) else {
                return Err(Unusable(format!("the parameter {} is not UTF-8", quoted(name))));
            };
            if found.replace(value).is_some() {
                return Err(Unusable(format!(
                    "the parameter {} is there twice: send it once",
                    quoted(name)
                )));
            }
        }
        Ok(found)
    }

    /// What is said where none of these places has anything.
    pub(crate) fn lacks(&self, places: &[Place]) -> Unusable {
        let missing = places.iter().map(|place| match place {
            Place::Header(name) => format!("no header `{name}`"),
            Place::Query(name) => format!("no parameter {} in its address", quoted(name)),
            Place::Json(pointer) => {
                let form = is_form(self.request.headers);
                let hint = if form {
                    " (it is a form: choose the content type application/json at the provider)"
                } else {
                    ""
                };
                format!("nothing at {} in its body{hint}", quoted(&pointer.to_string()))
            }
            Place::BodySha256 | Place::Body => "no body".to_owned(),
        });
        let missing: Vec<_> = missing.collect();
        Unusable(format!("the request has {}", missing.join(" and ")))
    }
}

/// Whether the body says of itself that it is a form.
pub(crate) fn is_form(headers: &HeaderMap) -> bool {
    let content_type = one_header(headers, CONTENT_TYPE).ok().flatten().unwrap_or_default();
    content_type.to_ascii_lowercase().starts_with(b"application/x-www-form-urlencoded")
}
