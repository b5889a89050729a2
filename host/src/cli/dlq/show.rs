//! One dead letter, as text and as JSON.

use std::io;

use serde_json::{Value, json};

use crate::cli::output::{self, field, short};
use event_host_core::foreign;
use event_host_store::DeadLetter;

pub(super) fn to_json(letter: &DeadLetter) -> Value {
    let mut value = json!({
        "id": letter.id,
        "group": letter.group,
        "position": letter.event.position,
        "event": letter.event.event,
        "attempts": letter.attempts,
        "failure": letter.failure,
        "digest": letter.digest,
        "dead_at": letter.dead_at,
    });
    if !letter.tenant.is_none() {
        value["tenant"] = json!(letter.tenant);
    }
    value
}

pub(super) fn print(letter: &DeadLetter) -> io::Result<()> {
    let event = &letter.event.event;
    field("dead letter", &letter.id.to_string())?;
    field("group", letter.group.as_str())?;
    if !letter.tenant.is_none() {
        field("tenant", letter.tenant.as_str())?;
    }
    field("failure", &format!("{}: {}", letter.failure.kind, letter.failure.text))?;
    field("attempts", &letter.attempts.to_string())?;
    field("component", &letter.digest)?;
    field("dead since", &letter.dead_at.to_string())?;
    field("position", &letter.event.position.to_string())?;
    output::line("")?;
    let mut json = event.to_json();
    let data = json.remove("data").or_else(|| json.remove("data_base64"));
    for (name, value) in &json {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        field(name, &short(&text, 200))?;
    }
    let data = match data {
        None => return output::line("\nno data"),
        Some(Value::String(text)) => text,
        Some(value) => serde_json::to_string_pretty(&value).map_err(io::Error::other)?,
    };
    output::line(format!("\n  {}", foreign::with_further_lines(&data, "  ")))
}
