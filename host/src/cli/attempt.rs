//! Prints what one attempt did, for `invoke` and `dlq reproduce`.

use std::io;

use serde_json::{Value, json};

use super::output::{self, short};
use crate::app::attempt::Attempted;
use event_host_core::foreign;
use event_host_store::StateWrite;

/// What comes before each line but the first of a failure's text.
const FURTHER: &str = "       ";

fn outcome(attempted: &Attempted) -> &'static str {
    if attempted.succeeded() { "success" } else { "failure" }
}

fn milliseconds(attempted: &Attempted) -> f64 {
    attempted.usage.duration.as_secs_f64() * 1e3
}

/// All of it.
pub(super) fn to_json(attempted: &Attempted) -> Value {
    let state = |write: &StateWrite| json!({ "key": write.key, "value": text(write) });
    json!({
        "outcome": outcome(attempted),
        "failure": attempted.failure.as_ref().map(|failure| json!({
            "kind": failure.kind.label(),
            "text": failure.text,
            "retry_after_ms": failure.retry_after.map(|after| after.as_millis() as u64),
        })),
        "emits": attempted.emits,
        "state": attempted.writes.iter().map(state).collect::<Vec<_>>(),
        "logs": attempted.logs,
        "duration_ms": milliseconds(attempted),
        "memory_bytes": attempted.usage.memory_bytes,
        "digest": attempted.digest,
    })
}

/// All of it, a line for each thing.
pub(super) fn print(attempted: &Attempted) -> io::Result<()> {
    match &attempted.failure {
        None => output::line(outcome(attempted))?,
        Some(failure) => {
            let text = foreign::with_further_lines(&failure.text, FURTHER);
            output::line(format!("{}: {text}", failure.kind))?;
        }
    }
    for line in &attempted.logs {
        output::line(format!("log    {:<5} {}", line.level, short(&line.message, 400)))?;
    }
    for emit in &attempted.emits {
        output::line(format!("emit   {}", foreign::json(&emit.to_json_string())))?;
    }
    for write in &attempted.writes {
        output::line(format!(
            "state  {} = {}",
            foreign::json(&json!(write.key).to_string()),
            short(&foreign::json(&json!(text(write)).to_string()), 200)
        ))?;
    }
    output::line(format!(
        "took   {:.2} ms, {}",
        milliseconds(attempted),
        bytesize::ByteSize(attempted.usage.memory_bytes as u64)
    ))
}

fn text(write: &StateWrite) -> Option<String> {
    write.value.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}
