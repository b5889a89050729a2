//! `[schedules.NAME]`: events that come by the clock.

use serde_json::{Map, Number, Value};
use toml::de::DeValue;

use super::document::{self, Document, Entry, kind};
use super::keys;
use super::section::Section;
use super::tenants::Tenants;
use super::value::NAME_RULE;
use crate::nearest::nearest;
use event_host_core::event::json::is_json;
use event_host_core::event::{ScheduleName, quoted};
use event_host_schedules::{InvalidTimetable, Missed, Payload, Schedule, Timetable};

/// The media type of data that is written as text, unless the file says otherwise.
const TEXT: &str = "text/plain";

/// The media type of any other data.
const JSON: &str = "application/json";

/// Reads every schedule.
pub(super) fn schedules<'a>(
    top: &mut Section<'a>,
    document: &'a Document<'a>,
    tenants: &Tenants<'_>,
) -> Vec<Schedule> {
    let Some(entry) = top.entry("schedules") else { return Vec::new() };
    let DeValue::Table(table) = entry.value else {
        top.problem(
            entry.at,
            format!(
                "`schedules` is {}, not a table of schedules: write a table [schedules.NAME] for \
                 each",
                kind(entry.value)
            ),
        );
        return Vec::new();
    };
    let entries = document::entries(table).into_iter();
    entries.filter_map(|entry| schedule(document, entry, tenants)).collect()
}

/// Reads one schedule. `None` only after a problem.
fn schedule<'a>(
    document: &'a Document<'a>,
    entry: Entry<'a>,
    tenants: &Tenants<'_>,
) -> Option<Schedule> {
    let mut section = Section::named(document, entry, &keys::SCHEDULE);
    let name = entry.key.parse::<ScheduleName>().ok();
    if name.is_none() {
        section.problem(
            entry.at,
            format!("{} is no name for a schedule: {NAME_RULE}", quoted(entry.key)),
        );
    }
    let timetable = timetable(&mut section);
    let tenant = tenants.named_in(&mut section, entry);
    let missed = missed(&mut section);
    let event_type = event_type(&mut section);
    let mut optional = |key, example| section.text(key, example).map(|text| text.value);
    let source = optional("source", "\"/reports\"");
    let subject = optional("subject", "\"daily\"");
    let partitionkey = optional("partitionkey", "\"acme\"");
    let (data, datacontenttype) = data(&mut section);
    section.finish();
    let (name, timetable, event_type) = (name?, timetable?, event_type?);
    let schedule = Schedule {
        tenant,
        timetable,
        missed: missed?,
        payload: Payload {
            event_type,
            source: source.unwrap_or_else(|| Payload::default_source(&name)),
            subject,
            partitionkey,
            datacontenttype,
            data,
        },
        name,
    };
    if let Err(why) = schedule.check() {
        let said = why.attribute().and_then(|key| entry.below(&[key]));
        let at = said.map_or(entry.at, |said| said.at);
        document.problem(at, format!("no event can be as the schedule has it: {why}"));
        return None;
    }
    Some(schedule)
}

/// The expression and its zone. `None` only after a problem.
fn timetable(section: &mut Section<'_>) -> Option<Timetable> {
    const EXAMPLE: &str = "\"0 9 * * mon-fri\"";
    if section.lacks("cron") {
        section.problem(
            section.at(),
            format!("`cron` is missing: say when the schedule ticks, such as `cron = {EXAMPLE}`"),
        );
    }
    let cron = section.text("cron", EXAMPLE);
    let zone = match section.entry("timezone") {
        Some(entry) => Some(section.text_of(entry, "\"Europe/Berlin\"")?),
        None => None,
    };
    let name = zone.as_ref().map_or("UTC", |text| text.value.as_str());
    // A zone that is wrong is said also where the expression is.
    if let (Some(text), Err(why)) = (&zone, Timetable::new("@daily", name)) {
        let mut why = why.to_string();
        if let Some(meant) = nearest_zone(name) {
            why = format!("there is no such time zone: did you mean \"{meant}\"?");
        }
        section.problem(text.at, format!("`timezone` is {}: {why}", text.quoted()));
    }
    let cron = cron?;
    match Timetable::new(&cron.value, name) {
        Ok(timetable) => Some(timetable),
        Err(InvalidTimetable::Zone) => None,
        Err(InvalidTimetable::Cron(why)) => {
            section.problem(cron.at, format!("`cron` is {}: {why}", cron.quoted()));
            None
        }
    }
}

