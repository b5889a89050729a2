//! `[sources.NAME]`: who sends requests that are no CloudEvents, how they are verified, and
//! what event is made of them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use toml::de::DeValue;

use super::document::{self, Document, Entry, Text, kind};
use super::section::Section;
use super::tenants::Tenants;
use super::value::{NAME_RULE, YEAR, show_size};
use crate::nearest::nearest;
use event_host_core::event::{HandlerName, quoted};
use event_host_http::{Hook, Listener, Part};
use event_host_ingest::Settings;
use event_host_webhooks::{
    Algorithm, Encoding, Hmac, Key, Misfit, Parts, Preset, Secret, Source, Template,
};

/// How far from now the time of a signature may be at most: a day. Whoever needs more has a
/// clock that is wrong.
const TOLERANCE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(86_400);

/// Reads every source.
pub(super) fn sources<'a>(
    top: &mut Section<'a>,
    document: &'a Document<'a>,
    tenants: &Tenants<'a>,
    listeners: &[Listener],
    ingest: &Settings,
) -> Vec<Hook> {
    let exposed = listeners
        .iter()
        .find(|listener| listener.serve.contains(&Part::Ingest) && !listener.address.is_local());
    let Some(entry) = top.entry("sources") else { return Vec::new() };
    let DeValue::Table(table) = entry.value else {
        top.problem(
            entry.at,
            format!(
                "`sources` is {}, not a table of sources: write a table [sources.NAME] for each",
                kind(entry.value)
            ),
        );
        return Vec::new();
    };
    document::entries(table)
        .into_iter()
        .filter_map(|entry| source(document, entry, tenants, exposed, ingest))
        .collect()
}

/// Reads one source. `None` only after a problem.
fn source<'a>(
    document: &'a Document<'a>,
    entry: Entry<'a>,
    tenants: &Tenants<'a>,
    exposed: Option<&Listener>,
    ingest: &Settings,
) -> Option<Hook> {
    let mut section = Section::source(document, entry);
    if entry.key.parse::<HandlerName>().is_err() {
        section.problem(
            entry.at,
            format!("{} is no name for a source: {NAME_RULE}", quoted(entry.key)),
        );
    }
    let lacks_verify = section.lacks("verify");
    let preset = preset(&mut section);
    if lacks_verify {
        section.problem(
            section.at(),
            format!(
                "nothing says how requests are verified: write `verify = \"github\"`, or another of {}",
                preset_names()
            ),
        );
    }
    let tenant = tenants.named_in(&mut section, entry);
    let dedup = section.duration("dedup", Duration::ZERO..=YEAR);
    let rate = section.number("rate", 0.001..=1_000_000_000.0, "100");
    let max_body = section.size("max_body", "1KiB"..="1GiB");
    if let Some(most) = max_body.filter(|most| *most > ingest.queue) {
        let at = section.entry("max_body").map_or(section.at(), |entry| entry.at);
        section.problem(
            at,
            format!(
                "`max_body` ({}) is larger than `queue` of [ingest] ({}), which is all that requests take together: lower `max_body` or raise `queue`",
                show_size(most),
                show_size(ingest.queue)
            ),
        );
    }
    let retired = section.boolean("retired").unwrap_or(false);
    let allow_from = networks(&mut section);
    if let Some(listener) = exposed.filter(|_| allow_from.is_empty())
        && preset == Some(Preset::Unverified)
        && let Some(verify) = section.entry("verify")
        && section.entry("allow_from").is_none()
    {
        section.problem(
            verify.at,
            format!(
                "`verify = \"unverified\"` has anybody publish who reaches the listener `{}`, and other machines do: name the networks of the sender in `allow_from`, or verify its requests",
                listener.name
            ),
        );
    }
    let origins = strings(&mut section, "origins", "[\"https://sender.example.com\"]");
    let require_origin = require_origin(&mut section, &origins);
    let query_token = query_token(&mut section, preset);
    let parts = parts(&mut section, preset);
    let mut made = None;
    if let Some(parts) = parts {
        match Source::new(parts) {
            Ok(source) => made = Some(source),
            Err(misfits) => {
                for Misfit { key, why } in misfits {
                    let at = section.entry(key).map_or(section.at(), |entry| entry.at);
                    section.problem(at, why);
                }
            }
        }
    }
    section.finish();
    let source = made?;
    let defaults = source.preset().defaults();
    Some(Hook {
        name: entry.key.to_owned(),
        tenant,
        dedup: dedup.or(defaults.dedup),
        // What never fits is 413 and not "try again".
        max_body: max_body.or(defaults.max_body).map(|most| most.min(ingest.queue)),
        source,
        rate,
        retired,
        allow_from,
        origins,
        require_origin,
        query_token,
    })
}

