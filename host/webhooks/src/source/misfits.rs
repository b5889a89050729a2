//! What does not fit together in a source's settings.

use std::collections::BTreeMap;

use event_host_core::event::{Event, ExtensionValue, quoted};
use jiff::Timestamp;

use super::{Hmac, MOST_SECRETS, Misfit, Parts};
use crate::place::Place;
use crate::preset::Preset;
use crate::signature::moment;

/// What does not fit together, but for attributes that are missing.
pub(super) fn misfits(parts: &Parts) -> Vec<Misfit> {
    let preset = parts.preset;
    let mut misfits = Vec::new();
    let mut misfit = |key, why: String| misfits.push(Misfit { key, why });
    if preset.takes_secrets() && parts.secrets.is_empty() {
        misfit(
            "secrets",
            format!(
                "`secrets` is missing: `verify = \"{preset}\"` needs what the provider signs with, such as `secrets = [\"${{SECRET}}\"]`"
            ),
        );
    }
    if !preset.takes_secrets() && !parts.secrets.is_empty() {
        let why = match preset {
            Preset::Token => "its tokens are those of [tokens.NAME]",
            _ => "nothing is verified",
        };
        misfit("secrets", format!("`secrets` does not go with `verify = \"{preset}\"`: {why}"));
    }
    if parts.secrets.len() > MOST_SECRETS {
        misfit(
            "secrets",
            format!("`secrets` holds {}: keep {MOST_SECRETS} at most", parts.secrets.len()),
        );
    }
    match (&parts.hmac, preset) {
        (None, Preset::Hmac) => misfit(
            "header",
            "`header` is missing: `verify = \"hmac\"` needs the name of the header with the signature, such as `header = \"x-signature\"`".to_owned(),
        ),
        (Some(_), other) if other != Preset::Hmac => misfit(
            "header",
            format!("`header` goes with `verify = \"hmac\"`: `{other}` knows its own"),
        ),
        (Some(hmac), _) => hmac_misfits(hmac, &mut misfit),
        (None, _) => {}
    }
    if parts.ping && preset != Preset::GitHub {
        misfit(
            "ping",
            format!("`ping` is what GitHub sends, and `{preset}` has none: leave it out"),
        );
    }
    let attributes = [
        ("type", &parts.event_type),
        ("id", &parts.id),
        ("source", &parts.source),
        ("subject", &parts.subject),
        ("time", &parts.time),
        ("partitionkey", &parts.partitionkey),
    ];
    let attributes = attributes.into_iter().filter_map(|(key, said)| Some((key, said.as_ref()?)));
    let extensions = parts.extensions.values().map(|template| ("extensions", template));
    for (key, template) in attributes.clone().chain(extensions) {
        if template.places().any(|place| *place == Place::Body) {
            misfit(
                key,
                format!(
                    "`{key}` holds `{{body}}`, which is the event's data already: there are `{{header:NAME}}`, `{{json:/pointer}}`, `{{query:NAME}}` and `{{body:sha256}}`"
                ),
            );
        }
    }
    if parts.id.as_ref().is_some_and(|id| id.literal().is_some()) {
        misfit(
            "id",
            "`id` is the same for each request, so each but the first would be a duplicate: make it of the request, such as `id = \"{body:sha256}\"`".to_owned(),
        );
    }
    for (key, template) in attributes {
        let Some(text) = template.literal() else { continue };
        let mut event = Event::new("1", "/", "t", Timestamp::UNIX_EPOCH);
        match key {
            "type" => event.event_type = text.to_owned(),
            "source" => event.source = text.to_owned(),
            "subject" => event.subject = Some(text.to_owned()),
            "partitionkey" => event.partitionkey = Some(text.to_owned()),
            "time" if moment(text).is_none() => {
                misfit(key, format!("`time` is {}, which is no time", quoted(text)));
            }
            _ => {}
        }
        if let Err(why) = event.check() {
            misfit(key, why.to_string());
        }
    }
    for name in parts.extensions.keys() {
        let value = ExtensionValue::Text("x".to_owned());
        let event = Event {
            extensions: BTreeMap::from([(name.clone(), value)]),
            ..Event::new("1", "/", "t", Timestamp::UNIX_EPOCH)
        };
        if let Err(why) = event.check() {
            misfit("extensions", format!("`extensions`: {why}"));
        }
    }
    misfits
}

fn hmac_misfits(hmac: &Hmac, misfit: &mut impl FnMut(&'static str, String)) {
    let outside_of_body = |place: &Place| match place {
        Place::Json(_) | Place::BodySha256 => Some(place.to_string()),
        Place::Header(_) | Place::Query(_) | Place::Body => None,
    };
    if let Some(place) = hmac.signed.places().find_map(outside_of_body) {
        misfit(
            "signed",
            format!(
                "`signed` holds `{{{place}}}`, and nothing of a body is looked into before it is verified: there are `{{body}}`, `{{header:NAME}}` and `{{query:NAME}}`"
            ),
        );
    }
    if !hmac.signed.always_holds(&Place::Body) {
        misfit(
            "signed",
            "`signed` does not hold `{body}`, so that the signature says nothing of the body: write one such as `signed = \"{header:x-timestamp}.{body}\"`".to_owned(),
        );
    }
    let Some(timestamp) = &hmac.timestamp else { return };
    let places: Vec<_> = timestamp.places().collect();
    match places.as_slice() {
        [place @ (Place::Header(_) | Place::Query(_))] if timestamp.always_holds(place) => {
            if !hmac.signed.always_holds(place) {
                misfit(
                    "timestamp",
                    format!(
                        "`timestamp` is `{timestamp}`, which `signed` does not hold: whoever captures a request could send it again with another time, so sign it or leave it out"
                    ),
                );
            }
        }
        _ => misfit(
            "timestamp",
            format!(
                "`timestamp` is {}: it is one header or parameter, such as `{{header:x-timestamp}}`",
                quoted(&timestamp.to_string())
            ),
        ),
    }
}
