//! Binary mode: each attribute is a header, and the body is the data.

use http::header::HeaderMap;
use serde::de::IgnoredAny;

use event_host_core::event::json::spec_version;
use event_host_core::event::time::{parse_time, to_microseconds};
use event_host_core::event::{DELIVER_AFTER, Event, ExtensionValue, quoted};
use jiff::Timestamp;

use super::PREFIX;
use super::header_value::decode;
use crate::refusal::{Reason, Refusal};

/// The attributes that were sent, by their names.
struct Attributes(std::collections::BTreeMap<String, String>);

pub(super) fn event(
    headers: &HeaderMap,
    content_type: Option<&str>,
    body: Vec<u8>,
) -> Result<Event, Refusal> {
    let invalid = |error| Refusal::invalid(&error);
    let mut attributes = Attributes::read(headers)?;
    if attributes.take("datacontenttype").is_some() {
        return Err(wrong(
            "datacontenttype",
            "is not sent as a header of its own: `Content-Type` is that attribute",
        ));
    }
    spec_version(&attributes.required("specversion", "1.0")?).map_err(invalid)?;
    let time = attributes.take("time").map(|text| parse_time("time", &text)).transpose();
    let deliver_after = attributes.take(DELIVER_AFTER);
    let deliver_after = deliver_after.map(|text| parse_time(DELIVER_AFTER, &text)).transpose();
    if content_type.is_none()
        && !body.is_empty()
        && serde_json::from_slice::<IgnoredAny>(&body).is_err()
    {
        return Err(Refusal::new(
            Reason::InvalidEvent,
            "the data are no JSON, and without `Content-Type` they must be: send it",
        )
        .attribute("datacontenttype"));
    }
    let event = Event {
        id: attributes.required("id", "order-1842-paid")?,
        source: attributes.required("source", "/orders")?,
        event_type: attributes.required("type", "order.paid")?,
        subject: attributes.take("subject"),
        time: time.map_err(invalid)?.unwrap_or_else(|| to_microseconds(Timestamp::now())),
        datacontenttype: content_type.map(str::to_owned),
        dataschema: attributes.take("dataschema"),
        partitionkey: attributes.take("partitionkey"),
        deliver_after: deliver_after.map_err(invalid)?,
        // Headers carry no types.
        extensions: attributes
            .0
            .into_iter()
            .map(|(name, value)| (name, ExtensionValue::Text(value)))
            .collect(),
        data: (!body.is_empty()).then_some(body),
    };
    event.check().map_err(invalid)?;
    Ok(event)
}

impl Attributes {
    fn read(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut attributes = std::collections::BTreeMap::new();
        for header in headers.keys() {
            let Some(name) = header.as_str().strip_prefix(PREFIX) else { continue };
            if name.is_empty()
                || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            {
                return Err(Refusal::new(
                    Reason::InvalidEvent,
                    format!(
                        "header {} names no attribute: after `ce-` use only letters a to z and digits",
                        quoted(header.as_str())
                    ),
                )
                .attribute(name));
            }
            let mut values = headers.get_all(header).iter();
            let value = values.next().map(|value| value.as_bytes()).unwrap_or_default();
            if values.next().is_some() {
                return Err(wrong(name, "is there twice: send it once"));
            }
            let value = decode(value).map_err(|broken| wrong(name, broken.told()))?;
            attributes.insert(name.to_owned(), value);
        }
        Ok(Self(attributes))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn required(&mut self, name: &str, example: &str) -> Result<String, Refusal> {
        self.take(name).ok_or_else(|| {
            wrong(name, &format!("is missing: every event has one, such as `{example}`"))
        })
    }
}

/// Something is wrong with the header of an attribute.
fn wrong(name: &str, problem: &str) -> Refusal {
    Refusal::new(
        Reason::InvalidEvent,
        format!("header {} {problem}", quoted(&format!("{PREFIX}{name}"))),
    )
    .attribute(name)
}