fn preset_names() -> String {
    let names: Vec<_> = Preset::ALL.iter().map(|preset| format!("\"{preset}\"")).collect();
    names.join(", ")
}

fn preset(section: &mut Section<'_>) -> Option<Preset> {
    let text = section.text("verify", "\"github\"")?;
    let preset = text.value.parse().ok();
    if preset.is_none() {
        let names = Preset::ALL.iter().map(|preset| preset.name());
        let hint = match nearest(&text.value, names) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("use one of {}", preset_names()),
        };
        section.problem(text.at, format!("`verify` is {}: {hint}", text.quoted()));
    }
    preset
}

fn strings(section: &mut Section<'_>, key: &'static str, example: &str) -> Vec<String> {
    let texts = section.texts(key, example).map(|(_, texts)| texts).unwrap_or_default();
    texts.into_iter().flatten().map(|text| text.value).collect()
}

fn networks(section: &mut Section<'_>) -> Vec<IpNet> {
    let texts = section.texts("allow_from", "[\"192.0.2.0/24\"]").map(|(_, texts)| texts);
    let mut networks = Vec::new();
    for text in texts.unwrap_or_default().into_iter().flatten() {
        let network = text.value.parse::<IpNet>().map(|network| network.trunc());
        match network.or_else(|_| text.value.parse::<std::net::IpAddr>().map(IpNet::from)) {
            Ok(network) => networks.push(network),
            Err(_) => section.problem(
                text.at,
                format!(
                    "`allow_from` holds {}, which is no network: write one such as \"192.0.2.0/24\" or \"2001:db8::/32\"",
                    text.quoted()
                ),
            ),
        }
    }
    networks
}

fn require_origin(section: &mut Section<'_>, origins: &[String]) -> bool {
    let entry = section.entry("require_origin");
    let required = section.boolean("require_origin").unwrap_or(false);
    if let Some(entry) = entry
        && required
        && origins.is_empty()
    {
        section.problem(
            entry.at,
            "`require_origin` needs `origins`, or no request is ever taken: write `origins = [\"https://sender.example.com\"]`, or `[\"*\"]` for any",
        );
    }
    required
}

fn query_token(section: &mut Section<'_>, preset: Option<Preset>) -> bool {
    let entry = section.entry("query_token");
    let wanted = section.boolean("query_token").unwrap_or(false);
    if let (Some(entry), Some(preset)) = (entry, preset)
        && preset != Preset::Token
    {
        section.problem(
            entry.at,
            format!("`query_token` goes with `verify = \"token\"`, and not with \"{preset}\": leave it out"),
        );
    }
    wanted
}

/// What makes the source. `None` after a problem with one of its parts.
fn parts(section: &mut Section<'_>, preset: Option<Preset>) -> Option<Parts> {
    let mut is_whole = true;
    let secrets = secrets(section, preset, &mut is_whole);
    let mut template = |section: &mut Section<'_>, key, example| {
        let text = section.text(key, example);
        is_whole &= text.is_some() || section.entry(key).is_none();
        text.and_then(|text| parsed::<Template>(section, key, &text, &mut is_whole))
    };
    let event_type = template(section, "type", "\"{json:/event}\"");
    let id = template(section, "id", "\"{header:x-event-id}\"");
    let source = template(section, "source", "\"https://example.com/shop\"");
    let subject = template(section, "subject", "\"{json:/order/id}\"");
    let time = template(section, "time", "\"{json:/created_at}\"");
    let partitionkey = template(section, "partitionkey", "\"{json:/customer/id}\"");
    let signed = template(section, "signed", "\"{header:x-timestamp}.{body}\"");
    let timestamp = template(section, "timestamp", "\"{header:x-timestamp}\"");
    let extensions = extensions(section, &mut is_whole);
    let duplicate_key = duplicate_key(section, &mut is_whole);
    let tolerance = section.duration("tolerance", TOLERANCE);
    is_whole &= tolerance.is_some() || section.entry("tolerance").is_none();
    let ping = section.boolean("ping").unwrap_or(false);
    let hmac = hmac(section, preset, signed, timestamp, &mut is_whole);
    let preset = preset.filter(|_| is_whole)?;
    Some(Parts {
        secrets,
        hmac,
        tolerance,
        event_type,
        id,
        source,
        subject,
        time,
        partitionkey,
        extensions,
        duplicate_key,
        ping,
        ..Parts::new(preset)
    })
}

