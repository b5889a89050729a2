//! The event that a request becomes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use event_host_core::event::{Event, ExtensionValue, quoted};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use serde::de::IgnoredAny;

use super::Source;
use crate::facts::{Facts, Unusable};
use crate::refusal::Refusal;
use crate::request::{Request, Twice, one_header};
use crate::signature::moment;
use crate::template::{Template, as_it_stands};

impl Source {
    pub(super) fn event(
        &self,
        facts: &Facts<'_>,
        request: Request<'_>,
        now: Timestamp,
    ) -> Result<Event, Refusal> {
        let optional = |key, template: &Option<Template>| -> Result<Option<String>, Refusal> {
            let text =
                template.as_ref().map(|template| render(key, template, facts)).transpose()?;
            Ok(text.filter(|text| !text.is_empty()))
        };
        let source = self.source.render(facts, in_uri).map_err(|why| unusable("source", &why))?;
        let time = match optional("time", &self.time)? {
            None => now,
            Some(text) => moment(&text).ok_or_else(|| {
                Refusal::Invalid(format!(
                    "`time` would be {}, which is no time: it is one of RFC 3339, or the seconds or milliseconds since 1970",
                    quoted(&text)
                ))
            })?,
        };
        let (datacontenttype, data) = data(request)?;
        let mut extensions = BTreeMap::new();
        for (name, template) in &self.extensions {
            let text = render(name, template, facts)?;
            if !text.is_empty() {
                extensions.insert(name.clone(), ExtensionValue::Text(text));
            }
        }
        let event = Event {
            subject: optional("subject", &self.subject)?,
            partitionkey: optional("partitionkey", &self.partitionkey)?,
            datacontenttype,
            data,
            extensions,
            ..Event::new(
                render("id", &self.id, facts)?,
                source,
                render("type", &self.event_type, facts)?,
                // What stores keep.
                Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time),
            )
        };
        event.check().map_err(Refusal::Event)?;
        Ok(event)
    }
}

pub(super) fn render(key: &str, template: &Template, facts: &Facts<'_>) -> Result<String, Refusal> {
    template.render(facts, as_it_stands).map_err(|why| unusable(key, &why))
}

fn unusable(key: &str, why: &Unusable) -> Refusal {
    Refusal::Invalid(format!("`{key}` cannot be made: {}", why.0))
}

/// What comes from a request, as it may stand in a URI.
fn in_uri(text: &str) -> Cow<'_, str> {
    let stays = |at: usize, b: u8| match b {
        b'%' => text
            .as_bytes()
            .get(at + 1..at + 3)
            .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)),
        _ => b.is_ascii_alphanumeric() || b"-._~:/?@!$&'()*+,;=".contains(&b),
    };
    if text.bytes().enumerate().all(|(at, b)| stays(at, b)) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for (at, b) in text.bytes().enumerate() {
        if stays(at, b) {
            encoded.push(char::from(b));
        } else {
            encoded.push('%');
            encoded.push_str(&crate::encoding::to_hex(&[b]).to_ascii_uppercase());
        }
    }
    Cow::Owned(encoded)
}

/// The event's data, and what it is.
fn data(request: Request<'_>) -> Result<(Option<String>, Option<Vec<u8>>), Refusal> {
    if request.body.is_empty() {
        return Ok((None, None));
    }
    let content_type = content_type(request.headers)?;
    // No type means JSON.
    if content_type.is_none()
        && let Err(error) = serde_json::from_slice::<IgnoredAny>(request.body)
    {
        return Err(Refusal::Invalid(format!(
            "the request has no `content-type`, which means JSON, and its body is none ({error}): send the header"
        )));
    }
    Ok((content_type, Some(request.body.to_vec())))
}

fn content_type(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let value = one_header(headers, CONTENT_TYPE).map_err(|Twice| {
        Refusal::Invalid("the header `content-type` is there twice: send it once".to_owned())
    })?;
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    match std::str::from_utf8(value) {
        Ok(value) => Ok(Some(value.to_owned())),
        Err(_) => Err(Refusal::Invalid("the header `content-type` is not UTF-8".to_owned())),
    }
}