/// The zone that is most probably meant.
fn nearest_zone(name: &str) -> Option<String> {
    let zones: Vec<String> = jiff::tz::db().available().map(|zone| zone.to_string()).collect();
    nearest(name, zones.iter().map(String::as_str)).map(str::to_owned)
}

/// `None` after a problem.
fn missed(section: &mut Section<'_>) -> Option<Missed> {
    let Some(entry) = section.entry("missed") else { return Some(Missed::default()) };
    let text = section.text_of(entry, "\"once\"")?;
    match text.value.as_str() {
        "skip" => Some(Missed::Skip),
        "once" => Some(Missed::Once),
        "all" => Some(Missed::All),
        _ => {
            section.problem(
                text.at,
                format!("`missed` is {}: use \"skip\", \"once\" or \"all\"", text.quoted()),
            );
            None
        }
    }
}

fn event_type(section: &mut Section<'_>) -> Option<String> {
    const EXAMPLE: &str = "\"report.due\"";
    if section.lacks("type") {
        section.problem(
            section.at(),
            format!("`type` is missing: name the type of its events, such as `type = {EXAMPLE}`"),
        );
    }
    section.text("type", EXAMPLE).map(|text| text.value)
}

/// The data of the events, and their media type.
fn data(section: &mut Section<'_>) -> (Option<Vec<u8>>, Option<String>) {
    let media_type = section.text("datacontenttype", "\"application/json\"");
    let Some(entry) = section.entry("data") else {
        if let Some(text) = media_type {
            section.problem(
                text.at,
                "`datacontenttype` says what `data` is, and there is none: add it, or leave this \
                 out",
            );
        }
        return (None, None);
    };
    let given = media_type.as_ref().map(|text| text.value.clone());
    if !matches!(entry.value, DeValue::String(_)) {
        let Some(json) = to_json(section, entry.at, entry.value) else { return (None, None) };
        let media_type = given.unwrap_or_else(|| JSON.to_owned());
        return (Some(json.to_string().into_bytes()), Some(media_type));
    }
    let Some(text) = section.text_of(entry, "\"daily\"") else { return (None, None) };
    let media_type = given.unwrap_or_else(|| TEXT.to_owned());
    if is_json(Some(&media_type))
        && let Err(why) = serde_json::from_str::<serde::de::IgnoredAny>(&text.value)
    {
        section.problem(
            text.at,
            format!(
                "`data` is {}, which is no JSON ({why}), though its `datacontenttype` says so: \
                 write it as TOML, such as `data = {{ report = \"daily\" }}`",
                text.quoted()
            ),
        );
    }
    (Some(text.value.into_bytes()), Some(media_type))
}

/// A value of the file as JSON, with the variables in its strings replaced. `None` only
/// after a problem.
fn to_json(section: &Section<'_>, at: usize, value: &DeValue<'_>) -> Option<Value> {
    let no_json = |shown: &str| {
        section.problem(
            at,
            format!("`data` holds {}, which is no number of JSON: put it in quotes", quoted(shown)),
        );
    };
    Some(match value {
        DeValue::String(raw) => Value::String(section.expanded(at, raw)?),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Value::Number(number.into()),
            Err(_) => {
                no_json(integer.as_str());
                return None;
            }
        },
        DeValue::Float(float) => match float.as_str().parse().ok().and_then(Number::from_f64) {
            Some(number) => Value::Number(number),
            None => {
                no_json(float.as_str());
                return None;
            }
        },
        DeValue::Boolean(boolean) => Value::Bool(*boolean),
        DeValue::Datetime(time) => Value::String(time.to_string()),
        DeValue::Array(items) => {
            let items =
                items.iter().map(|item| to_json(section, item.span().start, item.get_ref()));
            Value::Array(items.collect::<Option<_>>()?)
        }
        DeValue::Table(table) => {
            let entries = table.iter().map(|(key, value)| {
                let at = value.span().start;
                Some((key.get_ref().to_string(), to_json(section, at, value.get_ref())?))
            });
            Value::Object(entries.collect::<Option<Map<_, _>>>()?)
        }
    })
}
