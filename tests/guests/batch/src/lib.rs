//! Handles batches: counts the events of a call with one write to its state, and
//! says in a `call` event which they were.
//!
//! What an event's data says of it is in `../README.md`.

use event_host_sdk::{Event, Failure, Message, batch_handler, emit, state};
use serde::Deserialize;
use serde_json::json;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wish {
    fail_until: u32,
    reject: bool,
    trap: bool,
}

#[batch_handler]
fn batch(events: Vec<Event>) -> Vec<Result<(), Failure>> {
    if let Err(failure) = record(&events) {
        return events.iter().map(|_| Err(failure.clone())).collect();
    }
    events.iter().map(grant).collect()
}

fn record(events: &[Event]) -> Result<(), Failure> {
    let count: u64 = state::get("count")?.unwrap_or(0);
    state::set("count", &(count + events.len() as u64))?;
    let positions: Vec<u64> = events.iter().map(Event::position).collect();
    emit(Message::new("call").json(&json!({ "positions": positions }))?)?;
    Ok(())
}

fn grant(event: &Event) -> Result<(), Failure> {
    let wish: Option<Wish> = event.json()?;
    let wish = wish.unwrap_or_default();
    if wish.trap {
        std::process::abort();
    }
    if wish.reject {
        return Err(Failure::reject("as it was told"));
    }
    if event.attempt() < wish.fail_until {
        return Err(Failure::retry(format!("attempt {} fails", event.attempt())));
    }
    Ok(())
}
