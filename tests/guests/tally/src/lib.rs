//! Counts each event in its state, all together and by type, so that a test can
//! compare the counts with what was published.
//!
//! For an event whose extension `seen` is true it also emits one `seen` event,
//! so that a test can count emits.

use event_host_sdk::{Event, Failure, Message, emit, handler, state};
use serde_json::json;

#[handler]
fn tally(event: Event) -> Result<(), Failure> {
    count("count")?;
    count(&format!("type/{}", event.event_type()))?;
    if event.extension("seen")? == Some(true) {
        let place = json!({ "id": event.id(), "position": event.position() });
        emit(Message::new("seen").subject(event.id()).json(&place)?)?;
    }
    Ok(())
}

fn count(key: &str) -> Result<(), Failure> {
    let seen: u64 = state::get(key)?.unwrap_or(0);
    Ok(state::set(key, &(seen + 1))?)
}