fn secrets(section: &mut Section<'_>, preset: Option<Preset>, is_whole: &mut bool) -> Vec<Secret> {
    let is_said = section.entry("secrets").is_some();
    let Some((at, texts)) = section.texts("secrets", "[\"${SECRET}\"]") else {
        *is_whole &= !is_said;
        return Vec::new();
    };
    if texts.is_empty() {
        section.problem(
            at,
            "`secrets` is empty: give what the provider signs with, such as `secrets = [\"${SECRET}\"]`",
        );
        *is_whole = false;
    }
    let mut secrets = Vec::new();
    for text in texts {
        let secret = text.zip(preset).and_then(|(text, preset)| {
            Secret::parse(preset, &text.value)
                .map_err(|why| section.problem(text.at, format!("one of `secrets` {why}")))
                .ok()
        });
        *is_whole &= secret.is_some();
        secrets.extend(secret);
    }
    secrets
}

fn parsed<T: FromStr<Err: Display>>(
    section: &Section<'_>,
    key: &str,
    text: &Text<'_>,
    is_whole: &mut bool,
) -> Option<T> {
    match text.value.parse() {
        Ok(value) => Some(value),
        Err(why) => {
            *is_whole = false;
            section.problem(text.at, format!("`{key}`: {why}"));
            None
        }
    }
}

fn extensions(section: &mut Section<'_>, is_whole: &mut bool) -> BTreeMap<String, Template> {
    let is_said = section.entry("extensions").is_some();
    let Some(table) = section.text_table("extensions", "{ delivery = \"{header:x-delivery}\" }")
    else {
        *is_whole &= !is_said;
        return BTreeMap::new();
    };
    let mut templates = BTreeMap::new();
    for (name, text) in table {
        if let Some(template) = parsed(section, "extensions", &text, is_whole) {
            templates.insert(name.to_owned(), template);
        }
    }
    templates
}

fn duplicate_key(section: &mut Section<'_>, is_whole: &mut bool) -> Key {
    let Some(text) = section.text("duplicate_key", "\"{body:sha256}\"") else {
        return Key::Usual;
    };
    if text.value.is_empty() {
        return Key::Nothing;
    }
    parsed(section, "duplicate_key", &text, is_whole).map_or(Key::Usual, Key::Of)
}

/// How a signature is made, where the file says so.
fn hmac(
    section: &mut Section<'_>,
    preset: Option<Preset>,
    signed: Option<Template>,
    timestamp: Option<Template>,
    is_whole: &mut bool,
) -> Option<Hmac> {
    let header = section.text("header", "\"x-signature\"");
    *is_whole &= header.is_some() || section.entry("header").is_none();
    let header = header.and_then(|text| parsed(section, "header", &text, is_whole));
    let prefix = section.text("prefix", "\"sha256=\"").map(|text| text.value);
    let encoding = one_of(section, "encoding", &Encoding::NAMES, is_whole);
    let algorithm = one_of(section, "algorithm", &Algorithm::NAMES, is_whole);
    if let Some(preset) = preset.filter(|preset| *preset != Preset::Hmac) {
        for key in ["header", "prefix", "encoding", "algorithm", "signed", "timestamp"] {
            if let Some(entry) = section.entry(key) {
                *is_whole = false;
                section.problem(
                    entry.at,
                    format!(
                        "`{key}` goes with `verify = \"hmac\"`, and \"{preset}\" knows its own: leave it out"
                    ),
                );
            }
        }
        return None;
    }
    Some(Hmac {
        header: header?,
        prefix: prefix.unwrap_or_default(),
        encoding: encoding.unwrap_or(Encoding::Hex),
        algorithm: algorithm.unwrap_or(Algorithm::Sha256),
        signed: signed.or_else(|| "{body}".parse().ok())?,
        timestamp,
    })
}

fn one_of<T: Copy>(
    section: &mut Section<'_>,
    key: &'static str,
    names: &[(&str, T)],
    is_whole: &mut bool,
) -> Option<T> {
    let text = section.text(key, &format!("\"{}\"", names[0].0))?;
    let found = names.iter().find(|(name, _)| *name == text.value).map(|(_, value)| *value);
    if found.is_none() {
        *is_whole = false;
        let names: Vec<_> = names.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let hint = match &*text.value {
            "sha1" => ": SHA-1 can be forged, and every provider has a better signature by now",
            _ => "",
        };
        section.problem(
            text.at,
            format!("`{key}` is {}: use {}{hint}", text.quoted(), names.join(" or ")),
        );
    }
    found
}
