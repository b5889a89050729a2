//! `[tokens.NAME]`: who may do what by HTTP.

use event_host_core::event::{Tenant, quoted};
use event_host_http::token::{Role, Scope, Token, TokenHash};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use toml::de::DeValue;

use super::document::{self, Document, Entry, kind};
use super::keys;
use super::listen::{each, is_name};
use super::section::Section;
use super::tenants::Tenants;
use super::value::NAME_RULE;

/// How an `expires` is written.
const EXPIRES: &str =
    "write a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z, without quotes";

/// Reads every token.
pub(super) fn tokens<'a>(
    top: &mut Section<'a>,
    document: &'a Document<'a>,
    tenants: &Tenants<'a>,
) -> Vec<Token> {
    let Some(entry) = top.entry("tokens") else { return Vec::new() };
    let DeValue::Table(table) = entry.value else {
        top.problem(
            entry.at,
            format!(
                "`tokens` is {}, not a table of tokens: write a table [tokens.NAME] for each",
                kind(entry.value)
            ),
        );
        return Vec::new();
    };
    let mut found: Vec<(Entry<'a>, Token)> = Vec::new();
    for entry in document::entries(table) {
        let Some(token) = token(document, entry, tenants) else { continue };
        if let Some((other, _)) = found.iter().find(|(_, other)| other.hash == token.hash) {
            document.problem(
                entry.at,
                format!(
                    "has the `sha256` of [tokens.{}] (line {}): make a token of its own with `host token new`",
                    other.key,
                    document.line(other.at)
                ),
            );
        }
        found.push((entry, token));
    }
    found.into_iter().map(|(_, token)| token).collect()
}

/// Reads one token. `None` only after a problem.
fn token<'a>(document: &'a Document<'a>, entry: Entry<'a>, tenants: &Tenants<'a>) -> Option<Token> {
    let mut section = Section::named(document, entry, &keys::TOKEN);
    if !is_name(entry.key) {
        section.problem(
            entry.at,
            format!("{} is no name for a token: {NAME_RULE}", quoted(entry.key)),
        );
    }
    let hash = hash(&mut section);
    let roles = section.texts("roles", "\"publish\"");
    let roles = match roles {
        Some((at, texts)) => {
            let known = Role::ALL.map(Role::name);
            if texts.is_empty() {
                let known = known.join("\", \"");
                section.problem(at, format!("`roles` is empty: name some of \"{known}\""));
            }
            each(&section, texts, "roles", "role", &known, |text| text.parse::<Role>().ok())
        }
        None => {
            if section.lacks("roles") {
                section.problem(
                    section.at(),
                    "lacks `roles`: write what it may do, such as `roles = [\"publish\"]`",
                );
            }
            Default::default()
        }
    };
    let scope = scope(&mut section, entry, tenants);
    if roles.contains(&Role::Metrics) && scope != Scope::All {
        section.problem(
            section.at(),
            "`roles` has `metrics`, which tell of all tenants: write `tenant = \"*\"`, in a token of its own",
        );
    }
    let [types, sources] = ["types", "sources"].map(|key| patterns(&mut section, key, &roles));
    let rate = section.number("rate", 0.001..=1_000_000_000.0, "100");
    let payloads = section.boolean("payloads").unwrap_or(true);
    let expires = expires(&mut section);
    section.finish();
    let name = entry.key.to_owned();
    Some(Token { name, hash: hash?, roles, scope, types, sources, rate, payloads, expires })
}

fn hash(section: &mut Section<'_>) -> Option<TokenHash> {
    let Some(text) = section.text("sha256", "\"…64 hexadecimal digits…\"") else {
        if section.lacks("sha256") {
            section.problem(
                section.at(),
                "lacks `sha256`: `host token new` makes a token and prints what to write here",
            );
        }
        return None;
    };
    // It may be the token itself, by mistake: it is not repeated.
    text.value.parse().map_err(|why| section.problem(text.at, format!("`sha256` {why}"))).ok()
}

fn scope<'a>(section: &mut Section<'a>, entry: Entry<'a>, tenants: &Tenants<'a>) -> Scope {
    let Some(text) = section.text("tenant", "\"acme\"") else {
        return Scope::One(Tenant::none());
    };
    if text.value == "*" {
        return Scope::All;
    }
    match text.value.parse() {
        Ok(tenant) => {
            tenants.check_known(&tenant, entry);
            Scope::One(tenant)
        }
        Err(_) => {
            section.problem(
                text.at,
                format!(
                    "`tenant` is {}, which is no name: {NAME_RULE}, or write \"*\" for all tenants",
                    text.quoted()
                ),
            );
            Scope::One(Tenant::none())
        }
    }
}

/// What a token may publish: names, or beginnings that end with `*`.
fn patterns(
    section: &mut Section<'_>,
    key: &'static str,
    roles: &std::collections::BTreeSet<Role>,
) -> Vec<String> {
    let Some((at, texts)) = section.texts(key, "\"issues.*\"") else { return vec!["*".to_owned()] };
    if !roles.contains(&Role::Publish) {
        section.problem(
            at,
            format!("`{key}` says what may be published, which takes the role \"publish\": add it to `roles`, or leave `{key}` out"),
        );
    }
    let mut patterns = Vec::new();
    for text in texts.into_iter().flatten() {
        let is_pattern = !text.value.is_empty()
            && !text.value.strip_suffix('*').unwrap_or(&text.value).contains('*');
        if is_pattern {
            patterns.push(text.value);
        } else {
            section.problem(
                text.at,
                format!(
                    "`{key}` has {}, where `*` stands elsewhere than at the end: write a whole name, or its beginning and `*`",
                    text.quoted()
                ),
            );
        }
    }
    patterns
}

fn expires(section: &mut Section<'_>) -> Option<Timestamp> {
    let entry = section.entry("expires")?;
    let DeValue::Datetime(written) = entry.value else {
        section.problem(entry.at, format!("`expires` is {}: {EXPIRES}", kind(entry.value)));
        return None;
    };
    let text = written.to_string();
    let time = text.parse::<Timestamp>().ok().or_else(|| {
        let date = text.parse::<Date>().ok().filter(|_| written.time.is_none())?;
        // Of UTC: hosts may stand anywhere.
        TimeZone::UTC.to_timestamp(date.at(0, 0, 0, 0)).ok()
    });
    if time.is_none() {
        section
            .problem(entry.at, format!("`expires` is {text}, which names no instant: {EXPIRES}"));
    }
    time
}
