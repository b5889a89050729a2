//! `[handlers.NAME.allow]`: what a handler may reach; the HTTP rules of tenants too.

use std::collections::BTreeMap;

use super::event_types::event_types;
use super::section::Section;
use event_host_core::event::quoted;
use event_host_sandbox::settings::{Clocks, EmitPolicy, Grants, HttpPolicy, HttpRule};

/// Reads the table.
pub(super) fn grants(mut section: Section<'_>) -> Grants {
    let defaults = Grants::default();
    let grants = Grants {
        env: env(&mut section),
        config: config(&mut section),
        http: http(&mut section).unwrap_or_default(),
        emit: emit(&mut section),
        state: section.boolean("state").unwrap_or(defaults.state),
        clocks: clocks(&mut section).unwrap_or(defaults.clocks),
    };
    section.finish();
    grants
}

fn env(section: &mut Section<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (name, text) in section.text_table("env", "{ REGION = \"eu\" }").unwrap_or_default() {
        if name.is_empty() || name.contains(['=', '\0']) {
            section.problem(
                text.at,
                format!("{} is no name for a variable: use letters, digits and `_`", quoted(name)),
            );
        } else if text.value.contains('\0') {
            section.problem(
                text.at,
                format!("the variable `{name}` holds a NUL character, which none can"),
            );
        } else {
            env.insert(name.to_owned(), text.value);
        }
    }
    env
}

fn config(section: &mut Section<'_>) -> BTreeMap<String, String> {
    let values = section.text_table("config", "{ currency = \"EUR\" }").unwrap_or_default();
    values.into_iter().map(|(name, text)| (name.to_owned(), text.value)).collect()
}

fn emit(section: &mut Section<'_>) -> EmitPolicy {
    match section.texts("emit", "[\"issue.triaged\", \"audit.*\"]") {
        None => EmitPolicy::Any,
        Some((_, texts)) if texts.is_empty() => EmitPolicy::Nothing,
        Some((_, texts)) => match event_types(section, texts) {
            Some(types) if types.is_all() => EmitPolicy::Any,
            Some(types) => EmitPolicy::Types(types),
            // After a problem nothing is run.
            None => EmitPolicy::Nothing,
        },
    }
}

/// `None` if it says nothing, or after a problem.
fn clocks(section: &mut Section<'_>) -> Option<Clocks> {
    let text = section.text("clocks", "\"fine\"")?;
    match text.value.parse() {
        Ok(clocks) => Some(clocks),
        Err(problem) => {
            section.problem(text.at, format!("`clocks` is {}: {problem}", text.quoted()));
            None
        }
    }
}

/// Reads which HTTP requests are allowed. `None` if it says nothing.
pub(super) fn http(section: &mut Section<'_>) -> Option<HttpPolicy> {
    let (_, texts) = section.texts("http", "[\"https://api.example.com\"]")?;
    let mut rules = Vec::new();
    for text in texts.into_iter().flatten() {
        match text.value.parse::<HttpRule>() {
            Ok(rule) => rules.push(rule),
            Err(problem) => section.problem(
                text.at,
                format!("`http` holds {}, which grants nothing: {problem}", text.quoted()),
            ),
        }
    }
    Some(rules.into_iter().collect())
}
